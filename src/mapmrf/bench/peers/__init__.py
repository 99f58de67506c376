"""Packages of others on the same models and limits: one file each, imported only when it is run.

A peer is a module with `PACKAGE`, what pip installs, `MODULE`, what is imported, and `run(graph, seconds, seed)`, which
yields what it finds as it goes. It raises UnsupportedModel for a model that it cannot take.
"""

from __future__ import annotations

import importlib
import importlib.util
import math
import pkgutil
import time
from dataclasses import dataclass
from typing import Any

import numpy as np

from mapmrf.arrays import Ints, segment_argmax
from mapmrf.errors import UnknownName, UnsupportedModel
from mapmrf.graph import FactorGraph
from mapmrf.result import Result, Status, TracePoint, relative_gap
from mapmrf.solver import GAP_TOLERANCE


@dataclass(frozen=True)
class Found:
    """What a peer has at a moment: labels, an upper bound, or both.

    `seconds` is when it was found, for peers that tell only afterwards; `finished` that the peer has come to its end.
    """

    labels: Ints | None = None
    bound: float | None = None
    iterations: int = 0
    seconds: float | None = None
    finished: bool = False


def names() -> list[str]:
    """All peers, installed or not."""
    return sorted(module.name for module in pkgutil.iter_modules(__path__) if not module.name.startswith("_"))


def installed() -> list[str]:
    """The peers whose package is there."""
    return [name for name in names() if _is_there(_module(name).MODULE)]


def _module(name: str) -> Any:
    if name not in names():
        raise UnknownName(f"no peer is named {name!r}; known: {', '.join(names())}")
    return importlib.import_module(f"{__name__}.{name}")


def _is_there(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:  # the package around it is missing
        return False


def solve_with(name: str, graph: FactorGraph, seconds: float, seed: int) -> Result:
    """Let a peer solve a model; the value is evaluated here, as for every method.

    Raises
    ------
    UnsupportedModel
        If its package is not installed, or it cannot take the model.
    """
    peer = _module(name)
    if not _is_there(peer.MODULE):
        raise UnsupportedModel(f"{name} needs the optional extra: pip install 'mapmrf[peers]'")
    run = _Course(graph, time.perf_counter())
    for found in peer.run(graph, seconds, seed):
        run.take(found)
        if found.finished or run.proven or time.perf_counter() - run.began >= seconds:
            break
    return run.result(f"peer:{name}", seed, found.finished)


class _Course:
    """The best so far of a peer's run."""

    def __init__(self, graph: FactorGraph, began: float) -> None:
        self.graph, self.began = graph, began
        self.labels = segment_argmax(graph.theta_v, graph.var_ptr)
        self.value = graph.value(self.labels)
        self.bound: float | None = None
        self.trace: list[TracePoint] = []

    def take(self, found: Found) -> None:
        """Keep what is better than what was there."""
        if found.labels is not None:
            value = self.graph.value(found.labels)
            if value > self.value:
                self.labels, self.value = np.array(found.labels, dtype=np.int64), value
        if found.bound is not None and math.isfinite(found.bound):
            self.bound = found.bound if self.bound is None else min(self.bound, found.bound)
        when = time.perf_counter() - self.began if found.seconds is None else found.seconds
        self.trace.append(TracePoint(when, found.iterations, self.value, self.bound))

    @property
    def proven(self) -> bool:
        """Whether the bound proves the labelling."""
        gap = relative_gap(self.value, self.bound, self.graph.unit)
        return gap is not None and gap <= GAP_TOLERANCE

    def result(self, name: str, seed: int, finished: bool) -> Result:
        """The answer in the form that every method has."""
        status = Status.OPTIMAL if self.proven else Status.CONVERGED if finished else Status.TIME_LIMIT
        return Result(
            labels=self.labels,
            value=self.value,
            status=status,
            method=name,
            bound=self.bound,
            iterations=self.trace[-1].iterations if self.trace else 0,
            runtime=time.perf_counter() - self.began,
            trace=tuple(self.trace),
            seed=seed,
            unit=self.graph.unit,
        )
