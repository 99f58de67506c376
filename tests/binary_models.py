"""Binary pairwise models for tests of the programs and of branch and cut."""

from __future__ import annotations

import itertools

import numpy as np
from hypothesis import strategies as st

from mapmrf import FactorGraph
from mapmrf.engines.flow.maximum_flow import Network, add_capacity
from mapmrf.images import neighbour_offsets
from pairwise_models import DIFFER, grid_edges
from plain_python import plain
from strategies import Recipe


def spins(side: int, seed: int = 0, field: float = 0.3, extra: int = 0) -> FactorGraph:
    """A frustrated grid of binary variables, with some more pairs at random places."""
    random = np.random.default_rng(seed)
    more = np.array([random.permutation(side * side)[:2] for _ in range(extra)]).reshape(-1, 2)
    edges = np.concatenate([grid_edges(side), more])
    coupling = random.normal(size=len(edges))
    tables = np.empty((len(edges), 2, 2))
    tables[:, 0, 0] = tables[:, 1, 1] = coupling
    tables[:, 0, 1] = tables[:, 1, 0] = -coupling
    return FactorGraph.from_pairwise(field * random.normal(size=(side * side, 2)), edges, tables)


def complete(n: int, seed: int = 0) -> FactorGraph:
    """All pairs of binary variables interact."""
    random = np.random.default_rng(seed)
    edges = np.array(list(itertools.combinations(range(n), 2)))
    return FactorGraph.from_pairwise(random.normal(size=(n, 2)), edges, random.normal(size=(len(edges), 2, 2)))


def random_cut(n: int, m: int, seed: int, *, weighted: bool = False) -> FactorGraph:
    """A graph to be cut: some of all pairs, `weighted` by whole numbers of both signs."""
    random, pairs = np.random.default_rng(seed), np.stack(np.triu_indices(n, 1), axis=1)
    chosen = pairs[random.choice(len(pairs), m, replace=False)]
    weight = random.integers(-5, 6, m) if weighted else None
    return FactorGraph.from_pairwise(np.zeros((n, 2)), chosen, DIFFER, weight=weight)


@st.composite
def binary_graphs(draw: st.DrawFn) -> FactorGraph:
    """Small binary pairwise models, some with a pair given twice or in the other direction, or with no coupling."""
    random = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    n = draw(st.integers(2, 8))
    recipe = Recipe([2] * n)
    for i in range(n):
        recipe.add((i,), draw(st.sampled_from([0.0, 0.3, 2.0])) * random.normal(size=2))
    for i, j in itertools.combinations(range(n), 2):
        if random.random() < 0.6:
            recipe.add((i, j), random.normal(size=(2, 2)))
        if random.random() < 0.2:
            recipe.add((j, i), random.normal(size=2)[:, None] + random.normal(size=2))
    return recipe.graph()


def submodular_recipe(random: np.random.Generator, n: int, density: float, hard: float = 0.0) -> Recipe:
    """Pairs that favour equal states once the variables of a random set are flipped; some variables have one state.

    `hard` is the share of entries that are forbidden: of unary potentials, and of unequal states in pairs.
    """
    recipe = Recipe([2 if random.random() < 0.9 else 1 for _ in range(n)], [()], [np.array(random.normal())])
    flip = random.integers(0, 2, n)
    for i in range(n):
        if random.random() < 0.8:
            unary = random.normal(size=recipe.card[i])
            unary[random.random(len(unary)) < hard / 2] = -np.inf
            recipe.add((i,), unary)
    for i, j in itertools.permutations(range(n), 2):
        if random.random() < density:
            table = random.normal(size=2)[:, None] + random.normal(size=2) + random.exponential() * np.eye(2)
            table[[0, 1], [1, 0]] = np.where(random.random(2) < hard, -np.inf, table[[0, 1], [1, 0]])
            table = np.flip(table, [axis for axis, k in enumerate((i, j)) if flip[k]])
            recipe.add((i, j), table[: recipe.card[i], : recipe.card[j]].copy())
    return recipe


@st.composite
def submodular_recipes(draw: st.DrawFn) -> Recipe:
    """Small models that a minimum cut solves, with and without hard constraints, feasible or not."""
    random = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    density, hard = draw(st.sampled_from([0.0, 0.2, 0.5])), draw(st.sampled_from([0.0, 0.0, 0.1, 0.5]))
    return submodular_recipe(random, draw(st.integers(1, 8)), density, hard)


def lattice_pairs(shape: tuple[int, ...], offset: tuple[int, ...]) -> np.ndarray:
    """The pairs of pixels (n, 2) that are an offset apart, in the order of the first."""
    place = np.arange(int(np.prod(shape))).reshape(shape)
    first = tuple(slice(max(0, -step), n - max(0, step)) for n, step in zip(shape, offset, strict=True))
    second = tuple(slice(max(0, step), n - max(0, -step)) for n, step in zip(shape, offset, strict=True))
    return np.stack([place[first].ravel(), place[second].ravel()], axis=1)


def neighbour_pairs(shape: tuple[int, ...], neighbours: int) -> np.ndarray:
    """All pairs of neighbours in a picture or volume, of 4, 8, 6 or 26 neighbours."""
    return np.concatenate([lattice_pairs(shape, offset) for offset in neighbour_offsets(len(shape), neighbours)])


def grid_pairs(height: int, width: int) -> np.ndarray:
    """The pairs of neighbours in a grid (n, 2), those of the rows first."""
    return np.concatenate([lattice_pairs((height, width), (0, 1)), lattice_pairs((height, width), (1, 0))])


def add_capacities(network: Network, forward: np.ndarray, backward: np.ndarray) -> None:
    """Add capacities to the arcs of all pairs of a network, as plain Python."""
    guess = 0
    for a in range(len(forward)):
        guess = plain(add_capacity)(network, a, guess, float(forward[a]), float(backward[a]))
