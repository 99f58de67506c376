"""Files around the package agree with it: container, workflows, extras, licences, and the lock of a release."""

from __future__ import annotations

import os
import re
import tomllib
from email.message import Message
from types import SimpleNamespace
from typing import Any

import pytest
from packaging.requirements import Requirement

from scripts import ROOT, script

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
audit, lock = script("tools/audit.py"), script("tools/lock.py")
EXTRAS = set(PROJECT["project"]["optional-dependencies"])


def read(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def test_the_container_gets_all_that_the_wheel_is_built_from() -> None:
    kept = {line[1:] for line in read(".dockerignore").splitlines() if line.startswith("!")}
    tool = PROJECT["tool"]["hatch"]
    needed = {
        "pyproject.toml",
        PROJECT["project"]["readme"],
        *PROJECT["project"]["license-files"],
        tool["version"]["path"].split("/")[0],
        *(path.split("/")[0] for path in tool["build"]["targets"]["wheel"]["packages"]),
        tool["build"]["targets"]["wheel"]["hooks"]["custom"]["path"],
    }
    assert kept == needed and all((ROOT / name).exists() for name in kept)


def test_the_container_runs_the_program_with_extras_that_exist() -> None:
    text = read("Dockerfile")
    (chosen,) = re.findall(r"^ARG EXTRAS=(\S+)$", text, re.MULTILINE)
    assert set(chosen.split(",")) <= EXTRAS
    assert 'ENTRYPOINT ["mapmrf"]' in text and "mapmrf" in PROJECT["project"]["scripts"]
    found = re.findall(r"^FROM python:([\d.]+)-slim", text, re.MULTILINE)
    versions = {tuple(map(int, version.split("."))) for version in found}
    assert len(versions) == 1 and min(versions) >= (3, 11)


def test_the_page_on_installation_lists_every_extra() -> None:
    table = read("docs/install.md").split("| extra | for |")[1].split("\n\n")[0]
    rows = [row.split("|")[1] for row in table.splitlines() if row.startswith("| ")]
    assert {name for row in rows for name in re.findall(r"`(\w+)`", row)} | {"browser"} == EXTRAS


def test_the_workflow_runs_what_developers_run() -> None:
    text = read(".github/workflows/ci.yml")
    assert re.search(r"^      - run: \.ci/run$", text, re.MULTILINE)
    assert os.access(ROOT / ".ci" / "run", os.X_OK)
    (oldest, *_), *_ = [re.findall(r'"(3\.\d+)"', line) for line in text.splitlines() if "python: [" in line]
    assert PROJECT["project"]["requires-python"] == f">={oldest}"


@pytest.mark.parametrize("name", ["bug", "model", "feature"])
def test_issue_templates_have_what_github_asks_for(name: str) -> None:
    text = read(f".github/ISSUE_TEMPLATE/{name}.yml")
    for key in ("name", "description", "body"):
        assert re.search(rf"^{key}:", text, re.MULTILINE)
    ids = re.findall(r"^    id: (\w+)$", text, re.MULTILINE)
    assert ids and len(ids) == len(set(ids)) == len(re.findall(r"^      label: ", text, re.MULTILINE))


# -- licences, and the bill of materials ------------------------------------------------------------------------------


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
def test_licences_are_read_from_the_metadata(fields: dict[str, str], licence: str) -> None:
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
def test_copyleft_and_unknown_licences_are_not_allowed(licence: str, allowed: bool) -> None:
    assert (audit.Package("some", "1.0", licence, ()).problem == "") == allowed


def test_the_core_depends_on_nothing_that_is_not_allowed_as_its_bill_says() -> None:
    packages = audit.installed(["numpy>=1.26", "numba>=0.60", "scipy>=1.11", "pooch>=1.8"])
    assert {"numpy", "numba", "llvmlite", "scipy", "pooch", "requests"} <= {package.name for package in packages}
    assert [package for package in packages if package.problem] == []
    bill = audit.bill_of_materials({"name": "mapmrf"}, audit.installed(["numba"]))
    assert (bill["bomFormat"], bill["metadata"]["component"]["name"]) == ("CycloneDX", "mapmrf")
    references = {part["name"]: part["bom-ref"] for part in bill["components"]}
    (numba,) = (part for part in bill["dependencies"] if part["ref"] == references["numba"])
    assert {references["numpy"], references["llvmlite"]} <= set(numba["dependsOn"])


# -- the lock of a release --------------------------------------------------------------------------------------------


LOCK = ROOT / "requirements-lock.txt"


def item(name: str, version: str, **archive: Any) -> dict[str, Any]:
    return {"metadata": {"name": name, "version": version}, "download_info": {"url": "https://x/f.whl", **archive}}


def test_packages_are_pinned_with_their_hashes_in_order() -> None:
    hashes = {"archive_info": {"hashes": {"sha256": "ab" * 32}}}
    report = {"install": [item("numpy", "2.0", **hashes), item("Markdown_It", "3.1", **hashes)]}
    assert lock.lock_lines(report) == [
        f"markdown-it==3.1 --hash=sha256:{'ab' * 32}",
        f"numpy==2.0 --hash=sha256:{'ab' * 32}",
    ]


@pytest.mark.parametrize("archive", [{}, {"archive_info": {}}, {"archive_info": {"hashes": {"md5": "ab"}}}])
def test_a_file_without_a_hash_is_an_error(archive: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"numpy 2\.0 has no SHA-256: https://x/f\.whl"):
        lock.lock_lines({"install": [item("numpy", "2.0", **archive)]})


def test_the_core_and_the_extras_asked_for_are_pinned() -> None:
    core = lock.requirements([])
    assert any(text.startswith("numba") for text in core)
    assert not any(text.startswith("matplotlib") for text in core)
    assert any(text.startswith("matplotlib") for text in lock.requirements(["plots"]))


def test_versions_of_python_share_a_lock() -> None:
    both = {"3.11": ["click==8 --hash=sha256:a", "numpy==2.0 --hash=sha256:b"],
            "3.12": ["click==8 --hash=sha256:a", "numpy==2.1 --hash=sha256:c"]}  # fmt: skip
    assert lock.merged(both) == [
        "click==8 \\\n    --hash=sha256:a",
        'numpy==2.0 ; python_version == "3.11" \\\n    --hash=sha256:b',
        'numpy==2.1 ; python_version == "3.12" \\\n    --hash=sha256:c',
    ]
    same = {python: [f"numba==1.0 --hash=sha256:{digest}"] for python, digest in (("3.11", "b"), ("3.12", "a"))}
    assert lock.merged(same) == ["numba==1.0 \\\n    --hash=sha256:a \\\n    --hash=sha256:b"]


def pinned() -> list[tuple[Requirement, list[str]]]:
    """The requirements of the committed lock, with their hashes."""
    text = LOCK.read_text(encoding="utf-8").replace("\\\n", " ")
    lines = [line.split(" --hash=") for line in text.splitlines() if not line.startswith("#")]
    return [(Requirement(pin.strip()), [digest.strip() for digest in digests]) for pin, *digests in lines]


def test_the_committed_lock_is_pinned_and_says_how_it_is_made_anew() -> None:
    for requirement, digests in pinned():
        assert [clause.operator for clause in requirement.specifier] == ["=="]
        assert digests and all(re.fullmatch(r"sha256:[0-9a-f]{64}", digest) for digest in digests)
    head = LOCK.read_text(encoding="utf-8").splitlines()[0]
    assert head.endswith(f"python tools/lock.py --pythons 3.11 3.12 3.13 -o {LOCK.name}")


def test_the_committed_lock_agrees_with_what_the_project_asks_for() -> None:
    pythons = LOCK.read_text(encoding="utf-8").splitlines()[0].split("Python ")[1].split(":")[0].split()
    assert pythons[0] == "3.11" and len(pythons) >= 3
    for python in pythons:
        versions = {
            requirement.name: next(iter(requirement.specifier)).version
            for requirement, _ in pinned()
            if requirement.marker is None or requirement.marker.evaluate({"python_version": python})
        }
        for text in lock.requirements([]):
            wanted = Requirement(text)
            assert wanted.name in versions and wanted.specifier.contains(versions[wanted.name]), f"{python}: {wanted}"
