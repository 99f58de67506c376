"""Where a run of LS-LP is: its phases, and what they ask of the engine, be it of a whole model or of its parts."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from mapmrf.arrays import Floats, Ints
from mapmrf.engines.admm.measurement import Measurement
from mapmrf.engines.admm.penalty import PenaltyOptions
from mapmrf.method import Start
from mapmrf.result import GAP_TOLERANCE, relative_gap


class SpherePhase(NamedTuple):
    """A phase of the run, by the name that the trace shows.

    `spherical`: with a sphere, the start of this number. `certifying`: the LP phase before these.
    """

    name: str
    number: int
    spherical: bool = False
    certifying: bool = False


NO_PHASE = SpherePhase("", 0)


class StartOptions(NamedTuple):
    """The options of LS-LP that say where mu begins, by their names there."""

    start_from: str
    noise: float


class SphereEngine(Protocol):
    """What the phases ask of an engine, be it of a whole model or of its parts."""

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
        """Whether the point to project lies at the centre of the sphere."""

    def configure(self, options: PenaltyOptions) -> None:
        """Set the options of a phase."""

    def set_blocks(self, size: int) -> None:
        """Put a sphere of its own on every `size` variables."""

    def begin(self, mu: Floats, rho: float, *, multipliers: bool = False) -> None:
        """Start a phase."""

    def begin_factor_sphere(self) -> None:
        """Put the sphere on the factors."""

    def run(self, n: int) -> None:
        """Do n iterations."""

    def measure(self) -> Measurement:
        """Read off labels, bound and residuals."""

    def inspect(self) -> Measurement:
        """Measure without moving on to new labels."""


@dataclass(eq=False)
class SphereRun(ABC):
    """Where in the sequence of phases a run is; what it runs on, a model or its parts, is up to the subclass.

    `best_value` and `best_bound` are the kernels' own figures and steer the phases: the loop keeps the labelling and
    evaluates it. `unit` is the scale of the interactions.
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
        """Where mu begins: near uniform, at random labels, or where the user wants it."""

    @abstractmethod
    def keep_rested(self, found: Measurement) -> None:
        """Keep the labelling at which a phase has converged, if it is the best of these."""

    def save_dual(self) -> None:  # noqa: B027
        """Keep the multipliers of the LP phase, where later runs can start from them."""

    def load_dual(self, rho: float) -> bool:
        """Start from the multipliers of an earlier run, with this penalty; False if there are none that fit."""
        return False

    @property
    def the_engine(self) -> SphereEngine:
        """The engine of a feasible model."""
        assert self.engine is not None
        return self.engine

    @property
    def certified(self) -> bool:
        """Whether the best bound proves the best labelling."""
        gap = relative_gap(self.best_value, self.best_bound, self.gap_unit)
        return gap is not None and gap <= GAP_TOLERANCE and self.best_value > -math.inf

    def note(self, found: Measurement) -> None:
        """Keep the best value and bound."""
        self.best_value = max(self.best_value, found.value)
        self.best_bound = min(self.best_bound, found.bound)
