"""Commands of the benchmark: `bench` makes runs and writes records, `report` turns records into tables and a page."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from mapmrf.cli.program import INTERRUPTED, complain, main
from mapmrf.errors import OptionError
from mapmrf.output import check_outputs

if TYPE_CHECKING:
    from mapmrf.bench.models import ModelRef
    from mapmrf.bench.plan import Plan, Run

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
@click.option("--methods", callback=_names, metavar="A,B", help="Methods; those of the paper if not given.")
@click.option("--peers", is_flag=True, help="Also the installed packages of others.")
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
    from mapmrf.bench.plan import Run
    from mapmrf.datasets.figures import COLUMNS

    named = given.get("methods", [] if given.get("run") else list(COLUMNS))
    runs = [*given.get("run", []), *(Run(name) for name in named)]
    if peers:
        from mapmrf.bench.peers import installed

        runs += [Run(f"peer:{name}") for name in installed()]
    return runs


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
    found = [model for which in sets for model in of_set(which, data)]
    if sets and not found:
        complain("none of the paper's models are there (see `mapmrf datasets`): look-alikes take their place")
        found = [model for which in sets for model in like_set(which)]
    return own + found


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
    return INTERRUPTED if summary.interrupted else 0


@main.command()
@click.argument("records", nargs=-1, required=True, metavar="RECORDS...")
@click.option("--output", "-o", metavar="FILE", help="report.html, or tables as .md, .tex, .txt or .csv.")
@click.option("--title", default="mapmrf benchmark", show_default=True, help="Heading of the page.")
def report(records: Sequence[str], output: str | None, title: str) -> None:
    """Turn RECORDS into tables and a page.

    Without --output the tables are printed.
    """
    check_outputs(output)
    from mapmrf.bench.forms import SUFFIXES, write_tables
    from mapmrf.bench.records import read_records

    found = read_records(*records)
    if not found:
        raise OptionError(f"{', '.join(records)}: no records")
    if output is None:
        click.echo(write_tables(found, "text"))
        return
    form = next((form for form, suffix in SUFFIXES.items() if output.endswith(suffix)), None)
    from mapmrf.formats.files import write_bytes

    if form is not None:
        write_bytes(output, (write_tables(found, form) + "\n").encode())
    elif output.endswith((".html", ".htm")):
        from mapmrf.bench.report import build_report

        write_bytes(output, build_report(found, title).encode())
    else:
        raise OptionError(f"{output}: expected a name that ends in .html, {', '.join(SUFFIXES.values())}")
