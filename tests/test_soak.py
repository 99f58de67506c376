"""The soak of `benches/soak.py`: what it calls a leak, and a short one in the suite."""

from __future__ import annotations

import contextlib
import csv
import gc
import os
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from numba.core.runtime import _nrt_python

from mapmrf import Result, solve
from mapmrf.compilation import process
from mapmrf.constraints import at_most_k
from mapmrf.datasets import grid, random_graph
from mapmrf.errors import UnsupportedModel
from mapmrf.run.clock import wait_for_all
from mapmrf.run.registry import method_names

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads what Linux tells of a process")


@pytest.fixture(scope="module")
def samples_of_soak(benches: Callable[[str], ModuleType]) -> ModuleType:
    return benches("soak")


def run(samples_of_soak: ModuleType, **columns: Callable[[int], float]) -> list[Any]:
    """Samples of 400 rounds of 30 solves: some columns as functions of the round, a little noise in the memory."""
    noise = np.random.default_rng(0).integers(-100_000, 100_000, 400)
    still = dict.fromkeys(samples_of_soak.Sample._fields, 5) | {"resident": 400_000_000, "used": 200_000_000}
    return [
        samples_of_soak.Sample(**{
            **still, "seconds": 9.0 * k, "round": k, "solves": 30 * k, "used": still["used"] + int(noise[k]),
            **{name: int(column(k)) for name, column in columns.items()},
        })
        for k in range(400)
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("column", "name", "grown"),
    [
        ("used", "memory in use", lambda k: 2e8 + 30 * 1000 * k),  # a kilobyte in every solve
        ("used", "memory in use", lambda k: 2e8 + 5e6 * (k // 90)),  # jumps
        ("objects", "objects", lambda k: 200_000 + 3 * k),  # every tenth solve loses an object
        ("arrays", "arrays of kernels", lambda k: k // 150),
        ("threads", "threads", lambda k: 5 + k // 100),
        ("files", "files", lambda k: 5 + k // 100),
        ("children", "children", lambda k: 5 + k // 100),
        ("resident", "resident memory", lambda k: 4e8 + 3e5 * k),  # freed, but never used again
    ],
)
def test_what_is_lost_again_and_again_grows(samples_of_soak, column, name, grown) -> None:
    assert samples_of_soak.what_grows(run(samples_of_soak, **{column: grown})) == [name]


@pytest.mark.parametrize(
    "columns",
    [
        {},
        {"used": lambda k: 2e8 + 5e7 * min(1.0, k / 150)},  # a cache that fills
        {"used": lambda k: 2e8 + 5e7 * (1 - np.exp(-k / 40))},
        {"resident": lambda k: 4e8 + 1e8 * (1 - np.exp(-k / 100))},  # arenas that reach their largest size
        {
            "kernels": lambda k: 180 + (k > 300),
            "used": lambda k: 2e8 + 3e6 * (k > 300),
            "objects": lambda k: 1000 * (k > 300),
        },
        {"threads": lambda k: 5 + k % 2, "files": lambda k: 9 + 2 * (k < 100)},
    ],
    ids=["still", "fills", "saturates", "arenas", "kernel", "threads"],
)
def test_caches_that_fill_and_kernels_are_no_leak(samples_of_soak, columns) -> None:
    assert samples_of_soak.what_grows(run(samples_of_soak, **columns)) == []


def test_samples_of_a_run_that_was_killed_can_be_read(samples_of_soak: ModuleType, tmp_path: Path) -> None:
    samples, path = run(samples_of_soak), tmp_path / "soak.csv"
    with path.open("w", newline="") as lines:
        out = csv.writer(lines)
        out.writerow(samples_of_soak.Sample._fields)
        out.writerows(samples)
        lines.write("3600.0,401,1203")
    assert samples_of_soak.stored(path) == samples


# -- a short one ------------------------------------------------------------------------------------------------------


@pytest.fixture
def counting() -> Iterator[None]:
    """Numba counts the arrays of kernels, and Python only objects that are new: millions were there before."""
    _nrt_python.memsys_enable_stats()
    gc.collect()
    gc.freeze()
    yield
    _nrt_python.memsys_disable_stats()


Holdings = Counter[str]
"""What a process holds: objects of the package's classes by name, arrays of kernels, threads, open files."""


def holdings() -> Holdings:
    process.leave()
    gc.collect()
    kinds = (type(one) for one in gc.get_objects())
    found = Counter(kind.__qualname__ for kind in kinds if str(kind.__module__).startswith("mapmrf."))
    found["arrays"] = int(_nrt_python.memsys_get_stats_mi_alloc() - _nrt_python.memsys_get_stats_mi_free())
    found["threads"], found["files"] = threading.active_count(), len(os.listdir("/proc/self/fd"))
    return found


def solve_some(name: str) -> list[Result]:
    """Solve small models, with forbidden entries and constraints among them, and a large one that is cut short."""
    small = grid(4, 4, seed=0)
    hard = random_graph(6, 8, states=(2, 3), arity=(2, 3), hard=0.2, seed=1)
    found = []
    for graph in (small, hard, small.with_constraints([at_most_k([(0, 1), (1, 1), (2, 1)], 1)])):
        with contextlib.suppress(UnsupportedModel):
            found.append(solve(graph, name, max_iterations=5, threads=2))
    with contextlib.suppress(UnsupportedModel):
        found.append(solve(grid(80, 80, seed=0), name, time_limit=0.01, threads=2))
    wait_for_all()
    return found


def growth(names: Sequence[str], kept: list[Result] | None = None) -> Holdings:
    """What some solves leave behind, every time: a module may be loaded late, but only once."""
    for name in names:
        solve_some(name)
    before, grown = holdings(), Counter[str]()
    for _ in range(4):
        found = [result for name in names for result in solve_some(name)]
        if kept is not None:
            kept += found
        del found
        after = holdings()
        before, grown = after, after - before
        if not grown:
            break
    return grown


@pytest.mark.parametrize("share", range(5))
def test_no_method_leaves_anything_behind(share: int, counting: None) -> None:
    names = method_names()[share::5]
    if grown := growth(names):
        pytest.fail(f"{grown} by {[name for name in names if growth([name])]}")


def test_what_is_kept_is_counted(counting: None) -> None:
    kept: list[Result] = []
    assert growth(["icm"], kept)["Result"] == 4
    assert len(kept) == 16
