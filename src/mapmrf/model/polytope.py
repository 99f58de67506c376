"""The local polytope L_G: marginals of factors, how far a point is from it, and what kind of point it is."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

import numpy as np

from mapmrf.arrays import Bools, Floats, Ints, row_sums, segment_max
from mapmrf.model.problem import Batch, Problem

if TYPE_CHECKING:
    from mapmrf.constraints import Constraints

FactorMarginals = Floats | Callable[[Batch, slice], Floats]
"""mu_f: one flat array, or a function that gives some rows of a batch as (n_rows, n_configs)."""
BLOCK_ENTRIES = 1 << 19  # entries of mu_f that are processed together
TOLERANCE = 1e-4  # default tolerance of `classify`, in the max norm


class Kind(StrEnum):
    """The paper's four kinds of a relaxed solution (its table of measures).

    Examples
    --------
    >>> import mapmrf
    >>> from mapmrf.datasets import grid
    >>> mapmrf.solve(grid(6, 6, coupling=2.0, seed=1), "lp").kind == mapmrf.Kind.UNIFORM
    True
    """

    VALID = "valid"
    UNIFORM = "uniform"
    FRACTIONAL = "fractional"
    APPROXIMATE = "approximate"


@dataclass(frozen=True)
class KindFractions:
    """Fractions of the variables whose marginal is integer, uniform, or otherwise fractional; they sum to 1.

    Examples
    --------
    >>> import mapmrf
    >>> mapmrf.solve(mapmrf.FactorGraph.from_tables([2], [(0,)], [[0.0, 1.0]]), "lp").kind_fractions
    KindFractions(valid=1.0, uniform=0.0, fractional=0.0)
    """

    valid: float
    uniform: float
    fractional: float


@dataclass(frozen=True)
class Residuals:
    """Violations of L_G in the max norm.

    Attributes
    ----------
    consistency
        Largest ``|mu_i - M_ia mu_a|`` over all edges.
    simplex
        Largest deviation of a factor's or a variable's total mass from 1.
    negativity
        Size of the most negative entry.

    Examples
    --------
    >>> Residuals(consistency=1e-9, simplex=0.0, negativity=0.0).largest
    1e-09
    """

    consistency: float
    simplex: float
    negativity: float

    @property
    def largest(self) -> float:
        """The largest of the three."""
        return max(self.consistency, self.simplex, self.negativity)


def blocks(problem: Problem, mu_f: FactorMarginals) -> Iterator[tuple[Batch, slice, Floats]]:
    """The factors' marginals batch by batch, in pieces of bounded size: (batch, rows, (n_rows, n_configs))."""
    for batch in problem.batches:
        size = max(1, BLOCK_ENTRIES // batch.n_configs)
        for begin in range(0, batch.n, size):
            rows = slice(begin, min(begin + size, batch.n))
            if callable(mu_f):
                yield batch, rows, mu_f(batch, rows)
            else:
                yield batch, rows, mu_f[batch.configs].reshape(batch.n, batch.n_configs)[rows]


def marginals_of(batch: Batch, block: Floats, k: int) -> Floats:
    """M_ia mu_a for the k-th variable of every factor in a block, (n_rows, shape[k])."""
    tables = block.reshape(-1, *batch.shape)
    if batch.arity == 2:
        return row_sums(tables.swapaxes(1, 2) if k else tables)
    others = tuple(j + 1 for j in range(batch.arity) if j != k)
    return np.asarray(tables.sum(axis=others))


def marginals(problem: Problem, mu_f: FactorMarginals) -> Floats:
    """M_ia mu_a for every edge, laid out like `lam_e`."""
    m_mu = np.empty(problem.n_edge_states)
    for batch, rows, block in blocks(problem, mu_f):
        out = m_mu[batch.edge_states].reshape(batch.n, -1)[rows]
        for k in range(batch.arity):
            out[:, batch.state_at[k] : batch.state_at[k + 1]] = marginals_of(batch, block, k)
    return m_mu


def vertex(problem: Problem, labels: Ints) -> Floats:
    card, mu_v = problem.graph.card, np.zeros(problem.n_states)
    # states up to which vertices are looked up in an identity matrix
    if len(card) and card[0] <= 64 and np.all(card == card[0]):
        np.take(np.eye(card[0]), labels, axis=0, out=mu_v.reshape(-1, card[0]), mode="clip")  # twice as fast
    else:
        mu_v[problem.graph.var_ptr[:-1] + labels] = 1.0
    return mu_v


def integral(problem: Problem, labels: Ints) -> tuple[Floats, FactorMarginals]:
    """The vertex (mu_v, mu_f) of L_G for a labelling; mu_f as a function, block by block."""
    mu_v = vertex(problem, labels)

    def mu_f(batch: Batch, rows: slice) -> Floats:
        block = np.zeros((rows.stop - rows.start, batch.n_configs))
        block[np.arange(len(block)), configuration(batch, rows, labels)] = 1.0
        return block

    return mu_v, mu_f


def configuration(batch: Batch, rows: slice, labels: Ints) -> Ints:
    """The configuration of every factor in some rows of a batch under a labelling."""
    places = np.ravel_multi_index(tuple(labels[batch.scope[rows]].T), batch.shape)
    return np.asarray(places, dtype=np.int64)


def dense(problem: Problem, mu_f: FactorMarginals) -> Floats:
    return np.concatenate([np.zeros(0), *(block.ravel() for _, _, block in blocks(problem, mu_f))])


def relaxed_value(problem: Problem, mu_v: Floats, mu_f: FactorMarginals) -> float:
    """``<theta, mu>``, the paper's logPot of a relaxed solution; 0 times -inf counts as 0."""
    total = problem.graph.constant + _inner(problem.graph.theta_v, mu_v)
    for batch, rows, block in blocks(problem, mu_f):
        theta = batch.tables(problem.graph.theta_t, rows)
        total += _inner(theta.ravel(), block.ravel())
    return total


def _inner(theta: Floats, mu: Floats) -> float:
    """``<theta, mu>``; mass on a forbidden entry makes it -inf, but values within the tolerance of 0 count as 0."""
    forbidden = np.isneginf(theta)
    if forbidden.any():
        if np.any(mu[forbidden] > TOLERANCE):
            return -np.inf
        theta, mu = theta[~forbidden], mu[~forbidden]
    return float((theta * mu).sum())  # not theta @ mu: waking the threads of BLAS would take longer than the sum


def dual_bound(problem: Problem, lam_e: Floats) -> float:
    """Upper bound on every labelling, for any multipliers of the rows mu_i = M_ia mu_a."""
    # With the rows relaxed each variable and each factor takes its best entry: sum_i max_k (theta_i - sum_a lam_ia)(k)
    # + sum_a max_t (theta_a(t) + sum_i lam_ia(t_i)).
    graph = problem.graph
    total = graph.constant
    if problem.n_vars:
        taken = np.bincount(problem.edge_state_at, weights=lam_e, minlength=problem.n_states)
        total += float(segment_max(graph.theta_v - taken, graph.var_ptr).sum())
    for batch in problem.batches:
        given = lam_e[batch.edge_states].reshape(batch.n, -1)
        size = max(1, BLOCK_ENTRIES // batch.n_configs)
        for begin in range(0, batch.n, size):
            rows = slice(begin, min(begin + size, batch.n))
            table = batch.tables(graph.theta_t, rows)
            for k in range(batch.arity):
                table = table + given[rows, batch.state_at[k] + batch.config[:, k]]
            total += float(table.max(axis=1).sum())
    return total


def residuals(problem: Problem, mu_v: Floats, mu_f: FactorMarginals) -> Residuals:
    """How far (mu_v, mu_f) is from L_G, and from hard constraints on sums and differences."""
    mass_v = np.add.reduceat(mu_v, problem.graph.var_ptr[:-1]) if problem.n_vars else np.ones(0)
    consistency, simplex, lowest = 0.0, _largest(mass_v - 1), float(mu_v.min(initial=0.0))
    for batch, rows, block in blocks(problem, mu_f):
        simplex = max(simplex, _largest(row_sums(block) - 1))
        lowest = min(lowest, float(block.min(initial=0.0)))
        for k in range(batch.arity):
            mu_i = mu_v[batch.var_ptr[batch.scope[rows, k]][:, None] + np.arange(batch.shape[k])]
            consistency = max(consistency, _largest(mu_i - marginals_of(batch, block, k)))
    if problem.graph.constraints is not None:
        consistency = max(consistency, _excess(problem, problem.graph.constraints, mu_v))
    return Residuals(consistency, simplex, max(0.0, -lowest))


def _excess(problem: Problem, constraints: Constraints, mu_v: Floats) -> float:
    """Violation of hard constraints by mu_v: sums, in units of the largest weight, and states used twice."""
    from mapmrf.constraints.flat import WITHIN, sum_rows

    rows = sum_rows(constraints, problem.graph.card)
    sums = np.bincount(rows.row, rows.weight * mu_v[problem.graph.var_ptr[rows.var] + rows.state], len(rows.least))
    unit = np.ones(len(sums))
    np.maximum.at(unit, rows.row, np.abs(rows.weight))
    off = np.maximum(rows.least - sums, sums - rows.most) / unit
    return float(off[(rows.condition == WITHIN) & constraints.hard[rows.constraint]].max(initial=0.0))


def _largest(values: Floats) -> float:
    return float(np.abs(values).max(initial=0.0))


def classify(
    problem: Problem, mu_v: Floats, mu_f: FactorMarginals, tol: float = TOLERANCE
) -> tuple[Kind, KindFractions, Residuals]:
    """Decide the kind of a relaxed solution as the paper does, with the fractions that it prints."""
    # Valid: in L_G and 0/1. Uniform: in L_G, every variable at 1/r_i. Fractional: in L_G, otherwise. Approximate: some
    # constraint of L_G violated by more than `tol`.
    found = residuals(problem, mu_v, mu_f)
    several = int(np.count_nonzero(problem.graph.card > 1))
    integer, uniform = (int(which.sum()) for which in kinds_of_variables(problem, mu_v, tol))
    return kind_by_counts(problem.n_vars, (integer, uniform, several), found, tol)


def kind_by_counts(
    n_vars: int, counts: tuple[int, int, int], found: Residuals, tol: float
) -> tuple[Kind, KindFractions, Residuals]:
    """Decide the kind from the numbers of variables that are integer, uniform, and of several states."""
    n, (integer, uniform, several) = max(1, n_vars), counts
    rest = n_vars - integer - uniform
    if found.largest > tol:
        kind = Kind.APPROXIMATE
    elif integer == n_vars:
        kind = Kind.VALID
    else:
        kind = Kind.UNIFORM if rest == 0 and uniform == several else Kind.FRACTIONAL
    return kind, KindFractions(integer / n, uniform / n, rest / n), found


def classify_vertex(problem: Problem) -> tuple[Kind, KindFractions, Residuals]:
    """Result of `classify` for the vertex of any labelling, without computation."""
    return Kind.VALID, KindFractions(1.0 if problem.n_vars else 0.0, 0.0, 0.0), Residuals(0.0, 0.0, 0.0)


def kinds_of_variables(problem: Problem, mu_v: Floats, tol: float) -> tuple[Bools, Bools]:
    """Which variables are integer, and which of the others uniform."""
    integer, uniform = np.zeros(problem.n_vars, dtype=bool), np.zeros(problem.n_vars, dtype=bool)
    ptr = problem.graph.var_ptr
    for begin in range(0, problem.n_vars, 1 << 16):
        part = slice(begin, min(begin + (1 << 16), problem.n_vars))
        card, mu = problem.graph.card[part], mu_v[ptr[begin] : ptr[part.stop]]
        starts = ptr[part] - ptr[begin]
        integer[part] = np.maximum.reduceat(np.minimum(np.abs(mu), np.abs(mu - 1)), starts) <= tol
        uniform[part] = np.maximum.reduceat(np.abs(mu - np.repeat(1 / card, card)), starts) <= tol
    return integer, uniform & ~integer


def describe(kind: Kind, fractions: KindFractions) -> str:
    """The kind as the paper prints it: ``V``, ``U``, ``A+2.01%U+21.52%F``."""
    parts = ["A"] if kind is Kind.APPROXIMATE else []
    if fractions.uniform:
        parts.append(f"{_percent(fractions.uniform)}%U")
    if fractions.fractional:
        parts.append(f"{_percent(fractions.fractional)}%F")
    if kind in (Kind.VALID, Kind.UNIFORM):
        return kind.value[0].upper()
    return "+".join(parts)


def _percent(fraction: float) -> str:
    """Format with at most two decimals, as in the paper; only zero is shown as zero."""
    if fraction < 5e-5:
        return "<0.01"
    return f"{100 * fraction:.2f}".rstrip("0").rstrip(".")
