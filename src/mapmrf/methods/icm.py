"""ICM: iterated conditional modes, coordinate ascent over single variables."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, Literal, get_args

import numpy as np
from numba import njit

from mapmrf.arrays import Bools, Floats, Ints, segment_argmax
from mapmrf.options import check_at_least, check_choice
from mapmrf.problem import Problem
from mapmrf.result import Status
from mapmrf.solver import Answer, Method, Progress, Start

Init = Literal["unary", "zeros"]

STEP_ENTRIES = 3_000_000
"""Table entries that one step looks at, at most: some 40 ms."""


@dataclass(frozen=True)
class ICM(Method):
    """Set one variable after another to its best state given all others, until no single change helps (ogm-ICM).

    Variables are taken in their order, round and round, but only those with a changed neighbour are looked at again:
    the order of OpenGM's ICM, whose figures in the paper are those of ``init="zeros"``. A labelling that breaks fewer
    hard constraints (-inf entries) is better than any that breaks more; among equals the finite entries decide.

    Attributes
    ----------
    max_iterations
        Limit over all starts. An iteration is the work of one sweep: as many variables looked at as there are.
    starts
        Number of starts. The first is from the labelling given to `solve`, or else from `init`; all others are random.
    init
        ``unary``, the best state of every variable by its unary potentials, or ``zeros``.

    Examples
    --------
    >>> import mapmrf
    >>> from mapmrf.datasets import grid
    >>> graph = grid(6, 6, coupling=2.0, seed=1)
    >>> mapmrf.solve(graph, mapmrf.ICM(starts=20)).value > mapmrf.solve(graph, "icm").value
    True
    """

    name: ClassVar[str] = "icm"
    title: ClassVar[str] = "iterated conditional modes: single-variable ascent (ogm-ICM)"

    max_iterations: int = 1000
    starts: int = 1
    init: Init = "unary"

    def __post_init__(self) -> None:
        check_choice(self, "init", get_args(Init))
        check_at_least(self, 1, "max_iterations", "starts")

    def start(self, problem: Problem, seed: int, initial: Start) -> _State:
        """Lay the factors out by variable and mark every variable."""
        graph = problem.graph
        labels = initial.labels
        if labels is None and self.init == "zeros":
            labels = np.zeros(problem.n_vars, dtype=np.int64)
        elif labels is None:
            labels = segment_argmax(graph.theta_v, graph.var_ptr)
        state = _State.build(problem, np.random.default_rng(seed))
        state.restart(problem, labels)
        return state

    def step(self, problem: Problem, state: _State) -> Progress:
        """Look at marked variables until there is none or some milliseconds have passed."""
        n = problem.n_vars
        if state.cursor[0] == 0 and n > 0:
            state.restart(problem, state.random.integers(0, problem.graph.card))
        state.ascend(problem, self.max_iterations * n - state.visits)
        state.ended += int(state.cursor[0] == 0)
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
    marked, marks_in
        Whether a variable is yet to be looked at, and how many such there are in each block of `block` variables.
    cursor
        How many are marked in all, and the variable to go on from.
    broken, score
        Scratch: hard entries and finite sum of every state of a variable.
    """

    factor_of: Ints
    stride_of: Ints
    place: Ints
    labels: Ints
    marked: Bools
    marks_in: Ints
    cursor: Ints
    broken: Ints
    score: Floats
    block: int
    random: np.random.Generator
    visits: int = 0
    ended: int = 0

    @classmethod
    def build(cls, problem: Problem, random: np.random.Generator) -> _State:
        """Allocate everything that the kernel works on."""
        graph = problem.graph
        widest = int(graph.card.max(initial=1))
        block = 1 + math.isqrt(problem.n_vars)
        return cls(
            factor_of=problem.edge_factor[problem.nbr],
            stride_of=problem.edge_stride[problem.nbr],
            place=np.zeros(problem.n_factors, dtype=np.int64),
            labels=np.zeros(problem.n_vars, dtype=np.int64),
            marked=np.zeros(problem.n_vars, dtype=bool),
            marks_in=np.zeros(block, dtype=np.int64),
            cursor=np.zeros(2, dtype=np.int64),
            broken=np.zeros(widest, dtype=np.int64),
            score=np.zeros(widest),
            block=block,
            random=random,
        )

    def restart(self, problem: Problem, labels: Ints) -> None:
        """Begin anew at a labelling, with every variable marked."""
        self.labels[:] = labels
        self.place[:] = problem.table_at
        moved = self.stride_of * np.repeat(self.labels, problem.degree)
        np.add.at(self.place, self.factor_of, moved)
        self.marked[:] = True
        self.marks_in[:] = np.bincount(np.arange(problem.n_vars) // self.block, minlength=len(self.marks_in))
        self.cursor[:] = problem.n_vars, 0

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
            self.marked,
            self.marks_in,
            self.cursor,
            self.broken,
            self.score,
            self.block,
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
def next_marked(i: int, marked: Bools, marks_in: Ints, block: int) -> int:
    """The first marked variable from `i` on, round the end; there must be one. Blocks without marks are skipped."""
    n = len(marked)
    i = i if i < n else 0
    while not marked[i]:
        b = i // block
        i = i + 1 if marks_in[b] > 0 else (b + 1) * block
        i = i if i < n else 0
    return i


@njit(cache=True, nogil=True)
def ascend(
    card: Ints, var_ptr: Ints, theta_v: Floats, theta_t: Floats, nbr_ptr: Ints, scope_ptr: Ints, scope: Ints,
    factor_of: Ints, stride_of: Ints, place: Ints, labels: Ints, marked: Bools, marks_in: Ints, cursor: Ints,
    broken: Ints, score: Floats, block: int, max_visits: int, max_entries: int,
) -> int:  # fmt: skip
    """Look at marked variables until none is left or a budget is spent; return how many were looked at."""
    n_marked, i = cursor[0], cursor[1]
    visits = 0
    entries = 0
    while n_marked > 0 and visits < max_visits and entries < max_entries:
        i = next_marked(i, marked, marks_in, block)
        marked[i] = False
        marks_in[i // block] -= 1
        n_marked -= 1
        visits += 1
        entries += card[i] * (1 + nbr_ptr[i + 1] - nbr_ptr[i])
        old = labels[i]
        score_states(i, old, card, var_ptr, theta_v, theta_t, nbr_ptr, factor_of, stride_of, place, broken, score)
        new = best_state(old, card[i], broken, score)
        if new != old:
            labels[i] = new
            for e in range(nbr_ptr[i], nbr_ptr[i + 1]):
                a = factor_of[e]
                place[a] += stride_of[e] * (new - old)
                for j_at in range(scope_ptr[a], scope_ptr[a + 1]):
                    j = scope[j_at]
                    if j != i and not marked[j]:
                        marked[j] = True
                        marks_in[j // block] += 1
                        n_marked += 1
        i += 1
    cursor[0], cursor[1] = n_marked, i
    return visits
