"""Odd cycles: what the separation finds is a violated chordless cycle, and it finds one wherever there is one."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mapmrf.engines.program.odd_cycle_separation import (
    OddCycles,
    OddCycleSeparation,
    SeparationEffort,
    odd_cycles,
    round_by_tree,
    sources_of,
)

Cycle = tuple[list[int], list[int], list[int]]


def ints(n: int, fill: int = 0) -> np.ndarray:
    return np.full(n, fill, dtype=np.int64)


def separate(
    n: int, pairs: np.ndarray, cut: np.ndarray, violation: float = 1e-6, hop: float = 1e-9, work: int = 2**40
) -> tuple[list[Cycle], np.ndarray, int]:
    """Run the kernel from all variables; the cycles (variables, pairs, in F), their violations, and the calls made."""
    separation = OddCycleSeparation(n, pairs[:, 0], pairs[:, 1])
    graph, walk, effort = separation._graph, separation._walk, SeparationEffort(violation, hop)
    found = OddCycles(ints(n + 1), *np.zeros((3, n * n), dtype=np.int32), np.zeros(n))
    turn = n_found = calls = 0
    while turn < n:
        turn, n_found = odd_cycles(turn, n_found, work, effort, np.arange(n), cut, graph, walk, found)
        calls += 1
    assert np.all(walk.place_of == -1)
    ends = found.ptr[: n_found + 1].tolist()
    arrays = (found.var, found.edge, found.odd)
    cycles = [tuple(array[b:e].tolist() for array in arrays) for b, e in itertools.pairwise(ends)]
    return cycles, found.violation[:n_found], calls  # type: ignore[return-value]


def all_cycles(n: int, pairs: np.ndarray) -> Iterator[list[int]]:
    """Every simple cycle as a list of pairs, found by walking from its smallest variable."""
    beside: list[list[tuple[int, int]]] = [[] for _ in range(n)]
    for e, (i, j) in enumerate(pairs.tolist()):
        beside[i].append((j, e))
        beside[j].append((i, e))

    def walk(first: int, here: int, seen: set[int], way: list[int]) -> Iterator[list[int]]:
        for there, e in beside[here]:
            if there == first and len(way) >= 2 and e > way[0]:
                yield [*way, e]
            elif there > first and there not in seen:
                yield from walk(first, there, {*seen, there}, [*way, e])

    for first in range(n):
        yield from walk(first, first, {first}, [])


def shortest(cycle: list[int], cut: np.ndarray) -> float:
    """Smallest left side over the odd subsets F of a cycle: every pair at its nearer side, one switched if need be."""
    price, other = np.minimum(cut[cycle], 1 - cut[cycle]), np.maximum(cut[cycle], 1 - cut[cycle])
    odd = np.count_nonzero(cut[cycle] > 0.5) % 2
    return float(price.sum() + (0.0 if odd else (other - price).min()))


@st.composite
def graphs_with_cuts(draw: st.DrawFn) -> tuple[int, np.ndarray, np.ndarray]:
    random = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    n = draw(st.integers(3, 7))
    every = np.array(list(itertools.combinations(range(n), 2)))
    kept = random.random(len(every)) < draw(st.sampled_from([0.4, 0.6, 1.0]))
    pairs = every[kept] if kept.any() else every[:1]
    kind = draw(st.sampled_from(["any", "halves", "integer", "near integer"]))
    cut = random.random(len(pairs))
    if kind == "halves":
        cut = np.round(2 * cut) / 2
    elif kind == "integer":
        cut = np.round(cut)
    elif kind == "near integer":
        cut = np.abs(np.round(cut) - 0.3 * random.random(len(pairs)))
    return n, pairs, cut


@given(model=graphs_with_cuts())
@settings(max_examples=150)
def test_a_violated_cycle_is_found_exactly_where_there_is_one(model: tuple[int, np.ndarray, np.ndarray]) -> None:
    n, pairs, cut = model
    least = min((shortest(cycle, cut) for cycle in all_cycles(n, pairs)), default=1.0)
    cycles, violated, _ = separate(n, pairs, cut)
    if least < 1 - 1e-5:
        assert cycles
    if least > 1 - 1e-7:
        assert not cycles
    assert np.all(violated > 1e-6)
    assert np.all(violated <= 1 - least + 1e-9)


@given(model=graphs_with_cuts())
@settings(max_examples=100)
def test_what_is_found_is_a_chordless_odd_cycle_of_the_violation_given(
    model: tuple[int, np.ndarray, np.ndarray],
) -> None:
    n, pairs, cut = model
    linked = {frozenset(pair) for pair in pairs.tolist()}
    for (variables, edges, odd), violated in zip(*separate(n, pairs, cut)[:2], strict=True):
        assert len(set(variables)) == len(variables) == len(edges) >= 3
        steps = list(zip(variables, [*variables[1:], variables[0]], strict=True))
        assert [sorted(step) for step in steps] == [pairs[e].tolist() for e in edges]
        assert sum(odd) % 2 == 1
        left = sum(1 - cut[e] if f else cut[e] for e, f in zip(edges, odd, strict=True))
        assert violated == pytest.approx(1 - left)
        inside = {frozenset(pair) for pair in itertools.combinations(variables, 2)} & linked
        assert len(inside) == len(edges)


def test_work_in_pieces_finds_the_same() -> None:
    random = np.random.default_rng(0)
    pairs = np.array(list(itertools.combinations(range(8), 2)))
    cut = random.random(len(pairs))
    whole, _, once = separate(8, pairs, cut)
    pieces, _, often = separate(8, pairs, cut, work=1)
    assert (once, often) == (1, 8)
    assert whole and pieces == whole


def test_a_high_price_of_pairs_prefers_short_cycles() -> None:
    """Two violated cycles through variable 0: a square of length 0 and a triangle of length 0.12."""
    pairs = np.array([[0, 1], [0, 2], [0, 3], [0, 5], [1, 2], [3, 4], [4, 5]])
    cut = np.array([0.04, 0.04, 0.0, 1.0, 0.96, 0.0, 0.0])
    assert len(separate(6, pairs, cut)[0][0][0]) == 4
    assert len(separate(6, pairs, cut, hop=0.2)[0][0][0]) == 3


@given(model=graphs_with_cuts())
@settings(max_examples=100)
def test_every_violated_cycle_goes_through_a_source(model: tuple[int, np.ndarray, np.ndarray]) -> None:
    n, pairs, cut = model
    is_source = ints(n, -5)
    sources_of(pairs[:, 0].copy(), pairs[:, 1].copy(), cut, 1e-9, ints(n), ints(n), is_source)
    assert set(is_source.tolist()) <= {0, 1}
    for cycle in all_cycles(n, pairs):
        if shortest(cycle, cut) < 1 - 1e-6:
            assert is_source[pairs[cycle].ravel()].any()
    if np.all((cut == 0) | (cut == 1)) and not is_source.any():
        assert all(shortest(cycle, cut) >= 1 for cycle in all_cycles(n, pairs))


@given(seed=st.integers(0, 2**32 - 1))
@settings(max_examples=50)
def test_rounding_a_labelling_gives_it_back(seed: int) -> None:
    random = np.random.default_rng(seed)
    n = 6
    pairs = np.array([pair for pair in itertools.combinations(range(n), 2) if random.random() < 0.5] or [(0, 1)])
    x = random.integers(0, 2, n)
    node1, node2 = np.concatenate([np.arange(n), pairs[:, 0]]), np.concatenate([ints(n, n), pairs[:, 1]])
    cut = np.concatenate([x, x[pairs[:, 0]] != x[pairs[:, 1]]]).astype(float)
    labels = ints(n, 7)
    round_by_tree(random.permutation(len(cut)), node1, node2, cut, ints(n + 1), ints(n + 1), labels)
    assert labels.tolist() == x.tolist()


def test_the_surest_pairs_decide_the_rounding() -> None:
    """Variable 1 leans to 0 alone, but it surely differs from variable 0, which is surely 0."""
    node1, node2 = np.array([0, 1, 0]), np.array([2, 2, 1])
    cut = np.array([0.01, 0.4, 0.98])
    labels = ints(2)
    round_by_tree(np.array([0, 2, 1]), node1, node2, cut, ints(3), ints(3), labels)
    assert labels.tolist() == [0, 1]
