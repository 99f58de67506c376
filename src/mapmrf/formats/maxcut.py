"""The weighted graphs of rudy and Biq Mac, ``.mc`` and ``.rudy``: ``n m`` and lines ``i j weight``, to be cut.

The value of a labelling, to be maximised, is the weight of the edges whose ends differ. The format has no
constant: it is written as a comment, ``# constant=x``, which this module reads.
"""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np

from mapmrf.arrays import Floats, Ints, offsets
from mapmrf.errors import FormatError
from mapmrf.formats._tables import Factors, build
from mapmrf.formats.files import read_bytes, replacing
from mapmrf.formats.names import names_lost
from mapmrf.formats.quadratic import (
    MOST_VARIABLES,
    NUMBER,
    Terms,
    charge_variables,
    check_quadratic,
    numbers_of,
    offset_of,
    term_text,
    terms_of,
)
from mapmrf.formats.tokens import NumberFile, read_text
from mapmrf.model.graph import FactorGraph

SUFFIXES = (".mc", ".rudy")
WEIGHTS = True

FIELD_TOLERANCE = 1e-12
"""Field of a variable, relative to all couplings, that counts as round-off."""

_CONSTANT = re.compile(rb"(?m)^[ \t]*#[ \t]*constant[ \t]*=[ \t]*" + NUMBER + rb"[ \t\r]*$")
_COMMENT = re.compile(rb"(?m)^[ \t]*#[^\n]*$")
_WHOLE = re.compile(rb"[0-9]+")


def sniff(data: bytes) -> bool:
    """Return whether a file of unknown name is ``n m`` and m lines of three numbers."""
    lines = [line.split() for line in _COMMENT.sub(b"", data).splitlines() if line.strip()]
    if not lines or len(lines[0]) != 2 or not all(map(_WHOLE.fullmatch, lines[0])):
        return False
    return len(lines) == 1 + int(lines[0][1]) and all(len(line) == 3 for line in lines[1:])


def read(path: Path, *, values: str | None = None) -> FactorGraph:
    """Read a graph to be cut; weights are logs, so that the cut is maximised, unless `values` is ``"cost"``.

    Repeated edges add up.
    """
    sign = _sign(path, values)
    file = numbers_of(path, read_text(path), "among the edges")
    n, m = file.integers(0, 2, 0, MOST_VARIABLES, "number {} of the header, vertices and edges").tolist()
    found = len(file.numbers) - 2
    if found < 3 * m:
        file.fail(len(file.numbers), f"edge {found // 3 + 1} of {m}", "two vertices and a weight")
    if found > 3 * m:
        file.fail(2 + 3 * m, f"after edge {m}", "the end of the file")
    charge_variables(path, n, m)
    i, j, weight = _edges(file, n)
    constant = offset_of(path, _CONSTANT, read_bytes(path))
    return _graph(path, n, (i, j), sign * np.append(constant, weight))


def _sign(path: Path, values: str | None) -> float:
    """The sign that turns weights into log potentials."""
    if values not in (None, "cost", "log"):
        raise FormatError(f"{path}: values={values!r}, but the numbers of this format are costs or logs")
    return -1.0 if values == "cost" else 1.0


def _edges(file: NumberFile, n: int) -> tuple[Ints, Ints, Floats]:
    """The ends of the edges, counted from 0, and their weights; each pair once."""
    rows = file.numbers[2:].reshape(-1, 3)
    ends = rows[:, :2]
    bad = np.flatnonzero(~((ends >= 1) & (ends <= n) & (ends == np.floor(ends))))
    if len(bad):
        row, column = divmod(int(bad[0]), 2)
        file.fail(2 + 3 * row + column, f"edge {row + 1}", f"a vertex from 1 to {n}" if n else "no edge")
    bad = np.flatnonzero(ends[:, 0] == ends[:, 1])
    if len(bad):
        file.fail(3 + 3 * int(bad[0]), f"edge {bad[0] + 1}", "another vertex than the first")
    bad = np.flatnonzero(~np.isfinite(rows[:, 2]))
    if len(bad):
        file.fail(4 + 3 * int(bad[0]), f"weight of edge {bad[0] + 1}", "a finite number")
    i, j = np.sort(ends.astype(np.int64) - 1, axis=1).T
    _, first, place = np.unique(i * n + j, return_index=True, return_inverse=True)
    weight: Floats = np.bincount(place.ravel(), rows[:, 2], len(first)).astype(np.float64)
    order = np.argsort(first)
    return i[first[order]], j[first[order]], weight[order]


def _graph(path: Path, n: int, ends: tuple[Ints, Ints], weight: Floats) -> FactorGraph:
    """Pairs that share the table of a cut, with a weight each, after the factor of the constant."""
    counts = [1, len(ends[0])]
    factors = Factors(
        offsets(np.repeat([0, 2], counts)),
        np.stack(ends, axis=1).ravel(),
        np.repeat([0, 1], counts),
        offsets([1, 4]),
        np.array([1.0, 0.0, 1.0, 1.0, 0.0]),
        weight + 0.0,  # no "-0"
    )
    return build(path, np.full(n, 2), factors)


# -- writing ----------------------------------------------------------------------------------------------------------


def losses(graph: FactorGraph) -> list[str]:
    """Describe what a file of this format cannot represent."""
    constant = -terms_of(graph, spin=False).offset
    kept = [f"the constant {constant:.6g} is written as a comment, which other programs ignore"] if constant else []
    return [*names_lost(graph), *kept]


def write(graph: FactorGraph, path: Path, *, values: str | None = None) -> None:
    """Write a binary pairwise model that does not change when all states are swapped, with 17 digits."""
    sign = _sign(path, values)
    check_quadratic(path, graph)
    terms = terms_of(graph, spin=False)
    edges = _cut_of(path, terms)
    with replacing(path) as file:
        if terms.offset:
            file.write(f"# constant={-sign * terms.offset:.17g}\n".encode())
        file.write(f"{edges.n_vars} {len(edges.i)}\n".encode())
        for text in term_text(edges, -sign, "{:.17g}".format):
            file.write(text.encode("ascii"))


def _cut_of(path: Path, terms: Terms) -> Terms:
    """The edges of a graph whose cuts have the values of the labellings, vertices counted from 1.

    In bits, an edge of weight w is worth w (x_i + x_j - 2 x_i x_j), and terms are energies.
    """
    pairs = terms.i != terms.j
    i, j, weight = terms.i[pairs], terms.j[pairs], terms.weight[pairs] / 2
    field = np.zeros(terms.n_vars)
    for ends, part in ((terms.i[~pairs], terms.weight[~pairs]), (i, weight), (j, weight)):
        field += np.bincount(ends, part, terms.n_vars)
    wrong = np.flatnonzero(np.abs(field) > FIELD_TOLERANCE * (1.0 + np.abs(terms.weight).sum()))
    if len(wrong):
        found = f"variable {wrong[0]} prefers state {int(field[wrong[0]] < 0)} by {abs(field[wrong[0]]):.6g}"
        raise FormatError(f"{path}: {found}, expected no unary potentials: this format has none")
    return Terms(terms.n_vars, i + 1, j + 1, weight + 0.0, 0.0, spin=False)
