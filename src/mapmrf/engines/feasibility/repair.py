"""A labelling that violates few factors, by local search."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from mapmrf.arrays import Floats, Ints, blank, offsets, ranges
from mapmrf.compilation.jit import bare, inlined
from mapmrf.kernels.random_numbers import Bits, draw, seeded
from mapmrf.model.problem import Problem


class Repair:
    """Local search for a labelling with few violated factors, near a given one."""

    def __init__(self, problem: Problem, labels: Ints, seed: int = 0) -> None:
        self.model, begin = _hard_factors(problem)
        labels = np.array(labels, dtype=np.int64)
        n = len(begin)
        moved = labels[self.model.scope] * self.model.stride
        place = begin + np.bincount(self.model.factor_of, moved, n).astype(np.int64)
        self.state = RepairState(
            labels=labels,
            best=labels.copy(),
            place=place,
            weight=np.ones(n, dtype=np.int64),
            violated=np.zeros(n, dtype=np.int64),
            position=np.full(n, -1, dtype=np.int64),
            score=np.zeros(int(problem.graph.card.max(initial=1)), dtype=np.int64),
            random=seeded(seed),
            counts=blank(RepairCounts),
        )
        violated = np.flatnonzero(np.isneginf(self.model.theta[place]))
        self.state.violated[: len(violated)] = violated
        self.state.position[violated] = np.arange(len(violated))
        self.state.counts.n_violated = self.state.counts.fewest = len(violated)

    @property
    def n_violated(self) -> int:
        return int(self.state.counts.fewest)

    @property
    def labels(self) -> Ints:
        return self.state.best.copy()

    def run(self, work: int) -> int:
        """Read about this many table entries; return the fewest violated factors so far."""
        repair(self.model, self.state, work)
        return self.n_violated


def _hard_factors(problem: Problem) -> tuple[HardFactors, Ints]:
    graph = problem.graph
    chosen = [problem.order[batch.factors] for batch in problem.batches if batch.hard]
    factors = np.concatenate([*chosen, np.zeros(0, dtype=np.int64)])
    arity = graph.arity[factors]
    edges = ranges(graph.scope_ptr[factors], arity)
    unary = np.flatnonzero(np.logical_or.reduceat(~problem.feasible_v, graph.var_ptr[:-1]) if graph.n_vars else [])
    scope = np.concatenate([graph.scope[edges], unary]).astype(np.int64)
    scope_ptr = offsets(np.concatenate([arity, np.ones(len(unary), dtype=np.int64)])).astype(np.int64)
    model = HardFactors(
        card=graph.card.astype(np.int64),
        scope_ptr=scope_ptr,
        scope=scope,
        stride=np.concatenate([graph.stride[edges], np.ones(len(unary))]).astype(np.int64),
        theta=np.concatenate([graph.theta_t, graph.theta_v]),
        nbr_ptr=offsets(np.bincount(scope, minlength=graph.n_vars)).astype(np.int64),
        nbr=np.argsort(scope, kind="stable"),
        factor_of=np.repeat(np.arange(len(scope_ptr) - 1), np.diff(scope_ptr)),
    )
    tables = graph.table_ptr[graph.table_of[factors]]
    return model, np.concatenate([tables, len(graph.theta_t) + graph.var_ptr[unary]]).astype(np.int64)


# -- Local search for a labelling that violates as few factors as possible --------------------------------------------
# A violated factor is drawn, and the best flip of one of its variables is made if that lowers the weight of the
# violated factors. Otherwise the factor's weight is increased until a flip does, so that the search leaves every
# local optimum.


class HardFactors(NamedTuple):
    """Factors with forbidden entries; a variable with forbidden states has a unary one."""

    card: Ints  # (n_vars,): number of states of every variable
    scope_ptr: Ints
    scope: Ints  # variables of each factor
    stride: Ints  # their strides in its table
    theta: Floats  # the tables
    nbr_ptr: Ints
    nbr: Ints  # positions of every variable in `scope`
    factor_of: Ints  # the factor of each position


class RepairCounts:
    """Number of violated factors now, the fewest so far, and table entries read."""

    n_violated: int
    fewest: int
    work: int


class RepairState(NamedTuple):
    labels: Ints  # (n_vars,): the current labelling
    best: Ints  # (n_vars,): the one with the fewest violated factors
    place: Ints  # (n_factors,): current table entry of each factor
    weight: Ints  # (n_factors,)
    violated: Ints  # (n_factors,): the violated factors
    position: Ints  # (n_factors,): the position of each among them; -1 if it is satisfied
    score: Ints  # (most states,): weight of the violated factors around a variable in each of its states
    random: Bits
    counts: RepairCounts


@inlined
def flip(model: HardFactors, state: RepairState, i: int, k: int) -> None:
    step, counts = k - state.labels[i], state.counts
    state.labels[i] = k
    for e in model.nbr[model.nbr_ptr[i] : model.nbr_ptr[i + 1]]:
        a = model.factor_of[e]
        state.place[a] += step * model.stride[e]
        now, at = model.theta[state.place[a]] == -float("inf"), state.position[a]
        if now and at < 0:
            state.violated[counts.n_violated] = a
            state.position[a] = counts.n_violated
            counts.n_violated += 1
        elif not now and at >= 0:
            counts.n_violated -= 1
            last = state.violated[counts.n_violated]
            state.violated[at] = last
            state.position[last] = at
            state.position[a] = -1


@inlined
def best_flip(model: HardFactors, state: RepairState, a: int) -> tuple[int, int, int]:
    """Return variable, state and gain of the best flip in a factor, with random tie-breaking."""
    best_i, best_k, gain, n_ties = -1, -1, 0, 0
    for i in model.scope[model.scope_ptr[a] : model.scope_ptr[a + 1]]:
        n, score = model.card[i], state.score
        score[:n] = 0
        for e in model.nbr[model.nbr_ptr[i] : model.nbr_ptr[i + 1]]:
            base = state.place[model.factor_of[e]] - state.labels[i] * model.stride[e]
            for k in range(n):
                if model.theta[base + k * model.stride[e]] == -float("inf"):
                    score[k] += state.weight[model.factor_of[e]]
        state.counts.work += n * (1 + model.nbr_ptr[i + 1] - model.nbr_ptr[i])
        now = score[state.labels[i]]
        for k in range(n):
            if k == state.labels[i]:
                continue
            better = now - score[k]
            if best_i < 0 or better > gain:
                best_i, best_k, gain, n_ties = i, k, better, 1
            elif better == gain:
                n_ties += 1
                if draw(state.random, n_ties) == 0:
                    best_i, best_k = i, k
    return best_i, best_k, gain


@bare
def repair(model: HardFactors, state: RepairState, work: int) -> None:
    """Flip variables until nothing is violated or this many table entries have been read."""
    counts = state.counts
    end = counts.work + work
    while counts.n_violated > 0 and counts.work < end:
        a = state.violated[draw(state.random, counts.n_violated)]
        counts.work += 1
        i, k, gain = best_flip(model, state, a)
        if i < 0:
            continue
        if gain <= 0:
            state.weight[a] += 1
            if draw(state.random, 50) != 0:  # one in this many flips is made although it does not help
                continue
        flip(model, state, i, k)
        if counts.n_violated < counts.fewest:
            counts.fewest = counts.n_violated
            for j in range(len(state.labels)):
                state.best[j] = state.labels[j]
