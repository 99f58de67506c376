"""Whole numbers that several threads read and write without locks.

What a thread wrote before `publish` is seen by every thread that has read the published number with `observe`.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba.core import cgutils, types
from numba.extending import intrinsic, overload

from mapmrf.arrays import Ints

_typed: Any = intrinsic  # numba's decorators have no type hints
_overload: Any = overload


def take_next(counter: Ints) -> int:
    """Add 1 to the only number of an array; return what it was before. No two threads get the same number."""
    counter[0] += 1
    return int(counter[0] - 1)


def publish(numbers: Ints, at: int, value: int) -> None:
    """Write a number, and with it everything that this thread has written before."""
    numbers[at] = value


def observe(numbers: Ints, at: int) -> int:
    """Read a number, and with it everything that was written before it was published."""
    return int(numbers[at])


def _pointer(context: Any, builder: Any, array: Any, kind: Any, at: Any) -> Any:
    view = context.make_array(kind)(context, builder, array)
    return cgutils.get_item_pointer(context, builder, kind, view, [at], wraparound=False)


@_typed
def _fetch_add(typing: Any, counter: Any) -> Any:
    def code(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        zero, one = ir.Constant(ir.IntType(64), 0), ir.Constant(ir.IntType(64), 1)
        place = _pointer(context, builder, arguments[0], signature.args[0], zero)
        return builder.atomic_rmw("add", place, one, "seq_cst")

    return types.int64(counter), code


@_typed
def _store(typing: Any, numbers: Any, at: Any, value: Any) -> Any:
    def code(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        place = _pointer(context, builder, arguments[0], signature.args[0], arguments[1])
        builder.store_atomic(arguments[2], place, "release", 8)
        return context.get_dummy_value()

    return types.none(numbers, types.int64, types.int64), code


@_typed
def _load(typing: Any, numbers: Any, at: Any) -> Any:
    def code(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        place = _pointer(context, builder, arguments[0], signature.args[0], arguments[1])
        return builder.load_atomic(place, "acquire", 8)

    return types.int64(numbers, types.int64), code


@_overload(take_next, inline="always", strict=False)
def _take_next(counter: Any) -> Any:
    return lambda counter: _fetch_add(counter)


@_overload(publish, inline="always", strict=False)
def _publish(numbers: Any, at: Any, value: Any) -> Any:
    return lambda numbers, at, value: _store(numbers, at, value)


@_overload(observe, inline="always", strict=False)
def _observe(numbers: Any, at: Any) -> Any:
    return lambda numbers, at: _load(numbers, at)
