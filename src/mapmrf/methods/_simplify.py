"""Take from a model what its hard constraints decide: impossible states, and variables with one state left."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from mapmrf.arrays import Bools, Floats, Ints, offsets, ranges, segment_argmax
from mapmrf.graph import FactorGraph
from mapmrf.kernels.jit import compiled
from mapmrf.problem import Problem

MAX_SWEEPS = 100
"""Sweeps over the hard factors after which propagation ends; what it would still find is left to the search."""


@dataclass(frozen=True, eq=False)
class Simplified:
    """A smaller model with the same optimum.

    Attributes
    ----------
    problem
        The model of the variables that have a choice and a factor.
    kept
        The variable of the whole model that each of its variables is.
    state, state_ptr
        The state of the whole model that each of its states is.
    labels
        A labelling of the whole model; right for all variables that are not kept.
    feasible
        False if some variable has no state left.
    """

    problem: Problem
    kept: Ints
    state: Ints
    state_ptr: Ints
    labels: Ints
    feasible: bool

    def whole(self, labels: Ints) -> Ints:
        """A labelling of the small model as one of the whole model."""
        result = self.labels.copy()
        result[self.kept] = self.state[self.state_ptr[:-1] + labels]
        return result

    def part(self, labels: Ints) -> Ints:
        """A labelling of the whole model as one of the small model; states that are gone become the first."""
        place = np.full(int(self.labels.shape[0]), -1)
        place[self.kept] = np.arange(len(self.kept))
        owner = np.repeat(np.arange(len(self.kept)), np.diff(self.state_ptr))
        result = np.zeros(len(self.kept), dtype=np.int64)
        here = np.flatnonzero(self.state == labels[self.kept][owner])
        result[owner[here]] = here - self.state_ptr[owner[here]]
        return result


def simplify(problem: Problem) -> Simplified:
    """Propagate the hard constraints and drop what they decide."""
    graph = problem.graph
    domain = problem.feasible_v.copy()
    hard = np.zeros(problem.n_factors, dtype=bool)
    for batch in problem.batches:
        hard[batch.factors] = batch.hard
    _propagate(problem, np.flatnonzero(hard), domain)
    counts = np.add.reduceat(domain.astype(np.int64), graph.var_ptr[:-1]) if graph.n_vars else np.zeros(0, np.int64)
    labels = segment_argmax(np.where(domain, graph.theta_v, -np.inf), graph.var_ptr)
    if np.any(counts == 0) or graph.constant == -np.inf:
        nothing = np.zeros(0, dtype=np.int64)
        return Simplified(problem, nothing, nothing, np.zeros(1, dtype=np.int64), labels, feasible=False)
    kept = np.flatnonzero((counts > 1) & (problem.degree > 0))
    if len(kept) == graph.n_vars and bool(domain.all()):
        state = np.arange(len(domain)) - np.repeat(graph.var_ptr[:-1], graph.card)
        return Simplified(problem, kept, state, graph.var_ptr, labels, feasible=True)
    reduced = _reduced(graph, domain, counts, kept, labels)
    inside = np.zeros(graph.n_vars, dtype=bool)
    inside[kept] = True
    owner = np.repeat(np.arange(graph.n_vars), graph.card)
    places = np.flatnonzero(domain & inside[owner])
    state = places - graph.var_ptr[owner[places]]
    return Simplified(Problem.compile(reduced), kept, state, offsets(counts[kept]), labels, feasible=True)


def _reduced(graph: FactorGraph, domain: Bools, counts: Ints, kept: Ints, labels: Ints) -> FactorGraph:
    """The model on the variables kept, with the tables cut to the states that are left."""
    number = np.full(graph.n_vars, -1, dtype=np.int64)
    number[kept] = np.arange(len(kept))
    whole = counts == graph.card
    untouched = np.logical_and.reduceat((whole & (number >= 0))[graph.scope], graph.scope_ptr[:-1])[: graph.n_factors]
    keep = np.flatnonzero(untouched)
    scopes = [number[graph.scope[ranges(graph.scope_ptr[keep], graph.arity[keep])]]]
    arities, table_of = [graph.arity[keep]], [graph.table_of[keep].astype(np.int64)]
    tables, sizes = [graph.theta_t], [np.diff(graph.table_ptr)]
    n_tables = graph.n_tables
    states = [np.flatnonzero(domain[b:e]) for b, e in zip(graph.var_ptr[:-1], graph.var_ptr[1:], strict=True)]
    for a in np.flatnonzero(~untouched).tolist():
        scope = graph.scope_of(a)
        left = number[scope] >= 0
        cut = [states[i] if stays else labels[i : i + 1] for i, stays in zip(scope, left, strict=True)]
        table = np.ascontiguousarray(graph.table(a)[np.ix_(*cut)]).ravel()
        scopes.append(number[scope[left]])
        arities.append(np.array([np.count_nonzero(left)]))
        table_of.append(np.array([n_tables]))
        tables.append(table)
        sizes.append(np.array([len(table)]))
        n_tables += 1
    decided = np.setdiff1d(np.arange(graph.n_vars), kept)
    rest = FactorGraph.from_arrays(
        counts[kept],
        offsets(np.concatenate(arities)),
        np.concatenate(scopes).astype(np.int64),
        np.concatenate(table_of),
        offsets(np.concatenate(sizes)),
        np.concatenate(tables),
    )
    constant = float(graph.theta_v[graph.var_ptr[decided] + labels[decided]].sum()) + graph.constant
    mine = graph.theta_v[ranges(graph.var_ptr[kept], graph.card[kept])]
    mine = mine[domain[ranges(graph.var_ptr[kept], graph.card[kept])]]
    return FactorGraph(
        card=rest.card,
        theta_v=rest.theta_v + mine,
        scope_ptr=rest.scope_ptr,
        scope=rest.scope,
        table_of=rest.table_of,
        table_ptr=rest.table_ptr,
        theta_t=rest.theta_t,
        constant=constant + rest.constant,
    )


def _propagate(problem: Problem, hard: Ints, domain: Bools) -> None:
    """Remove states without support in some hard factor, until nothing changes."""
    graph = problem.graph
    if len(hard) == 0:
        return
    support = np.zeros(int(graph.card.max()) * int(np.diff(problem.scope_ptr).max()), dtype=bool)
    state = np.zeros(int(np.diff(problem.scope_ptr).max()), dtype=np.int64)
    for turn in range(MAX_SWEEPS):
        order = hard if turn % 2 == 0 else hard[::-1].copy()
        if not remove_unsupported(
            order, graph.card, graph.var_ptr, problem.scope_ptr, problem.scope, problem.table_at, graph.theta_t,
            domain, support, state,
        ):  # fmt: skip
            return


@compiled
def remove_unsupported(
    factors: Ints, card: Ints, var_ptr: Ints, scope_ptr: Ints, scope: Ints, table_at: Ints, theta_t: Floats,
    domain: Bools, support: Bools, state: Ints,
) -> bool:  # fmt: skip
    """One sweep over factors: a state stays if a finite entry of allowed states has it; True if some state went."""
    widest = len(support) // len(state)
    changed = False
    for a in factors:
        first, arity = scope_ptr[a], scope_ptr[a + 1] - scope_ptr[a]
        size = 1
        for d in range(arity):
            size *= card[scope[first + d]]
            state[d] = 0
        support[: arity * widest] = False
        for t in range(size):
            possible = theta_t[table_at[a] + t] > -np.inf
            for d in range(arity):
                possible = possible and domain[var_ptr[scope[first + d]] + state[d]]
            if possible:
                for d in range(arity):
                    support[d * widest + state[d]] = True
            d = arity - 1
            while d >= 0:
                state[d] += 1
                if state[d] < card[scope[first + d]]:
                    break
                state[d] = 0
                d -= 1
        for d in range(arity):
            i = scope[first + d]
            for k in range(card[i]):
                if domain[var_ptr[i] + k] and not support[d * widest + k]:
                    domain[var_ptr[i] + k] = False
                    changed = True
    return changed
