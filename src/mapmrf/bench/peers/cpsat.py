"""CP-SAT of OR-tools: a 0/1 variable per state and per configuration of a factor, costs scaled to integers."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import numpy as np

from mapmrf.arrays import Ints, segment_argmax
from mapmrf.bench.peers import Found, Ready
from mapmrf.errors import UnsupportedModel
from mapmrf.model.graph import FactorGraph

PACKAGE, MODULE = "ortools", "ortools.sat.python"


def run(graph: FactorGraph, seconds: float, seed: int) -> Iterator[Found | Ready]:
    """Solve once; the solutions are reported afterwards with their times."""
    from ortools.sat.python import cp_model

    n_configs = int(np.diff(graph.table_ptr)[graph.table_of].sum())
    if n_configs > 1_000_000:
        raise UnsupportedModel(f"cpsat supports at most 1000000 configurations, this model has {n_configs}")
    model = cp_model.CpModel()
    program = _CpsatModel(graph.expanded(), model)
    solver = cp_model.CpSolver()
    # Parallel strategies, also on fewer cores: a single one skips the neighbourhood searches and finds little.
    solver.parameters.num_workers = 8
    solver.parameters.random_seed = seed
    solver.parameters.max_time_in_seconds = max(0.01, seconds)
    seen: list[Found] = []
    yield Ready()
    began = time.perf_counter()

    class Watch(cp_model.CpSolverSolutionCallback):  # type: ignore[misc]
        def on_solution_callback(self) -> None:
            labels = program.labels(self.boolean_value)
            bound = program.upper(self.best_objective_bound)
            seen.append(Found(labels, bound, len(seen) + 1, time.perf_counter() - began))

    status = solver.solve(model, Watch())
    yield from seen
    done = status in (cp_model.OPTIMAL, cp_model.INFEASIBLE)
    bound = program.upper(solver.best_objective_bound) if status != cp_model.INFEASIBLE else None
    yield Found(bound=bound, iterations=len(seen), finished=done)


class _CpsatModel:
    """The CP-SAT model: one literal per state, and one per allowed configuration of a factor."""

    # A pair of binary variables needs only one literal: both are in their second state. The best state of every
    # variable on its own is given as a hint.

    def __init__(self, graph: FactorGraph, model: Any) -> None:
        self.graph = graph
        finite_v, finite_t = np.isfinite(graph.theta_v), np.isfinite(graph.theta_t)
        largest = max(np.abs(theta).max(initial=1e-300) for theta in (graph.theta_v[finite_v], graph.theta_t[finite_t]))
        self.scale = 2**24 / float(largest)  # larger integers slow the search down
        self.error = 0.5 * (graph.n_vars + 3 * graph.n_factors) / self.scale  # a pair of binary variables has 3 terms
        self.constant = graph.constant
        self.hint = segment_argmax(graph.theta_v, graph.var_ptr).tolist()
        self.states = [[model.new_bool_var("") for _ in range(r)] for r in graph.card.tolist()]
        terms: list[tuple[Any, int]] = []
        for i, literals in enumerate(self.states):
            model.add_exactly_one(literals)
            for state, literal in enumerate(literals):
                model.add_hint(literal, state == self.hint[i])
            for literal, theta in zip(literals, graph.theta_v[graph.var_ptr[i] :].tolist(), strict=False):
                self._term(model, terms, literal, theta)
        for a in range(graph.n_factors):
            self._factor(model, terms, a)
        model.maximize(sum(literal * cost for literal, cost in terms))

    def _factor(self, model: Any, terms: list[tuple[Any, int]], a: int) -> None:
        table, scope = self.graph.table(a), self.graph.scope_of(a).tolist()
        if table.shape == (2, 2) and np.isfinite(table).all():
            # A pair of binary variables, given the literals of their second states.
            second = [self.states[i][1] for i in scope]
            base, coupling = float(table[0, 0]), float(table[1, 1] - table[1, 0] - table[0, 1] + table[0, 0])
            self.constant += base
            self._term(model, terms, second[0], float(table[1, 0]) - base)
            self._term(model, terms, second[1], float(table[0, 1]) - base)
            both = model.new_bool_var("")
            if coupling > 0:
                model.add_implication(both, second[0])
                model.add_implication(both, second[1])
            else:
                model.add_bool_or([second[0].Not(), second[1].Not(), both])
            self._term(model, terms, both, coupling)
            return
        chosen = {config: model.new_bool_var("") for config in np.ndindex(*table.shape) if np.isfinite(table[config])}
        model.add_exactly_one(chosen.values())
        for k, i in enumerate(scope):
            for state, literal in enumerate(self.states[i]):
                model.add(sum(var for config, var in chosen.items() if config[k] == state) == literal)
        for config, var in chosen.items():
            self._term(model, terms, var, float(table[config]))
            model.add_hint(var, config == tuple(self.hint[i] for i in scope))

    def _term(self, model: Any, terms: list[tuple[Any, int]], literal: Any, theta: float) -> None:
        if theta == -np.inf:
            model.add(literal == 0)
        else:
            terms.append((literal, round(theta * self.scale)))

    def labels(self, value: Any) -> Ints:
        return np.array([[bool(value(x)) for x in some].index(True) for some in self.states], dtype=np.int64)

    def upper(self, objective: float) -> float:
        """Upper bound in log potentials from one on the scaled objective."""
        return self.constant + objective / self.scale + self.error
