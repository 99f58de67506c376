r"""A hook of mkdocs: formulas, ``$x$`` in a line and ``$$x$$`` by themselves, become MathML when the site is built.

Browsers draw MathML by themselves, so that a page needs no script and no font from elsewhere.
"""

from __future__ import annotations

import html
import re
from typing import Any

FORMULA = re.compile(r'<(span|div) class="arithmatex">(?:\\\((.*?)\\\)|\\\[(.*?)\\\])</\1>', re.DOTALL)
"""What the extension arithmatex makes of a formula in Markdown."""


def on_page_content(content: str, **about: Any) -> str:
    """The page with every formula as MathML."""
    return FORMULA.sub(lambda found: mathml(html.unescape(found[2] or found[3]), block=found[3] is not None), content)


def mathml(formula: str, *, block: bool) -> str:
    """A formula of LaTeX as MathML, with the LaTeX as its text for readers and for copying."""
    from latex2mathml.converter import convert

    made: str = convert(" ".join(formula.split()), display="block" if block else "inline")
    text = html.escape(" ".join(formula.split()), quote=True)
    return made.replace("<math ", f'<math aria-label="{text}" ', 1)
