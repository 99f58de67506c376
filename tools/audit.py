"""Licences and known vulnerabilities of mapmrf's dependencies, and a bill of materials (CycloneDX, JSON).

    python tools/audit.py                                    # licences of everything installed for the core
    python tools/audit.py --extras plots hdf5                # ... and for some extras
    python tools/audit.py --sbom mapmrf.cdx.json             # write the bill of materials
    python tools/audit.py --vulnerabilities                  # run pip-audit, if it is installed

The exit code is 1 if a package has a licence that the core must not depend on, or none that is known, or if pip-audit
reports something.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tempfile
import tomllib
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path
from typing import Any, NamedTuple

from packaging.requirements import Requirement

PROJECT = Path(__file__).parents[1] / "pyproject.toml"

COPYLEFT = re.compile(r"\b(A?GPL|GNU (Affero )?General Public)", re.IGNORECASE)
"""Licences that the core must not depend on; the LGPL is not among them."""

LONGEST = 60
"""Characters above which a licence field is the whole text: classifiers count first, then its first line."""


class Package(NamedTuple):
    """An installed package: name, version, licence as its metadata give it, and the names that it requires."""

    name: str
    version: str
    licence: str
    requires: tuple[str, ...]

    @property
    def problem(self) -> str:
        """What is wrong with its licence, if anything."""
        if not self.licence:
            return "no licence in its metadata"
        return "copyleft" if COPYLEFT.search(self.licence) else ""


def main() -> int:
    """Print a table, and do what else was asked for."""
    arguments = _arguments()
    project = tomllib.loads(PROJECT.read_text(encoding="utf-8"))["project"]
    wanted = list(project["dependencies"])
    for extra in arguments.extras:
        wanted += project["optional-dependencies"][extra]
    packages = installed(wanted)
    print("| package | version | licence | |\n|---|---|---|---|")
    for package in packages:
        print(f"| {package.name} | {package.version} | {package.licence} | {package.problem} |")
    if arguments.sbom is not None:
        arguments.sbom.write_text(json.dumps(bill_of_materials(project, packages), indent=2) + "\n", encoding="utf-8")
    failed = any(package.problem for package in packages)
    if arguments.vulnerabilities:
        failed = vulnerable(packages) or failed
    return int(failed)


def installed(requirements: list[str]) -> list[Package]:
    """The packages that satisfy requirements, and all that these require, by name; extras of theirs are left out."""
    found: dict[str, Package] = {}
    open_names = [Requirement(text).name for text in requirements if _applies(text)]
    while open_names:
        name = _plain(open_names.pop())
        if name in found:
            continue
        try:
            there = distribution(name)
        except PackageNotFoundError:
            sys.exit(f"{name} is not installed")
        needs = tuple(sorted({_plain(Requirement(text).name) for text in there.requires or () if _applies(text)}))
        found[name] = Package(name, there.version, licence_of(there), needs)
        open_names += needs
    return [found[name] for name in sorted(found)]


def licence_of(there: Distribution) -> str:
    """The licence by the expression, the field or the classifiers of the metadata."""
    data = there.metadata
    field = (data.get("License") or "").strip().removeprefix("UNKNOWN")
    classifiers = [text.rsplit(" :: ", 1)[-1] for text in data.get_all("Classifier") or () if "License ::" in text]
    said = data.get("License-Expression") or ("" if len(field) > LONGEST else field)
    lines = [line for line in field.splitlines() if re.search(r"\w", line)]
    return " ".join((said or ", ".join(classifiers) or (lines[0] if lines else "")).split())


def bill_of_materials(project: dict[str, Any], packages: list[Package]) -> dict[str, Any]:
    """The packages in the layout of CycloneDX 1.5."""
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": {"component": {"type": "library", "name": project["name"], "bom-ref": project["name"]}},
        "components": [
            {
                "type": "library",
                "name": package.name,
                "version": package.version,
                "purl": _purl(package),
                "bom-ref": _purl(package),
                "licenses": [{"license": {"name": package.licence or "unknown"}}],
            }
            for package in packages
        ],
        "dependencies": [
            {"ref": _purl(package), "dependsOn": [_purl(other) for other in packages if other.name in package.requires]}
            for package in packages
        ],
    }


def vulnerable(packages: list[Package]) -> bool:
    """Run pip-audit on exactly these versions; whether it reports something."""
    with tempfile.TemporaryDirectory() as folder:
        pinned = Path(folder, "requirements.txt")
        pinned.write_text("".join(f"{package.name}=={package.version}\n" for package in packages), encoding="utf-8")
        command = [sys.executable, "-m", "pip_audit", "--no-deps", "--requirement", str(pinned)]
        return subprocess.run(command, check=False).returncode != 0


def _applies(requirement: str) -> bool:
    """Return whether a requirement counts here: its marker holds, and it is not one of an extra."""
    marker = Requirement(requirement).marker
    return marker is None or marker.evaluate({"extra": ""})


def _plain(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def _purl(package: Package) -> str:
    return f"pkg:pypi/{package.name}@{package.version}"


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--extras", nargs="+", default=[], help="extras of pyproject.toml to include")
    parser.add_argument("--sbom", type=Path, metavar="FILE", help="write the bill of materials")
    parser.add_argument("--vulnerabilities", action="store_true", help="run pip-audit")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
