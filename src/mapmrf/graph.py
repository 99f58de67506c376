"""The factor graph and its names, under the path that programs import them from."""

from mapmrf.model.graph import FactorGraph
from mapmrf.model.names import Names

__all__ = ["FactorGraph", "Names"]
