"""The memory budget for reading a file, charged before anything is allocated.

A few words of a file can describe a large table, and a small compressed file may expand to a large one. Readers charge
for the content of the file, its numbers, and the arrays that they are about to make of them, with temporary copies.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING

from mapmrf.errors import FormatError
from mapmrf.model.memory import byte_count, machine_bytes, shown_bytes

if TYPE_CHECKING:
    from mapmrf.formats.files import AnyPath

FEW = 1 << 16
"""Bytes that are too few to be counted."""
MOST = 2.0**46
"""More bytes than any machine has, for systems that do not report their memory."""


class ByteBudget:
    """Bytes that reading one model may use.

    Attributes
    ----------
    limit
        Their number; None for the memory of the machine.
    charged
        The charges so far, in bytes by purpose.

    Examples
    --------
    >>> budget = ByteBudget(1e6)
    >>> budget.charge("model.suai", 2.1e9, "its tables", "factor 0")
    Traceback (most recent call last):
        ...
    mapmrf.errors.FormatError: model.suai: its tables (factor 0): reading takes 2.1 GB, expected at most 1 MB, max_bytes
    """

    def __init__(self, limit: float | None = None) -> None:
        self.limit = byte_count(limit, "max_bytes")
        self.allowed = min(machine_bytes(), MOST) if self.limit is None else self.limit
        self.charged: dict[str, float] = {}

    def charge(self, path: AnyPath, needed: float, what: str, place: str = "") -> None:
        """Charge bytes; raise FormatError if the budget is exceeded, with purpose, place, total and budget.

        A new charge for the same purpose replaces the old one: a file may be read twice, and tables add up.
        """
        total = sum(self.charged.values()) - self.charged.get(what, 0.0) + needed
        if total > self.allowed:
            whose = "the memory of this machine" if self.limit is None else "max_bytes"
            where = f" ({place})" if place else ""
            expected = f"expected at most {shown_bytes(self.allowed)}, {whose}"
            raise FormatError(f"{path}: {what}{where}: reading takes {shown_bytes(total)}, {expected}")
        self.charged[what] = needed


_CURRENT: ContextVar[ByteBudget | None] = ContextVar("mapmrf_budget", default=None)


@contextmanager
def spending(max_bytes: float | None) -> Iterator[ByteBudget]:
    """Share a budget among all readers called inside this context.

    Examples
    --------
    >>> with spending(1000):
    ...     charge("model.uai", 2000, "its text")
    Traceback (most recent call last):
        ...
    mapmrf.errors.FormatError: model.uai: its text: reading takes 2 kB, expected at most 1 kB, max_bytes
    """
    budget = ByteBudget(max_bytes)
    token = _CURRENT.set(budget)
    try:
        yield budget
    finally:
        _CURRENT.reset(token)


def charge(path: AnyPath, needed: float, what: str, place: str = "") -> None:
    """Charge the budget of the current file; outside `spending`, compare with the machine's memory."""
    budget = _CURRENT.get()
    if budget is None:
        if needed > FEW:
            ByteBudget().charge(path, needed, what, place)
    else:
        budget.charge(path, needed, what, place)
