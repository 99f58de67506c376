"""LS-LP: the LP relaxation with an l2-sphere, solved by perturbed ADMM (Wu, Shen, Zhang, Ghanem, IJCV 2020)."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np

from mapmrf.arrays import Floats, Ints, segment_argmax
from mapmrf.engines.admm import penalty as K
from mapmrf.engines.admm.engine import Engine, Look
from mapmrf.engines.admm.forest_qp import MAX_STATES
from mapmrf.engines.admm.kkt import kkt_residuals
from mapmrf.engines.admm.layout import Layout, harden, impossible, interaction_scale
from mapmrf.method import Answer, Method, Progress, Start
from mapmrf.options import check_above, check_at_least, check_choice
from mapmrf.polytope import integral
from mapmrf.problem import Problem
from mapmrf.result import GAP_TOLERANCE, Status, relative_gap

_DEFAULTS: dict[str, Any] = {
    "rho": 0.25,
    "rho_unit": "relative",
    "eta": 1.01,
    "rho_upper": 200.0,
    "epsilon": 0.0,
    "starts": 5,
    "alternate_block": 16,
    "lp_phase": True,
    "stop": "plain",
    "tol": 2e-5,
    "read_out": "best",
    "check_every": 10,
    "max_iterations": 6000,
}
_PAPER: dict[str, Any] = {
    "rho": 0.1,
    "rho_unit": "absolute",
    "eta": 1.03,
    "rho_upper": 1e6,
    "epsilon": 1e-5,
    "starts": 1,
    "alternate_block": 0,
    "lp_phase": False,
    "stop": "paper",
    "tol": 1e-5,
    "read_out": "last",
    "check_every": 1,
    "max_iterations": 500,
}
PRESETS = {"default": _DEFAULTS, "paper": _PAPER}
_BY_PRESET: Any = None
"""Default of an option that the preset decides."""

STEP_WORK = 2_000_000
"""Table entries that one step may touch: some tens of milliseconds."""
STALL_LOOKS, WIDE_GAP = 6, 0.01
"""The LP phase gives up when a relative gap this wide has not shrunk by a tenth within so many looks."""
MAX_KKT_STATES = 4_000_000
"""Edge states up to which a run ends with the epsilon-KKT report."""
MAX_RIDGE_CONFIGS = 64
"""Largest table for `sphere="factors"`, whose factor step is a dense quadratic program."""


@dataclass(frozen=True)
class LSLP(Method):
    """Maximise ``<theta, mu>`` over the local polytope and a sphere, which together leave only the integer labellings.

    Options that are None take the value of the preset. `default` is scale-free: it measures rho in units of the
    model's mean interaction. `paper` runs the algorithm as the paper prints it, in absolute units.

    Attributes
    ----------
    preset
        ``"default"`` or ``"paper"``.
    variant
        ``"tied"`` (the paper's algorithm: x-bar is a copy of mu) or ``"free"`` (what its proof needs). They differ only
        for epsilon > 0.
    sphere
        ``"variables"`` (the paper's), ``"affine"`` (within the affine hull of the simplices), ``"factors"`` (as in the
        authors' code) or ``"off"`` (the plain LP).
    sphere_weight
        Penalty of the sphere's rows relative to that of the edges' rows.
    sphere_block, alternate_block
        Variables per sphere, 0 for one sphere over all; and the same for every second start, 0 for no difference.
    rho, rho_unit, eta, rho_upper, update_every
        First penalty, its unit (``"relative"`` to the interaction or ``"absolute"``), its growth every `update_every`
        iterations, and its limit, in the same unit.
    epsilon
        The paper's perturbation.
    relaxation
        Over-relaxation of the copies; 1 is none.
    freeze_after
        Iterations after which the sphere's multiplier stays as it is; 0 for never.
    start_from, noise
        Where mu begins: ``"uniform"`` plus seeded noise of this size, or a random ``"onehot"`` labelling.
    starts
        How many times the sphere phase is run, each from another seeded start; the best labelling counts. A start that
        does not come to rest ends when it has used its share of the iterations.
    warm_rho
        Factor on the first rho when the run starts from a given labelling, so that it is not forgotten.
    lp_phase, lp_rho, lp_iterations
        Solve without the sphere first, which certifies easy models; its fixed relative penalty and iteration limit.
    stop, tol, patience
        ``"plain"``: mu integer and consistent within `tol` and labels unchanged for `patience` looks; without a sphere
        consistent, and bound and ``<theta, mu>`` equal, within `tol`. ``"paper"``: both weighted residuals below `tol`.
    read_out
        ``"best"`` labelling seen at any look, or the ``"last"`` one.
    check_every
        Iterations between two looks at labels, bound and residuals.
    max_iterations
        Iterations of all phases together.

    Examples
    --------
    >>> import mapmrf
    >>> from mapmrf.datasets import grid
    >>> result = mapmrf.solve(grid(6, 6, coupling=2.0, seed=1), mapmrf.LSLP(starts=5))
    >>> round(result.value, 6), result.kind.value
    (55.647253, 'valid')
    """

    name: ClassVar[str] = "lslp"
    title: ClassVar[str] = "l2-sphere LP by perturbed ADMM"
    gives_bound: ClassVar[bool] = True

    preset: str = "default"
    variant: str = "tied"
    sphere: str = "variables"
    sphere_weight: float = 1.0
    sphere_block: int = 0
    alternate_block: int = _BY_PRESET
    rho: float = _BY_PRESET
    rho_unit: str = _BY_PRESET
    eta: float = _BY_PRESET
    rho_upper: float = _BY_PRESET
    update_every: int = 1
    epsilon: float = _BY_PRESET
    relaxation: float = 1.0
    freeze_after: int = 0
    start_from: str = "uniform"
    noise: float = 1e-3
    starts: int = _BY_PRESET
    warm_rho: float = 20.0
    lp_phase: bool = _BY_PRESET
    lp_rho: float = 0.4
    lp_iterations: int = 1000
    stop: str = _BY_PRESET
    tol: float = _BY_PRESET
    patience: int = 3
    read_out: str = _BY_PRESET
    check_every: int = _BY_PRESET
    max_iterations: int = _BY_PRESET

    def __post_init__(self) -> None:
        check_choice(self, "preset", PRESETS)
        for name, value in PRESETS[self.preset].items():
            if getattr(self, name) is None:
                object.__setattr__(self, name, value)  # the one place: a preset fills what was left open
        _check(self)

    @property
    def stops_at_gap(self) -> bool:
        """The paper's rule knows no bound."""
        return self.stop == "plain"

    def supports(self, problem: Problem) -> str | None:
        """Everything, but for a sphere on large factors and pairs of huge variables."""
        widest = max((max(batch.shape) for batch in problem.batches if batch.arity == 2), default=0)
        if widest > MAX_STATES:
            return f"pairs take variables of at most {MAX_STATES} states, this model has one of {widest}"
        largest = max((batch.n_configs for batch in problem.batches), default=0)
        if self.sphere == "factors" and largest > MAX_RIDGE_CONFIGS:
            return f"sphere='factors' takes tables of at most {MAX_RIDGE_CONFIGS} entries, this model has {largest}"
        return None

    # -- the run ----------------------------------------------------------------------------------------------------

    def start(self, problem: Problem, seed: int, initial: Start) -> _State:
        """Lay the problem out and begin the first phase."""
        hard = problem if impossible(problem) else harden(problem)
        if impossible(hard):
            return _State(problem, None, 1.0, seed, initial)
        layout = Layout.build(hard, compact=self.epsilon == 0, ridge=self.sphere == "factors")
        engine = Engine(layout, K.SPHERE_OFF, self.sphere_block)
        engine.update_every = self.update_every
        engine.freeze_after = self.freeze_after or 2**62
        unit = interaction_scale(hard)
        state = _State(hard, engine, unit, seed, initial)
        given = [] if initial.labels is None else [initial.labels]
        for labels in (segment_argmax(problem.graph.theta_v, problem.graph.var_ptr), *given):  # the loop has these
            state.best_value = max(state.best_value, problem.graph.value(labels))
        state.phases = self._phases()
        self._begin(state, state.phases.pop(0))
        return state

    def _phases(self) -> list[str]:
        if self.sphere == "off":
            return ["lp"]
        sphere = [f"sphere {number}" for number in range(self.starts)]
        return ["lp", *sphere] if self.lp_phase else sphere

    def _begin(self, state: _State, phase: str) -> None:
        """Set the engine up for a phase: its penalty, its sphere, its start."""
        engine = state.the_engine
        par = engine.par
        lp = phase == "lp"
        number = 0 if lp else int(phase.removeprefix("sphere "))
        first = phase == "sphere 0"
        carry_on = first and state.phase == "lp" and state.initial.labels is None
        unit = state.unit if self.rho_unit == "relative" else 1.0
        par[K.EPSILON], par[K.FREE] = self.epsilon, self.variant == "free"
        par[K.WEIGHT], par[K.RELAX] = self.sphere_weight, self.relaxation
        par[K.SPHERE] = K.SPHERE_OFF if lp else _SPHERES[self.sphere]
        plain_lp = lp and self.sphere != "off"
        par[K.ETA] = 1.0 if plain_lp else self.eta
        par[K.RHO_UPPER] = self.rho_upper * unit
        rho = self.lp_rho * state.unit if plain_lp else self.rho * unit
        if not lp and state.initial.labels is not None and first:
            rho *= self.warm_rho
        mu = engine.mu.copy() if carry_on else self._starting_point(state, first, number)
        engine.set_blocks(self.alternate_block if number % 2 and self.alternate_block else self.sphere_block)
        engine.k = 0
        engine.begin(mu, rho, multipliers=carry_on)
        if self.sphere == "factors" and not lp:
            engine.begin_factor_sphere(self.freeze_after)
        state.phase, state.phase_began, state.calm = phase, state.iterations, 0
        state.gaps = []

    def _starting_point(self, state: _State, first: bool, number: int) -> Floats:
        """A point near uniform, at random labels, or where the user wants it."""
        problem, engine = state.problem, state.the_engine
        graph = problem.graph
        if first and state.initial.mu_v is not None:
            return engine.compress(state.initial.mu_v)
        if first and state.initial.labels is not None:
            return engine.compress(integral(problem, state.initial.labels)[0])
        rng = np.random.default_rng([state.seed, number])
        if self.start_from == "onehot":
            return engine.compress(integral(problem, rng.integers(0, graph.card))[0])
        mu_v = rng.uniform(-self.noise, self.noise, problem.n_states)
        same = problem.n_vars > 0 and bool(np.all(graph.card == graph.card[0]))
        mu_v += 1.0 / graph.card[0] if same else np.repeat(1.0 / graph.card, graph.card)
        return engine.compress(mu_v)

    def step(self, problem: Problem, state: _State) -> Progress:
        """Some iterations; where a look is due, labels, bound and residuals, and perhaps the next phase."""
        if state.engine is None:
            return Progress(0, bound=-math.inf, finished=Status.INFEASIBLE)
        engine = state.engine
        every = self.check_every
        due = every - (state.iterations - state.phase_began) % every
        affordable = max(1, STEP_WORK // max(1, state.problem.n_configs))
        n = min(due, affordable, self.max_iterations - state.iterations)
        if n > 0 and problem.n_factors:
            engine.run(n)
        state.iterations += max(n, 0)
        if n < due and state.iterations < self.max_iterations and problem.n_factors:
            return Progress(state.iterations, phase=state.phase, extra={"rho": float(engine.par[K.RHO])})
        look = engine.look()
        state.note(look)
        phase, rho = state.phase, float(engine.par[K.LAST_RC] / engine.par[K.C])  # of this look, not of the next phase
        finished = self._next(state, look)
        return Progress(
            iterations=state.iterations,
            labels=engine.labels if self.read_out == "best" or finished else None,
            value=look.value,
            bound=look.bound,
            finished=finished,
            relaxed_value=look.relaxed,
            phase=phase,
            extra={"primal": math.sqrt(look.primal2), "sphere": math.sqrt(look.sphere2), "rho": rho},
        )

    def _next(self, state: _State, look: Look) -> Status | None:
        """After a look: go on, begin the next phase, or stop."""
        certifying = state.phase == "lp" and self.sphere != "off"
        over = self._lp_is_over(state, look) if certifying else self._at_rest(state, look)
        if over and not certifying and look.value > state.rested_value:
            state.rested_value, state.rested_labels = look.value, state.the_engine.labels.copy()
        if state.iterations >= self.max_iterations:
            return Status.CONVERGED if over and not state.phases else Status.ITERATION_LIMIT
        if not over and not self._spent(state) and state.problem.n_factors:
            return None
        if not state.phases or state.problem.n_factors == 0:
            return Status.CONVERGED
        if self.stops_at_gap and state.certified:
            return None  # the loop sees the closed gap and ends the run
        self._begin(state, state.phases.pop(0))
        return None

    def _spent(self, state: _State) -> bool:
        """Whether a start has used its fair share of the iterations that were left, and others are waiting."""
        if state.phase == "lp" or not state.phases:
            return False
        share = (self.max_iterations - state.phase_began) // (len(state.phases) + 1)
        return state.iterations - state.phase_began >= share

    def _at_rest(self, state: _State, look: Look) -> bool:
        """The stopping rule of a phase."""
        engine = state.the_engine
        spherical = engine.par[K.SPHERE] > 0 or engine.factor_sphere is not None
        if self.stop == "paper":
            weight = math.sqrt(engine.par[K.LAST_RC] / engine.par[K.C] / 2)
            below = weight * math.sqrt(look.primal2) < self.tol and weight * math.sqrt(look.sphere2) < self.tol
            return bool(below and not (spherical and engine.at_centre))
        state.calm = state.calm + 1 if look.changed == 0 else 0
        if spherical:
            return state.calm >= self.patience and max(look.integrality, look.primal_max) < self.tol
        return self._solves_lp(look)

    def _solves_lp(self, look: Look) -> bool:
        """Whether mu is consistent and the bound equals its value: the first may come before the duals are right."""
        gap = abs(look.bound - look.relaxed)
        return look.primal_max < self.tol and gap < self.tol * max(1.0, abs(look.bound))

    def _lp_is_over(self, state: _State, look: Look) -> bool:
        """Whether the LP phase has nothing more to give: its limit, rest, or a wide gap that no longer closes.

        A narrow gap that stalls is worth waiting for: often the bound is exact and only the labels are still on their
        way.
        """
        state.gaps.append(state.best_bound - state.best_value)
        if state.iterations - state.phase_began >= self.lp_iterations or self._solves_lp(look):
            return True
        window = STALL_LOOKS
        stalled = len(state.gaps) > window and state.gaps[-1] > 0.9 * state.gaps[-1 - window]
        return stalled and state.gaps[-1] > WIDE_GAP * max(1.0, abs(state.best_value))

    def answer(self, problem: Problem, state: _State) -> Answer:
        """The best start that came to rest, else the last iterate; nothing once the gap is closed.

        At rest mu is a labelling within the tolerance, so that labelling's vertex stands for it. With the gap closed,
        the best labelling's own vertex is the answer, which the library knows.
        """
        engine = state.engine
        if engine is None:
            return Answer(bound=-math.inf)
        if self.stops_at_gap and state.certified:
            return Answer(details=self._details(state, kkt=False))
        if self.stop == "plain" and self.sphere != "off" and state.rested_labels is not None:
            mu_v, vertex = integral(problem, state.rested_labels)
            return Answer(engine.labels.copy(), mu_v, vertex, details=self._details(state))
        mu_f = engine.marginals_of(problem)
        mu_v = engine.variables()
        mu_v[~problem.feasible_v] = 0.0  # where it is heading: no factor gives a forbidden state any mass
        return Answer(engine.labels.copy(), mu_v, mu_f, details=self._details(state))

    def _details(self, state: _State, kkt: bool = True) -> dict[str, float]:
        """Final penalty, residuals plain and weighted, and the epsilon-KKT report of an iterate that is the answer."""
        engine = state.the_engine
        look = engine.look()
        rho = float(engine.par[K.LAST_RC] / engine.par[K.C])
        weight = math.sqrt(rho / 2)
        details = {
            "rho": rho,
            "rho_unit": state.unit,
            "primal": math.sqrt(look.primal2),
            "sphere": math.sqrt(look.sphere2),
            "primal_weighted": weight * math.sqrt(look.primal2),
            "sphere_weighted": weight * math.sqrt(look.sphere2),
            "integrality": look.integrality,
        }
        small = engine.problem.n_edge_states <= MAX_KKT_STATES
        return details | kkt_residuals(engine) if kkt and small else details


@dataclass(eq=False)
class _State:
    """State of a run: the engine and where in the sequence of phases it is."""

    problem: Problem
    engine: Engine | None
    unit: float
    seed: int
    initial: Start
    phase: str = ""
    phases: list[str] = field(default_factory=list)
    phase_began: int = 0
    iterations: int = 0
    calm: int = 0
    gaps: list[float] = field(default_factory=list)
    best_value: float = -math.inf
    best_bound: float = math.inf
    rested_value: float = -math.inf
    rested_labels: Ints | None = None

    @property
    def the_engine(self) -> Engine:
        assert self.engine is not None
        return self.engine

    @property
    def certified(self) -> bool:
        """Whether the best bound proves the best labelling."""
        gap = relative_gap(self.best_value, self.best_bound, self.problem.graph.unit)
        return gap is not None and gap <= GAP_TOLERANCE and self.best_value > -math.inf

    def note(self, look: Look) -> None:
        """Keep the best value and bound."""
        self.best_value = max(self.best_value, look.value)
        self.best_bound = min(self.best_bound, look.bound)


_SPHERES = {
    "variables": K.SPHERE_VARIABLES,
    "affine": K.SPHERE_AFFINE,
    "factors": K.SPHERE_OFF,
    "off": K.SPHERE_OFF,
}


def _check(method: LSLP) -> None:
    """Raise OptionError for an impossible option."""
    check_choice(method, "variant", ("tied", "free"))
    check_choice(method, "sphere", _SPHERES)
    check_choice(method, "rho_unit", ("relative", "absolute"))
    check_choice(method, "start_from", ("uniform", "onehot"))
    check_choice(method, "stop", ("plain", "paper"))
    check_choice(method, "read_out", ("best", "last"))
    check_above(method, 0, "rho", "rho_upper", "sphere_weight", "relaxation", "warm_rho", "lp_rho", "tol")
    check_at_least(method, 0, "epsilon", "noise", "sphere_block", "alternate_block", "freeze_after", "lp_iterations")
    check_at_least(method, 1, "eta", "update_every", "starts", "patience", "check_every", "max_iterations")
