"""The flat arrays of ADMM on a factor graph, and the scalars of an iteration.

LS-LP (with and without its sphere) and AD3 share these loops. All state lives in flat arrays:

mu      variables, a block per variable. A binary variable may be *compact*: one number, mu(1) - mu(0).
q       one block per edge, q = rho s - lam, with s = M_ia mu_a. The multiplier is not stored: after the variable step
        it is ``lam = l (rho c mu - q)``, so one array serves for both copies and duals.
s       M_ia mu_a itself, written only when asked for; 2x2 factors of compact variables find it again when looked at.
pull    with a sphere on the factors (kind RIDGE) what it adds to the factors' potentials, per configuration.
slots, x, count   warm starts of the factor QPs: supports, their masses (summing to 1) and sizes.

`batch` holds a row of integers per batch of equal factors, `tasks` rows of (batch, begin, end), `par` the scalars.
"""

from __future__ import annotations

from mapmrf.kernels.jit import compiled

# Columns of `batch`.
(
    KIND, N, ARITY, Q_AT, Q_WIDTH, FACTOR_AT, EDGE_AT, SLOT_AT, SLOT_WIDTH, SHAPE_AT, CONFIG_AT, N_CONFIGS, N_STATES,
    PULL_AT,
) = range(14)  # fmt: skip
BATCH_COLUMNS = 14
# Kinds of factor step.
PAIR2_COMPACT, PAIR2, TRIPLE2, FOREST, DENSE, RIDGE = range(6)
# Entries of `par`: see `set_rho`.
(
    RHO, C, B, L, G, DEN0, DEN1, LAST_L, LAST_RC, RELAX, RHO_V, B_V, L_V, G_V, ETA, RHO_UPPER, EPSILON, WEIGHT, FREE,
    SPHERE,
) = range(20)  # fmt: skip
PAR_SIZE = 20
# Kinds of sphere.
SPHERE_OFF, SPHERE_VARIABLES, SPHERE_AFFINE = range(3)


@compiled
def set_rho(par, rho):
    """Fill in the scalars that follow from rho, for the tied or the free variant."""
    epsilon, weight = par[EPSILON], par[WEIGHT]
    par[RHO] = rho
    par[RHO_V] = weight * rho
    if par[FREE] > 0:
        par[C], par[B], par[B_V] = 1.0, 1.0 / rho - epsilon, 1.0 / par[RHO_V] - epsilon
        par[L], par[L_V] = 1.0 / (1.0 + epsilon * rho), 1.0 / (1.0 + epsilon * par[RHO_V])
        par[G], par[G_V] = par[L], par[L_V]
        par[DEN0], par[DEN1] = epsilon, rho * par[L]
        if par[SPHERE] > 0:
            par[DEN0] += par[RHO_V] * par[L_V]
    else:
        c = 1.0 + epsilon
        par[C], par[B], par[B_V] = c, 1.0 / rho, 1.0 / par[RHO_V]
        par[L], par[L_V], par[G], par[G_V] = 1.0, 1.0, c, c
        par[DEN0], par[DEN1] = epsilon, epsilon + c * c * rho
        if par[SPHERE] > 0:
            par[DEN0] += epsilon + c * c * par[RHO_V]


@compiled
def advance_rho(par, k, update_every):
    """Close iteration k: remember how its multipliers are read, then raise rho."""
    par[LAST_L], par[LAST_RC] = par[L], par[RHO] * par[C]
    if (k + 1) % update_every == 0:
        set_rho(par, min(par[ETA] * par[RHO], max(par[RHO_UPPER], par[RHO])))


@compiled
def next_sphere_b(par, k, update_every):
    """The factor of lam_i in the next iteration's sphere projection."""
    copy = par.copy()
    advance_rho(copy, k, update_every)
    return copy[B_V]
