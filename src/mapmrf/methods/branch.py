"""Branch: exact maximisation by bucket elimination, or by AND/OR branch and bound with mini-bucket bounds."""

from __future__ import annotations

import math
import sys
from collections.abc import Generator, Iterator
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from mapmrf.arrays import Ints, segment_argmax
from mapmrf.engines.elimination.and_or import AndOr
from mapmrf.engines.elimination.elimination import (
    BucketTree,
    Elimination,
    Functions,
    Order,
    PrimalGraph,
    fill_orders,
    front_orders,
)
from mapmrf.engines.elimination.join_graph import JoinGraph
from mapmrf.engines.elimination.mini_buckets import MiniBuckets, Plan, Shifting
from mapmrf.engines.moves.blocks import BlockMoves
from mapmrf.engines.moves.local_search import LocalSearch
from mapmrf.engines.reduction.simplify import Simplified, simplify
from mapmrf.method import Answer, Method, Progress, Start
from mapmrf.options import check_above, check_at_least
from mapmrf.problem import Problem
from mapmrf.result import Status

STEP_ADDITIONS = 20_000_000
"""Additions of table entries in a step: some 30 ms."""

STEP_LOOK_UPS = 3_000_000
"""Look-ups of the search in a step: some 30 ms."""

STEP_ENTRIES = 2_000_000
"""Table entries that a step of local search looks at: some 20 ms."""

CACHE_SHARE = 0.25
"""Share of the memory that is left to the cache."""

FIRST_SHARE = 1 / 64
"""Share of the memory that the first search may use: many models need no more, and are spared the large tables."""

FIRST_STEPS = 10
"""Steps of the first search."""

MOVES_BESIDE = 2
"""Block moves beside each step of the search."""

TRIALS_BESIDE = 200
"""Perturbations that local search tries beside each step of the search."""


@dataclass(frozen=True)
class Branch(Method):
    """Solve exactly: bucket elimination where the tables fit into memory, AND/OR branch and bound otherwise (DAOOPT).

    Attributes
    ----------
    max_iterations
        Buckets eliminated and nodes expanded, together.
    memory
        Megabytes for tables and cache. What fits is eliminated; the rest decides the size of the mini-buckets.
    i_bound
        Variables of a mini-bucket's message, at most; 0 leaves it to the memory. Above 0 the model is searched even
        if it could be eliminated.
    restarts
        Elimination orders to try: min-fill with random ties, plain and weighted. Fewer on large models.
    sweeps
        Passes of cost shifting, to and fro, before the mini-buckets; they end early when the bound comes to rest.
    join_sweeps
        Passes of cost shifting on the join graph of small mini-buckets, before larger ones are built from it (JGLP).
    caching
        Whether the search remembers solved subproblems by their context.
    local_search
        Effort of local search before the search, per variable: so many perturbations, and so many times in a block
        that is set to its optimum given its surroundings.

    Examples
    --------
    >>> import mapmrf
    >>> from mapmrf.datasets import grid
    >>> result = mapmrf.solve(grid(6, 6, coupling=2.0, seed=1), mapmrf.Branch(memory=64))
    >>> round(result.value, 6), result.status.value
    (55.647253, 'optimal')
    """

    name: ClassVar[str] = "branch"
    title: ClassVar[str] = "exact: elimination or AND/OR branch and bound with mini-buckets (DAOOPT)"
    gives_bound: ClassVar[bool] = True
    exact: ClassVar[bool] = True
    exact_on_trees: ClassVar[bool] = True

    max_iterations: int = sys.maxsize
    memory: float = 1024.0
    i_bound: int = 0
    restarts: int = 10
    sweeps: int = 50
    join_sweeps: int = 20
    caching: bool = True
    local_search: int = 20

    def __post_init__(self) -> None:
        check_at_least(self, 1, "max_iterations", "restarts")
        check_at_least(self, 0, "i_bound", "sweeps", "join_sweeps", "local_search")
        check_above(self, 0, "memory")

    def start(self, problem: Problem, seed: int, initial: Start) -> _State:
        """Simplify the model and begin with local search."""
        small = simplify(problem)
        return _State(self, small, seed, initial.labels)

    def step(self, problem: Problem, state: _State) -> Progress:
        """Go on with the phase under way."""
        return next(state.phases)

    def answer(self, problem: Problem, state: _State) -> Answer:
        """The best labelling, and figures of the order and of the search; ends the run."""
        state.phases.close()  # or else its tables would be in memory until Python looks for cycles
        return Answer(labels=state.best() if state.small.feasible else None, details=state.details)


class _State:
    """A run: the phases as one generator, and the best labelling of the simplified model."""

    def __init__(self, method: Branch, small: Simplified, seed: int, initial: Ints | None) -> None:
        self.method, self.small, self.seed = method, small, seed
        self.problem = small.problem
        self.iterations = 0
        self.bound = math.inf
        self.details: dict[str, float] = {}
        own = segment_argmax(self.problem.graph.theta_v, self.problem.graph.var_ptr)
        labels = own if initial is None else small.part(initial)
        if small.feasible:
            self.local = LocalSearch(self.problem, labels, seed)
        self.phases = self.run() if small.feasible else self.give_up()

    def best(self) -> Ints:
        """The best labelling so far, of the whole model."""
        return self.small.whole(self.local.labels)

    def know(self, labels: Ints) -> None:
        """Take over a labelling of the whole model that somebody else has found, if it is better."""
        self.local.offer(self.small.part(labels))

    def progress(self, phase: str, finished: Status | None = None) -> Progress:
        """What the loop is told: the best labelling and the best bound."""
        bound = self.bound if self.bound < math.inf else None
        return Progress(self.iterations, labels=self.best(), bound=bound, finished=finished, phase=phase)

    def give_up(self) -> Generator[Progress, None, None]:
        """A model in which some variable has no state left."""
        while True:
            yield Progress(0, labels=self.small.labels, bound=-math.inf, finished=Status.INFEASIBLE)

    def run(self) -> Generator[Progress, None, None]:
        """All phases, one after another."""
        yield from self.descend()
        shifting = self.shifting()
        if shifting is not None:
            yield from self.shift(shifting)
        graph = PrimalGraph.of(self.problem)
        card = self.problem.graph.card
        chosen: list[Order] = []
        for found in fill_orders(graph, card, self.seed, self.method.restarts):
            chosen = [found] if not chosen or found.better_than(chosen[0]) else chosen
            yield self.progress("order")
        by_fill = chosen[0]
        order = min((by_fill, *front_orders(graph, card)), key=lambda found: (-found.n_known, found.entries))
        tree = BucketTree.build(graph, card, order)
        self.details |= {"width": float(order.width), "variables": float(tree.n)}
        if self.method.i_bound == 0 and Elimination.bytes_needed(tree) <= self.method.memory * 2**20:
            yield from self.eliminate(tree)
        else:
            yield from self.branch(graph, by_fill, shifting)

    # -- before ---------------------------------------------------------------------------------------------------

    def descend(self) -> Iterator[Progress]:
        """Single-variable ascent from where local search stands."""
        while self.local.descending:
            self.local.run(STEP_ENTRIES, 0)
            yield self.progress("local search")

    def perturb(self) -> Iterator[Progress]:
        """Perturbations of small neighbourhoods, each followed by an ascent."""
        trials = self.method.local_search * self.problem.n_vars
        while self.local.trials < trials:
            self.local.run(STEP_ENTRIES, trials - self.local.trials)
            yield self.progress("local search")

    def improve(self, moves: BlockMoves) -> Iterator[Progress]:
        """Block moves, until every variable was in a block so many times, on average."""
        while moves.effort < self.method.local_search * self.problem.n_vars:
            self.move_blocks(moves, 5)
            yield self.progress("block moves")

    def move_blocks(self, moves: BlockMoves, n_moves: int) -> None:
        """Some block moves on the best labelling."""
        labels = self.local.labels.copy()
        for _ in range(n_moves):
            moves.optimise_ball(labels)
        self.local.offer(labels)

    def shifting(self) -> Shifting | None:
        """Cost shifting needs a table for every factor; None where those would take much of the memory."""
        if self.problem.n_configs * 8 > self.method.memory * 2**20 / 4:
            return None
        return Shifting(self.problem, np.arange(self.problem.n_vars))

    def shift(self, shifting: Shifting) -> Iterator[Progress]:
        """Lower the simple bound; the best states by max-marginals are a labelling worth a descent."""
        for _ in range(self.method.sweeps):
            before = self.bound
            shifting.sweep()
            self.bound = min(self.bound, shifting.bound())
            self.local.restart(shifting.labels)
            while self.local.descending:
                self.local.run(STEP_ENTRIES, 0)
            yield self.progress("cost shifting")
            if before - self.bound <= 1e-3 * (self.bound - self.local.value) and before < math.inf:
                break

    # -- exact ----------------------------------------------------------------------------------------------------

    def eliminate(self, tree: BucketTree) -> Iterator[Progress]:
        """Bucket elimination: all tables fit."""
        graph = self.problem.graph
        given = Functions.of(self.problem, tree, graph.theta_v, graph.theta_t, self.problem.table_at)
        elimination = Elimination(tree, given)
        while not elimination.finished:
            elimination.advance(STEP_ADDITIONS, self.method.max_iterations)
            self.iterations = elimination.n_done
            if not elimination.finished:
                yield self.progress("elimination")
        value = elimination.value + graph.constant
        if value == -math.inf:
            self.bound = -math.inf
            yield self.progress("elimination", Status.INFEASIBLE)
        labels = elimination.labels()
        self.local.offer(labels)
        self.bound = max(value, self.local.value)
        yield self.progress("elimination", Status.OPTIMAL)

    def branch(self, graph: PrimalGraph, order: Order, shifting: Shifting | None) -> Iterator[Progress]:
        """AND/OR branch and bound: first a short search with small mini-buckets, then one with all the memory."""
        problem = self.problem
        tree = BucketTree.build(graph, problem.graph.card, order)
        moves = BlockMoves(problem, self.seed, graph)
        yield from self.perturb()
        if shifting is None:
            given = Functions.of(problem, tree, problem.graph.theta_v, problem.graph.theta_t, problem.table_at)
        else:
            given = Functions.of(problem, tree, shifting.theta_v, shifting.theta_f, shifting.table_ptr[:-1])
        if self.method.join_sweeps > 0:
            join = JoinGraph(tree, given, self.plan(tree, given, FIRST_SHARE))
            yield from self.shift_jointly(join)
            given = join.functions()
        short, full = (FIRST_SHARE, FIRST_STEPS), (1.0, math.inf)
        for share, steps in (full,) if self.method.i_bound > 0 else (short, full):
            yield from self.search(MiniBuckets(tree, given, self.plan(tree, given, share)), moves, steps)
            yield from self.improve(moves)

    def shift_jointly(self, join: JoinGraph) -> Iterator[Progress]:
        """Cost shifting between small mini-buckets, as long as it lowers their bound."""
        constant = self.problem.graph.constant
        after = math.inf
        while join.sweeps < self.method.join_sweeps:
            sweeps = join.sweeps
            join.advance(STEP_ADDITIONS)
            if join.sweeps > sweeps:
                before, after = after, join.bound() + constant
                self.bound = min(self.bound, after)
                if before - after <= 1e-3 * (after - self.local.value) and before < math.inf:
                    break
            yield self.progress("join graph")

    def plan(self, tree: BucketTree, given: Functions, share: float) -> Plan:
        """Mini-buckets as large as `i_bound`, or else a share of the memory, allow."""
        if self.method.i_bound > 0:
            found = Plan.find(tree, given, self.method.i_bound, math.inf)
            assert found is not None
            return found
        kept = 1 - CACHE_SHARE if self.method.caching else 1.0
        return Plan.within(tree, given, share * kept * self.method.memory * 2**20 / 8)

    def search(self, buckets: MiniBuckets, moves: BlockMoves, max_steps: float) -> Iterator[Progress]:
        """Compute the messages and search with them, to the end or for some steps."""
        before, limit = self.iterations, self.method.max_iterations
        while not buckets.finished:
            buckets.advance(STEP_ADDITIONS, limit - before)
            self.iterations = before + buckets.n_done
            yield self.progress("mini-buckets")
        before += buckets.n_done
        constant = self.problem.graph.constant
        self.bound = min(self.bound, buckets.bound() + constant)
        self.details |= {"root_bound": buckets.bound() + constant, "i_bound": float(buckets.largest_scope)}
        if AndOr.bytes_needed(buckets.tree) > self.method.memory * 2**20:
            yield self.progress("mini-buckets", Status.CONVERGED if max_steps == math.inf else None)
            return
        room = self.method.memory * 2**20 - 8 * len(buckets.arena)
        search = AndOr(buckets, max(0.0, room) if self.method.caching else 0.0)
        self.try_labels(search)
        while not search.finished and max_steps > 0:
            max_steps -= 1
            search.know(self.local.value - constant)
            search.advance(STEP_LOOK_UPS, limit - before)
            self.iterations = before + search.n_expanded
            self.details |= {"nodes": float(search.n_expanded), "cache_hits": float(search.n_hits)}
            found = search.best_labels()
            if found is not None:
                self.local.offer(_by_variable(search.tree, found))
            self.bound = min(self.bound, search.upper_bound() + constant)
            if not search.finished:
                self.try_labels(search)
                self.move_blocks(moves, MOVES_BESIDE)
                yield self.progress("search")
        if search.finished:
            self.bound = max(self.local.value, self.bound) if self.local.value > -math.inf else -math.inf
            yield self.progress("search", Status.OPTIMAL if self.bound > -math.inf else Status.INFEASIBLE)

    def try_labels(self, search: AndOr) -> None:
        """Complete what the search has set by what looks best, descend, and perturb a little."""
        self.local.restart(_by_variable(search.tree, search.present_labels()))
        while self.local.descending:
            self.local.run(STEP_ENTRIES, 0)
        self.local.run(STEP_ENTRIES // 4, TRIALS_BESIDE)


def _by_variable(tree: BucketTree, at: Ints) -> Ints:
    """Labels by variable, from labels by position."""
    labels = np.empty_like(at)
    labels[tree.var_of] = at
    return labels
