r"""A hook of mkdocs: formulas, ``$x$`` in a line and ``$$x$$`` by themselves, become MathML when the site is built.

Browsers draw MathML by themselves, so that a page needs no script; its font is in docs/assets.
"""

from __future__ import annotations

import html
import re
from typing import Any

FORMULA = re.compile(r'<(span|div) class="arithmatex">(?:\\\((.*?)\\\)|\\\[(.*?)\\\])</\1>', re.DOTALL)
"""What the extension arithmatex makes of a formula in Markdown."""
ALIGNED = re.compile(r"\\begin\{aligned\}(.*)\\end\{aligned\}", re.DOTALL)
LIMITS = re.compile(r"(\\max|\\min|\\operatorname\*\{\w+\})_(\{(?:[^{}]|\{[^{}]*\})*\}|\\[a-z]+|\w)")
"""Operators with what is to stand below them, where a formula stands by itself."""
BODY = re.compile(r"<math[^>]*>(.*)</math>", re.DOTALL)


def on_page_content(content: str, **about: Any) -> str:
    """The page with every formula as MathML."""
    return FORMULA.sub(lambda found: mathml(html.unescape(found[2] or found[3]), block=found[3] is not None), content)


def mathml(formula: str, *, block: bool) -> str:
    """A formula of LaTeX as MathML, with the LaTeX as its text for those who cannot see it.

    Raises
    ------
    ValueError
        If it has a command that is unknown.
    """
    aligned = ALIGNED.search(formula)
    body = _rows(aligned[1]) if aligned else _converted(formula, block)
    if unknown := re.search(r"\\[A-Za-z]+|&(?!\w+;|#)", body):
        raise ValueError(f"found {unknown[0]!r} in the MathML of {formula!r}, expected nothing of LaTeX")
    text = html.escape(" ".join(formula.split()), quote=True)
    display = "block" if block else "inline"
    made = f'<math xmlns="http://www.w3.org/1998/Math/MathML" display="{display}" aria-label="{text}">{body}</math>'
    return f'<div class="formula">{made}</div>' if block else made


def _rows(text: str) -> str:
    """The lines of an ``aligned`` as a table: rows end with a double backslash, cells with an ampersand."""
    rows = [[_converted(cell, block=True) for cell in row.split("&")] for row in text.split(r"\\")]
    lines = "".join(f"<mtr>{''.join(f'<mtd>{cell}</mtd>' for cell in row)}</mtr>" for row in rows)
    return f'<mtable displaystyle="true">{lines}</mtable>'


def _converted(formula: str, block: bool) -> str:
    """The inside of the MathML of a formula without alignment."""
    from latex2mathml.converter import convert

    text = " ".join(formula.split())
    if not text:
        return ""
    if block:
        text = LIMITS.sub(lambda found: f"\\underset{{{found[2]}}}{{{found[1].replace('*', '')}}}", text)
    found = BODY.search(convert(text, display="block" if block else "inline"))
    assert found is not None
    return found[1]
