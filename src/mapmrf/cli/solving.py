"""The command `solve`: one model, some questions about it, a model in parts, several models, a table of evidence."""

from __future__ import annotations

import inspect
import math
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Literal

import click

from mapmrf import cli
from mapmrf.errors import MapMRFError, OptionError
from mapmrf.run import interrupts

if TYPE_CHECKING:
    from mapmrf.arrays import Ints
    from mapmrf.distributed.parts import Ranks
    from mapmrf.run.result import Result, TracePoint

_SINGLE = ("initial", "trace", "progress", "log", "verbose", "margins", "checkpoint", "certificate")
REFUSED = {
    "several models": (*_SINGLE, "best", "distance", "query"),
    "--query": (*_SINGLE, "polish", "gap_tolerance"),
    "--best": (*_SINGLE, "polish", "gap_tolerance", "memory_limit"),
    "parts": ("evidence", "evidence_table", "backend", "threads", "best", "query", "margins", "memory_limit"),
}
"""Options that a kind of run does not take."""

HELP = {
    "Usual options": "method time-limit output set seed threads progress json verbose quiet",
    "Model": "evidence query best distance margins",
    "Method": "initial polish",
    "Limits": "memory-limit gap-tolerance abs-gap-tolerance checkpoint every resume",
    "Output": "trace log certificate force help",
    "Batch": "jobs backend evidence-table",
    "Distributed": "part-bound",
}
"""The options as `--help` groups them."""

HINT_AFTER = 10.0
"""Seconds after which a run without a time limit is told, on a terminal, that there is one."""


class SolveCommand(click.Command):
    """Lists the options of `solve` in groups."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        records = {max(one.opts, key=len): one.get_help_record(ctx) for one in self.get_params(ctx)}
        for heading, names in HELP.items():
            with formatter.section(heading):
                formatter.write_dl([record for name in names.split() if (record := records[f"--{name}"])])


class SolveRequest(SimpleNamespace):
    """The options of the command by name; those that are arguments of `mapmrf.solve` have their names and defaults."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        given = options["models"]
        self.models = cli.expanded(given)
        self.several = len(self.models) > 1 or self.models != list(given)

    @property
    def lines(self) -> Literal["log", "improvements"] | None:
        """What is printed besides the result: a full log, or a line per improvement."""
        return "log" if self.log else "improvements" if self.progress else None

    @property
    def in_parts(self) -> bool:
        return len(self.models) == 1 and Path(self.models[0], "parts.json").is_file()

    def refuse_for(self, kind: str, text: str) -> None:
        defaults = solve.make_context("solve", ["MODEL"]).params
        for name in REFUSED[kind]:
            if getattr(self, name) != defaults[name]:
                raise OptionError(f"--{name.replace('_', '-')} {text}")

    def values(self, default_method: str | None = None) -> dict[str, Any]:
        """The options as values that the library takes; the methods are made here, before a large model is read."""
        with interrupts.reacting("leave"):  # numpy and numba are imported here
            from mapmrf.run.registry import DEFAULT_METHOD, make_method, method_class

            name, options = self.method or default_method or DEFAULT_METHOD, {}
            if self.settings:
                from mapmrf.cli.methods import parse_settings

                options = parse_settings(method_class(name), self.settings)
            method = make_method(name, options)
            polish = None if self.polish is None else make_method(self.polish, {})
        return vars(self) | {
            "method": method,
            "polish": polish,
            "threads": self.threads or None,
            "memory_limit": cli.memory_limit(),
            "progress": not (self.quiet or self.lines),
            "certificate": self.certificate is not None,
        }

    def deliver(self, answer: Any, text: Callable[[], str], write: Callable[[], None]) -> int:
        """Write an answer, then print it as JSON or as text, unless there is nothing to be printed."""
        try:
            write()
        finally:  # the answer must not be lost if the disk is full
            if self.as_json or not self.quiet:
                click.echo(answer.to_json() if self.as_json else text())
        return cli.exit_code(answer.status)

    def report(self, result: Result) -> str:
        return cli.report(result, self.output, verbose=self.verbose)

    @contextmanager
    def hinting(self) -> Iterator[None]:
        """Mention the time limit during a long run without one, to somebody who waits at a terminal."""
        if self.time_limit is not None or self.quiet or not sys.stderr.isatty():
            yield
            return
        text = "Ctrl-C stops with the best labelling so far; next time, -t 60 (--time-limit) does so after a minute"
        timer = threading.Timer(HINT_AFTER, cli.complain, [text])
        timer.daemon = True
        timer.start()
        try:
            yield
        finally:
            timer.cancel()


def arguments_of(function: Callable[..., Any], values: dict[str, Any]) -> dict[str, Any]:
    """The options that a function takes, but for the evidence, which is used when the model is read."""
    taken = inspect.signature(function).parameters
    return {name: value for name, value in values.items() if name in taken and name != "evidence"}


@cli.main.command(cls=SolveCommand)
@click.argument("models", nargs=-1, required=True, metavar="MODEL...")
@cli.method_option
@cli.time_option
@click.option(
    "--output",
    "-o",
    metavar="FILE|DIR/",
    help="Write the labelling: .MPE, a table (.csv, .tsv), or everything as .json. With several models, a folder for "
    "their solutions and results.csv, or a table of results (.csv, .tsv, .jsonl); with an evidence table, the latter.",
)
@cli.set_option
@cli.seed_option
@click.option(
    "--threads", type=cli.AtLeast(0), default=1, metavar="N", show_default=True, help="Threads per model, 0 for all."
)
@click.option("--progress", is_flag=True, help="Print a line per improvement: time, phase, value, bound and gap.")
@cli.json_option
@click.option("--verbose", "-v", is_flag=True, help="Print more: the relaxed solution, and which phase found what.")
@click.option("--quiet", "-q", is_flag=True, help="Print nothing but errors.")
@cli.evidence_option
@click.option("--query", metavar="NAMES", help="Variables to maximise over, by name or index; sum out all others.")
@click.option("--best", type=cli.AtLeast(1), metavar="M", help="Find the M best labellings.")
@click.option(
    "--distance", type=cli.AtLeast(1), metavar="D", help="Minimum number of variables in which the M best differ."
)
@click.option("--margins", is_flag=True, help="Compute how certain each label is, and list the least certain first.")
@click.option("--initial", metavar="FILE", help="Solution file to start from.")
@click.option("--polish", metavar="NAME", help="Method that improves the final labelling, such as blocks.")
@cli.memory_option(
    "Memory for program, model and run, such as 2G; methods that need more are refused or skipped.", expose_value=True
)
@click.option("--gap-tolerance", type=float, metavar="GAP", help="Stop at this relative gap.  [default: 1e-6]")
@click.option(
    "--abs-gap-tolerance", default=0.0, metavar="GAP", help="Stop at this difference between bound and value."
)
@click.option("--checkpoint", metavar="DIR", help="Save the state of the run in this folder at regular intervals.")
@click.option("--every", type=cli.AtLeast(0, float), default=300.0, metavar="S", help="Seconds between checkpoints.")
@click.option(
    "--resume",
    is_flag=True,
    help="Resume from the checkpoint, if there is one; with several models, solve those that are not yet in -o DIR/.",
)
@click.option("--trace", metavar="FILE.csv", help="Write the trace of the run.")
@click.option(
    "--log", is_flag=True, help="Print a log: the model, improvements, and which phases found and proved the answer."
)
@click.option("--certificate", metavar="FILE.npz", help="Write a dual point that proves a bound, for `mapmrf verify`.")
@cli.force_option
@click.option(
    "--jobs", "-j", type=cli.AtLeast(1), default=1, metavar="N", show_default=True, help="Models solved in parallel."
)
@click.option(
    "--backend", metavar="NAME", help="Backend for parallel runs: threads, processes, or a joblib backend such as dask."
)
@click.option("--evidence-table", metavar="FILE.csv", help="Solve MODEL once for each row of observations.")
@click.option(
    "--part-bound",
    type=cli.AtLeast(0),
    default=0,
    metavar="N",
    help="For a model in parts: iterations of TRW-S in each part, for a tighter bound.",
)
def solve(**options: Any) -> int:
    """Find a labelling of MODEL with high log potential.

    MODEL may also be a folder of models, or a pattern such as 'models/*.uai.gz'. Several models are reported one per
    line, or with --json one object per line, in the order given. A model that cannot be solved does not stop the
    others. Limits apply to each model.

    A folder of parts is one model, see `mapmrf partition`; under mpiexec, they are shared among the ranks.
    """
    request = SolveRequest(**options)
    if request.in_parts:
        request.refuse_for("parts", "does not apply to a model in parts")
        return _solve_parts(request, request.values("lslp"))
    to_folder = request.output is not None and (request.output.endswith("/") or Path(request.output).is_dir())
    if request.several or request.backend is not None or to_folder or request.evidence_table is not None:
        if request.evidence_table is not None and len(request.models) > 1:
            raise OptionError(f"--evidence-table: found {len(request.models)} models, expected one")
        if request.resume and (request.evidence_table is not None or request.output is None):
            raise OptionError("--resume of several models needs --output DIR/, the folder with the earlier results")
        found = "an evidence table" if request.evidence_table is not None else "several models"
        request.refuse_for("several models", f"is for a single run, found {found}")
        from mapmrf.cli.batch import solve_batch
        from mapmrf.run.solve import solve as function

        # Every model is solved with all that `solve` takes, but for the options of a single run.
        values = request.values()
        single = (*REFUSED["several models"], "every", "resume")
        arguments = {name: value for name, value in arguments_of(function, values).items() if name not in single}
        with request.hinting():
            return solve_batch(request, arguments | {name: values[name] for name in ("jobs", "backend", "progress")})
    cli.check_outputs(request.output, request.trace, request.certificate)
    values = request.values()
    if request.best is None and request.query is None and request.distance is None:
        return _solve_one(request, values)
    if request.distance is not None and request.best is None:
        raise OptionError("--distance needs --best M")
    if request.best is not None and request.query is not None:
        raise OptionError("found --best and --query, expected one of them")
    question = "--query" if request.best is None else "--best"
    request.refuse_for(question, f"cannot be combined with {question}")
    return _find_best(request, values) if request.query is None else _answer_query(request, request.query, values)


# -- one model -------------------------------------------------------------------------------------------------------


def _solve_one(request: SolveRequest, values: dict[str, Any]) -> int:
    from mapmrf.run.result import Result, Status
    from mapmrf.run.solve import solve

    model, method = request.models[0], values["method"]
    graph = cli.read_model(model, request.evidence)
    best = graph.unary_labels if request.initial is None else cli.read_labels(request.initial, graph)
    values["initial"] = None if request.initial is None else best
    if request.lines == "log":
        from mapmrf._version import __version__

        most = int(graph.card.max(initial=0))
        size = f"{graph.n_vars} variables of up to {most} states, {graph.n_factors} factors"
        _say(f"mapmrf {__version__}, {method.name} on {model}: {size}")
    listener = _line_printer(request)

    def keep(point: TracePoint, labels: Ints) -> None:
        nonlocal best
        best = labels
        if listener is not None:
            listener(point, labels)

    try:
        with request.hinting():
            result = solve(graph, callback=keep, **arguments_of(solve, values))
    except KeyboardInterrupt:  # outside of the solver's loop, which handles it itself
        result = Result.of_labels(graph, best, Status.INTERRUPTED, method.name)
    if request.lines == "log":
        from mapmrf.run.progress import closing_lines

        for line in closing_lines(result):
            _say(line)

    def write() -> None:
        cli.write_result(result, request.output)
        if request.trace is not None:
            result.write_trace(request.trace)
        if request.certificate is not None:
            _write_certificate(result, request.certificate)

    return request.deliver(result, lambda: request.report(result), write)


def _say(line: str) -> None:
    click.echo(line, err=True)


def _line_printer(request: SolveRequest) -> Callable[[TracePoint, Ints], bool | None] | None:
    if request.lines is None:
        return None
    from mapmrf.run.progress import ImprovementLines

    return ImprovementLines(_say, regularly=request.lines == "log").update


def _write_certificate(result: Result, path: str) -> None:
    if result.certificate is None:
        cli.complain(f"{path} not written: no certificate was found")
        return
    result.certificate.write(path)
    bound, value = result.certificate.bound, result.value
    if bound > (value if value == -math.inf else value + 1e-9 * max(1.0, abs(value))):
        cli.complain(f"{path} proves no more than the bound {bound:.12g}: the value is {value:.12g}")


# -- other questions -------------------------------------------------------------------------------------------------


def _find_best(request: SolveRequest, values: dict[str, Any]) -> int:
    from mapmrf.cli.batch import FIGURES, columns, figures
    from mapmrf.formats.solution import write_solutions
    from mapmrf.questions.best import solve_best

    graph = cli.read_model(request.models[0], request.evidence)
    with request.hinting():
        found = solve_best(graph, request.best, diverse=request.distance, **arguments_of(solve_best, values))
    labellings = [result.labels for result in found]
    writer = write_solutions if labellings else None

    def table() -> list[list[Any]]:
        rows = [[*figures(result).values(), *result.assignment.values()] for result in found]
        return [[*FIGURES, *columns(graph, FIGURES)], *rows]

    write = partial(cli.write_answer, request.output, found, writer, labellings, table=table)
    return request.deliver(found, found.summary, write)


def _answer_query(request: SolveRequest, query: str, values: dict[str, Any]) -> int:
    from mapmrf.formats.solution import write_query_solution
    from mapmrf.questions.marginal_map import marginal_map, query_indices
    from mapmrf.run.result import Status

    graph = cli.read_model(request.models[0], request.evidence)
    asked = query_indices(graph, parse_query(query, None if graph.names is None else graph.names.place))
    if values["memory_limit"] is not None:
        values["memory"] = values["memory_limit"] / 2**20
    with request.hinting():
        result = marginal_map(graph, asked, **arguments_of(marginal_map, values))
    writer = None if result.status is Status.INFEASIBLE else write_query_solution
    table = partial(cli.label_rows, result, None if graph.names else asked)
    write = partial(cli.write_answer, request.output, result, writer, asked, result.labels, table=table)
    return request.deliver(result, lambda: request.report(result), write)


def parse_query(text: str, place: dict[str, int] | None) -> list[int | str]:
    """Parse names or indices of variables, separated by commas; a number that is also a name is read as the name."""
    parts = [part.strip() for part in text.split(",")]
    if not all(parts):
        raise OptionError(f"--query: found {text!r}, expected names or indices of variables, separated by commas")
    return [int(part) if part.isdecimal() and part not in (place or {}) else part for part in parts]


# -- a model in parts ------------------------------------------------------------------------------------------------


def _solve_parts(request: SolveRequest, values: dict[str, Any]) -> int:
    """Solve a model in parts on all ranks; rank 0 prints."""
    from mapmrf.distributed.parts import find_ranks

    ranks = find_ranks()
    try:
        code = _solve_on_ranks(request, values, ranks)
    except Exception as error:
        return _fail_on_ranks(ranks, error)
    ranks.leave()  # the program may end without mpi4py's own cleaning
    return code


def _solve_on_ranks(request: SolveRequest, values: dict[str, Any], ranks: Ranks) -> int:
    from mapmrf.distributed.evaluation import join_labels
    from mapmrf.distributed.loop import solve
    from mapmrf.distributed.parts import PartFolder
    from mapmrf.formats.solution import read_solution
    from mapmrf.run.result import write_trace

    folder, initial = request.models[0], request.initial
    if initial is not None:
        by_parts = Path(initial).is_dir()
        values["initial"] = (
            join_labels(initial) if by_parts else read_solution(initial, PartFolder(folder).counts.n_vars)
        )
    listener = _line_printer(request) if ranks.rank == 0 else None
    result = solve(folder, ranks, callback=listener, **arguments_of(solve, values))
    if request.output is not None:
        result.write_labels(request.output)
    if ranks.rank:
        return cli.exit_code(result.status)
    trace = request.trace
    return request.deliver(result, result.summary, lambda: None if trace is None else write_trace(result.trace, trace))


def _fail_on_ranks(ranks: Ranks, error: Exception) -> int:
    """Print one line that names the rank; an error that all ranks share is printed by the first one only."""
    from mapmrf.distributed.parts import RankError, describe

    if isinstance(error, RankError | MapMRFError | ImportError):
        if ranks.rank == 0:
            cli.complain(f"error: {error}")
        return cli.Exit.BAD_INPUT
    if ranks.size == 1:
        raise error
    cli.complain(f"error: rank {ranks.rank}: {type(error).__name__}: {describe(error)}")
    ranks.abort(cli.Exit.BAD_INPUT)
    return cli.Exit.BAD_INPUT
