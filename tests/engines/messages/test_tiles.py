"""A pass in tiles sends every message that the pass in its order sends, on any number of threads."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from mapmrf.engines.messages.mplp import Dual, FactorOrder
from mapmrf.engines.messages.tiles import tiles_of
from structured_models import image


def scope_of_pairs(edges: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    return np.arange(0, 2 * len(edges) + 1, 2), edges.ravel()


def grid_pairs(side: int) -> np.ndarray:
    place = np.arange(side * side).reshape(side, side)
    across = np.stack([place[:, :-1].ravel(), place[:, 1:].ravel()], axis=1)
    return np.concatenate([across, np.stack([place[:-1].ravel(), place[1:].ravel()], axis=1)])


def turns(order: list[int], edges: np.ndarray, n_vars: int) -> list[list[int]]:
    """The pairs of every variable in the order in which they are visited."""
    found: list[list[int]] = [[] for _ in range(n_vars)]
    for a in order:
        for i in edges[a]:
            found[i].append(a)
    return found


@pytest.mark.parametrize("threads", [2, 3])
@pytest.mark.parametrize("order", ["variables", "given", "random"])
def test_every_variable_sees_its_factors_in_their_order_and_one_thread_at_a_time(threads: int, order: str) -> None:
    edges = grid_pairs(90)
    n, n_vars = len(edges), 8100
    if order == "given":
        visit = np.arange(n)
    else:
        visit = np.lexsort(edges.T) if order == "variables" else np.random.default_rng(0).permutation(n)
    tiles = tiles_of(visit, *scope_of_pairs(edges), threads, entries=1e4)
    assert tiles is not None
    together = [np.concatenate(parts).tolist() for parts in tiles.groups]
    assert turns(list(itertools.chain(*together)), edges, n_vars) == turns(visit.tolist(), edges, n_vars)
    for parts in tiles.groups:
        touched = [set(edges[part].ravel().tolist()) for part in parts]
        assert len(set().union(*touched)) == sum(map(len, touched))
    assert sum(max(map(len, parts)) for parts in tiles.groups) < 0.7 * n


def test_one_thread_does_it_all_where_others_would_wait() -> None:
    chain = np.stack([np.arange(5000), np.arange(1, 5001)], axis=1)
    assert tiles_of(np.arange(5000), *scope_of_pairs(chain), 2, entries=1e4) is None
    assert tiles_of(np.arange(0), *scope_of_pairs(chain), 2, entries=1e4) is None
    few = grid_pairs(20)
    assert tiles_of(np.arange(len(few)), *scope_of_pairs(few), 2, entries=4.0) is None


@pytest.mark.parametrize(("states", "side"), [(2, 700), (9, 230)])
@pytest.mark.parametrize("order", ["variables", "model", "random"])
def test_threads_change_no_bit_of_the_messages_or_the_bound(states: int, side: int, order: FactorOrder) -> None:
    duals = [Dual.build(image(side, states), order, "alternate", 0, threads) for threads in (1, 2)]
    assert duals[0].tiles is None and duals[1].tiles is not None
    bounds = []
    for dual in duals:
        dual.passes(0, 3)
        bounds.append(dual.bound())
        dual.close()
    assert bounds[0] == bounds[1]
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
