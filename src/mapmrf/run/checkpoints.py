"""Checkpoints of a run in one process: one file, written atomically, from which the run can be resumed."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import time
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from mapmrf.arrays import Ints, compact
from mapmrf.errors import FormatError, MapMRFError, OptionError
from mapmrf.model.graph import FactorGraph
from mapmrf.model.problem import Problem
from mapmrf.run.dual_state import Array, ArrayFile, read_arrays, write_arrays
from mapmrf.run.method import Snapshot, Start
from mapmrf.run.trace import TracePoint, checked_numbers

if TYPE_CHECKING:
    from mapmrf.run.loop import Run

FILE = "run.mrf"

EVERY = 300.0  # seconds between checkpoints


def exact(value: Any) -> Any:
    """Encode numbers for JSON without loss."""
    if isinstance(value, float):
        return value.hex()
    if isinstance(value, list | tuple):
        return [exact(one) for one in value]
    if isinstance(value, Mapping):
        return {key: exact(one) for key, one in value.items()}
    return value


def from_exact(value: Any) -> Any:
    """Undo `exact`; tuples come back as lists."""
    if isinstance(value, str):
        return float.fromhex(value) if value.lstrip("-")[:2] == "0x" or value in ("inf", "-inf", "nan") else value
    if isinstance(value, list):
        return [from_exact(one) for one in value]
    if isinstance(value, dict):
        return {key: from_exact(one) for key, one in value.items()}
    return value


@contextlib.contextmanager
def damaged(path: Path) -> Iterator[None]:
    """Turn errors caused by missing or wrong entries of a checkpoint into one that names the file."""
    try:
        yield
    except FormatError as error:
        raise error if str(path) in str(error) else FormatError(f"{path}: {error}") from None
    except MapMRFError:
        raise
    except (KeyError, TypeError, ValueError, AttributeError, IndexError, OverflowError, RecursionError) as error:
        raise FormatError(f"{path}: damaged: {type(error).__name__}: {' '.join(str(error).split())}") from None


def check_options(place: Path, found: Mapping[str, Any], wanted: Mapping[str, Any]) -> None:
    for name, value in from_exact(exact(wanted)).items():
        if name != "options" and found.get(name) != value:
            raise OptionError(f"{place}: the checkpoint is from another run: its {name} differs")
    options = found["options"]
    for name, value in from_exact(exact(wanted["options"])).items():
        if options.get(name) != value:
            raise OptionError(f"{place}: the checkpoint was written with {name}={options.get(name)}, found {value}")


def origin_of(method: Any, seed: int, threads: int, graph: FactorGraph) -> dict[str, Any]:
    """Identity of a run that a checkpoint must match: method and options, seed, threads and model."""
    plain = (bool, int, float, str, type(None))
    options = {key: value for key, value in dataclasses.asdict(method).items() if isinstance(value, plain)}
    crc = 0
    for array in (graph.card, graph.theta_v, graph.scope, graph.table_of, graph.theta_t, graph.weight):
        if array is not None:
            crc = zlib.crc32(np.ascontiguousarray(array).view(np.uint8).data, crc)
    return {"method": method.name, "options": options, "seed": seed, "threads": threads, "model": crc}


def check_resume(checkpoint: str | os.PathLike[str] | None, resume: bool) -> None:
    if resume and checkpoint is None:
        raise OptionError("resume needs a checkpoint: the folder in which the earlier run was saved")


class SavedRun:
    """A run that is saved at intervals in one file, and may resume one that was cut short."""

    def __init__(
        self, folder: str | os.PathLike[str], every: float, origin: dict[str, Any], resume: bool = False
    ) -> None:
        if not every >= 0:
            raise OptionError(f"every is {every}, expected a number of seconds of at least 0")
        self.path, self.every, self.origin = Path(folder, FILE), every, origin
        self.written = time.perf_counter()
        self.foreign = True  # whether the file there is of another run
        self.found: ArrayFile | None = None
        if resume and self.path.exists():
            found = read_arrays(self.path, "run", mapped=False)
            with damaged(self.path):
                figures = from_exact(found.figures)
                check_options(self.path, figures["origin"], self.origin)
            self.foreign = False
            self.found = found._replace(figures=figures)

    @property
    def due(self) -> bool:
        return time.perf_counter() >= self.written + self.every

    def write(self, figures: dict[str, Any], arrays: dict[str, Array]) -> None:
        """Replace the last checkpoint; one of an earlier run that was not resumed is kept as ``run.mrf~``."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        content = ArrayFile("run", exact({**figures, "origin": self.origin}), arrays)
        write_arrays(self.path, content, keep=self.foreign)
        self.foreign = False
        self.written = time.perf_counter()

    def begin(self, run: Run, start: Start) -> Start:
        """Restore labels, bound and trace; return the start of the method, with what it saved itself if it did."""
        if self.found is None:
            return start
        figures, arrays = self.found.figures, self.found.arrays
        with damaged(self.path):
            labels: Ints = arrays["incumbent"].astype(np.int64)
            card = run.incumbent.graph.card
            if labels.shape != card.shape or np.any((labels < 0) | (labels >= card)):
                raise ValueError("labels that do not fit this model")
            trace = [checked_numbers(TracePoint(**point)) for point in figures["trace"]]
            bound, spent = float(figures["bound"]), float(figures["spent"])
            for name in ("iterations", "end", "n_steps"):
                float(figures[name])
            mine = figures.get("method")
        run.incumbent.offer(labels)
        run.incumbent.tighten(bound, run.method.name)
        run.began -= spent
        run.trace = trace
        if mine is None:
            return Start(labels)
        run.iterations, run.end, run.n_steps = figures["iterations"], figures["end"], figures["n_steps"]
        own = {name.removeprefix("method."): array for name, array in arrays.items() if name.startswith("method.")}
        return dataclasses.replace(start, saved=Snapshot(mine, own))

    def save(self, run: Run, problem: Problem, state: Any) -> None:
        snapshot = run.method.snapshot(problem, state)
        arrays: dict[str, Any] = {"incumbent": compact(run.incumbent.labels)}
        if snapshot is not None:
            arrays |= {f"method.{name}": array for name, array in snapshot.arrays.items()}
        figures = {
            "iterations": run.iterations,
            "bound": run.incumbent.bound,
            "spent": time.perf_counter() - run.began,
            "end": run.end,
            "n_steps": run.n_steps,
            "trace": [dataclasses.asdict(point) for point in run.trace],
            "method": None if snapshot is None else snapshot.figures,
        }
        self.write(figures, arrays)
