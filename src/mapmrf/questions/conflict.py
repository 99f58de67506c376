"""Why a model has no labelling: few tables, constraints and observations that contradict each other."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Hashable, Mapping
from dataclasses import dataclass, replace

import numpy as np

from mapmrf.arrays import Ints
from mapmrf.constraints import at_least_one
from mapmrf.model.graph import FactorGraph
from mapmrf.model.names import labels_of, states_of
from mapmrf.run.result import Result, Status
from mapmrf.run.solve import Evidence, as_graph, check_limits, solve

Part = tuple[str, int]
"""A kind, one of the attributes of `Conflict`, and an index."""


@dataclass(frozen=True)
class Conflict:
    """Parts of a model that contradict each other: without any of them, the others leave a labelling.

    Attributes
    ----------
    evidence
        Observed variable -> state, by name where the model has names.
    variables
        Variables some of whose states are forbidden.
    factors, constraints
        Indices of factors and constraints, in the model without the evidence.
    smallest
        Whether no fewer parts of the model contradict each other: proven.
    lines
        A line for each part.

    Examples
    --------
    >>> import mapmrf
    >>> model = mapmrf.Model()
    >>> for day in ("mon", "tue", "wed"):
    ...     _ = model.variable(day, ["off", "on"])
    >>> model.add(mapmrf.constraints.at_most_one(["mon", "tue", "wed"], name="shifts"))
    >>> print(mapmrf.conflict(model, {"mon": "on", "tue": "off", "wed": "on"}))
    mon=on is observed
    wed=on is observed
    constraint 'shifts': mon, tue, wed
    """

    evidence: Mapping[Hashable, Hashable]
    variables: tuple[Hashable, ...]
    factors: tuple[int, ...]
    constraints: tuple[int, ...]
    smallest: bool
    lines: tuple[str, ...]

    def __str__(self) -> str:
        return "\n".join(self.lines)


def conflict(
    graph: FactorGraph | str | os.PathLike[str],
    evidence: Evidence = None,
    *,
    time_limit: float | None = 10.0,
) -> Conflict | None:
    """Find a smallest set of tables, constraints and observations that contradict each other.

    Parameters
    ----------
    graph
        The model, or a file to read it from. Evidence that `FactorGraph.condition` has put in counts as such.
    evidence
        Observed variables, as for `solve`.
    time_limit
        Seconds; then the best set so far is returned, which may not be the smallest.

    Returns
    -------
    Conflict or None
        None if the model has a labelling of finite value, or if nothing was proven in time.

    Examples
    --------
    >>> import mapmrf
    >>> graph = mapmrf.FactorGraph.from_energies([2, 2], [(0, 1)], [[[0, float("inf")], [0, 0]]], names=["a", "b"])
    >>> print(mapmrf.conflict(graph, {"a": 0, "b": 1}))
    a=0 is observed
    b=1 is observed
    factor 0 (a, b)
    """
    check_limits(time_limit, None, 0)
    search = _ConflictSearch(
        as_graph(graph, evidence=evidence), math.inf if time_limit is None else time.perf_counter() + time_limit
    )
    found = search.parts
    if search.graph.constant == -math.inf:
        return search.conflict([], True)
    if not search.contradict(found):
        return None
    found = search.irreducible([], found, False)
    return search.conflict(*search.smallest(found))


class _ConflictSearch:
    """The parts of a model before evidence that forbid something, and solves of some of them."""

    def __init__(self, graph: FactorGraph, deadline: float) -> None:
        self.observed: Ints
        self.graph, self.observed = graph, _ = graph.origin or (graph, np.full(graph.n_vars, -1))
        self.deadline = deadline
        hard = np.isneginf(graph.theta_t)
        tables = np.add.reduceat(hard, graph.table_ptr[:-1]) > 0 if graph.n_tables else np.zeros(0, dtype=bool)
        owner = np.repeat(np.arange(graph.n_vars), graph.card)
        found = {
            "evidence": np.flatnonzero(self.observed >= 0),
            "variables": np.unique(owner[np.isneginf(graph.theta_v)]),
            "factors": np.flatnonzero(tables[graph.table_of]),
            "constraints": np.flatnonzero(graph.constraints.hard) if graph.constraints is not None else np.zeros(0),
        }
        self.parts: list[Part] = [(kind, int(k)) for kind, some in found.items() for k in some]

    def solve(self, some: list[Part], loss: float = 0.0) -> Result:
        """Solve the model of these parts alone; all others cost `loss` each if they do not hold."""
        graph, chosen = self.graph, set(some)
        scopes: list[tuple[int, ...]] = []
        tables = []
        constraints, kept = graph.constraints, list[int]()
        penalty = None if constraints is None else constraints.penalty.copy()
        for kind, k in self.parts if loss else some:
            price = -math.inf if (kind, k) in chosen else -loss
            if kind == "constraints":
                assert penalty is not None
                penalty[k] = -price
                kept.append(k)
            elif kind == "factors":
                scopes.append(tuple(graph.scope_of(k).tolist()))
                tables.append(np.where(np.isneginf(graph.table(k)), price, 0.0))
            else:
                states = np.arange(graph.card[k])
                theta = graph.theta_v[graph.var_ptr[k] : graph.var_ptr[k + 1]]
                bad = states != self.observed[k] if kind == "evidence" else np.isneginf(theta)
                scopes.append((k,))
                tables.append(np.where(bad, price, 0.0))
        model = FactorGraph.from_tables(graph.card, scopes, tables)
        if constraints is not None and penalty is not None and kept:
            model = replace(model, constraints=replace(constraints, penalty=penalty).take(np.array(kept)))
        left = None if self.deadline == math.inf else max(0.0, self.deadline - time.perf_counter())
        return solve(model, time_limit=left)

    def contradict(self, some: list[Part]) -> bool:
        return self.solve(some).status is Status.INFEASIBLE

    def irreducible(self, kept: list[Part], some: list[Part], new: bool) -> list[Part]:
        """The parts that contradict each other and `kept`, none of which can go: QuickXplain (Junker 2004)."""
        if new and self.contradict(kept):
            return []
        if len(some) == 1:
            return some
        first, second = some[: len(some) // 2], some[len(some) // 2 :]
        of_second = self.irreducible(kept + first, second, bool(first))
        return self.irreducible(kept + of_second, first, bool(of_second)) + of_second

    def smallest(self, found: list[Part]) -> tuple[list[Part], bool]:
        """Fewer parts, if there are, and whether no fewer do: every labelling breaks one of them, so they hit all."""
        broken: list[set[Part]] = []
        while time.perf_counter() < self.deadline:
            hitting = _fewest_that_hit(broken)
            if hitting is None:
                break
            if len(hitting) >= len(found):
                return found, True
            result = self.solve(hitting, 1.0)
            if result.status is Status.INFEASIBLE:
                return hitting, True
            if result.value == -math.inf:
                break
            broken.append({part for part in self.parts if not self._holds(part, result.labels)})
        return found, False

    def _holds(self, part: Part, labels: Ints) -> bool:
        kind, k = part
        if kind == "evidence":
            return bool(labels[k] == self.observed[k])
        if kind == "variables":
            return bool(self.graph.theta_v[self.graph.var_ptr[k] + labels[k]] > -math.inf)
        if kind == "factors":
            return bool(self.graph.table(k)[tuple(labels[self.graph.scope_of(k)])] > -math.inf)
        assert self.graph.constraints is not None
        return not self.graph.constraints.violated(labels)[k]

    def conflict(self, found: list[Part], smallest: bool) -> Conflict:
        graph, names, states = self.graph, labels_of(self.graph), states_of(self.graph)

        def scope(variables: Ints) -> str:
            return ", ".join(str(names[i]) for i in variables.tolist())

        observed = {names[i]: states[i][int(self.observed[i])] for kind, i in found if kind == "evidence"}
        some = {kind: tuple(sorted(k for each, k in found if each == kind)) for kind in ("factors", "constraints")}
        lines = [f"{name}={state} is observed" for name, state in observed.items()]
        for i in (k for kind, k in found if kind == "variables"):
            bad = np.flatnonzero(np.isneginf(graph.theta_v[graph.var_ptr[i] : graph.var_ptr[i + 1]]))
            lines.append(f"{names[i]} must not be {' or '.join(str(states[i][k]) for k in bad.tolist())}")
        lines += [f"factor {a} ({scope(graph.scope_of(a))})" for a in some["factors"]]
        for c in some["constraints"]:
            assert graph.constraints is not None
            lines.append(f"constraint {graph.constraints.called(c)}: {scope(graph.constraints.variables(c))}")
        variables = tuple(names[k] for kind, k in found if kind == "variables")
        return Conflict(observed, variables, **some, smallest=smallest, lines=tuple(lines or ["the constant"]))


def _fewest_that_hit(sets: list[set[Part]]) -> list[Part] | None:
    """The smallest set with an element of each of these; None if it is not proven."""
    parts = sorted(set().union(*sets))
    if not parts:
        return []
    place = {part: i for i, part in enumerate(parts)}
    model = FactorGraph.from_pairwise([[0.0, -1.0]] * len(parts), np.zeros((0, 2), dtype=np.int64), np.zeros((2, 2)))
    result = solve(model.with_constraints(at_least_one([place[part] for part in some]) for some in sets))
    return [parts[i] for i in np.flatnonzero(result.labels)] if result.status.closes_gap else None
