"""Constraints in addition to the tables of a graph: counts, parities, all-different, budgets, label costs, automata.

A constraint is a statement about indicators, pairs (variable, state) that are 1 if the variable has the state and 0
otherwise. It is hard, or has a penalty that is subtracted from the value if it is violated. No table is built for it.

>>> import mapmrf
>>> from mapmrf import constraints
>>> graph = mapmrf.FactorGraph.from_tables([2, 2, 2], [(0,), (1,), (2,)], [[0, 3], [0, 2], [0, 1]])
>>> mapmrf.solve(graph.with_constraints([constraints.at_most_k([0, 1, 2], 2)])).labels.tolist()
[1, 1, 0]
"""

import importlib
import importlib.util
from typing import TYPE_CHECKING, Any

from mapmrf.constraints.flat import ConstraintKind, Constraints
from mapmrf.constraints.statements import (
    Constraint,
    all_different,
    at_least_one,
    at_most_k,
    at_most_one,
    exactly_k,
    exactly_one,
    label_cost,
    linear,
    or_with_output,
    xor,
)

__all__ = [
    "Constraint",
    "ConstraintKind",
    "Constraints",
    "all_different",
    "at_least_one",
    "at_most_k",
    "at_most_one",
    "exactly_k",
    "exactly_one",
    "label_cost",
    "linear",
    "or_with_output",
    "regular",
    "xor",
]

if TYPE_CHECKING:
    from mapmrf.constraints.kinds.regular import regular as regular


def __getattr__(name: str) -> Any:
    """Import the file of a kind that has its statement with it only on first use."""
    if importlib.util.find_spec(f"{__name__}.kinds.{name}") is not None:
        kind = importlib.import_module(f"{__name__}.kinds.{name}")
        if hasattr(kind, name):
            return getattr(kind, name)
    raise AttributeError(f"module 'mapmrf.constraints' has no attribute {name!r}")
