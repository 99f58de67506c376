"""Machine code of kernels in memory, without numba: importing that takes longer than many a model.

numba's machine code needs three of its C extensions, which are loaded by themselves, and LLVM to link it. A kernel is
then what it is in numba: a function for arguments of the types that it was compiled for, which it does not check.
"""

from __future__ import annotations

import builtins
import ctypes
import importlib.machinery
import importlib.util
import math
import pickle
import sys
import threading
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

EXTENSIONS = ("numba._helperlib", "numba._dynfunc", "numba.core.runtime._nrt_python")

_lock = threading.RLock()


class MachineCode(NamedTuple):
    """A compiled kernel, as it is stored."""

    module: str
    name: str
    wrapper: str  # symbol of the function for Python
    environments: dict[str, list[Any]]  # constants of the kernel and of its callees, by symbol
    code: bytes  # an object file


@cache
def numba_folder() -> Path | None:
    """The folder of numba; None if it is not installed."""
    spec = importlib.util.find_spec("numba")
    return None if spec is None or spec.origin is None else Path(spec.origin).parent


def load(packed: bytes) -> Callable[..., Any]:
    """Link a kernel's machine code and return the function; raise whatever is wrong with it."""
    found = MachineCode(*pickle.loads(packed))
    with _lock:
        binding, dynfunc = _linker()
        machine = binding.Target.from_triple(binding.get_process_triple()).create_target_machine()
        empty = binding.parse_assembly("")
        engine = binding.create_mcjit_compiler(empty, machine)
        engine.remove_module(empty)  # which would be compiled, too
        engine.add_object_file(binding.ObjectFileRef.from_data(found.code))
        engine.finalize_object()
        kept = []
        for symbol, constants in found.environments.items():
            environment = dynfunc.Environment({})
            environment.consts[:] = constants
            kept.append(environment)
            address = engine.get_global_value_address(symbol)
            if address:
                ctypes.c_void_p.from_address(address).value = id(environment)
        address = engine.get_function_address(found.wrapper)
        if not address:
            raise ValueError(f"{found.wrapper} is not in the machine code of {found.name}")
        owner = sys.modules[found.module]
        made: Callable[..., Any] = dynfunc.make_function(owner, found.name, "", address, kept[0], (engine, *kept))
        return made


@cache
def _linker() -> tuple[Any, Any]:
    """LLVM, which knows all that machine code refers to, and numba's extension that makes functions of it."""
    from llvmlite import binding

    binding.initialize_native_target()
    binding.initialize_native_asmprinter()
    helpers, dynfunc, runtime = (_extension(name) for name in EXTENSIONS)
    symbols = {f"numba_{name}": address for name, address in {**helpers.c_helpers, **dynfunc.c_helpers}.items()}
    symbols |= {name: address for name, address in helpers.c_helpers.items() if name in vars(math)}
    for name, address in runtime.c_helpers.items():
        symbols[name if name.startswith("_") else f"NRT_{name}"] = address
    for kind in vars(builtins).values():
        if isinstance(kind, type) and issubclass(kind, BaseException):
            symbols[f"PyExc_{kind.__name__}"] = id(kind)
    symbols["_Py_NoneStruct"] = id(None)
    if "numba" not in sys.modules:  # numba's own would import all of it
        symbols["numba_unpickle"] = ctypes.cast(_unpickle, ctypes.c_void_p).value
        runtime.memsys_use_cpython_allocator()
    for name, address in symbols.items():
        binding.add_symbol(name, address)
    return binding, dynfunc


def _extension(name: str) -> Any:
    """An extension of numba, which numba itself finds loaded if it is imported later."""
    if name not in sys.modules:
        folder = numba_folder()
        if folder is None:
            raise ImportError("numba is not installed")
        path = folder.joinpath(*name.split(".")[1:])
        files = [path.with_name(path.name + suffix) for suffix in importlib.machinery.EXTENSION_SUFFIXES]
        spec = importlib.util.spec_from_file_location(name, next(file for file in files if file.exists()))
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        sys.modules[name] = module
    return sys.modules[name]


_unpickled = cache(pickle.loads)


def _object_at(data: int, size: int, checksum: int) -> Any:
    """Objects that kernels raise or return: exceptions, and classes of named tuples."""
    return _unpickled(ctypes.string_at(data, size))


_unpickle = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_void_p, ctypes.c_int, ctypes.c_void_p)(_object_at)
