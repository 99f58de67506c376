"""Pin what a release depends on, with hashes: a requirements file for `pip install --require-hashes`.

    python benches/lock.py                                     # core, for this platform and Python, to standard output
    python benches/lock.py --extras plots exact -o lock.txt
    python benches/lock.py --check lock.txt                    # would pip install exactly this, with these hashes?

pip resolves the requirements of pyproject.toml as for a new environment (`pip install --dry-run --report`); nothing is
installed. Hashes are those of the files that pip chose, so a lock is for one platform and version of Python, which its
first line names. Exit code 1 if a file has no hash, or if pip refuses a lock.
"""

from __future__ import annotations

import argparse
import json
import platform
import subprocess
import sys
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


def check(path: Path) -> int:
    """Have pip resolve a lock with its hashes required."""
    command = [*PIP, "--no-deps", "--require-hashes", "--requirement", str(path)]
    return int(subprocess.run(command, check=False).returncode != 0)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--extras", nargs="+", default=[], help="extras of pyproject.toml to pin, too")
    parser.add_argument("--output", "-o", type=Path, metavar="FILE")
    parser.add_argument("--check", type=Path, metavar="FILE")
    given = parser.parse_args()
    if given.check is not None:
        return check(given.check)
    try:
        lines = lock_lines(resolved(requirements(given.extras)))
    except ValueError as error:
        sys.exit(str(error))
    where = f"{platform.system()} {platform.machine()}, Python {platform.python_version()}"
    text = "\n".join([f"# {where}: python benches/lock.py {' '.join(sys.argv[1:])}".rstrip(), *lines, ""])
    if given.output is None:
        print(text, end="")
    else:
        given.output.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
