"""Runs of pairs and tiles: every factor is updated once, and every end of it summed up once, where it belongs."""

from __future__ import annotations

from dataclasses import asdict

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import mapmrf
from mapmrf import FactorGraph
from mapmrf.datasets import grid
from mapmrf.engines.admm.layout import Layout
from mapmrf.engines.admm.tiled import LEAST_LENGTH, RunArrays, Runs, cut_tiles, find_runs
from mapmrf.model.problem import Problem


def neighbours(height: int, width: int) -> np.ndarray:
    """Pairs of neighbours of an image: across, then down."""
    place = np.arange(height * width, dtype=np.int32).reshape(height, width)
    across = np.stack([place[:, :-1].ravel(), place[:, 1:].ravel()], axis=1)
    return np.concatenate([across, np.stack([place[:-1].ravel(), place[1:].ravel()], axis=1)])


def pairs_of(runs: Runs) -> np.ndarray:
    """The pairs that runs stand for, in their order."""
    begin, first, second = runs.arrays
    counts = np.diff(begin)
    step = np.arange(begin[-1]) - np.repeat(begin[:-1], counts)
    return np.stack([np.repeat(first, counts) + step, np.repeat(second, counts) + step], axis=1)


@given(st.integers(0, 1000), st.booleans(), st.sampled_from([0.0, 0.002]))
def test_runs_are_the_pairs_in_their_order(seed: int, shuffled: bool, gaps: float) -> None:
    random = np.random.default_rng(seed)
    scope = neighbours(50, 60)
    scope = scope[random.random(len(scope)) >= gaps]
    if shuffled:
        scope = scope[random.permutation(len(scope))]
    runs = find_runs(scope)
    assert runs is not None
    assert (runs.order is not None) == shuffled
    assert np.array_equal(pairs_of(runs), scope if runs.order is None else scope[runs.order])


def test_short_runs_are_left() -> None:
    random = np.random.default_rng(0)
    assert find_runs(random.integers(0, 1000, (5000, 2)).astype(np.int32)) is None
    assert find_runs(neighbours(10, 10)) is None, "on average 14 factors"
    assert LEAST_LENGTH == 40
    assert find_runs(np.zeros((0, 2), dtype=np.int32)) is None


@given(seed=st.integers(0, 10**6), size=st.integers(1, 40))
def test_tiles_have_every_factor_and_every_end_once(seed: int, size: int) -> None:
    """A factor belongs to the tile of its lower variable, an end to that of its own; q has first ends, then second."""
    random = np.random.default_rng(seed)
    n_vars, n_runs = 60, int(random.integers(1, 8))
    counts = random.integers(1, 30, n_runs)
    ends = np.stack([random.integers(0, n_vars - counts + 1), random.integers(0, n_vars - counts + 1)])
    begin = np.concatenate([[0], np.cumsum(counts)])
    runs = Runs(RunArrays(begin, ends[0], ends[1]), None)
    pairs, tiles = pairs_of(runs), cut_tiles(runs.arrays, n_vars, size)
    seen, sums = [], []
    for tile in range(len(tiles.piece_ptr) - 1):
        for at, v1, v2, n in tiles.piece[tiles.piece_ptr[tile] : tiles.piece_ptr[tile + 1]]:
            mine = np.arange(at, at + n)
            assert np.array_equal(pairs[mine], np.stack([np.arange(v1, v1 + n), np.arange(v2, v2 + n)], axis=1))
            assert np.all(pairs[mine].min(axis=1) // size == tile)
            seen += mine.tolist()
        for at, v, n in tiles.part[tiles.part_ptr[tile] : tiles.part_ptr[tile + 1]]:
            assert np.array_equal(pairs.T.ravel()[at : at + n], np.arange(v, v + n))
            assert v // size == (v + n - 1) // size == tile
            sums += range(at, at + n)
    assert sorted(seen) == list(range(len(pairs)))
    assert sorted(sums) == list(range(2 * len(pairs)))


def test_only_binary_pairs_are_laid_out_in_runs() -> None:
    """Long runs of pairs that all variables take part in; otherwise indices."""
    image = grid(50, 50, seed=0)
    assert Layout.build(Problem.compile(image), compact=True).runs is not None
    assert Layout.build(Problem.compile(image), compact=False).runs is None
    edges = neighbours(50, 50)
    labels = FactorGraph.from_pairwise(np.zeros((2500, 3)), edges, np.eye(3))
    assert Layout.build(Problem.compile(labels), compact=True).runs is None
    random = np.random.default_rng(0).permutation(2500)
    assert Layout.build(Problem.compile(FactorGraph.from_pairwise(np.zeros((2500, 2)), random[edges], np.eye(2))),
                        compact=True).runs is None  # fmt: skip


def test_one_table_needs_no_coupling_per_factor() -> None:
    """Weights of a shared table are used as they are."""
    edges = neighbours(50, 50)
    table, weight = np.array([[3.0, 1.0], [0.0, 2.0]]), np.random.default_rng(0).normal(size=len(edges))
    shared = Layout.build(Problem.compile(FactorGraph.from_pairwise(np.zeros((2500, 2)), edges, table)), compact=True)
    assert shared.pairs.shared and len(shared.pairs.strength) < len(edges)
    (batch,) = shared.problem.batches
    assert shared.couplings(batch, slice(3, 8)).tolist() == [1.0] * 5
    graph = FactorGraph.from_pairwise(np.zeros((2500, 2)), edges, table, weight=weight)
    weighted = Layout.build(Problem.compile(graph), compact=True)
    assert weighted.pairs.strength is weighted.problem.weight
    (batch,) = weighted.problem.batches
    assert weighted.couplings(batch, slice(0, len(edges))) == pytest.approx(weight)


@pytest.mark.parametrize("method", ["lslp", "ad3"])
def test_the_order_of_the_factors_does_not_change_the_answer(method: str) -> None:
    """A shuffled file is sorted into the same runs, and what comes out is in the order of the file."""
    rng = np.random.default_rng(0)
    edges = neighbours(40, 45)
    tables, unary = 0.5 * rng.normal(size=(len(edges), 2, 2)), rng.normal(size=(1800, 2))
    order = rng.permutation(len(edges))
    plain = mapmrf.solve(FactorGraph.from_pairwise(unary, edges, tables), method, max_iterations=40)
    mixed = mapmrf.solve(FactorGraph.from_pairwise(unary, edges[order], tables[order]), method, max_iterations=40)
    assert mixed.labels.tolist() == plain.labels.tolist()
    assert mixed.value == pytest.approx(plain.value)
    assert mixed.bound == pytest.approx(plain.bound, rel=1e-9)
    assert mixed.mu_v == pytest.approx(plain.mu_v, abs=1e-9)
    assert asdict(mixed.residuals) == pytest.approx(asdict(plain.residuals), abs=1e-8)
