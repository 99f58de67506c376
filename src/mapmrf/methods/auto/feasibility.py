"""The first feasible labelling of `auto` on models with hard constraints, or a proof that there is none."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from mapmrf.arrays import Bools, segment_ends
from mapmrf.methods.auto.settings import SETTINGS
from mapmrf.methods.auto.state import Phase, SharedState, Steps
from mapmrf.model.graph import FactorGraph
from mapmrf.run import pace
from mapmrf.run.method import Progress
from mapmrf.run.repair import fits_clauses

if TYPE_CHECKING:
    from mapmrf.engines.feasibility.conflict_search import ConflictSearch


class FeasibilityPhase:
    """Conflict-driven search and local search over the hard constraints, until a labelling is feasible.

    It takes some steps before the relaxation, one after each of its iterations, more once it has ended, and turns in
    the race: most other phases are of little use without a feasible labelling.
    """

    def __init__(self, shared: SharedState, seed: int) -> None:
        self.shared, self.seed, self.problem = shared, seed, shared.problem
        self.search: ConflictSearch | None = None
        self._phase: Phase | None = None
        self._over = not any(batch.hard for batch in self.problem.batches) and bool(self.problem.feasible_v.all())

    @property
    def is_needed(self) -> bool:
        """Whether there is still no feasible labelling and the search has not ended."""
        return not self._over and self.shared.incumbent.value == -math.inf

    def first(self) -> Iterator[Progress]:
        """The steps before everything else; a feasible labelling may already attain the largest possible value."""
        needed = self.is_needed
        yield from self.steps(SETTINGS.feasible_first)
        if needed and self.shared.incumbent.value > -math.inf:
            self.shared.incumbent.tighten(largest_sum(self.problem.graph), "feasible")
            yield self.shared.report("feasible")

    def steps(self, count: int) -> Iterator[Progress]:
        """Take up to `count` steps while they are needed."""
        if self._phase is None and self.is_needed:
            self._phase = Phase(self.run(), SETTINGS.feasible_turn)
        while self._phase is not None and count > 0 and self.is_needed:
            count -= 1
            step = self._phase.next_step()
            if step is None:  # ended, or its kernels would compile too long
                self._over = True
                return
            yield step

    def run(self) -> Steps:
        """All steps, until a labelling is found, here or by another phase, or none exists."""
        if self.search is None:
            yield from self._compile()
        from mapmrf.engines.feasibility.conflict_search import FEASIBLE, INFEASIBLE
        from mapmrf.engines.feasibility.repair import Repair

        shared, search, repair = self.shared, self.search, None
        for k in itertools.count(1):
            if not self.is_needed:
                break
            if search is None or k % SETTINGS.repair_every == 0:
                repair = repair or Repair(self.problem, shared.incumbent.labels, self.seed)
                repair.run(pace.CLAUSES)
                shared.incumbent.offer(repair.labels)
                yield shared.step("repair")
                continue
            outcome = search.run(pace.CLAUSES)
            if outcome == FEASIBLE:
                shared.incumbent.offer(search.labels())
            shared.details["conflicts"] = float(search.n_conflicts)
            if outcome == INFEASIBLE:
                self._over = True
                yield shared.prove("feasible", -math.inf)
            else:
                yield shared.step("feasible")
        self._over = True

    def _compile(self) -> Iterator[Progress]:
        """Turn the forbidden entries into clauses, unless there are too many."""
        from mapmrf.engines.feasibility.clauses import Atoms, HardClauses, factor_clauses, variable_clauses
        from mapmrf.engines.feasibility.conflict_search import ConflictSearch
        from mapmrf.engines.feasibility.pigeonhole import clique_clauses

        if not fits_clauses(self.problem):
            return
        atoms = Atoms.of(self.problem)
        parts, done = [variable_clauses(self.problem, atoms)], 0
        for part in factor_clauses(self.problem, atoms):
            parts.append(part)
            done += len(part.literals)
            if done >= SETTINGS.step_literals:
                done = 0
                yield self.shared.step("feasible")
        parts.append(clique_clauses(self.problem, atoms))
        yield self.shared.report("feasible")
        self.search = ConflictSearch(self.problem, self.shared.incumbent.labels, atoms, HardClauses.joined(parts))

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
