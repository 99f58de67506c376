"""The phases of `branch` on constraints: elimination with tables in their place, or a search with counters."""

from __future__ import annotations

import math
from collections.abc import Generator, Iterator
from typing import TYPE_CHECKING, NamedTuple

from mapmrf.arrays import Ints
from mapmrf.constraints.as_tables import Rewriting, rewrite
from mapmrf.engines.elimination.constraint_prices import ConstraintPrices, tree_with_paths, with_cliques
from mapmrf.engines.elimination.elimination import BucketTree, Elimination
from mapmrf.engines.elimination.mini_buckets import CostShifting, MiniBuckets
from mapmrf.engines.elimination.orders import Order, PrimalGraph, front_orders
from mapmrf.engines.elimination.path_constraints import ConstraintForms
from mapmrf.engines.moves.blocks import BlockMoves
from mapmrf.engines.moves.constrained_search import ConstrainedLocalSearch
from mapmrf.engines.reduction.simplify import Simplified, simplify
from mapmrf.errors import UnsupportedModel
from mapmrf.methods.branch.phases import BranchRun
from mapmrf.model.problem import Problem
from mapmrf.run.method import Progress, Start
from mapmrf.run.result import Status

if TYPE_CHECKING:
    from mapmrf.methods.branch import Branch

FEW_ENTRIES = 2_000_000
"""Table entries up to which a model with constraints is eliminated before anything else is tried."""

MOST_VARIABLES = 50_000
"""Maximum number of variables for which a model with constraints is searched: path labels grow quadratically."""


class RewrittenRun(NamedTuple):
    """A model with tables in place of its constraints, a run on it, and a tree for its elimination."""

    rewriting: Rewriting
    run: BranchRun
    tree: BucketTree


class ConstrainedBranchRun(BranchRun):
    """A run of `branch` on a model with constraints.

    Where its tables fit, the model with tables in place of the constraints is eliminated. Otherwise the search
    maintains counters: the variables of a constraint lie on one path of the tree, and its best outcome is part of all
    bounds.
    """

    rules: ConstraintForms

    def __init__(self, method: Branch, small: Simplified, seed: int, initial: Start) -> None:
        super().__init__(method, small, seed, initial)
        self.rules = ConstraintForms.of(self.problem)
        self.prices: ConstraintPrices | None = None  # prices that the constraints put on states
        # the model with tables in place of its constraints, if it can be eliminated
        self.tables: RewrittenRun | None = None

    def new_local_search(self, labels: Ints) -> ConstrainedLocalSearch:
        return ConstrainedLocalSearch(self.problem, labels, self.seed)

    def run(self) -> Generator[Progress, None, None]:
        """Eliminate with tables if they fit, else search with counters."""
        if self.rules.root == -math.inf or self.constant == -math.inf:
            self.incumbent.bound = -math.inf
            yield self.progress("order", Status.INFEASIBLE)
            return
        yield from self.perturb()
        if self.method.i_bound == 0:
            yield from self.rewrite()
        if self.tables is not None and self.tables.tree.entries <= FEW_ENTRIES:
            yield from self.eliminate_rewritten(self.tables)
            return
        graph = PrimalGraph.of(self.problem)
        shifting = self.cost_shifting()
        if shifting is not None:
            self.prices = ConstraintPrices(self.rules, shifting)
            yield from self.shift(shifting)
        if self.problem.n_vars > MOST_VARIABLES:
            yield self.progress("cost shifting", Status.CONVERGED)
            return
        card = self.problem.graph.card
        order = yield from self.order_by_fill(with_cliques(graph, self.rules.scopes), card)
        tree = tree_with_paths(graph, card, order, self.rules.scopes)
        self.details |= {"width": float(order.width), "variables": float(tree.n)}
        self.constant = self.problem.graph.constant + self.rules.root
        yield from self.branch(tree, graph, shifting)

    def rewrite(self) -> Iterator[Progress]:
        """Find a bucket tree with tables in place of the constraints, if they fit."""
        try:
            rewriting = rewrite(self.problem.graph)
        except UnsupportedModel:
            return
        problem = Problem.compile(rewriting.graph, self.problem.threads, self.problem.memory)
        run = BranchRun(self.method, simplify(problem), self.seed, Start(rewriting.lift(self.incumbent.labels)))
        yield self.progress("order")
        graph, card = PrimalGraph.of(run.problem), run.problem.graph.card
        best = yield from self.order_by_fill(graph, card)
        tree = BucketTree.build(graph, card, min((best, *front_orders(graph, card)), key=Order.cost))
        if Elimination.bytes_needed(tree) <= self.memory:
            self.tables = RewrittenRun(rewriting, run, tree)

    def eliminate_rewritten(self, tables: RewrittenRun) -> Iterator[Progress]:
        """Bucket elimination with tables in place of the constraints."""
        before = self.iterations
        self.details["variables"] = float(tables.tree.n)
        steps = tables.run.eliminate(tables.tree) if tables.run.small.feasible else tables.run.steps
        for step in steps:
            self.iterations = before + tables.run.iterations
            if step.labels is not None:
                self.incumbent.offer(tables.rewriting.project(step.labels))
            if step.finished is not None:
                self.incumbent.bound = -math.inf if step.bound is None else max(step.bound, self.incumbent.value)
            yield self.progress("elimination", step.finished)

    def search(self, buckets: MiniBuckets, moves: BlockMoves | None, max_steps: float) -> Iterator[Progress]:
        """Search; if a short search is not enough, eliminate where the tables fit."""
        if self.tables is not None and max_steps == math.inf:
            return self.eliminate_rewritten(self.tables)
        return super().search(buckets, moves, max_steps)

    def shifted_bound(self, shifting: CostShifting) -> float:
        """The bound at the best prices."""
        assert self.prices is not None
        self.prices.update()
        return self.prices.bound()
