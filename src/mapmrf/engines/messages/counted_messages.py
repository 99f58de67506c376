"""Belief propagation on models with constraints: messages of tables and of constraints."""

from __future__ import annotations

import math

from mapmrf.arrays import Ints
from mapmrf.engines.counting.model import CountingModel
from mapmrf.engines.counting.rounding import LegalRounding, preferences
from mapmrf.engines.messages.counted_dual import NO_VARIABLES, new_scores, priced_items
from mapmrf.engines.messages.counted_messages_kernels import send_counted
from mapmrf.engines.messages.max_product import ForestWeights, TableMessages, Tour
from mapmrf.engines.messages.max_product_kernels import MessageSchedule
from mapmrf.model.problem import Problem


class CountedMessages:
    """Messages of the tables, of any shape, followed in every iteration by those of the constraints."""

    def __init__(self, problem: Problem, tour: Tour, weights: ForestWeights) -> None:
        graph = problem.graph
        self.graph, self.tables = graph, TableMessages(problem, tour, weights)
        self.model = CountingModel.of(graph, NO_VARIABLES)
        self.items = priced_items(graph, self.model)
        self.scores, self.out = new_scores(self.model), new_scores(self.model)
        self.rounding = LegalRounding(graph, self.model)

    def iterate(self, schedule: MessageSchedule, begin: int, end: int) -> tuple[int, float]:
        """Run iterations `begin` to `end`, or to convergence; return how many, and the largest undamped change."""
        done, worst = 0, math.inf
        while begin + done < end and worst > schedule.tol:
            _, worst = self.tables.iterate(schedule, begin + done, begin + done + 1)
            worst = max(worst, self._send(schedule.damping))
            done += 1
        return done, worst

    def _send(self, damping: float) -> float:
        return send_counted(self.model.factors, self.items, self.tables.beliefs, damping, self.scores, self.out)

    def decode(self, in_order: bool) -> Ints:
        """Decode a labelling; if it violates a constraint, round the beliefs to one that does not."""
        labels = self.tables.decode(in_order)
        if self.graph.value(labels) > -math.inf:
            return labels
        legal = self.rounding.round(preferences(self.tables.beliefs.b, self.graph.var_ptr))
        return labels if legal is None else legal

    def value(self, labels: Ints) -> float:
        """Return the value of labels."""
        return self.graph.value(labels)

    def bound(self) -> float:
        """Return infinity: there is no bound."""
        return math.inf

    def is_infeasible(self) -> bool:
        """Return whether a variable has no possible state left, or a constraint cannot be satisfied."""
        return self.model.constant == -math.inf or self.tables.is_infeasible()

    def close(self) -> None:
        """Stop the threads."""
        self.tables.close()
