"""The command `uai`: a run under the rules of PIC 2011, UAI 2014 to 2016 and UAI 2022."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import logging
import math
import os
import signal
import sys
import threading
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, cast

import click

from mapmrf import cli
from mapmrf.errors import OptionError
from mapmrf.model.memory import limited_memory, resident_bytes
from mapmrf.run.interrupts import Interrupts, check, requested

if TYPE_CHECKING:
    from mapmrf.arrays import Ints
    from mapmrf.formats.solution import SolutionStream
    from mapmrf.model.graph import FactorGraph
    from mapmrf.run.method import Method
    from mapmrf.run.result import Result, TracePoint

log = logging.getLogger("mapmrf")

SUPPORTED, OTHERS = ("MPE", "MAP"), ("PR", "MAR", "MMAP")

PROVEN = ("optimal", "within_tolerance", "infeasible")  # statuses after which there is nothing more to find


@cli.main.command()
@click.argument("arguments", nargs=-1, metavar="[MODEL EVID QUERY TASK]")
@cli.method_option
@cli.set_option
@click.option("--seed", type=cli.AtLeast(0), metavar="N", help="Random seed.")
@cli.time_option
@click.option("--output", "-o", metavar="FILE", help="Result file, instead of MODEL.TASK.")
@cli.memory_option("Memory limit, such as 2G, instead of INF_MEMORY.")
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
    given: dict[str, Any] = {"seed": seed, "seconds": time_limit, "memory": cli.memory_limit(), "result": output}
    task = contest_from(arguments, os.environ)
    contest = dataclasses.replace(task, **{name: value for name, value in given.items() if value is not None})
    cli.check_outputs(contest.result)
    from mapmrf.cli.methods import parse_settings
    from mapmrf.run.registry import DEFAULT_METHOD, make_method, method_class

    chosen = method or DEFAULT_METHOD
    options = parse_settings(method_class(chosen), settings)
    make_method(chosen, options)  # report a misspelt option before a large model is read
    entry = ContestRun(contest, ContestClock(contest.seconds, process_age()))
    with Guard(entry) as guard, contextlib.ExitStack() as stack:
        check()  # a signal arrived before the guard was in place
        entry.read()
        if contest.memory is not None:
            import mapmrf.compilation.jit  # noqa: F401  # loading it should not run into the limit

            # Better an exception than being killed. Memory that is reserved but not used does not count for a contest.
            stack.enter_context(limited_memory(max(0.0, contest.memory - resident_bytes())))
        try:
            results = entry.run(make_method(chosen, options), set(options))
        except MemoryError:
            entry.flush()
            results = []
            cli.complain("out of memory; the best solution so far is kept")
        for value, result in zip(entry.values, results, strict=False):
            bound = "" if result.bound is None else f", bound {result.bound:.6f}"
            click.echo(f"{contest.result}: log potential {value:.6f}{bound}, {result.status.value}")
            if result.status == "infeasible":
                guard.exit_code = cli.Exit.INFEASIBLE
        if contest.seconds is not None or guard.signals.requested:
            guard.leave()  # there may be no time left to shut down the interpreter
    return guard.exit_code


# -- the task --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Contest:
    """The task that an evaluation sets.

    Examples
    --------
    >>> from mapmrf.cli.contest import Contest
    >>> Contest("grid.uai", evidence=None, result="grid.uai.MPE", seconds=60.0).task
    'MPE'
    """

    model: str
    evidence: str | None  # a file, which may be absent
    result: str
    task: str = "MPE"  # or "MAP", two names for the same task
    style: str = "2014"  # layout of the result: or "2010", with the number of solutions before them
    seed: int = 0
    seconds: float | None = None
    memory: float | None = None  # bytes


def contest_from(arguments: Sequence[str], environ: Mapping[str, str]) -> Contest:
    """Read the task from the command line and the environment.

    Examples
    --------
    >>> from mapmrf.cli.contest import contest_from
    >>> contest = contest_from(["nets/grid.uai", "grid.uai.evid", "grid.uai.query", "MPE"], {"INF_TIME": "60"})
    >>> contest.result, contest.seconds
    ('grid.uai.MPE', 60.0)
    """
    # Four arguments are ``MODEL EVID QUERY TASK`` (UAI 2014, 2016) or ``MODEL EVID SEED TASK`` (UAI 2010, PIC 2011).
    # Without arguments everything is in variables (UAI 2022).
    if not arguments:
        model = environ.get("MODEL")
        if not model:
            raise OptionError("found neither arguments nor the variable MODEL, expected MODEL EVID QUERY TASK")
        result = environ.get("RESULT") or f"{Path(model).name}.MPE"
        suffix = Path(result).suffix[1:].upper()  # the task is not stated anywhere else
        task = _task(suffix) if suffix in (*SUPPORTED, *OTHERS) else "MPE"
        contest = Contest(model, environ.get("EVID") or None, result, task)
    elif len(arguments) == 4:
        model, evidence, third, named = arguments
        task = _task(named)
        contest = Contest(model, evidence or None, f"{Path(model).name}.{task}", task)
        if third.isascii() and third.isdigit() and not Path(third).exists():
            contest = dataclasses.replace(contest, style="2010", seed=int(third))
    else:
        raise OptionError(f"found {len(arguments)} arguments, expected MODEL EVID QUERY TASK or none")
    seconds = _limit(environ, {"INF_TIME": 1.0, "UAI_TIME": 1.0, "TIMESEC": 1.0})
    memory = _limit(environ, {"INF_MEMORY": 1e9, "UAI_MEMORY": 1e9, "MEMKB": 1e3})
    return dataclasses.replace(contest, seconds=seconds, memory=memory)


def _task(task: str) -> str:
    if task.upper() in SUPPORTED:
        return task.upper()
    if task.upper() in OTHERS:
        raise OptionError(f"task {task.upper()} is not supported by mapmrf, expected {' or '.join(SUPPORTED)}")
    raise OptionError(f"found task {task!r}, expected {' or '.join(SUPPORTED)}")


def _limit(environ: Mapping[str, str], names: Mapping[str, float]) -> float | None:
    """The first of some variables that is set, in its unit."""
    for name, unit in names.items():
        text = environ.get(name)
        if text:
            try:
                amount = float(text)
            except ValueError:
                amount = -1.0
            if not amount > 0:
                raise OptionError(f"{name}: found {text!r}, expected a number above 0")
            return amount * unit if amount < math.inf else None
    return None


# -- limits ----------------------------------------------------------------------------------------------------------


class ContestClock:
    """The time left, counted from the start of the process."""

    # The time used is the larger of wall-clock and processor time, since the rules differ in which they mean. A margin
    # is reserved for the end of the run, and half of it for the end of the process.

    def __init__(self, seconds: float | None, age: float) -> None:
        self.seconds = seconds
        self.margin = 0.0 if seconds is None else min(10.0, max(1.0, 0.05 * seconds), 0.5 * seconds)
        self.began = time.monotonic() - age

    def passed(self) -> float:
        return max(time.monotonic() - self.began, time.process_time())

    def left(self) -> float | None:
        """Seconds left for the solver; None without a limit."""
        return None if self.seconds is None else max(0.0, self.seconds - self.margin - self.passed())

    def last(self) -> float | None:
        """Seconds left until the process must end."""
        return None if self.seconds is None else max(0.0, self.seconds - self.margin / 2 - self.passed())

    def over(self) -> bool:
        return self.left() == 0.0


def process_age() -> float:
    """Seconds since this process started, or its processor time where the system does not report that."""
    with contextlib.suppress(OSError, ValueError, IndexError, AttributeError):
        # The name of the program, in parentheses, may contain anything; the start time is the 20th field after it.
        fields = Path("/proc/self/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
        since_boot = time.clock_gettime(time.CLOCK_BOOTTIME)
        return max(0.0, since_boot - int(fields[19]) / os.sysconf("SC_CLK_TCK"))
    return time.process_time()


# -- the run ---------------------------------------------------------------------------------------------------------


class ContestRun:
    """A run under competition rules: reads the model, and keeps the incumbents and the result file."""

    # Once `read` has returned, the file holds a solution at every moment, and its last block is the best one written.
    # The methods may be called from several threads. `writing_share` is the share of the time that may be spent
    # writing.

    def __init__(self, contest: Contest, clock: ContestClock, writing_share: float = 0.1) -> None:
        self.contest, self.clock, self.writing_share = contest, clock, writing_share
        self.graphs: list[FactorGraph] = []
        self.labels: list[Ints] = []
        self.values: list[float] = []
        self._stream: SolutionStream | None = None
        self._lock = threading.Lock()
        self._waiting = False
        self._writing = 0.0

    def read(self) -> None:
        """Read the model and its evidence, and write a first solution: the best state of each variable on its own."""
        graph = cli.read_model(self.contest.model)
        self.graphs = [graph.condition(cast(Any, sample)) if sample else graph for sample in self._samples(graph)]
        self.labels = [one.unary_labels for one in self.graphs]
        self.values = [one.value(labels) for one, labels in zip(self.graphs, self.labels, strict=True)]
        self._waiting = True
        self.flush()

    def _samples(self, graph: FactorGraph) -> list[dict[int, int]]:
        """The samples of evidence; only the layout of 2010 has room for more than one solution."""
        from mapmrf.formats.evidence import read_evidence

        path = self.contest.evidence
        if path is None:
            return [{}]
        if not Path(path).exists():
            log.warning("%s: no such file, nothing is observed", path)
            return [{}]
        samples = read_evidence(path, graph)
        if len(samples) > 1 and self.contest.style == "2014":
            log.warning("%s: %d samples of evidence, only the first is used", path, len(samples))
            return samples[:1]
        return samples

    def run(self, method: Method, given: Collection[str] = ()) -> list[Result]:
        """Solve every sample in an equal share of the time left; `given` are the options that the user has set."""
        from mapmrf.run.registry import make_method

        known = {item.name for item in dataclasses.fields(cast(Any, method))}
        limits: dict[str, Any] = {}
        if self.contest.seconds is not None:
            limits["max_iterations"] = max(10**9, method.max_iterations)
        if self.contest.memory is not None and "memory" in known:
            limits["memory"] = min(getattr(method, "memory"), 0.5 * self.contest.memory / 1e6)  # noqa: B009
        chosen = make_method(method, {key: value for key, value in limits.items() if key not in given})
        results = []
        for sample in range(len(self.graphs)):
            left = self.clock.left()
            results.append(self._solve(sample, chosen, None if left is None else left / (len(self.graphs) - sample)))
        self.flush()
        return results

    def _solve(self, sample: int, method: Method, share: float | None) -> Result:
        """Repeat the method until time is up or there is a proof: new seeds, every other run from the best."""
        from mapmrf.run.result import Status
        from mapmrf.run.solve import solve

        def listen(point: TracePoint, labels: Ints) -> bool:
            self.offer(sample, labels, point.value)
            return self.clock.over()

        end = None if share is None else time.monotonic() + share
        best: Result | None = None
        for turn in itertools.count():
            result = solve(
                self.graphs[sample],
                method,
                time_limit=None if end is None else max(0.0, end - time.monotonic()),
                seed=self.contest.seed + turn,
                initial=self.labels[sample] if turn % 2 else None,
                callback=listen,
            )
            self.offer(sample, result.labels, result.value)
            best = result if best is None else _better(best, result)
            if end is None or best.status in PROVEN or requested():
                break
            if time.monotonic() >= end or self.clock.over():
                best = dataclasses.replace(best, status=Status.TIME_LIMIT)
                break
        assert best is not None
        return best

    def offer(self, sample: int, labels: Ints, value: float) -> None:
        """Keep a labelling if it is the best of its sample, and write it soon."""
        if value > self.values[sample]:
            value = self.graphs[sample].value(labels)  # never trust the value that a method reports
            with self._lock:
                if value > self.values[sample]:
                    self.labels[sample], self.values[sample] = labels.copy(), value
                    self._waiting = True
        if self._waiting and self._writing <= self.writing_share * self.clock.passed():
            self.flush()

    def flush(self, patience: float = -1.0) -> None:
        """Write new incumbents; give up if another thread is still writing after `patience` seconds."""
        if not self._lock.acquire(timeout=patience):
            return
        try:
            if self._waiting:
                began = time.monotonic()
                self._write()
                self._waiting = False
                self._writing += time.monotonic() - began
        finally:
            self._lock.release()

    def _write(self) -> None:
        if len(self.labels) == 1 and self.contest.task == "MPE":
            if self._stream is None:
                from mapmrf.formats.solution import SolutionStream

                self._stream = SolutionStream(self.contest.result, self.contest.style, self.labels[0])
            else:
                self._stream.add(self.labels[0])
            return
        from mapmrf.formats.files import write_bytes

        number = [str(len(self.labels))] if self.contest.style == "2010" else []
        lines = [" ".join(map(str, [len(labels), *labels.tolist()])) for labels in self.labels]
        text = "\n".join([self.contest.task, *number, *lines, ""])  # a stream could not hold these
        write_bytes(self.contest.result, text.encode(), keep=False)

    def close(self) -> None:
        if self._stream is not None:
            self._stream.close()


def _better(old: Result, new: Result) -> Result:
    """The better of two results on one model, with the lower bound and the later status."""
    from mapmrf.run.result import GAP_TOLERANCE, Status, relative_gap

    best = new if new.value > old.value else old
    bound = min((result.bound for result in (old, new) if result.bound is not None), default=None)
    gap = relative_gap(best.value, bound, best.unit)
    status = new.status
    if gap is not None and gap <= GAP_TOLERANCE and Status.OPTIMAL not in (old.status, new.status):
        status = Status.WITHIN_TOLERANCE
    return dataclasses.replace(best, bound=bound, status=status)


# -- the end of the process ------------------------------------------------------------------------------------------


class Guard:
    """Context manager that ends the process in time, and after SIGTERM or SIGINT, whatever the solver is doing."""

    # A separate thread watches the clock and the signals. It first lets the run finish normally; if that takes too
    # long, for instance while a kernel is being compiled, it writes the best solution and exits.

    def __init__(self, entry: ContestRun) -> None:
        self.entry = entry
        self.exit_code = cli.Exit.DONE
        self.signals = Interrupts(signal.SIGINT, signal.SIGTERM)
        self._finished = threading.Event()

    def __enter__(self) -> Guard:
        self.signals.__enter__()
        threading.Thread(target=self._watch, name="mapmrf-guard", daemon=True).start()
        return self

    def __exit__(self, *exception: Any) -> None:
        self._finished.set()
        self.entry.close()
        self.signals.__exit__(*exception)

    def _watch(self) -> None:
        signalled = math.inf
        while not self._finished.wait(0.05):
            if self.signals.requested:
                signalled = min(signalled, time.monotonic())
            # A run has 2 seconds after a signal to finish normally; end it once its best solution is in the file.
            if time.monotonic() - signalled > 2.0 or self.entry.clock.last() == 0.0:
                self.entry.flush(patience=1.0)
                contest, values = self.entry.contest, self.entry.values
                if not values:
                    cli.complain(f"{contest.model}: stopped before the model was read; there is no solution")
                    self.exit_code = cli.Exit.BAD_INPUT
                for value in values:
                    click.echo(f"{contest.result}: log potential {value:.6f}, cut off")
                self.leave()

    def leave(self) -> NoReturn:
        """End the process; evaluations treat any code but 0 as an error, a person at the keyboard gets the usual."""
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(cli.Exit.INTERRUPTED if self.signals.number == signal.SIGINT else self.exit_code)
