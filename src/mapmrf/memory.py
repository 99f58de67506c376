"""Memory of the machine, and what does not fit into it."""

from __future__ import annotations

import math
import os

from mapmrf.errors import GraphError


def machine_bytes() -> float:
    """Memory of the machine in bytes, infinite where the system does not say."""
    try:
        return float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    except (AttributeError, ValueError, OSError):
        return math.inf


def shown_bytes(n: float) -> str:
    """A number of bytes, for people.

    Examples
    --------
    >>> from mapmrf.memory import shown_bytes
    >>> shown_bytes(184e6), shown_bytes(8.8e12)
    ('184 MB', '8.8 TB')
    """
    for unit in ("B", "kB", "MB", "GB"):
        if n < 1000:
            return f"{n:.3g} {unit}"
        n /= 1000
    return f"{n:.3g} TB"


def check_fits(needed: float, what: str) -> None:
    """Raise a GraphError if the machine has less memory than that."""
    if needed > machine_bytes():
        raise GraphError(f"{what} would take {shown_bytes(needed)}, this machine has {shown_bytes(machine_bytes())}")
