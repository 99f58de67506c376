"""How kernels are compiled: cached on disk, without the GIL, with IEEE division (1/0 is inf, not an exception)."""

from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

import numba
from numba.core.caching import FunctionCache

P = ParamSpec("P")
R = TypeVar("R")

njit: Any = numba.njit  # its type hints know only some of its options


_Base: Any = FunctionCache  # numba is not typed


class KernelCache(_Base):  # type: ignore[misc]
    """The cache of one kernel on disk; what it cannot read is compiled again.

    numba unpickles an index before it compares the stamps, and the index names the structs of the kernel's parameters:
    after an upgrade one of them may be gone.
    """

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        """The compiled kernel for a signature, or None."""
        try:
            return super().load_overload(sig, target_context)
        except Exception:  # a damaged pickle may raise anything
            self.flush()
            return None

    def save_overload(self, sig: Any, data: Any) -> None:
        """Keep a compiled kernel; an index that cannot be read is begun anew."""
        try:
            super().save_overload(sig, data)
        except Exception:  # a damaged pickle may raise anything
            self.flush()
            super().save_overload(sig, data)


def _kernel(function: Callable[P, R], **options: Any) -> Callable[P, R]:
    dispatcher: Any = njit(nogil=True, error_model="numpy", **options)(function)
    dispatcher._cache = KernelCache(function)  # what cache=True does, with a cache of our own
    kernel: Callable[P, R] = dispatcher
    return kernel


def compiled(function: Callable[P, R]) -> Callable[P, R]:
    """Compile a kernel on first use."""
    return _kernel(function)


def bare(function: Callable[P, R]) -> Callable[P, R]:
    """Compile a kernel that allocates nothing, without numba's reference counts.

    Counting the references to every view of an array more than doubles the time of loops over many small problems.
    """
    return _kernel(function, _nrt=False)


def inlined(function: Callable[P, R]) -> Callable[P, R]:
    """Compile a `bare` piece of a hot loop into its callers: passing a dozen arrays costs more than a solve."""
    return _kernel(function, _nrt=False, forceinline=True)
