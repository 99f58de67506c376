"""The position of an LS-LP run in its phases, and the engine interface that they use, for whole models or parts."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

import numpy as np

from mapmrf.arrays import Floats, Ints
from mapmrf.engines.admm.engine import Engine
from mapmrf.engines.admm.measurement import Measurement
from mapmrf.engines.admm.penalty import PenaltyOptions
from mapmrf.errors import FormatError
from mapmrf.run.dual_state import MOST_NUMBERS, Array, DualState, put_back
from mapmrf.run.method import Start
from mapmrf.run.options import is_closed


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


class StartOptions(NamedTuple):
    """The options of LS-LP that define the initial mu, under the same names."""

    start_from: str
    noise: float


class SphereEngine(Protocol):
    """The engine interface used by the phases, for a whole model or its parts."""

    mu: Floats
    labels: Ints

    @property
    def rho(self) -> float:
        """The penalty of the next iteration."""

    @property
    def last_rho(self) -> float:
        """The penalty of the last iteration."""

    @property
    def at_centre(self) -> bool:
        """Whether the point to project is at the centre of the sphere."""

    def configure(self, options: PenaltyOptions) -> None:
        """Set the options of a phase."""

    def set_blocks(self, size: int) -> None:
        """Use a separate sphere for every `size` variables."""

    def begin(self, mu: Floats, rho: float, *, multipliers: bool = False) -> None:
        """Start a phase."""

    def begin_factor_sphere(self) -> None:
        """Put the sphere on the factors."""

    def run(self, n: int) -> None:
        """Run n iterations."""

    def measure(self) -> Measurement:
        """Measure labels, bound and residuals."""

    def inspect(self) -> Measurement:
        """Measure without storing new labels."""


@dataclass(eq=False)
class SphereRun(ABC):
    """The position of a run in the sequence of phases; the subclass defines whether it runs on a model or its parts.

    `best_value` and `best_bound` are the kernels' own figures, which control the phases: the loop keeps the labelling
    and evaluates it. `unit` is the scale of the interactions. `climbs`: the best labelling of a phase is improved when
    it ends, which needs the whole model; `improved` is the outcome, with its value, until the next step.
    """

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
    def starting_point(self, start: StartOptions, first: bool, number: int) -> Floats:
        """Return the initial mu: near uniform, at random labels, or as given by the warm start."""

    @abstractmethod
    def keep_rested(self, found: Measurement) -> None:
        """Keep the labelling to which a phase has converged, if it is the best of these."""

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

    def climb_first(self) -> None:  # noqa: B027
        """Improve the best states of the variables if that was not done."""

    def climb(self) -> None:  # noqa: B027
        """Improve the best labelling of the phase that has ended, and keep it if it is the best of all phases."""

    def save_dual(self) -> None:  # noqa: B027
        """Keep the multipliers of the LP phase, for warm starts of later runs."""

    def load_dual(self, rho: float) -> bool:
        """Start from the multipliers of an earlier run at this penalty; False if there are none that fit."""
        return False

    @property
    def the_engine(self) -> SphereEngine:
        """The engine of a feasible model."""
        assert self.engine is not None
        return self.engine

    @property
    def certified(self) -> bool:
        """Whether the best bound proves the best labelling optimal."""
        return is_closed(self.best_value, self.best_bound, self.gap_unit, self.initial.gap_tolerance)

    def note(self, found: Measurement) -> Measurement:
        """Update the best value and bound; return the measurement, with a better bound if there is one."""
        self.best_value = max(self.best_value, found.value)
        self.best_bound = min(self.best_bound, found.bound)
        return found


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
