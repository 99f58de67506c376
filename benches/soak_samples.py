"""The resources held by a process after each round of `soak.py`, and whether they grow. Needs Linux with glibc.

Resident memory is not what a process holds: glibc keeps freed memory of every thread's arena, up to the most that the
arena ever had, and `malloc_trim` does not return memory at the end of an arena. So the bytes in use are counted:
those that malloc has given out and not got back. Python's own allocator must be malloc for that
(`PYTHONMALLOC=malloc`), and numba must count (`NUMBA_NRT_STATS=1`).
"""

from __future__ import annotations

import contextlib
import csv
import ctypes
import gc
import itertools
import os
import resource
import statistics
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numba.core.dispatcher import Dispatcher
from numba.core.runtime.nrt import rtsys

SETTINGS = {"PYTHONMALLOC": "malloc", "NUMBA_NRT_STATS": "1"}
"""The environment in which everything is counted."""

ONE_ARENA = {"MALLOC_ARENA_MAX": "1"}
"""The environment in which threads share an arena, so that resident memory is close to what is in use."""

BYTES, BYTES_PER_SOLVE = 2e6, 50.0
"""Growth of the memory in use over the second half of a run that counts as none, plus so many bytes per solve.

Steps of one or two megabytes were seen once in thousands of solves: the sizes are those of Python's table of interned
strings when it is rebuilt.
"""

OBJECTS, OBJECTS_PER_SOLVE = 200.0, 0.02
"""The same for Python's objects."""

RESIDENT_SHARE = 0.05
"""Growth of the resident memory from the third quarter to the last that counts as none."""


class Sample(NamedTuple):
    """What the process holds after a round.

    Attributes
    ----------
    solves
        Solves so far, those of batches and benchmarks with them.
    resident, used
        Bytes of resident memory, and those that malloc has given out.
    objects
        Python's objects that the garbage collector knows.
    arrays
        Arrays of kernels that are alive.
    kernels
        Machine code that is loaded: kernels, by signature. There is an end of them, but some are only for rare models.
    """

    seconds: float
    round: int
    solves: int
    resident: int
    used: int
    objects: int
    arrays: int
    kernels: int
    threads: int
    files: int
    children: int


class _Mallinfo(ctypes.Structure):
    _fields_ = [
        (name, ctypes.c_size_t)
        for name in (
            "arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "uordblks", "fordblks", "keepcost",
        )
    ]  # fmt: skip


def take_sample(seconds: float, number: int, solves: int) -> Sample:
    """Count, after the garbage is gone."""
    gc.collect()
    known = gc.get_objects()
    objects = len(known) - number  # the samples of the rounds before are no leak
    kernels = sum(len(one.overloads) for one in known if isinstance(one, Dispatcher))
    del known
    return Sample(
        seconds=seconds,
        round=number,
        solves=solves,
        resident=resident(),
        used=given_out(),
        objects=objects,
        arrays=arrays_alive(),
        kernels=kernels,
        threads=len(list(Path("/proc/self/task").iterdir())),
        files=len(os.listdir("/proc/self/fd")),
        children=_children(),
    )


def fill_caches() -> None:
    """Fill the caches that NumPy and glibc have for freed small blocks, of every size some: they count as given out."""
    libc = ctypes.CDLL(None)
    libc.malloc.restype, libc.malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
    libc.free.argtypes = [ctypes.c_void_p]
    for size in range(1024):
        arrays = [np.empty(size, dtype=np.uint8) for _ in range(16)]
        del arrays
    for size in range(16, 1056, 16):
        for block in [libc.malloc(size) for _ in range(16)]:
            libc.free(block)


def given_out() -> int:
    """Bytes that malloc has given out and not got back, in heaps and in blocks of their own."""
    libc = ctypes.CDLL(None)
    libc.mallinfo2.restype = _Mallinfo
    found = libc.mallinfo2()
    return int(found.uordblks + found.hblkhd)


def resident() -> int:
    """Bytes of memory that this process has now."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def arrays_alive() -> int:
    """Arrays that kernels have made and nobody has freed, if numba counts them and was needed so far."""
    try:
        counts = rtsys.get_allocation_stats()
    except RuntimeError:
        return 0
    return int(counts.mi_alloc - counts.mi_free)


def _children() -> int:
    """Child processes of all threads; a thread may end while it is looked at."""
    count = 0
    for task in Path("/proc/self/task").iterdir():
        with contextlib.suppress(OSError):
            count += len((task / "children").read_text().split())
    return count


# -- what grows -------------------------------------------------------------------------------------------------------


def what_grows(samples: list[Sample]) -> list[str]:
    """What has grown over the second half of a run.

    A cache that fills has filled by then; what is lost in every solve, or in every hundredth, is lost to the end. The
    memory of kernels that were loaded on the way is left out. Of the resident memory, some of which glibc keeps, the
    medians of the last two quarters are compared.
    """
    names = {"used": "memory in use", "objects": "objects", "arrays": "arrays of kernels"}
    grown = [names[what] for what, most in allowed(samples).items() if growth(samples, what) > most]
    for what in ("threads", "files", "children"):
        _, second, _, last = quarters(samples, what)
        if last > second:
            grown.append(what)
    *_, third, last = quarters(samples, "resident")
    if last - third > RESIDENT_SHARE * third:
        grown.append("resident memory")
    return grown


def allowed(samples: list[Sample]) -> dict[str, float]:
    """Growth per solve over the second half that counts as none."""
    solves = _solves(samples[len(samples) // 2 :])
    return {
        "used": BYTES / solves + BYTES_PER_SOLVE,
        "objects": OBJECTS / solves + OBJECTS_PER_SOLVE,
        "arrays": 0.0,
    }


def _solves(samples: list[Sample]) -> int:
    return max(1, samples[-1].solves - samples[0].solves)


def _steps(samples: list[Sample], what: str) -> Iterator[float]:
    """Differences from one round to the next, without those in which kernels were loaded."""
    for before, after in itertools.pairwise(samples):
        if before.kernels == after.kernels:
            yield getattr(after, what) - getattr(before, what)


def growth(samples: list[Sample], what: str) -> float:
    """Growth per solve over the second half, without rounds in which kernels were loaded."""
    half = samples[len(samples) // 2 :]
    return sum(_steps(half, what)) / _solves(half)


def quarters(samples: list[Sample], what: str) -> list[float]:
    """Medians of the four quarters of a run."""
    ends = [len(samples) * part // 4 for part in range(5)]
    return [
        statistics.median(getattr(one, what) for one in samples[begin : max(end, begin + 1)])
        for begin, end in itertools.pairwise(ends)
    ]


# -- tables -----------------------------------------------------------------------------------------------------------

COLUMNS = (
    "minutes", "rounds", "solves", "kernels", "in use, MB", "resident, MB",
    "objects", "arrays", "threads", "files", "children",
)  # fmt: skip
HEAD = f"| {' | '.join(COLUMNS)} |\n{'|---' * len(COLUMNS)}|"


def row(one: Sample) -> str:
    """A sample as a row below `HEAD`."""
    return (
        f"| {one.seconds / 60:.1f} | {one.round} | {one.solves} | {one.kernels} | {one.used / 1e6:.1f} | "
        f"{one.resident / 1e6:.1f} | {one.objects} | {one.arrays} | {one.threads} | {one.files} | {one.children} |"
    )


def by_quarters(samples: list[Sample]) -> str:
    """A table of medians, and the growth that the verdict is about."""
    rows = ["| median of | first quarter | second | third | last | most |", "|---|---|---|---|---|---|"]
    for what, name in {"used": "memory in use, MB", "resident": "resident memory, MB"}.items():
        figures = [*quarters(samples, what), max(getattr(one, what) for one in samples)]
        rows.append(f"| {name} | " + " | ".join(f"{figure / 1e6:.1f}" for figure in figures) + " |")
    for what in ("objects", "arrays", "kernels", "threads", "files", "children"):
        figures = [*quarters(samples, what), max(getattr(one, what) for one in samples)]
        rows.append(f"| {what} | " + " | ".join(f"{figure:.0f}" for figure in figures) + " |")
    used, objects, most = growth(samples, "used"), growth(samples, "objects"), allowed(samples)
    return "\n".join([
        *rows, "", "Growth per solve in the second half, without rounds that loaded kernels:",
        f"{used:+.0f} bytes and {objects:+.3f} objects; a leak is what exceeds {most['used']:.0f} bytes "
        f"or {most['objects']:.2f} objects.",
    ])  # fmt: skip


def stored(path: Path) -> list[Sample]:
    """Samples from a file; the last line of a run that was killed may not be whole."""
    with path.open(newline="") as lines:
        rows = [row for row in csv.DictReader(lines) if None not in row.values()]
    return [
        Sample(**{name: (float if name == "seconds" else int)(row[name]) for name in Sample._fields}) for row in rows
    ]


def spread(samples: list[Sample], lines: int = 12) -> list[Sample]:
    """The first sample, the last one, and some between them, at about equal times."""
    times = np.linspace(samples[0].seconds, samples[-1].seconds, lines)
    places = np.unique(np.searchsorted([one.seconds for one in samples], times))
    return [samples[min(place, len(samples) - 1)] for place in places.tolist()]


class Reading:
    """Samples of a run, printed about `lines` times over its time.

    Parameters
    ----------
    seconds
        How long the run takes.
    """

    def __init__(self, seconds: float, lines: int = 12) -> None:
        self.samples: list[Sample] = []
        self.began, self._every, self._shown = time.monotonic(), seconds / lines, 0
        print(HEAD, flush=True)

    def take(self, solves: int) -> Sample:
        """Sample the process after a round."""
        one = take_sample(time.monotonic() - self.began, len(self.samples) + 1, solves)
        self.samples.append(one)
        if one.seconds >= self._shown * self._every:
            self._shown = int(one.seconds / self._every) + 1
            print(row(one), flush=True)
        return one
