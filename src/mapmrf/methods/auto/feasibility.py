"""The first feasible labelling of `auto` on models with hard constraints, or a proof that there is none."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from mapmrf.arrays import Bools, segment_ends
from mapmrf.compilation.stopping import CompilingPostponed, patience
from mapmrf.methods.auto.state import PATIENCE, SharedState, Steps, log
from mapmrf.model.graph import FactorGraph
from mapmrf.run.method import Progress
from mapmrf.run.repair import STEP_WORK, fits_clauses

if TYPE_CHECKING:
    from mapmrf.engines.feasibility.conflict_search import ConflictSearch
    from mapmrf.engines.feasibility.repair import Repair

FIRST_STEPS, MORE_STEPS, TURN = 30, 150, 20
"""Steps before the relaxation, some hundredths of a second each; after it; and per turn of the race."""

REPAIR_EVERY = 4  # one step in so many is a step of local search


STEP_LITERALS = 500_000  # literals of clauses written per step


class FeasibilityPhase:
    """Conflict-driven search and local search over the hard constraints, until a labelling is feasible.

    It takes some steps before the relaxation, one after each of its iterations, more once it has ended, and turns in
    the race: most other phases are of little use without a feasible labelling.
    """

    def __init__(self, shared: SharedState, seed: int) -> None:
        self.shared, self.seed, self.problem = shared, seed, shared.problem
        self.search: ConflictSearch | None = None
        self._steps: Steps | None = None
        self._over = not self._has_hard()

    def _has_hard(self) -> bool:
        return any(batch.hard for batch in self.problem.batches) or not self.problem.feasible_v.all()

    @property
    def is_needed(self) -> bool:
        """Whether there is still no feasible labelling and the search has not ended."""
        return not self._over and self.shared.incumbent.value == -math.inf

    def first(self) -> Iterator[Progress]:
        """The steps before everything else; a feasible labelling may already attain the largest possible value."""
        needed = self.is_needed
        yield from self.steps(FIRST_STEPS)
        if needed and self.shared.incumbent.value > -math.inf:
            self.shared.incumbent.tighten(largest_sum(self.problem.graph), "feasible")
            yield self.shared.report("feasible")

    def more(self) -> Iterator[Progress]:
        """The steps after the relaxation."""
        yield from self.steps(MORE_STEPS)

    def steps(self, count: int) -> Iterator[Progress]:
        """Take up to `count` steps while they are needed."""
        if self._steps is None and self.is_needed:
            self._steps = self.run()
        while self._steps is not None and count > 0 and self.is_needed:
            count -= 1
            step = self._next(self._steps)
            if step is None:
                return
            yield step

    def _next(self, steps: Steps) -> Progress | None:
        """Return the next step; None at the end, or if compiling its kernels would take too long."""
        try:
            with patience(PATIENCE):
                return next(steps, None)
        except CompilingPostponed as kernel:
            log.info("skipping the feasibility phase: %s is not compiled yet", kernel)
            self._over = True
            return None

    def run(self) -> Steps:
        """All steps, until a labelling is found, here or by another phase, or none exists."""
        if self.search is None:
            yield from self._compile()
        repair: Repair | None = None
        k = 0
        while self.is_needed:
            k += 1
            if self.search is None or k % REPAIR_EVERY == 0:
                repair = self._repair(repair)
                yield self.shared.step("repair")
            else:
                yield from self._look(self.search)
        self._over = True

    def _compile(self) -> Iterator[Progress]:
        """Turn the forbidden entries into clauses, unless there are too many."""
        from mapmrf.engines.feasibility.clauses import (
            Atoms,
            HardClauses,
            factor_clauses,
            variable_clauses,
        )
        from mapmrf.engines.feasibility.conflict_search import ConflictSearch
        from mapmrf.engines.feasibility.pigeonhole import clique_clauses

        if not fits_clauses(self.problem):
            return
        atoms = Atoms.of(self.problem)
        parts, done = [variable_clauses(self.problem, atoms)], 0
        for part in factor_clauses(self.problem, atoms):
            parts.append(part)
            done += len(part.literals)
            if done >= STEP_LITERALS:
                done = 0
                yield self.shared.step("feasible")
        parts.append(clique_clauses(self.problem, atoms))
        yield self.shared.report("feasible")
        self.search = ConflictSearch(self.problem, self.shared.incumbent.labels, atoms, HardClauses.joined(parts))

    def _look(self, search: ConflictSearch) -> Iterator[Progress]:
        from mapmrf.engines.feasibility.conflict_search import FEASIBLE, INFEASIBLE

        outcome = search.run(STEP_WORK)
        if outcome == FEASIBLE:
            self.shared.incumbent.offer(search.labels())
        self.shared.details["conflicts"] = float(search.n_conflicts)
        if outcome == INFEASIBLE:
            self._over = True
            yield self.shared.prove("feasible", -math.inf)
        else:
            yield self.shared.step("feasible")

    def _repair(self, repair: Repair | None) -> Repair:
        """Take one step of local search, which starts from the incumbent."""
        from mapmrf.engines.feasibility.repair import Repair

        if repair is None:
            repair = Repair(self.problem, self.shared.incumbent.labels, self.seed)
        repair.run(STEP_WORK)
        self.shared.incumbent.offer(repair.labels)
        return repair

    def excluded(self) -> Bools:
        """States that are known to be in no feasible labelling, (n_states,)."""
        if self.search is None:
            return np.zeros(self.problem.n_states, dtype=bool)
        return self.search.excluded()


def largest_sum(graph: FactorGraph) -> float:
    """Return the sum of the largest entries of all tables, a bound that is attained if all soft parts are constant."""
    total = graph.constant + float(segment_ends(graph.theta_v, graph.var_ptr)[1].sum())
    if graph.n_factors:
        low, high = (ends[graph.table_of] for ends in segment_ends(graph.theta_t, graph.table_ptr))
        weight = np.ones(graph.n_factors) if graph.weight is None else graph.weight
        total += float((weight * np.where(weight >= 0, high, low)).sum())
    return total
