"""One-flip tabu search over spins, and path relinking."""

from __future__ import annotations

from typing import NamedTuple

from mapmrf.arrays import Floats, Ints
from mapmrf.compilation.jit import bare, inlined
from mapmrf.engines.moves.random_kernels import Bits, draw
from mapmrf.engines.spins.couplings_kernels import SpinCouplings

NONE = -1
"""No spin."""


class TabuTally:
    """Flips so far and since the last improvement, values of the current and the best labelling, and round-off."""

    clock: int
    vain: int
    value: float
    best: float
    round_off: float


class TabuState(NamedTuple):
    """State of a tabu search.

    Attributes
    ----------
    spin, gain
        The current labelling, and the gain of every flip.
    until
        The flip count from which a spin may be flipped again.
    best
        The best labelling since the last start.
    random
        State of the random number generator.
    """

    spin: Floats
    gain: Floats
    until: Ints
    best: Floats
    tally: TabuTally
    random: Bits


class Tenure(NamedTuple):
    """Tabu tenure: a spin stays fixed for at least so many flips, and up to `spread` more."""

    least: int
    spread: int


@inlined
def flip(couplings: SpinCouplings, spin: Floats, gain: Floats, i: int) -> None:
    """Flip a spin and update the gains."""
    spin[i] = -spin[i]
    gain[i] = -gain[i]
    twice = -4.0 * spin[i]
    for e in range(couplings.ptr[i], couplings.ptr[i + 1]):
        j = couplings.nbr[e]
        gain[j] += twice * couplings.strength[e] * spin[j]


@inlined
def keep(state: TabuState) -> None:
    """Record the current labelling as the best one."""
    for i in range(len(state.spin)):
        state.best[i] = state.spin[i]


@inlined
def best_flip(state: TabuState, begin: int, end: int, chosen: int) -> int:
    """Return the best flip among some spins, or `chosen` if that is better.

    Tabu spins only count if flipping them gives a new best labelling (aspiration).
    """
    gain, until, tally = state.gain, state.until, state.tally
    threshold = tally.best + tally.round_off
    most = gain[chosen] if chosen != NONE else -1e300
    for i in range(begin, end):
        if gain[i] > most and (until[i] <= tally.clock or tally.value + gain[i] > threshold):
            most = gain[i]
            chosen = i
    return chosen


@bare
def run_tabu(
    couplings: SpinCouplings, state: TabuState, n_free: int, tenure: Tenure, n_flips: int, patience: int
) -> int:
    """Repeatedly make the best flip that is not tabu, until `patience` flips bring no improvement; return the flips.

    Only the first `n_free` spins are flipped. Ties go to the first spin after a random position.
    """
    tally = state.tally
    done = 0
    while done < n_flips and tally.vain < patience:
        done += 1
        tally.clock += 1
        tally.vain += 1
        first = draw(state.random, n_free)
        i = best_flip(state, first, n_free, NONE)
        i = best_flip(state, 0, first, i)
        if i == NONE:
            continue
        tally.value += state.gain[i]
        flip(couplings, state.spin, state.gain, i)
        state.until[i] = tally.clock + tenure.least + draw(state.random, tenure.spread)
        if tally.value > tally.best + tally.round_off:
            tally.best = tally.value
            tally.vain = 0
            keep(state)
    return done


@bare
def relink(couplings: SpinCouplings, state: TabuState, target: Floats, least: int, most: int) -> float:
    """Walk towards another labelling, best flip first, and keep the best labelling on the path.

    Only labellings between `least` and `most` flips away from the start count. `best` receives the labelling, and its
    gain over the start is returned.
    """
    spin, gain = state.spin, state.gain
    total, best = 0.0, -1e300
    for step in range(1, most + 1):
        chosen = NONE
        for i in range(len(spin)):
            if spin[i] != target[i] and (chosen == NONE or gain[i] > gain[chosen]):
                chosen = i
        if chosen == NONE:
            break
        total += gain[chosen]
        flip(couplings, spin, gain, chosen)
        if step >= least and total > best:
            best = total
            keep(state)
    return best
