"""Kernels as plain Python: the same functions without the compiler, for comparison and for coverage."""

from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType

import pytest


@contextmanager
def plain_python(*modules: ModuleType) -> Iterator[None]:
    """Run the kernels that modules define or import as plain Python."""
    with pytest.MonkeyPatch.context() as patch:
        for module in modules:
            for name, kernel in list(vars(module).items()):
                if hasattr(kernel, "py_func"):
                    patch.setattr(module, name, kernel.py_func)
        yield
