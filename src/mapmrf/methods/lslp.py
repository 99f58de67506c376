"""LS-LP: the LP relaxation with an l2-sphere, solved by perturbed ADMM (Wu, Shen, Zhang, Ghanem, IJCV 2020)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

from mapmrf.arrays import segment_argmax
from mapmrf.engines.admm.engine import Engine
from mapmrf.engines.admm.forest_qp import MAX_STATES
from mapmrf.engines.admm.kkt import kkt_residuals
from mapmrf.engines.admm.layout import Layout, harden, impossible
from mapmrf.engines.admm.measurement import Measurement
from mapmrf.engines.admm.model_run import LSLPRun
from mapmrf.engines.admm.penalty import NEVER, PenaltyOptions, SphereKind, interaction_scale
from mapmrf.engines.admm.sphere_run import (
    SpherePhase,
    SphereRun,
    StartOptions,
    engine_state,
    restore_engine,
    restore_run,
    run_state,
    save_multipliers,
)
from mapmrf.engines.moves.labelling_search import LabellingSearch
from mapmrf.methods.bp import BP
from mapmrf.model.polytope import integral
from mapmrf.model.problem import Problem
from mapmrf.run import pace
from mapmrf.run.incumbent import Incumbent
from mapmrf.run.method import Answer, Method, Progress, Snapshot, Start
from mapmrf.run.options import check_above, check_at_least, check_choice
from mapmrf.run.result import Status


class Preset(NamedTuple):
    """The options set by a preset; the defaults here are those of the preset `default`."""

    rho: float = 0.25
    rho_unit: str = "relative"
    eta: float = 1.01
    rho_upper: float = 200.0
    epsilon: float = 0.0
    starts: int = 3
    alternate_block: int = 16
    lp_phase: bool = True
    stop: str = "plain"
    tol: float = 2e-5
    read_out: str = "best"
    check_every: int = 10
    beliefs: int = 1000
    climb: bool = True
    max_iterations: int = 7000


PRESETS = {
    "default": Preset(),
    "paper": Preset(
        rho=0.1,
        rho_unit="absolute",
        eta=1.03,
        rho_upper=1e6,
        epsilon=1e-5,
        starts=1,
        alternate_block=0,
        lp_phase=False,
        stop="paper",
        tol=1e-5,
        read_out="last",
        check_every=1,
        beliefs=0,
        climb=False,
        max_iterations=500,
    ),
}
_BY_PRESET: Any = None
"""Default of an option that is set by the preset."""

STALL_WINDOW, WIDE_GAP = 6, 0.01
"""The LP phase gives up when a relative gap this wide has not shrunk by a tenth within so many measurements."""
MAX_KKT_STATES = 4_000_000
"""Maximum number of edge states for which a run ends with the epsilon-KKT report."""
MAX_RIDGE_CONFIGS = 64
"""Largest table for `sphere="factors"`, whose factor step is a dense quadratic program."""
MOST_OF_START = 900
"""Iterations after which a start ends if labellings climb; rho has been at its limit for a while then."""
SPHERE_WORK = 1e10
"""Work of all iterations after which no further start begins."""
UNSOLVED, UNSOLVED_WORK = 0.1, 3e9
"""The LP phase does not give up while the bound differs from <theta, mu> by more than this share of the gap, up to this
work."""
NEAR_SPHERE, NO_NEARER = 0.05, 0.75
"""A start has failed if its sphere residual was never below this share of the radius, and at the largest rho is above
this share of what it was in the middle of the phase."""


@dataclass(frozen=True)
class LSLP(Method):
    """Maximise ``<theta, mu>`` over the local polytope and an l2-sphere, whose intersection is the set of labellings.

    Options that are None take the value of the preset. `default` is scale-free: it measures rho in units of the model's
    mean interaction. `paper` runs the algorithm as published, in absolute units.

    Attributes
    ----------
    preset
        ``"default"`` or ``"paper"``.
    variant
        ``"tied"`` (the paper's algorithm: x-bar is a copy of mu) or ``"free"`` (as its proof requires). They differ
        only for epsilon > 0.
    sphere
        ``"variables"`` (the paper's), ``"affine"`` (within the affine hull of the simplices), ``"factors"`` (as in the
        authors' code) or ``"off"`` (the plain LP).
    sphere_weight
        Penalty of the sphere's rows relative to that of the edge rows.
    sphere_block, alternate_block
        Variables per sphere, 0 for one sphere over all; and the same for every second start, 0 for the same as the
        first.
    rho, rho_unit, eta, rho_upper, update_every
        Initial penalty, its unit (``"relative"`` to the interaction or ``"absolute"``), its growth factor every
        `update_every` iterations, and its upper limit in the same unit.
    epsilon
        The paper's perturbation.
    relaxation
        Over-relaxation of the copies; 1 for none.
    freeze_after
        Iterations after which the sphere's multiplier is frozen; 0 for never.
    start_from, noise
        Initial mu: ``"uniform"`` plus seeded noise of this amplitude, or a random ``"onehot"`` labelling.
    starts
        Number of runs of the sphere phase, each from another seeded point; the best labelling is kept. A start that
        does not converge ends after its share of the iterations.
    warm_rho
        Factor on the initial rho when warm-started from a labelling, so that it is not lost.
    lp_phase, lp_rho, lp_iterations
        Solve without the sphere first, which certifies easy models; the fixed relative penalty and iteration limit for
        that.
    stop, tol, patience
        ``"plain"``: mu is integral and consistent within `tol`, and the labels have not changed for `patience`
        measurements; without a sphere, mu is consistent and the bound equals ``<theta, mu>``, both within `tol`.
        ``"paper"``: both weighted residuals are below `tol`.
    read_out
        Labelling to return: the ``"best"`` of all measurements, or the ``"last"``.
    check_every
        Iterations between measurements of labels, bound and residuals.
    beliefs
        Iterations of max-product belief propagation in turn with the LP phase, at most; 0 for none. On dense graphs,
        where the relaxation says nothing, its labellings are the best ones. Models with constraints have none.
    climb
        Improve the best labelling of every phase by single-variable ascent, by crossover with the others and by chains
        of flips, and end at the vertex of the best one, with a rho at which it is stable. Starts of a kind that has
        failed are left out. Only with a sphere on the variables, ``stop="plain"`` and ``read_out="best"``.
    max_iterations
        Maximum number of iterations over all phases.

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
    family: ClassVar[str] = "ADMM"
    gives_bound: ClassVar[bool] = True
    native_constraints: ClassVar[bool] = True

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
    beliefs: int = _BY_PRESET
    climb: bool = _BY_PRESET
    max_iterations: int = _BY_PRESET

    def __post_init__(self) -> None:
        check_choice(self, "preset", PRESETS)
        for name, value in PRESETS[self.preset]._asdict().items():
            if getattr(self, name) is None:
                object.__setattr__(self, name, value)  # the only place: the preset sets the options left open
        _check(self)

    @classmethod
    def paper(cls) -> LSLP:
        """The algorithm as published: ``LSLP(preset="paper")``.

        Examples
        --------
        >>> import dataclasses
        >>> import mapmrf
        >>> paper = mapmrf.LSLP.paper()
        >>> paper.eta, paper.stop, dataclasses.replace(paper, rho=1.0).rho
        (1.03, 'paper', 1.0)
        """
        return cls(preset="paper")

    @property
    def stops_at_gap(self) -> bool:  # type: ignore[override]
        """False for the paper's stopping rule, which uses no bound."""
        return self.stop == "plain"

    def supports(self, problem: Problem) -> str | None:
        """Reject the factor sphere on large tables, and pairwise factors over variables with too many states."""
        widest = max((max(batch.shape) for batch in problem.batches if batch.arity == 2), default=0)
        if widest > MAX_STATES:
            return f"pairwise factors support at most {MAX_STATES} states per variable, this model has {widest}"
        largest = max((batch.n_configs for batch in problem.batches), default=0)
        if self.sphere == "factors" and largest > MAX_RIDGE_CONFIGS:
            return f"sphere='factors' supports tables of at most {MAX_RIDGE_CONFIGS} entries, this model has {largest}"
        return None

    # -- the run ----------------------------------------------------------------------------------------------------

    def start(self, problem: Problem, seed: int, initial: Start) -> LSLPRun:
        """Build the engine and begin the first phase."""
        hard = problem if impossible(problem) else harden(problem)
        if impossible(hard):
            return LSLPRun(problem, problem, None, 1.0, seed, initial)
        layout = Layout.build(hard, compact=self.epsilon == 0, ridge=self.sphere == "factors")
        state = LSLPRun(problem, hard, Engine(layout), interaction_scale(hard), seed, initial)
        plain = self.read_out == "best" and self.stop == "plain" and SPHERES[self.sphere] != SphereKind.OFF
        state.climbs = self.climb and plain and state.is_small
        given = [] if initial.labels is None else [initial.labels]
        for labels in (segment_argmax(problem.graph.theta_v, problem.graph.var_ptr), *given):  # the loop has these
            state.best_value = max(state.best_value, problem.graph.value(labels))
        self.begin(state)
        if initial.saved is not None:
            self._restore(state, initial.saved)
        return state

    def begin(self, state: SphereRun) -> None:
        """Begin the first phase of a run."""
        state.waiting = self._phases(state)
        self._begin(state, state.waiting.pop(0))

    def _phases(self, state: SphereRun) -> list[SpherePhase]:
        lp = SpherePhase("lp", 0, certifying=self.sphere != "off")
        if self.sphere == "off":
            return [lp]
        phases = [lp] if self.lp_phase else []
        # belief propagation has tables only
        fits = isinstance(state, LSLPRun) and state.is_small and state.original.graph.constraints is None
        if phases and self.beliefs and fits and not state.idle:
            phases.append(SpherePhase("beliefs", 0, believing=True))
        phases += [SpherePhase(f"sphere {number}", number, spherical=True) for number in range(self.starts)]
        if state.climbs:
            phases.append(SpherePhase("chains", 0, chaining=True))
            phases.append(SpherePhase("vertex", 0, spherical=True, at_vertex=True))
        return phases

    def _begin(self, state: SphereRun, phase: SpherePhase) -> None:
        """Set up the engine for a phase: penalty, sphere and starting point."""
        engine, warm = state.the_engine, state.initial.labels is not None
        if state.phase.certifying:
            state.save_dual()
        vertex = state.vertex() if isinstance(state, LSLPRun) and phase.at_vertex else None
        first = phase.spherical and phase.number == 0 and vertex is None
        carry_on = first and self.lp_phase and not warm
        state.phase, state.phase_began, state.calm = phase, state.iterations - phase.done, 0
        state.gaps = []
        state.best_before = state.best_value
        if phase.believing or phase.chaining or phase.done:
            return
        rho = self.lp_rho * state.unit if phase.certifying else self.rho * self._rho_unit(state)
        if vertex is not None:
            mu, rho = vertex
        elif carry_on:
            mu = engine.mu.copy()
        else:
            mu = state.starting_point(StartOptions(self.start_from, self.noise), first, phase.number)
        engine.configure(self._penalty(state, phase))
        engine.set_blocks(self._block(phase))
        if phase.spherical or not state.load_dual(rho):
            engine.begin(mu, rho * self.warm_rho if first and warm else rho, multipliers=carry_on)
        if self.sphere == "factors" and phase.spherical:
            engine.begin_factor_sphere()

    def _block(self, phase: SpherePhase) -> int:
        """Variables per sphere; one each at a vertex, where nothing needs to be exchanged between variables."""
        if phase.at_vertex:
            return 1
        return self.alternate_block if phase.number % 2 and self.alternate_block else self.sphere_block

    def _rho_unit(self, state: SphereRun) -> float:
        return state.unit if self.rho_unit == "relative" else 1.0

    def _penalty(self, state: SphereRun, phase: SpherePhase) -> PenaltyOptions:
        """The engine's options for a phase; the LP phase has a fixed rho and no sphere."""
        return PenaltyOptions(
            sphere=SPHERES[self.sphere] if phase.spherical else SphereKind.OFF,
            sphere_weight=self.sphere_weight,
            epsilon=self.epsilon,
            free=self.variant == "free",
            relaxation=self.relaxation,
            eta=1.0 if phase.certifying else self.eta,
            rho_upper=math.inf if phase.at_vertex else self.rho_upper * self._rho_unit(state),
            update_every=self.update_every,
            freeze_after=self.freeze_after or NEVER,
        )

    def step(self, problem: Problem | None, state: SphereRun) -> Progress:
        """Run some iterations of Algorithm 1 (`Engine.run`); if due, measure and perhaps begin the next phase."""
        if state.engine is None:
            return Progress(0, bound=-math.inf, finished=Status.INFEASIBLE)
        engine, state.improved = state.engine, None
        state.climb_first()
        if isinstance(state, LSLPRun) and state.phase.believing:
            return self._believe(state)
        if isinstance(state, LSLPRun) and state.phase.chaining:
            return self._chain(state)
        every = self.check_every
        due = every - (state.iterations - state.phase_began) % every
        affordable = max(1, pace.ADMM // max(1, state.n_configs))
        n = min(due, affordable, self.max_iterations - state.iterations)
        if n > 0 and not state.idle:
            engine.run(n)
        state.iterations += max(n, 0)
        if n < due and state.iterations < self.max_iterations and not state.idle:
            labels, value = state.improved or (None, None)
            return Progress(state.iterations, labels, value, phase=state.phase.name, extra={"rho": engine.rho})
        found = state.note(engine.measure())
        phase, rho = state.phase.name, engine.last_rho  # those of this measurement, not of the next phase
        finished = self._next(state, found)
        labels, value = engine.labels, found.value
        if state.improved is not None and state.improved[1] >= value:
            labels, value = state.improved
        return Progress(
            iterations=state.iterations,
            labels=labels if self.read_out == "best" or finished else None,
            value=value,
            bound=-math.inf if finished is Status.INFEASIBLE else found.bound,
            finished=finished,
            relaxed_value=found.relaxed,
            phase=phase,
            extra={"primal": math.sqrt(found.primal2), "sphere": math.sqrt(found.sphere2), "rho": rho},
        )

    def _believe(self, state: LSLPRun) -> Progress:
        """Pass messages for some milliseconds, for a labelling where the relaxation does not lead to a good one."""
        step = self._pass_messages(state)
        state.iterations = state.phase_began + step.iterations
        finished = step.finished
        if finished in (None, Status.CONVERGED):
            finished = self._after_step(state, over=finished is not None)
        labels, value = state.improved or (step.labels, step.value)
        bound = -math.inf if finished is Status.INFEASIBLE else step.bound
        return Progress(state.iterations, labels, value, bound, finished, phase="beliefs")

    def _chain(self, state: LSLPRun) -> Progress:
        """Improve labellings by chains of flips for some milliseconds."""
        state.iterations += 1
        finished = self._after_step(state, over=state.follow_chains())
        labels, value = state.improved or (None, None)
        bound = -math.inf if finished is Status.INFEASIBLE else None
        return Progress(state.iterations, labels, value, bound, finished, phase="chains")

    def _after_step(self, state: LSLPRun, over: bool) -> Status | None:
        """Decide after a step of beliefs or chains: continue, begin the next phase, or stop."""
        if state.iterations >= self.max_iterations:
            state.climb()
            return Status.ITERATION_LIMIT
        return self._advance(state, unfinished=not over) if over or state.has_had_its_turn else None

    def _pass_messages(self, state: LSLPRun, known: int = 0) -> Progress:
        """Run belief propagation for some milliseconds; `known` iterations of it were counted before."""
        left = self.max_iterations - state.iterations + max(known, state.message_iterations)
        limit = min(self.beliefs, max(1, min(left, self.max_iterations // 3)))
        method = BP(max_iterations=limit)
        if state.messages is None:
            state.messages = method.start(state.original, state.seed, Start())
        step = method.step(state.original, state.messages)
        state.message_iterations = step.iterations
        if state.messages.best is not None:
            state.read_out = state.messages.best.labels
        if step.finished is None and step.iterations >= limit:
            step.finished = Status.CONVERGED
        if step.finished is not None:
            self._stop_messages(state)
        return step

    def _stop_messages(self, state: LSLPRun) -> None:
        """End belief propagation, and free its memory."""
        if state.messages is not None:
            BP().close(state.original, state.messages)
            state.messages = None

    def _next(self, state: SphereRun, found: Measurement) -> Status | None:
        """Decide after a measurement: continue, begin the next phase, or stop."""
        phase = state.phase
        over = self._lp_is_over(state, found) if phase.certifying else self._at_rest(state, found)
        if over and not phase.certifying:
            state.keep_rested(found)
        if state.iterations >= self.max_iterations:
            state.climb()
            return Status.CONVERGED if over and not state.waiting else Status.ITERATION_LIMIT
        stalled = phase.certifying and not over and self._lp_stalls(state, found)
        if over or stalled or state.idle:
            return self._advance(state, unfinished=stalled and state.n_turns > 0)
        failed, spent = self._failed(state, found), self._spent(state)
        if failed or spent:
            state.climb()
            if failed or (state.climbs and not state.best_value > state.best_before):
                self._leave_out(state)  # other starts of this kind would not arrive either
            return self._advance(state)
        return self._advance(state, unfinished=True) if state.has_had_its_turn else None

    def _leave_out(self, state: SphereRun) -> None:
        """Leave out the starts of the same kind as the present one."""
        same = 2 if self.alternate_block else 1
        state.waiting = [
            other
            for other in state.waiting
            if not other.spherical or other.at_vertex or (other.number - state.phase.number) % same != 0
        ]

    def _advance(self, state: SphereRun, unfinished: bool = False) -> Status | None:
        """End a phase, or its turn: improve its labelling and begin the next phase, or stop."""
        state.climb()
        if unfinished:
            state.put_back()
        if not state.waiting or state.idle:
            return Status.CONVERGED
        if self.stops_at_gap and state.certified:
            return None  # the loop notices the closed gap and ends the run
        if isinstance(state, LSLPRun) and state.climbs:
            finished = self._choose(state)
            if finished is not None:
                return finished
        self._begin(state, state.waiting.pop(0))
        return None

    def _choose(self, state: LSLPRun) -> Status | None:
        """Put the phase that comes next in front."""
        state.take_turns()
        if state.work_of_iterations > SPHERE_WORK:
            state.waiting = [phase for phase in state.waiting if not phase.spherical or phase.number == 0]
        if state.waiting[0].chaining and not state.prepare_chains():
            return Status.INFEASIBLE
        if state.waiting[0].at_vertex and state.vertex() is None:
            return Status.ITERATION_LIMIT if state.rested is None else Status.CONVERGED
        return None

    def _spent(self, state: SphereRun) -> bool:
        """Return whether a start has used its fair share of the iterations while others are waiting."""
        if not state.phase.spherical or not state.waiting:
            return False
        return state.iterations - state.phase_began >= self._share(state)

    def _share(self, state: SphereRun) -> int:
        share = (self.max_iterations - state.phase_began) // (sum(phase.spherical for phase in state.waiting) + 1)
        return min(share, MOST_OF_START) if state.climbs else share

    def _failed(self, state: SphereRun, found: Measurement) -> bool:
        """Return whether rho has reached its limit, and its growth has brought mu no nearer to the sphere."""
        if not (isinstance(state, LSLPRun) and state.climbs and state.phase.spherical) or state.phase.at_vertex:
            return False
        residuals, radius2 = state.gaps, float(state.the_engine.sphere.target2.sum())
        residuals.append(math.sqrt(found.sphere2 / max(radius2, found.sphere2)) if radius2 > 0 else 0.0)
        if state.the_engine.rho < self.rho_upper * self._rho_unit(state):
            return False
        return min(residuals) > NEAR_SPHERE and residuals[-1] > NO_NEARER * residuals[len(residuals) // 2]

    def _at_rest(self, state: SphereRun, found: Measurement) -> bool:
        """Evaluate the stopping rule of a phase."""
        engine = state.the_engine
        if self.stop == "paper":
            weight = math.sqrt(engine.last_rho / 2)
            below = weight * math.sqrt(found.primal2) < self.tol and weight * math.sqrt(found.sphere2) < self.tol
            return bool(below and not (state.phase.spherical and engine.at_centre))
        state.calm = state.calm + 1 if found.changed == 0 else 0
        if state.phase.spherical:
            return state.calm >= self.patience and max(found.integrality, found.primal_max) < self.tol
        return self._solves_lp(found)

    def _solves_lp(self, found: Measurement) -> bool:
        """Return whether mu is consistent and the bound equals its value: the duals may converge later than mu."""
        gap = abs(found.bound - found.relaxed)
        return found.primal_max < self.tol and gap < self.tol * max(1.0, abs(found.bound))

    def _lp_is_over(self, state: SphereRun, found: Measurement) -> bool:
        """Return whether the LP phase should end: on convergence, or at its limit."""
        done = state.iterations - state.phase_began
        return self._solves_lp(found) or done >= self.lp_iterations * (2 if self._may_close(state, found) else 1)

    def _lp_stalls(self, state: SphereRun, found: Measurement) -> bool:
        """Return whether a wide gap has hardly shrunk within some measurements.

        A narrow gap that stalls is worth waiting for: often the bound is exact and only the labels have not converged.
        """
        gaps, window = state.gaps, STALL_WINDOW
        gaps.append(state.best_bound - state.best_value)
        stalled = len(gaps) > window and gaps[-1] > 0.9 * gaps[-1 - window] and not self._may_close(state, found)
        return stalled and gaps[-1] > WIDE_GAP * max(1.0, abs(state.best_value))

    def _may_close(self, state: SphereRun, found: Measurement) -> bool:
        """Return whether the relaxation is so far from solved that it may still close most of the gap."""
        if not (isinstance(state, LSLPRun) and state.climbs) or state.work(state.phase) > UNSOLVED_WORK:
            return False
        return abs(found.bound - found.relaxed) > UNSOLVED * (state.best_bound - state.best_value)

    def close(self, problem: Problem, state: LSLPRun) -> None:
        """Stop the engine's threads."""
        self._stop_messages(state)
        if state.engine is not None:
            state.engine.close()

    def snapshot(self, problem: Problem, state: LSLPRun) -> Snapshot | None:
        """The iterates and the position in the sequence of phases."""
        engine = state.engine
        if engine is None:
            return None
        arrays, figures = engine_state(engine), {**run_state(state), "block": engine.block}
        if state.rested is not None:
            arrays["rested"] = state.rested.labels
        if state.search is not None:
            figures["search"], found = state.search.save()
            arrays |= {f"search_{name}": array for name, array in found.items()}
        figures["messages"] = state.message_iterations
        if state.read_out is not None:
            arrays["read_out"], figures["read_out_value"] = state.read_out, state.read_out_value
        return Snapshot(figures, arrays)

    def _restore(self, state: LSLPRun, snapshot: Snapshot) -> None:
        figures, arrays = snapshot.figures, snapshot.arrays
        restore_run(state, figures)
        restore_engine(state.the_engine, figures["block"], arrays)
        if "rested" in arrays:
            state.rested = Incumbent(state.problem.graph, arrays["rested"])
        if "search" in figures:
            state.search = LabellingSearch(state.original, state.initial, state.seed)
            found = {
                name.removeprefix("search_"): array for name, array in arrays.items() if name.startswith("search_")
            }
            state.search.load(figures["search"], found)
        if "read_out" in arrays:
            state.read_out, state.read_out_value = arrays["read_out"], figures["read_out_value"]
        believing = any(phase.believing for phase in (state.phase, *state.waiting))
        while believing and state.message_iterations < figures["messages"]:
            self._pass_messages(state, figures["messages"])  # again: cheaper than keeping them
        state.message_iterations = figures["messages"]

    def answer(self, problem: Problem, state: LSLPRun) -> Answer:
        """The best start that converged, else the last iterate; nothing once the gap is closed.

        On convergence, mu is a labelling within the tolerance, and the vertex of that labelling is returned. With the
        gap closed, the answer is the vertex of the best labelling, which the loop derives.
        """
        engine = state.engine
        if engine is None:
            return Answer(bound=-math.inf)
        dual = state.saved  # the multipliers of the plain relaxation, from the LP phase
        if state.phase.name == "lp" and state.iterations > 0:
            dual = save_multipliers(engine, state.unit)
        if self.stops_at_gap and state.certified:
            return Answer(details=self._details(state, kkt=False), dual=dual)
        if self.stop == "plain" and self.sphere != "off" and state.rested is not None:
            mu_v, vertex = integral(problem, state.rested.labels)
            return Answer(engine.labels.copy(), mu_v, vertex, details=self._details(state), dual=dual)
        mu_f = engine.marginals_of(problem)
        mu_v = engine.variables()
        mu_v[~problem.feasible_v] = 0.0  # the limit: no factor gives a forbidden state any mass
        return Answer(engine.labels.copy(), mu_v, mu_f, details=self._details(state), dual=dual)

    def _details(self, state: LSLPRun, kkt: bool = True) -> dict[str, float]:
        """Final penalty, plain and weighted residuals, and the epsilon-KKT report if an iterate is the answer."""
        engine = state.the_engine
        found = engine.inspect()
        rho = engine.last_rho
        weight = math.sqrt(rho / 2)
        details = {
            "rho": rho,
            "rho_unit": state.unit,
            "primal": math.sqrt(found.primal2),
            "sphere": math.sqrt(found.sphere2),
            "primal_weighted": weight * math.sqrt(found.primal2),
            "sphere_weighted": weight * math.sqrt(found.sphere2),
            "integrality": found.integrality,
        }
        small = engine.problem.n_edge_states <= MAX_KKT_STATES and engine.layout.counting is None
        return details | kkt_residuals(engine) if kkt and small else details


SPHERES = {
    "variables": SphereKind.VARIABLES,
    "affine": SphereKind.AFFINE,
    "factors": SphereKind.OFF,  # on the factors: see `begin_factor_sphere`
    "off": SphereKind.OFF,
}


def _check(method: LSLP) -> None:
    """Raise OptionError for invalid options."""
    check_choice(method, "variant", ("tied", "free"))
    check_choice(method, "sphere", SPHERES)
    check_choice(method, "rho_unit", ("relative", "absolute"))
    check_choice(method, "start_from", ("uniform", "onehot"))
    check_choice(method, "stop", ("plain", "paper"))
    check_choice(method, "read_out", ("best", "last"))
    check_above(method, 0, "rho", "rho_upper", "sphere_weight", "relaxation", "warm_rho", "lp_rho", "tol")
    check_at_least(method, 0, "epsilon", "noise", "sphere_block", "alternate_block", "freeze_after", "lp_iterations")
    check_at_least(method, 0, "beliefs")
    check_at_least(method, 1, "eta", "update_every", "starts", "patience", "check_every", "max_iterations")
