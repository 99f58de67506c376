"""How kernels are compiled: cached on disk, without the GIL, with IEEE division (1/0 is inf, not an exception)."""

from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

import numba

P = ParamSpec("P")
R = TypeVar("R")

njit: Any = numba.njit  # its type hints know only some of its options


def compiled(function: Callable[P, R]) -> Callable[P, R]:
    """Compile a kernel on first use."""
    kernel: Callable[P, R] = njit(cache=True, nogil=True, error_model="numpy")(function)
    return kernel


def bare(function: Callable[P, R]) -> Callable[P, R]:
    """Compile a kernel that allocates nothing, without numba's reference counts.

    Counting the references to every view of an array more than doubles the time of loops over many small problems.
    """
    kernel: Callable[P, R] = njit(cache=True, nogil=True, error_model="numpy", _nrt=False)(function)
    return kernel


def inlined(function: Callable[P, R]) -> Callable[P, R]:
    """Compile a `bare` piece of a hot loop into its callers: handing over a dozen arrays costs more than a solve."""
    options = {"cache": True, "nogil": True, "error_model": "numpy", "_nrt": False, "forceinline": True}
    kernel: Callable[P, R] = njit(**options)(function)
    return kernel
