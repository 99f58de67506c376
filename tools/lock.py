"""Pin the dependencies of a release, with hashes: a requirements file for `pip install --require-hashes`.

    python tools/lock.py                                     # core, for this platform and Python, to standard output
    python tools/lock.py --extras plots exact -o lock.txt
    python tools/lock.py --pythons 3.11 3.12 3.13 -o requirements-lock.txt      # the lock of the repository
    python tools/lock.py --check lock.txt                    # would pip install exactly this, with these hashes?

pip resolves the requirements of pyproject.toml as for a new environment (`pip install --dry-run --report`); nothing is
installed. Hashes are those of the files that pip chose, so a lock is for one platform and version of Python, which its
first line names. With `--pythons` it is one for several versions on Linux x86-64, from wheels alone: a package has a
hash for each of its files, and a marker if not all versions get the same. Exit code 1 if a file has no hash, or if pip
refuses a lock.
"""

from __future__ import annotations

import argparse
import json
import platform
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path
from typing import Any

PROJECT = Path(__file__).parents[1] / "pyproject.toml"

PIP = (sys.executable, "-m", "pip", "install", "--dry-run", "--ignore-installed", "--quiet")


def requirements(extras: list[str]) -> list[str]:
    """What pyproject.toml asks for: the core and some extras."""
    project = tomllib.loads(PROJECT.read_text(encoding="utf-8"))["project"]
    optional = project["optional-dependencies"]
    return [*project["dependencies"], *(text for extra in extras for text in optional[extra])]


def resolved(wanted: list[str]) -> dict[str, Any]:
    """Pip's report on what it would install."""
    done = subprocess.run([*PIP, "--report", "-", *wanted], capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(done.stderr.strip().splitlines()[-1])
    report: dict[str, Any] = json.loads(done.stdout)
    return report


def lock_lines(report: dict[str, Any]) -> list[str]:
    """A requirement with its hash for every package of a report, by name.

    Raises
    ------
    ValueError
        If pip gives no SHA-256 for a file.
    """
    lines = []
    for item in report["install"]:
        name, version = item["metadata"]["name"], item["metadata"]["version"]
        digest = item["download_info"].get("archive_info", {}).get("hashes", {}).get("sha256")
        if digest is None:
            raise ValueError(f"{name} {version} has no SHA-256: {item['download_info'].get('url', 'no file')}")
        lines.append(f"{name.lower().replace('_', '-')}=={version} --hash=sha256:{digest}")
    return sorted(lines)


def merged(locks: dict[str, list[str]]) -> list[str]:
    """One lock from those of several versions of Python: all hashes of a package, and markers where versions differ."""
    hashes: dict[str, set[str]] = {}
    pythons: dict[str, list[str]] = {}
    for python, lines in locks.items():
        for line in lines:
            pin, digest = line.split(" --hash=")
            hashes.setdefault(pin, set()).add(digest)
            pythons.setdefault(pin, []).append(python)
    found = []
    for pin in sorted(hashes):
        marker = " or ".join(f'python_version == "{python}"' for python in pythons[pin])
        head = pin if len(pythons[pin]) == len(locks) else f"{pin} ; {marker}"
        found.append(" \\\n".join([head, *(f"    --hash={digest}" for digest in sorted(hashes[pin]))]))
    return found


def resolved_for(python: str, wanted: list[str]) -> dict[str, Any]:
    """Pip's report on the wheels for a version of Python on Linux x86-64."""
    platforms = [f"--platform={name}_x86_64" for name in ("manylinux2014", "manylinux_2_27", "manylinux_2_28")]
    options = ["--only-binary=:all:", f"--python-version={python}", "--implementation=cp", *platforms]
    with tempfile.TemporaryDirectory() as folder:
        return resolved([*options, "--target", folder, *wanted])


def check(path: Path) -> int:
    """Have pip resolve a lock with its hashes required."""
    command = [*PIP, "--no-deps", "--require-hashes", "--requirement", str(path)]
    return int(subprocess.run(command, check=False).returncode != 0)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--extras", nargs="+", default=[], help="extras of pyproject.toml to include")
    parser.add_argument("--pythons", nargs="+", default=[], metavar="X.Y", help="versions of Python, on Linux x86-64")
    parser.add_argument("--output", "-o", type=Path, metavar="FILE")
    parser.add_argument("--check", type=Path, metavar="FILE")
    given = parser.parse_args()
    if given.check is not None:
        return check(given.check)
    wanted = requirements(given.extras)
    try:
        if given.pythons:
            lines = merged({python: lock_lines(resolved_for(python, wanted)) for python in given.pythons})
        else:
            lines = lock_lines(resolved(wanted))
    except ValueError as error:
        sys.exit(str(error))
    where = f"{platform.system()} {platform.machine()}, Python {platform.python_version()}"
    if given.pythons:
        where = f"Linux x86_64, Python {' '.join(given.pythons)}"
    text = "\n".join([f"# {where}: python tools/lock.py {' '.join(sys.argv[1:])}".rstrip(), *lines, ""])
    if given.output is None:
        print(text, end="")
    else:
        given.output.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
