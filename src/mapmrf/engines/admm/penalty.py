"""The penalty of ADMM: rho, its schedule, and all coefficients derived from it.

A run stores them in a structured array of length one, which kernels read as ``penalty[0].rho`` and change in place: a
tuple of twenty numbers would cost more per call than an iteration on a small model.
"""

from __future__ import annotations

import math
from enum import IntEnum
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from mapmrf.compilation.jit import compiled

NEVER = 2**62
"""An iteration that is never reached."""


class SphereKind(IntEnum):
    """The kind of sphere in an iteration."""

    OFF = 0
    VARIABLES = 1
    AFFINE = 2


class PenaltyOptions(NamedTuple):
    """The options that are fixed during a phase, under the names of LS-LP.

    Attributes
    ----------
    sphere
        A `SphereKind`.
    sphere_weight
        Penalty of the sphere's rows relative to that of the edge rows.
    epsilon, free
        The paper's perturbation, and whether its x-bar is free (else tied to mu).
    relaxation
        Over-relaxation of the copies; 1 for none.
    eta, rho_upper, update_every
        Growth factor of rho, its upper limit, and the iterations between increases.
    freeze_after
        Iterations after which the sphere's multiplier is frozen.
    """

    sphere: int = SphereKind.OFF
    sphere_weight: float = 1.0
    epsilon: float = 0.0
    free: bool = False
    relaxation: float = 1.0
    eta: float = 1.0
    rho_upper: float = math.inf
    update_every: int = 1
    freeze_after: int = NEVER


Penalty = NDArray[np.record]
"""A structured array of length one, of type `PENALTY`."""

PENALTY = np.dtype(
    (
        np.record,
        [
            ("sphere", np.int64),
            ("sphere_weight", np.float64),
            ("epsilon", np.float64),
            ("free", np.bool_),
            ("relaxation", np.float64),
            ("eta", np.float64),
            ("rho_upper", np.float64),
            ("update_every", np.int64),
            ("freeze_after", np.int64),
            ("k", np.int64),
            ("rho", np.float64),
            ("rho_v", np.float64),
            ("c", np.float64),
            ("target_lam", np.float64),
            ("target_lam_v", np.float64),
            ("leak", np.float64),
            ("leak_v", np.float64),
            ("q_weight", np.float64),
            ("q_weight_v", np.float64),
            ("denominator", np.float64),
            ("denominator_edge", np.float64),
            ("last_leak", np.float64),
            ("last_rho_c", np.float64),
        ],
    )
)
"""The fields of `PenaltyOptions`, and

k                number of the iteration
rho, rho_v       penalty of the edges' rows and of the sphere's rows
c                1 + epsilon if tied, 1 if free
target_lam       weight of lam in the targets: t = c mu + target_lam lam; `_v` for the sphere's rows
leak             lam = leak (rho c mu - q) after the variable step
q_weight         weight of q in mu_i = (theta_i + q_weight_v q_i + q_weight sum_a q_ia) / below,
denominator      with below = denominator + denominator_edge d_i
last_leak, last_rho_c   leak and rho c of the last iteration, with which its multipliers are read off q
"""


def new_penalty(options: PenaltyOptions) -> Penalty:
    """Create the record of a new phase; `set_rho` completes it."""
    penalty: Penalty = np.zeros(1, dtype=PENALTY)
    for name, value in options._asdict().items():
        penalty[name] = value
    return penalty


@compiled
def set_rho(penalty: Penalty, rho: float) -> None:
    """Set rho and the derived coefficients, for the tied or the free variant."""
    p = penalty[0]
    epsilon = p.epsilon
    p.rho = rho
    p.rho_v = p.sphere_weight * rho
    p.target_lam, p.target_lam_v = target_weight(penalty, rho), target_weight(penalty, p.rho_v)
    if p.free:
        p.c = 1.0
        p.leak, p.leak_v = 1.0 / (1.0 + epsilon * rho), 1.0 / (1.0 + epsilon * p.rho_v)
        p.q_weight, p.q_weight_v = p.leak, p.leak_v
        p.denominator, p.denominator_edge = epsilon, rho * p.leak
        if p.sphere != SphereKind.OFF:
            p.denominator += p.rho_v * p.leak_v
    else:
        c = 1.0 + epsilon
        p.c = c
        p.leak, p.leak_v = 1.0, 1.0
        p.q_weight, p.q_weight_v = c, c
        p.denominator, p.denominator_edge = epsilon, epsilon + c * c * rho
        if p.sphere != SphereKind.OFF:
            p.denominator += epsilon + c * c * p.rho_v


@compiled
def target_weight(penalty: Penalty, rho: float) -> float:
    """Return the weight of lam in the target of a row with this penalty: 1 / rho, minus epsilon if x-bar is free."""
    return 1.0 / rho - penalty[0].epsilon if penalty[0].free else 1.0 / rho


@compiled
def next_rho(penalty: Penalty) -> float:
    """Return the rho of the next iteration: min(eta rho, rho_upper) if an increase is due."""
    p = penalty[0]
    rho: float = min(p.eta * p.rho, max(p.rho_upper, p.rho)) if (p.k + 1) % p.update_every == 0 else p.rho
    return rho


@compiled
def update_lam(penalty: Penalty) -> None:
    """Algorithm 1, lam_ia += rho (c mu_i - M_ia mu_a).

    With q = rho M_ia mu_a - lam_ia this is lam_ia = rho c mu_i - q, which is formed where it is needed, so only rho c
    is stored; the free variant leaks, see `PENALTY`. The variable step has updated lam_i.
    """
    p = penalty[0]
    p.last_leak, p.last_rho_c = p.leak, p.rho * p.c


@compiled
def update_rho(penalty: Penalty) -> None:
    """Algorithm 1, rho = min(eta rho, rho_upper), every `update_every` iterations; ends the iteration."""
    p = penalty[0]
    rho = next_rho(penalty)
    p.k += 1
    if rho != p.rho:
        set_rho(penalty, rho)
