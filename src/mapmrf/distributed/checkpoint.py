"""Checkpoints of a run on a model in parts: a file for every part, and a manifest that makes them valid.

The files of a checkpoint are complete before the manifest names them, and the old ones are removed only after that.
So there is always one complete checkpoint, however a run ends. Since they are by parts, a run may be resumed on another
number of ranks.
"""

from __future__ import annotations

import dataclasses
import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from mapmrf.arrays import Ints
from mapmrf.distributed.parts import together, write_json
from mapmrf.distributed.ranks import Ranks
from mapmrf.distributed.run import PartedRun
from mapmrf.engines.admm.sphere_run import engine_state, restore_engine, restore_run, run_state
from mapmrf.errors import FormatError, OptionError
from mapmrf.run.checkpoints import check_options, damaged, exact, from_exact
from mapmrf.run.dual_state import Array, ArrayFile, read_arrays, write_arrays
from mapmrf.run.method import Method
from mapmrf.run.result import plain
from mapmrf.run.trace import TracePoint, checked_numbers
from mapmrf.run.violations import Shortfall

if TYPE_CHECKING:
    from mapmrf.distributed.loop import PartedLoop

MANIFEST = "checkpoint.json"


class Checkpoints(NamedTuple):
    """Folder and interval of checkpoints, whether to resume from one, and the identity required of the run."""

    folder: Path
    every: float
    resume: bool
    origin: dict[str, Any]

    @classmethod
    def at(
        cls, folder: str | os.PathLike[str], every: float, resume: bool, run: tuple[Method, int, list[int]]
    ) -> Checkpoints:
        """Checkpoints of a run: its method, its seed and the checksums of its parts."""
        if not every >= 0:
            raise OptionError(f"every is {every}, expected a number of seconds of at least 0")
        method, seed, checksums = run
        options = dataclasses.asdict(method)  # type: ignore[call-overload]
        origin = {"method": method.name, "options": plain(options), "seed": seed, "parts": checksums}
        return cls(Path(folder), every, resume, origin)


# -- writing ----------------------------------------------------------------------------------------------------------


def save(checkpoints: Checkpoints, run: PartedRun, loop: PartedLoop) -> None:
    """Write a checkpoint; all ranks call this at the same iteration."""
    ranks, folder = run.model.ranks, checkpoints.folder
    run.parted.settle()
    generation = run.iterations
    together(ranks, lambda: _write_parts(folder, generation, run, loop))
    together(ranks, lambda: _write_manifest(checkpoints, generation, run, loop) if ranks.rank == 0 else None)
    for part in run.model.parts:
        for path in folder.glob(f"state-*-{part.number:05d}.mrf"):
            if path != _state_path(folder, generation, part.number):
                path.unlink(missing_ok=True)


def set_aside(checkpoints: Checkpoints, ranks: Ranks) -> None:
    """Move a checkpoint of an earlier run to the folder `old`, unless this run resumes from it."""
    together(ranks, lambda: _set_aside(checkpoints.folder) if ranks.rank == 0 else None)


def _set_aside(folder: Path) -> None:
    if not (folder / MANIFEST).exists():
        return
    old = folder / "old"
    old.mkdir(exist_ok=True)
    for path in old.glob("state-*.mrf"):
        path.unlink()
    for path in [*folder.glob("state-*.mrf"), folder / MANIFEST]:
        os.replace(path, old / path.name)


def _state_path(folder: Path, generation: int, part: int) -> Path:
    return folder / f"state-{generation:09d}-{part:05d}.mrf"


def _write_parts(folder: Path, generation: int, run: PartedRun, loop: PartedLoop) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for part, engine, where in zip(run.model.parts, run.parted.engines, run.model.slices, strict=True):
        arrays = engine_state(engine)
        arrays["best"] = loop.incumbent.labels[where]
        if run.rested is not None:
            arrays["rested"] = run.rested[where]
        figures = {"number": part.number, "generation": generation, "block": engine.block}
        write_arrays(_state_path(folder, generation, part.number), ArrayFile("state", figures, arrays))


def _write_manifest(checkpoints: Checkpoints, generation: int, run: PartedRun, loop: PartedLoop) -> None:
    data = {
        "generation": generation,
        "origin": checkpoints.origin,
        "run": run_state(run),
        "rested": run.rested_value if run.rested is not None else None,
        "loop": {"spent": loop.elapsed, "end": loop.end, "n_steps": loop.n_steps, "bound": loop.incumbent.bound},
        "best": list(loop.incumbent.shortfall),
        "trace": [dataclasses.asdict(point) for point in loop.trace],
    }
    write_json(checkpoints.folder / MANIFEST, {"exact": exact(data)})


# -- reading ----------------------------------------------------------------------------------------------------------


def restore(checkpoints: Checkpoints, run: PartedRun, loop: PartedLoop) -> bool:
    """Restore the last checkpoint; return False if there is none."""
    ranks, folder = run.model.ranks, checkpoints.folder
    data = together(ranks, lambda: read_manifest(folder))
    if data is None:
        return False
    together(ranks, lambda: _restore_phase(checkpoints, run, data))
    labels, rested = np.zeros((2, len(run.parted.labels)), dtype=np.int64)
    together(ranks, lambda: _read_parts(folder, int(data["generation"]), run, labels, rested))
    together(ranks, lambda: _restore_loop(folder, run, loop, data, (labels, rested)))
    return True


def _restore_phase(checkpoints: Checkpoints, run: PartedRun, data: dict[str, Any]) -> None:
    """Restore the phase of the run, if the checkpoint belongs to it."""
    with damaged(checkpoints.folder / MANIFEST):
        check_options(checkpoints.folder, data["origin"], checkpoints.origin)
        restore_run(run, data["run"])


def _restore_loop(
    folder: Path, run: PartedRun, loop: PartedLoop, data: dict[str, Any], found: tuple[Array, Array]
) -> None:
    labels, rested = found
    with damaged(folder / MANIFEST):
        if data["rested"] is not None:
            run.rested, run.rested_value = rested, float(data["rested"])
        loop.trace = [checked_numbers(TracePoint(**point)) for point in data["trace"]]
        loop.spent, loop.end = float(data["loop"]["spent"]), data["loop"]["end"]
        loop.n_steps = int(data["loop"]["n_steps"])
        loop.incumbent.labels, loop.incumbent.shortfall = labels, Shortfall(*data["best"])
        loop.incumbent.tighten(float(data["loop"]["bound"]))
    run.parted.start_sums()
    loop.iterations = run.iterations


def read_manifest(folder: Path) -> dict[str, Any] | None:
    """Read the manifest, None if there is none."""
    path = folder / MANIFEST
    if not path.exists():
        return None
    try:
        data: dict[str, Any] = from_exact(json.loads(path.read_text(encoding="utf-8"))["exact"])
        if not isinstance(data, dict) or not isinstance(data.get("generation"), int):
            raise TypeError("it names no checkpoint")
        return data
    except (ValueError, KeyError, TypeError, RecursionError, OSError) as error:
        raise FormatError(f"{path}: damaged: {' '.join(str(error).split())}") from None


def _read_parts(folder: Path, generation: int, run: PartedRun, labels: Array, rested: Array) -> None:
    for part, engine, where in zip(run.model.parts, run.parted.engines, run.model.slices, strict=True):
        path = _state_path(folder, generation, part.number)
        _, figures, arrays = read_arrays(path, "state")
        with damaged(path):
            restore_engine(engine, int(figures["block"]), arrays)
            labels[where] = _legal(arrays["best"], part.graph.card)
            if "rested" in arrays:
                rested[where] = _legal(arrays["rested"], part.graph.card)


def _legal(labels: Array, card: Ints) -> Array:
    if labels.shape != card.shape or np.any((labels < 0) | (labels >= card)):
        raise ValueError("labels that do not fit this part")
    return labels
