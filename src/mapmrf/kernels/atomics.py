"""Integers through which threads signal their progress to each other, without locks.

Everything that a thread wrote before `publish` is visible to any thread that has read the published number by
`observe`.
"""

from __future__ import annotations

from typing import Any

from mapmrf.arrays import Ints
from mapmrf.compilation.toolchain import cgutils, extending, types

_cgutils: Any = cgutils  # untyped, like numba's decorators
_intrinsic: Any = extending.intrinsic
_overload: Any = extending.overload


def publish(numbers: Ints, at: int, value: int) -> None:
    """Write a number with release semantics: it makes visible all earlier writes of this thread.

    Examples
    --------
    >>> import numpy as np
    >>> from mapmrf.kernels.atomics import observe, publish
    >>> numbers = np.zeros(2, dtype=np.int64)
    >>> publish(numbers, 1, 7)
    >>> observe(numbers, 1)
    7
    """
    numbers[at] = value


def observe(numbers: Ints, at: int) -> int:
    """Read a number with acquire semantics: everything written before it was published is visible.

    Examples
    --------
    >>> import numpy as np
    >>> from mapmrf.kernels.atomics import observe
    >>> observe(np.array([3, 4]), 1)
    4
    """
    return int(numbers[at])


# -- in kernels: loads and stores of 64 bits that neither the compiler nor the processor moves past others ------------


def _pointer(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
    kind = signature.args[0]
    view = context.make_array(kind)(context, builder, arguments[0])
    return _cgutils.get_item_pointer(context, builder, kind, view, [arguments[1]], wraparound=False)


def _store(typing: Any, numbers: Any, at: Any, value: Any) -> Any:
    def code(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        builder.store_atomic(arguments[2], _pointer(context, builder, signature, arguments), "release", 8)
        return context.get_dummy_value()

    return types.none(numbers, types.int64, types.int64), code


def _load(typing: Any, numbers: Any, at: Any) -> Any:
    def code(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.load_atomic(_pointer(context, builder, signature, arguments), "acquire", 8)

    return types.int64(numbers, types.int64), code


_store_release, _load_acquire = _intrinsic(_store), _intrinsic(_load)


def _publish(numbers: Any, at: Any, value: Any) -> Any:
    return lambda numbers, at, value: _store_release(numbers, at, value)


def _observe(numbers: Any, at: Any) -> Any:
    return lambda numbers, at: _load_acquire(numbers, at)


_overload(publish, inline="always", strict=False)(_publish)
_overload(observe, inline="always", strict=False)(_observe)
