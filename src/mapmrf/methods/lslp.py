"""LS-LP: the LP relaxation with an l2-sphere, solved by perturbed ADMM (Wu, Shen, Zhang, Ghanem, IJCV 2020)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar

from mapmrf.arrays import segment_argmax
from mapmrf.engines.admm.engine import Engine
from mapmrf.engines.admm.forest_qp import MAX_STATES
from mapmrf.engines.admm.layout import Layout, harden, impossible
from mapmrf.engines.admm.lslp_run import SPHERES, LSLPOptions, LSLPRun
from mapmrf.engines.admm.measurement import kkt_residuals
from mapmrf.engines.admm.penalty import SphereKind, interaction_scale
from mapmrf.engines.moves.labelling_search import LabellingSearch
from mapmrf.methods.bp import BP
from mapmrf.model.memory import REPORTED
from mapmrf.model.polytope import integral
from mapmrf.model.problem import Problem
from mapmrf.run import pace
from mapmrf.run.incumbent import Incumbent
from mapmrf.run.method import Answer, Method, Progress, Snapshot, Start
from mapmrf.run.result import Status

BY_PRESET: dict[str, tuple[Any, Any]] = {
    "rho": (0.25, 0.1),
    "rho_unit": ("relative", "absolute"),
    "eta": (1.01, 1.03),
    "rho_upper": (200.0, 1e6),
    "epsilon": (0.0, 1e-5),
    "starts": (3, 1),
    "alternate_block": (16, 0),
    "lp_phase": (True, False),
    "stop": ("plain", "paper"),
    "tol": (2e-5, 1e-5),
    "read_out": ("best", "last"),
    "check_every": (10, 1),
    "beliefs": (1000, 0),
    "climb": (True, False),
    "max_iterations": (7000, 500),
}
"""The options set by the presets `default` and `paper`."""

MAX_RIDGE_CONFIGS = 64
"""Largest table for `sphere="factors"`, whose factor step is a dense quadratic program."""


@dataclass(frozen=True)
class LSLP(LSLPOptions, Method):
    """Maximise ``<theta, mu>`` over the local polytope and an l2-sphere, whose intersection is the set of labellings.

    Options that are None take the value of the preset. `default` is scale-free: it measures rho in units of the model's
    mean interaction. `paper` runs the algorithm as published, in absolute units. The first options, up to
    `max_iterations`, are those of the paper; then come the penalty, the starts, and measuring.

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
    rho, eta, rho_upper
        Initial penalty, its growth factor, and its upper limit.
    epsilon
        The paper's perturbation.
    stop, tol
        ``"plain"``: mu is integral and consistent within `tol`, and the labels have not changed for `patience`
        measurements; without a sphere, mu is consistent and the bound equals ``<theta, mu>``, both within `tol`.
        ``"paper"``: both weighted residuals are below `tol`.
    read_out
        Labelling to return: the ``"best"`` of all measurements, or the ``"last"``.
    max_iterations
        Maximum number of iterations over all phases.
    rho_unit, update_every
        Unit of rho and its limit (``"relative"`` to the interaction or ``"absolute"``), and the iterations between
        increases.
    sphere_weight
        Penalty of the sphere's rows relative to that of the edge rows.
    relaxation
        Over-relaxation of the copies; 1 for none.
    freeze_after
        Iterations after which the sphere's multiplier is frozen; 0 for never.
    lp_phase, lp_rho, lp_iterations
        Solve without the sphere first, which certifies easy models; the fixed relative penalty and iteration limit for
        that.
    starts
        Number of runs of the sphere phase, each from another seeded point; the best labelling is kept. A start that
        does not converge ends after its share of the iterations.
    start_from, noise
        Initial mu: ``"uniform"`` plus seeded noise of this amplitude, or a random ``"onehot"`` labelling.
    sphere_block, alternate_block
        Variables per sphere, 0 for one sphere over all; and the same for every second start, 0 for the same as the
        first.
    warm_rho
        Factor on the initial rho when warm-started from a labelling, so that it is not lost.
    beliefs
        Iterations of max-product belief propagation in turn with the LP phase, at most; 0 for none. On dense graphs,
        where the relaxation says nothing, its labellings are the best ones. Models with constraints have none.
    climb
        Improve the best labelling of every phase by single-variable ascent, by crossover with the others and by chains
        of flips, and end at the vertex of the best one, with a rho at which it is stable. Starts of a kind that has
        failed are left out. Only with a sphere on the variables, ``stop="plain"`` and ``read_out="best"``.
    check_every, patience
        Iterations between measurements of labels, bound and residuals, and the number of measurements without a change
        of the labels that ``stop="plain"`` waits for.

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
    recommended: ClassVar[bool] = True
    gives_bound: ClassVar[bool] = True
    native_constraints: ClassVar[bool] = True

    def __post_init__(self) -> None:
        for name, values in BY_PRESET.items():
            if getattr(self, name) is None:  # the only place: the preset sets the options left open
                object.__setattr__(self, name, values[self.preset == "paper"])
        super().__post_init__()

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
            return LSLPRun(self, None, 1.0, seed, initial, problem, problem)
        layout = Layout.build(hard, compact=self.epsilon == 0, ridge=self.sphere == "factors")
        state = LSLPRun(self, Engine(layout), interaction_scale(hard), seed, initial, problem, hard)
        plain = self.read_out == "best" and self.stop == "plain" and SPHERES[self.sphere] != SphereKind.OFF
        state.climbs = self.climb and plain and state.is_small
        given = [] if initial.labels is None else [initial.labels]
        for labels in (segment_argmax(problem.graph.theta_v, problem.graph.var_ptr), *given):  # the loop has these
            state.best_value = max(state.best_value, problem.graph.value(labels))
        state.begin()
        if initial.saved is not None:
            self._restore(state, initial.saved)
        return state

    def step(self, problem: Problem | None, state: LSLPRun) -> Progress:
        """Run some iterations of Algorithm 1 (`Engine.run`); if due, measure and perhaps begin the next phase."""
        if state.engine is None:
            return Progress(0, bound=-math.inf, finished=Status.INFEASIBLE)
        engine, state.improved = state.engine, None
        state.climb_first()
        if state.phase.believing:
            return self._believe(state)
        if state.phase.chaining:
            return self._chain(state)
        due = self.check_every - (state.iterations - state.phase_began) % self.check_every
        n = min(due, max(1, pace.ADMM // max(1, state.n_configs)), self.max_iterations - state.iterations)
        if n > 0 and not state.idle:
            engine.run(n)
        state.iterations += max(n, 0)
        if n < due and state.iterations < self.max_iterations and not state.idle:
            labels, value = state.improved or (None, None)
            return Progress(state.iterations, labels, value, phase=state.phase.name, extra={"rho": engine.rho})
        found = state.note(engine.measure())
        phase, rho = state.phase.name, engine.last_rho  # those of this measurement, not of the next phase
        finished = state.next(found)
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
        return state.advance(unfinished=not over) if over or state.has_had_its_turn else None

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
        arrays, figures = engine.state(), {**state.state(), "block": engine.block}
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
        state.restore(figures)
        state.the_engine.restore(figures["block"], arrays)
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
            dual = engine.save_dual(state.unit)
        if state.certified:
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
        small = engine.problem.n_edge_states <= REPORTED and engine.layout.counting is None
        return details | kkt_residuals(engine) if kkt and small else details
