"""AD3: the LP relaxation by ADMM with exact factor steps (Martins, Figueiredo, Aguiar, Smith, Xing, ICML 2011)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

import numpy as np

from mapmrf.arrays import Floats, Ints, segment_argmax
from mapmrf.engines.admm.forest_qp import MAX_STATES
from mapmrf.engines.admm.layout import harden, impossible
from mapmrf.engines.admm.relaxation import ADMMRelaxation, RelaxationOptions, Tree
from mapmrf.engines.moves.constrained_search import ConstrainedSearch
from mapmrf.model.graph import FactorGraph
from mapmrf.model.polytope import dense, integral
from mapmrf.model.problem import Problem
from mapmrf.run import pace
from mapmrf.run.incumbent import Incumbent
from mapmrf.run.method import Answer, Method, Progress, Start
from mapmrf.run.options import NonNegativeInt, PositiveFloat, PositiveInt, Range, is_closed
from mapmrf.run.result import Status

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

    @property
    def relaxation_options(self) -> RelaxationOptions:
        return RelaxationOptions(**{name: getattr(self, name) for name in RelaxationOptions._fields})

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
        state.admm = admm = ADMMRelaxation(self.relaxation_options, hard)
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
