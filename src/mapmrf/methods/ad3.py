"""AD3: the LP relaxation by ADMM with exact factor steps (Martins, Figueiredo, Aguiar, Smith, Xing, ICML 2011)."""

from __future__ import annotations

import heapq
import itertools
import math
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar, Literal

import numpy as np

from mapmrf.arrays import Bools, Floats, Ints, ranges, segment_argmax, segment_ends, segment_max
from mapmrf.engines.admm.engine import Engine
from mapmrf.engines.admm.forest_qp import MAX_STATES
from mapmrf.engines.admm.layout import Layout, harden, impossible, isolated
from mapmrf.engines.admm.measurement import Measurement, edge_states_of, tables_of
from mapmrf.engines.admm.penalty import PenaltyOptions, interaction_scale
from mapmrf.engines.admm.variable_steps import squared_change
from mapmrf.engines.moves.constrained_search import ConstrainedSearch
from mapmrf.engines.moves.local_search import Ascent
from mapmrf.model.graph import FactorGraph
from mapmrf.model.polytope import dense, integral
from mapmrf.model.problem import Problem
from mapmrf.run import pace
from mapmrf.run.incumbent import Incumbent, is_closed
from mapmrf.run.method import Answer, Method, NonNegativeInt, PositiveFloat, PositiveInt, Progress, Range, Start
from mapmrf.run.result import Status

STORED = 1 << 25  # maximum total size of the multipliers of open nodes; further nodes start from those of the root
TINY = 1e-6  # fractionality assigned to an integral variable: less than any other, but it can be branched on
ROOT_ITERATIONS = 2000  # iterations after which branch and bound accepts the root relaxation as it is
_BY_MODE: Any = None  # default of the iteration limit, which depends on `branch_and_bound`


@dataclass(frozen=True)
class AD3(Method):
    """Maximise ``<theta, mu>`` over the local polytope L_G by ADMM, with residual balancing of rho.

    Each iteration solves one quadratic program per factor exactly, averages the factors' marginals at every variable,
    and updates the multipliers by the remaining disagreement. The dual evaluated at these multipliers is the upper
    bound; the relaxed solution is reported as it is, and labels are the largest marginals.

    Attributes
    ----------
    max_iterations
        Maximum number of ADMM iterations, over all nodes with branch and bound (ten million by default there).
    rho, rho_unit
        Initial penalty and its unit: ``"relative"`` to the model's mean interaction, or ``"absolute"``.
    adapt_every, balance, rho_factor
        Every `adapt_every` iterations, rho is multiplied by `rho_factor` if the primal residual exceeds `balance` times
        the dual residual, and divided by it in the opposite case; 0 keeps rho fixed. The logarithm of the factor is
        halved whenever the direction changes, so that rho settles.
    rho_lower, rho_upper
        Bounds on the adapted rho, in the same unit.
    relaxation
        Over-relaxation of the factors' marginals; 1 for none.
    primal_tol, dual_tol
        Tolerances on the root mean square of ``M_ia mu_a - mu_i``, and on that of the last change of mu_i times rho, in
        units of the interaction. The run has converged when both are met.
    check_every
        Iterations between measurements of labels, bound and residuals.
    branch_and_bound
        Branch on states until the best labelling is found and proven, if the relaxation is not tight.
    node_order
        Order in which open nodes are explored: ``"best"`` bound first, or ``"depth"`` first.
    node_iterations
        Maximum number of iterations at a node before it is branched on.

    Examples
    --------
    >>> import mapmrf
    >>> result = mapmrf.solve(mapmrf.datasets.potts_image(12, 16, labels=3).graph, "ad3")
    >>> result.status.value, result.kind.value
    ('optimal', 'valid')
    """

    name: ClassVar[str] = "ad3"
    title: ClassVar[str] = "LP relaxation by ADMM with exact factor steps (AD3)"
    family: ClassVar[str] = "ADMM"
    gives_bound: ClassVar[bool] = True
    native_constraints: ClassVar[bool] = True

    max_iterations: PositiveInt = _BY_MODE
    rho: PositiveFloat = 0.4
    rho_unit: Literal["relative", "absolute"] = "relative"
    adapt_every: NonNegativeInt = 20
    balance: Annotated[float, Range(1)] = 10.0
    rho_factor: Annotated[float, Range(1)] = 2.0
    rho_lower: PositiveFloat = 1e-3
    rho_upper: PositiveFloat = 1e3
    relaxation: Annotated[float, Range(0.1, 1.9)] = 1.0
    primal_tol: PositiveFloat = 1e-6
    dual_tol: PositiveFloat = 1e-6
    check_every: PositiveInt = 10
    branch_and_bound: bool = False
    node_order: Literal["best", "depth"] = "best"
    node_iterations: PositiveInt = 100

    def __post_init__(self) -> None:
        if self.max_iterations is None:
            object.__setattr__(self, "max_iterations", 10_000_000 if self.branch_and_bound else 2000)
        super().__post_init__()

    def supports(self, problem: Problem) -> str | None:
        widest = max((max(batch.shape) for batch in problem.batches if batch.arity == 2), default=0)
        if widest > MAX_STATES:
            return f"pairwise factors support at most {MAX_STATES} states per variable, this model has {widest}"
        return None

    def start(self, problem: Problem, seed: int, initial: Start) -> AD3Run:
        """Build the engine; mu starts from the warm start or an earlier run, otherwise from uniform marginals."""
        graph = problem.graph
        state = AD3Run(graph, initial.gap_tolerance)
        given = [] if initial.labels is None else [initial.labels]
        for labels in (segment_argmax(graph.theta_v, graph.var_ptr), *given):  # the loop already has these
            if self.branch_and_bound and state.incumbent is None:
                state.incumbent = Incumbent(graph, labels)
            state.note(labels, graph.value(labels), math.inf)
        hard = problem if impossible(problem) else harden(problem)
        if impossible(hard):
            return state
        state.admm = admm = ADMMRelaxation(self, hard)
        mu_v = np.repeat(1.0 / graph.card, graph.card)
        if initial.mu_v is not None:
            mu_v = initial.mu_v
        elif initial.labels is not None:
            mu_v = integral(problem, initial.labels)[0]
        warm = initial.dual
        if warm is None or not admm.engine.load_dual(warm, admm.limited(warm.rho * admm.unit)):
            admm.engine.begin(admm.engine.layout.compress(mu_v), admm.first_rho)
        return state

    def step(self, problem: Problem, state: AD3Run) -> Progress:
        if state.admm is None:
            return Progress(0, bound=-math.inf, finished=Status.INFEASIBLE)
        if state.tree is not None:
            return self._grow(state, state.tree)
        admm, left = state.admm, self.max_iterations - state.iterations
        due = self.check_every - state.iterations % self.check_every
        constraints = problem.graph.constraints
        work = problem.n_configs + (0 if constraints is None else 50 * len(constraints.var))
        n = min(due, left, max(1, pace.ADMM // max(1, work)))
        state.iterations += 0 if admm.engine.idle else n
        if n < min(due, left):
            admm.engine.run(n)
            return Progress(state.iterations, phase="lp", extra={"rho": admm.rho})
        found = admm.advance(n)
        labels, value = state.improved(problem, found.value)
        state.note(labels, value, found.bound)
        return Progress(
            iterations=state.iterations,
            labels=labels,
            value=value,
            bound=found.bound,
            finished=self._next(problem, state, admm),
            relaxed_value=found.relaxed,
            phase="lp",
            extra={"primal": admm.primal, "rho": admm.rho},
        )

    def _next(self, problem: Problem, state: AD3Run, admm: ADMMRelaxation) -> Status | None:
        """Decide after a measurement: stop, start branching, or balance rho and continue."""
        at_rest = admm.engine.idle or (admm.primal < self.primal_tol and admm.dual < self.dual_tol)
        if state.iterations >= self.max_iterations:
            return Status.CONVERGED if at_rest else Status.ITERATION_LIMIT
        if self.branch_and_bound and not admm.engine.idle and (at_rest or state.iterations >= ROOT_ITERATIONS):
            if state.certified:
                return Status.CONVERGED
            state.root = admm.engine.variables(), dense(problem, admm.engine.marginals_of(problem))
            assert state.incumbent is not None
            state.tree = Tree(admm, state.incumbent, problem, state.gap_tolerance)
            return None
        if at_rest:
            return Status.CONVERGED
        if self.adapt_every and state.iterations % self.adapt_every == 0:
            admm.rebalance()
        return None

    def _grow(self, state: AD3Run, tree: Tree) -> Progress:
        """Process nodes until the tree is finished or some milliseconds have passed."""
        affordable = max(1, pace.ADMM // max(1, tree.problem.n_configs))
        state.iterations += tree.run(min(affordable, self.max_iterations - state.iterations))
        best = tree.best
        state.note(best.labels, best.value, tree.bound)
        done = Status.INFEASIBLE if tree.bound == -math.inf else Status.CONVERGED
        finished = done if tree.done else None
        return Progress(state.iterations, best.labels, best.value, tree.bound, finished=finished, phase="branch")

    def close(self, problem: Problem, state: AD3Run) -> None:
        if state.admm is not None:
            state.admm.engine.close()

    def answer(self, problem: Problem, state: AD3Run) -> Answer:
        """The relaxed solution as it is; nothing once the gap is closed: the loop uses the labelling."""
        if state.admm is None:
            return Answer(bound=-math.inf)
        engine, dual = state.admm.engine, None
        if state.iterations > 0 and state.tree is None:  # every node of a tree has its own multipliers
            dual = engine.save_dual(state.admm.unit)
        if state.certified:
            return Answer(details=state.details(), dual=dual)
        if state.root is not None:
            return Answer(None, *state.root, details=state.details(), dual=dual)
        mu_v = engine.variables()
        mu_v[~problem.feasible_v] = 0.0  # the limit: no factor gives a forbidden state any mass
        return Answer(engine.labels.copy(), mu_v, engine.marginals_of(problem), details=state.details(), dual=dual)


@dataclass(eq=False)
class AD3Run:
    """State of a run: best value and bound, ADMM, the tree once it exists, and a local search for constraints.

    The loop keeps the best labelling; branch and bound needs its own, `incumbent`.
    """

    graph: FactorGraph
    gap_tolerance: float
    best_value: float = -math.inf
    best_bound: float = math.inf
    incumbent: Incumbent | None = None
    admm: ADMMRelaxation | None = None
    tree: Tree | None = None
    moves: ConstrainedSearch | None = None
    iterations: int = 0
    root: tuple[Floats, Floats] | None = None

    def improved(self, problem: Problem, value: float) -> tuple[Ints, float]:
        """Return the engine's labels and their value; with constraints, the best found by a short search from them."""
        assert self.admm is not None
        labels = self.admm.engine.labels
        if problem.graph.constraints is None or problem.n_vars == 0:
            return labels, value
        if self.moves is None:
            self.moves = ConstrainedSearch(problem, labels, 0)
        self.moves.restart(labels)
        self.moves.run(max(1, 1_000_000 // problem.n_states))  # a few milliseconds
        return self.moves.incumbent.labels, self.moves.incumbent.value

    @property
    def certified(self) -> bool:
        """Whether the best bound proves the best labelling optimal."""
        return is_closed(self.best_value, self.best_bound, self.graph.unit, self.gap_tolerance)

    def note(self, labels: Ints, value: float, bound: float) -> None:
        """Update the best value and bound, and the incumbent if branch and bound needs it."""
        if self.incumbent is not None:
            self.incumbent.offer(labels, value)
            self.incumbent.tighten(bound)
        self.best_value = max(self.best_value, value)
        self.best_bound = min(self.best_bound, bound)

    def details(self) -> dict[str, float]:
        assert self.admm is not None
        found = {"rho": self.admm.rho, "rho_unit": self.admm.unit, "primal": self.admm.primal, "dual": self.admm.dual}
        return found if self.tree is None else found | {"nodes": float(self.tree.nodes)}


class ADMMRelaxation:
    """ADMM on a model: the engine, the residuals of its last iteration, and the residual balancing of rho."""

    def __init__(self, options: AD3, problem: Problem) -> None:
        self.options = options
        self.engine = Engine(Layout.build(problem, compact=True), PenaltyOptions(relaxation=options.relaxation))
        self.unit = interaction_scale(problem)
        scale = self.unit if options.rho_unit == "relative" else 1.0
        self.first_rho = options.rho * scale
        self.limits = options.rho_lower * scale, options.rho_upper * scale
        self.factor, self.direction = options.rho_factor, 0
        self.primal = self.dual = math.inf

    @property
    def rho(self) -> float:
        """The penalty of the next iteration."""
        return self.engine.rho

    def advance(self, n: int) -> Measurement:
        """Run n iterations and measure, including both residuals."""
        engine, layout = self.engine, self.engine.layout
        size = max(1, engine.problem.n_edge_states + layout.n_items)  # rows mu_i(k) = copy
        if engine.idle:
            return engine.measure()
        if n > 1:
            engine.run(n - 1)
        before, rho = engine.mu.copy(), self.rho
        engine.run(1)
        found = engine.measure()
        self.primal = math.sqrt(found.primal2 / size)
        moved = squared_change(layout.variables, layout.items, engine.problem.graph.card, before, engine.mu)
        self.dual = rho / self.unit * math.sqrt(moved / size)
        return found

    def rebalance(self) -> None:
        """Raise rho if the primal residual dominates, lower it if the dual residual does."""
        limit = self.options.balance
        way = int(self.primal > limit * self.dual) - int(self.dual > limit * self.primal)
        if way == 0:
            return
        if way == -self.direction:
            self.factor = math.sqrt(self.factor)
        self.direction = way
        self.engine.change_rho(self.limited(self.rho * self.factor**way))

    def limited(self, rho: float) -> float:
        """Clip a penalty to its limits."""
        low, high = self.limits
        return min(max(rho, low), high)


# -- Branch and bound, with the dual of ADMM as the bound of every node -----------------------------------------------


@dataclass(frozen=True)
class Decision:
    """A variable takes the state, or must not take it."""

    variable: int
    state: int
    take: bool


@dataclass(order=True)
class Node:
    """A subproblem: its decisions, an upper bound, and the starting point of its ADMM."""

    key: tuple[float, int]
    depth: int = field(compare=False)
    bound: float = field(compare=False)
    decisions: tuple[Decision, ...] = field(compare=False)
    n_inherited: int = field(compare=False)
    mu: Floats = field(compare=False)
    lam: Floats = field(compare=False)
    iterations: int = field(default=0, compare=False)


class Tree:
    """The open nodes and the one that ADMM works on.

    A decision is imposed on ADMM by a bonus on the assigned state, or a penalty on the excluded one, which is larger
    than anything the variable's factors can gain against it. It is passed to the factors through the multipliers at
    once, so that a node continues from its parent's point. The contribution of the bonus is subtracted from the bound
    again.
    """

    def __init__(self, admm: ADMMRelaxation, best: Incumbent, model: Problem, gap_tolerance: float) -> None:
        self.admm, self.options, self.best, self.model = admm, admm.options, best, model
        self.gap_tolerance = max(0.0, gap_tolerance)
        self.engine: Engine = admm.engine
        self.problem = self.engine.problem
        self.theta = self.engine.layout.variables.theta.copy()
        self.rho = admm.rho
        self.root = self.engine.mu.copy(), self.engine.multipliers()
        self.fine = _spreads(self.problem)
        self.open: list[Node] = []
        self.nodes = 0
        self.cut_bound = -math.inf
        self._polish()
        bound = best.bound
        if math.isfinite(best.value):
            self.fine += max(0.0, bound - best.value)
        self.owner = np.repeat(np.arange(self.problem.n_vars), self.problem.graph.card)
        self.free = _free_states(self.problem)
        self.made = itertools.count()
        self.node: Node | None = Node(self._key(bound, 0), 0, bound, (), 0, *self.root)
        self.bonus = 0.0

    # -- bounds -------------------------------------------------------------------------------------------------------

    @property
    def slack(self) -> float:
        """How far above the incumbent a bound may be and still be pruned: half the gap that counts as closed."""
        return 0.5 * self.gap_tolerance * max(min(1.0, self.admm.unit), abs(self.best.value))

    @property
    def cut_at(self) -> float:
        """Nodes with a bound up to here are pruned."""
        return self.best.value + self.slack if math.isfinite(self.best.value) else -math.inf

    @property
    def bound(self) -> float:
        """Upper bound on all labellings: the largest over all open and pruned nodes."""
        top = max(self.cut_bound, self.best.value)
        if self.node is not None:
            top = max(top, self.node.bound)
        if not self.open:
            return top
        return max(top, self.open[0].bound if self.options.node_order == "best" else max(n.bound for n in self.open))

    @property
    def done(self) -> bool:
        """Whether no node is left."""
        return self.node is None and not self.open

    def _polish(self) -> None:
        """Offer the local optimum reached by single flips from the rounding of mu."""
        ascent, limit = Ascent(self.model), 1000 * self.model.n_vars
        ascent.restart(self.engine.labels)
        while not ascent.at_optimum and ascent.visits < limit:
            ascent.run(limit - ascent.visits)
        self.best.offer(ascent.labels)

    def _cut(self, bound: float) -> None:
        self.cut_bound = max(self.cut_bound, bound)

    # -- the search ---------------------------------------------------------------------------------------------------

    def run(self, n: int) -> int:
        """Run at most n iterations; return how many were done."""
        done = 0
        while done < n:
            if self.node is None and not self.activate():
                break
            assert self.node is not None
            left = max(1, self.options.node_iterations - self.node.iterations)
            step = min(n - done, self.options.check_every, left)
            self._work(self.node, step)
            done += step
        return done

    def activate(self) -> bool:
        """Select the next open node that is not pruned and set up ADMM for it."""
        while self.open:
            node = heapq.heappop(self.open)
            if node.bound <= self.cut_at:
                self._cut(node.bound)
                continue
            self.node = node
            self.nodes += 1
            self.bonus = self._decide(node)
            return True
        return False

    def _decide(self, node: Node) -> float:
        """Impose a node's decisions on ADMM; return their contribution to the value of labellings that keep them."""
        variables, items, lam = self.engine.layout.variables, self.engine.layout.items, node.lam.copy()
        variables.theta[:] = self.theta
        bonus = 0.0
        for number, one in enumerate(node.decisions):
            i = one.variable
            at, width = variables.var_at[i], variables.var_at[i + 1] - variables.var_at[i]
            edges = self.engine.layout.nbr_q[variables.nbr_ptr[i] : variables.nbr_ptr[i + 1]].astype(np.int64)
            push = self.fine[i] if one.take else -self.fine[i]
            place = one.state
            if width == 1:  # a difference of two states: shifted up or down, half of it counts
                bonus += 0.5 * self.fine[i]
                push, place = push if one.state == 1 else -push, 0
            elif one.take:
                bonus += push
            variables.theta[at + place] += push
            if number >= node.n_inherited and len(edges):
                lam[edges + place] += push / len(edges)
            elif number >= node.n_inherited and items is not None:
                mine = items.item[items.ptr[at + place] : items.ptr[at + place + 1]]
                sign = items.sign[mine]
                lam[items.q_at + mine] += np.where(sign == 0.0, 1.0, sign) * push / max(1, len(mine))
        self.engine.resume(node.mu, lam, self.rho)
        return bonus

    def _work(self, node: Node, n: int) -> None:
        """Run some iterations on a node; prune it or branch on it when due."""
        before = node.bound
        found = self.admm.advance(n)
        now = found.bound - self.bonus
        node.iterations += n
        node.bound = min(node.bound, now)
        if found.changed or node.iterations == n:
            self.best.offer(self.engine.labels)
        if node.bound <= self.cut_at:
            self._cut(node.bound)
            self.node = None
            return
        converged = max(self.admm.primal, self.admm.dual) < 1e-4
        stalled = node.iterations > n and before - node.bound < 0.1 * (node.bound - self.best.value)
        if converged or stalled or node.iterations >= self.options.node_iterations:
            self.branch(node, now)
            self.node = None

    def branch(self, node: Node, now: float) -> None:
        """Exclude states that cannot beat the incumbent, and branch on the most fractional remaining variable."""
        self._polish()
        left = self.states_left(node)
        with_state = np.where(left, np.minimum(node.bound, now - self.losses()), -math.inf)
        alive = with_state > self.cut_at
        self._cut(float(np.max(with_state[~alive], initial=-math.inf)))
        ptr = self.problem.graph.var_ptr
        count = np.add.reduceat(alive.astype(np.int64), ptr[:-1])
        if count.min() == 0:
            return
        if count.max() == 1:
            labels = np.flatnonzero(alive) - ptr[:-1]
            self.best.offer(labels)
            self._cut(self.best.evaluate(labels))
            return
        struck = self._strike(left & ~alive, alive, count)
        i, k = self._choose(alive, count)
        mine = slice(int(ptr[i]), int(ptr[i + 1]))
        rest = np.where(np.arange(mine.stop - mine.start) != k, with_state[mine], -math.inf)
        start = self.engine.mu.copy(), self.engine.multipliers()
        for bound, take in ((float(with_state[mine.start + k]), True), (float(rest.max()), False)):
            self._push(node, bound, (*struck, Decision(i, k, take)), start)

    def _push(self, node: Node, bound: float, new: tuple[Decision, ...], start: tuple[Floats, Floats]) -> None:
        decisions, inherited = (*node.decisions, *new), len(node.decisions)
        if (len(self.open) + 1) * (len(start[0]) + len(start[1])) > STORED:
            start, inherited = self.root, 0
        heapq.heappush(
            self.open, Node(self._key(bound, node.depth + 1), node.depth + 1, bound, decisions, inherited, *start)
        )

    def _key(self, bound: float, depth: int) -> tuple[float, int]:
        """Smallest first; among equals, the most recent."""
        return (-bound if self.options.node_order == "best" else -float(depth), -next(self.made))

    def states_left(self, node: Node) -> Bools:
        """Return the states that a node's decisions leave."""
        ptr, left = self.problem.graph.var_ptr, self.free.copy()
        for one in node.decisions:
            place = ptr[one.variable] + one.state
            if one.take:
                left[ptr[one.variable] : ptr[one.variable + 1]] = False
            left[place] = one.take
        return left

    def _choose(self, alive: Bools, count: Ints) -> tuple[int, int]:
        """Return the branching variable, fractional and with large losses, and its likeliest state."""
        ptr = self.problem.graph.var_ptr
        mu_v = np.where(alive, np.clip(self.engine.variables(), TINY, 1.0), 0.0)
        fraction = 1.0 + TINY - segment_max(mu_v, ptr)
        i = int(np.argmax(np.where(count > 1, fraction * self.fine, -math.inf)))
        return i, int(np.argmax(mu_v[ptr[i] : ptr[i + 1]]))

    def _strike(self, dead: Bools, alive: Bools, count: Ints) -> tuple[Decision, ...]:
        """Return decisions that exclude the dead states; if one state is left, it is assigned."""
        ptr = self.problem.graph.var_ptr
        found = []
        for i in np.unique(self.owner[dead]):
            begin, end = int(ptr[i]), int(ptr[i + 1])
            if count[i] == 1:
                found.append(Decision(int(i), int(np.argmax(alive[begin:end])), True))
            else:
                found.extend(Decision(int(i), int(k), False) for k in np.flatnonzero(dead[begin:end]))
        return tuple(found)

    def losses(self) -> Floats:
        """Return lower bounds on the decrease of the dual bound when a variable takes a state, over all its factors."""
        lam_e = edge_states_of(self.engine, self.engine.multipliers())
        loss = np.zeros(self.problem.n_states)
        for batch in self.problem.batches:
            price = tables_of(self.engine, batch, slice(0, batch.n))
            mine = lam_e[batch.edge_states].reshape(batch.n, -1)
            for k in range(batch.arity):
                price = price + mine[:, batch.state_at[k] + batch.config[:, k]]
            top = price.max(axis=1)
            price = price.reshape(batch.n, *batch.shape)
            for k in range(batch.arity):
                others = tuple(j + 1 for j in range(batch.arity) if j != k)
                lost = top[:, None] - price.max(axis=others)
                np.add.at(loss, batch.var_at[:, k][:, None] + np.arange(batch.shape[k]), lost)
        return loss


def _spreads(problem: Problem) -> Floats:
    """Return, for every variable, a limit on the change of value by changing its state, ignoring forbidden entries."""
    graph = problem.graph
    unary, tables = segment_ends(graph.theta_v, graph.var_ptr), segment_ends(graph.theta_t, graph.table_ptr)
    total, of_factor = unary[1] - unary[0], (tables[1] - tables[0])[graph.table_of[problem.order]]
    if len(problem.weight):
        of_factor *= np.abs(problem.weight)
    of_factor = np.repeat(of_factor, np.diff(problem.scope_ptr))
    total += np.bincount(problem.scope, of_factor, problem.n_vars)
    if graph.constraints is not None:
        total += graph.constraints.size
    return 1.1 * total + 1e-3 * float(total.max(initial=0.0))


def _free_states(problem: Problem) -> Bools:
    """Return all states of the variables that have factors or constraints; the others are settled."""
    graph = problem.graph
    free = np.ones(len(graph.theta_v), dtype=bool)
    alone = isolated(problem)
    free[ranges(graph.var_ptr[alone], graph.card[alone])] = False
    free[graph.var_ptr[:-1] + segment_argmax(graph.theta_v, graph.var_ptr)] = True
    return free
