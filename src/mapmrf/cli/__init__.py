"""The command line, the only part of the package that prints: errors, exit codes, and what several commands share.

Each module holds related commands, is imported for these or for `--help`, and imports only click at the top. A command
imports everything else itself, so that `--help` and commands that only read files start quickly.

Exit codes: 0 done, 2 bad input or usage (one line on standard error), 3 infeasible model, 4 a certificate that is not
valid, 130 interrupted (143 by SIGTERM). From start to end of a command, a signal only sets a flag: commands
check it between reading, solving and writing.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import logging
import math
import os
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from enum import IntEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import click

from mapmrf._version import __version__
from mapmrf.errors import MapMRFError, OptionError, OutOfMemory
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
    click.echo(f"mapmrf: {' '.join(text.split())}", err=True)


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

evidence_option = click.option("--evidence", metavar="FILE", help="File of observed variables and states.")
json_option = click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
set_option = click.option(
    "--set",
    "settings",
    multiple=True,
    metavar="KEY=VALUE",
    help="Option of the method, such as --set max_iterations=500; may be repeated.",
)
method_option = click.option("--method", "-m", metavar="NAME", help="Solution method; see `mapmrf methods`.")
time_option = click.option("--time-limit", type=click.FloatRange(min=0), metavar="S", help="Time limit in seconds.")
memory_option = click.option(
    "--memory-limit",
    metavar="BYTES",
    help="Memory for program, model and run, such as 2G; methods that need more are refused or skipped.",
)
seed_option = click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True, help="Random seed.")


def _drop_old(context: click.Context, parameter: click.Parameter, force: bool) -> None:
    if force:
        drop_old()


force_option = click.option(
    "--force",
    is_flag=True,
    expose_value=False,
    callback=_drop_old,
    help="Overwrite files without keeping the old ones as FILE~.",
)
"""Takes effect when files are written."""


def _keep_max_bytes(context: click.Context, parameter: click.Parameter, text: str | None) -> None:
    try:
        context.meta[_BYTES] = byte_count(text, "max_bytes")
    except OptionError:
        raise click.BadParameter(f"found {text!r}, expected a number of bytes such as 2e9 or 2GB") from None


_BYTES = "mapmrf.max_bytes"
bytes_option = click.option(
    "--max-bytes",
    metavar="BYTES",
    expose_value=False,
    callback=_keep_max_bytes,
    help="Memory for reading a model, such as 2e9 or 2GB.  [default: memory of the machine]",
)


def max_bytes() -> float | None:
    """The value of `--max-bytes`, which takes effect when models are read."""
    context = click.get_current_context(silent=True)
    return None if context is None else context.meta.get(_BYTES)


# -- files of several commands ---------------------------------------------------------------------------------------


def read_model(model: str, evidence: str | None = None) -> FactorGraph:
    """Read a model file, with its evidence; a signal ends the command at once."""
    from mapmrf.formats import read

    budget = max_bytes()  # of this thread's context
    graph: FactorGraph = _read(lambda: read(model, evidence=evidence, max_bytes=budget))
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


def write_answer(path: str | None, answer: Any, write: Callable[..., None] | None, *labels: Any, **json: Any) -> None:
    """Write an answer as JSON to *.json, otherwise its labels by `write`, which is None if there are none."""
    if path is None:
        return
    if path.endswith(".json"):
        from mapmrf.formats.files import write_bytes

        write_bytes(path, (answer.to_json(**json) + "\n").encode())
    elif write is None:
        complain(f"{path} not written: {answer.status.meaning}")
    else:
        write(path, *labels)


def write_result(result: Result, path: str | None) -> None:
    """Write a result with its trace to *.json, otherwise its labels as a solution."""
    if path is None:
        return
    from mapmrf.formats.solution import write_solution
    from mapmrf.run.result import Status

    with_mu = result.mu_v is not None and result.mu_v.size <= 1 << 20  # for a large picture it would be huge
    writer = None if result.status is Status.INFEASIBLE else write_solution
    write_answer(path, result, writer, result.labels, trace=True, mu_v=with_mu)


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


def report(result: Result, shown: int = 30) -> str:
    """Summarise a result, with its first labels; for a model with names, one line per variable and its state."""
    if result.names is not None:
        rows = [{"variable": name, "state": state} for name, state in list(result.assignment.items())[:shown]]
        more = f"\n... ({len(result.labels)} in all)" if len(result.labels) > shown else ""
        return f"{result.summary(shown=0)}\n\n{table(rows)}{more}"
    more = f" ... ({len(result.labels)} in all)" if len(result.labels) > shown else ""
    return f"{result.summary()}\nlabels         {' '.join(map(str, result.labels[:shown]))}{more}"
