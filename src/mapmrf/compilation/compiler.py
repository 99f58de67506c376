"""numba, for kernels whose machine code is nowhere to be found.

The rest of the package imports numba and LLVM from here only. Two threads that import different parts of numba at the
same time wait for each other for ever, or see half of a module: its modules import each other, and take LLVM's lock
meanwhile. Python's lock on this module makes the second wait.
"""

from __future__ import annotations

import importlib
import pickle
import sys
from contextlib import suppress
from functools import cached_property
from types import NoneType
from typing import Any

import numba as numba
import numpy as np
from numba import core
from numba import extending as extending
from numba.core import cgutils as cgutils
from numba.core import event as _event
from numba.core import registry as registry
from numba.core import types as types
from numba.np import numpy_support

import mapmrf.compilation as compilation
from mapmrf.compilation.jit import when_compiling
from mapmrf.compilation.machine_code import EXTENSIONS, MachineCode

event: Any = _event  # untyped
_Listener: Any = event.Listener
_numba: Any = core  # mostly untyped
_support: Any = numpy_support
_tuples: Any = types.BaseTuple
typeof: Any = numba.typeof
_Base: Any = registry.CPUDispatcher


class NumbaListener(_Listener):  # type: ignore[misc]
    """Passes the beginning and the end of numba's events on."""

    def __init__(self, listener: compilation.CompileListener) -> None:
        self.listener = listener

    def on_start(self, event: Any) -> None:
        self.listener.begin()

    def on_end(self, event: Any) -> None:
        self.listener.end()


event.register("numba:compiler_lock", NumbaListener(compilation))

for _name in EXTENSIONS:  # where machine code was loaded before numba, its modules lack these attributes
    if _name in sys.modules:
        _package, _, _own_name = _name.rpartition(".")
        setattr(importlib.import_module(_package), _own_name, sys.modules[_name])


_told: list[Any] = []  # functions of `when_compiling` that have been called


class Dispatcher(_Base):  # type: ignore[misc]
    """A kernel in two forms: one that Python calls, and one without a wrapper for calls from other kernels.

    Wrappers take much of the compile time, and most kernels are called by kernels only. In calls between kernels,
    integers are 64 bits wide and literal types are dropped, so that one specialisation serves all.
    """

    @cached_property
    def type(self) -> Any:
        return types.Dispatcher(self)

    @cached_property
    def linked(self) -> Any:
        """The form that other kernels are compiled against. It is not stored on disk: their code contains it."""
        return _Base(self.py_func, targetoptions={**self.targetoptions, "no_cpython_wrapper": True})

    def compiled(self, kind: Any) -> Any:
        """Compile for arguments of a kind."""
        while len(_told) < len(when_compiling):
            _told.append(when_compiling[len(_told)])
            _told[-1]()
        arguments = tuple(type_of(each) for each in kind[1:])
        self.compile(arguments)
        return self.overloads[arguments]

    @staticmethod
    def packed(result: Any) -> bytes | None:
        """Serialise a compiled kernel: its machine code, and all that it refers to; None if that cannot be done."""
        if result.library.has_dynamic_globals:
            return None
        (_, _, (code, _)), description, *_, referenced = result._reduce()
        environments = {each.env_name: list(each.consts) for each in (result.environment, *referenced)}
        wrapper, name = description.llvm_cpython_wrapper_name, description.qualname.split(".")[-1]
        with suppress(pickle.PicklingError, AttributeError, TypeError):
            return pickle.dumps(tuple(MachineCode(description.modname, name, wrapper, environments, code)))
        return None

    def get_call_template(self, args: Any, kws: Any) -> Any:
        _, args = self._compiler.fold_argument_types(args, kws)
        plain = [_numba.types.unliteral(kind) for kind in args]
        wide = [isinstance(kind, types.Integer) and kind is not types.uint64 for kind in plain]
        passed = tuple(types.int64 if is_wide else kind for is_wide, kind in zip(wide, plain, strict=True))
        return self.linked.get_call_template(passed, {})

    def get_overload(self, sig: Any) -> Any:
        return self.linked.get_overload(sig)


def type_of(kind: Any) -> Any:
    """Return numba's type for a kind of argument."""
    if not isinstance(kind, tuple):
        known = {NoneType: types.none, float: types.float64}
        if kind in known:
            return known[kind]
        return _support.from_dtype(np.dtype(kind)) if isinstance(kind, type) else kind
    first, *rest = kind
    if first is np.ndarray:
        dtype, ndim, (layout, access) = rest
        return types.Array(_support.from_dtype(dtype), ndim, layout, readonly=access == "r")
    if issubclass(first, tuple):
        return _tuples.from_types(tuple(map(type_of, rest)), first)
    if first is np.void:
        return _support.from_dtype(rest[0])
    return types.boolean if first is bool else types.uint64 if rest[0] else types.int64
