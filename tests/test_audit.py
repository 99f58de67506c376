"""The audit of dependencies: licences that are found, licences that are not allowed, and the bill of materials."""

from __future__ import annotations

import importlib.util
import sys
from email.message import Message
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest


@pytest.fixture(scope="module")
def audit() -> ModuleType:
    path = Path(__file__).parents[1] / "tools" / "audit.py"
    spec = importlib.util.spec_from_file_location("audit", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["audit"] = module
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("fields", "licence"),
    [
        ({"License-Expression": "MIT", "License": "other"}, "MIT"),
        ({"License": "BSD 3-Clause"}, "BSD 3-Clause"),
        ({"License": "Copyright\n" * 9, "Classifier": "License :: OSI Approved :: BSD License"}, "BSD License"),
        ({"License": "=====\nThe licence of somebody\n" * 9}, "The licence of somebody"),
        ({"License": "UNKNOWN"}, ""),
        ({}, ""),
    ],
)  # fmt: skip
def test_licences_are_read_from_the_metadata(audit: ModuleType, fields: dict[str, str], licence: str) -> None:
    metadata = Message()
    for name, value in fields.items():
        metadata[name] = value
    assert audit.licence_of(SimpleNamespace(metadata=metadata)) == licence


@pytest.mark.parametrize(
    ("licence", "allowed"),
    [
        ("MIT", True),
        ("LGPL-3.0-or-later", True),
        ("GNU Lesser General Public License v2 (LGPLv2)", True),
        ("GPL-2.0-only", False),
        ("GNU General Public License v3 (GPLv3)", False),
        ("AGPL-3.0", False),
        ("", False),
    ],
)
def test_copyleft_and_unknown_licences_are_not_allowed(audit: ModuleType, licence: str, allowed: bool) -> None:
    assert (audit.Package("some", "1.0", licence, ()).problem == "") == allowed


def test_the_core_depends_on_nothing_that_is_not_allowed(audit: ModuleType) -> None:
    packages = audit.installed(["numpy>=1.26", "numba>=0.60", "scipy>=1.11", "pooch>=1.8"])
    assert {"numpy", "numba", "llvmlite", "scipy", "pooch", "requests"} <= {package.name for package in packages}
    assert [package for package in packages if package.problem] == []


def test_the_bill_of_materials_names_versions_and_dependencies(audit: ModuleType) -> None:
    bill = audit.bill_of_materials({"name": "mapmrf"}, audit.installed(["numba"]))
    assert (bill["bomFormat"], bill["metadata"]["component"]["name"]) == ("CycloneDX", "mapmrf")
    references = {part["name"]: part["bom-ref"] for part in bill["components"]}
    (numba,) = (part for part in bill["dependencies"] if part["ref"] == references["numba"])
    assert {references["numpy"], references["llvmlite"]} <= set(numba["dependsOn"])
