"""One file per method; the file's name is the method's name."""

import sys
from types import ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mapmrf.run.method import Method


class _Callable(ModuleType):
    """Make the package callable: importing it hides the function `mapmrf.methods`, so it answers to the same call."""

    def __call__(self) -> "dict[str, type[Method]]":
        from mapmrf.run.registry import methods

        return methods()


sys.modules[__name__].__class__ = _Callable
