"""Operations on ragged layouts, against plain loops."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mapmrf.arrays import finite_range, frozen, largest_size, offsets, ranges, row_sums, segment_argmax, strides


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


@pytest.mark.parametrize("n", range(1, 12))
def test_row_sums_are_those_of_numpy_to_the_last_bit(n: int) -> None:
    random = np.random.default_rng(n)
    values = random.normal(size=(50, 3, n)) * 10.0 ** random.integers(-8, 8, (50, 3, n))
    assert row_sums(values).tolist() == values.sum(axis=-1).tolist()
    across = values.swapaxes(1, 2).copy()
    assert row_sums(across.swapaxes(1, 2)).tolist() == across.sum(axis=1).tolist()


@given(st.lists(st.sampled_from([-np.inf, -3.0, -1.0, 0.0, 2.0, 5.0]), max_size=6))
def test_ranges_and_sizes_are_those_of_the_finite_entries(entries: list[float]) -> None:
    finite = [x for x in entries if x > -np.inf]
    assert finite_range(np.array(entries)) == (max(finite) - min(finite) if finite else 0.0)
    assert largest_size(np.array(entries)) == max(map(abs, finite), default=0.0)


@given(st.lists(st.lists(st.integers(1, 4), min_size=2, max_size=4), max_size=5), st.booleans())
def test_strides_are_the_products_of_the_sizes_that_follow(shapes: list[list[int]], equal: bool) -> None:
    if equal:
        shapes = [shape[:2] for shape in shapes]
    card = np.array([size for shape in shapes for size in shape], dtype=np.int64)
    found = strides(card, offsets([len(shape) for shape in shapes]))
    assert found.tolist() == [int(np.prod(shape[k + 1 :])) for shape in shapes for k in range(len(shape))]


def test_frozen_arrays_refuse_to_change() -> None:
    array = frozen(np.zeros(2))
    with pytest.raises(ValueError, match="read-only"):
        array[0] = 1.0
