"""Compilation of kernels: without the GIL, with IEEE division (1/0 is inf, not an exception), and cached on disk.

Machine code comes from the archive shipped with the package, the user's cache, or the compiler, in this order; after
``mapmrf compile --native`` the user's cache comes first.

The rest of the package imports numba and LLVM from here only. Two threads that import different parts of numba at the
same time wait for each other for ever, or see half of a module: its modules import each other, and take LLVM's lock
meanwhile. Python's lock on this module makes the second wait.
"""

from __future__ import annotations

import contextlib
import pickle
from collections.abc import Callable
from functools import cached_property
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

import llvmlite as llvmlite
import numba as numba
import numpy as np
from llvmlite import binding as binding
from llvmlite import ir as ir
from numba import core as core
from numba import extending as extending
from numba.core import cgutils as cgutils
from numba.core import config as config
from numba.core import event as _event
from numba.core import registry as registry
from numba.core import types as types

import mapmrf.compilation as compilation
from mapmrf.compilation.store import Key, Store, current_stamp, origins, user_store

P = ParamSpec("P")
R = TypeVar("R")

event: Any = _event  # untyped
_Listener: Any = event.Listener
_numba: Any = core  # mostly untyped
_Base: Any = registry.CPUDispatcher


def listener(begin: Callable[[], None], end: Callable[[], None]) -> Any:
    class CompileListener(_Listener):  # type: ignore[misc]
        def on_start(self, event: Any) -> None:
            begin()

        def on_end(self, event: Any) -> None:
            end()

    return CompileListener()


event.register("numba:compiler_lock", listener(compilation.begin, compilation.end))


class Kernel(_Base):  # type: ignore[misc]
    """A compiled function in two forms: one that Python calls, and one without a wrapper for calls from other kernels.

    Wrappers take much of the compile time, and most kernels are called by kernels only. In calls between kernels,
    integers are 64 bits wide and literal types are dropped, so that one specialisation serves all.
    """

    _linked: Any = None

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._entries: dict[Any, Any] = {}

    @property
    def linked(self) -> Any:
        """The form that other kernels are compiled against. It is not stored on disk: their code contains it."""
        if self._linked is None:
            self._linked = _Base(self.py_func, targetoptions={**self.targetoptions, "no_cpython_wrapper": True})
        return self._linked

    def entry(self, arguments: tuple[Any, ...]) -> Any:
        """Return the machine code for arguments of these types; it accepts no others."""
        # numba needs half a millisecond to determine the types of some dozen arrays, so they are cached by kind.
        kind = kind_of(arguments)
        found = self._entries.get(kind)
        if found is None:
            found = self._entries[kind] = self.compile(tuple(self.typeof_pyval(argument) for argument in arguments))
        return found

    def get_call_template(self, args: Any, kws: Any) -> Any:
        _, args = self._compiler.fold_argument_types(args, kws)
        plain = [_numba.types.unliteral(kind) for kind in args]
        wide = [isinstance(kind, types.Integer) and kind is not types.uint64 for kind in plain]
        passed = tuple(types.int64 if is_wide else kind for is_wide, kind in zip(wide, plain, strict=True))
        return self.linked.get_call_template(passed, {})

    def get_overload(self, sig: Any) -> Any:
        return self.linked.get_overload(sig)


def kind_of(value: Any) -> Any:
    """Return a key that determines numba's type of an argument."""
    if isinstance(value, np.ndarray):
        flags = value.flags
        return (type(value), value.dtype, value.ndim, flags.c_contiguous, flags.f_contiguous, flags.writeable,
                flags.aligned)  # fmt: skip
    if isinstance(value, tuple):
        return type(value), *map(kind_of, value)
    if isinstance(value, np.void):
        return np.void, value.dtype
    if isinstance(value, int):
        return type(value), value.bit_length() > 63
    return type(value) if isinstance(value, float | np.generic) else _numba.typing.typeof.typeof(value)


class KernelCache:
    """Storage for the machine code of one kernel, which replaces numba's cache."""

    # A file that is damaged, stale or for another CPU is never loaded; the kernel is compiled instead.

    def __init__(self, function: Callable[..., Any]) -> None:
        self.name = f"{function.__module__}.{function.__qualname__}"
        self.file = Path(function.__code__.co_filename)

    @cached_property
    def stamp(self) -> str:
        return current_stamp(self.name, self.file)

    @property
    def cache_path(self) -> str:
        return str(user_store().folder)

    def load_overload(self, signature: Any, target: Any) -> Any:
        """Return the machine code for a signature, or None if it must be compiled."""
        key = Key(self.name, str(signature))
        found = self._load(key, target)
        if found is None:
            from mapmrf.compilation.process import compile_elsewhere  # rarely needed

            found = self._load(key, target) if compile_elsewhere(self.name, signature) else None
        return found

    def _load(self, key: Key, target: Any) -> Any:
        for origin in origins():
            if isinstance(origin.code, Store):
                code = origin.code.get(key, self.stamp)
            else:
                code = None if origin.code is None else origin.code.get(key)
            if code is not None:
                with contextlib.suppress(Exception):  # whatever is wrong with it, it can be compiled
                    # all that machine code needs; a compiler needs half a second more
                    _numba.runtime.rtsys.initialize(target)
                    return _numba.compiler.CompileResult._rebuild(target, *pickle.loads(code))
        return None

    def save_overload(self, signature: Any, found: Any) -> None:
        if self.stamp and not found.library.has_dynamic_globals:
            user_store().put(Key(self.name, str(signature)), self.stamp, packed(found))

    def flush(self) -> None:
        """Do nothing: stale code is never found."""


def packed(found: Any) -> bytes:
    """Serialise a compiled kernel: its machine code, and the metadata that numba needs."""
    # numba also stores the intermediate code, to compile other kernels against and to look up symbol names; the names
    # are enough here.
    (name, kind, (code, _)), *rest = found._reduce()
    description, environments = found.fndesc, rest[-1]
    module = ir.Module()
    for function in (description.llvm_func_name, description.llvm_cpython_wrapper_name):
        body = ir.Function(module, ir.FunctionType(ir.VoidType(), ()), function)
        ir.IRBuilder(body.append_basic_block()).ret_void()
    for variable in {description.env_name, *(environment.env_name for environment in environments)}:
        ir.GlobalVariable(module, ir.IntType(8), variable).initializer = ir.Constant(ir.IntType(8), 0)
    rest[5] = ""  # the annotated source
    names = binding.parse_assembly(str(module)).as_bitcode()
    data: bytes = _numba.serialize.dumps(((name, kind, (code, names)), *rest))
    return data


def _kernel(function: Callable[P, R], **options: Any) -> Callable[P, R]:
    if _numba.config.DISABLE_JIT:
        return function
    options |= {"nopython": True, "nogil": True, "error_model": "numpy", "boundscheck": None, "no_cfunc_wrapper": True}
    dispatcher: Any = Kernel(function, targetoptions=options)
    dispatcher._cache = KernelCache(function)
    kernel: Callable[P, R] = dispatcher
    return kernel


def predispatched(kernel: Callable[P, R]) -> Callable[P, R]:
    """Return a kernel that dispatches on the types of its arguments in the first call only; they must never change."""
    # Otherwise every call dispatches, which takes 0.1 us per array in a NamedTuple: as long as an iteration on a few
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
