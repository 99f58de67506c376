"""The benchmark: methods x models -> records -> tables, figures and a page.

>>> import mapmrf
>>> from mapmrf.datasets import grid
>>> records = mapmrf.bench.run(["icm", mapmrf.TRWS(max_iterations=20)], {"small": grid(3, 3)}, time_limit=5)
>>> [record["run"] for record in records]
['icm', 'trws max_iterations=20']
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mapmrf.bench.api import Records as Records
    from mapmrf.bench.api import run as run

__all__ = ["Records", "run"]


def __getattr__(name: str) -> Any:
    """Import heavy modules only on first use: a worker process needs none of them."""
    if name not in __all__:
        raise AttributeError(f"module 'mapmrf.bench' has no attribute {name!r}")
    return getattr(importlib.import_module("mapmrf.bench.api"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
