"""The weighted graphs of rudy and Biq Mac, ``.mc`` and ``.rudy``: ``n m`` and lines ``i j weight``, to be cut.

The value of a labelling, to be maximised, is the weight of the edges whose ends differ. The format has no
constant: it is written as a comment, ``# constant=x``, which this module reads.
"""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np

from mapmrf.arrays import offsets
from mapmrf.errors import FormatError
from mapmrf.formats import quadratic
from mapmrf.formats.files import numbers_of, read_bytes, read_text
from mapmrf.formats.tables import Factors, build
from mapmrf.model.graph import FactorGraph

SUFFIXES = (".mc", ".rudy")
WEIGHTS = True

_CONSTANT = re.compile(rb"(?m)^[ \t]*#[ \t]*constant[ \t]*=[ \t]*" + quadratic.NUMBER + rb"[ \t\r]*$")
_COMMENT = re.compile(rb"(?m)^[ \t]*#[^\n]*$")
_WHOLE = re.compile(rb"[0-9]+")


def sniff(data: bytes) -> bool:
    """Return whether a file of unknown name is ``n m`` and m lines of three numbers."""
    lines = [line.split() for line in _COMMENT.sub(b"", data).splitlines() if line.strip()]
    if not lines or len(lines[0]) != 2 or not all(map(_WHOLE.fullmatch, lines[0])):
        return False
    return len(lines) == 1 + int(lines[0][1]) and all(len(line) == 3 for line in lines[1:])


def read(path: Path, *, values: str | None = None) -> FactorGraph:
    """Read a graph to be cut; weights are logs, so that the cut is maximised, unless `values` is ``"cost"``."""
    # Repeated edges add up.
    sign = quadratic.sign_of(path, values, "log")
    file = numbers_of(path, read_text(path), "among the edges")
    n, m = file.integers(0, 2, 0, quadratic.MOST_VARIABLES, "number {} of the header, vertices and edges").tolist()
    found = len(file.numbers) - 2
    if found < 3 * m:
        file.fail(len(file.numbers), f"edge {found // 3 + 1} of {m}", "two vertices and a weight")
    if found > 3 * m:
        file.fail(2 + 3 * m, f"after edge {m}", "the end of the file")
    quadratic.charge_variables(path, n, m)
    i, j, given = quadratic.read_lines(file, 2, n, "edge", "vertex", first=1, loops=False)
    ends = np.sort(np.stack([i, j], axis=1), axis=1)
    _, first, place = np.unique(ends[:, 0] * n + ends[:, 1], return_index=True, return_inverse=True)
    order = np.argsort(first)
    weight = np.bincount(place.ravel(), given, len(first)).astype(np.float64)[order]
    constant = quadratic.offset_of(path, _CONSTANT, read_bytes(path))
    counts = [1, len(first)]
    factors = Factors(  # pairs that share the table of a cut, after the factor of the constant
        offsets(np.repeat([0, 2], counts)),
        ends[first[order]].ravel(),
        np.repeat([0, 1], counts),
        offsets([1, 4]),
        np.array([1.0, 0.0, 1.0, 1.0, 0.0]),
        sign * np.append(constant, weight) + 0.0,  # no "-0"
    )
    return build(path, np.full(n, 2), factors)


# -- writing ----------------------------------------------------------------------------------------------------------


losses = quadratic.losses


def write(graph: FactorGraph, path: Path, *, values: str | None = None) -> None:
    """Write a binary pairwise model that does not change when all states are swapped, with 17 digits."""
    sign = quadratic.sign_of(path, values, "log")
    quadratic.check(path, graph)
    terms = quadratic.terms_of(graph, spin=False)
    edges = _cut_of(path, terms)
    comment = f"# constant={-sign * terms.offset:.17g}\n" if terms.offset else ""
    quadratic.write_terms(path, f"{comment}{edges.n_vars} {len(edges.i)}\n", edges, -sign, "{:.17g}".format)


def _cut_of(path: Path, terms: quadratic.Terms) -> quadratic.Terms:
    """The edges of a graph whose cuts have the values of the labellings, vertices counted from 1."""
    # In bits, an edge of weight w is worth w (x_i + x_j - 2 x_i x_j), and terms are energies.
    pairs = terms.i != terms.j
    i, j, weight = terms.i[pairs], terms.j[pairs], terms.weight[pairs] / 2
    field = np.zeros(terms.n_vars)
    for ends, part in ((terms.i[~pairs], terms.weight[~pairs]), (i, weight), (j, weight)):
        field += np.bincount(ends, part, terms.n_vars)
    round_off = 1e-12 * (1.0 + np.abs(terms.weight).sum())
    wrong = np.flatnonzero(np.abs(field) > round_off)
    if len(wrong):
        found = f"variable {wrong[0]} prefers state {int(field[wrong[0]] < 0)} by {abs(field[wrong[0]]):.6g}"
        raise FormatError(f"{path}: {found}, expected no unary potentials: this format has none")
    return quadratic.Terms(terms.n_vars, i + 1, j + 1, weight + 0.0, 0.0, spin=False)
