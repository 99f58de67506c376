"""The tables of methods, options and formats in the pages are those that docs/tables.py makes from the code."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

import pytest

import mapmrf
from mapmrf.run.registry import described_options
from scripts import ROOT, script

tables = script("docs/tables.py")


@pytest.mark.parametrize("page", tables.PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_the_tables_of_a_page_are_up_to_date(page: Path) -> None:
    assert page.read_text(encoding="utf-8") == tables.updated(page), "run python docs/tables.py"


def test_the_stubs_of_the_package_are_up_to_date() -> None:
    assert tables.STUBS.read_text(encoding="utf-8") == tables.stubs(), "run python docs/tables.py"


@pytest.mark.parametrize(
    ("page", "table"),
    [
        ("docs/how-to-choose.md", "all_methods"),
        ("docs/formats.md", "formats"),
        ("docs/methods/index.md", "methods"),
        ("docs/methods/index.md", "overview"),
        *((f"docs/methods/{name}.md", "options") for name in sorted(mapmrf.methods())),
    ],
)
def test_a_page_that_lists_methods_options_or_formats_asks_for_the_table(page: str, table: str) -> None:
    assert f"\n<!-- table: {table} -->\n" in (ROOT / page).read_text(encoding="utf-8")


def test_the_hand_written_table_of_how_to_choose_lists_every_method() -> None:
    text = (ROOT / "docs" / "how-to-choose.md").read_text(encoding="utf-8")
    rows = text.split("| method | relaxed solution |")[1]
    assert sorted(re.findall(r"^\| `(\w+)` \|", rows, re.MULTILINE)) == sorted(mapmrf.methods())


def test_every_suffix_is_in_the_table_of_formats() -> None:
    listed = re.findall(r"`(\.[\w.]+)`", tables.format_table(ROOT / "README.md"))
    assert {suffix.lower() for suffix in listed} >= set(mapmrf.formats.suffixes())


def test_options_that_are_documented_together_share_a_row() -> None:
    section = "Attributes\n----------\nrho, eta\n    First ``x``\n    and growth.\ntol : float\n    Limit.\n"
    cls = type("Documented", (), {"__doc__": f"What it does.\n\n{section}\nNotes\n-----\nNone.\n"})
    assert described_options(cls) == {("rho", "eta"): "First ``x`` and growth.", ("tol",): "Limit."}


def test_an_option_without_a_description_is_an_error(monkeypatch) -> None:
    @dataclass(frozen=True)
    class Silent:
        """No option is described."""

        depth: int = 1

    monkeypatch.setattr(mapmrf, "methods", lambda: {"silent": Silent})
    with pytest.raises(ValueError, match=r"Silent: the docstring describes \[\], expected \['depth'\]"):
        tables.option_table(Path("silent.md"))


def test_check_names_the_pages_that_are_out_of_date(tmp_path, monkeypatch, capsys) -> None:
    page = tmp_path / "page.md"
    page.write_text("# Page\n\n<!-- table: formats -->\n\n| old |\n\n<!-- end -->\n\nMore.\n")
    monkeypatch.setattr(tables, "ROOT", tmp_path)
    monkeypatch.setattr(tables, "PAGES", [page])
    monkeypatch.setattr(tables, "STUBS", tmp_path / "names.pyi")
    monkeypatch.setattr("sys.argv", ["tables.py", "--check"])
    assert tables.main() == 1
    assert "| old |" in page.read_text()
    assert capsys.readouterr().out.startswith("page.md: out of date")
    monkeypatch.setattr("sys.argv", ["tables.py"])
    assert tables.main() == 0
    assert "| old |" not in page.read_text() and page.read_text().endswith("<!-- end -->\n\nMore.\n")
    monkeypatch.setattr("sys.argv", ["tables.py", "--check"])
    assert tables.main() == 0


# -- families ---------------------------------------------------------------------------------------------------------


def test_the_navigation_groups_the_methods_by_family_in_the_same_order() -> None:
    text = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    part = text.split("      - All methods:\n")[1].split("\n  - ")[0]
    found: dict[str, list[str]] = {}
    for line in part.splitlines():
        if group := re.fullmatch(r" {10}- (.+):", line):
            found[group[1].lower()] = []
        else:
            found[list(found)[-1]] += re.fullmatch(r" {14}- (\w+): methods/\1\.md", line).groups()
    families = {
        family: {n for n, cls in mapmrf.methods().items() if cls.family == family} for family in tables.FAMILIES
    }
    assert {family: set(names) for family, names in found.items()} == {f.lower(): n for f, n in families.items()}
    assert list(found) == [family.lower() for family in families]
    assert all(len(names) == len(set(names)) for names in found.values())
