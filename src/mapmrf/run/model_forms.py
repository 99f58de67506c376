"""A model as methods see it: as it is, or with its constraints written as tables."""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property

import numpy as np

from mapmrf.arrays import Ints, frozen, segment_max
from mapmrf.constraints.as_tables import Rewriting, rewrite
from mapmrf.model.graph import EXACT, FactorGraph
from mapmrf.model.memory import NO_LIMIT, MemoryBudget
from mapmrf.model.problem import Problem
from mapmrf.run.method import Method


class ModelForms:
    """The original model `graph`, and the forms of it that methods get."""

    def __init__(self, graph: FactorGraph, threads: int, memory: MemoryBudget = NO_LIMIT) -> None:
        self.graph, self.threads, self.memory = graph, threads, memory
        self._problems: dict[bool, Problem] = {}

    @cached_property
    def rewriting(self) -> Rewriting:
        """The model with tables in place of its constraints."""
        return rewrite(self.graph)

    def is_rewritten(self, method: Method | None) -> bool:
        """Return whether a method, or the library itself (None), gets tables in place of constraints."""
        return self.graph.constraints is not None and (method is None or not method.native_constraints)

    def graph_for(self, method: Method | None) -> FactorGraph:
        """The model that a method gets."""
        return self.rewriting.graph if self.is_rewritten(method) else self.graph

    def problem_for(self, method: Method | None) -> Problem:
        rewritten = self.is_rewritten(method)
        if rewritten not in self._problems:
            self._problems[rewritten] = Problem.compile(self.graph_for(method), self.threads, self.memory)
        return self._problems[rewritten]

    def lift(self, method: Method | None, labels: Ints) -> Ints:
        return self.rewriting.lift(labels) if self.is_rewritten(method) else labels

    def relevant(self, value: float) -> ModelForms | None:
        """The model with only what labellings above a value can have; None if that may be everything."""
        graph = relevant_part(self.graph, value)
        return None if graph is None else ModelForms(graph, self.threads, self.memory)

    def project(self, labels: Ints) -> Ints:
        return labels[: self.graph.n_vars]


def relevant_part(graph: FactorGraph, value: float) -> FactorGraph | None:
    """Forbid potentials and penalties too low for any labelling above a value; None if there are none."""
    if graph.weight is not None and graph.weight.min(initial=0.0) < 0.0:
        return None
    best_v, best_t = segment_max(graph.theta_v, graph.var_ptr), segment_max(graph.theta_t, graph.table_ptr)
    if not (np.isfinite(best_v).all() and np.isfinite(best_t).all() and np.isfinite(graph.constant)):
        return None
    size = abs(graph.constant) + abs(value) + float(np.abs(best_v).sum() + np.abs(best_t) @ graph.uses)
    slack = graph.constant + float(best_v.sum() + best_t @ graph.uses) - value + EXACT * size
    least = np.full(graph.n_tables, np.inf)  # of the weights with which a table is used
    np.minimum.at(least, graph.table_of, 1.0 if graph.weight is None else graph.weight)
    sizes = np.diff(graph.table_ptr)
    low_v = (np.repeat(best_v, graph.card) - graph.theta_v > slack) & (graph.theta_v > -np.inf)
    with np.errstate(invalid="ignore"):  # unused tables
        low_t = np.repeat(least, sizes) * (np.repeat(best_t, sizes) - graph.theta_t) > slack
    low_t &= graph.theta_t > -np.inf
    constraints, n_high = graph.constraints, 0
    if constraints is not None:
        high = (constraints.penalty > slack) & np.isfinite(constraints.penalty)
        constraints, n_high = replace(constraints, penalty=np.where(high, np.inf, constraints.penalty)), int(high.sum())
    if not (n_high or low_v.any() or low_t.any()):
        return None
    theta_v, theta_t = np.where(low_v, -np.inf, graph.theta_v), np.where(low_t, -np.inf, graph.theta_t)
    return replace(graph, theta_v=frozen(theta_v), theta_t=frozen(theta_t), constraints=constraints)
