"""Checkpoints of a run in one process: one file, written atomically, from which the run can go on."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import time
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from mapmrf.arrayfile import Array, ArrayFile, read_arrays, write_arrays
from mapmrf.errors import FormatError, MapMRFError, OptionError
from mapmrf.graph import FactorGraph

FILE = "run.mrf"
EVERY = 300.0
"""Seconds between two checkpoints."""


class Snapshot(NamedTuple):
    """The state of a method: figures that JSON can hold, and arrays.

    Examples
    --------
    >>> import numpy as np
    >>> Snapshot({"done": 3}, {"messages": np.zeros(4)}).figures["done"]
    3
    """

    figures: dict[str, Any]
    arrays: dict[str, Array]


def exact(value: Any) -> Any:
    """Numbers as JSON can hold them without loss.

    Examples
    --------
    >>> exact({"gap": [0.1, 3]})
    {'gap': ['0x1.999999999999ap-4', 3]}
    """
    if isinstance(value, float):
        return value.hex()
    if isinstance(value, list | tuple):
        return [exact(one) for one in value]
    if isinstance(value, Mapping):
        return {key: exact(one) for key, one in value.items()}
    return value


def from_exact(value: Any) -> Any:
    """Undo `exact`; tuples come back as lists.

    Examples
    --------
    >>> from_exact(exact({"gap": (0.1, 3)}))
    {'gap': [0.1, 3]}
    """
    if isinstance(value, str):
        return float.fromhex(value) if value.lstrip("-")[:2] == "0x" or value in ("inf", "-inf", "nan") else value
    if isinstance(value, list):
        return [from_exact(one) for one in value]
    if isinstance(value, dict):
        return {key: from_exact(one) for key, one in value.items()}
    return value


@contextlib.contextmanager
def damaged(path: Path) -> Iterator[None]:
    """Turn what a checkpoint with missing or wrong entries leads to into an error that names it."""
    try:
        yield
    except FormatError as error:
        raise error if str(path) in str(error) else FormatError(f"{path}: {error}") from None
    except MapMRFError:
        raise
    except (KeyError, TypeError, ValueError, AttributeError, IndexError, OverflowError, RecursionError) as error:
        raise FormatError(f"{path}: damaged: {type(error).__name__}: {' '.join(str(error).split())}") from None


def check_options(place: Path, found: Mapping[str, Any], wanted: Mapping[str, Any]) -> None:
    """Raise OptionError unless the run is the one that wrote the checkpoint."""
    for name, value in from_exact(exact(wanted)).items():
        if name != "options" and found.get(name) != value:
            raise OptionError(f"{place}: the checkpoint is of another run: its {name} is not the same")
    options = found["options"]
    for name, value in from_exact(exact(wanted["options"])).items():
        if options.get(name) != value:
            raise OptionError(f"{place}: the checkpoint was written with {name}={options.get(name)}, found {value}")


class RunCheckpoint:
    """The checkpoint of a run.

    Parameters
    ----------
    folder, every
        Where it is, and the seconds between two.
    origin
        What the run is: its method, seed and model.

    Examples
    --------
    >>> import tempfile
    >>> import numpy as np
    >>> from mapmrf.checkpoints import RunCheckpoint
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     checkpoint = RunCheckpoint(folder, 60.0, {"method": "lslp", "options": {}})
    ...     checkpoint.write({"iterations": 7}, {"labels": np.zeros(3)})
    ...     checkpoint.read().figures["iterations"], checkpoint.due
    (7, False)
    """

    def __init__(self, folder: str | os.PathLike[str], every: float, origin: dict[str, Any]) -> None:
        if not every >= 0:
            raise OptionError(f"every is {every}, expected a number of seconds of at least 0")
        self.path, self.every, self.origin = Path(folder, FILE), every, origin
        self.written = time.perf_counter()
        self.foreign = True

    @property
    def due(self) -> bool:
        """Whether it is time for another one."""
        return time.perf_counter() >= self.written + self.every

    def write(self, figures: dict[str, Any], arrays: dict[str, Array]) -> None:
        """Replace the last one; one of an earlier run that this one has not begun with is kept as ``run.mrf~``."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        content = ArrayFile("run", exact({**figures, "origin": self.origin}), arrays)
        write_arrays(self.path, content, keep=self.foreign)
        self.foreign = False
        self.written = time.perf_counter()

    def read(self) -> ArrayFile | None:
        """The last one, None if there is none; OptionError if it is of another run."""
        if not self.path.exists():
            return None
        found = read_arrays(self.path, "run", mapped=False)
        with damaged(self.path):
            figures = from_exact(found.figures)
            check_options(self.path, figures["origin"], self.origin)
        self.foreign = False
        return found._replace(figures=figures)


def origin_of(method: Any, seed: int, threads: int, graph: FactorGraph) -> dict[str, Any]:
    """What a checkpoint must be of, to go on with it: method and options, seed, threads and model."""
    options = {key: value for key, value in dataclasses.asdict(method).items() if _plain(value)}
    return {"method": method.name, "options": options, "seed": seed, "threads": threads, "model": _fingerprint(graph)}


def _plain(value: Any) -> bool:
    return value is None or isinstance(value, bool | int | float | str)


def _fingerprint(graph: FactorGraph) -> int:
    """A checksum of the model."""
    crc = 0
    for array in (graph.card, graph.theta_v, graph.scope, graph.table_of, graph.theta_t, graph.weight):
        if array is not None:
            crc = zlib.crc32(np.ascontiguousarray(array).view(np.uint8).data, crc)
    return crc


def check_resume(checkpoint: str | os.PathLike[str] | None, resume: bool) -> None:
    """Raise OptionError if a run is to be resumed, but from nowhere."""
    if resume and checkpoint is None:
        raise OptionError("resume needs a checkpoint: the folder that the earlier run was saved in")
