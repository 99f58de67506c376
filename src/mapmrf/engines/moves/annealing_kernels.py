"""Sweeps of simulated annealing at given temperatures; temperature 0 makes no step down."""

from __future__ import annotations

import numpy as np

from mapmrf.engines.moves.gain_kernels import set_state, sum_row
from mapmrf.engines.moves.local_search_kernels import draw
from mapmrf.kernels.jit import bare, compiled

NEVER = -44.0
"""Exponents below this are refused without asking chance: exp(-44) is less than 2**-63."""
SIGNIFICANT = 1e-12
"""At temperature 0 a gain must be more than this part of what it is a difference of."""


@bare
def gains_of_flips(ptr, nbr, field, coupling, labels, gain):
    """Gain of every flip of binary variables, summed afresh."""
    for i in range(len(labels)):
        slope = field[i]
        for e in range(ptr[i], ptr[i + 1]):
            slope += coupling[e] * labels[nbr[e]]
        gain[i] = slope if labels[i] == 0 else -slope


@compiled
def sweep_pairs(temperatures, ptr, nbr, field, coupling, labels, gain, random):
    """Metropolis sweeps over binary variables with pairwise couplings, one per temperature; flips of the last sweep.

    The value is ``sum_i field_i x_i + sum_ij coupling_ij x_i x_j`` and a constant; every coupling stands in the rows of
    both its variables.
    """
    gains_of_flips(ptr, nbr, field, coupling, labels, gain)
    flips = 0
    x = random[0]
    for temperature in temperatures:
        beta = 1.0 / temperature if temperature > 0.0 else np.inf
        flips = 0
        for i in range(len(labels)):
            g = gain[i]
            if g <= 0.0:
                if temperature == 0.0 or g * beta < NEVER:
                    continue
                x ^= x << np.uint64(13)
                x ^= x >> np.uint64(7)
                x ^= x << np.uint64(17)
                if np.exp(g * beta) * 9007199254740992.0 <= np.float64(x >> np.uint64(11)):
                    continue
            elif temperature == 0.0 and g <= SIGNIFICANT * abs(field[i]):
                continue
            flips += 1
            new = 1 - labels[i]
            labels[i] = new
            gain[i] = -g
            shift = 2.0 * new - 1.0
            for e in range(ptr[i], ptr[i + 1]):
                j = nbr[e]
                gain[j] += (1.0 - 2.0 * labels[j]) * shift * coupling[e]
    random[0] = x
    return flips


@compiled
def sweep_states(f, temperatures, heat_bath, weight, random):
    """Sweeps over the variables of any model, by Metropolis or heat bath, one per temperature; changes of the last.

    `f` is a `Field` of `mapmrf.engines.moves.gain_kernels`, whose scores are summed afresh first; `weight` is scratch.
    """
    for i in range(len(f.card)):
        sum_row(f, i)
    changes = 0
    for temperature in temperatures:
        changes = 0
        for i in range(len(f.card)):
            n_k, row, old = f.card[i], f.var_ptr[i], f.labels[i]
            if n_k == 1:
                continue
            new = old
            if temperature == 0.0:
                for k in range(n_k):
                    least = SIGNIFICANT * (abs(f.score[row + k]) + abs(f.score[row + new]))
                    if f.score[row + k] > f.score[row + new] + least:
                        new = k
            elif heat_bath:
                top = -np.inf
                for k in range(n_k):
                    top = max(top, f.score[row + k])
                total = 0.0
                for k in range(n_k):
                    total += np.exp((f.score[row + k] - top) / temperature)
                    weight[k] = total
                level = total * (draw(random, 1 << 53) / 9007199254740992.0)
                new = 0
                while new < n_k - 1 and weight[new] <= level:
                    new += 1
            else:
                new = draw(random, n_k - 1)
                new += 1 if new >= old else 0
                power = (f.score[row + new] - f.score[row + old]) / temperature
                if power < 0.0 and (power < NEVER or np.exp(power) <= draw(random, 1 << 53) / 9007199254740992.0):
                    new = old
            if new != old:
                changes += 1
                set_state(f, i, new, 0)
    return changes
