"""Models with constraints in `auto`: counters, propagation, rows, and `auto` on the model with tables, in turn."""

from __future__ import annotations

import math
from collections.abc import Generator, Iterator
from dataclasses import replace

import numpy as np

from mapmrf.arrays import Floats, Ints
from mapmrf.constraints.as_tables import rewrite
from mapmrf.errors import UnsupportedModel
from mapmrf.methods.auto.settings import SETTINGS
from mapmrf.methods.auto.state import Phase, SharedRun, log
from mapmrf.model.problem import Problem
from mapmrf.run.method import Progress, Start, running
from mapmrf.run.result import Status


class ConstrainedRun(SharedRun):
    """A run on a model with constraints: approaches take turns."""

    def run(self) -> Generator[Progress, None, None]:
        """Solve an assignment problem at once, and other models by alternating between all suitable approaches."""
        yield from self.assign()
        tracks = [
            Phase(self.by_counters(), SETTINGS.counters_turn, first=SETTINGS.counters_turn),
            Phase(self.by_tables(), SETTINGS.tables_turn, first=SETTINGS.tables_turn),
            Phase(self.by_rows(), SETTINGS.rows_turn, first=SETTINGS.rows_turn),
        ]
        graph = self.problem.graph
        assert graph.constraints is not None
        # Tables first where any feasible labelling will do (conflicts find one), or where elimination may suffice.
        if graph.size == 0 or len(graph.constraints.var) <= SETTINGS.few_indicators:
            tracks[:2] = tracks[1::-1]
        turn, first = SETTINGS.propagation_turn, SETTINGS.propagation_first
        tracks.insert(1, Phase(self.by_propagation(), turn, first=first))
        many = graph.size > 0 and len(graph.constraints.var) > SETTINGS.many_indicators
        turn = SETTINGS.many_turn if many else SETTINGS.relaxation_turn
        tracks.insert(0 if many else 3, Phase(self.by_relaxation(), turn, first=max(turn, SETTINGS.relaxation_first)))
        try:
            while tracks:
                for track in tracks.copy():
                    for _ in range(track.earn()):
                        step = next(track.steps, None)
                        if step is None:
                            tracks.remove(track)
                            break
                        yield step
            yield self.shared.report("search", Status.CONVERGED)
        finally:
            for track in tracks:
                track.steps.close()

    def assign(self) -> Iterator[Progress]:
        """Solve assignment problems: no factors, and disjoint ALL_DIFFERENT constraints."""
        graph = self.problem.graph
        constraints = graph.constraints
        assert constraints is not None
        separate = np.bincount(constraints.var).max() == 1
        different = all(kind.unequal_pairs(constraints, int(mine.argmax())) for kind, mine in constraints.kinds)
        if graph.n_factors or not (separate and different and np.all(constraints.hard)):
            return
        labels = graph.unary_labels.copy()
        for c in range(len(constraints)):
            scope = constraints.var[constraints.span(c)]
            # the unary potentials of the variables, with -inf for states that one lacks
            gains = np.full((len(scope), int(graph.card[scope].max())), -np.inf)
            for row, i in enumerate(scope.tolist()):
                gains[row, : graph.card[i]] = graph.theta_v[graph.var_ptr[i] : graph.var_ptr[i + 1]]
            chosen = best_assignment(gains)
            if chosen is None:
                yield self.shared.prove("assignment", -math.inf)
                return
            labels[scope] = chosen
        yield self.shared.prove("assignment", self.shared.incumbent.offer(labels))

    def by_tables(self) -> Generator[Progress, None, None]:
        from mapmrf.methods.auto import AutoRun

        try:
            rewriting = rewrite(self.problem.graph)
        except UnsupportedModel as reason:
            log.info("auto continues without tables: %s", reason)
            return
        shared, best = self.shared, self.shared.incumbent
        labels = rewriting.lift(best.labels)
        problem = Problem.compile(rewriting.graph, self.problem.threads, self.problem.memory)
        run = AutoRun(self.options, problem, self.seed, labels, rewritten=True)
        try:
            for step in run.steps:
                if step.refuted is not None:
                    best.withdraw("tables")
                    best.bounds.refuted |= step.refuted
                found = None if step.labels is None else rewriting.project(step.labels)
                yield shared.take_over(replace(step, labels=found, value=None), "tables", step.phase)
                if shared.is_refuted("tables"):
                    return
                if best.value > run.shared.incumbent.value:
                    run.shared.incumbent.offer(rewriting.lift(best.labels))
        finally:
            shared.details |= run.shared.details
            run.close()

    def by_counters(self) -> Generator[Progress, None, None]:
        """Tabu search that maintains the counts of the constraints."""
        from mapmrf.engines.moves.constrained_search import SCAN, ConstrainedSearch

        shared, problem = self.shared, self.problem
        if problem.n_vars == 0:
            return
        search = ConstrainedSearch(problem, shared.incumbent.labels, self.seed)
        states = max(1, problem.n_states * min(problem.n_vars, SCAN) // problem.n_vars)
        while True:
            search.incumbent.offer(shared.incumbent.labels, shared.incumbent.value)
            search.run(max(1, SETTINGS.counters_states // states))
            shared.incumbent.offer(search.incumbent.labels, search.incumbent.value)
            if search.idle > SETTINGS.counters_idle * problem.n_vars:
                search.kick()
            yield shared.step("counters")

    def by_propagation(self) -> Generator[Progress, None, None]:
        """Branch and bound that propagates the constraints natively."""
        from mapmrf.methods.wcsp import WCSP

        method = WCSP()
        if self.options.prove and method.supports(self.problem) is None:
            yield from self.follow(method, "propagation", Start(self.shared.incumbent.labels))

    def by_relaxation(self) -> Generator[Progress, None, None]:
        """LS-LP with native constraints, which needs no rewritten model."""
        from mapmrf.methods.lslp import LSLP

        method = LSLP(beliefs=0)
        if self.shared.admits(method, self.problem):
            for report in self.follow(method, "relaxation", Start()):
                report.finished = Status.INFEASIBLE if report.finished is Status.INFEASIBLE else None
                yield report

    def by_rows(self) -> Generator[Progress, None, None]:
        """Branch and cut on the program in which constraints are rows."""
        yield self.shared.report("rows")  # not in the first turn: many models are solved by then
        problem, shared, best = self.problem, self.shared, self.shared.incumbent
        entries = sum(batch.n * batch.n_configs * batch.arity for batch in problem.batches)
        if not self.options.prove or entries > SETTINGS.program_entries:
            return
        from mapmrf.methods.cuts import Cuts

        method = Cuts(solver=self.options.solver, local_search=0, lp_iterations=0, memory=self.options.memory)
        if not shared.admits(method, problem):
            return
        with running(method, problem, self.seed, Start(best.labels)) as state:
            state.reports = SETTINGS.program_reports
            step = Progress(0)
            while step.finished is None and not shared.is_refuted("rows"):
                state.inform(best.labels)
                step = method.step(problem, state)
                yield shared.take_over(step, "rows", "branch and cut")


# -- The linear assignment problem: distinct columns for all rows, with maximum sum -----------------------------------


def best_assignment(gains: Floats) -> Ints | None:
    """Return the column of every row, (n_rows,), in an optimal assignment; None if none has a finite sum."""
    if gains.shape[0] > gains.shape[1]:
        return None
    if gains.shape[0] <= SETTINGS.assignment_rows:
        return _augment(-gains)
    from scipy.optimize import linear_sum_assignment

    try:
        return np.asarray(linear_sum_assignment(gains, maximize=True)[1])
    except ValueError:  # infeasible
        return None


def _augment(cost: Floats) -> Ints | None:
    """Solve by shortest augmenting paths, one row after another, with row and column duals (Jonker and Volgenant)."""
    n_rows, n_columns = cost.shape
    row_price, column_price = np.zeros(n_rows), np.zeros(n_columns)
    row_of = np.full(n_columns, -1)
    column_of = np.full(n_rows, -1)
    for first in range(n_rows):
        distance, before = np.full(n_columns, np.inf), np.full(n_columns, -1)
        done = np.zeros(n_columns, dtype=bool)
        row, so_far = first, 0.0
        while True:
            reach = so_far + cost[row] - row_price[row] - column_price
            better = ~done & (reach < distance)
            distance[better], before[better] = reach[better], row
            column = int(np.argmin(np.where(done, np.inf, distance)))
            so_far = float(distance[column])
            if done[column] or so_far == np.inf:
                return None
            done[column] = True
            if row_of[column] < 0:
                break
            row = int(row_of[column])
        seen = row_of[done & (row_of >= 0)]
        row_price[first] += so_far
        row_price[seen] += so_far - distance[column_of[seen]]
        column_price[done] -= so_far - distance[done]
        while column >= 0:
            row = int(before[column])
            row_of[column], column, column_of[row] = row, int(column_of[row]), column
            if row == first:
                break
    return column_of
