"""The local polytope L_G: marginals of factors, how far a point is from it, and what kind of point it is."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from mapmrf.arrays import Floats, Ints
from mapmrf.problem import Batch, Problem

TOLERANCE = 1e-4
"""Default tolerance of `classify`, in the max norm."""


class Kind(StrEnum):
    """The paper's four kinds of a relaxed solution (its table of measures)."""

    VALID = "valid"
    UNIFORM = "uniform"
    FRACTIONAL = "fractional"
    APPROXIMATE = "approximate"


@dataclass(frozen=True)
class KindFractions:
    """Fractions of the variables whose marginal is integer, uniform, or otherwise fractional; they sum to 1."""

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
    """

    consistency: float
    simplex: float
    negativity: float

    @property
    def largest(self) -> float:
        """The largest of the three."""
        return max(self.consistency, self.simplex, self.negativity)


def marginals(problem: Problem, mu_f: Floats) -> Floats:
    """M_ia mu_a for every edge, laid out like `lam_e`."""
    m_mu = np.empty(problem.n_edge_states)
    for batch in problem.batches:
        tables = mu_f[batch.configs].reshape(batch.n, *batch.shape)
        out = m_mu[batch.edge_states].reshape(batch.n, -1)
        for k in range(batch.arity):
            others = tuple(j + 1 for j in range(batch.arity) if j != k)
            out[:, batch.state_at[k] : batch.state_at[k + 1]] = tables.sum(axis=others)
    return m_mu


def integral(problem: Problem, labels: Ints) -> tuple[Floats, Floats]:
    """The vertex (mu_v, mu_f) of L_G that stands for a labelling."""
    mu_v = np.zeros(problem.n_states)
    mu_v[problem.graph.var_ptr[:-1] + labels] = 1.0
    mu_f = np.zeros(problem.n_configs)
    for batch in problem.batches:
        mu_f[batch.configs.start + np.arange(batch.n) * batch.n_configs + configuration(problem, batch, labels)] = 1.0
    return mu_v, mu_f


def configuration(problem: Problem, batch: Batch, labels: Ints) -> Ints:
    """Which configuration of its table every factor of a batch takes under a labelling."""
    states = labels[problem.scope[batch.edges]].reshape(batch.n, batch.arity)
    places = np.ravel_multi_index(tuple(states.T), batch.shape)
    return np.asarray(places, dtype=np.int64)


def edge_copies(problem: Problem, mu_v: Floats) -> Floats:
    """mu_i repeated on every edge (i, a), laid out like `lam_e`."""
    copies = np.empty(problem.n_edge_states)
    for batch in problem.batches:
        out = copies[batch.edge_states].reshape(batch.n, -1)
        for k in range(batch.arity):
            places = batch.var_at[:, k, None] + np.arange(batch.shape[k])
            out[:, batch.state_at[k] : batch.state_at[k + 1]] = mu_v[places]
    return copies


def relaxed_value(problem: Problem, mu_v: Floats, mu_f: Floats) -> float:
    """<theta, mu>, the paper's logPot of a relaxed solution; 0 times -inf counts as 0."""
    return problem.graph.constant + _inner(problem.graph.theta_v, mu_v) + _inner(problem.theta_f, mu_f)


def _inner(theta: Floats, mu: Floats) -> float:
    used = mu != 0
    if used.all():
        return float(theta @ mu)
    return float(theta[used] @ mu[used])


def residuals(problem: Problem, mu_v: Floats, mu_f: Floats) -> Residuals:
    """How far (mu_v, mu_f) is from L_G."""
    gap = edge_copies(problem, mu_v) - marginals(problem, mu_f)
    mass_v = np.add.reduceat(mu_v, problem.graph.var_ptr[:-1]) if problem.n_vars else np.ones(0)
    mass_f = np.add.reduceat(mu_f, problem.config_ptr[:-1]) if problem.n_factors else np.ones(0)
    return Residuals(
        consistency=_largest(gap),
        simplex=max(_largest(mass_v - 1), _largest(mass_f - 1)),
        negativity=max(0.0, -float(min(mu_v.min(initial=0.0), mu_f.min(initial=0.0)))),
    )


def _largest(values: Floats) -> float:
    return float(np.abs(values).max(initial=0.0))


def classify(
    problem: Problem, mu_v: Floats, mu_f: Floats, tol: float = TOLERANCE
) -> tuple[Kind, KindFractions, Residuals]:
    """Decide the kind of a relaxed solution as the paper does, with the fractions that it prints.

    Valid: in L_G and 0/1. Uniform: in L_G, every variable at 1/r_i. Fractional: in L_G, otherwise. Approximate: some
    constraint of L_G violated by more than `tol`.
    """
    found = residuals(problem, mu_v, mu_f)
    card = problem.graph.card
    off_integer = np.minimum(np.abs(mu_v), np.abs(mu_v - 1))
    off_uniform = np.abs(mu_v - np.repeat(1 / card, card))
    integer = _all_within(off_integer, problem.graph.var_ptr, tol)
    uniform = _all_within(off_uniform, problem.graph.var_ptr, tol) & ~integer
    n = max(1, problem.n_vars)
    n_integer, n_uniform = int(integer.sum()), int(uniform.sum())
    fractions = KindFractions(n_integer / n, n_uniform / n, (problem.n_vars - n_integer - n_uniform) / n)
    if found.largest > tol:
        kind = Kind.APPROXIMATE
    elif n_integer == problem.n_vars:
        kind = Kind.VALID
    elif n_integer + n_uniform == problem.n_vars and n_uniform == np.count_nonzero(card > 1):
        kind = Kind.UNIFORM
    else:
        kind = Kind.FRACTIONAL
    return kind, fractions, found


def _all_within(off: Floats, ptr: Ints, tol: float) -> np.ndarray:
    if len(ptr) <= 1:
        return np.zeros(0, dtype=bool)
    return np.maximum.reduceat(off, ptr[:-1]) <= tol


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
    """At most two decimals, as in the paper; what is not zero does not look like zero."""
    if fraction < 5e-5:
        return "<0.01"
    return f"{100 * fraction:.2f}".rstrip("0").rstrip(".")
