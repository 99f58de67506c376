"""Branch: exact maximisation by bucket elimination, or by AND/OR branch and bound with mini-bucket bounds."""

from __future__ import annotations

import math
import sys
from collections.abc import Generator, Iterator
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from mapmrf.arrays import Ints
from mapmrf.engines.elimination.and_or import AndOrSearch
from mapmrf.engines.elimination.elimination import BucketTree, Elimination, Functions
from mapmrf.engines.elimination.join_graph import JoinGraph
from mapmrf.engines.elimination.mini_buckets import (
    BucketPartition,
    CostShifting,
    MiniBuckets,
    find_partition,
    largest_partition,
)
from mapmrf.engines.elimination.orders import Order, PrimalGraph, fill_orders, front_orders
from mapmrf.engines.moves.blocks import BlockMoves
from mapmrf.engines.moves.local_search import LocalSearch
from mapmrf.engines.reduction.simplify import Simplified, simplify
from mapmrf.model.graph import FactorGraph
from mapmrf.model.problem import Problem
from mapmrf.run import pace
from mapmrf.run.incumbent import Incumbent
from mapmrf.run.method import Answer, NonNegativeInt, PhasedRun, Phases, PositiveFloat, PositiveInt, Progress, Start
from mapmrf.run.result import Status

STEP_LOOK_UPS = 3_000_000  # table look-ups of the search per step: some 30 ms
CACHE_SHARE = 0.25  # share of the memory reserved for the cache

FIRST_SHARE = 1 / 64
"""Share of the memory for the first search: on many models it is enough, and avoids building large tables."""

FIRST_STEPS = 10  # steps of the first search
MOVES_BESIDE = 2  # block moves after each step of the search
TRIALS_BESIDE = 200  # perturbations of local search after each step of the search
SMALL_GAIN = 1e-3  # share of the gap that a pass of cost shifting must close for another pass to follow


@dataclass(frozen=True)
class Branch(Phases):
    """Solve exactly by bucket elimination where the tables fit into memory, else by AND/OR branch and bound (DAOOPT).

    Attributes
    ----------
    max_iterations
        Maximum number of buckets eliminated and nodes expanded, in total.
    memory
        Memory in megabytes for tables and cache. A model whose tables fit is eliminated; otherwise this limits the
        mini-buckets.
    i_bound
        Largest number of variables in the message of a mini-bucket; 0 for as many as the memory allows. Above 0, the
        model is searched even if it could be eliminated.
    restarts
        Number of elimination orders to try: min-fill with random ties, unweighted and weighted. Fewer on large models.
    sweeps
        Passes of cost shifting, forward and backward, before the mini-buckets are built; they end early if the bound
        stalls.
    join_sweeps
        Passes of cost shifting on the join graph of small mini-buckets, from which larger ones are then built (JGLP).
    caching
        Cache solved subproblems by their context.
    local_search
        Effort of local search before branch and bound: perturbations per variable, and how often, on average, a
        variable is in a block that is optimised given its surroundings.

    Examples
    --------
    >>> import mapmrf
    >>> result = mapmrf.solve(mapmrf.datasets.grid(6, 6, coupling=2.0, seed=1), mapmrf.Branch(memory=64))
    >>> round(result.value, 6), result.status.value
    (55.647253, 'optimal')
    """

    name: ClassVar[str] = "branch"
    title: ClassVar[str] = "exact: elimination or AND/OR branch and bound with mini-buckets (DAOOPT)"
    family: ClassVar[str] = "exact"
    gives_bound: ClassVar[bool] = True
    exact: ClassVar[bool] = True
    exact_on_trees: ClassVar[bool] = True

    max_iterations: PositiveInt = sys.maxsize
    memory: PositiveFloat = 1024.0
    i_bound: NonNegativeInt = 0
    restarts: PositiveInt = 10
    sweeps: NonNegativeInt = 50
    join_sweeps: NonNegativeInt = 20
    caching: bool = True
    local_search: NonNegativeInt = 20

    def within(self, graph: FactorGraph, left: float) -> Branch:
        rest = left - (self.footprint(graph) or 0.0)
        return replace(self, memory=min(self.memory, max(1.0, rest / 2**20)))

    def start(self, problem: Problem, seed: int, initial: Start) -> BranchRun:
        return BranchRun(self, simplify(problem), seed, initial)


class BranchRun(PhasedRun):
    def __init__(self, method: Branch, small: Simplified, seed: int, initial: Start) -> None:
        super().__init__()
        # small, problem: the simplification, and the simplified model
        self.method, self.small, self.seed = method, small, seed
        self.problem = small.problem
        warm = initial if initial.labels is None else Start(small.project(initial.labels))
        labels = warm.first_labels(self.problem.graph)
        self.incumbent = Incumbent(self.problem.graph, labels)  # the best labelling and bound of the simplified model
        self.local = LocalSearch(self.problem, labels, seed)
        # constant part of all values, outside the functions that are searched
        self.constant = self.problem.graph.constant
        self.iterations = 0
        self.details = small.counts.details()

    def answer(self) -> Answer:
        labels = self.small.lift(self.incumbent.labels) if self.small.feasible else None
        return Answer(labels=labels, details=dict(self.details))

    def inform(self, labels: Ints) -> None:
        self.incumbent.offer(self.small.project(labels))

    def progress(self, phase: str, finished: Status | None = None) -> Progress:
        bound = self.incumbent.bound if self.incumbent.bound < math.inf else None
        labels = self.small.lift(self.incumbent.labels)
        return Progress(self.iterations, labels=labels, bound=bound, finished=finished, phase=phase)

    def run(self) -> Generator[Progress, None, None]:
        if not self.small.feasible:
            yield Progress(0, labels=self.small.labels, bound=-math.inf, finished=Status.INFEASIBLE)
            return
        yield from self.descend()
        shifting = self.cost_shifting()
        if shifting is not None:
            yield from self.shift(shifting)
        graph, card = PrimalGraph.of(self.problem), self.problem.graph.card
        by_fill = yield from self.order_by_fill(graph, card)
        order = min((by_fill, *front_orders(graph, card)), key=Order.cost)
        tree = BucketTree.build(graph, card, order)
        self.details |= {"width": float(order.width), "variables": float(tree.n)}
        if self.method.i_bound == 0 and Elimination.bytes_needed(tree) <= self.memory:
            yield from self.eliminate(tree)
        else:
            yield from self.branch(BucketTree.build(graph, card, by_fill), graph, shifting)

    def order_by_fill(self, graph: PrimalGraph, card: Ints) -> Generator[Progress, None, Order]:
        best = Order(np.arange(graph.n), 0, 0, math.inf)
        for found in fill_orders(graph, card, self.seed, self.method.restarts):
            best = found if found.better_than(best) else best
            yield self.progress("order")
        return best

    @property
    def memory(self) -> float:
        """Bytes for tables and cache."""
        return self.method.memory * 2**20

    # -- local search -------------------------------------------------------------------------------------------------

    def search_locally(self, entries: int, max_trials: int) -> None:
        self.local.run(entries, max_trials)
        self.incumbent.offer(self.local.incumbent.labels, self.local.incumbent.value)

    def descend(self) -> Iterator[Progress]:
        while self.local.descending:
            self.search_locally(pace.LOCAL_SEARCH, 0)
            yield self.progress("local search")

    def perturb(self) -> Iterator[Progress]:
        """Perturbations of small neighbourhoods, each followed by an ascent."""
        trials = self.method.local_search * self.problem.n_vars
        while self.local.trials < trials:
            self.search_locally(pace.LOCAL_SEARCH, trials - self.local.trials)
            yield self.progress("local search")

    def improve(self, moves: BlockMoves) -> Iterator[Progress]:
        """Make block moves until every variable was in a block as often as required, on average."""
        while moves.effort < self.method.local_search * self.problem.n_vars:
            self.move_blocks(moves, 5)
            yield self.progress("block moves")

    def move_blocks(self, moves: BlockMoves, n_moves: int) -> None:
        labels = self.incumbent.labels.copy()
        for _ in range(n_moves):
            moves.optimise_ball(labels)
        self.incumbent.offer(labels)

    # -- cost shifting ------------------------------------------------------------------------------------------------

    def cost_shifting(self) -> CostShifting | None:
        """Return cost shifting, which needs a table per factor; None if these would take much of the memory."""
        if self.problem.n_configs * 8 > self.memory / 4:
            return None
        return CostShifting(self.problem, np.arange(self.problem.n_vars))

    def shift(self, shifting: CostShifting) -> Iterator[Progress]:
        """Lower the bound by cost shifting; the best states by max-marginals are a starting point for an ascent."""
        for _ in range(self.method.sweeps):
            before = self.incumbent.bound
            for _ in shifting.sweep():
                yield self.progress("cost shifting")
            self.incumbent.tighten(shifting.bound())
            self.local.restart(shifting.labels)
            yield from self.descend()
            if self.stalls(before, self.incumbent.bound):
                break

    def shift_jointly(self, join: JoinGraph) -> Iterator[Progress]:
        after = math.inf
        for _ in join.fill():
            yield self.progress("join graph")
        while join.sweeps < self.method.join_sweeps:
            sweeps = join.sweeps
            join.advance(pace.ADDITIONS)
            if join.sweeps > sweeps:
                before, after = after, join.bound() + self.constant
                self.incumbent.tighten(after)
                if self.stalls(before, after):
                    break
            yield self.progress("join graph")

    def stalls(self, before: float, after: float) -> bool:
        """Return whether a pass closed too little of the gap for another to follow."""
        return before - after <= SMALL_GAIN * (after - self.incumbent.value) and before < math.inf

    # -- elimination --------------------------------------------------------------------------------------------------

    def eliminate(self, tree: BucketTree) -> Iterator[Progress]:
        elimination = Elimination(tree, self.given_functions(tree, None))
        while not elimination.finished:
            elimination.advance(pace.ADDITIONS, self.method.max_iterations)
            self.iterations = elimination.n_done
            if not elimination.finished:
                yield self.progress("elimination")
        value = elimination.value + self.constant
        if value > -math.inf:
            self.incumbent.offer(elimination.labels())
            value = max(value, self.incumbent.value)
        self.incumbent.bound = value
        yield self.progress("elimination", Status.OPTIMAL if value > -math.inf else Status.INFEASIBLE)

    def given_functions(self, tree: BucketTree, shifting: CostShifting | None) -> Functions:
        """Return the potentials of the model, reparametrised by cost shifting if any."""
        if shifting is None:
            return Functions.of_model(self.problem, tree)
        return Functions.of(self.problem, tree, shifting.theta_v, shifting.theta_f, shifting.table_ptr[:-1])

    # -- search -------------------------------------------------------------------------------------------------------

    def branch(self, tree: BucketTree, graph: PrimalGraph, shifting: CostShifting | None) -> Iterator[Progress]:
        """AND/OR branch and bound: a short search with small mini-buckets, then one with all the memory."""
        moves = BlockMoves(self.problem, self.seed, graph)
        yield from self.perturb()
        given = self.given_functions(tree, shifting)
        if self.method.join_sweeps > 0 and tree.n > 0:  # simplifying may leave nothing
            partition = self.partition(tree, given, FIRST_SHARE)
            yield self.progress("join graph")
            join = JoinGraph(tree, given, partition)
            yield from self.shift_jointly(join)
            given = join.functions()
        short, full = (FIRST_SHARE, FIRST_STEPS), (1.0, math.inf)
        for share, steps in (full,) if self.method.i_bound > 0 else (short, full):
            buckets = MiniBuckets(tree, given, self.partition(tree, given, share))
            before = self.iterations
            while not buckets.finished:
                buckets.advance(pace.ADDITIONS, self.method.max_iterations - before)
                self.iterations = before + buckets.n_done
                yield self.progress("mini-buckets")
            bound = buckets.bound() + self.constant
            self.incumbent.tighten(bound)
            self.details |= {"root_bound": bound, "i_bound": float(buckets.largest_scope)}
            if AndOrSearch.bytes_needed(tree) > self.memory:
                yield self.progress("mini-buckets", Status.CONVERGED if steps == math.inf else None)
            else:
                yield from self.search(buckets, moves, steps)
            yield from self.improve(moves)

    def partition(self, tree: BucketTree, given: Functions, share: float) -> BucketPartition:
        """Return mini-buckets limited by `i_bound`, or else by a share of the memory."""
        if self.method.i_bound > 0:
            found = find_partition(tree, given, self.method.i_bound, math.inf)
            assert found is not None
            return found
        kept = 1 - CACHE_SHARE if self.method.caching else 1.0
        return largest_partition(tree, given, share * kept * self.memory / 8)

    def search(self, buckets: MiniBuckets, moves: BlockMoves, max_steps: float) -> Iterator[Progress]:
        """Search with the messages as heuristic, to the end or for a number of steps."""
        before, constant = self.iterations, self.constant
        room = self.memory - 8 * len(buckets.tables.arena)
        search = AndOrSearch(buckets, max(0.0, room) if self.method.caching else 0.0)
        self.try_labels(search)
        while not search.finished and max_steps > 0:
            max_steps -= 1
            search.require(self.incumbent.value - constant)
            search.advance(STEP_LOOK_UPS, self.method.max_iterations - before)
            self.iterations = before + search.n_expanded
            self.details |= {"nodes": float(search.n_expanded), "cache_hits": float(search.n_hits)}
            found = search.best_labels()
            if found is not None:
                self.incumbent.offer(search.tree.by_variable(found))
            self.incumbent.tighten(search.upper_bound() + constant)
            if not search.finished:
                self.try_labels(search)
                self.move_blocks(moves, MOVES_BESIDE)
                yield self.progress("search")
        if search.finished:
            feasible = self.incumbent.value > -math.inf
            self.incumbent.bound = max(self.incumbent.value, self.incumbent.bound) if feasible else -math.inf
            yield self.progress("search", Status.OPTIMAL if feasible else Status.INFEASIBLE)

    def try_labels(self, search: AndOrSearch) -> None:
        """Complete the partial labelling of the search greedily, ascend, and perturb a little."""
        self.local.restart(search.tree.by_variable(search.current_labels()))
        while self.local.descending:
            self.search_locally(pace.LOCAL_SEARCH, 0)
        self.search_locally(pace.LOCAL_SEARCH // 4, TRIALS_BESIDE)
