"""The kinds of constraints: every file of this folder holds one, a class derived from `KindInterface`."""

from __future__ import annotations

import importlib
import pkgutil
from functools import cache

from mapmrf.constraints.flat import KindInterface


@cache
def kinds() -> dict[int, KindInterface]:
    """Return the kinds by their numbers."""
    modules = [importlib.import_module(f"{__name__}.{found.name}") for found in pkgutil.iter_modules(__path__)]
    every = [each for module in modules for each in vars(module).values() if isinstance(each, type)]
    own = [each for each in every if issubclass(each, KindInterface) and each is not KindInterface]
    found = {each.number: each() for each in own}
    assert len(found) == len(own), "two kinds of constraints have the same number"
    return found
