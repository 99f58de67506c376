"""Equal blocks are found, and hashes that collide do no harm."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mapmrf.arrays import offsets
from mapmrf.formats import tables


def by_hand(blocks: list[tuple[float, ...]]) -> list[int]:
    return [blocks.index(block) for block in blocks]


@given(blocks=st.lists(st.lists(st.sampled_from([0.0, -0.0, 1.0, -np.inf, 0.1]), max_size=3).map(tuple), max_size=12))
def test_first_equal(blocks: list[tuple[float, ...]]) -> None:
    ptr = offsets([len(block) for block in blocks])
    values = np.array([x for block in blocks for x in block], dtype=np.float64)
    assert tables.first_equal(values, ptr[:-1], np.diff(ptr)).tolist() == by_hand(blocks)


@pytest.mark.parametrize("chunk", [1, 7, 1 << 17])
def test_chunks_and_round_numbers(monkeypatch, chunk) -> None:
    monkeypatch.setattr(tables, "_CACHED", chunk)
    table = np.random.default_rng(0).integers(0, 4, (500, 4)).astype(np.float64)
    found = tables.first_equal(table.ravel(), np.arange(500) * 4, np.full(500, 4))
    assert found.tolist() == by_hand([tuple(row) for row in table.tolist()])


def test_colliding_hashes_keep_tables_apart(monkeypatch) -> None:
    monkeypatch.setattr(tables, "_hashes", lambda bits: np.zeros(len(bits), dtype=np.uint64))
    found = tables.first_equal(np.array([1.0, 2.0, 1.0, 3.0]), np.arange(4), np.ones(4, dtype=np.int64))
    assert found.tolist() == [0, 1, 0, 3]
