"""A run of the loop that is saved at intervals, and may resume one that was cut short."""

from __future__ import annotations

import dataclasses
import time
from typing import TYPE_CHECKING, Any

import numpy as np

from mapmrf.arrays import Ints, compact
from mapmrf.model.problem import Problem
from mapmrf.run.checkpoints import RunCheckpoint, damaged
from mapmrf.run.method import Snapshot, Start
from mapmrf.run.trace import TracePoint, checked_numbers

if TYPE_CHECKING:
    from mapmrf.run.loop import Run


class SavedRun:
    """A run that is saved at intervals, and may resume one that was cut short."""

    def __init__(self, checkpoint: RunCheckpoint, resume: bool) -> None:
        self.checkpoint = checkpoint
        self.found = checkpoint.read() if resume else None

    def begin(self, run: Run, start: Start) -> Start:
        """Restore labels and bound; return the warm start for a method that cannot restore more."""
        if self.found is None:
            return start
        figures, arrays = self.found.figures, self.found.arrays
        with damaged(self.checkpoint.path):
            labels: Ints = arrays["incumbent"].astype(np.int64)
            card = run.incumbent.graph.card
            if labels.shape != card.shape or np.any((labels < 0) | (labels >= card)):
                raise ValueError("labels that do not fit this model")
            trace = [checked_numbers(TracePoint(**point)) for point in figures["trace"]]
            bound, spent = float(figures["bound"]), float(figures["spent"])
            for name in ("iterations", "end", "n_steps"):
                float(figures[name])
        run.incumbent.offer(labels)
        run.incumbent.tighten(bound, run.method.name)
        run.began -= spent
        run.trace = trace
        return start if figures.get("method") is not None else Start(labels)

    def restore(self, run: Run, problem: Problem, state: Any) -> None:
        if self.found is None or self.found.figures.get("method") is None:
            return
        figures, arrays = self.found.figures, self.found.arrays
        mine = {name.removeprefix("method."): array for name, array in arrays.items() if name.startswith("method.")}
        with damaged(self.checkpoint.path):
            run.method.restore(problem, state, Snapshot(figures["method"], mine))
        run.iterations, run.end, run.n_steps = figures["iterations"], figures["end"], figures["n_steps"]
        self.found = None

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
        self.checkpoint.write(figures, arrays)
