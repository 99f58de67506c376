"""toulbar2 in a separate process: starting, reading its output, and stopping."""

from __future__ import annotations

import contextlib
import itertools
import json
import math
import os
import queue
import re
import subprocess
import sys
import threading
import weakref
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from mapmrf.arrays import Floats, Ints
from mapmrf.engines.program import toulbar2_worker
from mapmrf.engines.program.program import block_losses
from mapmrf.model.problem import Batch, Problem
from mapmrf.run.result import Status

WORKER = Path(toulbar2_worker.__file__)

Messages = queue.SimpleQueue["Toulbar2Message"]


@dataclass(frozen=True)
class Toulbar2Message:
    ready: bool = False  # whether the search has started
    # lower, backtracks: a lower bound on the cost, and backtracks so far; 0 if the message has none
    lower: int = 0
    backtracks: int = 0
    labels: Ints | None = None  # a labelling, the best so far
    finished: Status | None = None  # status at the end of the search, or None
    # Exit status and last output, if the process ended without reporting the end of the search
    failure: str | None = None


def packed(network: dict[str, Any]) -> bytes:
    r"""Serialise a network for the worker: a line of JSON, in which ``{"size": n}`` stands for bytes that follow it."""
    blocks: list[bytes] = []

    def plain(part: Any) -> Any:
        if isinstance(part, bytes):
            blocks.append(part)
            return {"size": len(part)}
        if isinstance(part, dict):
            return {name: plain(value) for name, value in part.items()}
        return [plain(value) for value in part] if isinstance(part, list | tuple) else part

    head = json.dumps(plain(network)).encode()
    return b"".join([head, b"\n", *blocks])


class Toulbar2Process:
    """A running toulbar2, in a separate session that Ctrl-C does not reach; killed when this object is dropped."""

    def __init__(self, network: bytes, worker: Path = WORKER) -> None:
        # The worker lives as long as this pipe is open. Nothing is ever written to it: that would end it, too.
        theirs, ours = os.pipe()
        try:
            process = subprocess.Popen(
                [sys.executable, "-I", "-S", str(worker), str(theirs)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                pass_fds=(theirs,) if os.name == "posix" else (),
            )
        finally:
            os.close(theirs)
        self._kill = weakref.finalize(self, _kill, process, ours)
        self._messages: Messages = queue.SimpleQueue()
        self._unread: deque[Toulbar2Message] = deque()
        arguments = (process, [network], self._messages)
        self._reader = threading.Thread(target=_converse, args=arguments, name="mapmrf-toulbar2", daemon=True)
        self._reader.start()

    def next_message(self, seconds: float) -> Toulbar2Message | None:
        """Return the next message, if one arrives within some seconds."""
        if self._unread:
            return self._unread.popleft()
        try:
            return self._messages.get(timeout=seconds)
        except queue.Empty:
            return None

    def unread(self) -> tuple[Toulbar2Message, ...]:
        """Return the messages that have arrived and not been taken, without taking them."""
        while not self._messages.empty():
            self._unread.append(self._messages.get())
        return tuple(self._unread)

    def close(self) -> None:
        self._kill()
        self._reader.join()


def _kill(process: subprocess.Popen[bytes], lifeline: int) -> None:
    process.kill()
    process.wait()
    os.close(lifeline)


def _converse(process: subprocess.Popen[bytes], given: list[bytes], messages: Messages) -> None:
    assert process.stdin is not None and process.stdout is not None
    with contextlib.suppress(BrokenPipeError):  # the process has ended: its last line says why
        process.stdin.write(given.pop())
    with contextlib.suppress(BrokenPipeError):  # what is left in the buffer
        process.stdin.close()
    last = ""
    with process.stdout as lines:
        for line in lines:
            text = line.decode(errors="replace")
            message = parse(text)
            if message is not None:
                messages.put(message)
            last = text.strip() or last
    failure = f"exit status {process.wait()}, last line {last!r}"
    messages.put(Toulbar2Message(finished=Status.ITERATION_LIMIT, failure=failure))


LABELS = re.compile(r"(?:mapmrf labels)?((?: \d+)+)\s*")
BOUNDS = re.compile(r"(?:Initial lower and upper bounds|Optimality gap): \[(\d+), \d+\]")
BOUND = re.compile(r"\bdual bound: (\d+)\b", re.IGNORECASE)
BACKTRACKS = re.compile(r"\((\d+) backtracks")
END = re.compile(r"mapmrf end (\w+) (\d+) (\d+)")
ENDS = {"optimal": Status.OPTIMAL, "infeasible": Status.INFEASIBLE, "limit": Status.ITERATION_LIMIT}


def parse(line: str) -> Toulbar2Message | None:
    if labels := LABELS.fullmatch(line):
        return Toulbar2Message(labels=np.array(labels[1].split(), dtype=np.int64))
    if end := END.match(line):
        return Toulbar2Message(True, int(end[2]), int(end[3]), finished=ENDS[end[1]])
    if line.startswith("mapmrf ready"):
        return Toulbar2Message(True)
    lower = BOUNDS.match(line) or BOUND.search(line)
    backtracks = BACKTRACKS.search(line)
    if lower is None and backtracks is None:
        return None
    return Toulbar2Message(True, int(lower[1]) if lower else 0, int(backtracks[1]) if backtracks else 0)


# -- Integer costs of a problem for toulbar2, and the possible effect of their rounding -------------------------------


@dataclass(frozen=True)
class WholeCosts:
    """cost = rint(scale (best - theta)) in every block, inf where theta is -inf; offset is the sum of the bests.

    The scale is a power of two, so that only the rounding to integers loses precision: half a unit per variable and
    factor, `error` for a whole labelling. Factor `a` of the problem has its costs at ``table_at[a]`` of `tables`: there
    is a table for every distinct pair of a weight and a table. Constraints cost `penalties`.
    """

    unary: Floats
    tables: Floats
    table_at: Ints
    offset: float
    scale: float
    error: float
    penalties: Floats

    @classmethod
    def of(cls, problem: Problem, bits: int = 50) -> WholeCosts:
        """Return the finest costs whose sum is below 2^bits: a double represents it, and toulbar2's limit is 2^58."""
        graph = problem.graph.expanded()
        uses = np.bincount(graph.table_of, minlength=graph.n_tables)
        unary, best_v, range_v = block_losses(graph.theta_v, graph.var_ptr)
        tables, best_t, range_t = block_losses(graph.theta_t, graph.table_ptr)
        used = uses > 0
        offset = graph.constant + float(best_v.sum() + best_t[used] @ uses[used])
        prices = np.zeros(0) if graph.constraints is None else graph.constraints.penalty
        finite = prices[np.isfinite(prices)]
        total = float(range_v.sum() + range_t @ uses + finite.sum())
        scale = math.ldexp(1.0, min(1000, bits - math.frexp(total)[1])) if total else 1.0
        n_rounded = np.count_nonzero(range_v) + uses[range_t > 0].sum() + np.count_nonzero(finite)
        size = float(np.abs(best_v).sum() + np.abs(best_t[used]) @ uses[used] + total)
        # Half a unit per non-constant block, and the round-off of sums over all of them.
        error = 0.5 * n_rounded / scale + 32 * np.finfo(float).eps * size if math.isfinite(offset) else 0.0
        table_at = problem.table_at if graph is problem.graph else graph.table_ptr[graph.table_of[problem.order]]
        costs_v, costs_t, penalties = (np.rint(block * scale) for block in (unary, tables, prices))
        return cls(costs_v, costs_t, table_at, offset, scale, float(error), penalties)

    def bound(self, lower: int) -> float:
        """Return the upper bound on the value of all labellings, given a lower bound on their costs."""
        return self.offset - lower / self.scale + self.error

    def cost(self, problem: Problem, labels: Ints) -> float:
        graph = problem.graph
        total = float(self.unary[graph.var_ptr[:-1] + labels].sum())
        for batch in problem.batches:
            places = np.ravel_multi_index(tuple(labels[batch.scope].T), batch.shape)
            total += float(self.tables[self.table_at[batch.factors] + places].sum())
        return total

    def network(self, problem: Problem) -> dict[str, Any]:
        """Return the input of the worker: runs of variables of equal cardinality, and functions grouped by shape."""
        return {
            "variables": list(self._variables(problem)),
            "functions": [item for batch in problem.batches for item in self._functions(batch)],
        }

    def _variables(self, problem: Problem) -> Iterator[tuple[int, int, int, bytes]]:
        """Yield (first variable, count, cardinality, unary costs)."""
        card, ptr = problem.graph.card, problem.graph.var_ptr
        cuts = [0, *(np.flatnonzero(np.diff(card)) + 1).tolist(), len(card)]
        for first, end in itertools.pairwise(cuts):
            yield first, end - first, int(card[first]), self.unary[ptr[first] : ptr[end]].tobytes()

    def _functions(self, batch: Batch) -> Iterator[tuple[tuple[int, ...], int, bytes, bytes]]:
        """Yield (shape, count, scopes, costs): a table for each, or one table for all if factors share it."""
        entries, scope = np.arange(batch.n_configs), batch.scope.astype(np.int64)
        table_at = self.table_at[batch.factors]
        starts, of, counts = np.unique(table_at, return_inverse=True, return_counts=True)
        single = counts[of] == 1
        if single.any():
            tables = self.tables[table_at[single, None] + entries]
            yield batch.shape, len(tables), scope[single].tobytes(), tables.tobytes()
        members, ends = np.argsort(of, kind="stable"), np.cumsum(counts)
        for k in np.flatnonzero(counts > 1).tolist():
            mine = scope[members[ends[k] - counts[k] : ends[k]]]
            yield batch.shape, len(mine), mine.tobytes(), self.tables[starts[k] + entries].tobytes()
