"""Files around the package agree with it: the container, the workflows, and the list of extras."""

from __future__ import annotations

import os
import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
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
