"""MPLP-C: MPLP on a relaxation that is tightened by clusters where that lowers the bound."""

from __future__ import annotations

import math
from collections.abc import Generator
from dataclasses import dataclass
from typing import Annotated, ClassVar

import numpy as np

from mapmrf.engines.messages.cluster_search import ClusterSearch
from mapmrf.engines.messages.clusters import Clusters, Cycle
from mapmrf.engines.messages.mplp import ROUND_OFF, Dual, DualDescent, FactorOrder, PassDirection
from mapmrf.engines.moves.ascending_incumbent import ClimbingIncumbent
from mapmrf.model.problem import Problem
from mapmrf.run.method import (
    Answer,
    NonNegativeFloat,
    NonNegativeInt,
    PhasedRun,
    Phases,
    PositiveFloat,
    PositiveInt,
    Progress,
    Range,
    Start,
)
from mapmrf.run.result import Status


@dataclass(frozen=True)
class MPLPC(Phases):
    """Lower the dual bound as MPLP does, and add clusters where the relaxation is loose (the paper's MPLP-C).

    Clusters enforce consistency over cycles of pairs. When the bound stalls, cycles that would lower it at once are
    searched: triangles and 4-cycles directly, longer ones as frustrated cycles of the projected graph. Long cycles are
    triangulated with additional pairs. Messages are kept when clusters are added. Factors of more than two variables
    are lifted to pairs of their variables where a cluster needs that. Labels are decoded as in MPLP.

    Attributes
    ----------
    max_iterations
        Maximum number of passes over all clusters and factors.
    tol
        The run has converged when no cluster is found and an iteration closes less than this share of the gap.
    order
        Order of the factors in a pass: ``variables`` (by the last, then the first variable of the scope), ``model`` (as
        given), or ``random`` (seeded).
    schedule
        ``alternate`` visits clusters and factors alternately forward and backward, ``forward`` always forward.
    decode_every
        Iterations between evaluations of the bound and decodings of labels.
    triplets
        Search all triangles and chordless 4-cycles of the model directly.
    cycles
        Search for frustrated cycles in the projected graph.
    whole
        Longest cycle that becomes a single cluster; longer ones are triangulated.
    max_length
        Maximum length of the cycles searched.
    projections
        States per variable (those of highest belief) that the projected graph distinguishes from the others.
    first_iterations, round_iterations
        Maximum number of iterations before the first search, and between searches.
    patience
        A search begins early when an iteration closes less than this share of the gap.
    per_round
        Cycles added per round, as a fraction of the model's pairs.
    max_entries
        Maximum number of table entries over all clusters.

    Examples
    --------
    >>> import mapmrf
    >>> graph = mapmrf.datasets.grid(6, 6, coupling=2.0, seed=1)
    >>> mapmrf.solve(graph, "mplp").status.value, mapmrf.solve(graph, "mplp_c").status.value  # clusters close the gap
    ('converged', 'optimal')
    """

    name: ClassVar[str] = "mplp_c"
    title: ClassVar[str] = "dual descent with clusters that tighten the relaxation (MPLP-C)"
    family: ClassVar[str] = "message passing"
    gives_bound: ClassVar[bool] = True
    exact_on_trees: ClassVar[bool] = True

    max_iterations: PositiveInt = 1000
    tol: NonNegativeFloat = 1e-7
    order: FactorOrder = "variables"
    schedule: PassDirection = "alternate"
    decode_every: PositiveInt = 10
    triplets: bool = True
    cycles: bool = True
    whole: Annotated[int, Range(3)] = 4
    max_length: Annotated[int, Range(3)] = 32
    projections: PositiveInt = 4
    first_iterations: PositiveInt = 1000
    round_iterations: PositiveInt = 50
    patience: NonNegativeFloat = 0.0005
    per_round: PositiveFloat = 0.03
    max_entries: NonNegativeInt = 20_000_000

    def start(self, problem: Problem, seed: int, initial: Start) -> MPLPCRun:
        """Start with zero messages except in pendant trees, and without clusters."""
        dual = Dual.build(problem, self.order, self.schedule, seed)
        return MPLPCRun(self, DualDescent(dual, ClimbingIncumbent(problem, initial)), np.random.default_rng(seed))


class MPLPCRun(PhasedRun):
    """A run that alternates between message passing until the bound stalls and searching for clusters."""

    def __init__(self, method: MPLPC, descent: DualDescent, random: np.random.Generator) -> None:
        super().__init__()
        # descent: messages and labels, as in MPLP
        self.method, self.descent, self.random = method, descent, random
        # clusters, searcher: the clusters, and the search for more; None before the first search
        self.clusters: Clusters | None = None
        self.searcher: ClusterSearch | None = None
        # search_at, searched_at: iteration at which the next search begins at the latest, and that of the last search
        self.search_at, self.searched_at = method.first_iterations, 0
        # rounds, failed: number of searches, and of the latest consecutive ones that found nothing
        self.rounds = self.failed = 0

    def run(self) -> Generator[Progress, None, None]:
        """Alternate between message passing and searches; the loop ends a run that does not converge."""
        while True:
            yield from self.pass_messages()
            if self.searcher is None:
                self.searcher = self.first_search()
                if self.searcher.clusters.n_lifts:  # the pairs of lifted factors have no messages yet
                    self.schedule_search()
                    continue
            yield from self.search(self.searcher)

    def pass_messages(self) -> Generator[Progress, None, None]:
        """Pass messages until a search for clusters is due, or nothing is left to do."""
        method, descent = self.method, self.descent
        searching = False
        while not searching:
            if not descent.advance(method.max_iterations):
                yield Progress(descent.iterations, phase="messages")
                continue
            decrease = descent.measure(method.decode_every)
            progress = descent.progress("messages")
            if descent.bound == -math.inf:
                progress.finished = Status.INFEASIBLE
            # Number of unsuccessful searches in a row after which the run has converged
            elif descent.trivial or (self.failed > 10 and descent.has_converged(decrease, method.tol)):
                progress.finished = Status.CONVERGED
            tol = method.tol if self.failed else method.patience
            searching = descent.iterations >= self.search_at or descent.has_converged(decrease, tol)
            yield progress

    def first_search(self) -> ClusterSearch:
        """Switch to message passing with clusters, of which there are none yet."""
        method, descent = self.method, self.descent
        self.clusters = Clusters(descent.dual, method.max_entries)
        descent.function = self.clusters
        return ClusterSearch(self.clusters, method.triplets, method.cycles, method.projections, method.max_length)

    def search(self, searcher: ClusterSearch) -> Generator[Progress, None, None]:
        """Search for cycles that would lower the bound, and add them as clusters."""
        descent, clusters = self.descent, searcher.clusters
        # Clusters requested per round on the smallest models
        wanted = max(10, int(self.method.per_round * clusters.n_model_pairs))
        gap = descent.gap if descent.gap < math.inf else abs(descent.bound)
        # The search may take about as long as the message passing of a round.
        max_work = (descent.iterations - self.searched_at) * descent.work // 4
        self.searched_at = descent.iterations
        # Where no cycle gains on its own, several may do so together.
        # Share of the gap by which a cluster must lower the bound at once to be added
        floor = (ROUND_OFF if self.failed else 1e-7) * gap
        for _ in searcher.run(wanted, floor, max_work):
            yield Progress(descent.iterations, phase="search")
        self.tighten(clusters, searcher.found)
        yield Progress(descent.iterations, phase="search")

    def tighten(self, clusters: Clusters, cycles: list[Cycle]) -> None:
        """Add clusters for the cycles found, or shift the messages to another fixed point if there are none."""
        method = self.method
        found = clusters.fitting(cycles, method.max_entries)
        added = clusters.add([cycle for cycle in found if len(cycle[0]) <= method.whole])
        added += clusters.add(clusters.triangles([cycle for cycle in found if len(cycle[0]) > method.whole]))
        self.rounds += 1
        self.failed = 0 if added else self.failed + 1
        if added == 0 and clusters.cycles.n:
            clusters.share_unequally(self.random)
        self.schedule_search()

    def schedule_search(self) -> None:
        """Schedule the next search after a round of message passing on the new clusters."""
        self.search_at = self.descent.iterations + self.method.round_iterations
        self.descent.work = 0

    def answer(self) -> Answer:
        details = {"rounds": float(self.rounds), "clusters": 0.0, "pairs_added": 0.0}
        if self.clusters is not None:
            details |= {"clusters": float(self.clusters.cycles.n), "pairs_added": float(self.clusters.n_added)}
        return Answer(labels=self.descent.labelling.labels, details=details)
