"""Subgradient descent on the dual of a decomposition: votes of the copies, steps, averages and labellings.

The potentials of a variable are distributed over its copies (`theta_c`); a subproblem labels each of its copies. Where
the copies of a variable disagree, potential moves from the states that a copy chose to those that the others chose. The
sum over the copies is invariant, so the subproblems' maxima always sum to a bound.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from mapmrf.arrays import Bools, Floats, Ints
from mapmrf.compilation.jit import bare, compiled, inlined
from mapmrf.engines.decomposition.tree_kernels import (
    Chosen,
    Copies,
    Legs,
    TreeScratch,
    form_up,
    leg_form,
    next_state,
    solve_forests,
    sum_of,
)
from mapmrf.kernels.max_marginals import weight_of
from mapmrf.kernels.pair_transforms import StructuredPairs

DIMINISHING, SQRT, POLYAK, LEVEL = 0, 1, 2, 3  # step rules
MAJORITY, AVERAGE, SUBPROBLEM = 0, 1, 2  # decoding rules
SETTLED = 1e-7  # target of the level rule at which it stops, relative to the progress since the first round
FigureRecord = Any  # a record of type `DESCENT_FIGURES` with the scalars of a run

DESCENT_FIGURES = np.dtype(
    [
        ("rounds", np.int64),  # rounds done
        ("dual", np.float64),  # dual value: last, first and best
        ("first", np.float64),
        ("bound", np.float64),
        ("value", np.float64),  # of the incumbent
        ("closed", np.bool_),  # whether the relative gap is within the tolerance
        ("norm", np.float64),  # squared norm of the subgradient
        ("step", np.float64),  # factor on the step length, and the last step length
        ("length", np.float64),
        ("delta", np.float64),  # targeted progress, the bound it is measured from, and rounds without it
        ("reference", np.float64),
        ("stalled", np.int64),
        ("weight", np.float64),  # weights of this window of rounds and of the last, and the first round of the next
        ("old_weight", np.float64),
        ("window", np.int64),
    ],
    align=True,
)
"""The scalars of a run."""


class StepOptions(NamedTuple):
    """Step rule and stopping rule."""

    rule: int  # the rule
    # decay, exponent: decay of the step length in the diminishing rule
    decay: float
    exponent: float
    patience: int  # rounds without progress before the other rules halve their steps
    tolerance: float  # relative gap at which to stop
    # unit, slack: the typical size of a potential, and the tolerance for ties
    unit: float
    slack: float


class Subproblems(NamedTuple):
    """A model decomposed into subproblems."""

    # theta_v, theta_t, var_ptr, constant: as in the graph
    theta_v: Floats
    theta_t: Floats
    var_ptr: Ints
    constant: float
    alone: float  # the constant plus the maxima of the variables without factors
    # copies, legs, roots, n_forests: the subproblems; single factors have no roots, and count as one forest
    copies: Copies
    legs: Legs
    roots: Ints
    n_forests: int
    # (n_factors,): offsets of the factors' blocks in `mu_f`, in visiting order; empty if nothing is averaged there
    config_at: Ints


class Averages(NamedTuple):
    """Weighted sums of the choices, in this window of rounds and in the last; `f` is empty if it is too large."""

    v: Floats
    f: Floats
    old_v: Floats
    old_f: Floats


class DescentState(NamedTuple):
    """State of a run."""

    theta_c: Floats  # potentials of the copies' states
    # choices, averages: the current choices of the subproblems, and their averages
    choices: Chosen
    averages: Averages
    # labels, candidate, best: the majority's labelling, the last one evaluated, and the incumbent
    labels: Ints
    candidate: Ints
    best: Ints
    # votes, seen: scratch for voting
    votes: Ints
    seen: Ints
    ways: Ints  # decoding rules, used in turn
    options: StepOptions  # step rule
    figures: Any  # (1,): a record of type `DESCENT_FIGURES`


# -- votes and labellings ---------------------------------------------------------------------------------------------


@inlined
def _agree(label_c: Ints, begin: int, end: int) -> bool:
    """Return whether a range of copies all chose the same state."""
    c = begin + 1
    while c < end and label_c[c] == label_c[begin]:
        c += 1
    return c >= end


@inlined
def _count(label_c: Ints, begin: int, end: int, votes: Ints, seen: Ints) -> int:
    """Count the votes for every state and list those with votes; return their number."""
    n_seen = 0
    for c in range(begin, end):
        label = label_c[c]
        if votes[label] == 0:
            seen[n_seen] = label
            n_seen += 1
        votes[label] += 1
    return n_seen


@bare
def vote(parts: Subproblems, state: DescentState) -> float:
    """Compute the majority labelling, ties by the average so far; return the squared norm of the subgradient."""
    ptr, label_c, labels, mean_v = parts.copies.ptr, state.choices.label_c, state.labels, state.averages.v
    votes, seen = state.votes, state.seen
    norm = 0.0
    for i in range(len(labels)):
        begin, end = ptr[i], ptr[i + 1]
        if begin == end:
            continue
        if _agree(label_c, begin, end):
            labels[i] = label_c[begin]
            continue
        n_seen = _count(label_c, begin, end, votes, seen)
        at = parts.var_ptr[i]
        best = seen[0]
        squares = 0.0
        for place in range(n_seen):
            k = seen[place]
            count, most = votes[k], votes[best]
            squares += count * count
            # In single precision, so that round-off does not decide ties.
            mean, ahead = np.float32(mean_v[at + k]), np.float32(mean_v[at + best])
            if count > most or (count == most and (mean > ahead or (mean == ahead and k < best))):
                best = k
        for place in range(n_seen):
            votes[seen[place]] = 0
        labels[i] = best
        norm += (end - begin) - squares / (end - begin)
    return norm


@bare
def value_of(parts: Subproblems, labels: Ints) -> float:
    """Return the value of a labelling."""
    legs, total = parts.legs, parts.constant
    for i in range(len(labels)):
        total += parts.theta_v[parts.var_ptr[i] + labels[i]]
    for v in range(len(legs.table_at)):
        place = legs.table_at[v]
        for leg in range(legs.ptr[v], legs.ptr[v + 1]):
            place += legs.stride[leg] * labels[legs.var[leg]]
        total += weight_of(legs.weight, v) * parts.theta_t[place]
    return total


@bare
def average_labels(parts: Subproblems, state: DescentState) -> None:
    """Set the candidate to the largest entry of every variable's average, the smallest state on ties."""
    mean, old = state.averages.v, state.averages.old_v
    for i in range(len(state.labels)):
        state.candidate[i] = state.labels[i]
        if parts.copies.ptr[i] == parts.copies.ptr[i + 1]:
            continue
        at, end = parts.var_ptr[i], parts.var_ptr[i + 1]
        best = at
        for place in range(at + 1, end):
            if mean[place] + old[place] > mean[best] + old[best]:
                best = place
        state.candidate[i] = best - at


@bare
def forest_labels(copies: Copies, state: DescentState, forest: int) -> None:
    """Set the candidate to a forest's labelling, completed by the majority."""
    for i in range(len(state.labels)):
        state.candidate[i] = state.labels[i]
        for c in range(copies.ptr[i], copies.ptr[i + 1]):
            if copies.forest[c] == forest:
                state.candidate[i] = state.choices.label_c[c]


@bare
def try_candidate(parts: Subproblems, state: DescentState) -> None:
    """Evaluate one labelling per round, by the decoding rules in turn, and keep it if it is the best."""
    figures = state.figures[0]
    turn = figures.rounds
    way = state.ways[turn % len(state.ways)]
    if way == MAJORITY or figures.norm == 0.0 or turn == 0:
        for i in range(len(state.labels)):
            state.candidate[i] = state.labels[i]
    elif way == AVERAGE:
        average_labels(parts, state)
    else:
        forest_labels(parts.copies, state, (turn // len(state.ways)) % parts.n_forests)
    value = value_of(parts, state.candidate)
    if value > figures.value:
        figures.value = value
        for i in range(len(state.labels)):
            state.best[i] = state.candidate[i]


# -- the step ---------------------------------------------------------------------------------------------------------


@bare
def step_length(figures: FigureRecord, options: StepOptions) -> float:
    """Update the step rule with the current dual value, and return the step length."""
    length: float = 0.0
    if options.rule == SQRT:
        if _stalled(figures, options.slack, options.patience):
            figures.step *= 0.5
        length = options.unit * figures.step / np.sqrt(1.0 + figures.rounds)
    elif options.rule == POLYAK and figures.value > -np.inf:
        length = figures.step * (figures.dual - figures.value) / figures.norm
    elif options.rule == LEVEL:
        length = figures.step * _above_level(figures, options) / figures.norm
    else:
        length = options.unit * figures.step / (1.0 + (options.decay * figures.rounds) ** options.exponent)
    return length


@inlined
def _stalled(figures: FigureRecord, aim: float, patience: int) -> bool:
    """Return whether the bound has not improved by `aim` for `patience` rounds."""
    if figures.rounds == 0 or figures.bound <= figures.reference - aim:
        figures.reference = figures.bound
        figures.stalled = 0
        return False
    figures.stalled += 1
    if figures.stalled < patience:
        return False
    figures.reference = figures.bound
    figures.stalled = 0
    return True


@inlined
def _above_level(figures: FigureRecord, options: StepOptions) -> float:
    """Return the distance of the dual value from the target level, which moves closer after rounds without progress.

    0 once the target is so close that nothing is left to gain.
    """
    if figures.rounds == 0:
        figures.delta = min(figures.dual - figures.value, options.unit * figures.norm)
    if _stalled(figures, 0.5 * figures.delta, options.patience):
        figures.delta *= 0.5
    if figures.delta <= SETTLED * (figures.first - figures.bound):
        return 0.0
    return float(figures.dual - max(figures.value, figures.bound - figures.delta))


@bare
def next_window(averages: Averages, figures: FigureRecord) -> None:
    """After 1, 2, 4, ... rounds, start a new averaging window and keep the last."""
    figures.window = 2 * figures.rounds + 1
    figures.old_weight = figures.weight
    figures.weight = 0.0
    for place in range(len(averages.v)):
        averages.old_v[place] = averages.v[place]
        averages.v[place] = 0.0
    for place in range(len(averages.f)):
        averages.old_f[place] = averages.f[place]
        averages.f[place] = 0.0


@bare
def move(parts: Subproblems, state: DescentState, stale: Bools, length: float, weight: float) -> None:
    """Take a subgradient step; mark the factors whose potentials change, and add the round to the sums.

    Potential is taken from the states that a variable's copies chose and distributed over all copies.
    """
    ptr, copy_at, var_ptr = parts.copies.ptr, parts.copies.at, parts.var_ptr
    label_c, theta_c, votes, seen = state.choices.label_c, state.theta_c, state.votes, state.seen
    sum_v, sum_f = state.averages.v, state.averages.f
    marking = len(stale) > 0
    for i in range(len(state.labels)):
        begin, end = ptr[i], ptr[i + 1]
        if begin == end:
            continue
        if _agree(label_c, begin, end):
            sum_v[var_ptr[i] + label_c[begin]] += weight
            continue
        share = 1.0 / (end - begin)
        n_seen = _count(label_c, begin, end, votes, seen)
        for place in range(n_seen):
            k = seen[place]
            part = share * votes[k]
            sum_v[var_ptr[i] + k] += weight * part
            for c in range(begin, end):
                theta_c[copy_at[c] + k] += length * part
            votes[k] = 0
        for c in range(begin, end):
            theta_c[copy_at[c] + label_c[c]] -= length
        if marking:
            for c in range(begin, end):
                stale[parts.copies.forest[c]] = True
    if len(sum_f) > 0:
        for v in range(len(parts.config_at)):
            sum_f[parts.config_at[v] + state.choices.config[v]] += weight


# -- rounds -----------------------------------------------------------------------------------------------------------


@bare
def finish_round(dual: float, parts: Subproblems, state: DescentState, stale: Bools) -> bool:
    """Finish a round: bound, votes, a labelling, and a step; return False if there was no step to take."""
    figures, options = state.figures[0], state.options
    figures.dual = dual + parts.alone
    if figures.rounds == 0:
        figures.first = figures.dual
    figures.bound = min(figures.bound, figures.dual)
    if figures.bound == -np.inf:
        figures.rounds += 1
        return False
    figures.norm = vote(parts, state)
    try_candidate(parts, state)
    gap, value = figures.bound - figures.value, figures.value
    figures.closed = value > -np.inf and gap <= options.tolerance * max(1.0, abs(value))
    length = 0.0
    if figures.norm > 0.0 and not figures.closed:
        length = step_length(figures, options)
    figures.length = length
    if figures.rounds >= figures.window:
        next_window(state.averages, figures)
    # Averages weighted by the step lengths are consistent in the limit if the steps do not shrink too fast. Those of
    # the other rules do, and equal weights work better.
    by_length = length > 0.0 and (options.rule == SQRT or options.rule == DIMINISHING)
    weight = length if by_length else 1.0
    figures.weight += weight
    move(parts, state, stale, length, weight)
    figures.rounds += 1
    return length > 0.0


@compiled
def descend_forests(parts: Subproblems, state: DescentState, scratch: TreeScratch, stale: Bools, n_rounds: int) -> bool:
    """Run rounds of subgradient descent over forests; return whether nothing is left to do."""
    choices, slack = state.choices, state.options.slack
    for _ in range(n_rounds):
        dual = solve_forests(
            parts.theta_t, state.theta_c, parts.copies, parts.legs, parts.roots, choices, scratch, slack
        )
        if not finish_round(dual, parts, state, stale):
            return True
    return False


@compiled
def descend_factors(parts: Subproblems, state: DescentState, cache: FactorCache, n_rounds: int) -> bool:
    """Run the same over single factors."""
    for _ in range(n_rounds):
        dual = solve_factors(parts.theta_t, state.theta_c, parts.legs, state.choices, cache, state.options.slack)
        if not finish_round(dual, parts, state, cache.stale):
            return True
    return False


# Single-factor subproblems: the best entry of each factor, given the potentials of its copies of the variables.


class FactorCache(NamedTuple):
    """Cached choices of the factors, and scratch."""

    # stale, top_f: (n_factors,): whether a factor's potentials have changed since its last choice, and its maximum then
    stale: Bools
    top_f: Floats
    state: Ints  # a configuration
    inner: Floats  # for each state of one variable, the best state of the other
    pairs: StructuredPairs  # the forms of pairs


@inlined
def _best_binary_pair(
    theta_t: Floats, at: int, weight: float, theta_c: Floats, first: int, second: int, slack: float
) -> tuple[float, int]:
    """Return the maximum of a 2x2 table and its best entry."""
    low, high = theta_c[second], theta_c[second + 1]
    v0, v1 = weight * theta_t[at] + low, weight * theta_t[at + 1] + high
    v2, v3 = weight * theta_t[at + 2] + low, weight * theta_t[at + 3] + high
    top0, top1 = theta_c[first] + max(v0, v1), theta_c[first + 1] + max(v2, v3)
    s0, s1 = (1 if v1 > v0 + slack else 0), (3 if v3 > v2 + slack else 2)
    return max(top0, top1), (s1 if top1 > top0 + slack else s0)


@inlined
def _best_row(theta_t: Floats, theta_c: Floats, legs: Legs, a: int, weight: float, slack: float) -> tuple[float, int]:
    """Return the maximum of a pairwise table, and its row."""
    begin = legs.ptr[a]
    at, first, second = legs.table_at[a], legs.at[begin], legs.at[begin + 1]
    n_second = legs.card[begin + 1]
    top, best, chosen = -np.inf, 0, -np.inf
    for s1 in range(legs.card[begin]):
        row = at + s1 * n_second
        inner = -np.inf
        for s2 in range(n_second):
            inner = max(inner, weight * theta_t[row + s2] + theta_c[second + s2])
        value = theta_c[first + s1] + inner
        top = max(top, value)
        if value > chosen + slack:
            chosen, best = value, s1
    return top, best


@inlined
def _best_row_of_form(theta_c: Floats, legs: Legs, a: int, cache: FactorCache, slack: float) -> tuple[float, int]:
    """Return the same for a structured pair."""
    inner, first, begin = cache.inner, legs.at[legs.ptr[a]], legs.ptr[a]
    form_up(leg_form(legs, a), legs, a, theta_c, inner, cache.pairs)
    top, best, chosen = -np.inf, 0, -np.inf
    for s1 in range(legs.card[begin]):
        value = theta_c[first + s1] + inner[s1]
        top = max(top, value)
        if value > chosen + slack:
            chosen, best = value, s1
    return top, best


@inlined
def _best_pair(
    theta_t: Floats, theta_c: Floats, legs: Legs, a: int, cache: FactorCache, slack: float
) -> tuple[float, int]:
    """Return the maximum of a pairwise table and its best entry."""
    weight = weight_of(legs.weight, a)
    if leg_form(legs, a) >= 0:
        top, best = _best_row_of_form(theta_c, legs, a, cache, slack)
    elif weight == 1.0:
        top, best = _best_row(theta_t, theta_c, legs, a, 1.0, slack)
    else:
        top, best = _best_row(theta_t, theta_c, legs, a, weight, slack)
    begin = legs.ptr[a]
    second, n_second = legs.at[begin + 1], legs.card[begin + 1]
    row = legs.table_at[a] + best * n_second
    last, chosen = 0, weight * theta_t[row] + theta_c[second]
    for s2 in range(1, n_second):
        value = weight * theta_t[row + s2] + theta_c[second + s2]
        if value > chosen + slack:
            chosen, last = value, s2
    return top, best * n_second + last


@inlined
def _best_table(
    theta_t: Floats, theta_c: Floats, legs: Legs, a: int, label_c: Ints, state: Ints, slack: float
) -> tuple[float, int]:
    """Return the maximum of a table of any arity and its best entry, row by row; also labels the copies."""
    begin, last, weight = legs.ptr[a], legs.ptr[a + 1] - 1, weight_of(legs.weight, a)
    table_at, last_at, n_last, stride = legs.table_at[a], legs.at[last], legs.card[last], legs.stride[last]
    for leg in range(begin, last):
        state[leg - begin] = 0
    top, best, chosen = -np.inf, 0, -np.inf
    row = 0
    while row >= 0:
        others = sum_of(legs, begin, last, state, theta_c)
        for s in range(n_last):
            place = row + s * stride
            value = weight * theta_t[table_at + place] + (others + theta_c[last_at + s])
            top = max(top, value)
            if value > chosen + slack:
                chosen, best = value, place
        row = next_state(legs, begin, last, state, row)
    for leg in range(begin, last + 1):
        label_c[legs.copy[leg]] = best // legs.stride[leg] % legs.card[leg]
    return top, best


@bare
def solve_factors(
    theta_t: Floats, theta_c: Floats, legs: Legs, choices: Chosen, cache: FactorCache, slack: float
) -> float:
    """Choose the best entry of every factor whose potentials have changed; return the sum of the maxima.

    Among entries within `slack` of each other, the first is chosen, so that round-off decides nothing.
    """
    stale, top_f, label_c = cache.stale, cache.top_f, choices.label_c
    total = 0.0
    for a in range(len(stale)):
        if stale[a]:
            stale[a] = False
            first = legs.ptr[a]
            if legs.ptr[a + 1] - first == 2:
                n_second = legs.card[first + 1]
                if legs.card[first] == 2 and n_second == 2:
                    at, weight, one, two = (
                        legs.table_at[a],
                        weight_of(legs.weight, a),
                        legs.at[first],
                        legs.at[first + 1],
                    )
                    top, t = _best_binary_pair(theta_t, at, weight, theta_c, one, two, slack)
                else:
                    top, t = _best_pair(theta_t, theta_c, legs, a, cache, slack)
                label_c[legs.copy[first]] = t // n_second
                label_c[legs.copy[first + 1]] = t % n_second
            else:
                top, t = _best_table(theta_t, theta_c, legs, a, label_c, cache.state, slack)
            top_f[a] = top
            choices.config[a] = t
        total += top_f[a]
    return total
