"""Operations on ragged layouts, against plain loops."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mapmrf.arrays import frozen, offsets, ranges, segment_argmax


@given(st.lists(st.integers(0, 5), max_size=8))
def test_offsets_are_running_sums(counts: list[int]) -> None:
    assert offsets(counts).tolist() == [sum(counts[:b]) for b in range(len(counts) + 1)]


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(0, 4)), max_size=8))
def test_ranges_list_every_block(blocks: list[tuple[int, int]]) -> None:
    starts, counts = [b for b, _ in blocks], [c for _, c in blocks]
    assert ranges(starts, counts).tolist() == [b + k for b, c in blocks for k in range(c)]


@given(st.lists(st.lists(st.sampled_from([-np.inf, -1.0, 0.0, 2.0]), min_size=1, max_size=4), max_size=6))
def test_segment_argmax_is_the_first_largest_of_each_block(blocks: list[list[float]]) -> None:
    values = np.array([x for block in blocks for x in block])
    found = segment_argmax(values, offsets([len(block) for block in blocks]))
    assert found.tolist() == [block.index(max(block)) for block in blocks]
    assert found.dtype == np.int64


def test_frozen_arrays_refuse_to_change() -> None:
    array = frozen(np.zeros(2))
    with pytest.raises(ValueError, match="read-only"):
        array[0] = 1.0
