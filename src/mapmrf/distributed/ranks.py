"""The processes of a run: those of MPI, or this one alone."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from typing import Any, Protocol, TypeVar

from mapmrf.arrays import Floats
from mapmrf.errors import OptionError
from mapmrf.run import interrupts

T = TypeVar("T")

LAUNCHED = ("PMI_SIZE", "PMIX_RANK", "PMI_RANK", "OMPI_COMM_WORLD_SIZE", "MV2_COMM_WORLD_SIZE")
"""Environment variables set by MPI launchers."""


EAGER, NAP = 200, 2e-5  # number of immediate polls for messages, and the seconds between later polls


class Ranks(Protocol):
    """Communication between the processes of a run; collective calls are made by all of them in the same order."""

    rank: int
    size: int

    def allgather(self, value: T) -> list[T]:
        """What every rank gave, in order."""

    def bcast(self, value: T) -> T:
        """What rank 0 gave."""

    def gather_sums(self, mine: Floats, everyones: Floats) -> Any:
        """Begin to gather as many numbers of every rank as `everyones` has rows for; `finish` ends it."""

    def send(self, data: Floats, rank: int) -> Any:
        """Begin to send; the data must not change until `finish`."""

    def receive(self, data: Floats, rank: int) -> Any:
        """Begin to receive."""

    def finish(self, requests: Sequence[Any]) -> None:
        """Wait for everything that was begun."""

    def abort(self, code: int) -> None:
        """End all ranks immediately."""

    def leave(self) -> None:
        """Say that this process communicates no more, before a program ends."""


class OneProcess:
    """A run without MPI: one rank, which never sends anything."""

    rank = 0
    size = 1

    def allgather(self, value: T) -> list[T]:
        return [value]

    def bcast(self, value: T) -> T:
        return value

    def gather_sums(self, mine: Floats, everyones: Floats) -> Any:
        everyones[: len(mine)] = mine

    def send(self, data: Floats, rank: int) -> Any:
        raise AssertionError("one process sends nothing")

    def receive(self, data: Floats, rank: int) -> Any:
        raise AssertionError("one process receives nothing")

    def finish(self, requests: Sequence[Any]) -> None:
        """All is done."""

    def abort(self, code: int) -> None:
        """Do nothing: the exception ends the run."""

    def leave(self) -> None:
        """Nobody has to know."""


class MPIRanks:
    """The ranks of an mpi4py communicator."""

    def __init__(self, comm: Any) -> None:
        from mpi4py import MPI

        self._mpi = MPI
        self.comm = comm.Dup()
        self.rank, self.size = int(comm.rank), int(comm.size)

    def allgather(self, value: T) -> list[T]:
        request = self.comm.Ibarrier()
        self.finish([request])  # avoid busy waiting for the last one
        return list(self.comm.allgather(value))

    def bcast(self, value: T) -> T:
        found: T = self.comm.bcast(value)
        return found

    def gather_sums(self, mine: Floats, everyones: Floats) -> Any:
        return self.comm.Iallgather(mine, everyones)

    def send(self, data: Floats, rank: int) -> Any:
        return self.comm.Isend(data, dest=rank)

    def receive(self, data: Floats, rank: int) -> Any:
        return self.comm.Irecv(data, source=rank)

    def finish(self, requests: Sequence[Any]) -> None:
        """Wait for everything that was begun: busily at first, then leaving the core to others."""
        pending = [request for request in requests if request is not None]
        for _ in range(EAGER):
            if self._mpi.Request.Testall(pending):
                return
        while not self._mpi.Request.Testall(pending):
            time.sleep(NAP)

    def abort(self, code: int) -> None:
        self.comm.Abort(code)

    def leave(self) -> None:
        """Finalise MPI: a rank that ends without counts as crashed, and its launcher kills the others."""
        self._mpi.Finalize()
        interrupts.run_exit_handlers()


def find_ranks(comm: Any = None) -> Ranks:
    """The ranks of a communicator; by default those of the MPI launcher of this process, or this process alone."""
    if isinstance(comm, OneProcess | MPIRanks):
        return comm
    if comm is not None:
        return MPIRanks(comm)
    if not any(name in os.environ for name in LAUNCHED):
        return OneProcess()
    try:
        from mpi4py import MPI
    except ImportError:
        raise OptionError("started by an MPI launcher, but mpi4py is missing: pip install 'mapmrf[mpi]'") from None
    return MPIRanks(MPI.COMM_WORLD)


def parts_of(rank: int, size: int, n_parts: int) -> range:
    """The parts of a rank: a contiguous range, of nearly equal length on all ranks."""
    if size > n_parts:
        raise OptionError(f"{size} ranks but {n_parts} parts: expected at least one part for every rank")
    return range(n_parts * rank // size, n_parts * (rank + 1) // size)


def rank_of(n_parts: int, size: int) -> list[int]:
    return [rank for rank in range(size) for _ in parts_of(rank, size, n_parts)]
