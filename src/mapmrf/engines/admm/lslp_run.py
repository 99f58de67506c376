"""The run of LS-LP: its options, its phases and what ends them, and the search for labellings beside them."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Annotated, Any, Literal, NamedTuple

import numpy as np

from mapmrf.arrays import Floats, Ints
from mapmrf.engines.admm.engine import Engine
from mapmrf.engines.admm.measurement import Measurement
from mapmrf.engines.admm.penalty import NEVER, PenaltyOptions, SphereKind, vertex_penalty
from mapmrf.engines.messages.max_product import MessageRun
from mapmrf.engines.moves.labelling_search import LabellingSearch
from mapmrf.errors import FormatError
from mapmrf.model.polytope import dual_bound, integral
from mapmrf.model.problem import Problem
from mapmrf.run.incumbent import Incumbent, is_closed
from mapmrf.run.method import DualState, NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt, Range, Start
from mapmrf.run.repair import MOST_WORK, find_feasible
from mapmrf.run.result import Status

SPHERES = {
    "variables": SphereKind.VARIABLES,
    "affine": SphereKind.AFFINE,
    "factors": SphereKind.OFF,  # on the factors: see `Engine.begin_factor_sphere`
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


SLICE = 3e8
"""Work, in nanoseconds as `LSLPRun.work` estimates them, after which LP phase, beliefs and chains take turns."""
STEP_OF_CHAINS = 1e7  # work of a step of chains

RUN_FIGURES = ("unit", "phase_began", "iterations", "calm", "gaps", "best_value", "best_bound", "best_before")


class LSLPRun:
    """The position of a run in the sequence of phases; the subclass for models in parts overrides what is different.

    `original` is the model and `problem` the form that ADMM needs, which a model in parts does not have; `unit` is the
    scale of the interactions.

    `best_value` and `best_bound` are the kernels' own figures, which control the phases: the loop keeps the labelling
    and evaluates it. `climbs`: the best labelling of a phase is improved when it ends; `improved` is the outcome, with
    its value, until the next step. `rested` is the best labelling to which a phase has converged, `search` has the best
    of all phases, `saved` the multipliers of the LP phase.
    """

    original: Problem
    problem: Problem

    def __init__(
        self, options: LSLPOptions, engine: Engine | None, unit: float, seed: int, initial: Start, *problems: Problem
    ) -> None:
        self.options, self.engine, self.unit, self.seed, self.initial = options, engine, unit, seed, initial
        if problems:
            self.original, self.problem = problems
        self.phase, self.phase_began = NO_PHASE, 0
        self.waiting: list[SpherePhase] = []
        self.iterations = self.calm = 0
        self.gaps: list[float] = []
        self.best_value, self.best_bound, self.best_before = -math.inf, math.inf, -math.inf
        self.climbs = False
        self.improved: tuple[Ints, float] | None = None
        self.rested: Incumbent | None = None
        self.search: LabellingSearch | None = None
        self.read_out: Ints | None = None
        self.read_out_value = -math.inf
        self.messages: MessageRun | None = None
        self.message_iterations = 0
        self.saved: DualState | None = None

    @property
    def the_engine(self) -> Engine:
        """The engine of a feasible model."""
        assert self.engine is not None
        return self.engine

    @property
    def idle(self) -> bool:
        """Whether there is nothing to iterate on: no factors and no constraints."""
        return self.the_engine.idle

    @property
    def n_configs(self) -> int:
        """Configurations of all factors: the work of an iteration."""
        return self.problem.n_configs

    @property
    def gap_unit(self) -> float:
        """The smallest denominator of a relative gap."""
        return self.problem.graph.unit

    @property
    def rho_unit(self) -> float:
        """The unit of the option rho."""
        return self.unit if self.options.rho_unit == "relative" else 1.0

    @property
    def is_small(self) -> bool:
        """Whether there is time and memory for other engines beside ADMM."""
        return self.problem.n_edge_states <= 4_000_000

    @property
    def certified(self) -> bool:
        """Whether the best bound proves the best labelling optimal, in a run that stops at that."""
        closed = is_closed(self.best_value, self.best_bound, self.gap_unit, self.initial.gap_tolerance)
        return self.options.stop == "plain" and closed

    def note(self, found: Measurement) -> Measurement:
        """Update the best value and bound, and the best labelling of the phase; return the measurement.

        The first bound is that without multipliers if it is better: often exact where all costs are constraints.
        """
        if self.climbs and self.best_bound == math.inf:
            plain = dual_bound(self.problem, np.zeros(self.problem.n_edge_states))
            found = replace(found, bound=min(found.bound, plain))
        if self.climbs and (self.read_out is None or found.value > self.read_out_value):
            self.read_out, self.read_out_value = self.the_engine.labels.copy(), found.value
        self.best_value = max(self.best_value, found.value)
        self.best_bound = min(self.best_bound, found.bound)
        return found

    def state(self) -> dict[str, Any]:
        """Return the position in the phases."""
        figures = {name: getattr(self, name) for name in RUN_FIGURES}
        return figures | {"phase": list(self.phase), "waiting": [list(phase) for phase in self.waiting]}

    def restore(self, figures: dict[str, Any]) -> None:
        for name in RUN_FIGURES:
            known = list if name == "gaps" else int | float
            if not isinstance(figures[name], known):
                raise FormatError(f"the checkpoint's {name}: found {figures[name]!r}, expected another kind of value")
            setattr(self, name, figures[name])
        self.phase = SpherePhase(*figures["phase"])
        self.waiting = [SpherePhase(*phase) for phase in figures["waiting"]]

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

    def starting_point(self, first: bool, number: int) -> Floats:
        """Return a point near uniform, at random labels, or as given by the warm start."""
        problem, layout, start = self.problem, self.the_engine.layout, self.options
        graph = problem.graph
        if first and self.initial.mu_v is not None:
            return layout.compress(self.initial.mu_v)
        if first and self.initial.labels is not None:
            return layout.compress(integral(problem, self.initial.labels)[0])
        rng = np.random.default_rng([self.seed, number])
        if start.start_from == "onehot":
            return layout.compress(integral(problem, rng.integers(0, graph.card))[0])
        mu_v = rng.uniform(-start.noise, start.noise, problem.n_states)
        same = problem.n_vars > 0 and bool(np.all(graph.card == graph.card[0]))
        mu_v += 1.0 / graph.card[0] if same else np.repeat(1.0 / graph.card, graph.card)
        return layout.compress(mu_v)

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

    def has_failed(self, found: Measurement) -> bool:
        """Return whether rho has reached its limit, and its growth has brought mu no nearer to the sphere.

        The residual was never below 5 % of the radius, and is above 75 % of what it was in the middle of the phase.
        """
        if not (self.climbs and self.phase.spherical) or self.phase.at_vertex:
            return False
        residuals, radius2 = self.gaps, float(self.the_engine.sphere.target2.sum())
        residuals.append(math.sqrt(found.sphere2 / max(radius2, found.sphere2)) if radius2 > 0 else 0.0)
        if self.the_engine.rho < self.options.rho_upper * self.rho_unit:
            return False
        return min(residuals) > 0.05 and residuals[-1] > 0.75 * residuals[len(residuals) // 2]

    def may_close(self, found: Measurement) -> bool:
        """Return whether, up to some work, the bound differs from <theta, mu> by more than a tenth of the gap."""
        if not self.climbs or self.work(self.phase) > 3e9:
            return False
        return abs(found.bound - found.relaxed) > 0.1 * (self.best_bound - self.best_value)

    # -- taking turns -------------------------------------------------------------------------------------------------

    @property
    def may_believe(self) -> bool:
        # belief propagation has tables only
        return self.is_small and not self.idle and self.original.graph.constraints is None

    def choose(self) -> Status | None:
        """Put the phase that comes next in front; no start after ten seconds of iterations."""
        if not self.climbs:
            return None
        self.take_turns()
        if self.work_of_iterations > 1e10:
            self.waiting = [phase for phase in self.waiting if not phase.spherical or phase.number == 0]
        if self.waiting[0].chaining and not self.prepare_chains():
            return Status.INFEASIBLE
        if self.waiting[0].at_vertex and self.vertex() is None:
            return Status.ITERATION_LIMIT if self.rested is None else Status.CONVERGED
        return None

    @property
    def n_turns(self) -> int:
        """How many phases wait and take turns: those before the next start."""
        return next((k for k, phase in enumerate(self.waiting) if phase.spherical), len(self.waiting))

    @property
    def has_had_its_turn(self) -> bool:
        """Whether the phase has done so much more than one that waits that it is the other's turn."""
        if not self.climbs or self.phase.spherical:
            return False
        others = [self.work(phase) for phase in self.waiting[: self.n_turns]]
        return bool(others) and self.work(self.phase) > SLICE + 2 * min(others)

    def put_back(self) -> None:
        """Let the phase wait for its next turn."""
        self.waiting.insert(self.n_turns, self.phase._replace(done=self.iterations - self.phase_began))

    def take_turns(self) -> None:
        """Put the phase in front that has done the least, and chains if starts are slow or there are constraints."""
        turns, later = self.waiting[: self.n_turns], self.waiting[self.n_turns :]
        early = self.is_slow or self.original.graph.constraints is not None
        if early and self.may_chain and not any(phase.chaining for phase in turns):
            turns.append(SpherePhase("chains", 0, chaining=True))
        self.waiting = sorted(turns, key=self.work) + later

    @cached_property
    def costs(self) -> tuple[float, float]:
        """Estimated nanoseconds of an iteration of ADMM and of belief propagation."""
        constraints = self.problem.graph.constraints
        admm = bp = 0.0 if constraints is None else 50.0 * len(constraints.var)
        for batch in self.problem.batches:
            configs, edge_states = batch.n * batch.n_configs, batch.n * sum(batch.shape)
            in_closed_form = batch.shape == (2, 2) and not batch.hard
            admm += 1.5 * configs + (0.0 if in_closed_form else 30.0 * edge_states)
            bp += 2.5 * configs if in_closed_form else configs + 10.0 * edge_states
        return admm, bp

    def work(self, phase: SpherePhase) -> float:
        """Estimate the nanoseconds that a phase has taken so far, by counts alone, so that runs can be repeated."""
        if phase.believing:
            return self.message_iterations * self.costs[1]
        if phase.chaining:
            return STEP_OF_CHAINS * self.chain_steps
        return self.costs[0] * (self.iterations - self.phase_began if phase is self.phase else phase.done)

    @property
    def work_of_iterations(self) -> float:
        """Estimated nanoseconds of all iterations of ADMM."""
        return (self.iterations - self.message_iterations - self.chain_steps) * self.costs[0]

    @property
    def chain_steps(self) -> int:
        """Steps of chains so far."""
        return 0 if self.search is None else self.search.total

    @property
    def is_slow(self) -> bool:
        """Whether a start, of some 700 iterations, takes so long that chains should not wait for it."""
        return 700 * self.costs[0] > SLICE

    @property
    def may_chain(self) -> bool:
        """Whether there is something for chains to try, and they have not had their share yet."""
        return self.search is not None and self.search.has_work and self.has_share_left

    @property
    def has_share_left(self) -> bool:
        """Whether chains have not had half of the work of everything else yet; a quarter if starts are slow."""
        assert self.search is not None
        others = self.work_of_iterations + self.message_iterations * self.costs[1]
        steps = self.search.total + (0 if self.search.steps else self.search.last_steps)
        return STEP_OF_CHAINS * steps <= 2e7 + (0.25 if self.is_slow else 0.5) * others

    # -- labellings ---------------------------------------------------------------------------------------------------

    def climb(self) -> None:
        """Let the best labelling of the phase ascend."""
        if self.search is None:
            return
        if self.read_out is not None:
            self.search.offer(self.read_out)
            self.read_out = None
        best = self.search.best
        if best is not None:
            self.improved = best.labels, best.value
            self.best_value = max(self.best_value, best.value)

    def climb_first(self) -> None:
        """Begin with an ascent from the best states of the variables, so that no run that is cut short is below ICM."""
        if self.climbs and self.search is None:
            self.search = LabellingSearch(self.original, self.initial, self.seed)
            self.search.offer(self.original.graph.unary_labels)
            self.climb()

    def follow_chains(self) -> bool:
        """Run chains of flips for some milliseconds; return whether the phase is over."""
        assert self.search is not None
        labels, best = self.search.step(hurry=not self.has_share_left), self.search.best
        if labels is not None:
            self.improved = labels, self.original.graph.value(labels)
        if best is not None and (self.improved is None or best.value >= self.improved[1]):
            self.improved = best.labels, best.value
        if self.search.begun is not None or (self.may_chain and self.search.choose()):
            return False
        return len(self.waiting) > 1 or not self.search.choose_best()  # at the end, before the vertex

    def prepare_chains(self) -> bool:
        """Decide where chains start, at the end from the best labelling first; False if no labelling is feasible."""
        assert self.search is not None
        last = len(self.waiting) <= 2
        work = MOST_WORK if last else 20_000_000  # clauses to visit: at first some tenths of a second
        if (last or self.chain_steps == 0) and not self.find_feasible(work):
            return False
        self.search.choose()
        return True

    def find_feasible(self, work: int) -> bool:
        """Search for a feasible labelling if there is none; return False if that proves that none exists."""
        best = None if self.search is None else self.search.best
        if best is None or best.value > -math.inf or self.original.graph.constraints is not None:
            return True
        search = find_feasible(self.original, best.labels, work=work)
        if search.labels is not None:
            self.read_out = search.labels
            self.climb()
        return search.labels is not None or not search.complete

    def vertex(self) -> tuple[Floats, float] | None:
        """Return the vertex of the best labelling and a rho at which it is stable.

        None if no labelling is feasible, or if a phase has converged to the best one.
        """
        best = None if self.search is None else self.search.best
        if best is None or best.value == -math.inf or (self.rested is not None and self.rested.value >= best.value):
            return None
        mu_v = integral(self.problem, best.labels)[0]
        return self.the_engine.layout.compress(mu_v), max(self.unit, vertex_penalty(self.problem))

    def save_dual(self) -> None:
        """Keep the multipliers of the LP phase."""
        self.saved = self.the_engine.save_dual(self.unit)

    def load_dual(self, rho: float) -> bool:
        """Warm-start from the multipliers of an earlier run at this penalty; False if there are none that fit."""
        given = self.initial.dual
        return given is not None and self.the_engine.load_dual(given, rho)

    def keep_rested(self, found: Measurement) -> None:
        """Keep the labelling to which a phase has converged, if it is the best of these."""
        labels = self.the_engine.labels
        if self.rested is None:
            self.rested = Incumbent(self.problem.graph, labels)
        else:
            self.rested.offer(labels, found.value)
