"""The meaning of the numbers of a file: potentials, natural logs or costs, to and from log potentials, and decimals."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from pathlib import Path

import numpy as np

from mapmrf.arrays import Bools, Floats, Ints
from mapmrf.errors import FormatError
from mapmrf.formats.tables import Factors, factors_to_write
from mapmrf.model.graph import FactorGraph

#: Many programs cannot read the word ``-inf``: logs up to -FORBIDDEN (costs from FORBIDDEN) mean a forbidden entry.
FORBIDDEN = 1e30
WRITTEN_FORBIDDEN = 1e39  # written for a forbidden entry: toulbar2 needs logs below -1e38
# Beyond these logs a potential overflows, or is denormal and loses digits.
_LOWEST, _HIGHEST = np.log(np.finfo(np.float64).tiny), np.log(np.finfo(np.float64).max)
DIGITS = 15  # digits of the sum of all costs: sums stay exact in 53 bits, and far from the limits of 64
MOST_DECIMALS = 300  # powers of ten that a float can hold, with room for digits
_log = logging.getLogger("mapmrf")

_EXPECTED = {
    "potential": "a finite potential of at least 0 (logs and costs need values='log' or values='cost')",
    "log": "a finite log potential or -inf",
    "cost": "a finite cost or inf",
}


def check_values(path: Path, values: str | None, allowed: tuple[str, ...], what: str) -> None:
    if values is not None and values not in allowed:
        raise FormatError(f"{path}: values={values!r}, but the numbers of this format are {what}")


def expected(values: str) -> str:
    return _EXPECTED[values]


def first_bad(numbers: Floats, values: str) -> int | None:
    """Position of the first invalid number: NaN, a negative potential, an infinite reward."""
    low, high = numbers.min(initial=0.0), numbers.max(initial=0.0)  # NaN if any is
    if _fine(low, values) and _fine(high, values):
        return None
    return int(np.flatnonzero(~_fine(numbers, values))[0])


def _fine(numbers: Floats, values: str) -> Bools:
    if values == "potential":
        fine = (numbers >= 0) & (numbers < np.inf)
    elif values == "log":
        fine = numbers < np.inf
    else:
        fine = numbers > -np.inf
    return np.asarray(fine)


def to_log(numbers: Floats, values: str) -> None:
    """Turn the numbers of a file into log potentials, in place."""
    if values == "potential":
        with np.errstate(divide="ignore"):
            np.log(numbers, out=numbers)
        return
    if values == "cost":
        np.negative(numbers, out=numbers)
    if numbers.min(initial=0.0) <= -FORBIDDEN:
        numbers[numbers <= -FORBIDDEN] = -np.inf


def from_log(path: Path, graph: FactorGraph, values: str, *, alone: bool = False) -> Factors:
    """A graph as the factors and numbers to write, see `factors_to_write`; log if they lose digits."""
    # Raises FormatError if a number would be read back as something else.
    if values == "potential":
        _warn_about_digits(path, graph)
        return factors_to_write(graph, _potentials(path, graph), 1.0, alone)
    sign = 1.0 if values == "log" else -1.0
    parts = (np.array([graph.constant]), graph.theta_v, graph.theta_t)
    constant, unary, tables = (_writable(path, part, sign) for part in parts)
    return factors_to_write(graph, (float(constant[0]), unary, tables), 0.0, alone)


def one_from_log(path: Path, theta: float, values: str) -> float:
    """A log potential as the number to write; raises FormatError if it would be read back as something else."""
    if values != "potential":
        return float(_writable(path, np.array([theta]), 1.0 if values == "log" else -1.0)[0])
    if theta > -np.inf and not _LOWEST <= theta <= _HIGHEST:
        raise FormatError(
            f"{path}: a log potential of {theta:g} does not fit as a potential, write values='log' instead"
        )
    return float(np.exp(theta))


def _writable(path: Path, theta: Floats, sign: float) -> Floats:
    """Logs (sign 1) or costs (sign -1), without the word inf, which C++ readers cannot parse."""
    check_allowed(path, theta)
    numbers: Floats = np.where(theta == -np.inf, -WRITTEN_FORBIDDEN, theta) * sign
    return numbers + 0.0  # no "-0"


def check_allowed(path: Path, theta: Floats) -> None:
    """Raise FormatError for a finite log potential that would be read back as forbidden."""
    allowed = theta[theta > -np.inf]
    if allowed.min(initial=0.0) <= -FORBIDDEN:
        raise FormatError(f"{path}: a finite log potential of {allowed.min():g} would be read back as forbidden")


def _warn_about_digits(path: Path, graph: FactorGraph) -> None:
    """Log if potentials are so close to each other that their logs, which solvers add up, lose digits."""
    # A number near 1 has 16 digits, so its log is known to 1e-16, and a log of 1e-9 has 7 digits.
    if graph.unit < 1e-4:  # fewer than 12 digits survive
        digits = max(0, round(math.log10(graph.unit / np.finfo(np.float64).epsneg)))
        _log.warning(
            "%s: log potentials that differ by at most %.1g keep %d digits as potentials: write .LG (logs) to keep all",
            path, graph.unit, digits,
        )  # fmt: skip


def _potentials(path: Path, graph: FactorGraph) -> tuple[float, Floats, Floats]:
    """Exponentials; blocks out of range are shifted, and the shifts added to the constant."""

    def factor_of(t: int) -> str:
        return f"factor {np.flatnonzero(graph.table_of == t)[0]}"

    shift_v = _shifts(path, graph.theta_v, graph.var_ptr, lambda i: f"variable {i}")
    shift_t = _shifts(path, graph.theta_t, graph.table_ptr, factor_of)
    constant = graph.constant + float(shift_v.sum() + shift_t[graph.table_of].sum())
    if constant != -np.inf and not _LOWEST <= constant <= _HIGHEST:
        found = f"the constant factor exp({constant:g}) is out of range of a number"
        raise FormatError(f"{path}: {found}, write .LG (logs) instead")
    return (
        float(np.exp(constant)),
        np.exp(graph.theta_v - np.repeat(shift_v, graph.card)),
        np.exp(graph.theta_t - np.repeat(shift_t, np.diff(graph.table_ptr))),
    )


def _shifts(path: Path, theta: Floats, ptr: Ints, name: Callable[[int], str]) -> Floats:
    """Shift to subtract from every block so that its exponentials are in range; almost always 0."""
    shifts = np.zeros(len(ptr) - 1)
    outside = (theta > _HIGHEST) | ((theta < _LOWEST) & (theta > -np.inf))
    if not outside.any():
        return shifts
    blocks = np.unique(np.searchsorted(ptr, np.flatnonzero(outside), side="right") - 1)
    for b in blocks.tolist():
        block = theta[ptr[b] : ptr[b + 1]]
        low, high = block[block > -np.inf].min(), block.max()
        if high - low > _HIGHEST - _LOWEST - 1.0:
            found = f"log potentials from {low:g} to {high:g} do not fit as potentials"
            raise FormatError(f"{path}: {name(b)}: {found}, write .LG (logs) instead")
        if high - low > _HIGHEST:
            shifts[b] = (high + low) / 2 - (_HIGHEST + _LOWEST) / 2
        else:
            # Half of the range is enough, so that the shifts add up to as little as possible.
            moderate = _HIGHEST / 2
            shifts[b] = high - moderate if high > moderate else low + moderate
    return shifts


# -- decimals ---------------------------------------------------------------------------------------------------------


def choose_decimals(parts: list[Floats], total: float) -> tuple[int, bool]:
    """Decimals to write where costs are decimal numbers in 64 bits, negative for tens, and whether they are exact."""
    # `total` is the largest possible sum of the numbers in `parts`, of which infinite ones are ignored.
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
    return [] if exact else [f"every number is rounded, by at most {0.5 * 10.0**-decimals:.0e}"]
