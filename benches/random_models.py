"""Random models of many shapes by number: small ones for `answers.py` and `soak.py`, medium ones for `differential.py`.

Every method takes milliseconds or little more on the small ones; `scale` makes them larger. What a shape and a number
give must never change: the stored answers depend on it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np

from mapmrf import FactorGraph, GraphError, constraints, datasets
from mapmrf.datasets.generate import grid_edges

Random = np.random.Generator
Maker = Callable[[Random, float], FactorGraph]

PER_SHAPE = 15
"""Models of each shape in the stored digests."""


def model(shape: str, number: int, scale: float = 1.0) -> FactorGraph:
    """The model of a shape with a number; `scale` multiplies the number of its variables."""
    return SHAPES[shape](np.random.default_rng([number, list(SHAPES).index(shape)]), scale)


def names(per_shape: int = PER_SHAPE) -> list[tuple[str, int]]:
    return [(shape, number) for number in range(per_shape) for shape in SHAPES]


def _n(random: Random, least: int, most: int, scale: float = 1.0) -> int:
    return max(1, int(scale * random.integers(least, most, endpoint=True)))


def _sides(random: Random, scale: float) -> tuple[int, int]:
    return _n(random, 2, 9, math.sqrt(scale)), _n(random, 2, 9, math.sqrt(scale))


def _some_pairs(random: Random, n: int, degree: float) -> np.ndarray:
    """Different pairs of n variables, about `degree` at each."""
    pairs = complete(n)
    return pairs[random.random(len(pairs)) < degree / max(1, n - 1)]


def complete(n: int) -> np.ndarray:
    return np.stack(np.triu_indices(n, 1), axis=1)


def differ(n_states: int) -> np.ndarray:
    """The table of two variables that must not be equal."""
    return np.where(np.eye(n_states, dtype=bool), -np.inf, 0.0)


def normal(random: Random, n: int, states: int, pairs: np.ndarray, strength: float = 1.0) -> FactorGraph:
    """Normal potentials, each pair with its own table."""
    unary, tables = random.normal(size=(n, states)), random.normal(size=(len(pairs), states, states))
    return FactorGraph.from_pairwise(unary, pairs, strength * tables)


def spins(random: Random, scale: float) -> FactorGraph:
    return datasets.grid(*_sides(random, scale), float(random.uniform(0.2, 4.0)), seed=int(random.integers(2**31)))


def torus(random: Random, scale: float) -> FactorGraph:
    """A spin glass on a torus, all couplings 1 or -1 and no field: many labellings are equally good."""
    rows, columns = (max(3, n) for n in _sides(random, scale))
    pairs = grid_edges(rows, columns, wrap=True)
    signs = np.where(random.random(len(pairs)) < 0.5, 1.0, -1.0)
    return FactorGraph.from_pairwise(np.zeros((rows * columns, 2)), pairs, np.eye(2), weight=signs)


def labelled_grid(random: Random, scale: float) -> FactorGraph:
    """A grid of several states, each pair with its own table."""
    pairs, states = grid_edges(*_sides(random, scale), wrap=False), _n(random, 2, 5)
    return normal(random, int(pairs.max(initial=0)) + 1, states, pairs)


def potts(random: Random, scale: float) -> FactorGraph:
    """A noisy picture, one table for all pairs."""
    sides, labels, smoothness = _sides(random, scale), _n(random, 2, 6), float(random.uniform(0.2, 1.5))
    return datasets.potts_image(*sides, labels, 1.2, smoothness, seed=int(random.integers(2**31))).graph


def contrast(random: Random, scale: float) -> FactorGraph:
    """A picture with a Potts table and a weight per pair."""
    return _weighted_potts(random, grid_edges(*_sides(random, scale), wrap=False), _n(random, 2, 6))


def _weighted_potts(random: Random, pairs: np.ndarray, states: int) -> FactorGraph:
    n, weight = int(pairs.max(initial=0)) + 1, random.exponential(size=len(pairs))
    return FactorGraph.from_pairwise(random.normal(size=(n, states)), pairs, np.eye(states), weight=weight)


def smooth(random: Random, scale: float) -> FactorGraph:
    """A truncated linear or quadratic loss of the distance of labels, with weights."""
    pairs, states = grid_edges(*_sides(random, scale), wrap=False), _n(random, 3, 9)
    n, k = int(pairs.max(initial=0)) + 1, np.arange(states)
    apart = np.abs(k[:, None] - k).astype(float) ** random.integers(1, 3)
    table = -np.minimum(apart, float(random.uniform(1.0, 6.0)))
    weight = random.choice([0.0, 0.5, 1.0, 2.0], len(pairs))
    return FactorGraph.from_pairwise(2.0 * random.normal(size=(n, states)), pairs, table, weight=weight)


def dense_spins(random: Random, scale: float) -> FactorGraph:
    n = _n(random, 3, 20, scale)
    return normal(random, n, 2, _some_pairs(random, n, n))


def maxcut(random: Random, scale: float) -> FactorGraph:
    n = _n(random, 4, 40, scale)
    pairs = _some_pairs(random, n, 5.0)
    weight = random.integers(-2, 4, len(pairs)).astype(float)
    return FactorGraph.from_pairwise(np.zeros((n, 2)), pairs, 1.0 - np.eye(2), weight=weight)


def mixed_pairs(random: Random, scale: float) -> FactorGraph:
    n = _n(random, 2, 24, scale)
    card = random.integers(1, 8, n)
    scopes = [*((i,) for i in range(n)), *map(tuple, _some_pairs(random, n, 4.0).tolist())]
    return FactorGraph.from_tables(card, scopes, [random.normal(size=card[list(scope)]) for scope in scopes])


def triples(random: Random, scale: float) -> FactorGraph:
    n = _n(random, 4, 24, scale)
    return datasets.random_graph(n, n + n // 2, states=2, arity=3, seed=int(random.integers(2**31)))


def mixed(random: Random, scale: float) -> FactorGraph:
    """Mixed cardinalities and arities, no -inf."""
    n = _n(random, 4, 20, scale)
    return datasets.random_graph(n, n + n // 2, states=(1, 4), arity=(2, 4), seed=int(random.integers(2**31)))


def forbidden(random: Random, scale: float) -> FactorGraph:
    """Forbidden entries and at least one feasible labelling."""
    n, hard = _n(random, 4, 20, scale), float(random.choice([0.1, 0.3, 0.5]))
    return datasets.random_graph(n, n + n // 2, (2, 4), (2, 3), hard=hard, seed=int(random.integers(2**31)))


def colouring(random: Random, scale: float) -> FactorGraph:
    """Neighbours must differ; often infeasible."""
    n, colours = _n(random, 4, 25, scale), _n(random, 2, 4)
    pairs = _some_pairs(random, n, 3.0)
    return FactorGraph.from_pairwise(random.normal(size=(n, colours)), pairs, differ(colours))


def weighted(random: Random, scale: float) -> FactorGraph:
    """Few tables that many factors share, with weights of all signs and 0."""
    n, states = _n(random, 4, 24, scale), _n(random, 2, 4)
    card = np.full(n, states)
    shared = [random.normal(size=(states,) * arity) for arity in (1, 2, 2, 3)]
    scopes, tables = [], []
    for _ in range(2 * n):
        table = shared[int(random.integers(len(shared)))]
        scopes.append(tuple(random.permutation(n)[: table.ndim].tolist()))
        tables.append(table)
    weight = random.choice([-1.0, 0.0, 0.5, 1.0, 2.0], len(scopes))
    return FactorGraph.from_tables(card, scopes, tables, weight=weight)


def submodular(random: Random, scale: float) -> FactorGraph:
    """Binary pairs that favour equal states: a minimum cut."""
    return _weighted_potts(random, grid_edges(*_sides(random, scale), wrap=False), 2)


def tree(random: Random, scale: float) -> FactorGraph:
    """Each variable hangs on a random earlier one."""
    n, states = _n(random, 2, 40, scale), _n(random, 2, 6)
    pairs = np.array([[random.integers(0, i), i] for i in range(1, n)]).reshape(-1, 2)
    return normal(random, n, states, pairs)


def network(random: Random, scale: float) -> FactorGraph:
    """A Bayesian network: conditional tables of up to two parents, some of them deterministic."""
    n = _n(random, 4, 30, scale)
    card = random.integers(2, 5, n)
    scopes, tables = [], []
    for i in range(n):
        scope = (*random.permutation(i)[: random.integers(0, 3)].tolist(), i)
        p = random.dirichlet(np.ones(card[i]), size=card[list(scope[:-1])])
        if random.random() < 0.2:
            p = np.where(p == p.max(axis=-1, keepdims=True), 1.0, 0.0)
        with np.errstate(divide="ignore"):
            scopes, tables = [*scopes, scope], [*tables, np.log(p)]
    return FactorGraph.from_tables(card, scopes, tables)


def pieces(random: Random, scale: float) -> FactorGraph:
    """Several parts that do not hang together, and variables of one state or without factors."""
    card, scopes, tables = [1, 3], [(1,)], [random.normal(size=3)]
    for _ in range(_n(random, 2, 5, scale)):
        at, n = len(card), _n(random, 2, 8)
        card += random.integers(1, 4, n).tolist()
        pairs = [(at + i, at + j) for i in range(n) for j in range(i) if i == j + 1 or random.random() < 0.3]
        scopes += pairs
        tables += [random.normal(size=(card[i], card[j])) for i, j in pairs]
    return FactorGraph.from_tables(card, scopes, tables)


def constrained(random: Random, scale: float) -> FactorGraph:
    """Pairs with counts, prices of labels and parities beside them."""
    n, states = _n(random, 4, 12, scale), _n(random, 2, 3)
    graph = normal(random, n, states, _some_pairs(random, n, 3.0))
    some = [(int(i), int(random.integers(states))) for i in random.permutation(n)[: _n(random, 2, 6)]]
    choices = (
        constraints.at_most_k(some, len(some) // 2),
        constraints.exactly_one(some, 1.5),
        constraints.xor(some),
        constraints.label_cost(int(random.integers(states)), 0.7),
        constraints.at_least_one(some),
    )
    return graph.with_constraints([choices[k] for k in random.permutation(len(choices))[:2]])


def tiny(random: Random, scale: float) -> FactorGraph:
    """No variable, one variable, one state, a constant alone, nothing allowed; `scale` changes nothing."""
    made = FactorGraph.from_tables
    kinds = (
        lambda: made([], [], []),
        lambda: made([_n(random, 1, 5)], [], []),
        lambda: made([1, 1, 1], [(0, 1), (1, 2)], random.normal(size=(2, 1, 1))),
        lambda: made([4], [(), (0,), (0,)], [random.normal(), *random.normal(size=(2, 4))]),
        lambda: made([2, 2], [(0, 1)], [np.full((2, 2), -np.inf)]),
        lambda: made([2, 3], [(0, 1), (1, 0)], [random.normal(size=(2, 3)), random.normal(size=(3, 2))]),
    )
    return kinds[int(random.integers(6))]()


def clauses(random: Random, scale: float) -> FactorGraph:
    """Factors of two to four variables that forbid half of their entries: messages alone seldom find what is left."""
    n = _n(random, 6, 18, scale)
    card = random.integers(2, 4, n)
    scopes = [tuple(random.permutation(n)[: random.integers(2, 5)].tolist()) for _ in range(n + n // 2)]
    tables = [np.where(random.random(card[list(scope)]) < 0.5, -np.inf, 0.0) for scope in scopes]
    tables += [random.normal(size=r) for r in card]
    return FactorGraph.from_tables(card, [*scopes, *((i,) for i in range(n))], tables)


SHAPES: dict[str, Maker] = {
    maker.__name__: maker
    for maker in (
        spins, torus, labelled_grid, potts, contrast, smooth, dense_spins, maxcut, mixed_pairs, triples,
        mixed, forbidden, colouring, weighted, submodular, tree, network, pieces, constrained, tiny, clauses,
    )
}  # fmt: skip


# -- medium ones ------------------------------------------------------------------------------------------------------


def _sparse_scopes(random: Random, n: int, most: int) -> list[tuple[int, ...]]:
    """A tree of factors with some more that close cycles."""
    scopes = []
    for i in range(1, n):
        others = random.permutation(min(i, 12))[: random.integers(1, most)] + max(0, i - 12)
        scopes.append((*others.tolist(), i))
    for _ in range(int(random.integers(0, max(1, n // 4)))):
        scopes.append(tuple((int(random.integers(0, max(1, n - 8))) + random.permutation(8)[:2]).tolist()))
    return [tuple(random.permutation(scope).tolist()) for scope in scopes if max(scope) < n]


def _filled(random: Random, card: np.ndarray, scopes: list[tuple[int, ...]], hard: float = 0.0) -> FactorGraph:
    """Random tables, half of them alike: the same numbers in all of one size. With `hard`, one labelling is planted."""
    alike: dict[int, np.ndarray] = {}
    planted = random.integers(0, card)
    tables = []
    for scope in scopes:
        shape = tuple(card[list(scope)].tolist())
        size = math.prod(shape)
        table = random.choice([-3.8, -1.0, 0.0], size=size) if random.random() < 0.3 else random.normal(size=size)
        if random.random() < 0.5:
            table = alike.setdefault(size, table)
        table = table.reshape(shape).copy()
        if hard and random.random() < 0.7:
            table[random.random(shape) < hard] = -np.inf
            table[tuple(planted[list(scope)])] = random.normal()
        tables.append(table)
    unary = [(i,) for i in range(len(card))]
    return FactorGraph.from_tables(card, [*scopes, *unary], [*tables, *(random.normal(size=card[i]) for (i,) in unary)])


def wide(random: Random) -> FactorGraph:
    """A sparse pairwise model of up to 80 states, as side chains of proteins have."""
    n = int(random.integers(20, 101))
    card = np.minimum(1 + random.geometric(0.08, n), 81)
    return _filled(random, card, _sparse_scopes(random, n, 2), float(random.choice([0.0, 0.0, 0.2])))


def high(random: Random) -> FactorGraph:
    """Factors of up to five variables of few states."""
    n = int(random.integers(20, 71))
    return _filled(random, random.integers(1, 4, n), _sparse_scopes(random, n, 5), float(random.choice([0.0, 0.3])))


def whole(random: Random) -> FactorGraph:
    """Whole numbers, some of them large: gaps below 1 prove optimality."""
    graph = high(random)
    unit = float(random.choice([1.0, 1000.0, 3.7e9]))
    theta_v, theta_t = (np.where(np.isfinite(x), np.round(3 * x) * unit, x) for x in (graph.theta_v, graph.theta_t))
    return replace(graph, theta_v=theta_v, theta_t=theta_t)


def limited(random: Random) -> FactorGraph:
    """A sparse model with constraints of every kind, hard and soft."""
    n = int(random.integers(20, 51))
    card = random.integers(2, 5, n)
    graph = _filled(random, card, _sparse_scopes(random, n, 3))
    every = [(i, k) for i in range(n) for k in range(card[i])]

    def some() -> list[tuple[int, int]]:
        return [every[at] for at in random.permutation(len(every))[: int(random.integers(2, 9))]]

    def penalty() -> float | None:
        return None if random.random() < 0.5 else float(random.exponential(2.0))

    def counted(kind: Callable[..., constraints.Constraint]) -> constraints.Constraint:
        pairs = some()
        return kind(pairs, int(random.integers(1, len(pairs))), penalty())

    def summed(pairs: list[tuple[int, int]]) -> constraints.Constraint:
        weights = random.integers(-3, 4, len(pairs)).tolist()
        return constraints.linear(pairs, weights, lower=-2, upper=3, penalty=penalty())

    kinds: list[Callable[[], constraints.Constraint]] = [
        lambda: counted(constraints.at_most_k),
        lambda: counted(constraints.exactly_k),
        lambda: constraints.exactly_one(some(), penalty()),
        lambda: constraints.at_least_one(some(), penalty()),
        lambda: constraints.at_most_one(some(), penalty()),
        lambda: constraints.xor(some(), int(random.integers(2)), penalty()),
        lambda: constraints.or_with_output(some()[1:], every[int(random.integers(len(every)))], penalty()),
        lambda: constraints.all_different(random.permutation(n)[:3].tolist(), penalty()),
        lambda: constraints.label_cost(int(random.integers(2)), float(random.exponential())),
        lambda: summed(some()),
    ]
    chosen = []
    for k in random.permutation(len(kinds))[: int(random.integers(1, 4))]:
        try:
            chosen.append(kinds[k]())
            graph.with_constraints(chosen)
        except GraphError:  # an output among its own inputs
            chosen.pop()
    return graph.with_constraints(chosen)


MEDIUM: dict[str, Callable[[Random], FactorGraph]] = {maker.__name__: maker for maker in (wide, high, whole, limited)}
