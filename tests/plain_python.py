"""Kernels as plain Python: what a kernel computes is tested without the seconds that compiling it would take.

Kernels that others call are in the shipped machine code only as parts of these. What comes out of the compiler is
tested where methods are.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FunctionType, ModuleType
from typing import Any, ParamSpec, TypeVar

import numpy as np
import pytest

P = ParamSpec("P")
R = TypeVar("R")

_names: dict[str, dict[str, Any]] = {}
"""The names of modules, with functions in place of kernels."""


def plain(kernel: Callable[P, R]) -> Callable[P, R]:
    """Return the Python function of a kernel, in which every kernel that it calls is one, too.

    As in kernels, numpy's numbers divided by 0 are inf or nan, and its integers wrap around.
    """
    function = _function_of(kernel)

    def call(*arguments: P.args, **nothing: P.kwargs) -> R:
        with np.errstate(all="ignore"):
            found: R = function(*arguments)
        return found

    return call


@contextmanager
def plain_kernels(*modules: ModuleType) -> Iterator[None]:
    """Make all kernels that the functions of these modules call plain Python for a while."""
    with pytest.MonkeyPatch.context() as patch:
        for module in modules:
            for name, kernel in list(vars(module).items()):
                if _is_kernel(kernel):
                    patch.setattr(module, name, plain(kernel))
        yield


def _function_of(kernel: Any) -> Any:
    made_from = kernel.py_func
    names = _names_of(made_from.__module__)
    return FunctionType(made_from.__code__, names, made_from.__name__, made_from.__defaults__, made_from.__closure__)


def _names_of(module: str) -> dict[str, Any]:
    if module not in _names:
        _names[module] = names = dict(vars(sys.modules[module]))
        names |= {name: _function_of(value) for name, value in vars(sys.modules[module]).items() if _is_kernel(value)}
    return _names[module]


def _is_kernel(value: Any) -> bool:
    return hasattr(value, "py_func")
