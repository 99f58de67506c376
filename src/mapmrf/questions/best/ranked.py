"""The m best labellings of a model whose tables of elimination fit into memory: exact, in one pass."""

from __future__ import annotations

import numpy as np

from mapmrf.arrays import Ints
from mapmrf.engines.elimination.bucket_messages import BucketMessages, RankedLabellings, fitting_tree, narrow_tree
from mapmrf.engines.elimination.functions import Functions
from mapmrf.engines.elimination.repeated_passes import RepeatedPasses
from mapmrf.methods.auto import Auto
from mapmrf.methods.branch import Branch
from mapmrf.model.graph import FactorGraph
from mapmrf.model.problem import Problem
from mapmrf.questions.best.calls import SolveCalls
from mapmrf.run.result import Status

STEP_ADDITIONS = 20_000_000
"""Additions of table entries between two checks of the clock: about 30 ms."""


class Ranked:
    """Labellings found so far, in descending order, and a bound on the value of all others."""

    def __init__(self) -> None:
        self.labels: list[Ints] = []
        self.others = np.inf
        self.stopped: Status | None = None


def memory_of(calls: SolveCalls) -> float:
    """Bytes that the method allows for elimination; 0 if it does not eliminate."""
    method = calls.method
    if isinstance(method, Auto):
        return method.memory * 2**20 if method.elimination_entries > 0 else 0.0
    return method.memory * 2**20 if isinstance(method, Branch) and method.i_bound == 0 else 0.0


def collected_messages(graph: FactorGraph, calls: SolveCalls) -> BucketMessages | None:
    """The messages to the roots; None if they do not fit into memory. Not `collected` if the time was up."""
    memory = memory_of(calls)
    if memory == 0:
        return None
    problem = Problem.compile(graph)
    tree = fitting_tree(problem, memory, calls.seed)
    if tree is None:
        return None
    messages = BucketMessages(tree, Functions.of_model(problem, tree))
    while not messages.collected and calls.stopped is None:
        messages.collect(STEP_ADDITIONS)
    return messages


def rank_by_elimination(graph: FactorGraph, m: int, calls: SolveCalls) -> Ranked | None:
    """The m best labellings and the value of the next; None if the tables do not fit into memory."""
    messages = collected_messages(graph, calls)
    if messages is None:
        return rank_by_passes(graph, m, calls)
    found = Ranked()
    if not messages.collected:
        found.stopped = calls.stopped
        return found
    if graph.constant == -np.inf:
        found.others = -np.inf
        return found
    ranks = RankedLabellings(messages, m)
    while len(ranks.found) < m and ranks.next_value > -np.inf:
        found.stopped = calls.stopped
        if found.stopped is not None and ranks.found:
            break
        ranks.advance()
    found.labels = [ranks.labels(number) for number in range(len(ranks.found))]
    found.others = ranks.next_value + graph.constant
    return found


def rank_by_passes(graph: FactorGraph, m: int, calls: SolveCalls) -> Ranked | None:
    """The same with an elimination per batch of labellings, whose messages are not kept; None if not even that fits."""
    memory, problem = memory_of(calls), Problem.compile(graph)
    if memory == 0 or graph.constant == -np.inf:
        return None
    tree = narrow_tree(problem, memory * int(graph.card.max(initial=1)), calls.seed)
    if tree is None or RepeatedPasses.bytes_needed(tree) > memory:
        return None
    found = Ranked()
    passes = RepeatedPasses(tree, Functions.of_model(problem, tree), m, lambda: calls.stopped is not None)
    going = passes.start()
    while going and len(passes.found) < m and passes.next_value > -np.inf:
        going = passes.advance()
    found.stopped = None if going else calls.stopped
    found.labels = [passes.labels(number) for number in range(len(passes.found))]
    if passes.started:
        found.others = passes.next_value + graph.constant
    return found
