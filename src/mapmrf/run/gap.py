"""The relative gap between a bound and a value, and when it is small enough."""

from __future__ import annotations

import math
from typing import NamedTuple, Protocol

from mapmrf.errors import OptionError
from mapmrf.run.options import check_number

GAP_TOLERANCE = 1e-6
"""Default relative gap at which a run may end."""

LEAST_PATIENCE, PATIENCE = 10, 0.25
"""Extra iterations, and share of those done, for closing the gap exactly once it is within the default tolerance."""


def relative_gap(value: float, bound: float | None, unit: float = 1.0) -> float | None:
    """(bound - value) / max(unit, |value|), never negative; None without a bound, inf while no finite value is known.

    `unit` is `FactorGraph.unit`: 1, or less in a model whose potentials are all small.

    Examples
    --------
    >>> relative_gap(-200.0, -199.0), relative_gap(-200.0, None)
    (0.005, None)
    """
    if bound is None:
        return None
    if bound == value:
        return 0.0
    if not math.isfinite(value):
        return math.inf
    return max(0.0, (bound - value) / max(unit, abs(value)))


def is_closed(value: float, bound: float, unit: float, tolerance: float) -> bool:
    """Return whether a labelling is feasible and the relative gap between its value and a bound within a tolerance."""
    gap = relative_gap(value, bound, unit)
    return gap is not None and gap <= tolerance and value > -math.inf


class Closable(Protocol):
    """Anything with a gap: an incumbent of a model or of its parts."""

    def closed(self, tolerance: float, absolute: float = 0.0) -> bool:
        """Return whether the gap is within one of the tolerances."""


class GapTolerance(NamedTuple):
    """When a gap is small enough to end a run.

    Attributes
    ----------
    relative, absolute
        The relative gap, and the difference of bound and value, either of which is small enough.
    patient
        Whether a run that gets there continues for a while in order to close the gap exactly.
    """

    relative: float
    absolute: float
    patient: bool

    @classmethod
    def of(cls, relative: float | None, absolute: float) -> GapTolerance:
        """The tolerances given by the user; None for the default."""
        for name, found in (("gap_tolerance", relative), ("abs_gap_tolerance", absolute)):
            if found is not None:
                check_number(name, found)
            if found is not None and math.isnan(found):
                raise OptionError(f"{name} is nan, expected a number")
        if relative is None:
            return cls(GAP_TOLERANCE, absolute, patient=absolute == 0)
        return cls(relative, absolute, patient=False)

    @property
    def of_proofs(self) -> float:
        """The relative gap that methods regard as closed: a wider tolerance ends runs, but proves nothing."""
        return min(self.relative, GAP_TOLERANCE)

    def met_by(self, incumbent: Closable) -> bool:
        """Return whether the gap is small enough."""
        return incumbent.closed(self.relative, self.absolute)

    def more_iterations(self, done: int) -> int:
        """Number of iterations that a run may continue for, after those done."""
        return LEAST_PATIENCE + int(PATIENCE * done) if self.patient else 0
