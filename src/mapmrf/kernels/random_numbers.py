"""Random numbers inside kernels: 64-bit xorshift, whose state is an array of one non-zero number."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from mapmrf.compilation.jit import inlined

Bits = NDArray[np.uint64]
UNIT = 9007199254740992.0  # 2**53: integers below it, divided by it, are uniform in [0, 1)


def seeded(seed: int) -> Bits:
    return np.array([np.random.default_rng(seed).integers(1, 2**63)], dtype=np.uint64)


@inlined
def next_bits(random: Bits) -> Any:
    x = random[0]
    x ^= x << np.uint64(13)
    x ^= x >> np.uint64(7)
    x ^= x << np.uint64(17)
    random[0] = x
    return x


@inlined
def draw(random: Bits, n: int) -> Any:
    """Return a uniform integer below `n`."""
    return np.int64((next_bits(random) >> np.uint64(11)) % np.uint64(n))
