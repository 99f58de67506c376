"""Other packages on the same models with the same limits: one file each, imported only when run.

A peer is a module with `PACKAGE`, the name for pip, `MODULE`, the name for import, and `run(graph, seconds, seed)`,
which yields its findings as it goes. It raises UnsupportedModel for a model that it does not support. Everything before
it yields `Ready` (imports, translating the model, compiling) is set-up: the clock starts then.
"""

from __future__ import annotations

import importlib
import importlib.util
import math
import pkgutil
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import numpy as np

from mapmrf.arrays import Floats, Ints, segment_argmax
from mapmrf.constraints.as_tables import without_constraints
from mapmrf.errors import UnknownName, UnsupportedModel
from mapmrf.model.graph import FactorGraph
from mapmrf.run.incumbent import Incumbent
from mapmrf.run.result import GAP_TOLERANCE, Result, Status, TracePoint


@dataclass(frozen=True)
class Found:
    """A finding of a peer: labels, an upper bound, or both."""

    # `seconds` is the time of the finding, for peers that report only afterwards; `finished` means that the peer has
    # ended.

    labels: Ints | None = None
    bound: float | None = None
    iterations: int = 0
    seconds: float | None = None
    finished: bool = False


@dataclass(frozen=True)
class Ready:
    """The end of the set-up; `start_up` are seconds before the search that count as set-up too."""

    start_up: float = 0.0


def names() -> list[str]:
    """All peers, installed or not."""
    return sorted(module.name for module in pkgutil.iter_modules(__path__) if not module.name.startswith("_"))


def installed() -> list[str]:
    return [name for name in names() if _is_there(_module(name).MODULE)]


def missing() -> dict[str, str]:
    """The peers whose package is not installed, and its name on PyPI."""
    there = installed()
    return {name: _module(name).PACKAGE for name in names() if name not in there}


def advice(absent: Sequence[str]) -> str:
    packages = [_module(name).PACKAGE for name in absent]
    return f"not installed: {', '.join(absent)}; pip install 'mapmrf[peers]', or only {' '.join(packages)}"


def prepare(name: str) -> str:
    """Import a peer's package, which may take seconds; return its name and version."""
    peer = _module(name)
    if not _is_there(peer.MODULE):
        raise UnsupportedModel(f"{name} is {advice([name])}")
    importlib.import_module(peer.MODULE)
    try:
        return f"{peer.PACKAGE} {version(peer.PACKAGE)}"
    except PackageNotFoundError:  # importable, but not by pip
        return str(peer.PACKAGE)


def _module(name: str) -> Any:
    if name not in names():
        raise UnknownName(f"no peer is named {name!r}; known: {', '.join(names())}")
    return importlib.import_module(f"{__name__}.{name}")


def _is_there(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:  # its parent package is missing
        return False


def solve_with(name: str, graph: FactorGraph, seconds: float, seed: int) -> Result:
    """Solve a model with a peer; the value is evaluated here, as for every method."""
    # `compile_time` of the result is the set-up, `runtime` the total.
    prepare(name)
    run = _Course(graph, time.perf_counter())
    finished = False
    for found in _module(name).run(without_constraints(graph), seconds, seed):
        if isinstance(found, Ready):
            run.start(found.start_up)
            continue
        run.take(found)
        finished = found.finished
        live = found.seconds is None  # read everything that is reported afterwards
        if finished or run.proven or (live and run.seconds >= seconds):
            break
    return run.result(f"peer:{name}", seed, finished)


class _Course:
    """The best so far of a peer's run."""

    def __init__(self, graph: FactorGraph, began: float) -> None:
        self.graph, self.began, self.started = graph, began, began
        self.incumbent = Incumbent(graph, segment_argmax(graph.theta_v, graph.var_ptr))
        self.trace: list[TracePoint] = []

    @property
    def seconds(self) -> float:
        return max(0.0, time.perf_counter() - self.started)

    def start(self, start_up: float) -> None:
        self.started = time.perf_counter() + start_up

    def take(self, found: Found) -> None:
        if found.labels is not None:
            self.incumbent.offer(found.labels[: self.graph.n_vars])  # without auxiliary variables
        if found.bound is not None and math.isfinite(found.bound):
            self.incumbent.tighten(found.bound)
        when = self.seconds if found.seconds is None else found.seconds
        self.trace.append(TracePoint(when, found.iterations, self.incumbent.value, self.bound))

    @property
    def bound(self) -> float | None:
        return self.incumbent.bound if self.incumbent.bound < math.inf else None

    @property
    def proven(self) -> bool:
        return self.incumbent.closed(GAP_TOLERANCE)

    def result(self, name: str, seed: int, finished: bool) -> Result:
        proof = Status.OPTIMAL if self.incumbent.optimal else Status.WITHIN_TOLERANCE
        status = proof if self.proven else Status.CONVERGED if finished else Status.TIME_LIMIT
        spent, setup = self.seconds, self.started - self.began
        return replace(
            Result.of_labels(self.graph, self.incumbent.labels, status, name),
            version="",
            bound=self.bound,
            iterations=self.trace[-1].iterations if self.trace else 0,
            compile_time=setup,
            runtime=setup + spent,
            trace=tuple(self.trace),
            seed=seed,
        )


# -- models -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Pairs:
    """A binary pairwise model: unary potentials (n, 2), pairs (m, 2) and their tables (m, 2, 2)."""

    unary: Floats
    edges: Ints
    tables: Floats


def binary_pairs(graph: FactorGraph, name: str) -> Pairs:
    """The model as pairs; raise UnsupportedModel if it is not a binary pairwise model with finite potentials."""
    if not (np.all(graph.card == 2) and np.all(graph.arity == 2)):
        raise UnsupportedModel(f"{name} supports only binary pairwise models")
    if not (np.isfinite(graph.theta_v).all() and np.isfinite(graph.theta_t).all()):
        raise UnsupportedModel(f"{name} supports only finite potentials")
    tables = graph.theta_t[graph.table_ptr[graph.table_of][:, None] + np.arange(4)]
    if graph.weight is not None:
        tables = graph.weight[:, None] * tables
    return Pairs(graph.theta_v.reshape(-1, 2), graph.scope.reshape(-1, 2), tables.reshape(-1, 2, 2))
