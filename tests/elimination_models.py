"""Models of the tests of elimination: grids without weak spots, random graphs, and a model with its bucket tree."""

from __future__ import annotations

import itertools
import math

import numpy as np

import pairwise_models
from mapmrf.engines.elimination.elimination import BucketTree, Functions
from mapmrf.engines.elimination.mini_buckets import BucketPartition, find_partition
from mapmrf.engines.elimination.orders import PrimalGraph, find_order
from mapmrf.model.graph import FactorGraph
from mapmrf.model.problem import Problem


def primal(n: int, edges: list[tuple[int, int]]) -> PrimalGraph:
    tables = [np.zeros((2, 2))] * len(edges)
    return PrimalGraph.of(Problem.compile(FactorGraph.from_tables([2] * n, edges, tables)))


def grid_edges(rows: int, columns: int) -> list[tuple[int, int]]:
    return [(i, j) for i, j in pairwise_models.grid_edges(rows, columns).tolist()]


def random_graph(seed: int, n: int, share: float) -> tuple[PrimalGraph, set[tuple[int, int]]]:
    random = np.random.default_rng(seed)
    edges = {pair for pair in itertools.combinations(range(n), 2) if random.random() < share}
    return primal(n, sorted(edges)), edges


def eliminated(n: int, edges: set[tuple[int, int]], order: list[int]) -> list[set[int]]:
    """Neighbours of every variable when its turn comes, by sets."""
    beside: list[set[int]] = [set() for _ in range(n)]
    for i, j in edges:
        beside[i].add(j)
        beside[j].add(i)
    found = []
    for i in order:
        found.append(set(beside[i]))
        for j in beside[i]:
            beside[j] |= beside[i]
            beside[j] -= {i, j}
    return found


def prepared(graph: FactorGraph, seed: int = 0) -> tuple[Problem, BucketTree, Functions]:
    """A model, the bucket tree of its best order, and its potentials as functions."""
    problem = Problem.compile(graph)
    beside = PrimalGraph.of(problem)
    tree = BucketTree.build(beside, graph.card, find_order(beside, graph.card, seed))
    return problem, tree, Functions.of_model(problem, tree)


def partitioned(graph: FactorGraph, max_vars: int) -> tuple[BucketTree, Functions, BucketPartition]:
    """The bucket tree of a model, its potentials, and mini-buckets with messages of so many variables."""
    _, tree, given = prepared(graph)
    partition = find_partition(tree, given, max_vars, math.inf)
    assert partition is not None
    return tree, given, partition


def frustrated(rows: int, columns: int, states: int = 2, seed: int = 0, wrap: bool = False) -> FactorGraph:
    """A grid of pairs that prefer no state of either variable by itself: simplifying finds little in it."""
    random = np.random.default_rng(seed)
    place = np.arange(rows * columns).reshape(rows, columns)
    across = np.stack([place, np.roll(place, -1, axis=1)], axis=-1)[:, : columns if wrap else columns - 1]
    down = np.stack([place, np.roll(place, -1, axis=0)], axis=-1)[: rows if wrap else rows - 1]
    edges = np.concatenate([across.reshape(-1, 2), down.reshape(-1, 2)])
    tables = random.normal(size=(len(edges), states, states))
    tables -= tables.mean(axis=1, keepdims=True)
    tables -= tables.mean(axis=2, keepdims=True)
    return FactorGraph.from_pairwise(0.1 * random.normal(size=(rows * columns, states)), edges, tables)
