"""Reading the potentials of factors: a weight times the entry of a table."""

from __future__ import annotations

from mapmrf.arrays import Floats
from mapmrf.compilation.jit import inlined


@inlined
def weight_of(weight: Floats, a: int) -> float:
    """Return the weight of a factor's table; `weight` is empty if all factors have weight 1."""
    return weight[a] if len(weight) > 0 else 1.0
