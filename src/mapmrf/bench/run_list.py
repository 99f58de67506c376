"""The runs of a benchmark: methods x models x seeds, from the command line or a TOML plan."""

from __future__ import annotations

import hashlib
import json
import math
import tomllib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mapmrf.bench.models import ModelRef
from mapmrf.errors import OptionError
from mapmrf.registry import make_method

PEER = "peer:"
"""Prefix of other packages among the names of the methods."""
TIME_LIMIT = 60.0
"""Default time limit of a run in seconds."""


@dataclass(frozen=True)
class MethodConfig:
    """A method with its options, and its name in the tables."""

    method: str
    options: Mapping[str, Any] = field(default_factory=dict)
    name: str = ""

    def __post_init__(self) -> None:
        if not self.name:
            given = " ".join(f"{key}={value}" for key, value in self.options.items())
            object.__setattr__(self, "name", f"{self.method} {given}".strip())
        if self.is_peer:
            _check_peer(self.peer, self.options)
            return
        try:  # a bad option is an error now, not when its turn comes
            make_method(self.method, dict(self.options))
        except TypeError as error:
            raise OptionError(f"{self.method}: an option is of the wrong type: {error}") from None

    @property
    def is_peer(self) -> bool:
        """Whether this is another package."""
        return self.method.startswith(PEER)

    @property
    def peer(self) -> str:
        """The name of the package's adapter."""
        return self.method.removeprefix(PEER)


def _check_peer(name: str, options: Mapping[str, Any]) -> None:
    from mapmrf.bench.peers import names

    if name not in names():
        raise OptionError(f"no peer is named {name!r}; known: {', '.join(names())}")
    if options:
        raise OptionError(f"{PEER}{name} has no options, found {', '.join(options)}")


@dataclass(frozen=True)
class BenchTask:
    """One run of a benchmark."""

    model: ModelRef
    run: MethodConfig
    seed: int
    time_limit: float

    @property
    def key(self) -> str:
        """Identifies the run, whatever else the list holds and wherever the model file is."""
        parts = {"model": self.model.identity, "method": self.run.method, "options": dict(self.run.options)}
        text = json.dumps({**parts, "seed": self.seed, "time_limit": self.time_limit}, sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def fields(self) -> dict[str, Any]:
        """The fields of a record that describe its task."""
        return {
            "key": self.key,
            "set": self.model.set,
            "index": self.model.index,
            "best": self.model.best,
            "checksum": self.model.checksum,
            "model": self.model.name,
            "run": self.run.name,
            "method": self.run.method,
            "given": dict(self.run.options),
            "seed": self.seed,
            "time_limit": self.time_limit,
        }


@dataclass(frozen=True)
class RunList:
    """All tasks of a benchmark: every method on every model with every seed, model by model."""

    runs: Sequence[MethodConfig]
    models: Sequence[ModelRef]
    seeds: Sequence[int] = (0,)
    time_limit: float = TIME_LIMIT

    def __post_init__(self) -> None:
        repeated = [name for name, count in Counter(run.name for run in self.runs).items() if count > 1]
        if len({(run.method, str(run.options)) for run in self.runs if run.name in repeated}) > len(repeated):
            raise OptionError(f"two different runs are named {repeated[0]!r}")
        if not (math.isfinite(self.time_limit) and self.time_limit >= 0):
            raise OptionError(f"time_limit is {self.time_limit}, expected a number of seconds of at least 0")
        for seed in self.seeds:
            if isinstance(seed, bool) or seed < 0:
                raise OptionError(f"a seed is {seed}, expected a whole number of at least 0")

    def tasks(self) -> list[BenchTask]:
        """The tasks in the order of execution, without duplicates."""
        found = (
            BenchTask(model, run, seed, self.time_limit)
            for model in self.models
            for run in self.runs
            for seed in self.seeds
        )
        return list({task.key: task for task in found}.values())


_KEYS = {"sets", "models", "methods", "run", "seeds", "time_limit"}


def read_plan(path: str | Path) -> dict[str, Any]:
    """Read a TOML plan, with `run` as MethodConfig objects.

    Raises
    ------
    OptionError
        If it is not TOML, or has an unknown key or a value of the wrong type.
    """
    try:
        data = tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise OptionError(f"{path}: {error}") from None
    for key in data:
        if key not in _KEYS:
            raise OptionError(f"{path}: found {key!r}, expected one of {', '.join(sorted(_KEYS))}")
    for key, kind in (("sets", str), ("models", str), ("methods", str), ("run", dict), ("seeds", int)):
        items = data.get(key, [])
        if not isinstance(items, list) or not all(isinstance(item, kind) for item in items):
            raise OptionError(f"{path}: {key} is {items!r}, expected a list of {kind.__name__}")
    if not isinstance(data.get("time_limit", 0.0), int | float):
        raise OptionError(f"{path}: time_limit is {data['time_limit']!r}, expected a number of seconds")
    data["run"] = list(_runs(path, data.get("run", [])))
    return data


def _runs(path: str | Path, tables: Iterable[dict[str, Any]]) -> Iterable[MethodConfig]:
    for table in tables:
        unknown = set(table) - {"method", "options", "name"}
        if unknown or not isinstance(table.get("method"), str) or not isinstance(table.get("options", {}), dict):
            raise OptionError(f"{path}: a run is {table!r}, expected method and optionally options and name")
        yield MethodConfig(table["method"], table.get("options", {}), str(table.get("name", "")))
