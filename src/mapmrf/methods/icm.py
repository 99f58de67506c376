"""ICM: iterated conditional modes, coordinate ascent over single variables."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numba import njit

from mapmrf.arrays import Bools, Floats, Ints, ranges, segment_argmax
from mapmrf.errors import OptionError
from mapmrf.problem import Problem
from mapmrf.result import Status
from mapmrf.solver import Answer, Method, Progress, Start

STEP_ENTRIES = 1_000_000
"""Table entries that one step looks at, at most: some milliseconds."""


@dataclass(frozen=True)
class ICM(Method):
    """Set one variable after another to its best state given all others, until no single change helps (ogm-ICM).

    Only variables with a changed neighbour are looked at again. A labelling that breaks fewer hard constraints (-inf
    entries) is better than any that breaks more; among equals the sum of the finite entries decides.

    Attributes
    ----------
    max_iterations
        Limit over all starts. An iteration is the work of one sweep: as many variables looked at as there are.
    starts
        Number of starts. The first is from the labelling given to `solve`, or from the best state of every variable by
        its unary potentials; all others are random.
    """

    name: ClassVar[str] = "icm"
    title: ClassVar[str] = "iterated conditional modes: single-variable ascent (ogm-ICM)"

    max_iterations: int = 1000
    starts: int = 1

    def __post_init__(self) -> None:
        for option in ("max_iterations", "starts"):
            if getattr(self, option) < 1:
                raise OptionError(f"icm: {option} is {getattr(self, option)}, expected at least 1")

    def start(self, problem: Problem, seed: int, initial: Start) -> _State:
        """Lay the factors out by variable and put every variable into the queue."""
        graph = problem.graph
        labels = initial.labels
        if labels is None:
            labels = segment_argmax(graph.theta_v, graph.var_ptr)
        state = _State.build(problem, np.random.default_rng(seed))
        state.restart(problem, labels)
        return state

    def step(self, problem: Problem, state: _State) -> Progress:
        """Look at queued variables until the queue is empty or some milliseconds have passed."""
        n = problem.n_vars
        if state.waiting[0] == 0 and n > 0:
            state.restart(problem, state.random.integers(0, problem.graph.card))
        state.ascend(problem, self.max_iterations * n - state.visits)
        rested = state.waiting[0] == 0
        state.ended += int(rested)
        finished = Status.CONVERGED if state.ended >= self.starts or n == 0 else None
        begun = n - 1 if finished else 0  # a sweep that ended early counts as well
        return Progress((state.visits + begun) // max(1, n), labels=state.labels.copy(), finished=finished)

    def answer(self, problem: Problem, state: _State) -> Answer:
        """The labelling where the last start stands."""
        return Answer(labels=state.labels, details={"starts": float(state.ended)})


@dataclass
class _State:
    """A run: the labels, what every factor contributes under them, and the variables yet to be looked at.

    Attributes
    ----------
    factor_of, stride_of
        The factor, and the variable's stride in its table, of every edge; laid out by variable like `problem.nbr`.
    place : (n_factors,)
        Entry of `theta_t` that every factor takes now.
    queue, queued, waiting
        A ring of variables, whether a variable is in it, and (length, head) of the ring.
    broken, score
        Scratch: hard entries and finite sum of every state of a variable.
    """

    factor_of: Ints
    stride_of: Ints
    place: Ints
    labels: Ints
    queue: Ints
    queued: Bools
    waiting: Ints
    broken: Ints
    score: Floats
    random: np.random.Generator
    visits: int = 0
    ended: int = 0

    @classmethod
    def build(cls, problem: Problem, random: np.random.Generator) -> _State:
        """Allocate everything that the kernel works on."""
        graph = problem.graph
        arity = np.diff(problem.scope_ptr)
        owner = np.repeat(np.arange(problem.n_factors), arity)
        widest = int(graph.card.max(initial=1))
        return cls(
            factor_of=owner[problem.nbr],
            stride_of=graph.stride[ranges(graph.scope_ptr[problem.order], arity)][problem.nbr],
            place=np.zeros(problem.n_factors, dtype=np.int64),
            labels=np.zeros(problem.n_vars, dtype=np.int64),
            queue=np.arange(problem.n_vars),
            queued=np.ones(problem.n_vars, dtype=bool),
            waiting=np.array([problem.n_vars, 0]),
            broken=np.zeros(widest, dtype=np.int64),
            score=np.zeros(widest),
            random=random,
        )

    def restart(self, problem: Problem, labels: Ints) -> None:
        """Begin anew at a labelling, with every variable in the queue."""
        self.labels[:] = labels
        self.place[:] = problem.table_at
        moved = self.stride_of * np.repeat(self.labels, problem.degree)
        np.add.at(self.place, self.factor_of, moved)
        self.queue[:] = np.arange(problem.n_vars)
        self.queued[:] = True
        self.waiting[:] = problem.n_vars, 0

    def ascend(self, problem: Problem, max_visits: int) -> None:
        """Run the kernel for a step."""
        graph = problem.graph
        self.visits += ascend(
            graph.card,
            graph.var_ptr,
            graph.theta_v,
            graph.theta_t,
            problem.nbr_ptr,
            problem.scope_ptr,
            problem.scope,
            self.factor_of,
            self.stride_of,
            self.place,
            self.labels,
            self.queue,
            self.queued,
            self.waiting,
            self.broken,
            self.score,
            max_visits,
            STEP_ENTRIES,
        )


# -- kernels ----------------------------------------------------------------------------------------------------------


@njit(cache=True, nogil=True)
def score_states(
    i: int, label: int, card: Ints, var_ptr: Ints, theta_v: Floats, theta_t: Floats, nbr_ptr: Ints,
    factor_of: Ints, stride_of: Ints, place: Ints, broken: Ints, score: Floats,
) -> None:  # fmt: skip
    """Hard entries and finite sum that every state of variable `i` would have, all other variables as they are."""
    for k in range(card[i]):
        theta = theta_v[var_ptr[i] + k]
        hard = theta == -np.inf
        broken[k] = 1 if hard else 0
        score[k] = 0.0 if hard else theta
    for e in range(nbr_ptr[i], nbr_ptr[i + 1]):
        stride = stride_of[e]
        at = place[factor_of[e]] - stride * label
        for k in range(card[i]):
            theta = theta_t[at + k * stride]
            if theta == -np.inf:
                broken[k] += 1
            else:
                score[k] += theta


@njit(cache=True, nogil=True)
def best_state(label: int, n_states: int, broken: Ints, score: Floats) -> int:
    """The state to move to: the present one unless another breaks less, or as much and scores higher."""
    best = label
    for k in range(n_states):
        if broken[k] < broken[best]:
            best = k
        elif broken[k] == broken[best]:
            # A margin above round-off, so that equal states do not take turns for ever.
            margin = 1e-13 * (abs(score[k]) + abs(score[best]))
            if score[k] > score[best] + margin:
                best = k
    return best


@njit(cache=True, nogil=True)
def ascend(
    card: Ints, var_ptr: Ints, theta_v: Floats, theta_t: Floats, nbr_ptr: Ints, scope_ptr: Ints, scope: Ints,
    factor_of: Ints, stride_of: Ints, place: Ints, labels: Ints, queue: Ints, queued: Bools, waiting: Ints,
    broken: Ints, score: Floats, max_visits: int, max_entries: int,
) -> int:  # fmt: skip
    """Look at queued variables until none is left or a budget is spent; return how many were looked at."""
    n = len(queue)
    length, head = waiting[0], waiting[1]
    visits = 0
    entries = 0
    while length > 0 and visits < max_visits and entries < max_entries:
        i = queue[head]
        head = head + 1 if head + 1 < n else 0
        length -= 1
        queued[i] = False
        visits += 1
        entries += card[i] * (1 + nbr_ptr[i + 1] - nbr_ptr[i])
        old = labels[i]
        score_states(i, old, card, var_ptr, theta_v, theta_t, nbr_ptr, factor_of, stride_of, place, broken, score)
        new = best_state(old, card[i], broken, score)
        if new == old:
            continue
        labels[i] = new
        for e in range(nbr_ptr[i], nbr_ptr[i + 1]):
            a = factor_of[e]
            place[a] += stride_of[e] * (new - old)
            for j_at in range(scope_ptr[a], scope_ptr[a + 1]):
                j = scope[j_at]
                if j != i and not queued[j]:
                    queued[j] = True
                    tail = head + length
                    queue[tail if tail < n else tail - n] = j
                    length += 1
    waiting[0], waiting[1] = length, head
    return visits
