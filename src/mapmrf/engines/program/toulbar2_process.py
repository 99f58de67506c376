"""toulbar2 in a process of its own: started, listened to, and ended."""

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
from mapmrf.result import Status

WORKER = Path(toulbar2_worker.__file__)

Messages = queue.SimpleQueue["Toulbar2Message"]


@dataclass(frozen=True)
class Toulbar2Message:
    """Something that the process reported.

    Attributes
    ----------
    ready
        Whether the search has begun.
    lower, backtracks
        A lower bound on the cost, and backtracks so far; 0 if the message has none.
    labels
        A labelling, the best so far.
    finished
        How the search ended, if it did.
    failure
        How the process ended, if without saying how the search did.
    """

    ready: bool = False
    lower: int = 0
    backtracks: int = 0
    labels: Ints | None = None
    finished: Status | None = None
    failure: str | None = None


def packed(network: dict[str, Any]) -> bytes:
    r"""A network for the worker: a line of JSON, in which ``{"size": n}`` stands for bytes, and these after it.

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
    """toulbar2 at work, in a session of its own, which Ctrl-C does not reach; killed when this object is dropped."""

    def __init__(self, network: bytes, worker: Path = WORKER) -> None:
        # The worker lives as long as this pipe is open. Nothing is ever written to it: that would count as a sign, too.
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
        """The next message, if there is one within some seconds."""
        if self._unread:
            return self._unread.popleft()
        try:
            return self._messages.get(timeout=seconds)
        except queue.Empty:
            return None

    def unread(self) -> tuple[Toulbar2Message, ...]:
        """The messages that have arrived and not been taken; they stay."""
        while not self._messages.empty():
            self._unread.append(self._messages.get())
        return tuple(self._unread)

    def close(self) -> None:
        """End the process and the thread that reads from it."""
        self._kill()
        self._reader.join()


def _kill(process: subprocess.Popen[bytes], lifeline: int) -> None:
    process.kill()
    process.wait()
    os.close(lifeline)


def _converse(process: subprocess.Popen[bytes], given: list[bytes], messages: Messages) -> None:
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
    """What a line of the worker or of toulbar2 says, if anything."""
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
