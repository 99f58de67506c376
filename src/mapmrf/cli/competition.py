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
from mapmrf.cli.program import BAD_INPUT, INFEASIBLE, INTERRUPTED, complain, main, method_option, set_option

if TYPE_CHECKING:
    from mapmrf.cli.contest import Entry

GRACE = 2.0
"""Seconds that a run has to end by itself after a signal."""


@main.command()
@click.argument("arguments", nargs=-1, metavar="[MODEL EVID QUERY TASK]")
@method_option
@set_option
@click.option("--seed", type=click.IntRange(min=0), help="Seed of everything random.")
@click.option("--time-limit", type=click.FloatRange(min=0, min_open=True), metavar="S", help="In place of INF_TIME.")
@click.option("--output", "-o", metavar="FILE", help="In place of the file that the rules name.")
def uai(
    arguments: Sequence[str],
    method: str | None,
    settings: Sequence[str],
    seed: int | None,
    time_limit: float | None,
    output: str | None,
) -> int:
    """Run as a solver of the UAI and PIC competitions.

    TASK is MPE or MAP. The limits are in the environment: INF_TIME (seconds) and INF_MEMORY (gigabytes). For PIC 2011
    give a seed in place of QUERY. Without arguments, as in UAI 2022, the files are in MODEL, EVID, QUERY and RESULT and
    the limits in TIMESEC and MEMKB.

    Solutions are added to the file MODEL.TASK in the working directory, each better than the one before it.
    """
    import dataclasses

    from mapmrf.cli.contest import Clock, Entry, contest_from, limit_memory, process_age

    contest = contest_from(arguments, os.environ)
    contest = dataclasses.replace(
        contest,
        seed=contest.seed if seed is None else seed,
        seconds=time_limit or contest.seconds,
        result=output or contest.result,
    )
    check_outputs(contest.result)
    chosen, options = _method(method, settings)
    entry = Entry(contest, Clock(contest.seconds, process_age()))
    with Guard(entry) as guard:
        entry.read()
        if contest.memory is not None:
            import numba  # noqa: F401  # what the interpreter loads should not meet the limit half-way

            limit_memory(contest.memory)
        _run(entry, chosen, options, guard)
        if contest.seconds is not None:
            guard.leave()  # to take down the interpreter needs time that may not be left
    return guard.exit_code


def _method(name: str | None, settings: Sequence[str]) -> tuple[str, dict[str, Any]]:
    from mapmrf.cli.settings import parse_settings
    from mapmrf.solver import DEFAULT_METHOD, make_method, method_class

    chosen = name or DEFAULT_METHOD
    options = parse_settings(method_class(chosen), settings)
    make_method(chosen, options)  # a misspelt option must not wait for a large model to be read
    return chosen, options


def _run(entry: Entry, method: str, options: dict[str, Any], guard: Guard) -> None:
    """Solve, and say in a line for every sample of evidence how it went."""
    from mapmrf.result import Status

    try:
        results = entry.run(method, options, guard.stopping)
    except MemoryError:
        entry.flush()
        complain("the memory is used up; the best solution so far stands")
        return
    for value, result in zip(entry.values, results, strict=True):
        bound = "" if result.bound is None else f", bound {result.bound:.6f}"
        click.echo(f"{entry.contest.result}: log potential {value:.6f}{bound}, {result.status.value}")
        if result.status is Status.INFEASIBLE:
            guard.exit_code = INFEASIBLE


class Guard:
    """Ends the process in time, and after SIGTERM or SIGINT, whatever the solver is doing; a context manager.

    A thread of its own waits for signals and the end of the time. It lets the run come to an end by itself first; if
    that takes too long, for instance in a kernel that is being compiled, it writes the best solution and leaves.
    """

    def __init__(self, entry: Entry) -> None:
        self.entry = entry
        self.exit_code = 0
        self._signalled = 0.0
        self._finished = threading.Event()
        self._heard, self._told = socket.socketpair()
        self._told.setblocking(False)
        self._before: dict[int, Any] = {}
        self._wakeup = -1

    def stopping(self) -> bool:
        """Whether a signal has asked for the end."""
        return self._signalled > 0

    def __enter__(self) -> Guard:
        self._wakeup = signal.set_wakeup_fd(self._told.fileno(), warn_on_full_buffer=False)
        for number in (signal.SIGTERM, signal.SIGINT):
            self._before[number] = signal.signal(number, _heed)
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
        self._told.close()

    def _watch(self) -> None:
        """Wait for a signal or the end of the time. Signals come as bytes, also while the main thread is busy."""
        while not self._finished.is_set():
            ready, _, _ = select.select([self._heard], [], [], 0.05)
            if ready:
                self._note(self._heard.recv(64))
            late = self.entry.clock.last() == 0.0
            if not self._finished.is_set() and (late or self._overdue()):
                self._cut_off()
        self._heard.close()

    def _note(self, numbers: bytes) -> None:
        if numbers and not self._signalled:
            self._signalled = time.monotonic()
            # Evaluations take any other code than 0 as an error; a person at the keyboard gets the usual one.
            self.exit_code = INTERRUPTED if signal.SIGINT in numbers else 0

    def _overdue(self) -> bool:
        return self._signalled > 0 and time.monotonic() - self._signalled > GRACE

    def _cut_off(self) -> None:
        """End a run that does not come to its end by itself; what it has found so far is in the file then."""
        self.entry.flush(patience=1.0)
        contest, values = self.entry.contest, self.entry.values
        if not values:
            complain(f"{contest.model}: the end came before the model was read; there is no solution")
            self.exit_code = BAD_INPUT
        for value in values:
            click.echo(f"{contest.result}: log potential {value:.6f}, cut off")
        self.leave()

    def leave(self) -> NoReturn:
        """End the process at once."""
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(self.exit_code)


def _heed(number: int, frame: FrameType | None) -> None:
    """Do nothing: the byte that tells the guard of a signal is written before this is called."""
