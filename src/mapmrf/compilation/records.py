"""Records: a few named numbers that kernels change in place."""

from __future__ import annotations

from collections.abc import Hashable
from functools import cache
from typing import Any, TypeVar, cast, get_type_hints

import numpy as np
from numpy.typing import NDArray

Fields = TypeVar("Fields")

KINDS = {int: np.int64, float: np.float64}


def blank(fields: type[Fields]) -> Fields:
    """Return a record of zeros with the annotated fields of a class, of type int or float.

    Kernels read and write its fields as Python does: it is a numpy record that looks like an instance of the class. A
    field must not have the name of an attribute of numpy scalars, such as `size`.
    """
    return cast(Fields, np.zeros(1, _dtype_of(cast(Hashable, fields)))[0])


Records = NDArray[np.record]  # an array of records


def blanks(fields: type, n: int) -> Any:
    """Return `n` records of zeros with the annotated fields of a class."""
    return np.zeros(n, _dtype_of(cast(Hashable, fields))).view(np.recarray)


@cache
def _dtype_of(fields: Hashable) -> np.dtype[np.void]:
    """Return the numpy type of a record: one object for all records, since numba is slow to recognise a new one."""
    plain = np.dtype([(name, KINDS[kind]) for name, kind in get_type_hints(fields).items()], align=True)
    return np.dtype((np.record, plain))
