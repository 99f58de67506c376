"""The command `uai`: a run under the rules of the inference competitions."""

from __future__ import annotations

import os
import select
import signal
import socket
import sys
import threading
import time
from collections.abc import Sequence
from types import FrameType, TracebackType
from typing import TYPE_CHECKING, Any, NoReturn

import click

from mapmrf.cli.output import check_outputs
from mapmrf.cli.program import (
    BAD_INPUT,
    INFEASIBLE,
    INTERRUPTED,
    bytes_option,
    complain,
    main,
    max_bytes,
    method_option,
    set_option,
)
from mapmrf.run.interrupts import also, check

if TYPE_CHECKING:
    from mapmrf.cli.contest import ContestRun

GRACE = 2.0
"""Seconds that a run has to finish normally after a signal."""


@main.command()
@click.argument("arguments", nargs=-1, metavar="[MODEL EVID QUERY TASK]")
@method_option
@set_option
@click.option("--seed", type=click.IntRange(min=0), help="Random seed.")
@click.option(
    "--time-limit",
    type=click.FloatRange(min=0, min_open=True),
    metavar="S",
    help="Time limit in seconds, instead of INF_TIME.",
)
@click.option("--output", "-o", metavar="FILE", help="Result file, instead of MODEL.TASK.")
@bytes_option
def uai(
    arguments: Sequence[str],
    method: str | None,
    settings: Sequence[str],
    seed: int | None,
    time_limit: float | None,
    output: str | None,
) -> int:
    """Run under the rules of the UAI and PIC competitions.

    TASK is MPE or MAP. The limits are read from the environment: INF_TIME (seconds) and INF_MEMORY (gigabytes). For PIC
    2011, give a seed instead of QUERY. Without arguments, as in UAI 2022, the files are read from the variables MODEL,
    EVID, QUERY and RESULT, and the limits from TIMESEC and MEMKB.

    Solutions are appended to the file MODEL.TASK in the working directory, each better than the last.
    """
    import dataclasses

    from mapmrf.cli.contest import Clock, ContestRun, contest_from, limit_memory, process_age

    contest = contest_from(arguments, os.environ)
    contest = dataclasses.replace(
        contest,
        seed=contest.seed if seed is None else seed,
        seconds=time_limit or contest.seconds,
        result=output or contest.result,
        max_bytes=max_bytes(),
    )
    check_outputs(contest.result)
    chosen, options = _method(method, settings)
    entry = ContestRun(contest, Clock(contest.seconds, process_age()))
    with Guard(entry) as guard:
        check()  # a signal arrived before the guard was in place
        entry.read()
        if contest.memory is not None:
            import mapmrf.compilation.toolchain  # noqa: F401  # loading it should not run into the limit

            limit_memory(contest.memory)
        _run(entry, chosen, options, guard)
        if contest.seconds is not None:
            guard.leave()  # there may be no time left to shut down the interpreter
    return guard.exit_code


def _method(name: str | None, settings: Sequence[str]) -> tuple[str, dict[str, Any]]:
    from mapmrf.cli.settings import parse_settings
    from mapmrf.run.registry import DEFAULT_METHOD, make_method, method_class

    chosen = name or DEFAULT_METHOD
    options = parse_settings(method_class(chosen), settings)
    make_method(chosen, options)  # report a misspelt option before a large model is read
    return chosen, options


def _run(entry: ContestRun, method: str, options: dict[str, Any], guard: Guard) -> None:
    """Solve, and print one line per sample of evidence."""
    from mapmrf.run.result import Status

    try:
        with also(guard.stopping):
            results = entry.run(method, options, guard.stopping)
    except MemoryError:
        entry.flush()
        complain("out of memory; the best solution so far is kept")
        return
    for value, result in zip(entry.values, results, strict=True):
        bound = "" if result.bound is None else f", bound {result.bound:.6f}"
        click.echo(f"{entry.contest.result}: log potential {value:.6f}{bound}, {result.status.value}")
        if result.status is Status.INFEASIBLE:
            guard.exit_code = INFEASIBLE


class Guard:
    """Context manager that ends the process in time, and after SIGTERM or SIGINT, whatever the solver is doing.

    A separate thread waits for signals and for the time limit. It first lets the run finish normally; if that takes
    too long, for instance while a kernel is being compiled, it writes the best solution and exits.
    """

    def __init__(self, entry: ContestRun) -> None:
        self.entry = entry
        self.exit_code = 0
        self._signalled = 0.0
        self._finished = threading.Event()
        self._receiver, self._sender = socket.socketpair()
        self._sender.setblocking(False)
        self._before: dict[int, Any] = {}
        self._wakeup = -1

    def stopping(self) -> bool:
        """Return whether a signal has arrived."""
        return self._signalled > 0

    def __enter__(self) -> Guard:
        self._wakeup = signal.set_wakeup_fd(self._sender.fileno(), warn_on_full_buffer=False)
        for number in (signal.SIGTERM, signal.SIGINT):
            self._before[number] = signal.signal(number, _ignore)
        threading.Thread(target=self._watch, name="mapmrf-guard", daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._finished.set()
        self.entry.close()
        for number, before in self._before.items():
            signal.signal(number, before)
        signal.set_wakeup_fd(self._wakeup)
        self._sender.close()

    def _watch(self) -> None:
        """Wait for a signal or the time limit. Signals arrive as bytes, even while the main thread is busy."""
        while not self._finished.is_set():
            ready, _, _ = select.select([self._receiver], [], [], 0.05)
            if ready:
                self._note(self._receiver.recv(64))
            late = self.entry.clock.last() == 0.0
            if not self._finished.is_set() and (late or self._overdue()):
                self._cut_off()
        self._receiver.close()

    def _note(self, numbers: bytes) -> None:
        if numbers and not self._signalled:
            self._signalled = time.monotonic()
            # Evaluations treat any code but 0 as an error; a person at the keyboard gets the usual one.
            self.exit_code = INTERRUPTED if signal.SIGINT in numbers else 0

    def _overdue(self) -> bool:
        return self._signalled > 0 and time.monotonic() - self._signalled > GRACE

    def _cut_off(self) -> None:
        """End a run that does not finish in time, once its best solution is in the file."""
        self.entry.flush(patience=1.0)
        contest, values = self.entry.contest, self.entry.values
        if not values:
            complain(f"{contest.model}: stopped before the model was read; there is no solution")
            self.exit_code = BAD_INPUT
        for value in values:
            click.echo(f"{contest.result}: log potential {value:.6f}, cut off")
        self.leave()

    def leave(self) -> NoReturn:
        """End the process at once."""
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(self.exit_code)


def _ignore(number: int, frame: FrameType | None) -> None:
    """Do nothing: the byte that notifies the guard is written before this is called."""
