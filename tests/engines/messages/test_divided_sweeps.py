"""Passes that threads share: the same numbers to the last bit, whatever the number of threads."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

import mapmrf
from binary_models import neighbour_pairs
from mapmrf import FactorGraph
from mapmrf.engines.messages import sweeps
from mapmrf.engines.messages.srmp import TablePasses
from mapmrf.engines.messages.sweeps import (
    Chunks,
    PassStopping,
    SequentialPasses,
    Visits,
    cut_visits,
    divide_sweep,
    share_sweep,
)
from mapmrf.engines.messages.trws_binary import SpinPasses
from mapmrf.engines.messages.trws_pairwise import LabelPasses
from mapmrf.engines.messages.visit_order import VisitOrder
from mapmrf.model.problem import Problem
from mapmrf.run.pool import Workers

ENDLESS = PassStopping(-1.0, -1.0)


@pytest.fixture(autouse=True)
def _cut_small_models(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sweeps, "LARGE", 0)


def lattice(shape: tuple[int, ...], diagonals: bool) -> np.ndarray:
    return neighbour_pairs(shape, 3 ** len(shape) - 1 if diagonals else 2 * len(shape))


def image(shape: tuple[int, ...], n_states: int, diagonals: bool, hard: bool = False) -> FactorGraph:
    random, edges = np.random.default_rng(0), lattice(shape, diagonals)
    differ = np.where(np.eye(n_states, dtype=bool), 0.0, -0.8)
    if hard:
        differ[0, -1] = -np.inf
    return FactorGraph.from_pairwise(
        random.normal(size=(int(np.prod(shape)), n_states)), edges, differ, weight=random.random(len(edges)) + 0.1
    )


def triples(n_rows: int, n_columns: int) -> FactorGraph:
    """Factors of three along the rows and pairs between them."""
    random = np.random.default_rng(1)
    place = np.arange(n_rows * n_columns).reshape(n_rows, n_columns)
    scopes = [tuple(row[c : c + 3]) for row in place.tolist() for c in range(n_columns - 2)]
    scopes += [(i, i + n_columns) for i in place[:-1].ravel().tolist()]
    tables = [random.normal(size=(2,) * len(scope)) for scope in scopes]
    return FactorGraph.from_tables(np.full(place.size, 2), scopes, tables)


def network(n_vars: int, n_edges: int, n_states: int, hard: bool = False) -> FactorGraph:
    """Pairs of any variables, in no particular order."""
    random = np.random.default_rng(2)
    edges = np.unique(np.sort(random.integers(0, n_vars, (n_edges, 2)), axis=1), axis=0)
    edges = edges[edges[:, 0] < edges[:, 1]]
    tables = random.normal(size=(len(edges), n_states, n_states))
    if hard:
        tables[:, 0, -1] = -np.inf
    return FactorGraph.from_pairwise(random.normal(size=(n_vars, n_states)), random.permutation(edges), tables)


NETWORKS = {
    "spins in a network": (SpinPasses, lambda: network(9000, 15000, 2)),
    "labels in a network": (LabelPasses, lambda: network(9000, 15000, 3)),
    "hard pairs in a network": (TablePasses, lambda: network(9000, 15000, 3, hard=True)),
}
MODELS = {
    "spins": (SpinPasses, lambda: image((20, 70), 2, diagonals=False)),
    "spins with diagonals": (SpinPasses, lambda: image((20, 70), 2, diagonals=True)),
    "spins in a volume": (SpinPasses, lambda: image((9, 8, 11), 2, diagonals=True)),
    "labels": (LabelPasses, lambda: image((15, 64), 5, diagonals=False)),
    "labels with diagonals": (LabelPasses, lambda: image((15, 64), 3, diagonals=True)),
    "labels in a volume": (LabelPasses, lambda: image((9, 7, 9), 4, diagonals=False)),
    "hard pairs": (TablePasses, lambda: image((12, 64), 4, diagonals=True, hard=True)),
    "triples": (TablePasses, lambda: triples(12, 64)),
}


def run(kind: type[SequentialPasses], graph: FactorGraph, threads: int) -> SequentialPasses:
    problem = Problem.compile(graph, threads)
    engine = kind(problem, VisitOrder.build(problem, "trees_last"), ENDLESS)  # type: ignore[call-arg]
    engine.iterate(0, 4, 2)
    engine.close()
    return engine


@pytest.mark.parametrize("name", [*MODELS, *NETWORKS])
def test_any_number_of_threads_gives_the_same_bits(name: str) -> None:
    kind, make = (MODELS | NETWORKS)[name]
    graph = make()
    alone = run(kind, graph, 1)
    assert alone.workers is None and len(alone.chunks.bound) > 8
    for threads in (2, 3):
        shared = run(kind, graph, threads)
        assert shared.n_workers == threads
        assert shared.figures == alone.figures
        assert shared.best.tolist() == alone.best.tolist()
        if kind is not SpinPasses:  # whose workers have places of their own
            for one, other in zip(shared.messages, alone.messages, strict=True):
                np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("name", [*MODELS, *NETWORKS])
def test_cutting_a_pass_or_sorting_it_by_depth_changes_sums_by_round_off_and_nothing_else(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    kind, make = (MODELS | NETWORKS)[name]
    graph = make()
    cut = run(kind, graph, 1)
    monkeypatch.setattr(sweeps, "LARGE", 1 << 60)
    whole = run(kind, graph, 1)
    assert len(whole.chunks.bound) == 1 < len(cut.chunks.bound)
    assert cut.figures == pytest.approx(whole.figures, rel=1e-10, abs=1e-10)
    assert cut.best.tolist() == whole.best.tolist()
    if name in MODELS:
        np.testing.assert_array_equal(cut.messages[0], whole.messages[0])


def visits_of(edges: np.ndarray, n: int, factors: bool = False) -> Visits:
    """Visits to the variables of pairs, or to the pairs themselves in the order of their last variables."""
    if factors:
        return np.lexsort(edges.T), 2 * np.arange(len(edges) + 1), edges.ravel(), n
    ends = np.argsort(edges.ravel(), kind="stable")
    return np.arange(n), np.searchsorted(edges.ravel()[ends], np.arange(n + 1)), ends // 2, len(edges)


def dependencies(visits: Visits) -> list[tuple[int, int]]:
    """All visits, by their places, that have a group in common."""
    seq, ptr, group, n_groups = visits
    members: list[list[int]] = [[] for _ in range(n_groups)]
    for place, i in enumerate(seq.tolist()):
        for g in group[ptr[i] : ptr[i + 1]].tolist():
            members[g].append(place)
    return [pair for some in members for pair in itertools.combinations(some, 2)]


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("factors", [False, True])
def test_what_depends_on_each_other_keeps_its_order_when_visits_are_sorted_by_depth(name: str, factors: bool) -> None:
    problem = Problem.compile(NETWORKS[name][1]())
    visits = visits_of(problem.scope.reshape(-1, 2), problem.n_vars, factors)
    chunks, place = divide_sweep(visits, 1)
    assert place is not None and sorted(place.tolist()) == list(range(len(visits[0])))
    after = np.argsort(place)
    pairs = np.array(dependencies(visits))
    assert np.all(after[pairs[:, 0]] < after[pairs[:, 1]])
    chunk_of = np.repeat(np.arange(len(chunks.bound)), chunks.end - chunks.begin)[after]
    assert np.all(chunk_of[pairs[:, 0]] != chunk_of[pairs[:, 1]])


@pytest.mark.parametrize(("shape", "diagonals"), [((12, 50), False), ((12, 50), True), ((9, 6, 7), True)])
@pytest.mark.parametrize("n_workers", [2, 3])
@pytest.mark.parametrize("factors", [False, True])
@pytest.mark.parametrize("forward", [True, False])
def test_a_chunk_waits_for_all_that_it_depends_on(
    shape: tuple[int, ...], diagonals: bool, n_workers: int, factors: bool, forward: bool
) -> None:
    """Whatever a worker may have done when another begins a chunk, all that its visits depend on is done."""
    visits = visits_of(lattice(shape, diagonals), int(np.prod(shape)), factors)
    chunks = Chunks.assigned(visits, *cut_visits(visits), n_workers)
    rows = [chunks.chunk[chunks.ptr[w] : chunks.ptr[w + 1]] for w in range(n_workers)]
    assert all(np.all(chunks.owner[mine] == w) and np.all(np.diff(mine) > 0) for w, mine in enumerate(rows))
    rows = rows if forward else [mine[::-1] for mine in rows]
    needs, tell = chunks.needs[0 if forward else 1], chunks.tell[0 if forward else 1]
    before: dict[int, set[int]] = {}  # the chunks that are done when a chunk begins, at least
    for c in range(len(chunks.owner)) if forward else range(len(chunks.owner) - 1, -1, -1):
        mine = rows[chunks.owner[c]].tolist()
        waits = [mine[mine.index(c) - 1]] if mine.index(c) else []
        for w in np.flatnonzero(needs[c]):
            assert tell[rows[w][needs[c, w] - 1]]
            waits.append(int(rows[w][needs[c, w] - 1]))
        before[c] = set(waits).union(*(before[d] for d in waits))
    chunk_of = np.repeat(np.arange(len(chunks.owner)), chunks.end - chunks.begin)
    for early, late in chunk_of[np.array(dependencies(visits))].tolist():
        first, second = (early, late) if forward else (late, early)
        assert first == second or first in before[second]


def test_rows_planes_and_whole_models_are_what_is_cut() -> None:
    def starts(shape: tuple[int, ...]) -> list[int]:
        edges, n = lattice(shape, False), int(np.prod(shape))
        begin, strand_ptr = cut_visits(visits_of(edges, n))
        return begin[strand_ptr].tolist()

    assert starts((10, 300)) == [300 * row for row in range(11)]
    assert starts((10, 20, 16)) == [320 * plane for plane in range(11)]
    assert starts((2000,)) == [0, 2000]  # a chain


def test_a_shuffled_model_stays_on_one_thread_with_the_same_answer() -> None:
    graph = image((20, 50), 3, diagonals=False)
    new = np.random.default_rng(0).permutation(graph.n_vars)
    unary = np.zeros((graph.n_vars, 3))
    unary[new] = graph.theta_v.reshape(-1, 3)
    shuffled = FactorGraph.from_pairwise(unary, new[graph.scope.reshape(-1, 2)], graph.table(0))
    one, two = (run(LabelPasses, shuffled, threads) for threads in (1, 2))
    assert two.n_workers == 1
    assert one.figures == two.figures


def test_an_infeasible_model_ends_on_every_number_of_threads() -> None:
    graph = image((12, 64), 3, diagonals=False)
    unary = graph.theta_v.reshape(-1, 3).copy()
    unary[300] = -np.inf
    for table in (graph.table(0), np.where(np.eye(3, dtype=bool), -np.inf, 0.0)):
        model = FactorGraph.from_pairwise(unary, graph.scope.reshape(-1, 2), table)
        for threads in (1, 2):
            assert mapmrf.solve(model, "trws", threads=threads).status is mapmrf.Status.INFEASIBLE


def test_who_waits_without_work_is_called_again(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []

    def work(w: int) -> bool:
        calls.append(w)
        return calls.count(w) > 2

    monkeypatch.setattr(sweeps, "NAP", 0.0)
    share_sweep(Workers(2), work, 2)
    assert sorted(calls) == [0, 0, 0, 1, 1, 1]


@pytest.mark.parametrize("who", [0, 1])
def test_a_worker_that_fails_ends_the_pass(who: int) -> None:
    def work(w: int) -> bool:
        if w == who:
            raise ValueError("no memory")
        return False  # waits for the other for ever

    with pytest.raises(ValueError, match="no memory"):
        share_sweep(Workers(2), work, 2)
