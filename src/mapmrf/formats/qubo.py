"""The binary quadratic models of qbsolv, ``.qubo``: a header ``p qubo 0 n nodes couplers`` and lines ``i j weight``.

The energy, to be minimised, is the sum of all weights whose variables are both 1; i = j is a single variable. The
format has no constant: it is written as a comment, ``c offset x``, which this module reads.
"""

from __future__ import annotations

import re
from pathlib import Path

from mapmrf.errors import FormatError
from mapmrf.formats import quadratic
from mapmrf.formats.files import numbers_of, read_bytes, read_text, shown, whole_number
from mapmrf.model.graph import FactorGraph

SUFFIXES = (".qubo",)
WEIGHTS = True

_OFFSET = re.compile(rb"(?m)^[ \t]*c[ \t]+offset[ \t]+" + quadratic.NUMBER + rb"[ \t\r]*$")
_HEADER = re.compile(rb"(?m)^[ \t]*p[ \t]+([^\n]*)$")


def sniff(data: bytes) -> bool:
    return re.search(rb"(?m)^[ \t]*p[ \t]+qubo[ \t]", data[:4096]) is not None


def read(path: Path, *, values: str | None = None) -> FactorGraph:
    """Read a quadratic model; weights are costs unless `values` is ``"log"``. Repeated pairs add up."""
    sign = quadratic.sign_of(path, values)
    text = read_text(path)
    n_vars, n_nodes, n_couplers = _counts(path, text)
    file = numbers_of(path, _blanked(text), again=lambda path: _blanked(read_text(path)))
    i, j, weight = quadratic.read_lines(file, 0, n_vars)
    n_linear = int((i == j).sum())
    if (n_linear, len(i) - n_linear) != (n_nodes, n_couplers):
        found = f"{n_linear} nodes and {len(i) - n_linear} couplers"
        raise FormatError(f"{path}: found {found}, expected {n_nodes} and {n_couplers} as in the header")
    offset = quadratic.offset_of(path, _OFFSET, read_bytes(path))
    return quadratic.graph_of(path, quadratic.Terms(n_vars, i, j, weight, offset, spin=False), sign)


def _counts(path: Path, text: bytes) -> tuple[int, int, int]:
    header = _HEADER.search(text)
    if header is None or text[: header.start()].strip():
        raise FormatError(f"{path}: found no line 'p qubo ...', expected it before the first number")
    words = header[1].split()
    counts = [whole_number(word) for word in words[2:]]
    if len(words) != 5 or words[0] != b"qubo" or None in counts:
        found = shown(header[0].strip())
        raise FormatError(f"{path}: header: found {found}, expected 'p qubo 0 maxNodes nNodes nCouplers'")
    n_vars, n_nodes, n_couplers = (int(count or 0) for count in counts)
    if n_vars > quadratic.MOST_VARIABLES:
        raise FormatError(f"{path}: header: found {n_vars} nodes, expected at most {quadratic.MOST_VARIABLES}")
    return n_vars, n_nodes, n_couplers


def _blanked(text: bytes) -> bytes:
    """The text without its header, positions unchanged."""
    return _HEADER.sub(lambda match: b" " * len(match[0]), text, count=1)


losses = quadratic.losses


def write(graph: FactorGraph, path: Path, *, values: str | None = None) -> None:
    sign = quadratic.sign_of(path, values)
    quadratic.check(path, graph)
    terms = quadratic.terms_of(graph, spin=False)
    n_linear = int((terms.i == terms.j).sum())
    comment = f"c offset {-sign * terms.offset:.17g}\n" if terms.offset else ""
    header = f"p qubo 0 {terms.n_vars} {n_linear} {len(terms.i) - n_linear}\n"
    quadratic.write_terms(path, comment + header, terms, sign, "{:.17g}".format)
