"""Exact maximisation over the states that are left, variable by variable."""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from mapmrf.arrays import Bools, Ints
from mapmrf.certificates.whole import FactorGroup, Whole, WholeModel


class OpenTable(NamedTuple):
    """A table over some open variables, an axis for each."""

    variables: tuple[int, ...]
    entries: Whole


def eliminated(model: WholeModel, left: Bools, order: Ints, max_entries: int) -> Any:
    """The largest value of all labellings by the states `left`, `model.least` if there is none.

    None if `order` lacks a variable with several states, or the tables would have more entries than `max_entries`.
    """
    ptr = model.graph.var_ptr.tolist()
    states: list[Ints] = [np.flatnonzero(left[begin:end]) for begin, end in pairwise(ptr)]
    if not all(map(len, states)):
        return model.least
    is_open = np.array([len(some) > 1 for some in states], dtype=bool)
    turns = [i for i in order.tolist() if is_open[i]]
    if len(turns) < np.count_nonzero(is_open):
        return None
    tables = [OpenTable((i,), model.theta_v[ptr[i] + states[i]]) for i in turns]
    total = model.constant
    total += sum(model.theta_v[ptr[i] + states[i][0]] for i in np.flatnonzero(~is_open).tolist())
    closed = np.array([some[0] for some in states], dtype=np.int64)
    for group in model.groups:
        total, some = _restricted(model, group, states, (is_open, closed, total))
        tables += some
    return _maximised(tables, turns, model.least, max_entries, total)


def _restricted(
    model: WholeModel, group: FactorGroup, states: list[Ints], known: tuple[Bools, Ints, Any]
) -> tuple[Any, list[OpenTable]]:
    """The total with the entries of factors whose variables are all closed, and the tables of the others."""
    is_open, closed, total = known
    entries = np.where(group.allowed, group.tables, model.least)
    touched: Bools = np.any(is_open[group.scope], axis=1)
    at = np.ravel_multi_index(tuple(closed[group.scope].T), group.shape)
    for number in entries[np.arange(len(at)), at][~touched].tolist():
        total = max(total + number, model.least)
    found = []
    for a in np.flatnonzero(touched).tolist():
        scope = group.scope[a].tolist()
        cube = entries[a].reshape(group.shape)[np.ix_(*(states[i] for i in scope))]
        some = tuple(i for i in scope if is_open[i])
        found.append(OpenTable(some, cube.reshape([len(states[i]) for i in some])))
    return total, found


def _maximised(tables: list[OpenTable], turns: list[int], least: Any, max_entries: int, total: Any) -> Any:
    """Maximise out one variable after another; None if that takes too many entries."""
    buckets: dict[int, list[OpenTable]] = {i: [] for i in turns}
    place = {i: turn for turn, i in enumerate(turns)}
    for table in tables:
        buckets[min(table.variables, key=place.__getitem__)].append(table)
    for i in turns:
        variables = tuple(sorted({j for table in buckets[i] for j in table.variables}, key=place.__getitem__))
        size = {j: n for table in buckets[i] for j, n in zip(table.variables, table.entries.shape, strict=True)}
        max_entries -= math.prod(size.values())
        if max_entries < 0:
            return None
        joint = np.zeros([size[j] for j in variables], dtype=tables[0].entries.dtype)
        for entries in _aligned(buckets.pop(i), variables):
            joint = np.maximum(joint + entries, least)
        rest, best = variables[1:], joint.max(axis=0)
        if rest:
            buckets[rest[0]].append(OpenTable(rest, best))
        else:
            total = max(total + int(best), least)
    return total


def _aligned(tables: list[OpenTable], variables: tuple[int, ...]) -> Iterator[Whole]:
    """Tables with an axis for every one of the variables, of length 1 for those that they do not have."""
    for table in tables:
        order = sorted(range(len(table.variables)), key=lambda k: variables.index(table.variables[k]))
        entries = table.entries.transpose(order)
        have = set(table.variables)
        shape = iter(entries.shape)
        yield entries.reshape([next(shape) if j in have else 1 for j in variables])
