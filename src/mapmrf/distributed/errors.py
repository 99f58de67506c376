"""Errors of ranks: an error on one of them ends all, with one line that names the rank."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from mapmrf.distributed.ranks import Ranks
from mapmrf.errors import MapMRFError

T = TypeVar("T")


class RankError(MapMRFError):
    """Something went wrong on one of the ranks; raised on all of them.

    Examples
    --------
    >>> from mapmrf.distributed.errors import together
    >>> from mapmrf.distributed.ranks import OneProcess
    >>> def read():
    ...     raise OSError(28, "No space left on device", "state.mrf")
    >>> together(OneProcess(), read)
    Traceback (most recent call last):
        ...
    mapmrf.distributed.errors.RankError: state.mrf: No space left on device
    """


def together(ranks: Ranks, action: Callable[[], T]) -> T:
    """Call a function on every rank; if it fails on one, raise the same RankError on all."""
    result: T
    text = None
    try:
        result = action()
    except (OSError, MemoryError, MapMRFError, ValueError) as error:
        text = describe(error)
    for rank, found in enumerate(ranks.allgather(text)):
        if found is not None:
            raise RankError(found if ranks.size == 1 else f"rank {rank}: {found}")
    return result


def describe(error: BaseException) -> str:
    """Describe an error in one line."""
    if isinstance(error, OSError) and error.filename:
        return f"{error.filename}: {error.strerror}"
    if isinstance(error, MemoryError):
        return "not enough memory"
    return " ".join(str(error).split()) or type(error).__name__
