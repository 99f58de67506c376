"""The benchmark as a library: `run` returns `Records`, which provide tables, figures, a page, and data frames."""

from __future__ import annotations

import logging
import math
import os
import tempfile
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, overload

import numpy as np

from mapmrf.bench.groups import group, run_namer
from mapmrf.bench.records import TRACE_COLUMNS, Record, read_records
from mapmrf.bench.render import PAGES, Table, write_tables
from mapmrf.bench.run_list import TIME_LIMIT, Evidence, MethodConfig, ModelRef, RunList, from_files, from_graph
from mapmrf.bench.runner import RunLimits, run_all
from mapmrf.bench.tables import tables
from mapmrf.errors import OptionError, needed
from mapmrf.formats.files import AnyPath, write_bytes
from mapmrf.model.graph import FactorGraph
from mapmrf.model.memory import byte_count
from mapmrf.plots.display import check_rows
from mapmrf.run.method import Method

log = logging.getLogger("mapmrf")

AnyMethod = str | Method | type[Method]
AnyModel = FactorGraph | AnyPath | tuple[str, FactorGraph]

FIGURES = (
    "value", "bound", "gap", "relaxed_value", "best", "iterations", "runtime", "compile_time", "setup_time",
    "peak_memory", "uniform", "fractional",
)  # fmt: skip
"""Numeric fields of a record."""
TEXTS = ("status", "kind", "outcome", "message")
NESTED = ("trace", "labels", "options", "details", "given", "shape")
"""Fields that are not columns of a table of runs; each given option is a column."""


def run(
    methods: AnyMethod | Sequence[AnyMethod] | Mapping[str, AnyMethod],
    models: AnyModel | Sequence[AnyModel] | Mapping[str, FactorGraph | AnyPath],
    *,
    seeds: Sequence[int] = (0,),
    time_limit: float = TIME_LIMIT,
    jobs: int = 1,
    memory_limit: float | str | None = None,
    evidence: Evidence | None = None,
    output: AnyPath | None = None,
    progress: bool = False,
) -> Records:
    """Run every method on every model with every seed, each run in a worker process, and record it.

    As `mapmrf bench` does: a run that crashes, needs too much memory or ignores its time limit is recorded as such, and
    kernels are compiled before the clock starts. Ctrl-C ends the benchmark and returns the records so far.

    Parameters
    ----------
    methods
        Names (``"lslp"``, ``"my_file.py:Greedy"``, ``"peer:cpsat"``), classes derived from `mapmrf.Method`, or objects
        of these such as ``mapmrf.LSLP(rho=0.1)``; or a dict with custom names for the tables.
    models
        Model files, graphs, or pairs of a name and a graph; or a dict by name.
    seeds
        Random seeds.
    time_limit
        Seconds per run.
    jobs
        Number of runs in parallel. Times are comparable only if there is a core for each.
    memory_limit
        Memory for program, model and run in bytes, or as a string such as ``"2G"``.
    evidence
        Observed variables of every model, as in `mapmrf.solve`.
    output
        File of records, created or resumed: runs that it contains are not repeated. By default nothing is kept on disk.
    progress
        Show a progress bar, if standard error is a terminal.

    Raises
    ------
    OptionError
        If there is no such method, option or file, or two models or runs have the same name.

    Examples
    --------
    >>> import mapmrf
    >>> from mapmrf.datasets import grid
    >>> models = {"weak": grid(4, 4, coupling=0.5), "strong": grid(4, 4, coupling=2.0)}
    >>> records = mapmrf.bench.run({"plain": "icm", "many starts": mapmrf.ICM(starts=20)}, models, time_limit=5)
    >>> [(record["model"], record["run"]) for record in records][:2]
    [('weak', 'plain'), ('weak', 'many starts')]
    >>> records.table("own-logpot").to_pandas()["model"].tolist()
    ['strong', 'weak']
    """
    runs = [MethodConfig.of(method, name) for name, method in _named(methods)]
    if not runs:
        raise OptionError("methods: found none, expected at least one")
    with tempfile.TemporaryDirectory(prefix="mapmrf-bench-") as folder:
        limit = byte_count(memory_limit)
        refs = [replace(model, memory_limit=limit).given(evidence) for model in _models(models, folder)]
        tasks = RunList(runs, refs, tuple(seeds), float(time_limit)).tasks()
        path = Path(folder, "records.jsonl") if output is None else Path(output)
        summary = run_all(tasks, path, jobs=jobs, limits=RunLimits(limit), progress=progress)
        if summary.interrupted:
            log.warning("interrupted: %d of %d runs are recorded", summary.before + summary.done, summary.planned)
        keys = [task.key for task in tasks]
        found = {record["key"]: record for record in read_records(path)}
        return Records(found[key] for key in keys if key in found)


def _named(given: Any) -> list[tuple[str, Any]]:
    """Names (empty if not given) and items of a dict, a list or a single item."""
    if isinstance(given, Mapping):
        return [(str(name), thing) for name, thing in given.items()]
    return [("", thing) for thing in ([given] if isinstance(given, str | Method | type) else given)]


def _models(given: Any, folder: str) -> list[ModelRef]:
    """References to models in the order given; those in memory are written to the folder, and numbered if unnamed."""

    def is_pair(thing: Any) -> bool:
        return isinstance(thing, tuple) and len(thing) == 2 and isinstance(thing[0], str) and not is_path(thing[1])

    def is_path(thing: Any) -> bool:
        return isinstance(thing, str | os.PathLike)

    entries = [given] if is_path(given) or isinstance(given, FactorGraph) or is_pair(given) else given
    if isinstance(entries, Mapping):
        pairs = [(str(name), one) for name, one in entries.items()]
    else:
        pairs = [one if is_pair(one) else ("", one) for one in entries]
    for _, one in pairs:
        if not isinstance(one, FactorGraph) and not is_path(one):
            raise OptionError(f"models: found {one!r}, expected a file, a FactorGraph, or a name and a FactorGraph")
    files = iter(from_files(one for _, one in pairs if is_path(one)))
    made: dict[str, ModelRef] = {}
    for number, (name, one) in enumerate(pairs, start=1):
        path = Path(folder, f"{number}.pickle")
        model = next(files) if is_path(one) else from_graph(one, name or f"model {number}", path)
        if (name := name or model.name) in made:
            raise OptionError(f"models: two are named {name!r}")
        made[name] = replace(model, name=name)
    if not made:
        raise OptionError("models: found none, expected at least one")
    return list(made.values())


class Records(Sequence[Record]):
    """Finished runs, each a dict; `docs/benchmark.md` lists the fields.

    Parameters
    ----------
    records
        The runs.

    Examples
    --------
    >>> import mapmrf
    >>> from mapmrf.datasets import grid
    >>> records = mapmrf.bench.run(["icm", "trws"], [("grid", grid(4, 4, seed=1))], time_limit=5)
    >>> len(records), records[0]["run"], records[0]["outcome"]
    (2, 'icm', 'done')
    """

    def __init__(self, records: Iterable[Record] = ()) -> None:
        self._records = list(records)

    @classmethod
    def read(cls, *paths: AnyPath) -> Records:
        r"""Read files written by `mapmrf bench` or `run`; the last record of each run is used.

        Examples
        --------
        >>> import json, mapmrf, pathlib, tempfile
        >>> run = {"key": "k", "set": "own", "model": "a", "run": "icm", "method": "icm", "outcome": "error"}
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = pathlib.Path(folder, "records.jsonl")
        ...     _ = path.write_text(json.dumps(run | {"message": "no memory", "time_limit": 5}) + "\n")
        ...     mapmrf.bench.Records.read(path)
        Records(1 run of 1 method on 1 model, 1 not done)
        """
        return cls(read_records(*(Path(path) for path in paths)))

    @overload
    def __getitem__(self, place: int) -> Record: ...

    @overload
    def __getitem__(self, place: slice) -> Records: ...

    def __getitem__(self, place: int | slice) -> Record | Records:
        return Records(self._records[place]) if isinstance(place, slice) else self._records[place]

    def __len__(self) -> int:
        return len(self._records)

    def __add__(self, other: Iterable[Record]) -> Records:
        return Records([*self._records, *other])

    def __repr__(self) -> str:
        runs = len({record["run"] for record in self})
        models = len({(record["set"], record["model"]) for record in self})
        lost = sum(record["outcome"] != "done" for record in self)
        counts = f"{_counted(len(self), 'run')} of {_counted(runs, 'method')} on {_counted(models, 'model')}"
        return f"Records({counts}{f', {lost} not done' if lost else ''})"

    def _repr_html_(self) -> str:
        return self.table()._repr_html_() if any(record["outcome"] == "done" for record in self) else repr(self)

    def tables(self) -> list[Table]:
        """Return all tables.

        Examples
        --------
        >>> import mapmrf
        >>> from mapmrf.datasets import grid
        >>> records = mapmrf.bench.run(["icm", "trws"], grid(4, 4, seed=1), time_limit=5)
        >>> [table.name for table in records.tables()][:3]
        ['datasets', 'own-overview', 'own-logpot']
        """
        return tables(self)

    def table(self, name: str | None = None) -> Table:
        """Return a table by name, by default the overview of all runs.

        Raises
        ------
        OptionError
            If there is no such table.

        Examples
        --------
        >>> import mapmrf
        >>> from mapmrf.datasets import grid
        >>> records = mapmrf.bench.run(["icm", "trws"], {"grid": grid(4, 4, seed=1)}, time_limit=5)
        >>> print(records.table("own-bounds"))
        Own models: upper bounds
        <BLANKLINE>
        no.  model  best known    trws
        ---  -----  ----------  ------
             grid        12.91  13.05*
        """
        made = self.tables()
        sets = [mine.name for mine in group(self)]
        wanted = name or ("all-overview" if len(sets) > 1 else f"{sets[0]}-overview" if sets else "")
        for table in made:
            if table.name == wanted:
                return table
        known = ", ".join(table.name for table in made)
        raise OptionError(f"no table is named {wanted!r}; known: {known or 'none, as there are no records'}")

    def report(self, path: AnyPath, title: str = "mapmrf benchmark") -> None:
        """Write a page (.html), all tables (.md, .tex, .txt), or CSV (NAME.csv or a folder, a file per table).

        Examples
        --------
        >>> import mapmrf, pathlib, tempfile
        >>> from mapmrf.datasets import grid
        >>> records = mapmrf.bench.run(["icm", "trws"], grid(4, 4, seed=1), time_limit=5)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     page = pathlib.Path(folder, "report.html")
        ...     records.report(page)
        ...     page.read_text()[:15]
        '<!doctype html>'
        """
        name = os.fspath(path)
        if name.endswith(PAGES):
            from mapmrf.bench.report import build_report

            write_bytes(name, build_report(self, title).encode())
        else:
            write_tables(self.tables(), name)

    def figures(self, folder: AnyPath, formats: Sequence[str] = ("svg", "pdf")) -> list[Path]:
        """Draw every figure of the page with matplotlib into a folder, in each format; return the files.

        Examples
        --------
        >>> import mapmrf, tempfile
        >>> from mapmrf.datasets import grid
        >>> records = mapmrf.bench.run(["icm", "trws"], {"grid": grid(4, 4, seed=1)}, time_limit=5)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     [path.name for path in records.figures(folder, ["svg"])][0]
        'profile-own.svg'
        """
        from mapmrf.bench.report import write_figures

        return write_figures(self, folder, formats)

    def to_pandas(self, of: Literal["runs", "trace"] = "runs") -> Any:
        """Return a `pandas.DataFrame` with a row per run, or per point of every trace.

        Examples
        --------
        >>> import mapmrf
        >>> from mapmrf.datasets import grid
        >>> records = mapmrf.bench.run("icm", grid(4, 4), seeds=[0, 1], time_limit=5)
        >>> records.to_pandas()[["run", "seed", "status"]].values.tolist()
        [['icm', 0, 'converged'], ['icm', 1, 'converged']]
        """
        check_rows(of, ("runs", "trace"))
        pandas = needed("pandas", "frames")
        if of == "trace":
            keys = ("set", "model", "run", "seed")
            rows = [
                [*({"seed": 0, **record}[key] for key in keys), *row]
                for record in self
                for row in record.get("trace") or []
            ]
            return pandas.DataFrame(rows, columns=[*keys, *TRACE_COLUMNS])
        plain = ({key: value for key, value in record.items() if key not in NESTED} for record in self)
        given = ({f"option {key}": value for key, value in (record.get("given") or {}).items()} for record in self)
        return pandas.DataFrame([row | options for row, options in zip(plain, given, strict=True)])

    def to_xarray(self) -> Any:
        """Return an `xarray.Dataset` of all figures by model, run and seed; nan where missing.

        Examples
        --------
        >>> import mapmrf
        >>> from mapmrf.datasets import grid
        >>> records = mapmrf.bench.run(["icm", "trws"], grid(4, 4, seed=1), seeds=[0, 1], time_limit=5)
        >>> data = records.to_xarray()
        >>> dict(data.sizes), float(data["value"].sel(run="trws", seed=0).max().round(2))
        ({'model': 1, 'run': 2, 'seed': 2}, 12.91)
        """
        xarray = needed("xarray", "frames")
        run_of = run_namer(self)
        n_sets = Counter(model for _, model in {(record["set"], record["model"]) for record in self})

        def model_of(record: Record) -> str:  # with its set if another set has a model of that name
            name: str = record["model"]
            return name if n_sets[name] == 1 else f"{record['set']}/{name}"

        axes = {
            "model": list(dict.fromkeys(map(model_of, self))),
            "run": list(dict.fromkeys(map(run_of, self))),
            "seed": sorted({record.get("seed", 0) for record in self}),
        }
        shape = tuple(map(len, axes.values()))
        data: dict[str, Any] = {name: np.full(shape, math.nan) for name in FIGURES}
        data |= {name: np.full(shape, "", dtype=object) for name in TEXTS}
        for record in self:
            key = (model_of(record), run_of(record), record.get("seed", 0))
            place = tuple(axis.index(one) for axis, one in zip(axes.values(), key, strict=True))
            for name, values in data.items():
                if record.get(name) is not None:
                    values[place] = record[name]
        sets = {model_of(record): record["set"] for record in self}
        coordinates = {**axes, "set": ("model", [sets[name] for name in axes["model"]])}
        return xarray.Dataset({name: (tuple(axes), values) for name, values in data.items()}, coords=coordinates)


def _counted(n: int, noun: str) -> str:
    return f"{n} {noun}{'' if n == 1 else 's'}"
