"""Subgradient descent for dual decomposition: the state of a run, and its reports."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from mapmrf.arrays import Floats, Ints, offsets, ranges, segment_argmax, segment_max
from mapmrf.compilation.jit import bare, compiled, inlined
from mapmrf.engines.decomposition.subproblems import (
    Decomposition,
    DescentState,
    Subproblems,
    solve_factors,
    solve_forests,
)
from mapmrf.kernels.max_marginals import weight_of
from mapmrf.model.polytope import FactorMarginals, integral
from mapmrf.model.problem import Batch, Problem
from mapmrf.run import pace
from mapmrf.run.method import MOST_NUMBERS, Answer, DualState, Progress
from mapmrf.run.result import Status

DIMINISHING, SQRT, POLYAK, LEVEL = 0, 1, 2, 3  # step rules
MAJORITY, AVERAGE, SUBPROBLEM = 0, 1, 2  # decoding rules


@dataclass(frozen=True)
class DescentOptions:
    """Options of a descent: step rule and length, stopping rule, and decoding rules, used in turn."""

    rule: int
    step_size: float
    patience: int
    tolerance: float
    ways: tuple[int, ...]
    decay: float = 0.0
    exponent: float = 1.0
    most_configs: int = 30_000_000  # beyond, the factors' choices are not averaged: the last ones are used


class SubgradientDescent:
    def __init__(
        self, problem: Problem, parts: Decomposition, options: DescentOptions, initial: Ints | None = None
    ) -> None:
        """Distribute the unary potentials evenly over the copies; an initial labelling is the first incumbent."""
        graph = problem.graph
        # Fewer if factors share tables, unless the tables themselves have as many entries: images stay small
        averaging = problem.n_configs <= min(options.most_configs, max(4_000_000, len(graph.theta_t)))
        self.parts = parts  # the decomposition; `subproblems` are the same with their potentials
        self.subproblems = parts.subproblems(problem, averaging)
        theta_c, labels = _even_shares(problem, parts), segment_argmax(graph.theta_v, graph.var_ptr)
        n_sums = problem.n_configs if averaging else 0
        self.state = DescentState.allocate(problem, parts, theta_c, labels, options.ways, n_sums)
        figures = self.state.figures
        for name in ("rule", "decay", "exponent", "patience", "tolerance"):
            figures[name] = getattr(options, name)
        figures.unit = unit_of(problem)
        figures.slack = 1e-12 * figures.unit
        figures.step, figures.bound, figures.value = options.step_size, np.inf, -np.inf
        work = problem.n_configs + problem.n_states + 4 * len(parts.copies.at)
        self.chunk = max(1, pace.SUBGRADIENTS // max(1, work))  # maximum number of rounds per step
        if initial is not None:
            self.state.best[:] = initial
            self.figures.value = graph.value(initial)

    @property
    def layout(self) -> str:
        """Layout of `theta_c`, for `DualState`."""
        return f"copies in {'forests' if self.parts.n_forests else 'factors'}"

    def resume(self, problem: Problem, given: DualState) -> None:
        """Move potential between the copies as in an earlier run."""
        moved = given.values_for(problem, self.layout, len(self.state.theta_c))
        if moved is not None:
            places, n = _copied_states(problem, self.parts), problem.n_states
            mean = np.bincount(places, moved, n) / np.maximum(1, np.bincount(places, None, n))
            self.state.theta_c[:] += moved - mean[places]  # the sum stays exactly zero, in spite of round-off

    def moved(self, problem: Problem) -> DualState | None:
        """Return the potentials of the copies relative to even shares, for a warm start."""
        theta_c = self.state.theta_c
        if len(theta_c) > MOST_NUMBERS or self.rounds == 0:
            return None
        even = _even_shares(problem, self.parts)
        lost = np.where(np.isfinite(even), theta_c, 0.0) - np.where(np.isfinite(even), even, 0.0)
        return DualState.of(problem, self.layout, lost)

    @property
    def figures(self) -> Any:
        """The run's scalars, a record of type `FIGURES`."""
        return self.state.figures[0]

    @property
    def rounds(self) -> int:
        return int(self.figures.rounds)

    @property
    def labels(self) -> Ints:
        """The best labelling so far, or the majority's if none had a finite value."""
        found = self.state.best if self.figures.value > -np.inf else self.state.labels
        return np.array(found, dtype=np.int64)

    def advance(self, max_rounds: int) -> bool:
        n_rounds = min(self.chunk, max_rounds - self.rounds)
        roots = self.parts.roots if self.parts.n_forests else None
        return descend(self.subproblems, self.state, roots, n_rounds)

    def step(self, max_iterations: int) -> Progress:
        ended = self.advance(max_iterations)
        bound, value = float(self.figures.bound), float(self.figures.value)
        if bound == -np.inf:
            return Progress(self.rounds, bound=bound, finished=Status.INFEASIBLE)
        return Progress(
            self.rounds,
            labels=self.labels,
            value=value if value > -np.inf else None,
            bound=bound,
            finished=Status.CONVERGED if ended else None,
            extra={"primal": math.sqrt(self.figures.norm / max(1, len(self.parts.copies.at)))},
        )

    def answer(self, problem: Problem, *, last: bool = False) -> Answer:
        """Return the best labelling and the relaxed solution: its vertex if it is optimal, otherwise the averages."""
        # With `last`, the choices of the last round replace the averages.
        labels, bound = self.labels, float(self.figures.bound)
        subproblems = self.parts.n_forests or problem.n_factors
        details = {"subproblems": float(subproblems), "step_length": float(self.figures.length)}
        dual = self.moved(problem)
        if self.rounds == 0 or bound == -np.inf:
            return Answer(labels=labels, bound=bound, details=details, dual=dual)
        if self.figures.closed:
            mu_v, mu_f = integral(problem, labels)
        else:
            last = last or len(self.state.sum_f) < problem.n_configs
            mu_v, mu_f = self._last(problem) if last else self._averages(problem)
            # variables without factors are in their best states
            mu_v[(problem.graph.var_ptr[:-1] + self.state.labels)[problem.degree == 0]] = 1.0
        return Answer(labels, mu_v, mu_f, bound, details, dual)

    def _averages(self, problem: Problem) -> tuple[Floats, FactorMarginals]:
        """Return the choices averaged over this window of rounds and the last."""
        sums, total = self.state, float(self.figures.weight + self.figures.old_weight)
        mu_v = (sums.sum_v + sums.old_v) / total

        def mu_f(batch: Batch, rows: slice) -> Floats:
            size = batch.n_configs
            part = slice(batch.configs.start + rows.start * size, batch.configs.start + rows.stop * size)
            block: Floats = (sums.sum_f[part] + sums.old_f[part]) / total
            return block.reshape(-1, size)

        return mu_v, mu_f

    def _last(self, problem: Problem) -> tuple[Floats, FactorMarginals]:
        """Return the choices of the last round: the mean over every variable's copies, and every factor's entry."""
        n_copies = np.diff(self.parts.copies.ptr)
        owner = np.repeat(np.arange(problem.n_vars), n_copies)
        mu_v = np.zeros(problem.n_states)
        np.add.at(mu_v, problem.graph.var_ptr[owner] + self.state.label_c, 1.0 / n_copies[owner])
        chosen = np.empty(problem.n_factors, dtype=np.int64)
        chosen[self.parts.visit] = self.state.config

        def mu_f(batch: Batch, rows: slice) -> Floats:
            block = np.zeros((rows.stop - rows.start, batch.n_configs))
            block[np.arange(len(block)), chosen[batch.factors][rows]] = 1.0
            return block

        return mu_v, mu_f


def _copied_states(problem: Problem, parts: Decomposition) -> Ints:
    owner = np.repeat(np.arange(problem.n_vars), np.diff(parts.copies.ptr))
    return ranges(problem.graph.var_ptr[owner], parts.copies.card)


def _even_shares(problem: Problem, parts: Decomposition) -> Floats:
    n_copies = np.diff(parts.copies.ptr)
    each = np.repeat(np.repeat(n_copies, n_copies), parts.copies.card)
    return np.asarray(problem.graph.theta_v[_copied_states(problem, parts)] / each)


def unit_of(problem: Problem) -> float:
    """Return the typical size of a potential: the median loss of states and configurations against their best."""
    # If there are many factors with weights, a sample of them is used.
    graph = problem.graph
    theta_t, table_ptr, table_of = graph.theta_t, graph.table_ptr, graph.table_of
    step = 1
    if graph.weight is not None:
        # Table entries sampled to estimate the typical size of a potential if factors have weights
        step = 1 + problem.n_configs // 1_000_000
        sizes = np.diff(table_ptr)[table_of[::step]]
        theta_t = theta_t[ranges(table_ptr[table_of[::step]], sizes)] * np.repeat(graph.weight[::step], sizes)
        table_ptr, table_of = offsets(sizes), np.arange(len(sizes))
    lost = np.concatenate([_losses(graph.theta_v, graph.var_ptr), _losses(theta_t, table_ptr)])
    used = step * np.bincount(table_of, minlength=len(table_ptr) - 1)
    weight = np.concatenate([np.ones(len(graph.theta_v)), np.repeat(used, np.diff(table_ptr))])
    counts = (lost > 0) & np.isfinite(lost)
    lost, weight = lost[counts], weight[counts]
    if len(lost) == 0:
        return 1.0
    order = np.argsort(lost)
    total = np.cumsum(weight[order])
    return float(lost[order[np.searchsorted(total, 0.5 * total[-1])]])


def _losses(theta: Floats, ptr: Ints) -> Floats:
    best = segment_max(theta, ptr)
    return np.asarray(np.repeat(np.where(best > -np.inf, best, 0.0), np.diff(ptr)) - theta)


# -- Subgradient descent on the dual of a decomposition: votes of the copies, steps, averages and labellings ----------
# The potentials of a variable are distributed over its copies (`theta_c`); a subproblem labels each of its copies.
# Where the copies of a variable disagree, potential moves from the states that a copy chose to those that the
# others chose. The sum over the copies is invariant, so the subproblems' maxima always sum to a bound.

FigureRecord = Any  # a record of type `FIGURES`


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
    ptr, label_c, labels, mean_v = parts.copies.ptr, state.label_c, state.labels, state.sum_v
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
def try_candidate(parts: Subproblems, state: DescentState) -> None:
    """Evaluate one labelling per round, by the decoding rules in turn, and keep it if it is the best."""
    # The majority's, the largest entry of every variable's average (the first on ties), or that of a forest, completed
    # by the majority.
    figures, copies, candidate = state.figures[0], parts.copies, state.candidate
    mean, old = state.sum_v, state.old_v
    turn = figures.rounds
    way = state.ways[turn % len(state.ways)]
    if figures.norm == 0.0 or turn == 0:
        way = MAJORITY
    forest = (turn // len(state.ways)) % parts.n_forests
    for i in range(len(state.labels)):
        candidate[i] = state.labels[i]
        if way == AVERAGE and copies.ptr[i] < copies.ptr[i + 1]:
            at, end = parts.var_ptr[i], parts.var_ptr[i + 1]
            best = at
            for place in range(at + 1, end):
                if mean[place] + old[place] > mean[best] + old[best]:
                    best = place
            candidate[i] = best - at
        elif way == SUBPROBLEM:
            for c in range(copies.ptr[i], copies.ptr[i + 1]):
                if copies.forest[c] == forest:
                    candidate[i] = state.label_c[c]
    value = value_of(parts, candidate)
    if value > figures.value:
        figures.value = value
        for i in range(len(state.labels)):
            state.best[i] = candidate[i]


@bare
def step_length(figures: FigureRecord) -> float:
    """Update the step rule with the current dual value, and return the step length."""
    # The target of the level rule moves closer after rounds without progress; its steps have length 0 once the target
    # is so close that nothing is left to gain.
    length: float = 0.0
    if figures.rule == SQRT:
        if _stalled(figures, figures.slack):
            figures.step *= 0.5
        length = figures.unit * figures.step / np.sqrt(1.0 + figures.rounds)
    elif figures.rule == POLYAK and figures.value > -np.inf:
        length = figures.step * (figures.dual - figures.value) / figures.norm
    elif figures.rule == LEVEL:
        if figures.rounds == 0:
            figures.delta = min(figures.dual - figures.value, figures.unit * figures.norm)
        if _stalled(figures, 0.5 * figures.delta):
            figures.delta *= 0.5
        # Target of the level rule at which it stops, relative to the progress since the first round
        if not figures.delta <= 1e-7 * (figures.first - figures.bound):
            above = figures.dual - max(figures.value, figures.bound - figures.delta)
            length = figures.step * above / figures.norm
    else:
        length = figures.unit * figures.step / (1.0 + (figures.decay * figures.rounds) ** figures.exponent)
    return length


@inlined
def _stalled(figures: FigureRecord, aim: float) -> bool:
    """Return whether the bound has not improved by `aim` for `patience` rounds."""
    if figures.rounds == 0 or figures.bound <= figures.reference - aim:
        figures.reference = figures.bound
        figures.stalled = 0
        return False
    figures.stalled += 1
    if figures.stalled < figures.patience:
        return False
    figures.reference = figures.bound
    figures.stalled = 0
    return True


@bare
def move(parts: Subproblems, state: DescentState, length: float, weight: float) -> None:
    """Take a subgradient step; mark the factors whose potentials change, and add the round to the sums."""
    # Potential is taken from the states that a variable's copies chose and distributed over all copies.
    ptr, copy_at, var_ptr = parts.copies.ptr, parts.copies.at, parts.var_ptr
    label_c, theta_c, votes, seen = state.label_c, state.theta_c, state.votes, state.seen
    sum_v, sum_f, stale = state.sum_v, state.sum_f, state.stale
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
            sum_f[parts.config_at[v] + state.config[v]] += weight


@bare
def finish_round(dual: float, parts: Subproblems, state: DescentState) -> bool:
    """Finish a round: bound, votes, a labelling, and a step; return False if there was no step to take."""
    figures = state.figures[0]
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
    figures.closed = value > -np.inf and gap <= figures.tolerance * max(1.0, abs(value))
    length = 0.0
    if figures.norm > 0.0 and not figures.closed:
        length = step_length(figures)
    figures.length = length
    if figures.rounds >= figures.window:  # after 1, 2, 4, ... rounds a new window begins, and the last one is kept
        figures.window = 2 * figures.rounds + 1
        figures.old_weight = figures.weight
        figures.weight = 0.0
        for place in range(len(state.sum_v)):
            state.old_v[place] = state.sum_v[place]
            state.sum_v[place] = 0.0
        for place in range(len(state.sum_f)):
            state.old_f[place] = state.sum_f[place]
            state.sum_f[place] = 0.0
    # Averages weighted by the step lengths are consistent in the limit if the steps do not shrink too fast. Those of
    # the other rules do, and equal weights work better.
    by_length = length > 0.0 and (figures.rule == SQRT or figures.rule == DIMINISHING)
    weight = length if by_length else 1.0
    figures.weight += weight
    move(parts, state, length, weight)
    figures.rounds += 1
    return length > 0.0


@compiled
def descend(parts: Subproblems, state: DescentState, roots: Ints | None, n_rounds: int) -> bool:
    """Run rounds of subgradient descent; return whether nothing is left to do. Single factors have no `roots`."""
    for _ in range(n_rounds):
        dual = solve_factors(parts, state) if roots is None else solve_forests(parts, roots, state)
        if not finish_round(dual, parts, state):
            return True
    return False
