"""Make a certificate for a labelling: the dual point of the whole model that proves the best bound."""

from __future__ import annotations

import dataclasses
import heapq
import logging
import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from fractions import Fraction
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from mapmrf.arrays import Bools, Floats, Ints, offsets, ranges
from mapmrf.certificates.certificate import CaseTree, Certificate, Cycles
from mapmrf.certificates.check import MOST_ENTRIES, QUICK, DualCheck, TreeCheck
from mapmrf.certificates.exact_model import IntegerModel, exact_value, without
from mapmrf.compilation import CompilingStopped
from mapmrf.constraints.as_tables import rewrite
from mapmrf.engines.elimination.numpy_elimination import small_order
from mapmrf.engines.messages.srmp import TablePasses
from mapmrf.engines.messages.sweeps import LIMIT, PassFigures, PassStopping
from mapmrf.engines.messages.visit_order import VisitOrder
from mapmrf.engines.program.binary_program import is_compact
from mapmrf.engines.program.cutting_planes import cycle_dual
from mapmrf.engines.program.solvers import highs_failure
from mapmrf.engines.reduction.simplify import StateDrops, drop_states
from mapmrf.errors import UnsupportedModel
from mapmrf.model.factor_pool import by_smallest_table
from mapmrf.model.graph import FactorGraph
from mapmrf.model.problem import Problem
from mapmrf.run import interrupts, pace
from mapmrf.run.result import Result
from mapmrf.run.solve import as_graph

MOST_NODES, MOST_BYTES = 10_000, 1 << 26  # nodes of a tree, and bytes of all its arrays

log = logging.getLogger("mapmrf")

ITERATIONS = 2000  # maximum number of iterations of message passing

EXACT_ENTRIES, MOST_MODEL_ENTRIES = 500_000, 1 << 25
"""Table entries up to which the bound is computed in fractions, while that of larger models is rounded up; and up to
which there are certificates at all: the checker needs some hundred bytes for each."""

FIRST_ENTRIES = 1 << 10  # maximum table entries of variables that are maximised out before a tree of cases is grown


def certify(
    graph: FactorGraph,
    labels: ArrayLike | Result,
    *,
    time_limit: float | None = None,
    threads: int = 1,
    max_nodes: int = MOST_NODES,
    max_bytes: int = MOST_BYTES,
) -> Certificate:
    """Find a dual point of the model that proves how good a labelling is, and cases if one point is not enough.

    The point is computed for the whole model, whatever method found the labelling, so that the certificate does not
    depend on any simplification of it: first by message passing, which is enough if the relaxation over the local
    polytope is tight, then with odd cycles if all variables are binary and all factors pairs. Variables that the point
    leaves undecided are maximised out by the checker, if small tables are enough. If a gap remains, a tree of cases is
    grown until the gap is closed or the tree reaches its limits.

    Parameters
    ----------
    graph
        The model.
    labels : (n_vars,)
        The labelling, or a Result.
    time_limit
        Seconds after which the best point so far is used. By default, a tree of cases grows for at most a minute.
    threads
        Threads for message passing.
    max_nodes, max_bytes
        Limits of a tree of cases, in bytes before compression. With `max_nodes=0` there are no cases.

    Raises
    ------
    UnsupportedModel
        If the model is too large to be checked.

    Examples
    --------
    >>> import mapmrf
    >>> from mapmrf.datasets import grid
    >>> model = grid(25, 25, coupling=2.0, seed=1)
    >>> result = mapmrf.solve(model)
    >>> certificate = mapmrf.certify(model, result)
    >>> mapmrf.verify(model, result.labels, certificate).relative_gap() < 1e-12, certificate.cycles.n > 0
    (True, True)
    """
    graph = as_graph(graph)
    labels = graph.check_labels(labels.labels if isinstance(labels, Result) else labels)
    if graph.constraints is not None:
        rewriting = rewrite(graph)
        graph, labels = rewriting.graph, rewriting.lift(labels)
    if _n_entries(graph) > MOST_MODEL_ENTRIES:
        found = f"{_n_entries(graph)} table entries"
        raise UnsupportedModel(f"no certificate: the model has {found}, expected at most {MOST_MODEL_ENTRIES}")
    end = math.inf if time_limit is None else time.perf_counter() + time_limit
    return _Maker(graph, labels, end, (max_nodes, max_bytes), threads).make()


def with_certificate(result: Result, graph: FactorGraph, deadline: float, threads: int) -> Result:
    """The result with a certificate, if one is found in the remaining time."""
    left = deadline - time.perf_counter()
    if left <= 0 or interrupts.requested():
        return result
    try:
        certificate = certify(graph, result.labels, time_limit=None if left == math.inf else left, threads=threads)
    except CompilingStopped:
        return result
    except UnsupportedModel as error:
        log.warning("%s", error)
        return result
    return dataclasses.replace(result, certificate=certificate)


class _Maker:
    """The model, the labelling, and the best certificate so far."""

    def __init__(
        self, graph: FactorGraph, labels: Ints, end: float, tree_limits: tuple[int, int], threads: int
    ) -> None:
        # tree_limits: nodes of a tree of cases, and bytes of its messages and states
        self.graph, self.labels, self.end, self.tree_limits, self.threads = graph, labels, end, tree_limits, threads
        self.value = graph.value(labels)
        self.worth = exact_value(graph, labels)
        self.exact = _n_entries(graph) <= EXACT_ENTRIES
        self.best: Certificate | None = None
        self.closed = False

    def stop(self) -> bool:
        return time.perf_counter() >= self.end or interrupts.requested()

    def within(self, part: float, most: float = math.inf) -> Callable[[], bool]:
        """A stopping rule: a share of the remaining time has passed, or this many seconds if there is no limit."""
        now = time.perf_counter()
        end = now + (part * (self.end - now) if self.end < math.inf else most)
        return lambda: time.perf_counter() >= end or interrupts.requested()

    def make(self) -> Certificate:
        """Try one kind of proof after another until the gap is closed."""
        if self.graph.constant == -math.inf:
            return Certificate(bound=-math.inf)
        small = small_order(self.graph)
        if small is not None:
            self.offer(Certificate(order=np.array(list(small), dtype=np.int64)))
        if not self.closed:
            problem = Problem.compile(self.graph, self.threads)
            self.offer(Certificate(lam=in_graph_order(problem, self.relaxed(problem))))
            if not self.closed and not self.stop():
                self.add_cycles(problem)
            if not self.tight and not self.stop() and self.tree_limits[0] > 1:
                (self.add_cases if is_compact(problem) else self.add_reduced)()
        assert self.best is not None
        return self.best

    def offer(self, candidate: Certificate) -> None:
        """Keep a certificate, with the bound that it proves, if it is the best so far."""
        # One without an order gets one for the variables that it leaves open, if their tables are small.
        model = IntegerModel.build(self.graph, candidate, self.exact)
        target = model.target(self.worth, self.labels)
        check = DualCheck(model, target, self.stop)
        found = check.run(candidate.order, MOST_ENTRIES)
        if found.n_open and not found.eliminated and not self.stop():
            candidate = dataclasses.replace(candidate, order=greedy_order(self.graph, check.n_left(), MOST_ENTRIES))
            found = check.run(candidate.order, MOST_ENTRIES) if len(candidate.order) else found
        claim = -math.inf if found.bound is None else _not_below(found.bound)
        if self.best is None or claim < self.best.bound:
            self.best = dataclasses.replace(candidate, bound=claim)
        reached = target is not None and found.bound is not None and found.bound <= model.fraction(target)
        self.closed = self.closed or found.bound is None or reached

    @property
    def tight(self) -> bool:
        """Whether there is nothing left to gain but round-off."""
        return self.closed or (self.best is not None and self.best.bound - self.value <= self.tolerance)

    @property
    def tolerance(self) -> float:
        """The gap that counts as closed here."""
        # relative gap at which message passing and cutting planes end: the checker does the rest
        return 1e-12 * max(1.0, abs(self.value)) if self.value > -math.inf else 0.0

    def relaxed(self, problem: Problem) -> Floats:
        """Messages of sequential passes, in the order of the problem; 0 for impossible states."""
        if problem.n_factors == 0:
            return np.zeros(0)
        passes = TablePasses(problem, VisitOrder.build(problem, "trees_last"), PassStopping(1e-13, 0.0))
        try:
            done, why, chunk = 0, LIMIT, max(1, pace.MESSAGES // (passes.work + 1))
            while why == LIMIT and done < ITERATIONS and not self.stop():
                n, why = passes.iterate(done, min(done + chunk, ITERATIONS), ITERATIONS)
                done += n
                if passes.figures.bound - self.value <= self.tolerance:
                    break
            return np.where(np.isfinite(passes.messages.lam), passes.messages.lam, 0.0)
        finally:
            passes.close()

    def add_cycles(self, problem: Problem) -> None:
        """Offer a dual point with odd cycles, if the model is one of binary pairs."""
        # number of pairs of binary variables up to which odd cycles are searched for
        if not is_compact(problem) or problem.n_factors > 50_000 or highs_failure() is not None:
            return
        soon = self.within(0.4 if self.tree_limits[0] > 1 else 1.0)  # time is also needed for a tree and for checking
        dual = cycle_dual(problem, self.value, self.tolerance, soon)
        if dual is not None:
            lam_e, ptr, pair, odd, weight = dual
            cycles = Cycles(ptr.astype(np.int64), problem.order[pair].astype(np.int64), odd, weight)
            self.offer(Certificate(lam=in_graph_order(problem, lam_e), cycles=cycles))

    def add_reduced(self) -> None:
        """Offer a certificate of the model without variables that can be maximised out within small tables."""
        first = greedy_start(self.graph, FIRST_ENTRIES)
        if not len(first):
            self.add_cases()
            return
        graph, kept = without(self.graph, first)
        if graph.constant == -math.inf:
            self.best = Certificate(bound=-math.inf, first=first)
            return
        maker = _Maker(graph, self.labels[kept], self.end, self.tree_limits, self.threads)
        if graph.n_factors:
            problem = Problem.compile(graph, self.threads)
            maker.offer(Certificate(lam=in_graph_order(problem, maker.relaxed(problem))))
            if not maker.tight and not self.stop():
                maker.add_cases()
        else:
            maker.offer(Certificate())
        if maker.best is not None and (self.best is None or maker.best.bound < self.best.bound):
            self.best = dataclasses.replace(maker.best, first=first)

    def add_cases(self) -> None:
        point = self.best
        if point is None or self.graph.n_factors == 0:
            return
        # Most of the remaining time is for checking; without a time limit, growing takes at most a minute.
        tree = CaseGrower(self.graph, point, self.worth, *self.tree_limits, self.within(0.3, 60.0)).grow()
        candidate = dataclasses.replace(point, tree=tree, bound=math.inf)
        found = TreeCheck(self.graph, candidate, True, MOST_ENTRIES, self.stop).above(self.worth, None)
        claim = -math.inf if found.bound is None else _not_below(found.bound)
        if claim < point.bound:
            self.best = dataclasses.replace(candidate, bound=claim)


def _n_entries(graph: FactorGraph) -> int:
    """Entries of the tables of all factors, shared ones counted repeatedly, and unary ones."""
    return int(np.diff(graph.table_ptr)[graph.table_of].sum(dtype=np.int64)) + len(graph.theta_v)


def _not_below(bound: Fraction) -> float:
    """The smallest float that is not below a fraction."""
    near = float(bound)
    return near if Fraction(near) >= bound else math.nextafter(near, math.inf)


# -- Grow a tree of cases for a labelling, the node with the largest bound first, until the bound is its value --------


LEAF_ENTRIES, ROOT_ENTRIES = MOST_ENTRIES, QUICK * MOST_ENTRIES
"""Maximum total entries of the elimination tables in a leaf, and in the root if that is the only leaf."""


@dataclass(eq=False)
class GrownNode:
    # parent, states: its parent, -1 for the root, and the states of the parent's variable
    parent: int
    states: Ints
    left: np.ndarray = field(default_factory=lambda: np.zeros(0, dtype=np.uint8))  # packed bits of the remaining states
    # bound, depth: the bound of an open node, and its depth
    bound: float = math.inf
    depth: int = 0
    tried: float = math.inf  # the number of open variables when elimination failed
    # at, lam: messages that differ from the parent's
    at: Ints = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    lam: Floats = field(default_factory=lambda: np.zeros(0))
    # variable, order: the variable of its cases, -1 for none, and the order of elimination of a leaf
    variable: int = -1
    order: Ints = field(default_factory=lambda: np.zeros(0, dtype=np.int64))

    @property
    def n_bytes(self) -> int:
        """Bytes in the file, before compression."""
        return 8 * (5 + len(self.states) + 2 * len(self.at) + len(self.order))


class CaseGrower:
    """A tree of cases below a dual point."""

    # Bounds are computed in floating point here, with a margin for round-off and for the checker's rounding; the
    # checker has the last word. A node with a bound up to `goal` is closed, which is `margin` below the value of the
    # solution, and -inf if there is no feasible labelling.

    def __init__(
        self, graph: FactorGraph, point: Certificate, worth: Fraction | None, max_nodes: int, max_bytes: int,
        stop: Callable[[], bool],
    ) -> None:  # fmt: skip
        self.graph, self.max_nodes, self.max_bytes, self.stop = graph, max_nodes, max_bytes, stop
        problem = Problem.compile(with_cycles(graph, point.cycles))
        self.place, self.drops, self.passes = graph_places(problem), StateDrops.of(problem), NodePasses(problem)
        self.lam_e = point.lam[self.place] if len(point.lam) else np.zeros(problem.n_edge_states)
        self.branching = Branching(graph, self.passes, stop)
        self.nodes: list[GrownNode] = []
        self.heap: list[tuple[float, int]] = []  # open nodes by bound, or by depth if there is no feasible labelling
        self.n_bytes = 0
        one, none = np.array([-1]), np.zeros(2, dtype=np.int64)
        root = CaseTree(parent=one, variable=one, state_ptr=none, lam_ptr=none, order_ptr=none)
        model = IntegerModel.build(graph, dataclasses.replace(point, tree=root), False)
        # margin as a multiple of the checker's largest rounding error
        self.margin, self.goal = float(model.fraction(4 * model.slack)), -math.inf
        if worth is not None:
            offset = model.fraction(model.offset)
            self.goal = float(model.fraction(model.goal(worth)) - offset) - self.margin

    def grow(self) -> CaseTree:
        """Grow until no node is open, or a limit is reached."""
        try:
            self.add(GrownNode(-1, np.zeros(0, dtype=np.int64)), np.isfinite(self.graph.theta_v), self.lam_e)
            while self.heap and not self.stop():
                if len(self.nodes) >= self.max_nodes or self.n_bytes >= self.max_bytes:
                    break
                self.branch(heapq.heappop(self.heap)[1])
        finally:
            self.passes.close()
        return self.tree()

    def branch(self, number: int) -> None:
        """Divide the states of a variable of a node among cases."""
        node, lam_e = self.nodes[number], self.messages(number)
        left = np.unpackbits(node.left, count=len(self.graph.theta_v)).astype(bool)
        bound = drop_states(self.drops, lam_e, left, self.goal)
        if bound == -math.inf:
            return
        i, parts = self.branching.choose(BranchingNode(left, lam_e, bound, self.goal, self.drops.reach.copy()))
        node.variable = i
        gone = np.setdiff1d(self.domain(number, i), np.concatenate(parts))
        for k, part in enumerate(parts):
            # Dropped states must be in some case, where they cost nothing.
            states = np.sort(np.concatenate([part, gone])) if k == 0 else part
            case = GrownNode(number, states, bound=node.bound, depth=node.depth + 1, tried=node.tried)
            self.add(case, self.branching.case(left, i, part), lam_e)

    def add(self, node: GrownNode, left: Bools, lam_e: Floats) -> None:
        """Add a node, and close it if possible: by what is known above, by elimination, or by new messages."""
        bound = drop_states(self.drops, lam_e, left, self.goal)
        if bound > -math.inf and not self.eliminate(node, left):
            bound = self.improve(node, left, lam_e, bound)
            if bound > self.goal + 2 * self.margin and not self.eliminate(node, left):
                node.bound, node.left = min(bound, node.bound), np.packbits(left)
                heapq.heappush(self.heap, (-node.bound if self.goal > -math.inf else -node.depth, len(self.nodes)))
        self.nodes.append(node)
        self.n_bytes += node.n_bytes

    def eliminate(self, node: GrownNode, left: Bools) -> bool:
        """Give a node an elimination order if the tables are small enough; it is then a leaf."""
        n_left = np.add.reduceat(left.astype(np.int64), self.graph.var_ptr[:-1])
        n_open = int(np.count_nonzero(n_left > 1))
        # elimination is tried again when this fraction of the open variables remains
        if n_open > 0.9 * node.tried:
            return False
        node.order = greedy_order(self.graph, n_left, LEAF_ENTRIES if self.nodes else ROOT_ENTRIES)
        node.tried = n_open
        return n_open == 0 or len(node.order) > 0

    def improve(self, node: GrownNode, left: Bools, lam_e: Floats, bound: float) -> float:
        """Look for messages of a node that lower its bound; keep them, rounded, if they do."""
        # maximum number of iterations of message passing in a node
        better, _ = self.passes.improved(lam_e, left, self.goal, 60, self.stop)
        reached = drop_states(self.drops, better, (whole := left.copy()), self.goal)
        gain = bound - max(reached, self.goal)
        if not gain > 0:
            return bound
        change = np.abs(better - lam_e)
        unit = min(gain, bound) if gain == math.inf else gain
        # Messages are rounded to multiples of half their gain per edge, then more finely, until that keeps most of it.
        quantum = 2.0 ** math.floor(math.log2(0.5 * unit / (1 + math.sqrt(np.count_nonzero(change)))))
        kept, found, some = better, reached, whole
        for _ in range(3 if gain < math.inf else 0):
            rounded = np.where(change >= quantum, np.rint(better / quantum) * quantum, lam_e)
            trial = drop_states(self.drops, rounded, (part := left.copy()), self.goal)
            if bound - max(trial, self.goal) >= (gain if reached == -math.inf else 0.8 * gain):
                kept, found, some = rounded, trial, part
                break
            quantum *= 0.125
        node.at = np.flatnonzero(kept != lam_e)
        node.lam = kept[node.at]
        left[:] = some
        return found

    def messages(self, number: int) -> Floats:
        lam_e, path = self.lam_e.copy(), []
        while number >= 0:
            path.append(number)
            number = self.nodes[number].parent
        for above in reversed(path):
            lam_e[self.nodes[above].at] = self.nodes[above].lam
        return lam_e

    def domain(self, number: int, i: int) -> Ints:
        """The states of a variable that the cases above leave to a node."""
        while self.nodes[number].parent >= 0:
            parent = self.nodes[number].parent
            if self.nodes[parent].variable == i:
                return self.nodes[number].states
            number = parent
        return np.arange(self.graph.card[i])

    def tree(self) -> CaseTree:
        """The tree as it is now; open nodes are leaves."""
        nodes = self.nodes
        states, places = [node.states for node in nodes], [self.place[node.at] for node in nodes]
        orders = [node.order for node in nodes]
        return CaseTree(
            parent=np.array([node.parent for node in nodes], dtype=np.int64),
            variable=np.array([node.variable for node in nodes], dtype=np.int64),
            state_ptr=_ptr(states),
            state=np.concatenate(states).astype(np.int64),
            lam_ptr=_ptr(places),
            lam_at=np.concatenate(places).astype(np.int64),
            lam=np.concatenate([node.lam for node in nodes]),
            order_ptr=_ptr(orders),
            order=np.concatenate(orders).astype(np.int64),
        )


def _ptr(parts: list[Ints]) -> Ints:
    return offsets(np.array([len(part) for part in parts], dtype=np.int64)).astype(np.int64)


# -- Choose the variable whose states are divided among cases ---------------------------------------------------------


STEEP = 4.0  # a case whose bound closes the whole gap counts ``2 ** -STEEP`` as much as one whose bound does not change


class BranchingNode(NamedTuple):
    # left, lam_e: its states and messages
    left: Bools
    lam_e: Floats
    # bound, goal: its bound, and the bound to reach; -inf if there is no feasible labelling
    bound: float
    goal: float
    reach: Floats  # (n_states,) upper bound on the labellings with each state

    @property
    def losses(self) -> Floats:
        """Decrease of the bound by each state, as a fraction of the gap, (n_states,)."""
        missing = self.bound - self.goal if self.goal > -math.inf else 1.0
        lost = np.where(self.left, self.bound - np.where(self.left, self.reach, 0.0), 0.0)
        return np.where(self.left, np.clip(lost / max(missing, 1e-300), 0.0, 1.0), 1.0)


class Branching:
    """Branching by pseudo-costs: gains of earlier branchings on a variable; unknown variables are probed."""

    # `gains` and `times`, (n_vars,), are the decrease of the bound in a case of the variable, as a fraction of the gap:
    # the sum over all cases, and their number.

    def __init__(self, graph: FactorGraph, passes: NodePasses, stop: Callable[[], bool]) -> None:
        self.passes, self.stop, self.ptr = passes, stop, graph.var_ptr.astype(np.int64)
        self.gains, self.times = np.zeros(graph.n_vars), np.zeros(graph.n_vars)
        self.degree = np.bincount(graph.scope, minlength=graph.n_vars)

    def choose(self, node: BranchingNode) -> tuple[int, list[Ints]]:
        """A variable with several remaining states, and the states of each case, the most promising one first."""
        some = np.flatnonzero(np.add.reduceat(node.left.astype(np.int64), self.ptr[:-1]) > 1)
        losses = node.losses
        size = np.add.reduceat(np.where(node.left, 2.0 ** (-STEEP * losses), 0.0), self.ptr[:-1])
        known = np.where(self.times > 0, self.gains / np.maximum(self.times, 1), self.mean)
        rank = some[np.argsort((size * 2.0 ** (-STEEP * known) / (1 + np.log1p(self.degree)))[some], kind="stable")]
        best, most = int(rank[0]), math.inf
        for i in rank[:6].tolist() if node.goal > -math.inf else ():
            probe = self.times[i] < 2 * (self.ptr[i + 1] - self.ptr[i])
            estimate = self.probe(node, i, losses) if probe else size[i] * 2.0 ** (-STEEP * known[i])
            if estimate < most:
                best, most = i, estimate
        return best, self.parts(node, best, losses)

    @property
    def mean(self) -> float:
        return float(self.gains.sum() / max(1.0, self.times.sum()))

    def parts(self, node: BranchingNode, i: int, losses: Floats) -> list[Ints]:
        """Single states, or two halves of them if there are many, ordered by their decrease of the bound."""
        begin, end = int(self.ptr[i]), int(self.ptr[i + 1])
        states = np.flatnonzero(node.left[begin:end])
        states = states[np.argsort(losses[begin + states], kind="stable")]
        # number of states from which a variable is split in two halves instead of single states
        if len(states) < 5:
            return [states[k : k + 1] for k in range(len(states))]
        middle = len(states) // 2
        return [np.sort(states[:middle]), np.sort(states[middle:])]

    def probe(self, node: BranchingNode, i: int, losses: Floats) -> float:
        """Estimated remaining work in the cases of a variable, by a few iterations of message passing for each."""
        total = 0.0
        for part in self.parts(node, i, losses):
            left = self.case(node.left, i, part)
            _, bound = self.passes.improved(node.lam_e, left, node.goal, 4, self.stop)
            gain = min(1.0, max(0.0, (node.bound - bound) / max(node.bound - node.goal, 1e-300)))
            total += 2.0 ** (-STEEP * gain)
            self.gains[i] += gain
            self.times[i] += 1
        return total

    def case(self, left: Bools, i: int, part: Ints) -> Bools:
        """The remaining states if a variable has one of some states."""
        kept = left.copy()
        kept[self.ptr[i] : self.ptr[i + 1]] = False
        kept[self.ptr[i] + part] = True
        return kept


# -- Messages for some of the states of a model: sequential passes that start from given ones -------------------------


class NodePasses:
    """Passes over a problem, one after another on different states."""

    def __init__(self, problem: Problem) -> None:
        self.passes = TablePasses(problem, VisitOrder.build(problem, "trees_last"), PassStopping(0.0, 0.0))
        self.theta = self.passes.messages.theta.copy()
        self.state = problem.edge_state_at
        self.first = np.repeat(problem.edge_ptr[:-1], np.diff(problem.edge_ptr))  # of the messages of an edge, for each

    def improved(
        self, lam_e: Floats, left: Bools, goal: float, most: int, stop: Callable[[], bool]
    ) -> tuple[Floats, float]:
        """Messages that lower the bound of the remaining states towards a goal, from those given, and their bound."""
        # Messages of other states are unchanged, and so is one of every edge.
        messages, alive = self.passes.messages, left[self.state]
        messages.theta[:] = np.where(left, self.theta, -np.inf)
        messages.lam[:] = np.where(alive, lam_e, -np.inf)
        bound = self.iterate(goal, most, stop)
        change = np.where(alive & np.isfinite(messages.lam), messages.lam - lam_e, 0.0)
        # Adding a constant to all messages of an edge changes nothing: subtract the change of its first state left.
        where = np.flatnonzero(alive)
        reference = np.zeros(len(change))
        reference[self.first[where[::-1]]] = change[where[::-1]]  # the first one is written last
        return lam_e + np.where(alive, change - reference[self.first], 0.0), bound

    def iterate(self, goal: float, most: int, stop: Callable[[], bool]) -> float:
        """Run passes until the goal is reached, too little is gained, or the limit is hit; return the bound."""
        self.passes.figures = PassFigures()
        done, why, last = 0, LIMIT, np.inf
        while done < most and why == LIMIT and not stop():
            n, why = self.passes.iterate(done, min(done + 5, most), most + 1)
            done += n
            bound = self.passes.figures.bound
            if bound <= goal or last - bound < 0.04 * (bound - goal):  # little in five iterations
                break
            last = bound
        return self.passes.figures.bound

    def close(self) -> None:
        self.passes.close()


def with_cycles(graph: FactorGraph, cycles: Cycles) -> FactorGraph:
    """The graph with the amounts that cycles add to pairs of different labels, without those for all labellings."""
    if cycles.n == 0:
        return graph
    cut = np.zeros(graph.n_factors)
    np.add.at(cut, cycles.factor, np.repeat(cycles.weight, np.diff(cycles.ptr)) * np.where(cycles.odd == 1, -1.0, 1.0))
    tables = graph.theta_t[graph.table_ptr[graph.table_of][:, None] + np.arange(4)]
    if graph.weight is not None:
        tables = tables * graph.weight[:, None]
    tables = tables + cut[:, None] * np.array([0.0, 1.0, 1.0, 0.0])
    n = graph.n_factors
    return dataclasses.replace(
        graph, table_of=np.arange(n), weight=None, table_ptr=4 * np.arange(n + 1), theta_t=tables.ravel()
    )


def graph_places(problem: Problem) -> Ints:
    """Position of each of the problem's messages among those by the edges of the original graph."""
    graph = problem.graph
    sizes = np.diff(problem.edge_ptr[problem.scope_ptr])
    edge_ptr = offsets(graph.card[graph.scope])
    return ranges(edge_ptr[graph.scope_ptr[:-1]][problem.order], sizes)


def in_graph_order(problem: Problem, lam_e: Floats) -> Floats:
    """Messages by the edges of the original graph, from those by the edges of the problem."""
    result = np.zeros_like(lam_e)
    result[graph_places(problem)] = lam_e
    return result


# -- Orders in which variables are maximised out ----------------------------------------------------------------------


def greedy_start(graph: FactorGraph, max_table: int) -> Ints:
    """Variables that can be maximised out one by one with tables of at most this many entries, but not all of them."""
    order: list[int] = []
    most = np.count_nonzero(graph.card > 1) - 1
    for i, _, entries in by_smallest_table(graph, graph.card.tolist(), np.flatnonzero(graph.card > 1).tolist()):
        if len(order) >= most or entries > max_table:
            break
        order.append(i)
    return np.array(order, dtype=np.int64)


def greedy_order(graph: FactorGraph, n_states: Ints, max_entries: int) -> Ints:
    """Greedy elimination order of the variables with several states: always the one with the smallest table next."""
    # Empty if the tables would have more than `max_entries` entries together.
    order, left = [], float(max_entries)
    for i, _, entries in by_smallest_table(graph, n_states.tolist(), np.flatnonzero(n_states > 1).tolist()):
        left -= entries
        if left < 0:
            return np.zeros(0, dtype=np.int64)
        order.append(i)
    return np.array(order, dtype=np.int64)
