"""toulbar2 in a separate process: starting, reading its output, and stopping."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import re
import subprocess
import sys
import threading
import weakref
from collections import deque
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from mapmrf.arrays import Ints
from mapmrf.engines.program import toulbar2_worker
from mapmrf.run.result import Status

WORKER = Path(toulbar2_worker.__file__)

Messages = queue.SimpleQueue["Toulbar2Message"]


@dataclass(frozen=True)
class Toulbar2Message:
    """A message from the process.

    Attributes
    ----------
    ready
        Whether the search has started.
    lower, backtracks
        A lower bound on the cost, and backtracks so far; 0 if the message has none.
    labels
        A labelling, the best so far.
    finished
        Status at the end of the search, or None.
    failure
        Exit status and last output, if the process ended without reporting the end of the search.
    """

    ready: bool = False
    lower: int = 0
    backtracks: int = 0
    labels: Ints | None = None
    finished: Status | None = None
    failure: str | None = None


def packed(network: dict[str, Any]) -> bytes:
    r"""Serialise a network for the worker: a line of JSON, in which ``{"size": n}`` stands for bytes that follow it.

    Examples
    --------
    >>> packed({"seed": 1, "costs": [b"ab", b"c"]})
    b'{"seed": 1, "costs": [{"size": 2}, {"size": 1}]}\nabc'
    """
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
        """Stop the process and the thread that reads from it."""
        self._kill()
        self._reader.join()


def _kill(process: subprocess.Popen[bytes], lifeline: int) -> None:
    process.kill()
    process.wait()
    os.close(lifeline)


def _converse(process: subprocess.Popen[bytes], given: list[bytes], messages: Messages) -> None:
    """Send the input and forward all output."""
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
    """Parse a line of the worker or of toulbar2."""
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
