"""Clauses, ``.cnf`` and ``.wcnf``: those of SAT, which must hold, and of MaxSAT, which cost their weight if violated.

A ``.wcnf`` file is in the form in use since 2022, ``h`` or a weight before each clause, or in the older one with a
header ``p wcnf variables clauses top``, in which weights from the top on are hard. The constant of a model is written
as a comment, ``c offset x``, which this module reads.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from mapmrf.arrays import Floats, Ints, offsets
from mapmrf.constraints.flat import LINEAR
from mapmrf.errors import FormatError
from mapmrf.formats import boolean, quadratic
from mapmrf.formats.boolean import Conjunctions, tables_of
from mapmrf.formats.files import (
    AnyPath,
    NumberFile,
    first_not_whole,
    numbers_of,
    parse_numbers,
    plain_name,
    read_bytes,
    read_text,
    shown,
    whole_number,
    write_text,
)
from mapmrf.formats.tables import MOST_STATES, check_values
from mapmrf.model.graph import FactorGraph

SUFFIXES = (".cnf", ".wcnf")
CONSTRAINTS = True

_OFFSET = re.compile(rb"(?m)^[ \t]*c[ \t]+offset[ \t]+" + quadratic.NUMBER + rb"[ \t\r]*$")
_HEADER = re.compile(rb"(?m)^[ \t]*p[ \t]+([^\n]*)$")
_HARD = re.compile(rb"(?m)^([ \t]*)h(?=[ \t])")


def sniff(data: bytes) -> bool:
    start = data[:65536]
    older = re.search(rb"(?m)^[ \t]*p[ \t]+w?cnf[ \t]", start)
    return (older or re.match(rb"(?:c[^\n]*\n)*h[ \t]+-?[0-9]", start)) is not None


# -- reading ----------------------------------------------------------------------------------------------------------


def read(path: Path, *, values: str | None = None) -> FactorGraph:
    """Read clauses: those without weights are hard, or cost 1 if `values` is ``"cost"``."""
    check_values(path, values, ("cost",), "costs")
    n_vars, n_clauses, weighted, top = _header(path, read_text(path))
    file = numbers_of(path, _plain(path), "among the clauses", _plain)
    ends = np.flatnonzero(file.numbers == 0)
    if len(file.numbers) and (len(ends) == 0 or ends[-1] < len(file.numbers) - 1):
        file.fail(len(file.numbers), f"clause {len(ends) + 1}", "a 0 at its end")
    if n_clauses is not None and len(ends) != n_clauses:
        raise FormatError(f"{path}: found {len(ends)} clauses, expected {n_clauses} as in the header")
    begins = np.append(-1, ends[:-1])[: len(ends)] + 1
    cost = np.full(len(ends), np.inf if values is None else 1.0)
    if weighted:
        if np.any(begins == ends):
            at = int(begins[begins == ends][0])
            file.fail(at, "weight of a clause", "a number above 0")
        cost = file.numbers[begins]
        bad = np.flatnonzero(~(cost > 0))
        if len(bad):
            file.fail(int(begins[bad[0]]), f"weight of clause {bad[0] + 1}", "a number above 0")
        cost = np.where(cost >= top, np.inf, cost)
        begins = begins + 1
    found = _conjunctions(file, begins, ends, cost, n_vars)
    offset = quadratic.offset_of(path, _OFFSET, read_bytes(path))
    if offset:
        found = Conjunctions(
            found.n_vars, np.append(found.ptr, found.ptr[-1]), found.var, found.state, np.append(found.cost, -offset)
        )
    return found.graph(path)


def _header(path: Path, text: bytes) -> tuple[int | None, int | None, bool, float]:
    """Numbers of variables and clauses, if there is a header, whether clauses have weights, and the hard ones."""
    header = _HEADER.search(text)
    if not text.strip():
        raise FormatError(f"{path}: the file is empty, expected clauses")
    if header is None:
        return None, None, plain_name(path).endswith(".wcnf") or _HARD.search(text) is not None, np.inf
    words = header[1].split()
    counts = [whole_number(word) for word in words[1:3]]
    most = 4 if words[:1] == [b"wcnf"] else 3
    if words[:1] not in ([b"cnf"], [b"wcnf"]) or None in counts or len(counts) < 2 or len(words) > most:
        found = shown(header[0].strip())
        raise FormatError(f"{path}: header: found {found}, expected 'p cnf n m' or 'p wcnf n m top'")
    if text[: header.start()].strip():
        raise FormatError(f"{path}: found numbers before the header {shown(header[0].strip())}")
    n_vars, n_clauses = (int(count or 0) for count in counts)
    if 2 * n_vars > MOST_STATES:
        raise FormatError(f"{path}: header: found {n_vars} variables, expected at most {MOST_STATES // 2}")
    top = parse_numbers(words[3]) if len(words) > 3 else np.array([np.inf])
    if top is None or np.isnan(top).any():
        raise FormatError(f"{path}: header: found {shown(words[3])}, expected the weight of hard clauses")
    return n_vars, n_clauses, words[0] == b"wcnf", float(top[0])


def _plain(path: AnyPath) -> bytes:
    """The clauses as numbers: an infinite weight is hard."""
    text = _HEADER.sub(lambda match: b" " * len(match[0]), read_text(path), count=1)
    return _HARD.sub(rb"\1inf", text)


def _conjunctions(file: NumberFile, begins: Ints, ends: Ints, cost: Floats, n_vars: int | None) -> Conjunctions:
    """Clauses as conjunctions of what violates them, each variable once, without those that always hold."""
    inside = np.zeros(len(file.numbers) + 1, dtype=np.int64)
    np.add.at(inside, begins, 1)
    np.add.at(inside, ends, -1)
    places = np.flatnonzero(np.cumsum(inside)[:-1] > 0)
    literals = file.numbers[places]
    most = MOST_STATES // 2 if n_vars is None else n_vars
    bad = first_not_whole(np.abs(literals), 1, most)
    if bad is not None:
        clause = int(np.searchsorted(ends, places[bad])) + 1
        file.fail(int(places[bad]), f"clause {clause}", f"a variable from 1 to {most}, or minus it")
    owner = np.searchsorted(ends, places)
    rows = np.unique(np.stack([owner, np.abs(literals), literals < 0], axis=1).astype(np.int64), axis=0)
    owner, var, state = rows.T
    twice = (np.diff(owner) == 0) & (np.diff(var) == 0)
    holds = np.zeros(len(cost), dtype=bool)
    holds[owner[1:][twice]] = True
    kept = ~holds[owner]
    sizes = np.bincount(owner[kept], minlength=len(cost))[~holds]
    n = int(var.max(initial=0)) if n_vars is None else n_vars
    return Conjunctions(n, offsets(sizes), var[kept] - 1, state[kept], cost[~holds])


# -- writing ----------------------------------------------------------------------------------------------------------


losses = boolean.losses


def write(graph: FactorGraph, path: Path, *, values: str | None = None) -> None:
    """Write a binary model: a clause for every entry of a table that is not the best, and constraints that are one."""
    check_values(path, values, ("cost",), "costs")
    boolean.check(path, graph)
    clauses, constant = list[tuple[float, list[int]]](), 0.0
    for scope, table in tables_of(graph):
        best = 0.0 if np.isneginf(table).all() else float(table.max())
        constant += best
        for at in np.argwhere(table < best):
            clauses.append((best - float(table[tuple(at)]), _violated(scope, at.tolist())))
    clauses.extend(_clauses(path, graph))
    weights = [cost for cost, _ in clauses if cost < np.inf]
    if plain_name(path).endswith(".cnf"):
        if weights or constant:
            raise FormatError(f"{path}: the model has costs, expected hard clauses only, write .wcnf instead")
        head, lines = f"p cnf {graph.n_vars} {len(clauses)}\n", [("", mine) for _, mine in clauses]
    else:
        top = f"{np.ceil(sum(weights)) + 1.0:.17g}"
        comment = f"c offset {constant:.17g}\n" if constant else ""
        head = f"{comment}p wcnf {graph.n_vars} {len(clauses)} {top}\n"
        lines = [(f"{top} " if cost == np.inf else f"{cost:.17g} ", mine) for cost, mine in clauses]
    write_text(path, [head, *(f"{weight}{' '.join(map(str, [*mine, 0]))}\n" for weight, mine in lines)])


def _violated(scope: list[int], states: list[int]) -> list[int]:
    """The clause that one configuration violates."""
    return [-(i + 1) if k else i + 1 for i, k in zip(scope, states, strict=True)]


def _clauses(path: Path, graph: FactorGraph) -> Iterator[tuple[float, list[int]]]:
    constraints = graph.constraints
    for c in range(0 if constraints is None else len(constraints)):
        assert constraints is not None
        mine, low, high = constraints.span(c), float(constraints.least[c]), float(constraints.most[c])
        var, state = constraints.var[mine], constraints.state[mine]
        plain = constraints.kind[c] == LINEAR and (constraints.weight[mine] == 1.0).all()
        if plain and len(np.unique(var)) == len(var):
            if low == 1.0 and high >= len(var):
                yield float(constraints.penalty[c]), _violated(var.tolist(), (1 - state).tolist())
                continue
            if low <= 0.0 and high == len(var) - 1.0:
                yield float(constraints.penalty[c]), _violated(var.tolist(), state.tolist())
                continue
        raise FormatError(f"{path}: constraint {constraints.called(c)} is not a clause")
