"""The quadratic models of toulbar2, ``.qpbo``: a header ``N M`` and lines ``i j weight``, variables from 1.

The value is x'Wx for a matrix of which one half is listed: weights off the diagonal count twice. It is minimised, or
maximised if M is negative. If N is negative, variables are 1 (state 0) or -1 (state 1), and weights on the diagonal
multiply a variable, not its square. The format has no constant: it is written as a comment, ``# offset=x``, after the
last line, where other programs do not read it.
"""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import numpy as np

from mapmrf.formats import quadratic
from mapmrf.formats.files import numbers_of, read_bytes, read_text
from mapmrf.model.graph import FactorGraph

SUFFIXES = (".qpbo",)
WEIGHTS = True

_OFFSET = re.compile(rb"(?m)^[ \t]*#[ \t]*offset[ \t]*=[ \t]*" + quadratic.NUMBER + rb"[ \t\r]*$")


def read(path: Path, *, values: str | None = None) -> FactorGraph:
    """Read a quadratic model; weights are costs or logs as the header says, unless `values` says it."""
    file = numbers_of(path, read_text(path))
    most = quadratic.MOST_VARIABLES
    n, m = file.integers(0, 2, -most, most, "number {} of the header, variables and terms").tolist()
    sign = quadratic.sign_of(path, values, "cost" if m >= 0 else "log")
    if len(file.numbers) != 2 + 3 * abs(m):
        file.fail(min(len(file.numbers), 2 + 3 * abs(m)), f"term {(len(file.numbers) - 2) // 3 + 1}", f"{abs(m)} terms")
    i, j, weight = quadratic.read_lines(file, 2, abs(n), first=1)
    offset = quadratic.offset_of(path, _OFFSET, read_bytes(path))
    terms = quadratic.Terms(abs(n), i, j, weight, offset, spin=n < 0)
    return quadratic.graph_of(path, _doubled(terms, 2.0), sign)


def _doubled(terms: quadratic.Terms, factor: float) -> quadratic.Terms:
    """The terms with others off the diagonal, and with spins that are the other way round."""
    linear = -1.0 if terms.spin else 1.0
    return replace(terms, weight=terms.weight * np.where(terms.i == terms.j, linear, factor) + 0.0)


def losses(graph: FactorGraph) -> list[str]:
    return quadratic.losses(graph, quadratic.is_spin(graph))


def write(graph: FactorGraph, path: Path, *, values: str | None = None) -> None:
    """Write a binary pairwise model without forbidden states, spins as spins, with 17 digits."""
    sign = quadratic.sign_of(path, values)
    quadratic.check(path, graph)
    terms = quadratic.terms_of(graph, quadratic.is_spin(graph))
    n, m = -terms.n_vars if terms.spin else terms.n_vars, -len(terms.i) if sign > 0 else len(terms.i)
    halved = _doubled(replace(terms, i=terms.i + 1, j=terms.j + 1), 0.5)
    end = f"# offset={-sign * terms.offset:.17g}\n" if terms.offset else ""
    quadratic.write_terms(path, f"{n} {m}\n", halved, sign, "{:.17g}".format, end)
