"""Memory of the machine, and what does not fit into it."""

from __future__ import annotations

import math
import os

from mapmrf.errors import GraphError, OptionError


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


def check_bytes(needed: float, limit: float | None, what: str) -> None:
    """Raise GraphError if more is needed than the limit, or than the machine has where none is given."""
    if limit is not None and not limit > 0:
        raise OptionError(f"memory_limit is {limit}, expected a number of bytes above 0")
    allowed = machine_bytes() if limit is None else limit
    if needed > allowed:
        have = "this machine has" if limit is None else "the limit is"
        verb = "takes" if what.startswith("this") else "take"
        raise GraphError(f"{what} {verb} {shown_bytes(needed)}, {have} {shown_bytes(allowed)}")
