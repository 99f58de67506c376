"""The factor graph and its names, under the path that programs import them from."""

from mapmrf.model.graph import FactorGraph as FactorGraph
from mapmrf.model.names import Names as Names
