"""Kernels that other kernels call become machine code only as a part of these."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from mapmrf.arrays import Floats
from mapmrf.kernels.jit import bare, compiled, inlined, settled
from mapmrf.kernels.linking import LinkedLibrary

MODULE = """
import numpy as np
from mapmrf.kernels.jit import compiled

@compiled
def checked(x):
    if x < 0.0:
        raise ValueError("negative")
    return np.sqrt(np.full(3, x)).sum()

@compiled
def outer(x):
    return checked(x) + 1.0

def main():
    found = [outer(4.0), sum(outer.stats.cache_hits.values())]
    try:
        outer(-1.0)
    except ValueError as error:
        found.append(error)
    print(*found)
"""


@inlined
def _twice(x: float) -> float:
    return 2.0 * x


@bare
def _sum_twice(values: Floats) -> float:
    total = 0.0
    for x in values:
        total += _twice(x)
    return total


@compiled
def _three(values: Floats) -> float:
    return _sum_twice(values) + np.ones(3).sum()


def test_a_kernel_works_from_python_and_from_kernels_in_any_order() -> None:
    values = np.arange(4.0)
    assert _three(values) == 15.0
    assert _sum_twice(values) == 12.0
    assert _three(values[::2]) == 7.0


def test_what_only_kernels_call_has_no_machine_code() -> None:
    kernel = _sum_twice.linked  # type: ignore[attr-defined]
    kernel.compile((kernel.typeof_pyval(np.arange(4.0)),))
    linked = next(iter(kernel.overloads.values()))
    assert isinstance(linked.library, LinkedLibrary)
    assert linked.library.get_pointer_to_function(linked.fndesc.llvm_func_name) == 0


def test_errors_in_an_inner_kernel_come_out_also_of_the_cache(tmp_path: Path) -> None:
    (tmp_path / "module.py").write_text(MODULE)
    env = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path / "cache")}
    command = [sys.executable, "-c", "import module; module.main()"]
    for hits in (0, 1):
        done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, check=True)
        assert done.stdout.split() == ["7.0", str(hits), "negative"]


def test_a_settled_kernel_gives_the_same_and_looks_at_types_once(monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = settled(_sum_twice)
    assert kernel(np.arange(4.0)) == 12.0
    monkeypatch.setattr(type(_sum_twice), "entry", None)
    assert kernel(np.arange(5.0)) == 20.0
