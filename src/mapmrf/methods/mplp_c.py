"""MPLP-C: MPLP on a relaxation that is tightened by clusters wherever that lowers the bound."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import ClassVar, get_args

import numpy as np

from mapmrf.engines.messages.clusters import Clusters
from mapmrf.engines.messages.cycles import Search
from mapmrf.engines.messages.mplp import ROUND_OFF, Dual, Order, Primal, Run, Schedule
from mapmrf.method import Answer, Method, Progress, Start
from mapmrf.options import check_above, check_at_least, check_choice
from mapmrf.problem import Problem
from mapmrf.result import Status

FLOOR = 1e-7
"""Part of the gap that a cluster must gain at once to be worth adding."""
MIN_WANTED = 10
"""Clusters that a round asks for on the smallest models."""
MAX_FAILED = 10
"""Searches in a row that may find nothing before the run counts as converged."""
OVER = object()
"""What a search that is over gives instead of None."""


@dataclass(frozen=True)
class MPLPC(Method):
    """Lower the dual bound as MPLP does, and add clusters where the relaxation is loose (the paper's MPLP-C).

    Clusters are cycles of pairs that must agree as a whole. Whenever the bound stalls, cycles are searched that would
    lower it at once: triangles and cycles of four directly, longer ones as frustrated cycles of the projected graph.
    Long cycles are cut into triangles with additional pairs. Messages go on from where they were. Factors of more than
    two variables are lifted on to pairs of their variables where a cluster needs that. Labels are decoded as in MPLP.

    Attributes
    ----------
    max_iterations
        Passes over all clusters and factors.
    tol
        The run has converged when no cluster is found and an iteration closes less than this part of the gap.
    order
        Order of the factors in a pass: ``variables`` (by the last, then the first variable of the scope), ``model`` (as
        given), or ``random`` (by the seed).
    schedule
        ``alternate`` goes through clusters and factors forward and backward in turn, ``forward`` always forward.
    decode_every
        Iterations between two evaluations of the bound with decoding of labels.
    triplets
        Whether triangles and chordless cycles of four of the model are candidates by themselves.
    cycles
        Whether frustrated cycles are searched in the projected graph.
    whole
        Longest cycle that is a cluster as a whole; longer ones are cut into triangles.
    max_length
        Longest cycle that is searched.
    projections
        States per variable (those of highest belief) that the projected graph tells from the others.
    first_iterations, round_iterations
        Iterations before the first search, and from one search to the next, at most.
    patience
        A search begins early when an iteration closes less than this part of the gap.
    per_round
        Cycles added in a round, as a part of the number of the model's pairs.
    max_entries
        Limit on the table entries of all clusters.

    Examples
    --------
    >>> import mapmrf
    >>> from mapmrf.datasets import grid
    >>> graph = grid(6, 6, coupling=2.0, seed=1)
    >>> mapmrf.solve(graph, "mplp").status.value, mapmrf.solve(graph, "mplp_c").status.value  # clusters close the gap
    ('converged', 'optimal')
    """

    name: ClassVar[str] = "mplp_c"
    title: ClassVar[str] = "dual descent with clusters that tighten the relaxation (MPLP-C)"
    gives_bound: ClassVar[bool] = True
    exact_on_trees: ClassVar[bool] = True

    max_iterations: int = 1000
    tol: float = 1e-7
    order: Order = "variables"
    schedule: Schedule = "alternate"
    decode_every: int = 10
    triplets: bool = True
    cycles: bool = True
    whole: int = 4
    max_length: int = 32
    projections: int = 4
    first_iterations: int = 1000
    round_iterations: int = 50
    patience: float = 0.0005
    per_round: float = 0.03
    max_entries: int = 20_000_000

    def __post_init__(self) -> None:
        check_at_least(self, 1, "max_iterations", "decode_every", "projections", "first_iterations", "round_iterations")
        check_at_least(self, 0, "tol", "patience", "max_entries")
        check_at_least(self, 3, "whole", "max_length")
        check_above(self, 0, "per_round")
        check_choice(self, "order", get_args(Order))
        check_choice(self, "schedule", get_args(Schedule))

    def start(self, problem: Problem, seed: int, initial: Start) -> _State:
        """Zero messages, but for hanging trees, and no clusters."""
        dual = Dual.build(problem, self.order, self.schedule, seed)
        return _State(
            dual, Primal(problem, initial), random=np.random.default_rng(seed), tighten_at=self.first_iterations
        )

    def step(self, problem: Problem, state: _State) -> Progress:
        """Pass messages, or search for clusters, for some milliseconds."""
        if state.searching is not None:
            self.tighten(state)
            return Progress(state.iterations, phase="search")
        if not state.advance(self.max_iterations):
            return Progress(state.iterations, phase="messages")
        fall = state.look(self.decode_every)
        labels, value = state.primal.labels, state.primal.value
        progress = Progress(state.iterations, labels=labels, value=value, bound=state.bound, phase="messages")
        if state.bound == -math.inf:
            progress.finished = Status.INFEASIBLE
        elif state.trivial or (state.failed > MAX_FAILED and state.has_converged(fall, self.tol)):
            progress.finished = Status.CONVERGED
        elif state.iterations >= state.tighten_at or state.has_converged(
            fall, self.tol if state.failed else self.patience
        ):
            self.search(state)
        return progress

    def search(self, state: _State) -> None:
        """Begin to look for clusters."""
        if state.clusters is None or state.hunt is None:
            state.clusters = Clusters.build(state.dual, self.max_entries)
            state.hunt = Search(state.clusters, self.triplets, self.cycles, self.projections, self.max_length)
            if state.clusters.n_lifts:  # pairs without messages tell nothing yet
                state.tighten_at, state.work = state.iterations + self.round_iterations, 0
                return
        wanted = max(MIN_WANTED, int(self.per_round * state.clusters.n_model_pairs))
        gap = state.gap if state.gap < math.inf else abs(state.bound)
        # The search may take about as long as the messages of a round.
        max_work = (state.iterations - state.searched_at) * state.work // 4
        state.searched_at = state.iterations
        # Where nothing gains at once, cycles may still do so together.
        floor = (ROUND_OFF if state.failed else FLOOR) * gap
        state.searching = state.hunt.run(wanted, floor, max_work)

    def tighten(self, state: _State) -> None:
        """Go on with the search; when it is over, add what it found."""
        clusters, hunt = state.clusters, state.hunt
        assert clusters is not None and hunt is not None and state.searching is not None
        if next(state.searching, OVER) is not OVER:
            return
        state.searching, state.work = None, 0
        found = clusters.fitting(hunt.found, self.max_entries)
        added = clusters.add([cycle for cycle in found if len(cycle[0]) <= self.whole])
        added += clusters.add(clusters.triangles([cycle for cycle in found if len(cycle[0]) > self.whole]))
        state.rounds += 1
        state.failed = 0 if added else state.failed + 1
        if added == 0 and clusters.n_cycles:  # another point of rest may show what can be gained
            clusters.share_unequally(state.random)
        state.tighten_at = state.iterations + self.round_iterations

    def answer(self, problem: Problem, state: _State) -> Answer:
        """The best labelling; the loop has the bound."""
        details = {"rounds": float(state.rounds), "clusters": 0.0, "pairs_added": 0.0}
        if state.clusters is not None:
            details |= {"clusters": float(state.clusters.n_cycles), "pairs_added": float(state.clusters.n_added)}
        return Answer(labels=state.primal.labels, details=details)


@dataclass
class _State(Run):
    """A run: messages and labels as in MPLP, the clusters, and the search for more.

    Attributes
    ----------
    searching
        The search under way, if any.
    tighten_at
        Iteration at which the next search begins, at the latest.
    searched_at
        Iteration of the last search.
    failed
        How many searches in a row found nothing.
    """

    random: np.random.Generator = field(default_factory=np.random.default_rng)
    clusters: Clusters | None = None
    hunt: Search | None = None
    searching: Iterator[None] | None = None
    tighten_at: int = 0
    searched_at: int = 0
    rounds: int = 0
    failed: int = 0

    def work_per_pass(self) -> int:
        """Table entries that one iteration goes through."""
        return super().work_per_pass() if self.clusters is None else self.clusters.work_per_pass()

    def passes(self, end: int) -> None:
        """Do the iterations up to `end`."""
        (self.dual if self.clusters is None else self.clusters).passes(self.iterations, end)

    def evaluate(self) -> float:
        """The dual's value."""
        return (self.dual if self.clusters is None else self.clusters).bound()
