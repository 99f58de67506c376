"""LS-LP on a model in parts: the loop of `mapmrf.run.solve`, once for all ranks."""

from __future__ import annotations

import dataclasses
import json
import math
import os
import secrets
import signal
import socket
import time
import traceback
from contextlib import ExitStack, suppress
from pathlib import Path
from threading import Thread
from types import TracebackType
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike

from mapmrf.arrays import Ints
from mapmrf.distributed.evaluation import PartedIncumbent
from mapmrf.distributed.parts import PartFolder, Ranks, describe, find_ranks, together, write_json
from mapmrf.distributed.run import (
    PartedModel,
    PartedResult,
    PartedRun,
    bound_of_parts,
    classify_parts,
    polished,
    start_run,
)
from mapmrf.errors import MapMRFError, OptionError
from mapmrf.methods.lslp import LSLP
from mapmrf.model.polytope import TOLERANCE, Kind, KindFractions, Residuals
from mapmrf.run import interrupts
from mapmrf.run.clock import Clock
from mapmrf.run.loop import Callback, GapTolerance, Loop
from mapmrf.run.method import Method, Start
from mapmrf.run.progress import ProgressBar
from mapmrf.run.registry import make_method
from mapmrf.run.result import Status, plain
from mapmrf.run.solve import check_limits, check_resume
from mapmrf.run.state import (
    ArrayFile,
    SavedRun,
    check_options,
    checked_figures,
    damaged,
    legal,
    loop_figures,
    read_arrays,
    write_arrays,
)


def solve(
    parts: str | os.PathLike[str] | PartFolder,
    comm: Any = None,
    method: str | Method = "lslp",
    *,
    time_limit: float | None = None,
    seed: int = 0,
    initial: ArrayLike | None = None,
    callback: Callback | None = None,
    progress: bool = False,
    gap_tolerance: float | None = None,
    abs_gap_tolerance: float = 0.0,
    checkpoint: str | os.PathLike[str] | None = None,
    every: float = 300.0,
    resume: bool = False,
    polish: str | Method | None = None,
    part_bound: int = 0,
    **options: Any,
) -> PartedResult:
    """Solve a model in parts by LS-LP; every rank calls this with the same arguments.

    The answer does not depend on the number of ranks: for the same parts, labels, value and bound are bit for bit the
    same on any number of them.

    Parameters
    ----------
    parts
        Folder of the parts, see `partition`.
    comm
        An mpi4py communicator. By default that of the MPI launcher, or this process alone if there is none.
    method
        ``"lslp"`` or an ``LSLP``.
    time_limit, seed, gap_tolerance, abs_gap_tolerance
        As in `mapmrf.solve`; the clock is that of rank 0.
    initial : (n_vars,)
        A labelling of the whole model to start from.
    callback
        As in `mapmrf.solve`, called on rank 0, with the labels of its parts.
    progress
        Show a progress bar on the standard error of rank 0, if that is a terminal.
    checkpoint, every
        Folder for checkpoints, and seconds between them; one is also written at the end, unless the run is complete.
    resume
        Resume from the checkpoint, if there is one, to the same answer, on any number of ranks.
    polish
        A method that improves the labelling at the end, such as ``"chains"`` or ``"blocks"``: each part in turn, with
        the variables across the cut fixed. The value never decreases.
    part_bound
        Iterations of TRW-S in every part after the LP phase, if that leaves a gap: a tighter bound, by dual
        decomposition over the parts. 0 for none.

    Examples
    --------
    >>> import tempfile, mapmrf
    >>> graph = mapmrf.datasets.potts_image(12, 15, labels=3).graph
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = mapmrf.distributed.partition(graph, folder, 3)
    ...     result = mapmrf.distributed.solve(folder)
    >>> result.status.closes_gap, abs(result.value - mapmrf.solve(graph).value) < 1e-6
    (True, True)
    """
    began = time.perf_counter()
    chosen = make_method(method, options)
    if not isinstance(chosen, LSLP):
        raise OptionError(f"{chosen.name} does not run on a model in parts, expected lslp")
    check_limits(time_limit, 1, seed)
    check_resume(checkpoint, resume)
    ranks = find_ranks(comm)
    folder = parts if isinstance(parts, PartFolder) else PartFolder(parts)
    model = PartedModel.read(ranks, folder)
    tolerance = GapTolerance.of(gap_tolerance, abs_gap_tolerance)
    labels = None if initial is None else together(ranks, lambda: model.pick(np.asarray(initial)))
    start = Start(labels, gap_tolerance=tolerance.of_proofs)
    listeners = [] if callback is None or ranks.rank else [callback]
    clock = Clock(began, time_limit)
    with interrupts.Interrupts(signal.SIGINT, signal.SIGTERM), RankWatch(ranks), ExitStack() as stack:
        if progress and ranks.rank == 0:
            bar = stack.enter_context(ProgressBar(chosen.name, chosen.max_iterations, time_limit))
            listeners.append(bar.update)
        loop = PartedLoop(chosen, seed, tolerance, clock, listeners, model)
        loop.part_bound = part_bound
        loop.polisher = None if polish is None else make_method(polish, {})
        if checkpoint is not None:
            about = plain(dataclasses.asdict(chosen))
            origin = {"method": chosen.name, "options": about, "seed": seed, "parts": folder.checksums}
            loop.saving = SavedParts(checkpoint, every, origin, resume)
        return loop.solve(start)


class PartedLoop(Loop):
    """One run on a model in parts: all ranks take the same decisions, from the same information."""

    method: LSLP
    incumbent: PartedIncumbent
    saving: SavedParts | None = None
    polisher: Method | None = None
    part_bound = 0

    def __init__(
        self,
        method: LSLP,
        seed: int,
        tolerance: GapTolerance,
        clock: Clock,
        listeners: list[Callback],
        model: PartedModel,
    ) -> None:
        super().__init__(method, seed, tolerance, clock, listeners)
        self.model, self.ranks = model, model.ranks
        self.incumbent = PartedIncumbent(model.ranks, model.parts, model.unary_labels(), model.slices)

    def solve(self, start: Start) -> PartedResult:
        if start.labels is not None:
            self.incumbent.offer(start.labels)
        run = start_run(self.method, self.model, self.seed, start, self.incumbent)
        try:
            if self.saving is not None:
                self.saving.begin_parts(run, self)
            status = self.loop(run)
            if self.saving is not None and status in (Status.TIME_LIMIT, Status.INTERRUPTED):
                self.saving.save_parts(run, self)
            if self.polisher is not None and status in (Status.CONVERGED, Status.ITERATION_LIMIT):
                self.polish(run, self.polisher)
            return self.report(run, status)
        finally:
            if run.engine is not None:
                run.parted.close()

    def loop(self, run: PartedRun) -> Status:
        """Step until the method ends, the gap closes, a limit is hit, or a rank is interrupted."""
        while True:
            certifying = run.phase.certifying
            progress = self.method.step(None, run)
            if certifying and run.phase.spherical and self.part_bound and run.initial.labels is None:
                other = bound_of_parts(self.model, run.parted, self.part_bound)
                progress.bound = other if progress.bound is None else min(progress.bound, other)
            interrupted, late, due = self.agree(self.record(progress, self.method.name))
            ended = self.ending(self.method, progress.finished, self.iterations, interrupted, late)
            if ended is not None:
                return ended
            if due and self.saving is not None:
                self.saving.save_parts(run, self)

    def agree(self, stopped: bool) -> tuple[bool, bool, bool]:
        """Agree on whether a rank was interrupted and, by rank 0's clock, the time is up and a checkpoint is due."""
        due = self.saving is not None and self.saving.due
        found = self.ranks.allgather((stopped or interrupts.requested(), self.clock.left <= 0, due))
        return any(one[0] for one in found), found[0][1], found[0][2]

    def polish(self, run: PartedRun, method: Method) -> None:
        self.incumbent.prefer(run.parted.labels)

        def seconds() -> float | None:
            return None if self.clock.limit == math.inf else max(0.0, self.clock.left)

        def stop() -> bool:
            interrupted, late, _ = self.agree(False)
            return interrupted or late

        self.incumbent.offer(polished(self.model, self.incumbent.labels, method, seconds, stop))

    def report(self, run: PartedRun, status: Status) -> PartedResult:
        """The figures of the whole model, and the labels of this rank."""
        incumbent, details, relaxed = self.incumbent, {}, None
        kinds: tuple[Kind | None, KindFractions | None, Residuals | None] = (None, None, None)
        if run.engine is None:
            incumbent.tighten(-math.inf, self.method.name)
        else:
            incumbent.prefer(run.parted.labels)
            found = run.parted.inspect()
            details = {
                "rho": run.parted.last_rho, "rho_unit": run.unit, "primal": math.sqrt(found.primal2),
                "sphere": math.sqrt(found.sphere2), "integrality": found.integrality,
            }  # fmt: skip
            closed = self.tolerance.met_by(incumbent) or incumbent.optimal
            rested = run.rested_labels is not None and self.method.stop == "plain" and self.method.sphere != "off"
            if closed or rested:
                relaxed = incumbent.value if closed else run.rested_value
                kinds = Kind.VALID, KindFractions(1.0, 0.0, 0.0), Residuals(0.0, 0.0, 0.0)
            else:
                relaxed, kinds = found.relaxed, classify_parts(run, TOLERANCE)
        return PartedResult(
            model=self.model,
            labels=incumbent.labels,
            value=incumbent.value,
            bound=self.bound,
            status=self.verdict(status),
            method=self.method.name,
            relaxed_value=relaxed,
            kind=kinds[0],
            kind_fractions=kinds[1],
            residuals=kinds[2],
            iterations=self.iterations,
            runtime=self.elapsed,
            trace=tuple(self.trace),
            options=dataclasses.asdict(self.method),
            seed=self.seed,
            unit=incumbent.scale.unit,
            n_violated=incumbent.shortfall.n_violated,
            details=details | incumbent.bounds.details,
        )


# -- Detection of dead ranks: each watches the next one, reports its end in one line, and ends all --------------------
# MPI does not report that a process was killed, and launchers differ in their reaction. A connection to the next rank
# does: the system closes it with the process.

GOODBYE = b"bye"

SECONDS = 5.0  # seconds within which connections must be established; without them, ranks are not watched

TOKEN = 16


class RankWatch:
    """Context in which a rank that dies ends all others; all ranks enter and leave it together."""

    # An error on a single rank also ends all; a MapMRFError does not, since it is raised on all of them.

    def __init__(self, ranks: Ranks) -> None:
        self.ranks = ranks
        self.active = False  # whether ranks are watched: there are several, and they could connect
        self._ahead: socket.socket | None = None
        self._behind: socket.socket | None = None
        self._thread = Thread(target=self._watch, daemon=True)

    def __enter__(self) -> Self:
        if self.ranks.size > 1:
            self._connect()
        if self.active:
            self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        alone = kind is not None and not issubclass(kind, MapMRFError)
        if alone and error is not None and self.ranks.size > 1:  # the others do not know, and would wait
            if not isinstance(error, OSError | MemoryError):
                traceback.print_exception(error)
            os.write(2, f"mapmrf: error: rank {self.ranks.rank}: {describe(error)}\n".encode())
            self.ranks.abort(2)
        watching, self.active = self.active, False
        for connection in (self._ahead, self._behind):
            if connection is not None:
                with suppress(OSError):
                    connection.sendall(GOODBYE)
                    connection.shutdown(socket.SHUT_WR)
        self._ahead = self._behind = None
        if watching:
            self._thread.join(SECONDS)  # until the next rank has signed off as well

    def _connect(self) -> None:
        ranks, token = self.ranks, secrets.token_bytes(TOKEN)
        with socket.create_server(("", 0)) as listener:
            listener.settimeout(SECONDS)
            self._places = ranks.allgather((socket.gethostname(), listener.getsockname()[1], token))
            host, port, its_token = self._places[(ranks.rank + 1) % ranks.size]
            with suppress(OSError):
                self._ahead = socket.create_connection((host, port), SECONDS)
                self._ahead.sendall(its_token)
                self._ahead.settimeout(None)
                self._behind, _ = listener.accept()
                self._behind.settimeout(SECONDS)
                if self._behind.recv(TOKEN, socket.MSG_WAITALL) != token:
                    self._behind = None
        self.active = all(ranks.allgather(self._ahead is not None and self._behind is not None))

    def _watch(self) -> None:
        """Wait for the next rank to sign off, or to vanish."""
        other = (self.ranks.rank + 1) % self.ranks.size
        connection = self._ahead
        assert connection is not None
        with suppress(OSError):
            if connection.recv(len(GOODBYE)) == GOODBYE:
                return
        if self.active:
            host = self._places[other][0]
            os.write(2, f"mapmrf: error: rank {other} on {host} died: killed, or out of memory\n".encode())
            self.ranks.abort(2)


# -- Checkpoints of a run on a model in parts: a file for every part, and a manifest that makes them valid ------------
# The files of a checkpoint are complete before the manifest names them, and the old ones are removed only after that.
# So there is always one complete checkpoint, however a run ends. Since they are by parts, a run may be resumed on
# another number of ranks.

MANIFEST = "checkpoint.json"


class SavedParts(SavedRun):
    """A run on a model in parts that is saved at intervals; all ranks save it at the same iteration."""

    name = MANIFEST

    def __init__(self, folder: str | os.PathLike[str], every: float, origin: dict[str, Any], resume: bool) -> None:
        super().__init__(folder, every, origin)
        self.resume, self.folder = resume, Path(folder)

    def begin_parts(self, run: PartedRun, loop: PartedLoop) -> None:
        """Restore the last checkpoint, if there is one; without `resume`, put it into the folder `old`."""
        ranks = run.model.ranks
        if not self.resume:
            together(ranks, lambda: self._set_aside() if ranks.rank == 0 else None)
            return
        data = None if run.engine is None else together(ranks, lambda: read_manifest(self.folder))
        if data is None:
            return
        found = together(ranks, lambda: self._restore_phase(run, data))
        labels, rested = np.zeros((2, len(run.parted.labels)), dtype=np.int64)
        together(ranks, lambda: self._read_parts(int(data["generation"]), run, labels, rested))
        if data["rested"] is not None:
            run.rested_labels, run.rested_value = rested, data["rested"]
        run.parted.start_sums()
        loop.resume(found, labels)

    def save_parts(self, run: PartedRun, loop: PartedLoop) -> None:
        if run.engine is None:
            return
        ranks, generation = run.model.ranks, run.iterations
        run.parted.settle()
        together(ranks, lambda: self._write_parts(generation, run, loop))
        together(ranks, lambda: self._write_manifest(generation, run, loop) if ranks.rank == 0 else None)
        for part in run.model.parts:
            for path in self.folder.glob(f"state-*-{part.number:05d}.mrf"):
                if path != self._state_path(generation, part.number):
                    path.unlink(missing_ok=True)
        self.written = time.perf_counter()

    def _state_path(self, generation: int, part: int) -> Path:
        return self.folder / f"state-{generation:09d}-{part:05d}.mrf"

    def _set_aside(self) -> None:
        if not self.path.exists():
            return
        old = self.folder / "old"
        old.mkdir(exist_ok=True)
        for path in old.glob("state-*.mrf"):
            path.unlink()
        for path in [*self.folder.glob("state-*.mrf"), self.path]:
            os.replace(path, old / path.name)

    def _write_parts(self, generation: int, run: PartedRun, loop: PartedLoop) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        for part, engine, where in zip(run.model.parts, run.parted.engines, run.model.slices, strict=True):
            arrays = engine.state()
            arrays["best"] = loop.incumbent.labels[where]
            if run.rested_labels is not None:
                arrays["rested"] = run.rested_labels[where]
            figures = {"number": part.number, "generation": generation, "block": engine.block}
            write_arrays(self._state_path(generation, part.number), ArrayFile("state", figures, arrays))

    def _write_manifest(self, generation: int, run: PartedRun, loop: PartedLoop) -> None:
        data = {
            "generation": generation,
            "origin": self.origin,
            "run": run.state(),
            "rested": run.rested_value if run.rested_labels is not None else None,
            "loop": loop_figures(loop),
        }
        write_json(self.path, data)

    def _restore_phase(self, run: PartedRun, data: dict[str, Any]) -> dict[str, Any]:
        with damaged(self.path):
            check_options(self.folder, data["origin"], self.origin)
            run.restore(data["run"])
            data["rested"] = None if data["rested"] is None else float(data["rested"])
            return checked_figures(data["loop"])

    def _read_parts(self, generation: int, run: PartedRun, labels: Ints, rested: Ints) -> None:
        for part, engine, where in zip(run.model.parts, run.parted.engines, run.model.slices, strict=True):
            path = self._state_path(generation, part.number)
            _, figures, arrays = read_arrays(path, "state")
            with damaged(path):
                engine.restore(int(figures["block"]), arrays)
                labels[where] = legal(arrays["best"], part.graph.card)
                if "rested" in arrays:
                    rested[where] = legal(arrays["rested"], part.graph.card)


def read_manifest(folder: Path) -> dict[str, Any] | None:
    path = folder / MANIFEST
    if not path.exists():
        return None
    with damaged(path):
        data: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(data.get("generation"), int):
            raise TypeError("it names no checkpoint")
        return data
