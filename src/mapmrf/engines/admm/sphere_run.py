"""The phases of an LS-LP run: its options, its position in them, and what ends them; for whole models or parts."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, NamedTuple, Protocol

import numpy as np

from mapmrf.arrays import Floats, Ints
from mapmrf.engines.admm.engine import Engine
from mapmrf.engines.admm.measurement import Measurement
from mapmrf.engines.admm.penalty import NEVER, PenaltyOptions, SphereKind
from mapmrf.errors import FormatError
from mapmrf.run.method import MOST_NUMBERS, Array, DualState, Start, put_back
from mapmrf.run.options import NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt, Range, is_closed
from mapmrf.run.result import Status

SPHERES = {
    "variables": SphereKind.VARIABLES,
    "affine": SphereKind.AFFINE,
    "factors": SphereKind.OFF,  # on the factors: see `begin_factor_sphere`
    "off": SphereKind.OFF,
}

_BY_PRESET: Any = None
"""Default of an option that is set by the preset."""


@dataclass(frozen=True)
class PaperOptions:
    """The options of LS-LP that the paper has; `mapmrf.LSLP` describes them."""

    preset: Literal["default", "paper"] = "default"
    variant: Literal["tied", "free"] = "tied"
    sphere: Literal["variables", "affine", "factors", "off"] = "variables"
    rho: PositiveFloat = _BY_PRESET
    eta: Annotated[float, Range(1)] = _BY_PRESET
    rho_upper: PositiveFloat = _BY_PRESET
    epsilon: NonNegativeFloat = _BY_PRESET
    stop: Literal["plain", "paper"] = _BY_PRESET
    tol: PositiveFloat = _BY_PRESET
    read_out: Literal["best", "last"] = _BY_PRESET
    max_iterations: PositiveInt = _BY_PRESET


@dataclass(frozen=True)
class LSLPOptions(PaperOptions):
    """All options of LS-LP: those of the paper, and those of a run that has more than one phase."""

    # the penalty
    rho_unit: Literal["relative", "absolute"] = _BY_PRESET
    update_every: PositiveInt = 1
    sphere_weight: PositiveFloat = 1.0
    relaxation: PositiveFloat = 1.0
    freeze_after: NonNegativeInt = 0
    # the LP phase, starts, and labellings beside them
    lp_phase: bool = _BY_PRESET
    lp_rho: PositiveFloat = 0.4
    lp_iterations: NonNegativeInt = 1000
    starts: PositiveInt = _BY_PRESET
    start_from: Literal["uniform", "onehot"] = "uniform"
    noise: NonNegativeFloat = 1e-3
    sphere_block: NonNegativeInt = 0
    alternate_block: NonNegativeInt = _BY_PRESET
    warm_rho: PositiveFloat = 20.0
    beliefs: NonNegativeInt = _BY_PRESET
    climb: bool = _BY_PRESET
    # measuring and stopping
    check_every: PositiveInt = _BY_PRESET
    patience: PositiveInt = 3


class SpherePhase(NamedTuple):
    """A phase of the run, under the name shown in the trace.

    `spherical`: a start with a sphere, of this number. `certifying`: the LP phase before these. `believing`: belief
    propagation between them. `chaining`: chains of flips from the best labelling. `at_vertex`: the last phase, from
    there.
    """

    name: str
    number: int
    spherical: bool = False
    certifying: bool = False
    believing: bool = False
    chaining: bool = False
    at_vertex: bool = False
    done: int = 0


NO_PHASE = SpherePhase("", 0)


class SphereEngine(Protocol):
    """The part of `Engine` that the phases use, for a whole model or its parts."""

    mu: Floats
    labels: Ints

    @property
    def rho(self) -> float: ...
    @property
    def last_rho(self) -> float: ...
    @property
    def at_centre(self) -> bool: ...
    def configure(self, options: PenaltyOptions) -> None: ...
    def set_blocks(self, size: int) -> None: ...
    def begin(self, mu: Floats, rho: float, *, multipliers: bool = False) -> None: ...
    def begin_factor_sphere(self) -> None: ...
    def run(self, n: int) -> None: ...
    def measure(self) -> Measurement: ...
    def inspect(self) -> Measurement: ...


@dataclass(eq=False)
class SphereRun(ABC):
    """The position of a run in the sequence of phases; the subclass defines whether it runs on a model or its parts.

    `best_value` and `best_bound` are the kernels' own figures, which control the phases: the loop keeps the labelling
    and evaluates it. `unit` is the scale of the interactions. `climbs`: the best labelling of a phase is improved when
    it ends, which needs the whole model; `improved` is the outcome, with its value, until the next step.
    """

    options: LSLPOptions
    engine: SphereEngine | None
    unit: float
    seed: int
    initial: Start
    phase: SpherePhase = NO_PHASE
    waiting: list[SpherePhase] = field(default_factory=list)
    phase_began: int = 0
    iterations: int = 0
    calm: int = 0
    gaps: list[float] = field(default_factory=list)
    best_value: float = -math.inf
    best_bound: float = math.inf
    best_before: float = -math.inf
    climbs: bool = False
    improved: tuple[Ints, float] | None = None

    @property
    @abstractmethod
    def idle(self) -> bool:
        """Whether there is nothing to iterate on."""

    @property
    @abstractmethod
    def n_configs(self) -> int:
        """Configurations of all factors: the work of an iteration."""

    @property
    @abstractmethod
    def gap_unit(self) -> float:
        """The smallest denominator of a relative gap."""

    @abstractmethod
    def starting_point(self, first: bool, number: int) -> Floats:
        """Return the initial mu: near uniform, at random labels, or as given by the warm start."""

    @abstractmethod
    def keep_rested(self, found: Measurement) -> None:
        """Keep the labelling to which a phase has converged, if it is the best of these."""

    @property
    def the_engine(self) -> SphereEngine:
        """The engine of a feasible model."""
        assert self.engine is not None
        return self.engine

    @property
    def rho_unit(self) -> float:
        """The unit of the option rho."""
        return self.unit if self.options.rho_unit == "relative" else 1.0

    @property
    def certified(self) -> bool:
        """Whether the best bound proves the best labelling optimal, in a run that stops at that."""
        closed = is_closed(self.best_value, self.best_bound, self.gap_unit, self.initial.gap_tolerance)
        return self.options.stop == "plain" and closed

    def note(self, found: Measurement) -> Measurement:
        """Update the best value and bound; return the measurement, with a better bound if there is one."""
        self.best_value = max(self.best_value, found.value)
        self.best_bound = min(self.best_bound, found.bound)
        return found

    # -- what a run on a whole model may do beside ADMM ---------------------------------------------------------------

    @property
    def may_believe(self) -> bool:
        """Whether there is time for belief propagation."""
        return False

    @property
    def n_turns(self) -> int:
        """How many phases wait and take turns with the present one."""
        return 0

    @property
    def has_had_its_turn(self) -> bool:
        """Whether it is the turn of another phase."""
        return False

    def put_back(self) -> None:  # noqa: B027
        """Let the phase wait for its next turn."""

    def choose(self) -> Status | None:
        """Put the phase that comes next in front; a status if none should."""
        return None

    def climb_first(self) -> None:  # noqa: B027
        """Improve the best states of the variables if that was not done."""

    def climb(self) -> None:  # noqa: B027
        """Improve the best labelling of the phase that has ended, and keep it if it is the best of all phases."""

    def vertex(self) -> tuple[Floats, float] | None:
        """Return the vertex of the best labelling and a rho at which it is stable; None if there is no need."""
        return None

    def save_dual(self) -> None:  # noqa: B027
        """Keep the multipliers of the LP phase, for warm starts of later runs."""

    def load_dual(self, rho: float) -> bool:
        """Start from the multipliers of an earlier run at this penalty; False if there are none that fit."""
        return False

    def has_failed(self, found: Measurement) -> bool:
        """Return whether a start will not arrive at the sphere."""
        return False

    def may_close(self, found: Measurement) -> bool:
        """Return whether the relaxation is so far from solved that it may still close most of the gap."""
        return False

    # -- the beginning of a phase -------------------------------------------------------------------------------------

    def begin(self) -> None:
        """Begin the first phase."""
        options = self.options
        lp = SpherePhase("lp", 0, certifying=options.sphere != "off")
        self.waiting = [lp] if options.lp_phase or options.sphere == "off" else []
        if options.sphere != "off":
            if self.waiting and options.beliefs and self.may_believe:
                self.waiting.append(SpherePhase("beliefs", 0, believing=True))
            self.waiting += [SpherePhase(f"sphere {k}", k, spherical=True) for k in range(options.starts)]
            if self.climbs:
                self.waiting.append(SpherePhase("chains", 0, chaining=True))
                self.waiting.append(SpherePhase("vertex", 0, spherical=True, at_vertex=True))
        self._begin(self.waiting.pop(0))

    def _begin(self, phase: SpherePhase) -> None:
        """Set up the engine for a phase: penalty, sphere and starting point."""
        engine, options, warm = self.the_engine, self.options, self.initial.labels is not None
        if self.phase.certifying:
            self.save_dual()
        vertex = self.vertex() if phase.at_vertex else None
        first = phase.spherical and phase.number == 0 and vertex is None
        carry_on = first and options.lp_phase and not warm
        self.phase, self.phase_began, self.calm = phase, self.iterations - phase.done, 0
        self.gaps = []
        self.best_before = self.best_value
        if phase.believing or phase.chaining or phase.done:
            return
        rho = options.lp_rho * self.unit if phase.certifying else options.rho * self.rho_unit
        if vertex is not None:
            mu, rho = vertex
        elif carry_on:
            mu = engine.mu.copy()
        else:
            mu = self.starting_point(first, phase.number)
        engine.configure(self._penalty(phase))
        engine.set_blocks(self._block(phase))
        if phase.spherical or not self.load_dual(rho):
            engine.begin(mu, rho * options.warm_rho if first and warm else rho, multipliers=carry_on)
        if options.sphere == "factors" and phase.spherical:
            engine.begin_factor_sphere()

    def _block(self, phase: SpherePhase) -> int:
        """Variables per sphere; one each at a vertex, where nothing needs to be exchanged between variables."""
        if phase.at_vertex:
            return 1
        other = self.options.alternate_block
        return other if phase.number % 2 and other else self.options.sphere_block

    def _penalty(self, phase: SpherePhase) -> PenaltyOptions:
        """The engine's options for a phase; the LP phase has a fixed rho and no sphere."""
        options = self.options
        return PenaltyOptions(
            sphere=SPHERES[options.sphere] if phase.spherical else SphereKind.OFF,
            sphere_weight=options.sphere_weight,
            epsilon=options.epsilon,
            free=options.variant == "free",
            relaxation=options.relaxation,
            eta=1.0 if phase.certifying else options.eta,
            rho_upper=math.inf if phase.at_vertex else options.rho_upper * self.rho_unit,
            update_every=options.update_every,
            freeze_after=options.freeze_after or NEVER,
        )

    # -- the end of a phase -------------------------------------------------------------------------------------------

    def next(self, found: Measurement) -> Status | None:
        """Decide after a measurement: continue, begin the next phase, or stop."""
        phase, limit = self.phase, self.options.max_iterations
        over = self._lp_is_over(found) if phase.certifying else self._at_rest(found)
        if over and not phase.certifying:
            self.keep_rested(found)
        if self.iterations >= limit:
            self.climb()
            return Status.CONVERGED if over and not self.waiting else Status.ITERATION_LIMIT
        stalled = phase.certifying and not over and self._lp_stalls(found)
        if over or stalled or self.idle:
            return self.advance(unfinished=stalled and self.n_turns > 0)
        failed = self.has_failed(found)
        if failed or self._is_spent:
            self.climb()
            if failed or (self.climbs and not self.best_value > self.best_before):
                self._leave_out()  # other starts of this kind would not arrive either
            return self.advance()
        return self.advance(unfinished=True) if self.has_had_its_turn else None

    def advance(self, unfinished: bool = False) -> Status | None:
        """End a phase, or its turn: improve its labelling and begin the next phase, or stop."""
        self.climb()
        if unfinished:
            self.put_back()
        if not self.waiting or self.idle:
            return Status.CONVERGED
        if self.certified:
            return None  # the loop notices the closed gap and ends the run
        finished = self.choose()
        if finished is None:
            self._begin(self.waiting.pop(0))
        return finished

    def _leave_out(self) -> None:
        """Leave out the starts of the same kind as the present one."""
        same = 2 if self.options.alternate_block else 1
        self.waiting = [
            other
            for other in self.waiting
            if not other.spherical or other.at_vertex or (other.number - self.phase.number) % same != 0
        ]

    @property
    def _is_spent(self) -> bool:
        """Whether a start has used its fair share of the iterations while others are waiting."""
        if not self.phase.spherical or not self.waiting:
            return False
        n_starts = sum(phase.spherical for phase in self.waiting) + 1
        share = (self.options.max_iterations - self.phase_began) // n_starts
        if self.climbs:
            share = min(share, 900)  # rho has been at its limit for a while then
        return self.iterations - self.phase_began >= share

    def _at_rest(self, found: Measurement) -> bool:
        """Evaluate the stopping rule of a phase."""
        engine, tol = self.the_engine, self.options.tol
        if self.options.stop == "paper":
            weight = math.sqrt(engine.last_rho / 2)
            below = weight * math.sqrt(found.primal2) < tol and weight * math.sqrt(found.sphere2) < tol
            return bool(below and not (self.phase.spherical and engine.at_centre))
        self.calm = self.calm + 1 if found.changed == 0 else 0
        if self.phase.spherical:
            return self.calm >= self.options.patience and max(found.integrality, found.primal_max) < tol
        return self._solves_lp(found)

    def _solves_lp(self, found: Measurement) -> bool:
        """Return whether mu is consistent and the bound equals its value: the duals may converge later than mu."""
        gap, tol = abs(found.bound - found.relaxed), self.options.tol
        return found.primal_max < tol and gap < tol * max(1.0, abs(found.bound))

    def _lp_is_over(self, found: Measurement) -> bool:
        """Return whether the LP phase should end: on convergence, or at its limit."""
        done, limit = self.iterations - self.phase_began, self.options.lp_iterations
        return self._solves_lp(found) or done >= limit * (2 if self.may_close(found) else 1)

    def _lp_stalls(self, found: Measurement) -> bool:
        """Return whether a relative gap above 1 % has not shrunk by a tenth within six measurements.

        A narrow gap that stalls is worth waiting for: often the bound is exact and only the labels have not converged.
        """
        gaps, window = self.gaps, 6
        gaps.append(self.best_bound - self.best_value)
        stalled = len(gaps) > window and gaps[-1] > 0.9 * gaps[-1 - window] and not self.may_close(found)
        return stalled and gaps[-1] > 0.01 * max(1.0, abs(self.best_value))


# -- Saving and restoring the changing state of an ADMM run -----------------------------------------------------------


RUN_FIGURES = ("unit", "phase_began", "iterations", "calm", "gaps", "best_value", "best_bound", "best_before")

ENGINE_ARRAYS = ("mu", "lam_v", "q")

FACTOR_ARRAYS = ("s", "slots", "x", "n_slots")

SPHERE_ARRAYS = ("target2", "norm2", "scale", "off2")


def engine_state(engine: Engine) -> dict[str, Array]:
    """Return all arrays that an engine changes during a run."""
    arrays: dict[str, Array] = {name: getattr(engine, name) for name in ENGINE_ARRAYS}
    arrays |= {name: getattr(engine.factors, name) for name in FACTOR_ARRAYS}
    arrays |= {f"sphere_{name}": getattr(engine.sphere, name) for name in SPHERE_ARRAYS}
    if engine.factor_sphere is not None:
        sphere = engine.factor_sphere
        arrays |= {"pull": engine.factors.pull, "factor_lam": sphere.lam, "factor_upsilon": sphere.upsilon}
        arrays |= {"factor_mu": sphere.mu_f, "factor_off2": np.array([sphere.off2])}
    return arrays | {"labels": engine.labels, "penalty": engine.penalty.view(np.uint8)}


def restore_engine(engine: Engine, block: int, arrays: dict[str, Array]) -> None:
    """Restore the arrays of an engine; they must belong to the same model and options."""
    if not 0 <= block <= len(engine.labels):
        raise FormatError(f"the checkpoint has spheres on {block} variables each, expected 0 to {len(engine.labels)}")
    engine.set_blocks(block)
    put_back(engine.penalty.view(np.uint8), arrays, "penalty")
    engine.has_sphere = bool(engine.penalty[0].sphere)
    if "factor_lam" in arrays:
        engine.begin_factor_sphere()
        assert engine.factor_sphere is not None
        engine.factor_sphere.off2 = float(arrays["factor_off2"][0])
    for name, array in engine_state(engine).items():
        put_back(array, arrays, name)


def run_state(run: SphereRun) -> dict[str, Any]:
    """Return the position of a run in its phases."""
    figures = {name: getattr(run, name) for name in RUN_FIGURES}
    return figures | {"phase": list(run.phase), "waiting": [list(phase) for phase in run.waiting]}


def restore_run(run: SphereRun, figures: dict[str, Any]) -> None:
    """Restore the position of a run in its phases."""
    for name in RUN_FIGURES:
        known = list if name == "gaps" else int | float
        if not isinstance(figures[name], known):
            raise FormatError(f"the checkpoint's {name}: found {figures[name]!r}, expected another kind of value")
        setattr(run, name, figures[name])
    run.phase = SpherePhase(*figures["phase"])
    run.waiting = [SpherePhase(*phase) for phase in figures["waiting"]]


# Warm starts of ADMM: multipliers of one run as the starting point of another on a model of the same structure.


def save_multipliers(engine: Engine, unit: float) -> DualState | None:
    """Return multipliers, mu and the penalty in units of the interaction; None if they are too large to be kept."""
    if len(engine.q) > MOST_NUMBERS:
        return None
    rho = engine.rho / unit
    return DualState.of(engine.problem, _layout(engine), engine.multipliers(), rho=rho, mu_v=engine.variables())


def load_multipliers(engine: Engine, given: DualState, rho: float) -> bool:
    """Start from what `save_multipliers` returned, at this penalty; return False and do nothing if it does not fit."""
    lam = given.values_for(engine.problem, _layout(engine), len(engine.q))
    if lam is None or given.mu_v is None or len(given.mu_v) != engine.problem.n_states:
        return False
    mu_v = np.where(engine.problem.feasible_v, given.mu_v, 0.0)
    engine.resume(engine.layout.compress(mu_v), lam, rho)
    return True


def _layout(engine: Engine) -> str:
    """Name the layout of q: its states and their order."""
    kinds = " ".join(str(row.kind) for row in engine.layout.rows)
    return f"admm {'compact' if engine.layout.compact else 'full'} {kinds}"
