"""Memory of the machine and of this process, memory limits, and checks against them."""

from __future__ import annotations

import math
import os
import re
import time
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from mapmrf.errors import GraphError, OptionError

PROGRAM = 170_000_000  # bytes of Python with NumPy, numba and the kernels of a method

KERNELS = 80_000_000
"""Bytes of address space for the kernels of a run: LLVM ends the process if it cannot allocate them."""

_TEXT = re.compile(r"\s*((?:\d+(?:\.\d*)?|\.\d+)(?:e\+?\d+)?)\s*([kmgt]?)(i?)b?\s*", re.IGNORECASE)


def machine_bytes() -> float:
    """Memory of the machine or the container in bytes; infinite where the system does not report it."""
    try:
        size = float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    except (AttributeError, ValueError, OSError):
        size = math.inf
    for name in ("memory.max", "memory/memory.limit_in_bytes"):  # control groups, of both versions
        with suppress(OSError, ValueError):
            size = min(size, float(Path("/sys/fs/cgroup", name).read_text(encoding="ascii")))
    return size


def address_space() -> float:
    """Bytes of address space that this process may still allocate under ``ulimit -v``; infinite without it."""
    with suppress(ImportError, OSError, ValueError):
        import resource

        allowed, _ = resource.getrlimit(resource.RLIMIT_AS)
        if allowed != resource.RLIM_INFINITY:
            return max(0.0, float(allowed - _pages(0)))
    return math.inf


def resident_bytes() -> float:
    """Bytes of memory that this process uses now, 0 where the system does not report it."""
    with suppress(ImportError, OSError, ValueError):
        return float(_pages(1))
    return 0.0


def _pages(field: int) -> int:
    """A field of Linux's page counts for this process, in bytes."""
    import resource

    return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[field]) * resource.getpagesize()


def shown_bytes(n: float) -> str:
    for unit in ("B", "kB", "MB", "GB"):
        if n < 1000:
            return f"{n:.3g} {unit}"
        n /= 1000
    return f"{n:.3g} TB"


def byte_count(limit: float | str | None, name: str = "memory_limit") -> float | None:
    """Parse a limit in bytes, given as a number or a string; None for none. Errors refer to it by `name`."""
    if limit is None:
        return None
    found = _TEXT.fullmatch(limit) if isinstance(limit, str) else None
    if found is not None:
        number, unit, binary = found.groups()
        power = "kmgt".find(unit.lower()) + 1
        limit = float(number) * (
            1024.0**power if binary else ({"": 1.0, "k": 1e3, "m": 1e6, "g": 1e9, "t": 1e12})[unit.lower()]
        )
    if isinstance(limit, bool) or not isinstance(limit, int | float) or not limit > 0:
        raise OptionError(f"{name} is {limit!r}, expected a number of bytes above 0 or a text such as '2G'")
    return float(limit)


def check_bytes(needed: float, limit: float | str | None, what: str) -> None:
    """Raise GraphError if `needed` exceeds the limit, by default the memory of the machine."""
    given = byte_count(limit)
    allowed = machine_bytes() if given is None else given
    if needed > allowed:
        have = "this machine has" if given is None else "the limit is"
        verb = "takes" if what.startswith("this") else "take"
        raise GraphError(f"{what} {verb} {shown_bytes(needed)}, {have} {shown_bytes(allowed)}")


class MemoryBudget(NamedTuple):
    limit: float = math.inf  # total bytes
    besides: float = 0.0  # bytes of the program and the model, which count towards the limit
    source: str = "the limit is"  # where the limit comes from, for messages

    @classmethod
    def of(cls, limit: float | None, model: float) -> MemoryBudget:
        """The budget for a model of this size: the given limit, or what the system allows."""
        if limit is not None:
            return cls(limit, PROGRAM + model)
        machine, space = machine_bytes(), resident_bytes() + address_space()
        if space < machine:
            return cls(space, resident_bytes() + KERNELS, "ulimit -v allows")
        return cls(machine, PROGRAM + model, "this machine has")

    @property
    def left(self) -> float:
        """Bytes for the run itself."""
        return self.limit - self.besides

    def refusal(self, needed: float | None) -> str | None:
        """Reason why a run that needs this many bytes must not start; None if it fits, or if the need is unknown."""
        if needed is None or needed <= self.left:
            return None
        return f"it takes about {shown_bytes(needed + self.besides)} of memory, {self.source} {shown_bytes(self.limit)}"


NO_LIMIT = MemoryBudget()


class MemoryWatch:
    """Checks at intervals whether this process has grown by more than a number of bytes."""

    def __init__(self, most: float) -> None:
        self.most = most
        self._began = 0.0 if most == math.inf else resident_bytes()
        self._next = 0.0

    @property
    def is_over(self) -> bool:
        now = time.monotonic()
        if self.most == math.inf or now < self._next:
            return False
        # seconds between checks of the memory of the process
        self._next = now + 0.1
        return resident_bytes() - self._began > self.most


def is_lack_of_memory(error: BaseException) -> bool:
    if isinstance(error, OSError):
        return error.errno == 12  # ENOMEM
    return isinstance(error, MemoryError) or (isinstance(error, RuntimeError) and "start new thread" in str(error))
