"""Numbers that threads share without locks."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np

from mapmrf.arrays import Floats, Ints
from mapmrf.compilation.jit import compiled
from mapmrf.engines.messages.parallel_sweep_kernels import observe, publish


@compiled
def relay(mine: int, n: int, turns: Ints, total: Floats) -> None:
    """Add numbers to a sum in turns with another thread: each waits until the other has published its turn."""
    for i in range(mine, n, 2):
        while observe(turns, 0) < i:
            pass
        total[0] = total[0] * 1.5 % 7.0 + i
        publish(turns, 0, i + 1)


def test_what_was_written_before_a_number_was_published_is_seen_by_who_reads_it() -> None:
    n = 5_000
    turns, total = np.zeros(1, dtype=np.int64), np.zeros(1)
    with ThreadPoolExecutor(2) as pool:
        for future in [pool.submit(relay, mine, n, turns, total) for mine in (0, 1)]:
            future.result()
    expected = 0.0
    for i in range(n):
        expected = expected * 1.5 % 7.0 + i
    assert turns[0] == n
    assert total[0] == expected


def test_plain_python_has_the_same_numbers() -> None:
    numbers = np.array([3, 4])
    publish(numbers, 1, 7)
    assert observe(numbers, 1) == 7
