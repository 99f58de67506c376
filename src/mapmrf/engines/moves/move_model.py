"""A model laid out for moves: the factors of every variable, the variables of every factor."""

from __future__ import annotations

from typing import NamedTuple
from weakref import WeakKeyDictionary

import numpy as np

from mapmrf.arrays import Floats, Ints, frozen, short
from mapmrf.kernels.random_numbers import UNIT as UNIT
from mapmrf.kernels.random_numbers import Bits as Bits
from mapmrf.kernels.random_numbers import draw as draw
from mapmrf.kernels.random_numbers import next_bits as next_bits
from mapmrf.kernels.random_numbers import seeded as seeded
from mapmrf.model.problem import Problem


class MoveModel(NamedTuple):
    """A model for the kernels of moves."""

    # card, var_ptr, theta_v, theta_t: As in `FactorGraph`
    card: Ints
    var_ptr: Ints
    theta_v: Floats
    theta_t: Floats
    # nbr_ptr, factor_of, stride_of: Factors of every variable, and the variable's stride in the table of each
    nbr_ptr: Ints
    factor_of: Ints
    stride_of: Ints
    # scope_ptr, scope, scope_stride: Variables of every factor, and their strides
    scope_ptr: Ints
    scope: Ints
    scope_stride: Ints
    table_at: Ints  # (n_factors,): Where the factors' tables start in `theta_t`
    weight: Floats  # (n_factors,): Weights of the tables; empty if all weights are 1


_laid_out: WeakKeyDictionary[Problem, MoveModel] = WeakKeyDictionary()


def lay_out(problem: Problem) -> MoveModel:
    """Lay out a problem for moves; all moves on a problem share one layout."""
    if problem not in _laid_out:
        graph = problem.graph
        _laid_out[problem] = MoveModel(
            card=_packed(graph.card),
            var_ptr=_packed(graph.var_ptr),
            theta_v=graph.theta_v,
            theta_t=graph.theta_t,
            nbr_ptr=_packed(problem.nbr_ptr),
            factor_of=_packed(problem.edge_factor[problem.nbr]),
            stride_of=_packed(problem.edge_stride[problem.nbr]),
            scope_ptr=_packed(problem.scope_ptr),
            scope=_packed(problem.scope),
            scope_stride=_packed(problem.edge_stride),
            table_at=_packed(problem.table_at),
            weight=problem.weight,
        )
    return _laid_out[problem]


def _packed(values: Ints) -> Ints:
    """Return a read-only array, in 32 bits where values fit, so that kernels need only one specialisation."""
    return frozen(np.ascontiguousarray(short(values)))


def table_places(problem: Problem, labels: Ints) -> Ints:
    """Return the table entry of every factor under a labelling, as an index of `theta_t`, (n_factors,)."""
    moved = problem.edge_stride * labels[problem.scope]
    return np.asarray(problem.table_at + np.add.reduceat(moved, problem.scope_ptr[:-1], dtype=np.int64))
