"""Single-variable ascent: a variable takes its best state, and its neighbours are marked again if that is a change.

`score_states`, `best_state` and `move_to` are shared by all ascents, which differ in the order of visits: `ascend`
cycles through the variables in their order, which is OpenGM's and gives the paper's figures for ICM; the local search
of the exact methods uses a queue, which only touches the surroundings of a perturbation, however large the model.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from mapmrf.arrays import Bools, Floats, Ints
from mapmrf.compilation.jit import compiled, inlined
from mapmrf.engines.moves.move_model import MoveModel
from mapmrf.kernels.factor_tables import weight_of

MARGIN = 1e-13
"""Gains below this fraction of the sums that they are a difference of count as round-off."""


class Climber(NamedTuple):
    """A labelling that climbs.

    Attributes
    ----------
    labels : (n_vars,)
        Where it stands.
    place : (n_factors,)
        Entry of `theta_t` that every factor takes there.
    broken, score : (largest cardinality,)
        Forbidden entries and finite sum of each state of the variable looked at.
    """

    labels: Ints
    place: Ints
    broken: Ints
    score: Floats


class RoundCursor:
    """Progress of the round: number of marked variables, and the next variable."""

    n_marked: int
    variable: int


class Round(NamedTuple):
    """The variables due, visited in their order, round and round.

    Attributes
    ----------
    marked : (n_vars,)
        Which variables are due.
    marks_in
        How many of them are in every stretch of `stretch` variables: stretches without any are skipped.
    cursor
        How far the round has come.
    """

    marked: Bools
    marks_in: Ints
    stretch: int
    cursor: RoundCursor


@inlined
def score_states(model: MoveModel, climber: Climber, i: int) -> None:
    """Compute the forbidden entries and the finite sum of every state of variable `i`, with all others fixed."""
    broken, score, n_k, label = climber.broken, climber.score, model.card[i], climber.labels[i]
    for k in range(n_k):
        theta = model.theta_v[model.var_ptr[i] + k]
        hard = theta == -np.inf
        broken[k] = 1 if hard else 0
        score[k] = 0.0 if hard else theta
    for e in range(model.nbr_ptr[i], model.nbr_ptr[i + 1]):
        a, stride = model.factor_of[e], model.stride_of[e]
        at = climber.place[a] - stride * label
        weight = weight_of(model.weight, a)
        for k in range(n_k):
            theta = weight * model.theta_t[at + k * stride]
            if theta == -np.inf:
                broken[k] += 1
            else:
                score[k] += theta


@inlined
def best_state(climber: Climber, label: int, n_states: int) -> int:
    """Return the best state: the current one unless another violates less, or as much with a higher score."""
    broken, score = climber.broken, climber.score
    best = label
    for k in range(n_states):
        if broken[k] < broken[best]:
            best = k
        elif broken[k] == broken[best]:
            # a margin above round-off, so that equal states do not alternate forever
            margin = MARGIN * (abs(score[k]) + abs(score[best]))
            if score[k] > score[best] + margin:
                best = k
    return best


@inlined
def move_to(model: MoveModel, climber: Climber, i: int, k: int) -> None:
    """Set variable `i` to state `k`."""
    shift = k - climber.labels[i]
    for e in range(model.nbr_ptr[i], model.nbr_ptr[i + 1]):
        climber.place[model.factor_of[e]] += model.stride_of[e] * shift
    climber.labels[i] = k


@inlined
def next_marked(marks: Round, i: int) -> int:
    """Return the first marked variable from `i` on, cyclically; there must be one."""
    n = len(marks.marked)
    i = i if i < n else 0
    while not marks.marked[i]:
        b = i // marks.stretch
        i = i + 1 if marks.marks_in[b] > 0 else (b + 1) * marks.stretch
        i = i if i < n else 0
    return i


@inlined
def mark_neighbours(model: MoveModel, marks: Round, i: int) -> int:
    """Mark the neighbours of a variable; returns how many were not marked before."""
    n_new = 0
    for e in range(model.nbr_ptr[i], model.nbr_ptr[i + 1]):
        a = model.factor_of[e]
        for p in range(model.scope_ptr[a], model.scope_ptr[a + 1]):
            j = model.scope[p]
            if j != i and not marks.marked[j]:
                marks.marked[j] = True
                marks.marks_in[j // marks.stretch] += 1
                n_new += 1
    return n_new


@compiled
def ascend(model: MoveModel, climber: Climber, marks: Round, max_visits: int, max_entries: int) -> int:
    """Visit marked variables until none is left or a budget is spent; return how many were visited."""
    n_marked, i = marks.cursor.n_marked, marks.cursor.variable
    visits = 0
    entries = 0
    while n_marked > 0 and visits < max_visits and entries < max_entries:
        i = next_marked(marks, i)
        marks.marked[i] = False
        marks.marks_in[i // marks.stretch] -= 1
        n_marked -= 1
        visits += 1
        entries += model.card[i] * (1 + model.nbr_ptr[i + 1] - model.nbr_ptr[i])
        score_states(model, climber, i)
        new = best_state(climber, climber.labels[i], model.card[i])
        if new != climber.labels[i]:
            move_to(model, climber, i, new)
            n_marked += mark_neighbours(model, marks, i)
        i += 1
    marks.cursor.n_marked, marks.cursor.variable = n_marked, i
    return visits
