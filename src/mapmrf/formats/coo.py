"""The coordinate lists of dimod, ``.coo`` and ``.bqm``: lines ``i j bias`` of a quadratic model of bits or spins.

With a first line ``# vartype=SPIN``, variables are -1 or 1; with ``# vartype=BINARY``, or without such a line, they are
0 or 1. The energy is to be minimised. The format has no constant: it is written as a comment, ``# offset=x``, which
this module reads.
"""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np

from mapmrf.errors import FormatError
from mapmrf.formats import quadratic
from mapmrf.formats.files import numbers_of, read_bytes, read_text, shown
from mapmrf.model.graph import FactorGraph

SUFFIXES = (".coo", ".bqm")
WEIGHTS = True

_OFFSET = re.compile(rb"(?m)^[ \t]*#[ \t]*offset[ \t]*=[ \t]*" + quadratic.NUMBER + rb"[ \t\r]*$")
_VARTYPE = re.compile(rb"(?m)^[ \t]*#[ \t]*vartype[ \t]*=[ \t]*(\S*)")


def sniff(data: bytes) -> bool:
    return _VARTYPE.match(data) is not None


def read(path: Path, *, values: str | None = None) -> FactorGraph:
    """Read a quadratic model; biases are costs unless `values` is ``"log"``. Repeated pairs add up."""
    # The state 1 of a spin is +1, its state 0 is -1.
    sign = quadratic.sign_of(path, values)
    data = read_bytes(path)
    if data.startswith(b"DIMOD"):
        raise FormatError(f"{path}: found a binary file of dimod, expected text (dimod.serialization.coo writes it)")
    kind = _VARTYPE.search(data)
    name = kind[1].upper() if kind else b"BINARY"
    if name not in (b"SPIN", b"BINARY"):
        raise FormatError(f"{path}: vartype: found {shown(name)}, expected SPIN or BINARY")
    i, j, weight = quadratic.read_lines(numbers_of(path, read_text(path)), 0, quadratic.MOST_VARIABLES)
    n_vars = 1 + int(max(i.max(initial=-1), j.max(initial=-1)))
    return quadratic.graph_of(
        path, quadratic.Terms(n_vars, i, j, weight, quadratic.offset_of(path, _OFFSET, data), name == b"SPIN"), sign
    )


def losses(graph: FactorGraph) -> list[str]:
    return quadratic.losses(graph, quadratic.is_spin(graph))


def write(graph: FactorGraph, path: Path, *, values: str | None = None) -> None:
    """Write a binary pairwise model without forbidden states, spins as spins; raise FormatError for any other."""
    # Numbers have all their digits but no exponent, because dimod ignores lines with one.
    sign = quadratic.sign_of(path, values)
    quadratic.check(path, graph)
    terms = quadratic.terms_of(graph, quadratic.is_spin(graph))
    comment = f"# offset={-sign * terms.offset:.17g}\n" if terms.offset else ""
    head = f"# vartype={'SPIN' if terms.spin else 'BINARY'}\n{comment}"
    quadratic.write_terms(path, head, terms, sign, lambda weight: np.format_float_positional(weight, trim="0"))
