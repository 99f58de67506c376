"""Arcs for pairs that favour equal states and forbid nothing: tables are split once, and weights scale the parts."""

from __future__ import annotations

from typing import NamedTuple

from mapmrf.arrays import Floats
from mapmrf.compilation.jit import bare
from mapmrf.engines.flow.cut_model_kernels import EITHER, BinaryPairs, favours
from mapmrf.engines.flow.network_kernels import Wiring, add_capacity
from mapmrf.kernels.factor_tables import weight_of


class TableParts(NamedTuple):
    """Tables ``t00 + one_i x_i + one_j x_j - coupling |x_i - x_j|`` of two states each.

    Attributes
    ----------
    t00, one_i, one_j, coupling : (n_tables,)
        The parts of each table.
    """

    t00: Floats
    one_i: Floats
    one_j: Floats
    coupling: Floats


@bare
def split_tables(theta_t: Floats, parts: TableParts) -> None:
    """Split all tables; couplings within round-off become 0."""
    for t in range(len(parts.t00)):
        t00, t01, t10, t11 = theta_t[4 * t], theta_t[4 * t + 1], theta_t[4 * t + 2], theta_t[4 * t + 3]
        both, apart = (t11 - t00) / 2.0, (t10 - t01) / 2.0
        parts.t00[t], parts.one_i[t], parts.one_j[t] = t00, both + apart, both - apart
        parts.coupling[t] = ((t00 - t01) + (t11 - t10)) / 2.0
        if favours((t00, t01, t10, t11)) == EITHER:
            parts.coupling[t] = 0.0


@bare
def all_favour_equal(pairs: BinaryPairs, parts: TableParts) -> bool:
    """Return whether no pair favours different states."""
    coupling, table_at, least = parts.coupling, pairs.table_at, 0.0
    for a in range(len(table_at)):
        least = min(least, coupling[table_at[a] // 4] * weight_of(pairs.weight, a))
    return least == 0.0


@bare
def lay_out_plain(pairs: BinaryPairs, parts: TableParts, wiring: Wiring, excess: Floats) -> float:
    """Set the capacities of all pairs and terminals; return the value that corresponds to a cut of cost 0.

    `excess` is the loss of state 1 against state 0.
    """
    theta_v, scope, table_at = pairs.theta_v, pairs.scope, pairs.table_at
    total = lost = 0.0  # compensated summation
    for i in range(len(excess)):
        excess[i] = theta_v[i, 0] - theta_v[i, 1]
        more = total + theta_v[i, 0]
        lost += (total - more) + theta_v[i, 0] if abs(total) >= abs(theta_v[i, 0]) else (theta_v[i, 0] - more) + total
        total = more
    guess = 0
    for a in range(len(table_at)):
        t, weight = table_at[a] // 4, weight_of(pairs.weight, a)
        if parts.t00[t] != 0.0:
            term = weight * parts.t00[t]
            more = total + term
            lost += (total - more) + term if abs(total) >= abs(term) else (term - more) + total
            total = more
        excess[scope[2 * a]] -= weight * parts.one_i[t]
        excess[scope[2 * a + 1]] -= weight * parts.one_j[t]
        capacity = weight * parts.coupling[t]
        if capacity > 0.0:
            guess = add_capacity(wiring, a, guess, capacity, capacity)
    for i in range(len(excess)):
        if excess[i] < 0.0:
            more = total - excess[i]
            lost += (total - more) - excess[i] if abs(total) >= -excess[i] else (-excess[i] - more) + total
            total = more
    return total + lost
