"""`solve` for a folder of parts."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from mapmrf.cli.program import INFEASIBLE, INTERRUPTED, complain
from mapmrf.errors import OptionError

if TYPE_CHECKING:
    from mapmrf.distributed.ranks import Ranks
    from mapmrf.distributed.run import PartedResult
    from mapmrf.run.method import Method


def is_part_folder(model: str) -> bool:
    """Return whether a model is a folder of parts; imports nothing heavy."""
    return Path(model, "parts.json").is_file()


class Saving(NamedTuple):
    """The options of `solve` for checkpoints."""

    checkpoint: str | None
    every: float
    resume: bool


@dataclass(frozen=True)
class PartsRequest:
    """The output of a run on parts: what to write and what to print."""

    output: str | None
    trace: str | None
    as_json: bool
    lines: str | None
    quiet: bool


def solve_parts(
    folder: str, method: Method, limits: dict[str, Any], request: PartsRequest, refused: dict[str, object]
) -> int:
    """Solve a model in parts on all ranks; rank 0 prints."""
    for option, value in refused.items():
        if value is not None:
            raise OptionError(f"{option} does not apply to a model in parts")
    from mapmrf.distributed.ranks import find_ranks

    ranks = find_ranks()
    try:
        code = _solve(folder, ranks, method, limits, request)
    except Exception as error:
        return _fail(ranks, error)
    ranks.leave()  # the program may end without mpi4py's own cleaning
    return code


def _solve(folder: str, ranks: Ranks, method: Method, limits: dict[str, Any], request: PartsRequest) -> int:
    from mapmrf.distributed.loop import solve
    from mapmrf.run.progress import ImprovementLines

    chief = ranks.rank == 0
    initial = limits.pop("initial")
    if initial is not None:
        limits["initial"] = _read_initial(initial, folder)
    callback = None
    if request.lines is not None and chief:
        callback = ImprovementLines(lambda line: click.echo(line, err=True), regularly=request.lines == "log").update
    shown = request.lines is None and not request.quiet
    result = solve(folder, ranks, method, callback=callback, progress=shown, **limits)
    if request.output is not None:
        result.write_labels(request.output)
    if chief:
        _print(result, request)
    from mapmrf.run.result import Status

    return {Status.INFEASIBLE: INFEASIBLE, Status.INTERRUPTED: INTERRUPTED}.get(result.status, 0)


def _read_initial(path: str, folder: str) -> Any:
    """Read labels by parts, or a solution file."""
    from mapmrf.distributed.evaluation import join_labels
    from mapmrf.distributed.parts import PartFolder
    from mapmrf.formats.solution import read_solution

    return join_labels(path) if Path(path).is_dir() else read_solution(path, PartFolder(folder).counts.n_vars)


def _print(result: PartedResult, request: PartsRequest) -> None:
    from mapmrf.run.trace import write_trace

    if request.trace is not None:
        write_trace(result.trace, request.trace)
    if request.as_json or not request.quiet:
        click.echo(result.to_json() if request.as_json else result.summary())


def _fail(ranks: Ranks, error: Exception) -> int:
    """Print one line that names the rank; an error that all ranks share is printed by the first one only."""
    from mapmrf.distributed.parts import RankError, describe
    from mapmrf.errors import MapMRFError

    shared = isinstance(error, RankError | MapMRFError | ImportError)
    if shared:
        if ranks.rank == 0:
            complain(f"error: {error}")
        return 2
    if ranks.size == 1:
        raise error
    complain(f"error: rank {ranks.rank}: {type(error).__name__}: {describe(error)}")
    ranks.abort(2)
    return 2
