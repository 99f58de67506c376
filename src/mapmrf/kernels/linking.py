"""Kernels as other kernels call them: intermediate code that becomes machine code only as a part of its callers.

numba makes machine code of every function, even of those that only others call, whose code contains it again. That
takes longer than to optimise it. What the callers are compiled from is the same with and without.
"""

from __future__ import annotations

from typing import Any

from numba.core import codegen, compiler_lock, registry

_Base: Any = registry.CPUDispatcher
_Library: Any = codegen.JITCodeLibrary
_lock: Any = compiler_lock.global_compiler_lock

KNOWN = hasattr(codegen.JITCPUCodegen, "_library_class") and all(
    hasattr(_Library, name)
    for name in ("_finalize_final_module", "_finalize_dynamic_globals", "_verify_declare_only_symbols")
)
"""Whether numba is built as it is expected to be; otherwise kernels are compiled in its usual way, only slower."""


class _NoEnvironments:
    """numba's code generator for a function that cannot be called by itself: its environment is that of its callers."""

    def __init__(self, generator: Any) -> None:
        self._generator = generator

    def __getattr__(self, name: str) -> Any:
        return getattr(self._generator, name)

    def set_env(self, name: str, environment: Any) -> None:
        """Nothing to do."""


class LinkedLibrary(_Library):  # type: ignore[misc]
    """The optimised intermediate code of a function, to be linked into that of its callers."""

    @property
    def codegen(self) -> Any:
        """The code generator."""
        return _NoEnvironments(self._codegen)

    def get_pointer_to_function(self, name: str) -> int:
        """There is no machine code."""
        return 0

    def _finalize_final_module(self) -> None:
        self._finalize_dynamic_globals()
        self._verify_declare_only_symbols()
        self._finalized = True


class LinkedKernel(_Base):  # type: ignore[misc]
    """A kernel that only other kernels call."""

    def compile(self, signature: Any) -> Any:
        """Make the intermediate code for a signature."""
        if not KNOWN:
            return super().compile(signature)
        generator = self.targetctx.codegen()
        with _lock:
            usual = generator._library_class
            generator._library_class = LinkedLibrary
            try:
                return super().compile(signature)
            finally:
                generator._library_class = usual
