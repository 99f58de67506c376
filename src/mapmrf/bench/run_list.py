"""The runs of a benchmark: methods x models x seeds, from the command line or a TOML plan."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import importlib
import inspect
import json
import math
import pickle
import tomllib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePath
from typing import Any, cast

from mapmrf.bench.models import ModelRef
from mapmrf.errors import OptionError
from mapmrf.run.method import Method
from mapmrf.run.plugins import is_file_name
from mapmrf.run.registry import checked_class, make_method, method_class, method_names

PEER = "peer:"
"""Prefix of other packages in method names."""
TIME_LIMIT = 60.0
"""Default time limit of a run in seconds."""


@dataclass(frozen=True)
class MethodConfig:
    """A method with its options, and its name in the tables.

    Attributes
    ----------
    method
        Name of the method, of a class in a file (``my_file.py:Greedy``), or of another package (``peer:cpsat``).
    options
        Its options.
    name
        Name of the run in the tables.
    source
        Digest of a custom method's file: after a change of code, it is another run.
    pickled
        The method itself, if a worker could not find it by name.
    """

    method: str
    options: Mapping[str, Any] = field(default_factory=dict)
    name: str = ""
    source: str = ""
    pickled: bytes = b""

    def __post_init__(self) -> None:
        if is_file_name(self.method):
            object.__setattr__(self, "source", _digest(method_class(self.method)))
        if not self.name:
            given = " ".join(f"{key}={value}" for key, value in self.options.items())
            object.__setattr__(self, "name", f"{self.short} {given}".strip())
        if self.is_peer:
            _check_peer(self.peer, self.options)
            return
        try:  # report a bad option now, not when its turn comes
            self.make()
        except TypeError as error:
            raise OptionError(f"{self.method}: an option is of the wrong type: {error}") from None

    @classmethod
    def of(cls, method: str | Method | type[Method], name: str = "") -> MethodConfig:
        """The run of a method given by name, as a class or as an object.

        Examples
        --------
        >>> import mapmrf
        >>> MethodConfig.of(mapmrf.ICM(starts=3)).name, MethodConfig.of(mapmrf.ICM).name
        ('icm starts=3', 'icm')
        """
        if isinstance(method, str):
            return cls(method, name=name)
        if isinstance(method, type) and issubclass(method, Method):
            method = checked_class(method, method.__name__)()
        if not isinstance(method, Method):
            raise OptionError(f"methods: found {method!r}, expected a name, a class derived from Method, or an object")
        kind = checked_class(type(method), type(method).__name__)
        options = _changed(method)
        if (
            kind.name in method_names()
            and method_class(kind.name) is kind
            and make_method(kind.name, options) == method
        ):
            return cls(kind.name, options, name)
        return cls(kind.name, options, name, _digest(kind), _pickled(method))

    def make(self) -> Method:
        """The method with its options."""
        if self.pickled:
            return cast(Method, pickle.loads(self.pickled))
        return make_method(self.method, dict(self.options))

    @property
    def short(self) -> str:
        """The method's name, without the folder of its file: ``my_file.py:Greedy``."""
        if not is_file_name(self.method):
            return self.method
        path, mark, chosen = self.method.rpartition(".py")
        return f"{PurePath(path).name}{mark}{chosen}"

    @property
    def is_peer(self) -> bool:
        """Whether this is another package."""
        return self.method.startswith(PEER)

    @property
    def peer(self) -> str:
        """The name of the package's adapter."""
        return self.method.removeprefix(PEER)


def _changed(method: Method) -> dict[str, Any]:
    """Options of a method that are not the default."""
    items = dataclasses.fields(method)  # type: ignore[arg-type]
    return {
        item.name: getattr(method, item.name)
        for item in items
        if item.init and (item.default is dataclasses.MISSING or getattr(method, item.name) != item.default)
    }


def _digest(cls: type) -> str:
    """Digest of the source of a class: of its file, in a notebook of the class only, otherwise of its name."""
    text = cls.__qualname__
    for thing in (cls, inspect.getmodule(cls)):
        with contextlib.suppress(OSError, TypeError):
            text = inspect.getsource(thing)  # type: ignore[arg-type]
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def _pickled(method: Method) -> bytes:
    """A method as bytes; unlike pickle, cloudpickle also handles classes of a notebook or a script."""
    return bytes(importlib.import_module("cloudpickle").dumps(method))


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
        """Key of the run, independent of the rest of the list and of the location of the model file."""
        parts = {"model": self.model.identity, "method": self.run.short, "options": dict(self.run.options)}
        parts |= {"source": self.run.source} if self.run.source else {}
        text = json.dumps({**parts, "seed": self.seed, "time_limit": self.time_limit}, sort_keys=True, default=str)
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
            "method": self.run.short,
            "source": self.run.source,
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
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise OptionError(f"{path}: {' '.join(str(error).split())}") from None
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
