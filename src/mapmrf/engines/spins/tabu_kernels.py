"""One-flip tabu search over spins, and paths from one labelling to another."""

from __future__ import annotations

from typing import NamedTuple

from mapmrf.arrays import Floats, Ints
from mapmrf.engines.moves.random_kernels import Bits, draw
from mapmrf.engines.spins.couplings_kernels import SpinCouplings
from mapmrf.kernels.jit import bare, inlined

NONE = -1
"""No spin."""


class TabuTally:
    """Flips so far and since the last better labelling, what the present and the best one are worth, and round-off."""

    clock: int
    vain: int
    value: float
    best: float
    round_off: float


class TabuState(NamedTuple):
    """Where a tabu search stands.

    Attributes
    ----------
    spin, gain
        The present labelling, and what every flip would gain.
    until
        The flip from which on a spin may be flipped back.
    best
        The best labelling since the last start.
    random
        State of the random numbers.
    """

    spin: Floats
    gain: Floats
    until: Ints
    best: Floats
    tally: TabuTally
    random: Bits


class Tenure(NamedTuple):
    """A spin stays as it is for at least so many flips, and up to `spread` more."""

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
    """Keep the present labelling as the best one."""
    for i in range(len(state.spin)):
        state.best[i] = state.spin[i]


@inlined
def best_flip(state: TabuState, begin: int, end: int, chosen: int) -> int:
    """The flip of most gain among some spins, if better than the one chosen so far.

    Those that are tabu count only if they lead to a better labelling than the best.
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
    """Flip again and again the best spin that is not tabu, until so many flips bring nothing; returns the flips.

    Only the first `n_free` spins are flipped. Of equally good ones the first after a random place is taken.
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
    """Walk towards another labelling, the best flip first, and stop at the best place on the way.

    Places count that are at least `least` flips and at most `most` flips away from the start. `best` gets the labelling
    there, and what it is worth more than the start is returned.
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
