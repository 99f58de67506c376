"""The table of single-flip gains and the agenda of a search, shared by flips, chains and restarts."""

from __future__ import annotations

import numpy as np

from mapmrf.arrays import Floats, Ints, block_sizes, segment_ends
from mapmrf.compilation.records import blank
from mapmrf.engines.moves.flip_state_kernels import Agenda, AgendaCounts, FlipState
from mapmrf.engines.moves.move_model import lay_out, table_places
from mapmrf.model.problem import Problem


def new_flip_state(problem: Problem, longest: int) -> FlipState:
    """Create a state with labels zero and room for moves of at most `longest` flips; scores are not computed yet."""
    owner = problem.edge_factor
    states = problem.graph.card[problem.scope].astype(np.int64)
    beside = np.bincount(owner, states, problem.n_factors)[owner] - states
    logged = np.bincount(problem.scope, beside, problem.n_vars)
    room = int(min(logged.sum(), longest * logged.max(initial=0)))
    return FlipState(
        model=lay_out(problem),
        floor=floor_of(problem, longest),
        labels=np.zeros(problem.n_vars, dtype=np.int64),
        place=problem.table_at.astype(np.int64),
        score=np.zeros(problem.n_states),
        age=np.zeros(problem.n_vars, dtype=np.int32),
        log_at=np.zeros(room, dtype=np.int64),
        log_score=np.zeros(room),
    )


def floor_of(problem: Problem, longest: int) -> float:
    """Return a number below any finite loss of `longest` flips; -inf if nothing is forbidden."""
    graph = problem.graph
    if problem.feasible_v.all() and not any(batch.hard for batch in problem.batches):
        return -np.inf
    size = block_sizes(graph.theta_v, graph.var_ptr)
    of_table = block_sizes(graph.theta_t, graph.table_ptr)
    of_factor = _weighted(problem, of_table[graph.table_of[problem.order]])
    size += np.bincount(problem.scope, of_factor[problem.edge_factor], problem.n_vars)
    return -float(1.0 + 2 * (longest + 1)) * max(float(size.max(initial=0.0)), np.finfo(np.float64).tiny)


def local_scale(problem: Problem) -> float:
    """Return a variable's mean stake: the sum of the ranges of its factors' tables, averaged over all variables."""
    graph = problem.graph
    if problem.n_factors == 0:
        return 0.0
    low, high = segment_ends(graph.theta_t, graph.table_ptr)
    span = high - low
    arity = np.diff(problem.scope_ptr)
    return float(_weighted(problem, span[graph.table_of[problem.order]]) @ arity) / problem.n_vars


def _weighted(problem: Problem, sizes: Floats) -> Floats:
    """Return sizes of the factors' tables times the absolute values of their weights."""
    return sizes * np.abs(problem.weight) if len(problem.weight) else sizes


def set_labels(problem: Problem, flips: FlipState, labels: Ints) -> None:
    """Set the labels and the table entries of the factors; the scores are not updated."""
    flips.labels[:] = labels
    flips.place[:] = table_places(problem, flips.labels)


def new_agenda(n: int) -> Agenda:
    """Return an empty agenda of `n` variables."""
    return Agenda(
        heap=np.zeros(n, dtype=np.int32),
        where=np.full(n, -1, dtype=np.int32),
        key=np.zeros(n),
        flip=np.zeros(n, dtype=np.int64),
        queue=np.zeros(n, dtype=np.int32),
        queued=np.zeros(n, dtype=bool),
        changed=np.zeros(n, dtype=np.int32),
        is_changed=np.zeros(n, dtype=bool),
        origin=np.zeros(n, dtype=np.int64),
        counts=blank(AgendaCounts),
    )


def begin_at(problem: Problem, flips: FlipState, agenda: Agenda, labels: Ints) -> None:
    """Start from a labelling whose scores `refresh` has yet to compute; heap and queue are empty."""
    set_labels(problem, flips, labels)
    agenda.origin[:] = labels
    agenda.counts.queue_begin = agenda.counts.queue_length = agenda.counts.heap_length = agenda.counts.n_changed = 0
    agenda.where[:] = -1
    agenda.queued[:] = False
    agenda.is_changed[:] = False


def enqueue_all(agenda: Agenda, random: np.random.Generator | None = None) -> None:
    """Queue every variable, in the order of the variables or in random order."""
    n = len(agenda.queue)
    agenda.queue[:] = np.arange(n) if random is None else random.permutation(n)
    agenda.queued[:] = True
    agenda.counts.queue_begin, agenda.counts.queue_length = 0, n


def is_empty(agenda: Agenda) -> bool:
    """Return whether no flip gains and no variable is queued."""
    return agenda.counts.heap_length == 0 and agenda.counts.queue_length == 0
