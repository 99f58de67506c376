"""Bridges to other libraries: conversion of their models, and our solvers behind their interfaces.

Neither a bridge nor the other library is imported before it is used. Other packages add functions by entry points of
the group ``mapmrf.bridges``.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from mapmrf.run.registry import declared, load

if TYPE_CHECKING:
    from mapmrf.bridges.dimod import from_bqm as from_bqm
    from mapmrf.bridges.dimod import from_cqm as from_cqm
    from mapmrf.bridges.dimod import from_dimod as from_dimod
    from mapmrf.bridges.dimod import from_dqm as from_dqm
    from mapmrf.bridges.dimod import from_polynomial as from_polynomial
    from mapmrf.bridges.dimod import from_qubo as from_qubo
    from mapmrf.bridges.dimod import to_bqm as to_bqm
    from mapmrf.bridges.dimod import to_dqm as to_dqm
    from mapmrf.bridges.frames import from_pandas as from_pandas
    from mapmrf.bridges.frames import to_pandas as to_pandas
    from mapmrf.bridges.networkx import from_networkx as from_networkx
    from mapmrf.bridges.networkx import to_networkx as to_networkx
    from mapmrf.bridges.pgmpy import from_pgmpy as from_pgmpy
    from mapmrf.bridges.pgmpy import map_query as map_query
    from mapmrf.bridges.pgmpy import to_pgmpy as to_pgmpy
    from mapmrf.bridges.pystruct import inference_dispatch as inference_dispatch
    from mapmrf.bridges.pystruct import loss_augmented as loss_augmented
    from mapmrf.bridges.sampler import MapMRFSampler as MapMRFSampler

_NAMES = {
    "dimod": ("from_bqm", "from_cqm", "from_dimod", "from_dqm", "from_polynomial", "from_qubo", "to_bqm", "to_dqm"),
    "frames": ("from_pandas", "to_pandas"),
    "networkx": ("from_networkx", "to_networkx"),
    "pgmpy": ("from_pgmpy", "map_query", "to_pgmpy"),
    "pystruct": ("inference_dispatch", "loss_augmented"),
    "sampler": ("MapMRFSampler",),
}
_LAZY = {name: module for module, names in _NAMES.items() for name in names}
__all__ = sorted(_LAZY)


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        value = getattr(importlib.import_module(f"mapmrf.bridges.{_LAZY[name]}"), name)
    elif not name.startswith("_") and name in declared("mapmrf.bridges"):
        value = load(declared("mapmrf.bridges")[name])
    else:
        raise AttributeError(f"module 'mapmrf.bridges' has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_LAZY, *declared("mapmrf.bridges")})
