"""A pass in tiles sends every message that the pass in its order sends, on any number of threads."""

from __future__ import annotations

import numpy as np
import pytest

from mapmrf.engines.messages.mplp import Dual, FactorOrder, tiles_of
from mapmrf.run.workers import Workers
from structured_models import image


def scope_of_pairs(edges: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    return np.arange(0, 2 * len(edges) + 1, 2), edges.ravel()


def grid_pairs(side: int) -> np.ndarray:
    place = np.arange(side * side).reshape(side, side)
    across = np.stack([place[:, :-1].ravel(), place[:, 1:].ravel()], axis=1)
    return np.concatenate([across, np.stack([place[:-1].ravel(), place[1:].ravel()], axis=1)])


def visits_of(edges: np.ndarray, order: str) -> np.ndarray:
    if order == "given":
        return np.arange(len(edges))
    return np.lexsort(edges.T) if order == "variables" else np.random.default_rng(0).permutation(len(edges))


@pytest.mark.parametrize("threads", [2, 3])
@pytest.mark.parametrize("order", ["variables", "given", "random"])
@pytest.mark.parametrize("backward", [False, True])
def test_every_variable_sees_its_factors_in_their_order(threads: int, order: str, backward: bool) -> None:
    edges = grid_pairs(60)
    visit = visits_of(edges, order)
    tiles = tiles_of(visit, *scope_of_pairs(edges), threads, entries=1e4)
    assert tiles is not None
    turn: list[list[int]] = [[] for _ in range(3600)]
    busy, taken_by = np.zeros(3600, dtype=int), set()

    def call(factors: np.ndarray, thread: int) -> None:
        mine = np.unique(edges[factors])
        busy[mine] += 1
        for a in factors[::-1] if backward else factors:
            for i in edges[a]:
                turn[i].append(a)
        assert (busy[mine] == 1).all()  # nobody else has a factor of these variables
        busy[mine] -= 1
        taken_by.add(thread)

    workers = Workers(threads)
    tiles.run(workers, call, backward)
    workers.close()
    expected: list[list[int]] = [[] for _ in range(3600)]
    for a in visit[::-1] if backward else visit:
        for i in edges[a]:
            expected[i].append(a)
    assert turn == expected
    assert taken_by == set(range(threads))


@pytest.mark.parametrize("bad", [0, 7, 1000])
def test_an_error_in_one_thread_lets_nobody_wait(bad: int) -> None:
    edges = grid_pairs(60)
    tiles = tiles_of(np.lexsort(edges.T), *scope_of_pairs(edges), 3, entries=1e4)
    assert tiles is not None
    wrong = np.lexsort(edges.T)[bad]

    def call(factors: np.ndarray, thread: int) -> None:
        if wrong in factors:
            raise ValueError(thread)

    workers = Workers(3)
    with pytest.raises(ValueError, match=r"[012]"):
        tiles.run(workers, call, False)
    workers.close()


def test_one_thread_does_it_all_where_others_would_wait() -> None:
    chain = np.stack([np.arange(5000), np.arange(1, 5001)], axis=1)
    assert tiles_of(np.arange(5000), *scope_of_pairs(chain), 2, entries=1e4) is None
    assert tiles_of(np.arange(0), *scope_of_pairs(chain), 2, entries=1e4) is None
    few = grid_pairs(20)
    assert tiles_of(np.arange(len(few)), *scope_of_pairs(few), 2, entries=4.0) is None


@pytest.mark.parametrize(("states", "side"), [(2, 500), (9, 230)])
@pytest.mark.parametrize("order", ["variables", "model", "random"])
def test_threads_change_no_bit_of_the_messages_or_the_bound(states: int, side: int, order: FactorOrder) -> None:
    duals = [Dual.build(image(side, states), order, "alternate", 0, threads) for threads in (1, 2)]
    assert duals[0].tiles is None and duals[1].tiles is not None
    assert duals[0].decode_tiles is None and duals[1].decode_tiles is not None
    bounds, labels = [], []
    for dual in duals:
        dual.passes(0, 3)
        bounds.append(dual.bound())
        labels.append(np.stack([dual.decode(False), dual.decode(True)]))
        dual.close()
    assert bounds[0] == bounds[1]
    assert np.array_equal(*labels) and not np.array_equal(*labels[0])
    assert np.array_equal(duals[0].regions.belief, duals[1].regions.belief)
    assert np.array_equal(duals[0].regions.lam, duals[1].regions.lam)
    assert bounds[0] == pytest.approx(plain_bound(duals[0]), rel=1e-12)


def plain_bound(dual: Dual) -> float:
    """The bound of a model of pairs, in numpy."""
    regions = dual.regions
    k = len(regions.belief) // dual.n_vars
    lam = regions.lam.reshape(-1, 2, k)
    table = regions.theta.reshape(k, k)
    total = dual.constant + regions.belief.reshape(-1, k).max(axis=1).sum()
    for begin in range(0, len(lam), 10_000):
        some = slice(begin, begin + 10_000)
        entries = regions.weight[some, None, None] * table - lam[some, 0, :, None] - lam[some, 1, None, :]
        total += entries.max(axis=(1, 2)).sum()
    return float(total)
