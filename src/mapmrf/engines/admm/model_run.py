"""The run of LS-LP on a whole model: phases that take turns, and the search for labellings beside them."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import cached_property

import numpy as np

from mapmrf.arrays import Floats, Ints
from mapmrf.engines.admm.engine import Engine
from mapmrf.engines.admm.measurement import Measurement
from mapmrf.engines.admm.penalty import vertex_penalty
from mapmrf.engines.admm.sphere_run import LSLPOptions, SpherePhase, SphereRun, load_multipliers, save_multipliers
from mapmrf.engines.messages.message_passing import MessageRun
from mapmrf.engines.moves.labelling_search import LabellingSearch
from mapmrf.model.polytope import dual_bound, integral
from mapmrf.model.problem import Problem
from mapmrf.run.incumbent import Incumbent
from mapmrf.run.method import DualState, Start
from mapmrf.run.repair import MOST_WORK, find_feasible
from mapmrf.run.result import Status

SLICE = 3e8
"""Work, in nanoseconds as `LSLPRun.work` estimates them, after which LP phase, beliefs and chains take turns."""
STEP_OF_CHAINS = 1e7  # work of a step of chains


class LSLPRun(SphereRun):
    """The run of a whole model.

    `original` is the model and `problem` the form that ADMM needs. `rested` is the best labelling to which a phase has
    converged, `search` has the best of all phases, `saved` the multipliers of the LP phase.
    """

    engine: Engine | None

    def __init__(
        self,
        options: LSLPOptions,
        original: Problem,
        problem: Problem,
        engine: Engine | None,
        unit: float,
        seed: int,
        initial: Start,
    ) -> None:
        super().__init__(options, engine, unit, seed, initial)
        self.original, self.problem = original, problem
        self.rested: Incumbent | None = None
        self.search: LabellingSearch | None = None
        self.read_out: Ints | None = None
        self.read_out_value = -math.inf
        self.messages: MessageRun | None = None
        self.message_iterations = 0
        self.saved: DualState | None = None

    @property
    def is_small(self) -> bool:
        """Whether there is time and memory for other engines beside ADMM."""
        return self.problem.n_edge_states <= 4_000_000

    def note(self, found: Measurement) -> Measurement:
        """Update the best value and bound, and the best labelling of the phase.

        The first bound is that without multipliers if it is better: often exact where all costs are constraints.
        """
        if self.climbs and self.best_bound == math.inf:
            plain = dual_bound(self.problem, np.zeros(self.problem.n_edge_states))
            found = replace(found, bound=min(found.bound, plain))
        if self.climbs and (self.read_out is None or found.value > self.read_out_value):
            self.read_out, self.read_out_value = self.the_engine.labels.copy(), found.value
        return super().note(found)

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
        self.saved = save_multipliers(self.the_engine, self.unit)

    def load_dual(self, rho: float) -> bool:
        """Warm-start from the multipliers of an earlier run at this penalty; False if there are none that fit."""
        given = self.initial.dual
        return given is not None and load_multipliers(self.the_engine, given, rho)

    @property
    def idle(self) -> bool:
        """Whether there is nothing to iterate on: no factors and no constraints."""
        return self.the_engine.idle

    @property
    def n_configs(self) -> int:
        """Configurations of all factors."""
        return self.problem.n_configs

    @property
    def gap_unit(self) -> float:
        """The smallest denominator of a relative gap."""
        return self.problem.graph.unit

    @property
    def the_engine(self) -> Engine:
        """The engine of a feasible model."""
        assert self.engine is not None
        return self.engine

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

    def keep_rested(self, found: Measurement) -> None:
        """Keep the labelling to which a phase has converged, if it is the best of these."""
        labels = self.the_engine.labels
        if self.rested is None:
            self.rested = Incumbent(self.problem.graph, labels)
        else:
            self.rested.offer(labels, found.value)
