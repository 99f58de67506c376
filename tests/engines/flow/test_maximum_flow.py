"""Maximum flow: the value of other solvers, a cut of the same capacity, in pieces as at once, and after changes."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.sparse import csr_array
from scipy.sparse.csgraph import maximum_flow

from binary_models import add_capacities, neighbour_pairs
from mapmrf.engines.flow import maximum_flow as driver
from mapmrf.engines.flow.maximum_flow import MaximumFlow, Network, sparse_network, wire
from pairwise_models import grid_edges
from plain_python import plain


def link(n: int, pairs: np.ndarray, forward: np.ndarray, backward: np.ndarray, lattice: bool = True) -> Network:
    """A network of pairs (n_pairs, 2) of distinct nodes, a lattice if asked for and possible."""
    scope = np.ascontiguousarray(pairs, dtype=np.int32).reshape(-1)
    network = wire(n, scope) if lattice else sparse_network(n, scope)
    add_capacities(network, forward, backward)
    return network


def change_capacities(flow: MaximumFlow, nodes: np.ndarray, source: np.ndarray, sink: np.ndarray) -> None:
    """Add to the terminal capacities of some nodes, as plain Python; flow and search trees are kept.

    A negative capacity is a reward for cutting the arc.
    """
    if flow.state != driver.UNBOUNDED:
        places = np.asarray(nodes, dtype=np.int64) + flow.network.margin
        plain(driver.change_terminals)(flow.network, flow.trees, places, source, sink)
        flow.state = driver.PAUSED


@dataclass
class Arcs:
    """Pairs of nodes with capacities in both directions, and capacities of the terminals."""

    pairs: np.ndarray
    forward: np.ndarray
    backward: np.ndarray
    source: np.ndarray
    sink: np.ndarray

    def flow(self, lattice: bool = True) -> MaximumFlow:
        """The flow, without what the source sends through a single node to the sink."""
        network = link(len(self.source), self.pairs, self.forward, self.backward, lattice)
        return MaximumFlow(network, self.source - self.sink)

    @property
    def straight(self) -> float:
        """The flow from the source through one node to the sink."""
        return float(np.minimum(self.source, self.sink).sum())

    def cut(self, sink_side: np.ndarray) -> float:
        """Capacity of the arcs from the source's side to the sink's."""
        i, j = self.pairs.T
        inner = self.forward[~sink_side[i] & sink_side[j]].sum() + self.backward[~sink_side[j] & sink_side[i]].sum()
        return float(inner + self.source[sink_side].sum() + self.sink[~sink_side].sum())


def random_arcs(random: np.random.Generator, n: int, n_pairs: int, whole: bool = False) -> Arcs:
    """Some capacities are 0; pairs may come twice."""
    pairs = np.array([random.permutation(n)[:2] for _ in range(n_pairs if n > 1 else 0)], dtype=np.int64).reshape(-1, 2)

    def capacities(size: int) -> np.ndarray:
        amount = random.integers(0, 20, size) if whole else 9 * random.random(size)
        return np.where(random.random(size) < 0.7, amount, 0).astype(float)

    return Arcs(pairs, capacities(len(pairs)), capacities(len(pairs)), capacities(n), capacities(n))


@st.composite
def any_arcs(draw: st.DrawFn) -> Arcs:
    random = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    return random_arcs(random, draw(st.integers(0, 12)), draw(st.integers(0, 40)), draw(st.booleans()))


def by_scipy(arcs: Arcs) -> int:
    """The value of the maximum flow between two more nodes, for whole capacities."""
    n = len(arcs.source)
    i, j = arcs.pairs.T
    every = np.arange(n)
    tails = np.concatenate([i, j, np.full(n, n), every])
    heads = np.concatenate([j, i, every, np.full(n, n + 1)])
    capacity = np.concatenate([arcs.forward, arcs.backward, arcs.source, arcs.sink]).astype(np.int32)
    return int(maximum_flow(csr_array((capacity, (tails, heads)), shape=(n + 2, n + 2)), n, n + 1).flow_value)


def assert_maximal(flow: MaximumFlow, arcs: Arcs, straight: float | None = None) -> None:
    """There is a cut of the flow's capacity; `straight` is that of the arcs which the flow began with."""
    assert flow.state == driver.MAXIMAL
    straight = arcs.straight if straight is None else straight
    assert flow.value + straight == pytest.approx(arcs.cut(flow.on_sink_side), rel=1e-12, abs=1e-12)


@given(seed=st.integers(0, 2**32 - 1), n=st.integers(1, 40), density=st.floats(0, 5))
def test_the_value_is_that_of_scipy(seed: int, n: int, density: float) -> None:
    arcs = random_arcs(np.random.default_rng(seed), n, int(density * n), whole=True)
    flow = arcs.flow()
    assert flow.run()
    assert flow.value + arcs.straight == by_scipy(arcs)


def with_hubs(arcs: Arcs, random: np.random.Generator, capacity: float) -> Arcs:
    """Two further nodes, each linked to nearly all others: one that the source feeds, and one that feeds the sink."""
    n = len(arcs.source)
    ends = [(i, n + hub) for hub in (0, 1) for i in np.flatnonzero(random.random(n) < 0.9)]
    pairs = np.concatenate([arcs.pairs, np.array(ends, dtype=np.int64)])
    thin = random.integers(0, 4, (2, len(ends))).astype(float)
    forward, backward = (
        np.concatenate([old, new]) for old, new in zip((arcs.forward, arcs.backward), thin, strict=True)
    )
    terminals = (np.append(arcs.source, [capacity, 0.0]), np.append(arcs.sink, [0.0, capacity]))
    return Arcs(pairs, forward, backward, *terminals)


@pytest.mark.parametrize("capacity", [0.0, 30.0, 400.0, 1e6])
@pytest.mark.parametrize("seed", range(3))
def test_nodes_with_very_many_links_do_not_change_the_flow(seed: int, capacity: float) -> None:
    random = np.random.default_rng(seed)
    arcs = with_hubs(random_arcs(random, 2 * driver.HUB, 3000, whole=True), random, capacity)
    flow = arcs.flow()
    flow.run()
    assert flow.value + arcs.straight == by_scipy(arcs)
    assert_maximal(flow, arcs)


def lattice(side: int, seed: int) -> Arcs:
    """A square grid with capacities of both signs at the terminals."""
    random = np.random.default_rng(seed)
    pairs = grid_edges(side)
    excess = 3 * random.normal(size=side * side)
    forward, backward = random.random((2, len(pairs)))
    return Arcs(pairs, forward, backward, np.maximum(excess, 0), np.maximum(-excess, 0))


@given(arcs=any_arcs(), data=st.data())
def test_infinite_arcs_are_never_cut(arcs: Arcs, data: st.DataObject) -> None:
    infinite = np.array([data.draw(st.booleans()) for _ in arcs.pairs], dtype=bool)
    arcs.forward[infinite] = np.inf
    fixed = [i for i in range(len(arcs.source)) if data.draw(st.integers(0, 5)) == 0]
    arcs.source[fixed] = np.inf
    flow = arcs.flow()
    flow.run()
    assert_maximal(flow, arcs)
    assert math.isfinite(flow.value)
    assert not flow.on_sink_side[fixed].any()


def test_a_path_of_infinite_capacity_makes_the_flow_infinite() -> None:
    infinite, none = np.array([np.inf, np.inf]), np.zeros(2)
    arcs = Arcs(np.array([[0, 1], [1, 2]]), infinite, none, np.array([np.inf, 0, 0]), np.array([0, 3.0, np.inf]))
    flow = arcs.flow()
    assert flow.run()
    assert flow.value == math.inf and flow.state != driver.MAXIMAL


@given(arcs=any_arcs(), work=st.integers(1, 30))
def test_short_runs_end_with_the_flow_and_the_cut_of_a_long_one(arcs: Arcs, work: int) -> None:
    whole, pieces = arcs.flow(), arcs.flow()
    whole.run()
    assert_maximal(whole, arcs)
    before = 0.0
    while not pieces.run(work):
        assert before <= pieces.value <= whole.value + 1e-9
        before = pieces.value
    assert (pieces.value, pieces.paths) == (whole.value, whole.paths)
    assert pieces.on_sink_side.tolist() == whole.on_sink_side.tolist()


@given(arcs=any_arcs() | st.builds(lattice, st.just(15), st.integers(0, 99)), data=st.data())
def test_after_changes_at_the_terminals_the_flow_is_that_of_a_new_network(arcs: Arcs, data: st.DataObject) -> None:
    n, straight = len(arcs.source), arcs.straight
    flow = arcs.flow()
    for _ in range(data.draw(st.integers(1, 4))):
        flow.run(data.draw(st.sampled_from([1, 20, 10**9])))
        random = np.random.default_rng(data.draw(st.integers(0, 2**32 - 1)))
        nodes = np.flatnonzero(random.random(n) < data.draw(st.sampled_from([0.2, 1.0])))
        before = arcs.source[nodes], arcs.sink[nodes]
        arcs.source[nodes], arcs.sink[nodes] = np.where(random.random((2, len(nodes))) < 0.4, 0, 9.0)
        change_capacities(flow, nodes, arcs.source[nodes] - before[0], arcs.sink[nodes] - before[1])
    flow.run()
    assert_maximal(flow, arcs, straight)
    fresh = arcs.flow()
    fresh.run()
    assert flow.value + straight == pytest.approx(fresh.value + arcs.straight, rel=1e-12, abs=1e-12)


def test_the_time_of_stamps_may_begin_anew_in_the_middle_of_a_flow(monkeypatch: pytest.MonkeyPatch) -> None:
    arcs = lattice(30, 3)
    flow, fresh = arcs.flow(), arcs.flow()
    fresh.run()
    flow.run(max_paths=40)
    assert flow.state != driver.MAXIMAL
    flow.trees.cursor.time = driver.LAST_TIME - 5
    flow.run(max_paths=3)
    assert flow.trees.cursor.time > 1000
    flow.run()
    assert flow.trees.cursor.time < 10_000_000
    assert_maximal(flow, arcs)
    assert flow.value == pytest.approx(fresh.value, rel=1e-12)


def test_a_small_change_needs_little_more_work() -> None:
    arcs = lattice(60, 2)
    flow = arcs.flow()
    flow.run()
    work, paths = int(flow.trees.cursor.work), flow.paths
    change_capacities(flow, np.array([1830]), np.array([2.0]), np.array([0.0]))
    arcs.source[1830] += 2.0
    flow.run()
    assert_maximal(flow, arcs)
    assert flow.trees.cursor.work - work < work / 20
    assert flow.paths - paths < paths / 20


def test_a_negative_capacity_is_a_reward_for_cutting_it() -> None:
    flow = MaximumFlow(link(1, np.zeros((0, 2)), np.zeros(0), np.zeros(0)), np.array([1.0]))
    flow.run()
    assert flow.value == 0.0
    change_capacities(flow, np.array([0]), np.array([-5.0]), np.array([0.0]))
    flow.run()
    assert flow.value == -4.0 and flow.on_sink_side.tolist() == [True]


@given(seed=st.integers(0, 2**32 - 1), data=st.data())
def test_a_lattice_without_lists_of_arcs_gives_the_flow_of_a_sparse_network(seed: int, data: st.DataObject) -> None:
    """Grids of 4 and 8 neighbours and volumes of 6 and 26, some pairs missing or twice, in any order."""
    random = np.random.default_rng(seed)
    axes, every = data.draw(st.sampled_from([2, 3])), data.draw(st.booleans())
    shape = tuple(random.integers(6, 9, axes).tolist())
    pairs = neighbour_pairs(shape, 3**axes - 1 if every else 2 * axes)
    pairs = pairs[random.integers(0, len(pairs), len(pairs))] if data.draw(st.booleans()) else pairs
    turn = random.random(len(pairs)) < 0.3
    pairs[turn] = pairs[turn, ::-1]
    excess = 3 * random.normal(size=int(np.prod(shape)))
    arcs = Arcs(pairs, *random.random((2, len(pairs))), np.maximum(excess, 0), np.maximum(-excess, 0))
    implicit, listed = arcs.flow(), arcs.flow(lattice=False)
    assert len(implicit.network.head) == 0 < len(listed.network.head)
    for flow in (implicit, listed):
        flow.run()
        assert_maximal(flow, arcs)
        change = np.arange(0, len(excess), 3)
        change_capacities(flow, change, np.full(len(change), 0.7), np.zeros(len(change)))
        flow.run()
    assert implicit.value == pytest.approx(listed.value, rel=1e-12)


# -- networks ---------------------------------------------------------------------------------------------------------


def is_lattice(network: Network) -> bool:
    return len(network.kind) > 0


@pytest.mark.parametrize(
    ("shape", "neighbours", "offsets"),
    [
        ((9, 11), 4, [1, 11]),
        ((9, 11), 8, [1, 10, 11, 12]),
        ((6, 7, 8), 6, [1, 8, 56]),
        ((6, 7, 8), 26, [1, 7, 8, 9, 47, 48, 49, 55, 56, 57, 63, 64, 65]),
    ],
)
def test_pictures_and_volumes_are_lattices(shape: tuple[int, ...], neighbours: int, offsets: list[int]) -> None:
    pairs = neighbour_pairs(shape, neighbours)
    network = wire(int(np.prod(shape)), pairs.ravel())
    assert is_lattice(network)
    assert network.offset.tolist() == [-o for o in offsets[::-1]] + offsets
    shuffled = np.random.default_rng(0).permutation(pairs)[:, ::-1]
    assert wire(int(np.prod(shape)), shuffled.ravel()).offset.tolist() == network.offset.tolist()


def test_pairs_in_all_directions_a_ring_and_a_few_pairs_are_no_lattice() -> None:
    """A margin as long as the model, or arcs that are mostly missing, would waste memory."""
    random = np.random.default_rng(0)
    ring = np.stack([np.arange(60), (np.arange(60) + 1) % 60], axis=1)
    for pairs in (np.array([random.permutation(60)[:2] for _ in range(200)]), ring, ring[:5], ring[:0]):
        assert not is_lattice(wire(60, pairs.ravel()))
