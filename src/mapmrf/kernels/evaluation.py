"""The value of a labelling, term by term."""

from typing import NamedTuple

from mapmrf.arrays import Floats, Ints
from mapmrf.compilation.jit import bare
from mapmrf.kernels.max_marginals import weight_of

LEGAL = -1


class Tables(NamedTuple):
    """A factor graph for evaluation: arrays of `FactorGraph` with the same names; `weight` may be empty."""

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
def first_illegal(card: Ints, labels: Ints) -> int:
    """Return the first variable whose label is not one of its states, or LEGAL."""
    for i in range(len(labels)):
        if labels[i] < 0 or labels[i] >= card[i]:
            return i
    return LEGAL


@bare
def unary_terms(tables: Tables, labels: Ints, first: int, terms: Floats) -> None:
    for k in range(len(terms)):
        terms[k] = tables.theta_v[tables.var_ptr[first + k] + labels[first + k]]


@bare
def factor_terms(tables: Tables, labels: Ints, first: int, terms: Floats) -> None:
    card, scope_ptr, scope, theta_t = tables.card, tables.scope_ptr, tables.scope, tables.theta_t
    for k in range(len(terms)):
        a = first + k
        begin, end, at = scope_ptr[a], scope_ptr[a + 1], 0
        if end - begin == 2:  # most factors, and a loop of two rounds takes twice as long
            i, j = scope[begin], scope[begin + 1]
            at = labels[i] * card[j] + labels[j]
        else:
            for e in range(begin, end):
                at = at * card[scope[e]] + labels[scope[e]]
        terms[k] = theta_t[tables.table_ptr[tables.table_of[a]] + at] * weight_of(tables.weight, a)
