"""The value of a labelling, factor by factor, where only what has changed is looked up again."""

from typing import NamedTuple

from mapmrf.arrays import Floats, Ints
from mapmrf.kernels.factor_tables import weight_of
from mapmrf.kernels.jit import bare


class Tables(NamedTuple):
    """A factor graph as evaluation reads it; arrays of `FactorGraph` with the same names; `weight` may be empty."""

    card: Ints
    var_ptr: Ints
    theta_v: Floats
    scope_ptr: Ints
    scope: Ints
    table_of: Ints
    table_ptr: Ints
    theta_t: Floats
    weight: Floats


@bare
def update_unaries(tables: Tables, labels: Ints, last: Ints, terms_v: Floats) -> None:
    """Look up the unary potential of every variable whose label is not that of `last`."""
    for i in range(len(labels)):
        if labels[i] != last[i]:
            terms_v[i] = tables.theta_v[tables.var_ptr[i] + labels[i]]


@bare
def update_factors(tables: Tables, labels: Ints, last: Ints, terms_f: Floats) -> None:
    """Look up the potential of every factor in whose scope a label is not that of `last`."""
    card, scope_ptr, scope = tables.card, tables.scope_ptr, tables.scope
    for a in range(len(terms_f)):
        changed = False
        at = 0
        for e in range(scope_ptr[a], scope_ptr[a + 1]):
            i = scope[e]
            changed |= labels[i] != last[i]
            at = at * card[i] + labels[i]
        if changed:
            terms_f[a] = tables.theta_t[tables.table_ptr[tables.table_of[a]] + at] * weight_of(tables.weight, a)
