"""Forbidden states moved into the factors' tables, as ADMM requires."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from mapmrf.arrays import Floats, offsets
from mapmrf.engines.constraint_factors.model import CountingModel
from mapmrf.model.problem import Problem

NO_VARIABLES = np.zeros(0, dtype=np.int64)


def harden(problem: Problem) -> Problem:
    """Move forbidden states of connected variables from the unary potentials into the factors' tables.

    A quadratic method cannot start from a potential of -inf, but its exact factor steps never touch a forbidden
    configuration. The potential of such a state becomes the variable's lowest finite one. Nothing is copied if nothing
    is forbidden; shared tables stay shared by factors that forbid the same states. A weight that -inf cannot be
    multiplied by becomes part of its new table.
    """
    graph = problem.graph
    if problem.feasible_v.all():
        return problem
    forbidden = ~problem.feasible_v & np.repeat(problem.degree > 0, graph.card)
    if not forbidden.any():
        return problem
    low = lowest_potentials(problem)
    struck = np.logical_or.reduceat(forbidden, graph.var_ptr[:-1])
    tables = [graph.theta_t]
    table_of = graph.table_of.copy()
    weight = None if graph.weight is None else graph.weight.copy()
    made: dict[tuple[int, float, bytes], int] = {}
    owner = np.repeat(np.arange(graph.n_factors), graph.arity)
    for a in np.unique(owner[struck[graph.scope]]):
        scope = graph.scope_of(a)
        masks = [~forbidden[graph.var_ptr[i] : graph.var_ptr[i + 1]] for i in scope]
        moved = 1.0
        if weight is not None and weight[a] <= 0.0:
            moved, weight[a] = float(weight[a]), 1.0
        key = (int(graph.table_of[a]), moved, b"|".join(mask.tobytes() for mask in masks))
        if key not in made:
            made[key] = graph.n_tables + len(made)
            table = graph.theta_t[graph.table_ptr[key[0]] : graph.table_ptr[key[0] + 1]]
            tables.append(np.where(_outer_and(masks).ravel(), moved * table, -np.inf))
        table_of[a] = made[key]
    hardened = replace(
        graph,
        theta_v=np.where(forbidden, low, graph.theta_v),
        table_of=table_of,
        table_ptr=offsets(np.concatenate([np.diff(graph.table_ptr), [len(table) for table in tables[1:]]])),
        theta_t=np.concatenate(tables),
        weight=weight,
    )
    return Problem.compile(hardened, problem.threads)


def lowest_potentials(problem: Problem) -> Floats:
    """Return the lowest finite potential of its variable for every state; 0 if there is none."""
    graph = problem.graph
    low = np.minimum.reduceat(np.where(problem.feasible_v, graph.theta_v, np.inf), graph.var_ptr[:-1])
    return np.repeat(np.where(np.isfinite(low), low, 0.0), graph.card)


def _outer_and(masks: list[np.ndarray]) -> np.ndarray:
    """Return the outer conjunction of masks, with an axis for each."""
    allowed = np.ones(1, dtype=bool)
    for mask in masks:
        allowed = allowed[..., None] & mask
    return np.asarray(allowed[0])


def impossible(problem: Problem) -> bool:
    """Return whether some table or unary potentials are all -inf, or a single constraint cannot be satisfied."""
    graph = problem.graph
    if graph.constraints is not None and CountingModel.of(graph, NO_VARIABLES).constant == -np.inf:
        return True
    if graph.theta_v.min(initial=0.0) > -np.inf and graph.theta_t.min(initial=0.0) > -np.inf:
        return False
    if problem.n_vars and np.maximum.reduceat(graph.theta_v, graph.var_ptr[:-1]).min() == -np.inf:
        return True
    return bool(graph.n_tables and np.maximum.reduceat(graph.theta_t, graph.table_ptr[:-1]).min() == -np.inf)
