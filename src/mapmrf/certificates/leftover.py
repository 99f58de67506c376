"""Exact maximisation over the remaining states, variable by variable."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from mapmrf.arrays import Bools, Ints
from mapmrf.certificates.whole import FactorGroup, Whole, WholeModel


class OpenTable(NamedTuple):
    """A table over some open variables, with an axis for each."""

    variables: tuple[int, ...]
    entries: Whole


class LeftStates(NamedTuple):
    """The remaining states.

    Attributes
    ----------
    is_open : (n_vars,)
        Whether a variable has several.
    closed : (n_vars,)
        The first state of each variable, which is the only one if it is not open.
    states
        All states of the open variables.
    """

    is_open: Bools
    closed: Ints
    states: Mapping[int, Ints]

    @classmethod
    def build(cls, ptr: Ints, left: Bools) -> LeftStates | None:
        """The states of all variables; None if one has none."""
        n_left = np.add.reduceat(left.astype(np.int64), ptr[:-1]) if len(ptr) > 1 else np.zeros(0, dtype=np.int64)
        if not n_left.all():
            return None
        states = np.flatnonzero(left) - np.repeat(ptr[:-1], n_left)
        at = np.cumsum(n_left) - n_left
        some = np.flatnonzero(n_left > 1)
        parts = {i: states[at[i] : at[i] + n_left[i]] for i in some.tolist()}
        return cls(n_left > 1, states[at], parts)


def eliminated(model: WholeModel, left: Bools, order: Ints, max_entries: int) -> Any:
    """The largest value of all labellings by the states `left`, `model.least` if there is none.

    None if `order` lacks a variable with several states, or the tables would have more entries than `max_entries`.
    """
    ptr = model.graph.var_ptr.astype(np.int64)
    known = LeftStates.build(ptr, left)
    if known is None:
        return model.least
    turns = [i for i in order.tolist() if i in known.states]
    if len(turns) < len(known.states):
        return None
    place = {i: turn for turn, i in enumerate(turns)}
    tables: dict[tuple[int, ...], Whole] = {(i,): model.theta_v[ptr[i] + known.states[i]] for i in turns}
    total = model.constant + sum(model.theta_v[(ptr[:-1] + known.closed)[~known.is_open]].tolist())
    for group in model.groups:
        total, some = _restricted(model, group, known, total)
        for table in some:
            _add(tables, table, place, model.least)
    return _maximised([OpenTable(*item) for item in tables.items()], turns, model.least, max_entries, total)


def _add(tables: dict[tuple[int, ...], Whole], table: OpenTable, place: dict[int, int], least: Any) -> None:
    """Add a table to that of the same variables, with axes in the order of elimination."""
    variables, entries = table
    if len(variables) > 1:
        axes = sorted(range(len(variables)), key=lambda k: place[variables[k]])
        variables, entries = tuple(variables[k] for k in axes), entries.transpose(axes)
    have = tables.get(variables)
    tables[variables] = entries if have is None else np.maximum(have + entries, least)


def _restricted(model: WholeModel, group: FactorGroup, known: LeftStates, total: Any) -> tuple[Any, list[OpenTable]]:
    """The total with the entries of factors whose variables are all closed, and the tables of the others."""
    is_open, closed = known.is_open[group.scope], known.closed[group.scope]
    entries = np.where(group.allowed, group.tables, model.least)
    touched = np.any(is_open, axis=1)
    at = np.ravel_multi_index(tuple(closed.T), group.shape)
    for number in entries[np.arange(len(at)), at][~touched].tolist():
        total = max(total + number, model.least)
    found: list[OpenTable] = []
    rows = np.flatnonzero(touched)
    scopes, states, cubes = group.scope[rows].tolist(), closed[rows].tolist(), entries.reshape(-1, *group.shape)
    for a, scope, fixed in zip(rows.tolist(), scopes, states, strict=True):
        cube = cubes[a]
        some: list[int] = []
        for i, state in zip(scope, fixed, strict=True):
            mine = known.states.get(i)
            axis = len(some)
            if mine is None:
                cube = cube.take(state, axis)
                continue
            cube = cube if len(mine) == cube.shape[axis] else cube.take(mine, axis)
            some.append(i)
        found.append(OpenTable(tuple(some), cube))
    return total, found


def _maximised(tables: list[OpenTable], turns: list[int], least: Any, max_entries: int, total: Any) -> Any:
    """Maximise out one variable after another; None if that needs too many entries."""
    buckets: dict[int, list[OpenTable]] = {i: [] for i in turns}
    place = {i: turn for turn, i in enumerate(turns)}
    for table in tables:
        buckets[table.variables[0]].append(table)
    for i in turns:
        size = {j: n for table in buckets[i] for j, n in zip(table.variables, table.entries.shape, strict=True)}
        variables = sorted(size, key=place.__getitem__)
        max_entries -= math.prod(size.values())
        if max_entries < 0:
            return None
        joint = np.zeros([size[j] for j in variables], dtype=tables[0].entries.dtype)
        for table in buckets.pop(i):
            # Axes are in the order of elimination, so that only axes of other variables have to be inserted.
            shape = [size[j] if j in table.variables else 1 for j in variables]
            joint = np.maximum(joint + table.entries.reshape(shape), least)
        rest, best = tuple(variables[1:]), joint.max(axis=0)
        if rest:
            buckets[rest[0]].append(OpenTable(rest, best))
        else:
            total = max(total + int(best), least)
    return total
