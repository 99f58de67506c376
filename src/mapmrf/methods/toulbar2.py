"""toulbar2: an exact solver of weighted constraint networks, in a process of its own."""

from __future__ import annotations

import contextlib
import importlib.util
import itertools
import logging
import math
import os
import pickle
import queue
import re
import signal
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal, get_args

import numpy as np

from mapmrf.arrays import Floats, Ints
from mapmrf.engines.program import toulbar2_worker
from mapmrf.errors import MapMRFError
from mapmrf.method import Answer, Method, Progress, Start
from mapmrf.options import check_at_least, check_choice
from mapmrf.problem import Batch, Problem
from mapmrf.result import Status

log = logging.getLogger("mapmrf")

Search = Literal["hbfs", "dfs", "vns"]

POLL = 0.05
"""Seconds that a step waits for the worker before it lets the loop look at its limits."""

PATIENCE = 1.0
"""Seconds that a stopped worker is given to hand over its bound."""

COST_BITS = 50
"""The sum of the largest costs is below 2 to this: a double holds it, and toulbar2's limit is at 2^58."""

ELIMINATED_ENTRIES = 256
"""Entries of the tables that the elimination of variables before the search makes, at most."""

WORKER = Path(toulbar2_worker.__file__)


@dataclass(frozen=True)
class Toulbar2(Method):
    """Branch and bound with soft local consistencies.

    Attributes
    ----------
    max_iterations
        Backtracks of the search.
    search
        ``hbfs``, hybrid best-first search; ``dfs``, depth-first branch and bound, which needs the least memory;
        ``vns``, variable neighbourhood search, for good labellings of models that are too hard to prove.
    vac
        Depth of the search tree up to which virtual arc consistency is enforced: 0 never, 1 before the search alone.
    eliminate
        Variables with at most so many neighbours are eliminated before the search; by default as many as keep the
        tables that this makes within 256 entries (8 for binary models), but at least 2.

    Examples
    --------
    >>> import mapmrf
    >>> from mapmrf.datasets import grid
    >>> result = mapmrf.solve(grid(6, 6, coupling=2.0, seed=1), "toulbar2")
    >>> round(result.value, 6), result.status.value
    (55.647253, 'optimal')
    """

    name: ClassVar[str] = "toulbar2"
    title: ClassVar[str] = "branch and bound with soft local consistencies by toulbar2 (optional)"
    gives_bound: ClassVar[bool] = True
    exact: ClassVar[bool] = True
    exact_on_trees: ClassVar[bool] = True

    max_iterations: int = sys.maxsize
    search: Search = "hbfs"
    vac: int = 0
    eliminate: int | None = None

    def __post_init__(self) -> None:
        check_choice(self, "search", get_args(Search))
        check_at_least(self, 1, "max_iterations")
        check_at_least(self, 0, "vac")
        if self.eliminate is not None:
            check_at_least(self, 0, "eliminate")

    @property
    def stops_at_gap(self) -> bool:
        """It ends with its own proof: a gap that the loop takes for closed may be open in a model of small unit."""
        return False

    def supports(self, problem: Problem) -> str | None:
        """Ask for the extra where it is missing."""
        if importlib.util.find_spec("pytoulbar2") is None:
            return "needs the optional extra: pip install 'mapmrf[exact]'"
        return None

    def start(self, problem: Problem, seed: int, initial: Start) -> _State:
        """Turn the potentials into whole costs and start the worker on them."""
        costs = _Costs.of(problem)
        state = _State(costs)
        if costs.offset > -math.inf and problem.n_vars:
            network = costs.network(problem)
            network |= {"settings": self._settings(problem), "vac": self.vac, "seed": seed % 2**31, "path": sys.path}
            network["upper"] = None
            if initial.labels is not None and problem.graph.value(initial.labels) > -math.inf:
                network["upper"] = costs.cost(problem, initial.labels) + 1.0
            state.worker = _Worker(pickle.dumps(network))
        return state

    def step(self, problem: Problem, state: _State) -> Progress:
        """Take over the worker's next message, if one comes in a moment."""
        if state.worker is None:  # no variables, or a table that allows nothing
            finished = Status.OPTIMAL if state.costs.offset > -math.inf else Status.INFEASIBLE
            return Progress(0, bound=state.costs.offset, finished=finished)
        message = state.worker.next_message(POLL) or _Message()
        if message.failure is not None and not state.ready:
            raise MapMRFError(f"toulbar2 did not start: {message.failure}")
        if message.failure is not None:
            log.warning("toulbar2 broke off: %s", message.failure)
        state.take(message)
        return Progress(state.backtracks, labels=message.labels, bound=state.bound, finished=state.finished)

    def answer(self, problem: Problem, state: _State) -> Answer:
        """The best labelling and bound; ends the worker."""
        if state.worker is not None:
            for message in state.worker.stop(0.0 if state.finished else PATIENCE):
                state.take(message)
        details = {"cost_unit": 1 / state.costs.scale, "cost_error": state.costs.error}
        return Answer(labels=state.labels, bound=state.bound, details=details)

    def _settings(self, problem: Problem) -> dict[str, int]:
        """toulbar2's own names for the options."""
        degree = self.eliminate
        if degree is None:
            degree = max(2, int(math.log(ELIMINATED_ENTRIES, max(2, problem.graph.card.max()))))
        settings = {"backtrackLimit": min(self.max_iterations, 2**62) - 1, "elimDegree_preprocessing": degree}
        if self.search == "dfs":
            settings["hbfs"] = 0
        if self.search == "vns":
            settings |= {"searchMethod": 2, "vnsNeighborVarHeur": 3, "vnsInitSol": -4, "lds": 4, "restart": 10000}
        return settings


@dataclass
class _State:
    """A run: the worker and the best that it has told."""

    costs: _Costs
    worker: _Worker | None = None
    labels: Ints | None = None
    lower: int = 0
    backtracks: int = 0
    ready: bool = False
    finished: Status | None = None

    @property
    def bound(self) -> float:
        """Upper bound on every labelling."""
        if self.finished is Status.INFEASIBLE:
            return -math.inf
        return self.costs.bound(self.lower)

    def take(self, message: _Message) -> None:
        """Keep what a message tells."""
        self.ready |= message.ready
        self.lower = max(self.lower, message.lower)
        self.backtracks = max(self.backtracks, message.backtracks)
        if message.labels is not None:
            self.labels = message.labels
        self.finished = self.finished or message.finished


# -- whole costs ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Costs:
    """cost = rint(scale (best - theta)) in every block, inf where theta is -inf; offset is the sum of the bests.

    The scale is a power of two, so that nothing but the rounding to whole numbers is lost: half a unit per variable and
    factor, `error` for a whole labelling.
    """

    unary: Floats
    tables: Floats
    offset: float
    scale: float
    error: float

    @classmethod
    def of(cls, problem: Problem) -> _Costs:
        """The finest costs whose sum is below 2^COST_BITS."""
        graph = problem.graph
        uses = np.bincount(graph.table_of, minlength=graph.n_tables)
        unary, best_v, range_v = _losses(graph.theta_v, graph.var_ptr)
        tables, best_t, range_t = _losses(graph.theta_t, graph.table_ptr)
        used = uses > 0
        offset = graph.constant + float(best_v.sum() + best_t[used] @ uses[used])
        total = float(range_v.sum() + range_t @ uses)
        scale = math.ldexp(1.0, min(1000, COST_BITS - math.frexp(total)[1])) if total else 1.0
        n_rounded = np.count_nonzero(range_v) + uses[range_t > 0].sum()
        size = float(np.abs(best_v).sum() + np.abs(best_t[used]) @ uses[used] + total)
        # Half a unit per block that is not constant, and the round-off of sums over all of them.
        error = 0.5 * n_rounded / scale + 32 * np.finfo(float).eps * size if math.isfinite(offset) else 0.0
        return cls(np.rint(unary * scale), np.rint(tables * scale), offset, scale, float(error))

    def bound(self, lower: int) -> float:
        """Upper bound on the log potential of all labellings, given a lower bound on their costs."""
        return self.offset - lower / self.scale + self.error

    def cost(self, problem: Problem, labels: Ints) -> float:
        """Cost of a labelling."""
        graph = problem.graph
        total = float(self.unary[graph.var_ptr[:-1] + labels].sum())
        for batch in problem.batches:
            places = np.ravel_multi_index(tuple(labels[batch.scope].T), batch.shape)
            total += float(self.tables[batch.table_at + places].sum())
        return total

    def network(self, problem: Problem) -> dict[str, Any]:
        """What the worker builds: runs of variables of equal cardinality, and functions grouped by shape."""
        return {
            "variables": list(self._variables(problem)),
            "functions": [item for batch in problem.batches for item in self._functions(batch)],
        }

    def _variables(self, problem: Problem) -> Iterator[tuple[int, int, int, bytes]]:
        """(first variable, how many, cardinality, unary costs)."""
        card, ptr = problem.graph.card, problem.graph.var_ptr
        cuts = [0, *(np.flatnonzero(np.diff(card)) + 1).tolist(), len(card)]
        for first, end in itertools.pairwise(cuts):
            yield first, end - first, int(card[first]), self.unary[ptr[first] : ptr[end]].tobytes()

    def _functions(self, batch: Batch) -> Iterator[tuple[tuple[int, ...], int, bytes, bytes]]:
        """(shape, how many, scopes, costs): a table for each, or one table for all where factors share it."""
        entries, scope = np.arange(batch.n_configs), batch.scope.astype(np.int64)
        starts, of, counts = np.unique(batch.table_at, return_inverse=True, return_counts=True)
        single = counts[of] == 1
        if single.any():
            tables = self.tables[batch.table_at[single, None] + entries]
            yield batch.shape, len(tables), scope[single].tobytes(), tables.tobytes()
        members, ends = np.argsort(of, kind="stable"), np.cumsum(counts)
        for k in np.flatnonzero(counts > 1).tolist():
            mine = scope[members[ends[k] - counts[k] : ends[k]]]
            yield batch.shape, len(mine), mine.tobytes(), self.tables[starts[k] + entries].tobytes()


def _losses(theta: Floats, ptr: Ints) -> tuple[Floats, Floats, Floats]:
    """What every entry lies below the best of its block, the bests, and the largest finite loss of each block."""
    if len(ptr) < 2:
        return np.zeros(0), np.zeros(0), np.zeros(0)
    best = np.maximum.reduceat(theta, ptr[:-1])
    safe = np.where(best > -np.inf, best, 0.0)
    loss = np.repeat(safe, np.diff(ptr)) - theta
    largest = np.maximum.reduceat(np.where(np.isfinite(loss), loss, 0.0), ptr[:-1])
    return loss, best, largest


# -- the worker process -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Message:
    """Something that the worker told; `failure` says how it ended, if without a word."""

    ready: bool = False
    lower: int = 0
    backtracks: int = 0
    labels: Ints | None = None
    finished: Status | None = None
    failure: str | None = None


class _Worker:
    """toulbar2 in a process of its own: in its own session, so that Ctrl-C does not reach it, and gone when dropped."""

    def __init__(self, network: bytes) -> None:
        # The worker lives as long as this pipe is open. Nothing is ever written to it: that would count as a sign, too.
        theirs, ours = os.pipe()
        try:
            self.process = subprocess.Popen(
                [sys.executable, "-I", "-S", str(WORKER), str(theirs)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                pass_fds=(theirs,) if os.name == "posix" else (),
            )
        finally:
            os.close(theirs)
        self.end = weakref.finalize(self, _kill, self.process, ours)
        self.messages: queue.SimpleQueue[_Message] = queue.SimpleQueue()
        arguments = (self.process, [network], self.messages)
        threading.Thread(target=_converse, args=arguments, name="mapmrf-toulbar2", daemon=True).start()

    def next_message(self, seconds: float) -> _Message | None:
        """The next message, if there is one within some seconds."""
        try:
            return self.messages.get(timeout=seconds)
        except queue.Empty:
            return None

    def stop(self, seconds: float) -> list[_Message]:
        """End the process; a search under way is given some seconds to tell its bound."""
        messages: list[_Message] = []
        deadline = time.perf_counter() + seconds
        try:
            if hasattr(signal, "SIGVTALRM"):
                self.process.send_signal(signal.SIGVTALRM)
                while not (messages and messages[-1].finished) and (left := deadline - time.perf_counter()) > 0:
                    message = self.next_message(left)
                    messages += [] if message is None else [message]
        finally:
            self.end()
        return messages


def _kill(process: subprocess.Popen[bytes], lifeline: int) -> None:
    process.kill()
    process.wait()
    os.close(lifeline)


def _converse(process: subprocess.Popen[bytes], given: list[bytes], messages: queue.SimpleQueue[_Message]) -> None:
    """Hand over what is given and pass on all that comes back."""
    assert process.stdin is not None and process.stdout is not None
    with contextlib.suppress(BrokenPipeError):  # it has ended: its last line says why
        process.stdin.write(given.pop())
    with contextlib.suppress(BrokenPipeError):  # what is left in the buffer
        process.stdin.close()
    last = ""
    with process.stdout as lines:
        for line in lines:
            text = line.decode(errors="replace")
            message = _parse(text)
            if message is not None:
                messages.put(message)
            last = text.strip() or last
    failure = f"exit status {process.wait()}, last line {last!r}"
    messages.put(_Message(finished=Status.ITERATION_LIMIT, failure=failure))


LABELS = re.compile(r"(?:mapmrf labels)?((?: \d+)+)\s*")
BOUNDS = re.compile(r"(?:Initial lower and upper bounds|Optimality gap): \[(\d+), \d+\]")
BOUND = re.compile(r"\bdual bound: (\d+)\b", re.IGNORECASE)
BACKTRACKS = re.compile(r"\((\d+) backtracks")
END = re.compile(r"mapmrf end (\w+) (\d+) (\d+)")
ENDS = {"optimal": Status.OPTIMAL, "infeasible": Status.INFEASIBLE, "limit": Status.ITERATION_LIMIT}


def _parse(line: str) -> _Message | None:
    """What a line of the worker tells, if anything."""
    if labels := LABELS.fullmatch(line):
        return _Message(labels=np.array(labels[1].split(), dtype=np.int64))
    if end := END.match(line):
        return _Message(True, int(end[2]), int(end[3]), finished=ENDS[end[1]])
    if line.startswith("mapmrf ready"):
        return _Message(True)
    lower = BOUNDS.match(line) or BOUND.search(line)
    backtracks = BACKTRACKS.search(line)
    if lower is None and backtracks is None:
        return None
    return _Message(True, int(lower[1]) if lower else 0, int(backtracks[1]) if backtracks else 0)
