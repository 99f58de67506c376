"""The site: formulas become MathML, and a reader needs nothing from the network. Needs the extra `docs`."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest

from scripts import ROOT, script

DOCS = ROOT / "docs"


maths = script("docs/maths.py")
FORMULA = re.compile(r"\$\$(.+?)\$\$|(?<![\\$\w])\$(\S(?:[^$\n]*?\S)?)\$(?!\w)", re.DOTALL)


def formulas(page: Path) -> list[tuple[str, bool]]:
    """Formulas of a page outside of code, and whether they stand by themselves."""
    text = re.sub(r"^( *)```.*?^\1```$|`[^`\n]*`", "", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
    return [(found[1] or found[2], bool(found[1])) for found in FORMULA.finditer(text)]


@pytest.mark.parametrize("page", sorted(DOCS.rglob("*.md")), ids=lambda page: page.relative_to(DOCS).as_posix())
def test_every_formula_can_be_converted(page: Path) -> None:
    pytest.importorskip("latex2mathml", reason="needs pip install 'mapmrf[docs]'")
    for formula, block in formulas(page):
        maths.mathml(formula, block=block)


def test_formulas_are_found_in_the_pages_that_define_the_methods() -> None:
    assert sum(block for _, block in formulas(DOCS / "methods" / "lslp.md")) >= 5
    assert (r"\mu_V", False) in formulas(DOCS / "notation.md")


def test_a_formula_becomes_mathml_with_its_latex_as_the_label() -> None:
    pytest.importorskip("latex2mathml", reason="needs pip install 'mapmrf[docs]'")
    made = maths.on_page_content(r'<p>of <span class="arithmatex">\(x &lt; \mu_i\)</span>.</p>')
    assert made.startswith("<p>of <math") and made.endswith("</math>.</p>") and "arithmatex" not in made
    assert r'aria-label="x &lt; \mu_i"' in made and "<msub>" in made and "&lt;" in made
    aligned = r"\begin{aligned} a &= b && \text{always} \\ c &= d \end{aligned}"
    made = maths.on_page_content(rf'<div class="arithmatex">\[{aligned}\]</div>'.replace("&", "&amp;"))
    assert made.count("<mtr>") == 2 and made.count("<mtd>") == 6 and 'display="block"' in made
    limits = r"\max_{x : x_i = k} f \ge \operatorname*{argmin}_t g"
    assert maths.mathml(limits, block=True).count("<munder>") == 2 and "munder" not in maths.mathml(limits, block=False)
    with pytest.raises(ValueError, match=r"found .*nosuchcommand"):
        maths.mathml(r"\nosuchcommand x", block=False)


class Fetched(HTMLParser):
    """Collects the addresses that a browser would fetch to show a page; links are only followed on request."""

    FETCHED = frozenset({"script", "link", "img", "iframe", "source", "video", "audio", "embed", "object", "use"})

    def __init__(self) -> None:
        super().__init__()
        self.outside: list[str] = []

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        known = dict(attributes)
        if tag in self.FETCHED and known.get("rel") != "canonical":
            for key in ("src", "href", "data", "srcset", "xlink:href"):
                if re.match(r"(\w+:)?//", known.get(key) or ""):
                    self.outside.append(f"{tag} {known[key]}")


def outside(site: Path) -> list[str]:
    """What the files of a site would fetch from elsewhere: in pages, in styles, and in scripts of ours."""
    found = []
    for path in site.rglob("*.html"):
        parser = Fetched()
        parser.feed(path.read_text(encoding="utf-8"))
        found += [f"{path.relative_to(site)}: {one}" for one in parser.outside]
    for path in site.rglob("*.css"):
        text = path.read_text(encoding="utf-8")
        found += [f"{path.name}: {one}" for one in re.findall(r"(?:url\(|@import)\s*[\"']?(?:\w+:)?//[^)\"']+", text)]
    return found


def test_addresses_outside_are_found(tmp_path: Path) -> None:
    (tmp_path / "a.html").write_text(
        '<a href="https://x.org">x</a><script src="https://cdn.org/k.js"></script><img src="p.png">'
        '<link rel="canonical" href="https://y.org"><link rel="stylesheet" href="//z.org/z.css">'
    )
    (tmp_path / "a.css").write_text("@font-face { src: url('https://f.org/f.woff2') } p { background: url(p.png) }")
    assert outside(tmp_path) == [
        "a.html: script https://cdn.org/k.js",
        "a.html: link //z.org/z.css",
        "a.css: url('https://f.org/f.woff2",
    ]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    for package in ("mkdocs", "material", "mkdocstrings", "latex2mathml"):
        if importlib.util.find_spec(package) is None:
            pytest.skip("needs pip install 'mapmrf[docs]'")
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return folder


def test_a_reader_needs_nothing_from_the_network(site: Path) -> None:
    assert len(list(site.rglob("*.html"))) > 50 and (site / "assets" / "stix-two-math.woff2").exists()
    assert outside(site) == []


def test_formulas_are_mathml_on_every_page(site: Path) -> None:
    pages = {path: path.read_text(encoding="utf-8") for path in site.rglob("index.html")}
    assert sum(text.count("<math ") for text in pages.values()) > 200
    assert [path for path, text in pages.items() if "arithmatex" in text] == []


def test_signatures_are_wrapped(site: Path) -> None:
    """A signature has a line per parameter once it is longer than the page is wide."""
    texts = [page.read_text(encoding="utf-8") for page in (site / "api").rglob("*.html")]
    shown = r'<div class="[^"]*doc-signature[^"]*">.*?<code>(.*?)</code>'
    signatures = [found for text in texts for found in re.findall(shown, text, re.DOTALL)]
    plain = [re.sub(r"<[^>]+>", "", one) for one in signatures]
    assert len(plain) > 100
    assert [line for one in plain for line in one.splitlines() if len(line.strip()) > 100] == []
