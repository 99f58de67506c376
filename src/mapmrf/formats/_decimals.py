"""Choose the number of decimals to write, for formats whose costs are decimal numbers in 64 bits."""

from __future__ import annotations

import math

import numpy as np

from mapmrf.arrays import Floats

DIGITS = 15
"""Digits of the sum of all costs: sums stay exact in 53 bits, and far from the limits of 64."""

MOST_DECIMALS = 300
"""Powers of ten that a float can hold, with room for digits."""


def choose_decimals(parts: list[Floats], total: float) -> tuple[int, bool]:
    """Return the number of decimals to write, negative for tens, and whether they are exact.

    Parameters
    ----------
    parts
        The numbers; infinite ones are ignored.
    total
        The largest possible sum of the costs.
    """
    most = DIGITS - math.ceil(math.log10(total)) if total > 0 else 0
    most = min(most, MOST_DECIMALS)
    finite = [part[np.isfinite(part)] for part in parts]
    # 10^22 is the last power that a float holds exactly.
    for decimals in range(min(most, 0), min(most, 22) + 1):
        if all(np.array_equal(np.round(part, decimals), part) for part in finite):
            return decimals, True
    return most, False


def scaled(numbers: Floats, decimals: int) -> Floats:
    """Whole units of ``10 ** -decimals``; infinite numbers are unchanged."""
    units = numbers * 10.0**decimals if decimals >= 0 else numbers / 10.0**-decimals
    return np.rint(units)


def unscaled(units: Floats, decimals: int) -> None:
    """Turn units of ``10 ** -decimals`` into numbers, in place."""
    if decimals >= 0:
        units /= 10.0**decimals
    else:
        units *= 10.0**-decimals


def rounding(decimals: int, exact: bool) -> list[str]:
    """Describe the loss by rounding."""
    return [] if exact else [f"every number is rounded, by at most {0.5 * 10.0**-decimals:.0e}"]
