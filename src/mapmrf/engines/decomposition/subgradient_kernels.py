"""Subgradient descent on the dual of a decomposition: votes of the copies, the step, averages and labellings.

The potentials of a variable are spread over its copies (`theta_c`); a subproblem labels each of its copies. Where
the copies of a variable disagree, potential moves from the states that were chosen more often than by the others to
those chosen less often. The sum over the copies stays what it is, so the subproblems' maxima always sum to a bound.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from mapmrf.engines.decomposition.factor_kernels import solve_factors
from mapmrf.engines.decomposition.tree_kernels import solve_forests
from mapmrf.kernels.jit import bare, compiled, inlined

DIMINISHING, SQRT, POLYAK, LEVEL = 0, 1, 2, 3
"""Rules of the step."""

MAJORITY, AVERAGE, SUBPROBLEM = 0, 1, 2
"""Ways to a labelling."""

(
    RULE, STEP, DECAY, EXPONENT, PATIENCE, TOLERANCE, UNIT, SLACK,
    ROUND, DUAL, BOUND, VALUE, LENGTH, NORM, FIRST, DELTA, REFERENCE, STALLED, WEIGHT, OLD_WEIGHT, WINDOW, N_FIGURES,
) = range(22)  # fmt: skip
"""Places in `figures`.

Options: rule and factor of the step, how it shrinks (decay and exponent of the diminishing rule, rounds without
progress before the others halve it), tolerance of the gap; the unit of the potentials and what round-off can make of
it. State: rounds done, the dual value, the best bound and value, length of the step, squared length of the
subgradient, first dual value, progress aimed at, the bound that it is measured from, rounds without it, weights of
this window of rounds and the last, and the first round of the next.
"""

SETTLED = 1e-7
"""Progress that the level rule does not aim at any more, relative to what was made since the first round."""


class Model(NamedTuple):
    """The potentials, and what is settled beforehand: the constant and the variables without factors."""

    theta_v: Any
    theta_t: Any
    var_ptr: Any
    constant: float
    alone: float


class Copies(NamedTuple):
    """The copies of the variables.

    Attributes
    ----------
    ptr : (n_vars + 1,)
        The copies of variable `i` are ``ptr[i]`` to ``ptr[i + 1]``.
    at, forest : (n_copies,)
        Where the copy's states start in `theta_c`, and the forest it is in.
    card : (n_copies,)
        Its number of states.
    """

    ptr: Any
    at: Any
    forest: Any
    card: Any


class Run(NamedTuple):
    """Where a run stands.

    Attributes
    ----------
    theta_c
        Potentials of the copies' states.
    label_c, config
        What the subproblems chose: the state of every copy, the entry of its table of every factor.
    labels, candidate, best
        The majority's labelling, the one looked at, and the best one met.
    sum_v, sum_f, old_v, old_f
        Weighted sums of what was chosen, in this window of rounds and in the last; `sum_f` is empty if it is too large.
    votes, seen
        Scratch of the voting.
    ways
        Ways to a labelling, taken in turn.
    figures
        See the names of its places.
    """

    theta_c: Any
    label_c: Any
    config: Any
    labels: Any
    candidate: Any
    best: Any
    sum_v: Any
    sum_f: Any
    old_v: Any
    old_f: Any
    votes: Any
    seen: Any
    ways: Any
    figures: Any


# -- votes and labellings ---------------------------------------------------------------------------------------------


@inlined
def _agree(label_c, begin, end):
    c = begin + 1
    while c < end and label_c[c] == label_c[begin]:
        c += 1
    return c >= end


@inlined
def _count(label_c, begin, end, votes, seen):
    """Votes for every state that has some, and a list of those; return how many there are."""
    n_seen = 0
    for c in range(begin, end):
        label = label_c[c]
        if votes[label] == 0:
            seen[n_seen] = label
            n_seen += 1
        votes[label] += 1
    return n_seen


@bare
def vote(model, copies, run):
    """The majority's labelling, ties by the average so far; return the squared length of the subgradient."""
    norm = 0.0
    for i in range(len(run.labels)):
        begin, end = copies.ptr[i], copies.ptr[i + 1]
        if begin == end:
            continue
        if _agree(run.label_c, begin, end):
            run.labels[i] = run.label_c[begin]
            continue
        n_seen = _count(run.label_c, begin, end, run.votes, run.seen)
        at = model.var_ptr[i]
        best = run.seen[0]
        squares = 0.0
        for place in range(n_seen):
            k = run.seen[place]
            count, most = run.votes[k], run.votes[best]
            squares += count * count
            # In single precision, so that round-off does not decide between equal averages.
            mean, ahead = np.float32(run.sum_v[at + k]), np.float32(run.sum_v[at + best])
            if count > most or (count == most and (mean > ahead or (mean == ahead and k < best))):
                best = k
        for place in range(n_seen):
            run.votes[run.seen[place]] = 0
        run.labels[i] = best
        norm += (end - begin) - squares / (end - begin)
    return norm


@bare
def value_of(model, legs, labels):
    """Log potential of a labelling."""
    total = model.constant
    for i in range(len(labels)):
        total += model.theta_v[model.var_ptr[i] + labels[i]]
    for v in range(len(legs.table_at)):
        place = legs.table_at[v]
        for leg in range(legs.ptr[v], legs.ptr[v + 1]):
            place += legs.stride[leg] * labels[legs.var[leg]]
        total += model.theta_t[place]
    return total


@bare
def average_labels(model, copies, run):
    """The largest entry of the average of every variable, the smallest state on ties, as the candidate."""
    for i in range(len(run.labels)):
        run.candidate[i] = run.labels[i]
        if copies.ptr[i] == copies.ptr[i + 1]:
            continue
        at, end = model.var_ptr[i], model.var_ptr[i + 1]
        best = at
        for place in range(at + 1, end):
            if run.sum_v[place] + run.old_v[place] > run.sum_v[best] + run.old_v[best]:
                best = place
        run.candidate[i] = best - at


@bare
def forest_labels(copies, run, forest):
    """A forest's own labelling as the candidate; variables outside of it as the majority has them."""
    for i in range(len(run.labels)):
        run.candidate[i] = run.labels[i]
        for c in range(copies.ptr[i], copies.ptr[i + 1]):
            if copies.forest[c] == forest:
                run.candidate[i] = run.label_c[c]


@bare
def look_at_candidate(model, copies, legs, run, n_forests):
    """Evaluate one labelling, each round by another of the ways asked for, and keep it if it is the best."""
    figures = run.figures
    turn = int(figures[ROUND])
    way = run.ways[turn % len(run.ways)]
    if way == MAJORITY or figures[NORM] == 0.0 or turn == 0:
        for i in range(len(run.labels)):
            run.candidate[i] = run.labels[i]
    elif way == AVERAGE:
        average_labels(model, copies, run)
    else:
        forest_labels(copies, run, (turn // len(run.ways)) % n_forests)
    value = value_of(model, legs, run.candidate)
    if value > figures[VALUE]:
        figures[VALUE] = value
        for i in range(len(run.labels)):
            run.best[i] = run.candidate[i]


# -- the step ---------------------------------------------------------------------------------------------------------


@bare
def step_length(figures):
    """How much potential a vote moves, by the rule of the run; first takes note of the present dual value."""
    dual, norm, t = figures[DUAL], figures[NORM], figures[ROUND]
    rule = int(figures[RULE])
    if rule == SQRT:
        if _stalled(figures, figures[SLACK]):
            figures[STEP] *= 0.5
        return figures[UNIT] * figures[STEP] / np.sqrt(1.0 + t)
    if rule == POLYAK and figures[VALUE] > -np.inf:
        return figures[STEP] * (dual - figures[VALUE]) / norm
    if rule == LEVEL:
        return figures[STEP] * _above_level(figures) / norm
    return figures[UNIT] * figures[STEP] / (1.0 + (figures[DECAY] * t) ** figures[EXPONENT])


@inlined
def _stalled(figures, aim):
    """Whether the bound has not come down by some amount for as many rounds as patience allows."""
    if figures[ROUND] == 0.0 or figures[BOUND] <= figures[REFERENCE] - aim:
        figures[REFERENCE] = figures[BOUND]
        figures[STALLED] = 0.0
        return False
    figures[STALLED] += 1.0
    if figures[STALLED] < figures[PATIENCE]:
        return False
    figures[REFERENCE] = figures[BOUND]
    figures[STALLED] = 0.0
    return True


@inlined
def _above_level(figures):
    """Distance of the dual value from the level aimed at, which comes nearer after some rounds without progress.

    0 if it has come so near that nothing is left to aim at.
    """
    if figures[ROUND] == 0.0:
        figures[DELTA] = min(figures[DUAL] - figures[VALUE], figures[UNIT] * figures[NORM])
    if _stalled(figures, 0.5 * figures[DELTA]):
        figures[DELTA] *= 0.5
    if figures[DELTA] <= SETTLED * (figures[FIRST] - figures[BOUND]):
        return 0.0
    return figures[DUAL] - max(figures[VALUE], figures[BOUND] - figures[DELTA])


@bare
def next_window(run):
    """After 1, 2, 4, ... rounds: the sums become those of the last window, and another begins."""
    figures = run.figures
    figures[WINDOW] = 2.0 * figures[ROUND] + 1.0
    figures[OLD_WEIGHT] = figures[WEIGHT]
    figures[WEIGHT] = 0.0
    for place in range(len(run.sum_v)):
        run.old_v[place] = run.sum_v[place]
        run.sum_v[place] = 0.0
    for place in range(len(run.sum_f)):
        run.old_f[place] = run.sum_f[place]
        run.sum_f[place] = 0.0


@inlined
def _move(run, copies, begin, end, length, at, weight):
    """Take potential from what the copies of a variable chose and spread it over all of them; add to the sums."""
    share = 1.0 / (end - begin)
    n_seen = _count(run.label_c, begin, end, run.votes, run.seen)
    for place in range(n_seen):
        k = run.seen[place]
        part = share * run.votes[k]
        run.sum_v[at + k] += weight * part
        for c in range(begin, end):
            run.theta_c[copies.at[c] + k] += length * part
        run.votes[k] = 0
    for c in range(begin, end):
        run.theta_c[copies.at[c] + run.label_c[c]] -= length


@bare
def move(model, copies, run, config_at, stale, length, weight):
    """A step of the subgradient; marks the factors whose potentials change, and adds the round to the sums."""
    run.figures[WEIGHT] += weight
    marking = len(stale) > 0
    for i in range(len(run.labels)):
        begin, end = copies.ptr[i], copies.ptr[i + 1]
        if begin == end:
            continue
        if _agree(run.label_c, begin, end):
            run.sum_v[model.var_ptr[i] + run.label_c[begin]] += weight
            continue
        _move(run, copies, begin, end, length, model.var_ptr[i], weight)
        if marking:
            for c in range(begin, end):
                stale[copies.forest[c]] = True
    if len(run.sum_f) > 0:
        for v in range(len(config_at)):
            run.sum_f[config_at[v] + run.config[v]] += weight


@inlined
def _closed(figures):
    """Whether the gap between the bound and the best labelling is within the tolerance."""
    gap, value = figures[BOUND] - figures[VALUE], figures[VALUE]
    return value > -np.inf and gap <= figures[TOLERANCE] * max(1.0, abs(value))


@bare
def settle(model, copies, legs, run, config_at, stale, n_forests):
    """What follows the subproblems: bound, votes, a labelling, and a step; return whether there was one to take."""
    figures = run.figures
    figures[DUAL] += model.alone
    if figures[ROUND] == 0.0:
        figures[FIRST] = figures[DUAL]
    figures[BOUND] = min(figures[BOUND], figures[DUAL])
    if figures[BOUND] == -np.inf:
        figures[ROUND] += 1.0
        return False
    figures[NORM] = vote(model, copies, run)
    look_at_candidate(model, copies, legs, run, n_forests)
    length = 0.0
    if figures[NORM] > 0.0 and not _closed(figures):
        length = step_length(figures)
    figures[LENGTH] = length
    if figures[ROUND] >= figures[WINDOW]:
        next_window(run)
    # Averages weighted by the steps are consistent in the limit, if the steps do not shrink too fast: those of the
    # other rules do, and equal weights serve better.
    by_length = length > 0.0 and (figures[RULE] == SQRT or figures[RULE] == DIMINISHING)
    move(model, copies, run, config_at, stale, length, length if by_length else 1.0)
    figures[ROUND] += 1.0
    return length > 0.0


@compiled
def descend_forests(model, copies, legs, roots, config_at, run, scratch, n_rounds):
    """Rounds of subgradient descent over forests; return whether there is nothing left to do."""
    belief, message, state, stale, n_forests = scratch
    for _ in range(n_rounds):
        run.figures[DUAL] = solve_forests(
            model.theta_t, run.theta_c, legs, roots, copies.at, copies.card, belief, message, state,
            run.label_c, run.config, run.figures[SLACK],
        )  # fmt: skip
        if not settle(model, copies, legs, run, config_at, stale, n_forests):
            return True
    return False


@compiled
def descend_factors(model, copies, legs, config_at, run, scratch, n_rounds):
    """The same over single factors."""
    stale, top_f, state = scratch
    for _ in range(n_rounds):
        run.figures[DUAL] = solve_factors(
            model.theta_t, run.theta_c, legs, stale, top_f, state, run.label_c, run.config, run.figures[SLACK]
        )
        if not settle(model, copies, legs, run, config_at, stale, 1):
            return True
    return False
