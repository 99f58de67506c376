"""Run an experiment of `experiments.toml` and print its table in Markdown: models x runs x limits -> figures.

    python benches/run.py --list                               # all experiments, a line each
    python benches/run.py auto --models grids/80x80 --time-limit 30 --seeds 0 1 2
    python benches/run.py constraints --runs auto cpsat --each 2
    python benches/run.py proofs --against ../before/src       # the same with the sources of another checkout
    python benches/run.py lslp_everywhere --models structures/triples families/dbn --runs lslp bp --best best.csv
    python benches/run.py speed --quick                        # tiny models and limits, to see that it works

A set of models is one of the paper (grids, protein, seg-2, ...), a folder of the data (other, families, maxcut, ...), a
generated family or a group of them; `grids/80x80` are the models of a set whose names contain this, `scene#10` the
first ten, `scene%4` every fourth.

Every run is made once before it is timed, on a small model where there is one, so that kernels are loaded. Of several
repeats the least times count. A run that a method or package does not support is left out. Progress goes to standard
error, the table is printed at the end, also after an interrupt.
"""

from __future__ import annotations

import argparse
import contextlib
import csv
import functools
import itertools
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
import tomllib
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import mapmrf
import models
from mapmrf import datasets
from mapmrf.datasets.catalogue import model_figure
from mapmrf.errors import MapMRFError
from rivals import RIVALS
from runners import RUNNERS, Record, Task

REACHED = 1e-7
"""Relative difference to the best known value that counts as none: reference values are rounded."""
TIMES = ("seconds", "processor s", "busiest thread s", "proof s", "build s", "ms per iteration", "ns per factor")
"""Figures of which the least of several repeats counts."""
FORMATS = {
    **dict.fromkeys(("value", "bound", "relaxed", "best known"), ".4f"),
    **{"paper": ".1f", "paper's LS-LP": ".1f", "kB": ".0f"},
}
"""How figures are written; others with four significant digits, seconds and percent with three decimals."""
AGGREGATES = {"mean": statistics.fmean, "median": statistics.median, "least": min, "largest": max, "all": len}


@dataclass(frozen=True)
class Experiment:
    """A line of the table of experiments; see the head of `experiments.toml`."""

    about: str
    models: Sequence[str] = ("grid4",)
    runs: dict[str, dict[str, Any]] = field(default_factory=dict)
    methods: Sequence[str] = ()
    common: dict[str, Any] = field(default_factory=dict)
    variants: dict[str, dict[str, Any]] = field(default_factory=lambda: {"": {}})
    figures: Sequence[str] = ()
    summary: Sequence[str] = ()
    rows: Sequence[str] = ("model", "run")
    columns: str = ""
    ratio: Sequence[str] = ()
    time_limit: float | None = None
    processor_limit: float | None = None
    seeds: Sequence[int] = (0,)
    each: int = 1
    repeats: int = 1
    scale: float = 1.0
    apart: bool = False
    unless_proven: float = 0.0
    data: str | None = None

    def all_runs(self) -> Iterator[tuple[str, str, dict[str, Any]]]:
        methods = sorted(mapmrf.methods()) if self.methods == ["all"] else self.methods
        named = {method: {"method": method} for method in methods} | self.runs
        for (title, run), (variant, more) in itertools.product(named.items(), self.variants.items()):
            yield title, variant, {**self.common, **run, **more}


@dataclass(frozen=True)
class Case:
    model: models.Model
    run: str
    variant: str
    record: Record

    def key(self, name: str) -> str:
        return {"model": self.model.name, "set": self.model.group, "run": self.run, "variant": self.variant}[name]


def experiments() -> dict[str, Experiment]:
    with Path(__file__).with_name("experiments.toml").open("rb") as file:
        return {name: Experiment(**entry) for name, entry in tomllib.load(file).items()}


# -- running ----------------------------------------------------------------------------------------------------------


def run_all(experiment: Experiment) -> Iterator[Case]:
    warm: set[tuple[str, ...]] = set()
    names = ("data", "each", "scale", "time_limit", "processor_limit")
    with tempfile.TemporaryDirectory() as folder:
        shared = {"folder": folder, **{name: getattr(experiment, name) for name in names}}
        chosen = ((s, model) for s in experiment.models for model in models.select(s, experiment.data, experiment.each))
        for selector, model in chosen:
            first = None
            for (title, variant, run), seed in itertools.product(list(experiment.all_runs()), experiment.seeds):
                if first and first.get("proven") and first["trace"][-1][0] <= experiment.unless_proven:
                    break
                name = ", ".join(filter(None, (model.name, title, variant)))
                request = {"selector": selector, "model": model.name, "run": run, "seed": seed, **shared}
                kind = (model.group, title, variant)
                try:
                    record = run_one(experiment, model, request, kind not in warm)
                except MapMRFError as error:
                    print(f"{name}: {error}", file=sys.stderr, flush=True)
                    continue
                warm.add(kind)
                first = first or record
                known = {**derived(record, model, run), "as good as the first after": reached(record, first["value"])}
                case = Case(model, title, variant, known)
                told = ("value", *experiment.figures[:4])
                shown = ", ".join(f"{key} {cell(figure([case], key), key)}" for key in told)
                print(f"{name}: {shown}", file=sys.stderr, flush=True)
                yield case


def run_one(experiment: Experiment, model: models.Model, request: dict[str, Any], cold: bool) -> Record:
    """The record of a run, with the least times of several repeats."""
    repeats, apart = range(experiment.repeats), experiment.apart or "env" in request["run"]
    records = [run_apart(request) if apart else run_here(request, model, cold and k == 0) for k in repeats]
    least = {name: min(record[name] for record in records) for name in TIMES if name in records[-1]}
    return {"value": math.nan, **records[-1], **least}


def run_here(request: dict[str, Any], model: models.Model, cold: bool) -> Record:
    """The record of a run; if it is cold, a short one on a small model of the same kind loads kernels before."""
    name = request["run"].get("run", "solve")
    options = {key: value for key, value in request["run"].items() if key not in ("run", "env")}
    run = functools.partial((RUNNERS | RIVALS)[name], **options)
    task = Task(model, *(request[limit] for limit in ("scale", "seed", "time_limit", "processor_limit")))
    if cold and name in ("solve", "image_method", "peer", "cpsat", "toulbar2"):
        run(replace(task, scale=min(task.scale, 0.003), time_limit=1.0, processor_limit=None))
    return {**run(task), "variables": task.graph.n_vars, "factors": task.graph.n_factors}


def run_apart(request: dict[str, Any]) -> Record:
    """The same in a fresh process, in the environment of the run; `{folder}` there is a temporary folder."""
    from mapmrf.compilation.store import baseline

    shipped = baseline()
    known = {"folder": request["folder"], "baseline": "generic" if shipped is None else shipped.cpu}
    settings = {key: text.format(**known) for key, text in request["run"].get("env", {}).items()}
    command, env = [sys.executable, __file__, "--child"], {**os.environ, **settings}
    done = subprocess.run(command, input=json.dumps(request), env=env, capture_output=True, text=True)
    if done.returncode != 0:
        raise MapMRFError((done.stderr.strip().splitlines() or ["the process died"])[-1])
    return json.loads(done.stdout.splitlines()[-1])


def derived(record: Record, model: models.Model, run: dict[str, Any]) -> Record:
    """The record with what follows from it and from what is known of the model."""
    best, trace = model.best, record.get("trace", [])
    value, bound, iterations = record["value"], record.get("bound"), record.get("iterations")
    known = {"best known": best, "known as": model.known_as}
    for title, method in (("paper", run.get("method", "lslp")), ("paper's LS-LP", "lslp")):
        figure = model_figure(model.group, model.name, method) if model.group in datasets.sets() else None
        known[title] = math.nan if figure is None else figure
    known |= {"percent": percent(value, best), "bound, percent": percent(bound, best), "exact value": f"{value:.9f}"}
    known["optimum"] = abs(value - best) < max(REACHED * abs(best), 1e-3)
    known["valid"] = record.get("kind") == "valid"
    known["paper is above the bound"] = bool(known["paper's LS-LP"] - 0.05 > (math.inf if bound is None else bound))
    for seconds in (1, 5, 10):
        early = max((point[1] for point in trace if point[0] <= seconds), default=math.nan)
        known |= {f"after {seconds} s": early, f"percent after {seconds} s": percent(early, best)}
    known["found after"] = reached(record, best)
    known["by"] = next((phase for time, _, phase in trace if time == known["found after"]), "")
    if "processor s" in record:
        known["processor us per variable"] = 1e6 * record["processor s"] / max(1, record["variables"])
    if iterations and "seconds" in record:
        known["ns per factor and iteration"] = 1e9 * record["seconds"] / iterations / max(1, record["factors"])
    return {**known, **record}


def reached(record: Record, value: float) -> float:
    """Seconds after which a run had a labelling of at least this value, or nan."""
    least = value - max(REACHED * abs(value), 6e-5)
    return min((point[0] for point in record.get("trace", []) if point[1] >= least), default=math.nan)


def percent(value: float | None, best: float) -> float:
    """A value in percent of the best known one; for negative values by the same relative distance."""
    if value is None or not math.isfinite(value) or math.isnan(best):
        return math.nan
    return 100 + 100 * (value - best) / max(abs(best), 1e-9)


# -- tables -----------------------------------------------------------------------------------------------------------


def figure(cases: list[Case], name: str) -> Any:
    """A figure of one case, or of several: `median seconds`, `least percent`; by default the mean or the median."""
    first, _, rest = name.partition(" ")
    how, key = (first, rest) if first in AGGREGATES and rest else ("", name)
    found = [case.record[key] for case in cases if case.record.get(key) is not None]
    if how == "all":
        return f"{len(found)}"
    if not found:
        return None
    if all(isinstance(value, bool) for value in found):
        return f"{sum(found)}/{len(found)}" if len(cases) > 1 else "yes" if found[0] else "no"
    if isinstance(found[0], str):
        counts = {value: found.count(value) for value in found}
        return found[0] if len(counts) == 1 else ", ".join(f"{n} {value}" for value, n in counts.items())
    return AGGREGATES[how or ("median" if key in (*TIMES, "iterations") else "mean")](found)


def cell(value: Any, name: str) -> str:
    if value is None or value != value:
        return ""
    if value in (math.inf, -math.inf):
        return "-"
    key = name.split(" ", 1)[1] if name.split(" ")[0] in AGGREGATES else name
    form = FORMATS.get(key, ".3f" if key.endswith((" s", "seconds", "percent", "after")) else ".4g")
    return f"{value:{form}}" if isinstance(value, float) else str(value)


def table(
    cases: list[Case], rows: Sequence[str], figures: Sequence[str], columns: str = "", ratio: Sequence[str] = ()
) -> Iterator[str]:
    """The lines of a table: a row for every model, set or run, and the figures of all, or of each, in columns."""
    across = list(dict.fromkeys(case.key(columns) for case in cases)) if columns else [""]
    named = len(figures) > 1 or not columns
    titles = [": ".join(filter(None, (one, name if named else ""))) for one in across for name in figures]
    ratio = ratio if set(ratio) <= set(across) else ()
    head = [*rows, *titles, *(["ratio"] if ratio else [])]
    yield f"| {' | '.join(head)} |\n|{'---|' * len(rows)}{'---:|' * (len(head) - len(rows))}"
    ratios = []
    for key in dict.fromkeys(tuple(case.key(name) for name in rows) for case in cases):
        mine = [case for case in cases if tuple(case.key(name) for name in rows) == key]
        parts = {one: [case for case in mine if not columns or case.key(columns) == one] for one in across}
        cells = [cell(figure(parts[one], name), name) for one in across for name in figures]
        if ratio:
            low, high = (figure(parts[one], figures[0]) for one in ratio)
            known = all(isinstance(x, int | float) and 0 < x < math.inf for x in (low, high))
            cells.append(f"{high / low:.2f}" if known else "")
            ratios += [high / low] if known else []
        yield f"| {' | '.join([*key, *cells])} |"
    if ratios:
        mean, span = statistics.geometric_mean(ratios), f"{min(ratios):.2f} to {max(ratios):.2f}"
        yield f"\n{ratio[1]} / {ratio[0]}: geometric mean {mean:.2f}, from {span}"


def add_shares(cases: list[Case], path: Path | None) -> None:
    """Add values in percent of the best of the model: the best here, and in earlier calls that kept it in the file."""
    kept = path.read_text().splitlines() if path and path.exists() else []
    best = {name: float(value) for name, value in csv.reader(kept)}
    for case in cases:
        best[case.model.name] = max(best.get(case.model.name, -math.inf), case.record["value"])
    for case in cases:
        case.record["percent of the best"] = percent(case.record["value"], best[case.model.name])
    if path:
        with path.open("w", newline="") as file:
            csv.writer(file).writerows(best.items())


# -- the command ------------------------------------------------------------------------------------------------------


def chosen(experiment: Experiment, given: argparse.Namespace) -> Experiment:
    names = ("models", "figures", "time_limit", "processor_limit", "seeds", "each", "repeats", "scale", "data")
    asked = {name: getattr(given, name) for name in names if getattr(given, name) is not None}
    found = replace(experiment, **asked)
    if given.runs:
        known = {title: run for title, _, run in replace(found, common={}, variants={"": {}}).all_runs()}
        runs = {name: known.get(name, {"method": name}) for name in given.runs}
        found = replace(found, runs=runs, methods=())
    found = replace(found, common={**found.common, **dict(given.set)})
    if given.against:
        both = {"before": {"env": {"PYTHONPATH": str(given.against.resolve())}}, "after": {"env": {}}}
        shown = {"rows": ("model", "run"), "columns": "variant", "ratio": tuple(both)}
        found = replace(found, variants=both, figures=("processor s", "seconds", "value"), **shown)
    return quick(found) if given.quick else found


def setting(text: str) -> tuple[str, Any]:
    key, _, value = text.partition("=")
    with contextlib.suppress(json.JSONDecodeError):
        return key, json.loads(value)
    return key, value


def quick(experiment: Experiment) -> Experiment:
    shorter = {"iterations": [2, 6], "repeats": 1}
    runs = {title: {**run, **(shorter if "iterations" in run else {})} for title, _, run in experiment.all_runs()}
    limits = {name: 0.3 for name in ("time_limit", "processor_limit") if getattr(experiment, name) is not None}
    small = {"each": 1, "repeats": 1, "scale": 0.001, "seeds": experiment.seeds[:1]}
    return replace(experiment, runs=runs, methods=(), **small, **limits)


def main(words: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="EXPERIMENT")
    parser.add_argument("--list", action="store_true", help="list all experiments")
    parser.add_argument("--models", nargs="+", help="sets, folders or generated families, instead of the table's")
    parser.add_argument("--runs", nargs="+", help="only these runs; other names are methods with their defaults")
    parser.add_argument("--figures", nargs="+", help="columns of the table")
    parser.add_argument("--set", nargs="+", type=setting, default=[], metavar="KEY=VALUE", help="options for all runs")
    parser.add_argument("--time-limit", type=float, metavar="S", help="seconds of a run")
    parser.add_argument("--processor-limit", type=float, metavar="S", help="processor seconds of a run")
    parser.add_argument("--seeds", nargs="+", type=int, help="seeds of every run")
    parser.add_argument("--each", type=int, metavar="N", help="models of every generated family")
    parser.add_argument("--repeats", type=int, metavar="N", help="repeats of a run, the least times count")
    parser.add_argument("--scale", type=float, help="share of the size of generated models")
    parser.add_argument("--data", help="folder of the benchmark models")
    parser.add_argument("--against", type=Path, metavar="SRC", help="folder `src` of other sources, run in turn")
    parser.add_argument("--best", type=Path, metavar="FILE", help="keeps the best values, over several calls")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also append every record as a line of JSON")
    parser.add_argument("--quick", action="store_true", help="tiny models and limits")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args(words)
    warnings.simplefilter("ignore")
    known = experiments()
    if given.child:  # serves one request of `run_apart`
        request = json.loads(sys.stdin.read())
        found = models.select(request["selector"], request["data"], request["each"])
        print(json.dumps(run_here(request, next(one for one in found if one.name == request["model"]), cold=True)))
    elif given.list or not given.names:
        print("\n".join(f"{name:20} {entry.about}" for name, entry in known.items()))
    for name in given.names:
        if name not in known:
            parser.error(f"no experiment is called {name!r}: see --list")
        experiment, cases = chosen(known[name], given), []
        try:
            for case in run_all(experiment):
                cases.append(case)
                if given.json:
                    line = {"experiment": name, "model": case.model.name, "run": case.run, "variant": case.variant}
                    with given.json.open("a") as file:
                        print(json.dumps({**line, **case.record}), file=file)
        except KeyboardInterrupt:
            print("interrupted: the table is of what is done", file=sys.stderr)
        add_shares(cases, given.best)
        if cases:
            print("\n".join(table(cases, experiment.rows, experiment.figures, experiment.columns, experiment.ratio)))
        if cases and experiment.summary:
            print("\n" + "\n".join(table(cases, ["set", "run"], experiment.summary)))


if __name__ == "__main__":
    main()
