"""Max-product belief propagation of PGMax, on JAX: damped, in rounds until the time is up."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from importlib import import_module
from typing import Any

import numpy as np

from mapmrf.arrays import Ints
from mapmrf.bench.peers import Found, Ready
from mapmrf.errors import UnsupportedModel
from mapmrf.model.graph import FactorGraph
from mapmrf.model.problem import Problem

PACKAGE, MODULE = "pgmax", "pgmax"
ROUND = 20  # iterations


def run(graph: FactorGraph, seconds: float, seed: int) -> Iterator[Found | Ready]:
    """Run rounds of some iterations each; the first one twice, once for JAX to compile it."""
    graph = graph.expanded()
    scopes = {frozenset(graph.scope_of(a).tolist()) for a in range(graph.n_factors)}
    if len(scopes) < graph.n_factors:
        raise UnsupportedModel("pgmax supports one factor per set of variables, this model has several")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # it uses deprecated parts of JAX
        advance, arrays = _inferer(graph)
        advance(arrays)
    yield Ready()
    for iterations in range(ROUND, 1001, ROUND):  # the paper gives belief propagation 1000 iterations
        arrays, labels = advance(arrays)
        yield Found(labels, iterations=iterations, finished=iterations == 1000)


def _inferer(graph: FactorGraph) -> tuple[Callable[[Any], tuple[Any, Ints]], Any]:
    jax = import_module("jax")  # comes with pgmax
    from pgmax import fgraph, infer, vgroup

    groups: list[Any] = []
    place: list[tuple[int, int]] = [(0, 0)] * graph.n_vars
    members: list[Ints] = [np.flatnonzero(graph.card == card) for card in np.unique(graph.card)]
    for mine in members:
        for number, i in enumerate(mine.tolist()):
            place[i] = (len(groups), number)
        groups.append(vgroup.NDVarArray(num_states=int(graph.card[mine[0]]), shape=(len(mine),)))
    model = fgraph.FactorGraph(variable_groups=groups)
    # Substitute for -inf: far below everything finite.
    finite = np.concatenate([graph.theta_v, graph.theta_t])
    finite = finite[np.isfinite(finite)]
    low = float(finite.min(initial=0.0) - 10 * np.ptp(finite) - 10) if len(finite) else -10.0
    from pgmax import fgroup

    problem = Problem.compile(graph)
    made = []
    for batch in problem.batches:
        scopes = [[groups[place[i][0]][place[i][1]] for i in row] for row in batch.scope.tolist()]
        theta = graph.theta_t[batch.table_at[:, None] + np.arange(batch.n_configs)]
        tables = np.where(np.isfinite(theta), theta, low)
        made.append(fgroup.EnumFactorGroup(scopes, factor_configs=np.asarray(batch.config), log_potentials=tables))
    model.add_factors(made)
    belief = infer.build_inferer(model.bp_state, backend="bp")
    theta_v = np.where(np.isfinite(graph.theta_v), graph.theta_v, low)
    unary = [theta_v[graph.var_ptr[mine][:, None] + np.arange(graph.card[mine[0]])] for mine in members]
    # PGMax compiles nothing itself: without this, every round would be traced and compiled again.
    update = jax.jit(lambda arrays: belief.run(arrays, num_iters=ROUND, damping=0.5, temperature=0.0))

    def advance(arrays: Any) -> tuple[Any, Ints]:
        arrays = update(arrays)
        states = infer.decode_map_states(belief.get_beliefs(arrays))
        labels = np.zeros(graph.n_vars, dtype=np.int64)
        for group, mine in zip(groups, members, strict=True):
            labels[mine] = np.asarray(states[group])
        return arrays, labels

    return advance, belief.init(evidence_updates=dict(zip(groups, unary, strict=True)))
