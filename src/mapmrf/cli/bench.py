"""Commands of the benchmark: `bench` runs methods and writes records, `report` turns records into tables or a page."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from mapmrf import cli
from mapmrf.cli import Exit, check_outputs, complain, force_option, main
from mapmrf.errors import OptionError, suggestion

if TYPE_CHECKING:
    from mapmrf.bench.run_list import MethodConfig, ModelRef, RunList

EVERY_PEER = "peers"
QUICK_MODELS = {"seg-2": (2, 1.0), "seg-21": (1, 0.5), "scene": (1, 1.0), "grids": (2, 1.0), "protein": (1, 0.05)}
"""Look-alikes of `--quick`: number of each family, and scale."""


def _names(context: click.Context, parameter: click.Parameter, text: str | None) -> list[str] | None:
    return None if text is None else [name.strip() for name in text.split(",") if name.strip()]


@main.command()
@click.argument("models", nargs=-1, metavar="[MODEL]...")
@click.option("--output", "-o", metavar="FILE.jsonl", required=True, help="File of records, created or resumed.")
@click.option("--plan", metavar="FILE.toml", help="Benchmark plan; other options override it.")
@click.option("--quick", is_flag=True, help="Run all methods on a few small look-alikes, two seconds each.")
@click.option("--data", metavar="DIR", help="Folder with the paper's models.")
@click.option("--sets", callback=_names, metavar="A,B", help="Model sets of the paper; by default all.")
@click.option("--methods", callback=_names, metavar="A,B", help="Methods; by default those of the paper and `auto`.")
@click.option("--peers", is_flag=True, help="Also run other installed packages; --methods peers runs only these.")
@click.option("--seeds", callback=_names, metavar="0,1", help="Random seeds.")
@cli.time_option
@cli.evidence_option
@cli.jobs_option
@click.option("--retry", is_flag=True, help="Repeat runs that failed.")
@cli.memory_option("Memory for program, model and run, such as 2G.")
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
    evidence: str | None,
    jobs: int | None,
    retry: bool,
) -> int:
    """Run methods on models and record every run.

    MODEL may also be a folder of models, or a pattern such as 'models/*.uai'. Limits apply to each run. Without a
    MODEL, those of the paper's models that are present are used, or look-alikes if there are none.
    Repeat the same command to resume a benchmark that was stopped.
    """
    check_outputs(output)
    from mapmrf.bench.run_list import TIME_LIMIT, RunList, read_plan

    given: dict[str, Any] = {} if plan is None else read_plan(plan)
    try:
        numbers = [int(text) for text in seeds or []]
    except ValueError:
        raise OptionError(f"--seeds: found {','.join(seeds or [])!r}, expected whole numbers such as 0,1,2") from None
    override: dict[str, Any] = {"models": cli.expanded(models), "sets": sets, "methods": methods, "seeds": numbers}
    override |= {"evidence": evidence}
    given |= {key: value for key, value in override.items() if value}
    given |= {} if time_limit is None else {"time_limit": time_limit}
    seconds = float(given.get("time_limit", 2.0 if quick else TIME_LIMIT))
    runs = _runs(given, peers)
    limit = cli.memory_limit()
    refs = [replace(model, memory_limit=limit).given(given.get("evidence")) for model in _models(given, quick, data)]
    run_list = RunList(runs, refs, given.get("seeds") or (0,), seconds)
    return _bench(run_list, output, jobs or os.cpu_count() or 1, retry)


def _runs(given: dict[str, Any], peers: bool) -> list[MethodConfig]:
    """The methods to run; the name `peers` stands for all other packages that are installed."""
    from mapmrf.bench.peers import advice, installed, missing
    from mapmrf.bench.run_list import PEER, MethodConfig
    from mapmrf.datasets.catalogue import COLUMNS
    from mapmrf.run.registry import DEFAULT_METHOD

    named = given.get("methods", [] if given.get("run") else [*COLUMNS, DEFAULT_METHOD])
    asked = [name for name in dict.fromkeys(named) if name != EVERY_PEER]
    runs = [*given.get("run", []), *(MethodConfig(name) for name in asked)]
    if absent := [run.peer for run in runs if run.is_peer and run.peer in missing()]:
        raise OptionError(advice(absent))  # before the first run
    if peers or EVERY_PEER in named:
        absent = missing()
        if not runs and not installed():
            raise OptionError(f"no other package is installed: {advice(absent)}")
        if absent:
            complain(f"other packages {advice(absent)}")
        runs += [MethodConfig(f"{PEER}{name}") for name in installed() if f"{PEER}{name}" not in asked]
    return runs


def _models(given: dict[str, Any], quick: bool, data: str | None) -> list[ModelRef]:
    """The user's files, or the paper's models, or look-alikes if requested or if nothing else is present."""
    from mapmrf.bench.run_list import from_files, like_set, of_set
    from mapmrf.datasets.catalogue import SETS

    sets = given.get("sets", [] if given.get("models") else list(SETS))
    for name in sets:
        if name not in SETS:
            raise OptionError(f"sets: found {name!r}, expected some of {', '.join(SETS)}{suggestion(name, SETS)}")
    if data is not None and not os.path.isdir(data):
        raise OptionError(f"--data: {data} is not a folder")
    own = from_files(given.get("models", []))
    if quick:
        return own + [model for which in sets for model in like_set(which, *QUICK_MODELS[which])]
    found = {which: of_set(which, data) for which in sets}
    absent = [which for which, models in found.items() if not models]
    if sets and len(absent) == len(sets):
        complain("none of the paper's models are present (see `mapmrf datasets`): using look-alikes instead")
        return own + [model for which in sets for model in like_set(which)]
    if absent:
        complain(f"no model of {', '.join(absent)} is present (see `mapmrf datasets`)")
    return own + [model for models in found.values() for model in models]


def _bench(runs: RunList, output: str, jobs: int, retry: bool) -> int:
    from mapmrf.bench.runner import RunLimits, run_all

    limits = RunLimits(cli.memory_limit())
    summary = run_all(runs.tasks(), output, jobs=jobs, limits=limits, retry=retry, progress=True)
    left = summary.planned - summary.before - summary.done
    counts = f"{summary.done} runs recorded, {summary.before} done before, {left} left of {summary.planned}"
    click.echo(f"{output}: {counts}")
    if lost := sorted(summary.troubles.items()):
        click.echo("not done: " + ", ".join(f"{count} {outcome}" for outcome, count in lost))
    if summary.interrupted:
        complain("interrupted; repeat the command to resume")
        return Exit.INTERRUPTED
    click.echo(f"next: mapmrf report {shlex.quote(output)} --output report.html")
    return 0


@main.command()
@click.argument("records", nargs=-1, required=True, metavar="RECORDS...")
@click.option(
    "--output",
    "-o",
    metavar="FILE",
    help="Page (.html), tables (.md, .tex, .txt), or one CSV file per table (.csv or a folder).",
)
@click.option("--tables", "wanted", callback=_names, metavar="A,B", help="Only these tables; * and ? are wildcards.")
@click.option("--figures", metavar="DIR", help="Folder for every figure as SVG and PDF.")
@click.option("--title", default="mapmrf benchmark", show_default=True, help="Title of the page.")
@force_option
def report(
    records: Sequence[str], output: str | None, wanted: list[str] | None, figures: str | None, title: str
) -> None:
    """Turn RECORDS into tables, figures or a page.

    Without --output and --figures, the tables are printed. CSV output has one file per table: NAME-TABLE.csv for
    NAME.csv, unless --tables selects a single table, and TABLE.csv in a folder.
    """
    from mapmrf.bench import Records, render

    if figures is not None and os.path.exists(figures) and not os.path.isdir(figures):
        raise OptionError(f"--figures: {figures} is not a folder")
    if output is not None and not render.is_folder(output):
        render.check_suffix(output)
        if output.endswith(render.PAGES) and wanted is not None:
            raise OptionError("--tables cannot be combined with --output FILE.html: the page contains all tables")
        check_outputs(output)
    found = Records.read(*records)
    if not len(found):
        raise OptionError(f"{', '.join(records)}: no records")
    if figures is not None:
        click.echo(f"{len(found.figures(figures))} files in {figures}")
        if output is None:
            return
    if output is not None and output.endswith(render.PAGES):
        found.report(output, title)
        return
    made = render.choose(found.tables(), wanted)
    if output is None:
        width = shutil.get_terminal_size((render.TEXT_WIDTH, 0)).columns if sys.stdout.isatty() else render.TEXT_WIDTH
        click.echo("\n\n\n".join(render.to_text(table, width) for table in made))
        return
    if not render.is_folder(output):
        check_outputs(*render.rendered(made, output))
    paths = render.write_tables(made, output)
    if len(paths) > 1:
        click.echo(f"{len(paths)} tables: {paths[0]} to {Path(paths[-1]).name}")
