"""The command line: the only file that prints.

Exit codes: 0 done, 2 bad input or usage (one line on standard error), 3 infeasible model, 130 interrupted.

Only click is imported at the top. What a command needs it imports itself, so that help and the commands that only read
files start at once.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

import click

from mapmrf._version import __version__
from mapmrf.errors import MapMRFError, OptionError
from mapmrf.output import (
    check_outputs,
    methods_report,
    report,
    strict_json,
    tuning_json,
    tuning_report,
    write_model,
    write_result,
    write_rows,
)

if TYPE_CHECKING:
    from mapmrf.arrays import Ints
    from mapmrf.graph import FactorGraph
    from mapmrf.result import Result, TracePoint
    from mapmrf.solver import Method

BAD_INPUT, INFEASIBLE, INTERRUPTED = 2, 3, 130

Command = TypeVar("Command", bound=Callable[..., Any])


class _Speaker(logging.Handler):
    """Says on standard error what the library logs."""

    def emit(self, record: logging.LogRecord) -> None:
        _complain(f"{record.levelname.lower()}: {record.getMessage()}")


class Program(click.Group):
    """A group whose errors are one line each, with the exit codes of this program."""

    def list_commands(self, context: click.Context) -> list[str]:
        """Name the commands in the order of this file, not of the alphabet."""
        return list(self.commands)

    def main(self, *args: Any, **extra: Any) -> NoReturn:
        """Run a command and leave with its exit code."""
        extra["standalone_mode"] = False
        try:
            code = super().main(*args, **extra)
        except (click.Abort, KeyboardInterrupt):
            _complain("interrupted")
            code = INTERRUPTED
        except click.ClickException as error:
            code = _fail(error.format_message())
        except OSError as error:
            code = _fail(f"{error.filename}: {error.strerror}" if error.filename else str(error))
        except MemoryError:
            code = _fail("not enough memory for this model")
        except (MapMRFError, ImportError) as error:
            code = _fail(str(error))
        sys.exit(code if isinstance(code, int) else 0)


def _fail(text: str) -> int:
    _complain(f"error: {text}")
    return BAD_INPUT


def _complain(text: str) -> None:
    click.echo(f"mapmrf: {' '.join(text.split())}", err=True)


@click.group(
    cls=Program,
    invoke_without_command=True,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.version_option(__version__, prog_name="mapmrf")
@click.pass_context
def main(context: click.Context) -> None:
    """MAP inference for discrete graphical models."""
    log = logging.getLogger("mapmrf")
    if not log.handlers:
        log.addHandler(_Speaker())
    if context.invoked_subcommand is None:
        click.echo(context.get_help())


# -- options that several commands have ------------------------------------------------------------------------------


def _evidence_option(command: Command) -> Command:
    return click.option("--evidence", metavar="FILE", help="Observed variables, to be fixed.")(command)


def _json_option(command: Command) -> Command:
    return click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")(command)


def _set_option(command: Command) -> Command:
    text = "An option of the method, such as --set max_iterations=500; may be repeated."
    return click.option("--set", "settings", multiple=True, metavar="KEY=VALUE", help=text)(command)


def _method_option(command: Command) -> Command:
    return click.option("--method", "-m", metavar="NAME", help="How to solve; see `mapmrf methods`.")(command)


def _time_option(command: Command) -> Command:
    return click.option("--time-limit", type=click.FloatRange(min=0), metavar="S", help="Seconds at most.")(command)


def _seed_option(command: Command) -> Command:
    kind = click.IntRange(min=0)
    return click.option("--seed", type=kind, default=0, show_default=True, help="Seed of everything random.")(command)


# -- solving ---------------------------------------------------------------------------------------------------------


@main.command()
@click.argument("model")
@_method_option
@_evidence_option
@_set_option
@_time_option
@_seed_option
@click.option("--threads", type=click.IntRange(min=1), default=1, show_default=True, help="Threads to use.")
@click.option("--initial", metavar="FILE", help="A solution file to start from.")
@click.option("--output", "-o", metavar="FILE", help="Write the labelling: a result if *.json, else a solution (.MPE).")
@_json_option
@click.option("--trace", metavar="FILE.csv", help="Write the course of the run.")
@click.option("--quiet", "-q", is_flag=True, help="Print nothing but errors.")
def solve(
    model: str,
    method: str | None,
    evidence: str | None,
    settings: Sequence[str],
    time_limit: float | None,
    seed: int,
    threads: int,
    initial: str | None,
    output: str | None,
    as_json: bool,
    trace: str | None,
    quiet: bool,
) -> int:
    """Find a labelling of MODEL with a large log potential."""
    check_outputs(output, trace)
    chosen = _method(method, settings)
    graph = _read(model, evidence)
    start = None if initial is None else _solution(initial, graph)
    limits = {"time_limit": time_limit, "seed": seed, "threads": threads, "initial": start}
    result = _solve(graph, chosen, {**limits, "progress": not quiet})
    try:
        _write(result, output, trace)
    finally:  # a full disk must not take the answer along
        if as_json or not quiet:
            click.echo(result.to_json() if as_json else report(result))
    return _exit_code(result)


def _method(name: str | None, settings: Sequence[str]) -> Method:
    """Build the method first: a misspelt option must not wait for a large model to be read."""
    from mapmrf.settings import parse_settings
    from mapmrf.solver import DEFAULT_METHOD, make_method, method_class

    name = name or DEFAULT_METHOD
    return make_method(name, parse_settings(method_class(name), settings))


def _solve(graph: FactorGraph, method: Method, arguments: dict[str, Any]) -> Result:
    """Solve; Ctrl-C outside the loop, which handles it, also gives the best labelling so far."""
    from mapmrf.arrays import segment_argmax
    from mapmrf.result import Result, Status
    from mapmrf.solver import solve

    initial = arguments["initial"]
    best = [segment_argmax(graph.theta_v, graph.var_ptr) if initial is None else initial]

    def keep(point: TracePoint, labels: Ints) -> None:
        best[0] = labels

    try:
        return solve(graph, method, callback=keep, **arguments)
    except KeyboardInterrupt:
        return Result(best[0], graph.value(best[0]), Status.INTERRUPTED, method.name, version=__version__)


def _write(result: Result, output: str | None, trace: str | None) -> None:
    if output is not None and not write_result(result, output):
        _complain(f"{output} not written: {result.status.meaning}")
    if trace is not None:
        result.write_trace(trace)


def _exit_code(result: Result) -> int:
    from mapmrf.result import Status

    return {Status.INFEASIBLE: INFEASIBLE, Status.INTERRUPTED: INTERRUPTED}.get(result.status, 0)


@main.command()
@click.argument("models", nargs=-1, metavar="[MODEL]...")
@click.option("--output", "-o", metavar="FILE.png", default="mapmrf-demo.png", show_default=True, help="The picture.")
def demo(models: Sequence[str], output: str) -> None:
    """Show two models solved, explained and drawn.

    After these, every MODEL given is solved and explained.
    """
    check_outputs(output)
    from mapmrf.demo import tour

    for paragraph in tour(output, {model: _read(model) for model in models}):
        click.echo(f"{paragraph}\n")


@main.command()
@click.argument("model")
@_method_option
@_evidence_option
@click.option("--grid", multiple=True, metavar="KEY=V,V,..", help="Values to try for rho, eta, rho_upper or seeds.")
@_set_option
@_time_option
@click.option("--jobs", type=click.IntRange(min=1), help="Runs at a time; all cores if not given.")
@click.option("--output", "-o", metavar="FILE.csv", help="Write the whole table.")
@_json_option
def tune(
    model: str,
    method: str | None,
    evidence: str | None,
    grid: Sequence[str],
    settings: Sequence[str],
    time_limit: float | None,
    jobs: int | None,
    output: str | None,
    as_json: bool,
) -> int:
    """Search the best parameters for MODEL.

    Without --grid, the grid of the paper is searched.
    """
    check_outputs(output)
    axes = _axes(grid)
    from mapmrf.settings import parse_settings
    from mapmrf.solver import DEFAULT_METHOD, method_class
    from mapmrf.tuning import tune

    name = method or DEFAULT_METHOD
    options = parse_settings(method_class(name), settings)
    graph = _read(model, evidence)
    search: dict[str, Any] = {**axes, **options}
    tuning = tune(graph, name, time_limit=time_limit, jobs=jobs, progress=True, **search)
    if output is not None:
        write_rows(tuning.table, output)
    click.echo(tuning_json(tuning) if as_json else tuning_report(tuning))
    return _exit_code(tuning.result)


def _axes(grid: Sequence[str]) -> dict[str, list[Any]]:
    """Values to try, by parameter."""
    from mapmrf.settings import parse_grid

    axes = parse_grid(grid)
    unknown = sorted(set(axes) - {"rho", "eta", "rho_upper", "seeds"})
    if unknown:
        raise OptionError(f"--grid: found {unknown[0]!r}, expected rho, eta, rho_upper or seeds")
    return axes


@main.command()
@_json_option
def methods(as_json: bool) -> None:
    """List the methods, what each gives, and its options."""
    import dataclasses

    from mapmrf.solver import methods

    known: dict[str, dict[str, Any]] = {}
    for name, cls in methods().items():
        flags = {flag: getattr(cls, flag) for flag in ("gives_bound", "exact", "exact_on_trees")}
        options = dataclasses.asdict(cls())  # type: ignore[call-overload]
        known[name] = {"title": cls.title, **flags, "options": options}
    click.echo(strict_json(known) if as_json else methods_report(known))


# -- files -----------------------------------------------------------------------------------------------------------


@main.command()
@click.argument("model")
@_json_option
def info(model: str, as_json: bool) -> None:
    """Print size, shape and memory of MODEL."""
    import dataclasses

    from mapmrf.facts import model_facts

    facts = model_facts(_read(model))
    click.echo(strict_json(dataclasses.asdict(facts)) if as_json else facts.summary())


@main.command()
@click.argument("source", metavar="IN")
@click.argument("target", metavar="OUT")
def convert(source: str, target: str) -> None:
    """Convert the model IN to the format that the suffix of OUT names."""
    check_outputs(target)
    write_model(_read(source), target)


@main.command()
@click.argument("model")
@_evidence_option
def check(model: str, evidence: str | None) -> None:
    """Read MODEL and say whether it is in order."""
    graph = _read(model, evidence)
    click.echo(f"{model}: ok, {graph.n_vars} variables, {graph.n_factors} factors")


@main.command()
@click.argument("model")
@click.argument("solution")
@_evidence_option
@_json_option
def score(model: str, solution: str, evidence: str | None, as_json: bool) -> None:
    """Print the log potential that a SOLUTION file reaches on MODEL."""
    graph = _read(model, evidence)
    value = graph.value(_solution(solution, graph))
    click.echo(strict_json({"value": value}) if as_json else repr(value))


def _read(model: str, evidence: str | None = None) -> FactorGraph:
    from mapmrf.formats import read

    return read(model, evidence=evidence)


def _solution(path: str, graph: FactorGraph) -> Any:
    from mapmrf.formats.solution import read_solution

    return read_solution(path, graph)


# -- made-up models --------------------------------------------------------------------------------------------------


def _span(text: str) -> int | tuple[int, int]:
    """Read a count such as 3, or the smallest and the largest one such as 2-4."""
    low, dash, high = text.partition("-")
    try:
        return (int(low), int(high)) if dash else int(low)
    except ValueError:
        raise click.BadParameter(f"found {text!r}, expected a count such as 3 or a range such as 2-4") from None


def _output_option(command: Command) -> Command:
    return click.option("--output", "-o", metavar="FILE", required=True, help="The model file to write.")(command)


@main.group()
def generate() -> None:
    """Make a model: a grid, a random graph, or a noisy picture."""


@generate.command("grid")
@click.argument("rows", type=int)
@click.argument("cols", type=int)
@click.option("--coupling", default=1.0, show_default=True, help="Strength of the pairs.")
@click.option("--field", default=1.0, show_default=True, help="Strength of the single variables.")
@click.option("--wrap", is_flag=True, help="Join opposite borders.")
@_seed_option
@_output_option
def generate_grid(rows: int, cols: int, coupling: float, field: float, wrap: bool, seed: int, output: str) -> None:
    """Spin glass on a grid of ROWS x COLS, as in PIC-2011."""
    check_outputs(output)
    from mapmrf.datasets import grid

    write_model(grid(rows, cols, coupling, field=field, wrap=wrap, seed=seed), output)


@generate.command("random")
@click.argument("n_vars", type=int)
@click.argument("n_factors", type=int)
@click.option("--states", type=_span, default="2-4", show_default=True, help="States of a variable.")
@click.option("--arity", type=_span, default="2-3", show_default=True, help="Variables of a factor.")
@click.option("--hard", default=0.0, show_default=True, help="Fraction of forbidden entries.")
@_seed_option
@_output_option
def generate_random(n_vars: int, n_factors: int, states: Any, arity: Any, hard: float, seed: int, output: str) -> None:
    """Random factor graph of N_VARS variables and N_FACTORS factors that has a solution."""
    check_outputs(output)
    from mapmrf.datasets import random_graph

    write_model(random_graph(n_vars, n_factors, states=states, arity=arity, hard=hard, seed=seed), output)


@generate.command("potts")
@click.argument("height", type=int)
@click.argument("width", type=int)
@click.option("--labels", default=4, show_default=True, help="Number of labels.")
@click.option("--noise", default=0.8, show_default=True, help="Standard deviation of the noise.")
@click.option("--smoothness", default=1.2, show_default=True, help="Price of a border between two pixels.")
@_seed_option
@_output_option
def generate_potts(
    height: int, width: int, labels: int, noise: float, smoothness: float, seed: int, output: str
) -> None:
    """Segmentation of a noisy picture of HEIGHT x WIDTH pixels."""
    check_outputs(output)
    from mapmrf.datasets import potts_image

    write_model(potts_image(height, width, labels, noise=noise, smoothness=smoothness, seed=seed).graph, output)
