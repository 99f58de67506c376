"""The command line, the only part of the package that prints: errors, exit codes, and what several commands share.

Each module holds related commands, is imported for these or for `--help`, and imports only click at the top. A command
imports everything else itself, so that `--help` and commands that only read files start quickly.

Exit codes: 0 done, 2 bad input or usage (one line on standard error), 3 infeasible model, 4 a certificate that is not
valid, 130 interrupted (143 by SIGTERM). From start to end of a command, a signal only sets a flag: commands
check it between reading, solving and writing.
"""

from __future__ import annotations

import contextlib
import csv
import glob
import importlib
import io
import json
import logging
import math
import os
import re
import signal
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import IntEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import click

from mapmrf._version import __version__
from mapmrf.errors import MapMRFError, OptionError, OutOfMemory, suggestion
from mapmrf.model.memory import PROGRAM, address_space, byte_count, is_lack_of_memory, shown_bytes
from mapmrf.run.atomic_files import drop_old, keeping_old, keeps_old
from mapmrf.run.interrupts import Interrupts, check, process, reacting

if TYPE_CHECKING:
    from mapmrf.model.graph import FactorGraph
    from mapmrf.run.result import Result, Status

ASKED = "_MAPMRF_COMPLETE"  # set by a shell that completes a command line
COMMANDS = {
    "solve": "solving", "demo": "demo", "tune": "methods", "methods": "methods", "verify": "models", "info": "models",
    "convert": "models", "check": "models", "score": "models", "partition": "models", "join": "models",
    "plot": "plotting", "generate": "datasets", "datasets": "datasets", "bench": "bench", "report": "bench",
    "compile": "installation", "uai": "contest", "completion": "installation",
}  # fmt: skip
"""The commands as `--help` lists them, and their modules."""


class Exit(IntEnum):
    """The exit codes of commands that end by themselves."""

    DONE = 0
    BAD_INPUT = 2
    INFEASIBLE = 3
    NOT_PROVEN = 4  # a certificate that is not valid, or leaves a wider gap than requested
    INTERRUPTED = 130


class _StderrHandler(logging.Handler):
    """Prints the library's log messages on standard error."""

    def emit(self, record: logging.LogRecord) -> None:
        complain(f"{record.levelname.lower()}: {record.getMessage()}")


class CommandGroup(click.Group):
    """A group whose errors are one line each, with the exit codes of this program."""

    def list_commands(self, context: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, context: click.Context, name: str) -> click.Command | None:
        if name in COMMANDS:
            importlib.import_module(f"mapmrf.cli.{COMMANDS[name]}")
        return super().get_command(context, name)

    def resolve_command(self, context: click.Context, args: list[str]) -> Any:
        if args[0] not in COMMANDS and not args[0].startswith("-"):
            raise click.UsageError(f"no command is named {args[0]!r}{suggestion(args[0], COMMANDS)}")
        return super().resolve_command(context, args)

    def main(self, *args: Any, **extra: Any) -> NoReturn:
        extra["standalone_mode"] = False
        # Replace standard streams that are closed (``>&-``), so that no file that is opened takes their numbers.
        for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
            if getattr(sys, name) is None:
                setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: SIM115
        with Interrupts(signal.SIGINT, signal.SIGTERM) as interrupts, keeping_old():
            try:
                process.begin_work()
                check()
                # Raise OutOfMemory where NumPy could not even be loaded: OpenBLAS would end the process.
                space = address_space()
                if space < 130e6:
                    raise OutOfMemory(
                        f"ulimit -v leaves {shown_bytes(space)}, the program needs about {shown_bytes(PROGRAM)}"
                    )
                if ASKED in os.environ:  # a shell asks for completions
                    from mapmrf.cli.installation import prepare_completion

                    prepare_completion(self)
                code = super().main(*args, **extra)
            except (Exception, KeyboardInterrupt) as error:
                code = explain(KeyboardInterrupt() if interrupts.raised else error)
            code = code if isinstance(code, int) else 0
            if interrupts.requested:
                code = 128 + interrupts.number
            with contextlib.suppress(OSError):  # a closed pipe
                sys.stdout.flush()
            process.end_work(code)
            sys.exit(code)


def explain(error: BaseException) -> int:
    """Print what went wrong in one line and return the exit code; errors of the program itself are raised."""
    match error:
        case click.Abort() | KeyboardInterrupt():
            complain("interrupted")
            return Exit.INTERRUPTED
        case click.NoSuchOption(ctx=click.Context() as context):
            known = [flag for one in context.command.get_params(context) for flag in one.opts if flag[:2] == "--"]
            return fail(f"no option is named {error.option_name!r}{suggestion(error.option_name, known)}")
        case click.ClickException():
            return fail(error.format_message())
        case MapMRFError():
            return fail(str(error))
        case _ if is_lack_of_memory(error):
            return fail("not enough memory for this model")
        case ImportError() | OSError() if address_space() < PROGRAM:
            sentence = str(error).partition(". ")[0]  # these errors are long
            return fail(f"not enough memory to load the program: {sentence}")
        case OSError():
            return fail(f"{error.filename}: {error.strerror}" if error.filename else str(error))
        case ImportError():
            return fail(str(error))
    raise error


def fail(text: str) -> int:
    complain(f"error: {text}")
    return Exit.BAD_INPUT


def complain(text: str) -> None:
    click.echo(f"mapmrf: {' '.join(text.split())}", file=sys.stderr)  # the current one: see `BatchReport`


def exit_code(status: Status) -> int:
    return {"infeasible": Exit.INFEASIBLE, "interrupted": Exit.INTERRUPTED}.get(status.value, Exit.DONE)


@click.group(
    cls=CommandGroup,
    invoke_without_command=True,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.version_option(__version__, prog_name="mapmrf")
@click.pass_context
def main(context: click.Context) -> None:
    """MAP inference for discrete graphical models."""
    log = logging.getLogger("mapmrf")
    if not log.handlers:
        log.addHandler(_StderrHandler())
    if context.invoked_subcommand is None:
        click.echo(context.get_help())


# -- options of several commands -------------------------------------------------------------------------------------


class AtLeast(click.ParamType):  # type: ignore[type-arg]
    """A number of at least `least`: a whole number, or any."""

    name = "number"

    def __init__(self, least: int, kind: type[int] | type[float] = int) -> None:
        self.least, self.kind = least, kind

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        try:
            number = self.kind(value)
        except ValueError:
            number = self.kind(self.least - 1)
        if not number >= self.least:
            what = "whole number" if self.kind is int else "number"
            self.fail(f"found {value!r}, expected a {what} of at least {self.least}", param, ctx)
        return number


Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]

evidence_option = click.option(
    "--evidence",
    metavar="FILE|X=STATE,...",
    help="Observed variables and states: a file, rain=yes,wet=no, or auto for MODEL.evid if there is one.",
)
json_option = click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
set_option = click.option(
    "--set",
    "settings",
    multiple=True,
    metavar="KEY=VALUE",
    help="Option of the method, such as --set max_iterations=500; may be repeated.",
)
method_option = click.option("--method", "-m", metavar="NAME", help="Solution method; see `mapmrf methods`.")
time_option = click.option("--time-limit", "-t", type=AtLeast(0, float), metavar="S", help="Time limit in seconds.")
seed_option = click.option("--seed", type=AtLeast(0), default=0, metavar="N", show_default=True, help="Random seed.")
jobs_option = click.option(
    "--jobs", "-j", type=AtLeast(1), metavar="N", help="Number of runs in parallel.  [default: all cores]"
)


def _keep_memory_limit(context: click.Context, parameter: click.Parameter, text: str | None) -> str | None:
    try:
        context.meta[_MEMORY] = byte_count(text)
    except OptionError:
        raise click.BadParameter(f"found {text!r}, expected a number of bytes such as 2e9 or 2GB") from None
    return text


_MEMORY = "mapmrf.memory_limit"


def memory_option(about: str = "Memory for reading the model, such as 2G.", *, expose_value: bool = False) -> Decorator:
    """The option `--memory-limit`, which takes effect when models are read."""
    text = f"{about}  [default: memory of the machine]"
    return click.option(
        "--memory-limit", metavar="BYTES", expose_value=expose_value, callback=_keep_memory_limit, help=text
    )


def memory_limit() -> float | None:
    """The value of `--memory-limit` in bytes."""
    context = click.get_current_context(silent=True)
    return None if context is None else context.meta.get(_MEMORY)


force_option = click.option(
    "--force",
    is_flag=True,
    expose_value=False,
    callback=lambda context, parameter, force: drop_old() if force else None,
    help="Overwrite files without keeping the old ones as FILE~.",
)
"""Takes effect when files are written."""


# -- files of several commands ---------------------------------------------------------------------------------------


def expanded(models: Sequence[str]) -> list[str]:
    """The model files: a folder stands for those in it, but for a model in parts, and a pattern for what it matches."""
    found: list[str] = []
    for model in models:
        path = Path(model)
        if path.is_dir() and not Path(model, "parts.json").is_file():
            from mapmrf.formats import suffixes
            from mapmrf.formats.files import plain_name

            inside = [file for file in sorted(path.iterdir()) if plain_name(file).endswith(suffixes())]
            what = "no model file in this folder, expected names such as model.uai or model.wcsp.gz"
        elif glob.has_magic(model) and not path.exists():
            inside = [Path(name) for name in sorted(glob.glob(model, recursive=True))]
            what = "no file matches"
        else:
            found.append(model)
            continue
        if not any(file.is_file() for file in inside):
            raise OptionError(f"{model}: {what}")
        found += [str(file) for file in inside if file.is_file() and str(file) not in found]
    return found


def read_model(model: str, evidence: str | None = None) -> FactorGraph:
    """Read a model file, with its evidence; a signal ends the command at once."""
    from mapmrf.formats import read
    from mapmrf.formats.files import beside

    if evidence is None and (found := beside(model)) is not None:
        logging.getLogger("mapmrf").warning("%s lies beside the model and is not used: --evidence auto uses it", found)
    budget = memory_limit()  # of this thread's context
    graph: FactorGraph = _read(lambda: read(model, evidence=evidence, memory_limit=budget))
    return graph


def read_labels(path: str, model: FactorGraph | int) -> Any:
    """Read a solution of a model, or of any model with this many variables."""
    from mapmrf.formats.solution import read_solution

    return _read(lambda: read_solution(path, model))


def _read(reader: Callable[[], Any]) -> Any:
    """Read on another thread while this one waits, so that signals are also handled while a kernel parses."""
    from mapmrf.run.clock import Supervisor

    with reacting("leave"):
        supervisor = Supervisor()
        try:
            return supervisor.call(lambda: math.inf, reader)
        finally:
            supervisor.close()


# -- Output of several commands: checks of files, answers, JSON and text tables ---------------------------------------


def check_outputs(*paths: str | None) -> None:
    """Reject outputs that could not be written, before the work is done."""
    for path in paths:
        if path is None:
            continue
        target = Path(path)
        if target.is_dir():
            raise OptionError(f"{path}: is a folder, expected a file")
        if not target.parent.is_dir():
            raise OptionError(f"{path}: there is no folder {target.parent}")
        if not os.access(target if target.exists() else target.parent, os.W_OK):
            raise OptionError(f"{path}: no permission to write")


def check_parts(folder: str) -> None:
    """Reject a folder that already holds a model in parts, unless `--force` is given."""
    # The old parts are removed first, so that a folder never holds parts of two models.
    manifest = Path(folder, "parts.json")
    if manifest.exists() and keeps_old():
        raise OptionError(
            f"{folder}: already holds a model in parts, expected another folder, or --force to replace it"
        )
    manifest.unlink(missing_ok=True)


def write_model(graph: FactorGraph, path: str) -> None:
    """Write a model in the format given by the suffix; a signal ends that, and no file is written."""
    from mapmrf.formats import write

    with reacting("raise"):
        write(graph, path)


def write_answer(
    path: str | None,
    answer: Any,
    write: Callable[..., None] | None,
    *labels: Any,
    table: Callable[[], Sequence[Sequence[Any]]],
    **json: Any,
) -> None:
    """Write an answer as JSON to *.json, what `table` makes to *.csv and *.tsv, otherwise its labels by `write`."""
    # `write` is None if there are no labels.
    if path is None:
        return
    from mapmrf.formats.files import plain_name, write_bytes

    name = plain_name(path)
    if name.endswith(".json"):
        write_bytes(path, (answer.to_json(**json) + "\n").encode())
    elif write is None:
        complain(f"{path} not written: {answer.status.meaning}")
    elif name.endswith((".csv", ".tsv")):
        write_bytes(path, csv_text(table(), "," if name.endswith(".csv") else "\t").encode())
    else:
        write(path, *labels)


def write_result(result: Result, path: str | None) -> None:
    """Write a result with its trace to *.json, its labels to *.csv or *.tsv, otherwise as a solution."""
    if path is None:
        return
    from mapmrf.formats.solution import write_solution
    from mapmrf.run.result import Status

    with_mu = result.mu_v is not None and result.mu_v.size <= 1 << 20  # for a large picture it would be huge
    writer = None if result.status is Status.INFEASIBLE else write_solution
    write_answer(path, result, writer, result.labels, table=lambda: label_rows(result), trace=True, mu_v=with_mu)


def label_rows(result: Result, variables: Sequence[int] | None = None) -> list[list[Any]]:
    """The labels with a head, a row per variable; `variables` are their indices, if they are not all."""
    margins = ["margin at least", "margin at most"] if result.margins is not None else []
    rows: list[list[Any]] = [["variable", "state", *margins]]
    ends = [[]] * len(result.labels) if result.margins is None else result.margins.tolist()
    for i, (pair, margin) in enumerate(zip(result.assignment.items(), ends, strict=True)):
        variable, state = pair
        rows.append([variable if variables is None else variables[i], state, *margin])
    return rows


# -- text ------------------------------------------------------------------------------------------------------------


def strict_json(data: Any) -> str:
    """Format one JSON object; infinite numbers become strings, as in `Result.to_json`."""
    return json.dumps(json.loads(json.dumps(data, default=str), parse_constant=lambda text: str(float(text))))


def table(rows: Sequence[Mapping[str, Any]]) -> str:
    if not rows:
        return ""
    cells = [
        list(rows[0]),
        *([f"{value:.8g}" if isinstance(value, float) else str(value) for value in row.values()] for row in rows),
    ]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    return "\n".join("  ".join(map(str.ljust, line, widths)).rstrip() for line in cells)


def csv_text(rows: Iterable[Sequence[Any]], delimiter: str = ",") -> str:
    text = io.StringIO(newline="")
    csv.writer(text, delimiter=delimiter, lineterminator="\n").writerows(rows)
    return text.getvalue()


def report(result: Result, output: str | None = None, *, verbose: bool = False) -> str:
    """Summarise a result: value, status, bound, where the labels are or the first of them, and the method."""
    # With names or margins there is a line per variable below; the variables with the smallest margins come first.
    *lines, method = result.summary(shown=0, relaxed=False).splitlines()
    count, margins = len(result.labels), result.margins
    listed = result.names is not None or margins is not None
    shown = 30 if listed else 20
    more = f" ... ({count} in all{'' if output else ', -o FILE writes them'})" if count > shown else ""
    infeasible = result.status == "infeasible"
    if output is not None and not infeasible:
        lines.append(f"labels         {output}  ({count} variable{'' if count == 1 else 's'})")
    elif not listed:
        lines.append(f"labels         {' '.join(map(str, result.labels[:shown]))}{more}")
    if margins is not None:
        certain, tied = int((margins[:, 0] > 0).sum()), int((margins[:, 1] <= 0).sum())
        lines.append(f"margins        {certain} of {count} labels are certain, {tied} have an equally good alternative")
    lines.append(method)
    if verbose:
        from mapmrf.run.progress import closing_lines

        lines += result.summary(shown=0).splitlines()[result.summary(shown=0, relaxed=False).count("\n") + 1 :]
        lines += [re.sub(r"^(\w+) +", lambda word: f"{word[1]:<15}", line) for line in closing_lines(result)[:-1]]
        figures = ", ".join(f"{name} {value:.6g}" for name, value in result.details.items())
        lines += [f"details        {figures}"] if figures else []
    if listed and not infeasible:
        rows = [
            {"variable": variable, "state": state} | ({"margin": _margin(*ends)} if ends else {})
            for variable, state, *ends in sorted(label_rows(result)[1:], key=lambda row: row[2:])[:shown]
        ]
        lines += ["", table(rows), *([more.lstrip()] if more else [])]
    return "\n".join(lines)


def _margin(low: float, high: float) -> str:
    """By how much the value falls if the variable has another state."""
    return f"{low:.6g}" if low == high else f"{max(0.0, low):.6g} to {high:.6g}"
