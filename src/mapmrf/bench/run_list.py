"""The runs of a benchmark, methods x models x seeds: from the command line, a program or a TOML plan."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import importlib
import inspect
import json
import logging
import math
import pickle
import tomllib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePath
from typing import Any, cast

from mapmrf.errors import OptionError, suggestion
from mapmrf.formats.evidence import pairs_in
from mapmrf.formats.files import AnyPath, read_bytes
from mapmrf.model.graph import FactorGraph
from mapmrf.run.method import Method
from mapmrf.run.registry import checked_class, is_file_name, make_method, method_class, method_names

log = logging.getLogger("mapmrf")

PEER = "peer:"  # prefix of other packages in method names
TIME_LIMIT = 60.0  # default time limit of a run in seconds

Evidence = Mapping[int | str, int | str] | AnyPath


# -- models -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ModelRef:
    """A model that is read or generated on demand."""

    set: str
    name: str
    path: str = ""  # the model file, empty for a look-alike
    index: str = ""  # its number in the set: M1
    number: int = 0  # of the look-alike in its family
    scale: float = 1.0
    best: float | None = None  # best known log potential
    digest: str = ""  # checksum of the content, if known
    checksum: str = ""  # of a file of the catalogue: right, differs, or unknown where the catalogue has none
    pickled: str = ""  # file of a model that was in memory, instead of `path`
    memory_limit: float | None = None  # for reading the file, None for that of the machine

    evidence: Evidence | None = None  # observed variables
    observed: str = ""  # checksum of the evidence

    @property
    def identity(self) -> str:
        known = f"/{self.digest or Path(self.path).name}" if self.path or self.pickled else f"@{self.scale:g}"
        return f"{self.set}/{self.name}{known}{self.observed and f'/{self.observed}'}"

    def given(self, evidence: Evidence | None) -> ModelRef:
        """The model with observed variables: another one than that of the catalogue."""
        if evidence is None:
            return self
        if isinstance(evidence, Mapping):
            evidence = dict(evidence)
            text = json.dumps(sorted((str(variable), str(state)) for variable, state in evidence.items())).encode()
        elif pairs_in(evidence) is not None:
            text = str(evidence).encode()
        else:
            evidence = str(Path(evidence).resolve())
            text = read_bytes(evidence)
        checksum = "differs" if self.checksum else ""
        return replace(self, evidence=evidence, observed=_checksum(text), best=None, checksum=checksum)

    def load(self) -> FactorGraph:
        if self.path:
            from mapmrf.formats import read

            return read(self.path, evidence=self.evidence, memory_limit=self.memory_limit)
        if self.pickled:  # make its arrays read-only again: kernels are compiled for those
            graph = replace(cast(FactorGraph, pickle.loads(Path(self.pickled).read_bytes())))
        else:
            from mapmrf.datasets.generate import lookalike

            graph = lookalike(self.set.removesuffix("-like"), self.number, scale=self.scale)
        if self.evidence is None:
            return graph
        from mapmrf.formats.evidence import observed

        return observed(graph, self.evidence)


def of_set(which: str, data: str | Path | None = None) -> list[ModelRef]:
    """The models of one of the paper's sets whose files are present, with their checksums verified."""
    # A file with other content is treated as another model: identified by its content, without a best known value.
    from mapmrf.datasets.catalogue import entries, locate, verify

    found = []
    for entry in entries(which):
        path = locate(entry, data)
        if path is None:
            continue
        model = ModelRef(entry.set, entry.name, str(path), entry.index, best=entry.best, digest=entry.sha256 or "")
        right = verify(entry, path)
        if right is False:
            log.warning(
                "%s: differs from the catalogue, so its best known value and the paper's figures are not used", path
            )
            found.append(replace(model, best=None, digest=_digest(path), checksum="differs"))
        else:
            found.append(replace(model, checksum="unknown" if right is None else "right"))
    return found


def _digest(path: Path) -> str:
    return _checksum(path.read_bytes())


def _checksum(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def like_set(which: str, most: int | None = None, scale: float = 1.0) -> list[ModelRef]:
    from mapmrf.datasets.generate import lookalike_name, n_lookalikes

    count = n_lookalikes(which) if most is None else min(most, n_lookalikes(which))
    return [
        ModelRef(f"{which}-like", lookalike_name(which, number), index=f"M{number}", number=number, scale=scale)
        for number in range(1, count + 1)
    ]


def from_files(paths: Iterable[str | Path]) -> list[ModelRef]:
    """The user's model files, identified by their content; equal names get the folder as prefix."""
    files = [Path(path) for path in paths]
    for path in files:
        if not path.is_file():
            raise OptionError(f"{path}: no such file")
    # without their suffixes of compression and format
    names = [Path(path.stem if path.suffix in (".gz", ".bz2", ".xz") else path.name).stem for path in files]
    found = []
    for path, short in zip(files, names, strict=True):
        name = short if names.count(short) == 1 else f"{path.resolve().parent.name}/{path.name}"
        found.append(ModelRef(set="own", name=name, path=str(path.resolve()), digest=_digest(path)))
    return found


def from_graph(graph: FactorGraph, name: str, path: Path) -> ModelRef:
    """A model in memory, written to a file for the workers, and identified by its content."""
    path.write_bytes(pickle.dumps(replace(graph), protocol=5))
    return ModelRef("own", name, digest=_digest(path), pickled=str(path))


# -- methods ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class MethodConfig:
    """A method with its options, and its name in the tables."""

    method: str  # or a class in a file (my_file.py:Greedy), or another package (peer:cpsat)
    options: Mapping[str, Any] = field(default_factory=dict)
    name: str = ""
    source: str = ""  # digest of a custom method's file: after a change of code, it is another run
    pickled: bytes = b""  # the method itself, if a worker could not find it by name

    def __post_init__(self) -> None:
        name = self.short
        if is_file_name(self.method):
            cls = method_class(self.method)
            name = cls.name if cls.name not in method_names() else name
            object.__setattr__(self, "source", _source_digest(cls))
        if not self.name:
            given = " ".join(f"{key}={value}" for key, value in self.options.items())
            object.__setattr__(self, "name", f"{name} {given}".strip())
        if self.is_peer:
            from mapmrf.bench.peers import PEERS

            if self.peer not in PEERS:
                raise OptionError(
                    f"no peer is named {self.peer!r}{suggestion(self.peer, PEERS)}; known: {', '.join(PEERS)}"
                )
            if self.options:
                raise OptionError(f"{self.method} has no options, found {', '.join(self.options)}")
            return
        try:  # report a bad option now, not when its turn comes
            self.make()
        except TypeError as error:
            raise OptionError(f"{self.method}: an option is of the wrong type: {error}") from None

    @classmethod
    def of(cls, method: str | Method | type[Method], name: str = "") -> MethodConfig:
        if isinstance(method, str):
            return cls(method, name=name)
        if isinstance(method, type) and issubclass(method, Method):
            method = checked_class(method, method.__name__)()
        if not isinstance(method, Method):
            raise OptionError(f"methods: found {method!r}, expected a name, a class derived from Method, or an object")
        kind = checked_class(type(method), type(method).__name__)
        options = {
            item.name: getattr(method, item.name)
            for item in dataclasses.fields(method)  # type: ignore[arg-type]
            if item.init and (item.default is dataclasses.MISSING or getattr(method, item.name) != item.default)
        }
        if (
            kind.name in method_names()
            and method_class(kind.name) is kind
            and make_method(kind.name, options) == method
        ):
            return cls(kind.name, options, name)
        # Unlike pickle, cloudpickle also handles classes of a notebook or a script.
        pickled = bytes(importlib.import_module("cloudpickle").dumps(method))
        return cls(kind.name, options, name, _source_digest(kind), pickled)

    def make(self) -> Method:
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
        return self.method.startswith(PEER)

    @property
    def peer(self) -> str:
        return self.method.removeprefix(PEER)


def _source_digest(cls: type) -> str:
    """Digest of the source of a class: of its file, in a notebook of the class only, otherwise of its name."""
    text = cls.__qualname__
    for thing in (cls, inspect.getmodule(cls)):
        with contextlib.suppress(OSError, TypeError):
            text = inspect.getsource(thing)  # type: ignore[arg-type]
    return hashlib.sha256(text.encode()).hexdigest()[:12]


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


_KEYS = {"sets", "models", "methods", "run", "seeds", "time_limit", "evidence"}


def read_plan(path: str | Path) -> dict[str, Any]:
    """Read a TOML plan, with `run` as MethodConfig objects."""
    try:
        data = tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise OptionError(f"{path}: {' '.join(str(error).split())}") from None
    for key in data:
        if key not in _KEYS:
            raise OptionError(
                f"{path}: found {key!r}, expected one of {', '.join(sorted(_KEYS))}{suggestion(key, _KEYS)}"
            )
    for key, kind in (("sets", str), ("models", str), ("methods", str), ("run", dict), ("seeds", int)):
        items = data.get(key, [])
        if not isinstance(items, list) or not all(isinstance(item, kind) for item in items):
            raise OptionError(f"{path}: {key} is {items!r}, expected a list of {kind.__name__}")
    if not isinstance(data.get("evidence", ""), str | dict):
        raise OptionError(f"{path}: evidence is {data['evidence']!r}, expected a file or a table of variable = state")
    if not isinstance(data.get("time_limit", 0.0), int | float):
        raise OptionError(f"{path}: time_limit is {data['time_limit']!r}, expected a number of seconds")
    for table in data.get("run", []):
        unknown = set(table) - {"method", "options", "name"}
        if unknown or not isinstance(table.get("method"), str) or not isinstance(table.get("options", {}), dict):
            raise OptionError(f"{path}: a run is {table!r}, expected method and optionally options and name")
    if isinstance(given := data.get("evidence"), dict):  # a key of TOML is always text
        data["evidence"] = {int(name) if name.isdecimal() else name: state for name, state in given.items()}
    data["run"] = [
        MethodConfig(table["method"], table.get("options", {}), str(table.get("name", "")))
        for table in data.get("run", [])
    ]
    return data
