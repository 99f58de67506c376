"""numba and LLVM, which the rest of the package imports from here only.

Two threads that import different parts of numba at the same time wait for each other for ever, or see half of a module:
its modules import each other, and take LLVM's lock meanwhile. Python's lock on this module makes the second wait.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import llvmlite as llvmlite
import numba as numba
from llvmlite import binding as binding
from llvmlite import ir as ir
from numba import core as core
from numba import extending as extending
from numba.core import cgutils as cgutils
from numba.core import config as config
from numba.core import event as _event
from numba.core import registry as registry
from numba.core import types as types

from mapmrf.compilation import stopping

event: Any = _event  # untyped
_Listener: Any = event.Listener


def listener(begin: Callable[[], None], end: Callable[[], None]) -> Any:
    class CompileListener(_Listener):  # type: ignore[misc]
        def on_start(self, event: Any) -> None:
            begin()

        def on_end(self, event: Any) -> None:
            end()

    return CompileListener()


event.register("numba:compiler_lock", listener(stopping.begin, stopping.end))
