"""Memory of the machine and of this process, limits on it, and estimates of what a model and a run need."""

from __future__ import annotations

import math
import os
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

from mapmrf.errors import GraphError, OptionError

if TYPE_CHECKING:
    from mapmrf.model.graph import FactorGraph

PROGRAM = 170_000_000  # bytes of Python with NumPy, numba and the kernels of a method

KERNELS = 80_000_000
"""Bytes of address space for the kernels of a run: LLVM ends the process if it cannot allocate them."""

_TEXT = re.compile(r"\s*((?:\d+(?:\.\d*)?|\.\d+)(?:e\+?\d+)?)\s*([kmgt]?)(i?)b?\s*", re.IGNORECASE)


def machine_bytes() -> float:
    """Memory of the machine or the container in bytes; infinite where the system does not report it."""
    return _machine_bytes(int(time.monotonic()))


@lru_cache(maxsize=1)
def _machine_bytes(second: int) -> float:
    """Read once per second: a container's limit may change, but reading it takes as long as solving a tiny model."""
    try:
        size = float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    except (AttributeError, ValueError, OSError):
        size = math.inf
    for name in ("memory.max", "memory/memory.limit_in_bytes"):  # control groups, of both versions
        with suppress(OSError, ValueError), open(f"/sys/fs/cgroup/{name}", encoding="ascii") as file:
            size = min(size, float(file.read()))
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

    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[field]) * resource.getpagesize()


@contextmanager
def limited_memory(more: float) -> Iterator[None]:
    """Let this process reserve at most so many bytes more than now, where the system can."""
    try:
        import resource
    except ImportError:
        yield
        return
    before = resource.getrlimit(resource.RLIMIT_AS)
    with suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_AS, (_pages(0) + int(more), before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)


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
        machine, space = machine_bytes(), address_space()
        if space < math.inf and (space := space + resident_bytes()) < machine:
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


# -- Estimates from the sizes of a model, before anything is allocated ------------------------------------------------
# numpy is not imported at the top: the help of the program needs the rest of this module


def model_bytes(graph: FactorGraph) -> int:
    """Bytes of the arrays of a model, without its constraints."""
    arrays = (graph.card, graph.theta_v, graph.scope_ptr, graph.scope, graph.table_of, graph.table_ptr, graph.theta_t)
    return sum(array.nbytes for array in arrays) + (0 if graph.weight is None else graph.weight.nbytes)


REPORTED = 4_000_000  # number of edge states up to which a run of lslp or ad3 ends with the epsilon-KKT report


class Sizes(NamedTuple):
    """The sizes of a model that memory grows with."""

    variables: int
    factors: int
    edges: int
    # states: total number of states of the variables; edge_states: of the edges, except those of pairs of binary
    # variables, of which there are binary_edges: some methods have one number for such an edge
    states: int
    edge_states: int
    binary_edges: int
    # entries, configs: entries of all distinct tables, and configurations of all factors
    entries: int
    configs: int
    # large_configs, hard_configs: configurations of factors of three or more variables, and of factors with a forbidden
    # entry
    large_configs: int
    hard_configs: int
    # few_edge_states: all states of the edges, if these are so few that lslp and ad3 report how optimal they are
    few_edge_states: int

    @classmethod
    def of(cls, graph: FactorGraph) -> Sizes:
        import numpy as np

        from mapmrf.arrays import ranges
        from mapmrf.model.problem import hard_tables

        # All factors of a table have one shape: what is counted follows from the number of users, and one of them.
        size = np.diff(graph.table_ptr)
        if graph.n_tables == 1:  # as images have
            users, user = np.array([graph.n_factors]), np.zeros(1, dtype=np.int64)
        else:
            users, user = np.bincount(graph.table_of, minlength=graph.n_tables), np.zeros(graph.n_tables, np.int64)
            user[graph.table_of] = np.arange(graph.n_factors)
        used = np.flatnonzero(users)
        begin = graph.scope_ptr[user[used]].astype(np.int64)
        arity = np.zeros(graph.n_tables, dtype=np.int64)
        arity[used] = graph.scope_ptr[user[used] + 1] - begin
        states = np.zeros(graph.n_tables, dtype=np.int64)  # of all edges of a factor
        np.add.at(states, np.repeat(used, arity[used]), graph.card[graph.scope[ranges(begin, arity[used])]])
        binary_edges = 2 * int(users @ ((arity == 2) & (size == 4) & (states == 4)))
        edge_states = int(users @ states)
        return cls(
            variables=graph.n_vars,
            factors=graph.n_factors,
            edges=graph.n_edges,
            states=len(graph.theta_v),
            edge_states=edge_states - 2 * binary_edges,
            binary_edges=binary_edges,
            entries=len(graph.theta_t),
            configs=int(users @ size),
            large_configs=int(users @ np.where(arity > 2, size, 0)),
            hard_configs=int(users @ np.where(hard_tables(graph), size, 0)),
            few_edge_states=edge_states if edge_states <= REPORTED else 0,
        )

    @classmethod
    def of_equal_pairs(cls, variables: int, pairs: int, n_states: int) -> Sizes:
        """Those of a model of pairs that share a table, such as one of an image, which need not be there yet."""
        edge_states, binary = 2 * pairs * n_states, n_states == 2
        return cls(
            variables=variables,
            factors=pairs,
            edges=2 * pairs,
            states=variables * n_states,
            edge_states=0 if binary else edge_states,
            binary_edges=2 * pairs if binary else 0,
            entries=n_states**2,
            configs=pairs * n_states**2,
            large_configs=0,
            hard_configs=0,
            few_edge_states=edge_states if edge_states <= REPORTED else 0,
        )


# fmt: off
RATES: dict[str, tuple[float, ...]] = {
    # bytes per: variable, factor, edge, state, edge state, binary edge, entry, configuration, large and hard one, edge
    # state of those that are few; fixed
    "ad3":       (   0,    0,     0,     0,  28.5, 55.6,     0, 0.281,  31.1, 53.3, 7.38,  1.4e6),
    "adsal":     (43.3, 92.4,     0,  39.6,  21.5,   43,  19.9,     0,     0, 33.5,    0,      0),
    "annealing": (36.5, 8.97,  56.9,   8.9, 0.964, 1.93,  16.7,     0,  1.52,   28,    0,      0),
    "blocks":    ( 209, 55.5,  59.3,     0,     0,    0,     0,     0,  10.5, 30.6,    0,  1.5e6),
    "bp":        (   0,    0,  55.9,  27.8,   8.8, 17.6, 0.781,     0,     0, 39.5,    0,  1.3e6),
    "branch":    (   0, 88.2,     0,     0,     0,    0,     0,  7.58,    18, 92.2,    0,  1.3e7),
    "chains":    (88.9, 18.3,  53.2, 0.672,   1.9,  3.8, 0.636,     0, 0.792,   45,    0, 810000),
    "cuts":      ( 178, 59.9,     0,     0,     0,    0,  5.47,  2.37,  2.82,    0,    0,  2.3e7),
    "dd_sg":     ( 356,    0,     0,  41.5,  10.7, 35.8,  39.1,     0,  1.61, 10.5,   28,      0),
    "expansion": (  13,    0,    38,   3.1,     0,    0,  1.57,     0,     0,    0,    0,      0),
    "flips":     (81.7,  121, 0.282,  7.27,     0,    0,     0, 0.032,  3.05, 41.8,    0,  1.5e6),
    "fusion":    (85.9, 55.3,  40.4,  1.18,     0,    0, 0.793, 0.123,  1.26, 43.3,    0, 450000),
    "icm":       (51.3,   48,  32.5,     0,     0,    0, 0.679, 0.111,  1.51, 43.9,    0, 160000),
    "l2box":     (   0,    0,  51.3,  80.4,     0,    0,    14,     0,     0,    0,    0, 200000),
    "lslp":      (   0, 37.1,     0,     0,  28.2, 23.4,     0,     0,  26.5, 48.8, 34.5,  7.8e6),
    "maxflow":   (   0,    0,     0,     0,  13.3, 26.6,     0,     0,     0,    0,    0,      0),
    "mplp":      (71.9,  101,  54.6,  7.11,  8.52,   17,  9.58,     0,  1.14, 33.8,    0,      0),
    "mplp_c":    ( 275,  219,     0,     0,  6.28, 12.6,  10.1, 0.148,     0, 30.2,    0,      0),
    "psdd":      (74.5,  206,     0,    79,  32.3, 64.6,  38.5,   0.9,  13.8, 3.57,    0,      0),
    "qpbo":      (   0,    0,     0,    55,     0,    0,  57.6,     0,     0,    0,    0, 550000),
    "restarts":  ( 140, 84.4,     0,  2.45,  3.34, 6.68,  14.9,     0,  1.82,    0,    0,      0),
    "tabu":      (   0,    0,     0,  71.8,  39.5,   79,     0,     0,     0,    0,    0,      0),
    "trbp":      (   0,    0,    72,  29.3,  8.97, 17.9, 0.754,     0, 0.169, 37.8,    0,      0),
    "trws":      (86.1,    0,     0,     0,  6.31,    0,  5.47,     0,  5.45, 38.4, 4.19,  2.2e6),
    "wcsp":      (12.6,    0,     0,     0,     0,    0,     0,  5.95,  17.2,    0,    0,  3.9e7),
}
"""Measured by `python benches/footprints.py --fit`. Methods that are not listed have no estimate."""
# fmt: on


def surely_fits(graph: FactorGraph, left: float) -> bool:
    """Whether any method with measured rates needs at most `left` bytes and 1 GB, by the lengths of arrays alone."""
    entries = len(graph.theta_v) + len(graph.theta_t) + 1
    return _HIGHEST + _SUM * (graph.n_vars + (graph.n_factors + graph.n_edges) * entries + entries) <= min(left, 1e9)


_HIGHEST = max(rates[-1] for rates in RATES.values())
_SUM = max(sum(rates[:-1]) for rates in RATES.values())


def footprint_of(method: str, model: FactorGraph | Sizes) -> float | None:
    """Bytes that a run of a method needs besides the model, by the measured rates; None if there are none."""
    rates = RATES.get(method)
    if rates is None:
        return None
    sizes = model if isinstance(model, Sizes) else Sizes.of(model)
    return float(sum(rate * size for rate, size in zip(rates[:-1], sizes, strict=True)) + rates[-1])
