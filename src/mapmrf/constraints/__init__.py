"""Constraints in addition to the tables of a graph: counts, parities, all-different, budgets, label costs, automata.

A constraint is a statement about indicators, pairs (variable, state) that are 1 if the variable has the state and 0
otherwise. It is hard, or has a penalty that is subtracted from the value if it is violated. No table is built for it.

>>> import mapmrf
>>> from mapmrf import constraints
>>> graph = mapmrf.FactorGraph.from_tables([2, 2, 2], [(0,), (1,), (2,)], [[0, 3], [0, 2], [0, 1]])
>>> mapmrf.solve(graph.with_constraints([constraints.at_most_k([0, 1, 2], 2)])).labels.tolist()
[1, 1, 0]
"""

from typing import TYPE_CHECKING

from mapmrf.constraints.flat import ConstraintKind as ConstraintKind
from mapmrf.constraints.flat import Constraints as Constraints
from mapmrf.constraints.statements import Constraint as Constraint
from mapmrf.constraints.statements import all_different as all_different
from mapmrf.constraints.statements import at_least_one as at_least_one
from mapmrf.constraints.statements import at_most_k as at_most_k
from mapmrf.constraints.statements import at_most_one as at_most_one
from mapmrf.constraints.statements import exactly_k as exactly_k
from mapmrf.constraints.statements import exactly_one as exactly_one
from mapmrf.constraints.statements import label_cost as label_cost
from mapmrf.constraints.statements import linear as linear
from mapmrf.constraints.statements import or_with_output as or_with_output
from mapmrf.constraints.statements import xor as xor

if TYPE_CHECKING:
    from mapmrf.constraints.kinds.regular import regular as regular


def __getattr__(name: str) -> object:
    """Import the file of a kind that has its statement with it only on first use."""
    if name == "regular":
        from mapmrf.constraints.kinds import regular as kind

        return kind.regular
    raise AttributeError(f"module 'mapmrf.constraints' has no attribute {name!r}")
