"""Commands of the benchmark: `bench` makes runs and writes records, `report` turns records into tables and a page."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from mapmrf.cli.output import check_outputs
from mapmrf.cli.program import INTERRUPTED, complain, main
from mapmrf.errors import OptionError

if TYPE_CHECKING:
    from mapmrf.bench.cells import Table
    from mapmrf.bench.models import ModelRef
    from mapmrf.bench.plan import Plan, Run
    from mapmrf.bench.records import Record

EVERY_PEER = "peers"
QUICK_SECONDS = 2.0
QUICK_MODELS = {"seg-2": (2, 1.0), "seg-21": (1, 0.5), "scene": (1, 1.0), "grids": (2, 1.0), "protein": (1, 0.05)}
"""Look-alikes of `--quick`: how many of each family, and how large."""


def _names(context: click.Context, parameter: click.Parameter, text: str | None) -> list[str] | None:
    """Read a list such as ``a,b``."""
    return None if text is None else [name.strip() for name in text.split(",") if name.strip()]


@main.command()
@click.argument("models", nargs=-1, metavar="[MODEL]...")
@click.option("--output", "-o", metavar="FILE.jsonl", required=True, help="The records: made, or gone on with.")
@click.option("--plan", metavar="FILE.toml", help="What to run; other options override it.")
@click.option("--quick", is_flag=True, help="All methods on a few small look-alikes, two seconds each.")
@click.option("--data", metavar="DIR", help="Where the paper's models are.")
@click.option("--sets", callback=_names, metavar="A,B", help="Sets of the paper; all if not given.")
@click.option("--methods", callback=_names, metavar="A,B", help="Methods; by default the paper's and the default one.")
@click.option("--peers", is_flag=True, help="Also the installed packages of others; alone: --methods peers.")
@click.option("--seeds", callback=_names, metavar="0,1", help="Seeds.")
@click.option("--time-limit", type=click.FloatRange(min=0), metavar="S", help="Seconds of a run.")
@click.option("--memory", type=click.IntRange(min=0), default=0, metavar="MB", help="Memory of a run; 0 for no limit.")
@click.option("--jobs", type=click.IntRange(min=1), metavar="N", help="Runs at a time; all cores if not given.")
@click.option("--retry", is_flag=True, help="Also make those runs again that failed.")
def bench(
    models: Sequence[str],
    output: str,
    plan: str | None,
    quick: bool,
    data: str | None,
    sets: list[str] | None,
    methods: list[str] | None,
    peers: bool,
    seeds: list[str] | None,
    time_limit: float | None,
    memory: int,
    jobs: int | None,
    retry: bool,
) -> int:
    """Run methods on models and record every run.

    Without a MODEL, the models of the paper are run as far as they are there, or look-alikes. A benchmark that was
    stopped goes on where it was when the same command is given again.
    """
    check_outputs(output)
    from mapmrf.bench.plan import read_plan

    given: dict[str, Any] = {} if plan is None else read_plan(plan)
    override = {"models": list(models), "sets": sets, "methods": methods, "seeds": _whole(seeds)}
    given |= {key: value for key, value in override.items() if value}
    given |= {} if time_limit is None else {"time_limit": time_limit}
    return _bench(_plan(given, quick, data, peers), output, memory, jobs or os.cpu_count() or 1, retry)


def _whole(texts: list[str] | None) -> list[int] | None:
    try:
        return None if texts is None else [int(text) for text in texts]
    except ValueError:
        raise OptionError(f"--seeds: found {','.join(texts or [])!r}, expected whole numbers such as 0,1,2") from None


def _plan(given: dict[str, Any], quick: bool, data: str | None, peers: bool) -> Plan:
    from mapmrf.bench.plan import TIME_LIMIT, Plan

    seconds = given.get("time_limit", QUICK_SECONDS if quick else TIME_LIMIT)
    return Plan(_runs(given, peers), _models(given, quick, data), given.get("seeds") or (0,), float(seconds))


def _runs(given: dict[str, Any], peers: bool) -> list[Run]:
    """The runs of a plan; the word `peers` among the methods stands for all packages of others that are there."""
    from mapmrf.bench.peers import installed
    from mapmrf.bench.plan import PEER, Run
    from mapmrf.datasets.figures import COLUMNS
    from mapmrf.solver import DEFAULT_METHOD

    named = given.get("methods", [] if given.get("run") else [*COLUMNS, DEFAULT_METHOD])
    asked = [name for name in dict.fromkeys(named) if name != EVERY_PEER]
    runs = [*given.get("run", []), *(Run(name) for name in asked)]
    _need_peers([run.peer for run in runs if run.is_peer])
    if peers or EVERY_PEER in named:
        _say_missing(alone=not runs)
        runs += [Run(f"{PEER}{name}") for name in installed() if f"{PEER}{name}" not in asked]
    return runs


def _need_peers(named: Sequence[str]) -> None:
    """Refuse a plan that names a package which is not there: every run would say so."""
    from mapmrf.bench.peers import advice, missing

    absent = [name for name in named if name in missing()]
    if absent:
        raise OptionError(advice(absent))


def _say_missing(alone: bool) -> None:
    """Say which packages of others are not there; if nothing else was asked for, some must be."""
    from mapmrf.bench.peers import advice, installed, missing

    absent = list(missing())
    if alone and not installed():
        raise OptionError(f"no package of others is there: {advice(absent)}")
    if absent:
        complain(f"packages of others {advice(absent)}")


def _models(given: dict[str, Any], quick: bool, data: str | None) -> list[ModelRef]:
    """Own files if any are named, look-alikes if asked for or if there is nothing else, else the paper's models."""
    from mapmrf.bench.models import from_files, like_set, of_set
    from mapmrf.datasets.figures import SETS

    sets = given.get("sets", [] if given.get("models") else list(SETS))
    for name in sets:
        if name not in SETS:
            raise OptionError(f"sets: found {name!r}, expected some of {', '.join(SETS)}")
    if data is not None and not os.path.isdir(data):
        raise OptionError(f"--data: {data} is no folder")
    own = from_files(given.get("models", []))
    if quick:
        return own + [model for which in sets for model in like_set(which, *QUICK_MODELS[which])]
    found = {which: of_set(which, data) for which in sets}
    absent = [which for which, models in found.items() if not models]
    if sets and len(absent) == len(sets):
        complain("none of the paper's models are there (see `mapmrf datasets`): look-alikes take their place")
        return own + [model for which in sets for model in like_set(which)]
    if absent:
        complain(f"no model of {', '.join(absent)} is there (see `mapmrf datasets`)")
    return own + [model for models in found.values() for model in models]


def _bench(plan: Plan, output: str, memory: int, jobs: int, retry: bool) -> int:
    """Run a plan with a progress bar, and say what came of it."""
    from mapmrf.bench.progress import BenchBar
    from mapmrf.bench.records import FAILURES, read_records
    from mapmrf.bench.runner import run_all

    tasks = plan.tasks()
    known = read_records(output) if os.path.exists(output) else []
    done = {record["key"] for record in known if not (retry and record["outcome"] in FAILURES)}
    with BenchBar([task for task in tasks if task.key not in done], jobs) as bar:
        summary = run_all(tasks, output, jobs=jobs, memory=memory * 2**20, retry=retry, listener=bar.update)
    left = summary.planned - summary.before - summary.done
    click.echo(f"{output}: {summary.done} runs recorded, {summary.before} were there, {left} left of {summary.planned}")
    if bar.troubles:
        click.echo("not done: " + ", ".join(f"{count} {outcome}" for outcome, count in sorted(bar.troubles.items())))
    if summary.interrupted:
        complain("interrupted; the same command goes on from here")
        return INTERRUPTED
    click.echo(f"the page: mapmrf report {shlex.quote(output)} --output report.html")
    return 0


# -- report -----------------------------------------------------------------------------------------------------------

PAGES = (".html", ".htm")
NAMED = 8
"""Tables that an error names."""


@main.command()
@click.argument("records", nargs=-1, required=True, metavar="RECORDS...")
@click.option("--output", "-o", metavar="FILE", help="report.html, tables.md, .tex or .txt; .csv or a folder for CSV.")
@click.option("--tables", "wanted", callback=_names, metavar="A,B", help="Only these; names may hold * and ?.")
@click.option("--title", default="mapmrf benchmark", show_default=True, help="Heading of the page.")
def report(records: Sequence[str], output: str | None, wanted: list[str] | None, title: str) -> None:
    """Turn RECORDS into tables and a page.

    Without --output the tables are printed. CSV is a file for each table: NAME.csv becomes NAME-TABLE.csv, unless
    --tables leaves a single one; a folder gets TABLE.csv.
    """
    _check_output(output, wanted)
    from mapmrf.bench.records import read_records

    found = read_records(*records)
    if not found:
        raise OptionError(f"{', '.join(records)}: no records")
    if output is not None and output.endswith(PAGES):
        from mapmrf.bench.report import build_report
        from mapmrf.formats.files import write_bytes

        write_bytes(output, build_report(found, title).encode())
    else:
        _write_tables(_chosen(found, wanted), output)


def _check_output(output: str | None, wanted: list[str] | None) -> None:
    """Refuse before the work what cannot be written after it."""
    from mapmrf.bench.forms import SUFFIXES

    if output is None or _is_folder(output):
        return
    if not output.endswith((*PAGES, *SUFFIXES.values())):
        known = ", ".join(SUFFIXES.values())
        raise OptionError(f"{output}: expected a name that ends in .html, {known}, or a folder for CSV")
    if output.endswith(PAGES) and wanted is not None:
        raise OptionError("--tables is for tables, the page has all: leave one of --tables and --output FILE.html out")
    check_outputs(output)


def _is_folder(output: str) -> bool:
    return output.endswith(("/", os.sep)) or os.path.isdir(output)


def _chosen(records: Sequence[Record], wanted: list[str] | None) -> list[Table]:
    """The tables of some records, all or those whose names are asked for."""
    from difflib import get_close_matches
    from fnmatch import fnmatchcase

    from mapmrf.bench.tables import tables

    made = tables(records)
    names = [table.name for table in made]
    for pattern in wanted or []:
        if not any(fnmatchcase(name, pattern) for name in names):
            near = get_close_matches(pattern, names) or [*names[:NAMED], "..."]
            raise OptionError(f"--tables: found {pattern!r}, expected some of the {len(names)}, as {', '.join(near)}")
    return [table for table in made if not wanted or any(fnmatchcase(table.name, pattern) for pattern in wanted)]


def _write_tables(made: Sequence[Table], output: str | None) -> None:
    from mapmrf.bench.forms import SUFFIXES, TEXT_WIDTH, to_text, write_tables
    from mapmrf.formats.files import write_bytes

    if output is None:
        width = shutil.get_terminal_size((TEXT_WIDTH, 0)).columns if sys.stdout.isatty() else TEXT_WIDTH
        click.echo("\n\n\n".join(to_text(table, width) for table in made))
    elif _is_folder(output) or output.endswith(SUFFIXES["csv"]):
        _write_csv(made, output)
    else:
        form = next(form for form, suffix in SUFFIXES.items() if output.endswith(suffix))
        write_bytes(output, (write_tables(made, form) + "\n").encode())


def _write_csv(made: Sequence[Table], output: str) -> None:
    """A file for each table, in a folder or beside each other under names that begin alike."""
    from mapmrf.bench.forms import to_csv
    from mapmrf.formats.files import write_bytes

    if _is_folder(output):
        Path(output).mkdir(parents=True, exist_ok=True)
        paths = [str(Path(output) / f"{table.name}.csv") for table in made]
    elif len(made) == 1:
        paths = [output]
    else:
        paths = [f"{output.removesuffix('.csv')}-{table.name}.csv" for table in made]
    check_outputs(*paths)
    for path, table in zip(paths, made, strict=True):
        write_bytes(path, to_csv(table).encode())
    if len(made) > 1:
        click.echo(f"{len(made)} tables: {paths[0]} to {Path(paths[-1]).name}")
