"""A model for CP-SAT of OR-Tools with its own constraints, one worker: differences, clauses, counts, all-different.

Pairs that must differ become differences of integer variables, forbidden configurations of binary variables clauses;
other potentials are products as 0/1 variables, rounded to millionths.
"""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Iterator
from typing import Any

import numpy as np

from mapmrf import FactorGraph
from mapmrf.constraints import ConstraintKind

UNIT = 1_000_000
"""Units of a log potential, whose numbers are whole."""


def solve(graph: FactorGraph, seconds: float) -> tuple[float, bool, float]:
    """The value found, whether the answer is proven, and the seconds, the time to build the model included."""
    from ortools.sat.python import cp_model

    began = time.perf_counter()
    model = cp_model.CpModel()
    if all(_says_different(graph.table(a)) for a in range(graph.n_factors)) and graph.constraints is None:
        x = _differences(model, graph, cp_model)
        labels_of = [lambda solver, i=i: solver.value(x[i]) for i in range(graph.n_vars)]
    else:
        y = _literals(model, graph)
        labels_of = [lambda solver, i=i: [solver.boolean_value(one) for one in y[i]].index(True) for i in range(len(y))]
    solver = cp_model.CpSolver()
    solver.parameters.num_workers = 1
    solver.parameters.max_time_in_seconds = seconds
    status = solver.solve(model)
    spent = time.perf_counter() - began
    if status not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
        return -math.inf, status == cp_model.INFEASIBLE, spent
    return graph.value([label(solver) for label in labels_of]), status == cp_model.OPTIMAL, spent


def _says_different(table: np.ndarray) -> bool:
    """Return whether a table says that two variables differ, and nothing else."""
    return table.ndim == 2 and np.array_equal(table, np.where(np.eye(*table.shape, dtype=bool), -np.inf, 0.0))


def _differences(model: Any, graph: FactorGraph, cp_model: Any) -> list[Any]:
    """An integer variable for every variable, with its allowed states; the unary potentials are 0 or -inf."""
    x = []
    for begin, end in itertools.pairwise(graph.var_ptr):
        states = np.flatnonzero(graph.theta_v[begin:end] > -np.inf).tolist()
        x.append(model.new_int_var_from_domain(cp_model.Domain.from_values(states), ""))
    for i, j in graph.scope.reshape(-1, 2).tolist():
        model.add(x[i] != x[j])
    return x


def _literals(model: Any, graph: FactorGraph) -> list[list[Any]]:
    """A literal for every state; the potentials and constraints are stated with these."""
    x = [[model.new_bool_var("") for _ in range(r)] for r in graph.card.tolist()]
    for states in x:
        model.add_exactly_one(states)
    terms = [(round(UNIT * gain), literal) for gain, literal in _terms(model, graph, x) if math.isfinite(gain)]
    _add_constraints(model, graph, x)
    if any(gain for gain, _ in terms):
        model.maximize(sum(gain * literal for gain, literal in terms))
    return x


def _terms(model: Any, graph: FactorGraph, x: list[list[Any]]) -> Iterator[tuple[float, Any]]:
    """Potentials with the literals that earn them; a product gets a literal of its own, what is forbidden a clause."""
    for i, states in enumerate(x):
        block = graph.theta_v[graph.var_ptr[i] : graph.var_ptr[i + 1]]
        for literal, gain in zip(states, block.tolist(), strict=True):
            if gain == -math.inf:
                model.add_bool_and([literal.Not()])
            yield gain, literal
    for a in range(graph.n_factors):
        scope, table = graph.scope_of(a).tolist(), graph.table(a)
        for config in np.argwhere(table != 0.0).tolist():
            literals = [x[i][k] for i, k in zip(scope, config, strict=True)]
            if table[tuple(config)] == -math.inf:
                model.add_bool_or([literal.Not() for literal in literals])
                continue
            product = model.new_bool_var("")
            model.add_bool_or([product, *(literal.Not() for literal in literals)])
            for literal in literals:
                model.add_implication(product, literal)
            yield float(table[tuple(config)]), product


def _add_constraints(model: Any, graph: FactorGraph, x: list[list[Any]]) -> None:
    stated = graph.constraints
    for c in range(0 if stated is None else len(stated)):
        mine = stated.span(c)
        if stated.kind[c] == ConstraintKind.ALL_DIFFERENT:
            scope = stated.var[mine].tolist()
            model.add_all_different([sum(k * literal for k, literal in enumerate(x[i])) for i in scope])
            continue
        assert stated.kind[c] == ConstraintKind.LINEAR
        pairs = zip(stated.weight[mine].tolist(), stated.var[mine].tolist(), stated.state[mine].tolist(), strict=True)
        total = sum(int(weight) * x[i][k] for weight, i, k in pairs)
        if stated.lower[c] > -math.inf:
            model.add(total >= int(stated.lower[c]))
        if stated.upper[c] < math.inf:
            model.add(total <= int(stated.upper[c]))
