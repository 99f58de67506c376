"""Kernels: functions that are compiled without the GIL, with IEEE division (1/0 is inf, not an exception).

Machine code comes from the archive shipped with the package, the user's cache, or the compiler, in this order; after
``mapmrf compile --native`` the user's cache comes first. Only the compiler needs numba, which is not imported before.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import logging
import os
from collections.abc import Callable
from functools import cached_property
from typing import Any, ParamSpec, TypeVar

import numpy as np

import mapmrf.compilation as compilation
from mapmrf.compilation import machine_code
from mapmrf.compilation.store import Key, origins, stamp_of, user_store

P = ParamSpec("P")
R = TypeVar("R")

_log = logging.getLogger("mapmrf")

when_compiling: list[Any] = []
"""Functions that are called before something is compiled, once: they tell numba what others mean in kernels."""


class Kernel:
    """A function and its machine code for every kind of arguments that it has been called with.

    Attributes
    ----------
    py_func
        The function itself.
    targetoptions
        Options of numba's compiler.
    n_loaded
        For how many kinds of arguments the machine code was found, and not compiled in this process.
    """

    def __init__(self, function: Callable[..., Any], options: dict[str, Any]) -> None:
        functools.update_wrapper(self, function)
        self.py_func, self.targetoptions = function, options
        self.name = f"{function.__module__}.{function.__qualname__}"
        self.n_loaded = 0
        self._n_arguments = function.__code__.co_argcount
        self._has_star = bool(function.__code__.co_flags & inspect.CO_VARARGS)
        self._entries: dict[Any, Any] = {}
        self._dispatchers: list[Any] = []

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        if self._has_star and not named:
            arguments = (*arguments[: self._n_arguments], arguments[self._n_arguments :])
        elif named or len(arguments) != self._n_arguments:
            bound = inspect.signature(self.py_func).bind(*arguments, **named)
            bound.apply_defaults()
            arguments = tuple(bound.arguments.values())
        return self.entry(arguments)(*arguments)

    def entry(self, arguments: tuple[Any, ...]) -> Any:
        """Return the machine code for arguments of these types; it accepts no others."""
        kind = kind_of(arguments)
        return self._entries.get(kind) or self.prepare(kind)

    def prepare(self, kind: Any) -> Any:
        """Load the machine code for arguments of a kind, or compile it."""
        compilation.begin()
        try:
            found = self._load(kind)
            if found is None:
                self._announce()
                with compilation.told():
                    from mapmrf.compilation.process import compile_elsewhere

                    found = self._load(kind) if compile_elsewhere(self.name, kind) else None
                    if found is None:
                        found = self.compile(kind)
        finally:
            compilation.end()
        self._entries[kind] = found
        return found

    def _announce(self) -> None:
        if self.name.startswith("mapmrf.") and os.environ.get("MAPMRF_KERNELS") != "compile":
            tell_once()

    def compile(self, kind: Any) -> Any:
        """Compile for arguments of a kind in this process, and store the machine code."""
        result = self.dispatcher.compiled(kind)
        code = self.dispatcher.packed(result)
        if code is not None and "<" not in self.name:  # several of which may have the same name
            user_store().put(Key(self.name, text_of(kind)), self.stamp, code)
        return result.entry_point

    def _load(self, kind: Any) -> Any:
        key = Key(self.name, text_of(kind))
        for origin in origins():
            code = None if origin.code is None else origin.code.get(key, self.stamp)
            if code is not None:
                with contextlib.suppress(Exception):  # whatever is wrong with it, it can be compiled
                    found = machine_code.load(code)
                    self.n_loaded += 1
                    return found
        return None

    @cached_property
    def stamp(self) -> str:
        return stamp_of(self, when_compiling)

    @property
    def dispatcher(self) -> Any:
        """What numba compiles, and what other kernels are compiled against."""
        from mapmrf.compilation.compiler import Dispatcher

        if not self._dispatchers:
            self._dispatchers.append(Dispatcher(self.py_func, targetoptions=self.targetoptions))
        return self._dispatchers[0]  # the one of the first thread

    @property
    def _numba_type_(self) -> Any:
        return self.dispatcher.type


@functools.cache
def tell_once() -> None:
    _log.warning("compiling kernels for this machine, each of them once; `mapmrf compile` compiles all beforehand")


_WRITEABLE = 0x400
_LAYOUTS = {_WRITEABLE * free + order: "ACFC"[order] + "rw"[free] for order in range(4) for free in range(2)}
"""Layouts of arrays by numpy's flags: contiguous as in C, as in Fortran or not at all, and whether it is writeable."""


def kind_of(value: Any) -> Any:
    """Return a key that determines numba's type of an argument."""
    if isinstance(value, np.ndarray):
        return np.ndarray, value.dtype, value.ndim, _LAYOUTS[value.flags.num & 0x403]
    if isinstance(value, tuple):
        return type(value), *map(kind_of, value)
    if isinstance(value, np.void):
        return np.void, value.dtype
    if isinstance(value, int):
        return type(value), value.bit_length() > 63
    if value is None or isinstance(value, float | np.generic):
        return type(value)
    from mapmrf.compilation.compiler import typeof

    return typeof(value)


def text_of(kind: Any) -> str:
    """Return a kind as text, the same in all processes."""
    if isinstance(kind, tuple):
        return f"({', '.join(map(text_of, kind))})"
    if isinstance(kind, np.dtype):  # of records or not
        return f"{kind.descr} {kind.itemsize} {kind.isalignedstruct}" if kind.names else kind.str
    fields = getattr(kind, "_fields", "")  # of a NamedTuple, whose order matters
    return f"{kind.__module__}.{kind.__qualname__}{fields}" if isinstance(kind, type) else repr(kind)


def _kernel(function: Callable[P, R], **options: Any) -> Callable[P, R]:
    if os.environ.get("NUMBA_DISABLE_JIT", "0") not in ("", "0"):
        return function
    options |= {"nopython": True, "nogil": True, "error_model": "numpy", "boundscheck": None, "no_cfunc_wrapper": True}
    kernel: Any = Kernel(function, options)
    found: Callable[P, R] = kernel
    return found


def predispatched(kernel: Callable[P, R]) -> Callable[P, R]:
    """Return a kernel that dispatches on the types of its arguments in the first call only; they must never change."""
    # Otherwise every call dispatches, which takes 0.2 us per array in a NamedTuple: as long as an iteration on a few
    # dozen variables. Callers that call a kernel repeatedly with the same arrays use this form.
    entry: Any = None

    def call(*arguments: P.args, **nothing: P.kwargs) -> R:
        nonlocal entry
        if entry is None:
            entry = kernel.entry(arguments) if hasattr(kernel, "entry") else kernel
        found: R = entry(*arguments)
        return found

    return call


def compiled(function: Callable[P, R]) -> Callable[P, R]:
    return _kernel(function)


def bare(function: Callable[P, R]) -> Callable[P, R]:
    """Compile a kernel that allocates nothing, without numba's reference counting."""
    # Counting references to every array view more than doubles the time of loops over many small problems.
    return _kernel(function, _nrt=False)


def inlined(function: Callable[P, R]) -> Callable[P, R]:
    """Compile a `bare` part of a hot loop into its callers: passing a dozen arrays costs more than a solve."""
    return _kernel(function, _nrt=False, forceinline=True)
