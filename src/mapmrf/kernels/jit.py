"""How kernels are compiled: cached on disk, without the GIL, with IEEE division (1/0 is inf, not an exception)."""

from collections.abc import Callable
from typing import ParamSpec, TypeVar

from numba import njit

P = ParamSpec("P")
R = TypeVar("R")


def compiled(function: Callable[P, R]) -> Callable[P, R]:
    """Compile a kernel on first use."""
    kernel: Callable[P, R] = njit(cache=True, nogil=True, error_model="numpy")(function)
    return kernel
