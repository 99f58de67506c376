"""Models of the experiments: files of the data folder by set, and generated ones by name.

A generated model has a seed and a scale: the share of its full size, so that every experiment can be tried quickly.
`models.toml` names the functions below with their arguments; they are given `random`, `seed` and `scale` as they need.
"""

from __future__ import annotations

import csv
import inspect
import itertools
import math
import os
import tomllib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

import mapmrf
import random_models
from mapmrf import FactorGraph, constraints, datasets
from mapmrf import images as pictures
from mapmrf.arrays import Floats, Ints
from random_models import Random, complete, differ, grid_edges

Maker = Callable[[int, float], FactorGraph]
"""Makes the model of a seed at a share of its size."""

FOLDERS = ("other", "families", "maxcut", "grids-small", "wcsp", "globals")
"""Folders of models that do not belong to the paper; their best known values are in reference_values.csv."""


@dataclass(frozen=True)
class Model:
    """A model, built when it is needed at a share of its size, and the best value that is known of it (or nan)."""

    name: str
    group: str
    build: Callable[[float], FactorGraph]
    best: float = math.nan
    known_as: str = ""


def data_folder(argument: str | Path | None = None) -> Path:
    """The folder given, else MAPMRF_DATA, else shared/data beside the checkout."""
    folder = Path(argument or os.environ.get("MAPMRF_DATA") or Path(__file__).parents[2] / "shared" / "data")
    if not folder.is_dir():
        raise SystemExit(f"no benchmark data in {folder}: give --data or set MAPMRF_DATA")
    return folder


def select(selector: str, data: str | Path | None = None, seeds: int = 1) -> list[Model]:
    """The models of a set, a folder, or a generated family or group of families.

    `grids/80x80` are those of a set whose names contain this, `scene#10` the first ten, `scene%4` every fourth.
    """
    if selector in GENERATED:
        return _generated(selector, seeds)
    named, _, first = selector.partition("#")
    named, _, step = named.partition("%")
    group, _, part = named.partition("/")
    if group in GROUPS:
        found = [model for family in GROUPS[group] for model in _generated(family, seeds)]
    elif group in FOLDERS:
        found = _in_folder(data_folder(data), group)
    elif group in datasets.sets():
        located = ((entry, datasets.locate(entry, data_folder(data))) for entry in datasets.entries(group))
        found = [
            _of_file(path, group, entry.name, math.nan if entry.best is None else entry.best, entry.best_status)
            for entry, path in located
            if path is not None
        ]
    else:
        raise SystemExit(f"no models are called {selector!r}: neither a set, nor a folder, nor a generated family")
    exact = [model for model in found if model.name == part] or [model for model in found if part in model.name]
    return exact[: int(first) if first else None : int(step or 1)]


def _generated(family: str, seeds: int) -> list[Model]:
    maker, names = GENERATED[family], [family] if seeds == 1 else [f"{family} #{k}" for k in range(seeds)]
    return [
        Model(name, family, lambda scale, seed=seed: maker(seed, scale))  # type: ignore[misc]
        for seed, name in enumerate(names)
    ]


def _in_folder(folder: Path, group: str) -> list[Model]:
    with open(folder / "reference_values.csv", newline="", encoding="utf-8") as file:
        lines = [line for line in csv.DictReader(file) if line["file"].startswith(f"{group}/")]
    return [
        _of_file(folder / line["file"], group, Path(line["file"]).name, float(line["logpot"] or "nan"), line["status"])
        for line in lines
        if (folder / line["file"]).exists()
    ]


def _of_file(path: Path, group: str, name: str, best: float, known_as: str) -> Model:
    beside = path.with_suffix(".evid")
    evidence = beside if beside.exists() else None
    return Model(name, group, lambda _: mapmrf.read(path, evidence=evidence), best, known_as)


# -- graphs and pairs -------------------------------------------------------------------------------------------------


def side_at(full: int, scale: float) -> int:
    """The side of a square with about this share of its cells."""
    return max(4, round(full * scale**0.5))


def n_at(full: int, scale: float) -> int:
    return max(20, round(full * scale))


def network(n: int) -> np.ndarray:
    """Pairs of any two variables; each has six neighbours on average."""
    random = np.random.default_rng(0)
    edges = np.unique(np.sort(random.integers(0, n, (3 * n, 2)), axis=1), axis=0)
    return random.permutation(edges[edges[:, 0] < edges[:, 1]])


def spins(side: int, coupling: float = 3.0, seed: int = 0, scale: float = 1.0) -> FactorGraph:
    return datasets.grid(side_at(side, scale), side_at(side, scale), coupling, seed=seed)


def pairs(
    n_states: int, shape: str, n: int, tables: str = "each", strength: float = 1.0, hard: float = 0.0,
    *, random: Random, scale: float = 1.0,
) -> FactorGraph:  # fmt: skip
    """Normal unaries; each pair has its own normal table, or all have one, or a Potts table and weights.

    A share `hard` of the entries is forbidden, but never for labelling 0.
    """
    side = side_at(n, scale)
    edges = grid_edges(side, side, wrap=False) if shape == "lattice" else globals()[shape](n_at(n, scale))
    n = int(edges.max()) + 1
    if tables == "each":
        graph = random_models.normal(random, n, n_states, edges, strength)
        forbidden = random.random((len(edges), n_states, n_states)) < hard
        forbidden[:, 0, 0] = False
        return replace(graph, theta_t=np.where(forbidden.ravel(), -np.inf, graph.theta_t))
    unary = random.normal(size=(n, n_states))
    if tables == "one":
        return FactorGraph.from_pairwise(unary, edges, random.normal(size=(n_states, n_states)))
    return FactorGraph.from_pairwise(unary, edges, np.eye(n_states), weight=random.exponential(size=len(edges)))


def factors(
    n: int, n_factors: int, states: Any, arity: Any, hard: float = 0.0, seed: int = 0, scale: float = 1.0
) -> FactorGraph:
    """Random factors; `states` and `arity` are numbers or ranges."""
    sizes = [tuple(size) if isinstance(size, list) else size for size in (states, arity)]
    return datasets.random_graph(n_at(n, scale), n_at(n_factors, scale), *sizes, hard=hard, seed=seed)


def potts(side: int, n_states: int, price: float = 0.0, scale: float = 1.0) -> FactorGraph:
    """A picture under noise, in which every label that is used may have a price."""
    graph = datasets.potts_image(side_at(side, scale), side_at(side, scale), n_states).graph
    return graph.with_constraints([constraints.label_cost(k, price) for k in range(n_states)]) if price else graph


def noise(side: int, n_states: int, smoothness: str = "potts", *, random: Random, scale: float = 1.0) -> FactorGraph:
    """A picture of noise alone, with a weight for every pair."""
    side = side_at(side, scale)
    weight = pictures.contrast_weights(random.random((side, side)), 1.0)
    truncation = None if smoothness == "potts" else 4.0
    unary = random.normal(size=(side, side, n_states))
    return pictures.grid_model(unary, smoothness, truncation=truncation, weight=weight)


def protein() -> FactorGraph:
    """Variables of 2 to 20 states, a sixth of all pairs, a few clashes."""
    random, n = np.random.default_rng(0), 60
    card = random.integers(2, 21, n)
    some = [(i, j) for i in range(n) for j in range(i + 1, n) if j == i + 1 or random.random() < 0.16]
    scopes = [(i,) for i in range(n)] + some
    tables = [random.gumbel(size=card[list(scope)]) for scope in scopes]
    for table in tables[n::3]:
        table[random.random(table.shape) < 0.05] -= 50.0
    return FactorGraph.from_tables(card, scopes, tables)


def shape(name: str, times: float, seed: int = 0, scale: float = 1.0) -> FactorGraph:
    """A model of a shape of `random_models.py`, so many times as large as there."""
    return random_models.model(name, seed, max(1.0, times * scale))


def unit_maxcut(n: int, m: int, scale: float = 1.0) -> FactorGraph:
    n = n_at(n, scale)
    m = min(n_at(m, scale), n * (n - 1) // 2)
    chosen = np.random.default_rng(0).choice(n * (n - 1) // 2, m, replace=False)
    return FactorGraph.from_pairwise(np.zeros((n, 2)), complete(n)[chosen], [[0.0, 1.0], [1.0, 0.0]])


def normal_factors(n: int, degree: float, arity: int, states: int, random: Random) -> FactorGraph:
    """Different random scopes, `degree` per variable on average; all potentials normal."""
    n_factors = round(n * degree / arity)
    if arity == 2:
        chosen = np.sort(random.choice(n * (n - 1) // 2, n_factors, replace=False))
        return random_models.normal(random, n, states, complete(n)[chosen])
    scopes = [tuple(random.choice(n, arity, replace=False).tolist()) for _ in range(n_factors)]
    unary, tables = random.normal(size=(n, states)), random.normal(size=(n_factors, *[states] * arity))
    return FactorGraph.from_tables([states] * n, [*((i,) for i in range(n)), *scopes], [*unary, *tables])


def layers(hidden: int, seen: int, states: int, random: Random) -> FactorGraph:
    """Two layers and all pairs between them, the structure of the `rus` models of dynamic networks."""
    edges = np.array([(i, hidden + j) for i in range(hidden) for j in range(seen)])
    tables = np.log(random.dirichlet(np.ones(states), (len(edges), states)))
    return FactorGraph.from_pairwise(np.log(random.dirichlet(np.ones(states), hidden + seen)), edges, tables)


def distances(n: int, states: int, degree: float, random: Random) -> FactorGraph:
    """Distances that pairs must keep, as in frequency assignment, with prices of frequencies and soft distances."""
    edges = complete(n)[random.choice(n * (n - 1) // 2, round(n * degree / 2), replace=False)]
    apart = np.abs(np.arange(states)[:, None] - np.arange(states))
    tables = []
    for _ in edges:
        price = float(random.choice([1.0, 10.0, 100.0]))
        hard, soft = random.integers(1, 3), random.integers(2, 5)
        tables.append(np.where(apart < hard, -np.inf, np.where(apart < soft, -price, 0.0)))
    return FactorGraph.from_pairwise(-random.integers(0, 10, (n, states)).astype(float), edges, np.array(tables))


def bayesian_grid(side: int, deterministic: float, random: Random) -> FactorGraph:
    """A grid whose nodes depend on the upper and the left one, some deterministically; a twentieth is observed."""
    n = side * side
    scopes, tables, sample = [], [], np.zeros(n, dtype=np.int64)
    for i in range(n):
        parents = [i - side] * (i >= side) + [i - 1] * (i % side > 0)
        chance = random.dirichlet(np.ones(2), 2 ** len(parents))
        if random.random() < deterministic:
            chance = np.eye(2)[random.integers(0, 2, 2 ** len(parents))]
        chance = chance.reshape((2,) * (len(parents) + 1))
        sample[i] = random.choice(2, p=chance[tuple(sample[parents])])
        scopes.append((*parents, i))
        with np.errstate(divide="ignore"):
            tables.append(np.log(chance))
    unary, observed = np.zeros((n, 2)), random.random(n) < 0.05
    unary[observed, 1 - sample[observed]] = -np.inf
    return FactorGraph.from_tables([2] * n, [*((i,) for i in range(n)), *scopes], [*unary, *tables])


# -- constraints ------------------------------------------------------------------------------------------------------

SUDOKUS = (
    "000000010400000000020000000000050407008000300001090000300400200050100000000806000",
    "000000012000035000000600070700000300000400800100000000000120000080000040050000600",
    "000000010400000000020000000000050604008000300001090000300400200050100000000807000",
)


def colouring(n: int, degree: float, n_states: int, random: Random) -> FactorGraph:
    """A random graph of this average degree, whose neighbours must differ."""
    chosen = random.permutation(n * (n - 1) // 2)[: int(n * degree / 2)]
    return FactorGraph.from_pairwise(np.zeros((n, n_states)), complete(n)[np.sort(chosen)], differ(n_states))


def pigeon_clauses(n: int, holes: int) -> FactorGraph:
    """Pigeons in different holes, with a binary variable for every pigeon and hole."""
    some, both = np.zeros((2,) * holes), np.zeros((2, 2))
    some[(0,) * holes] = both[1, 1] = -np.inf
    place = np.arange(n * holes).reshape(n, holes)
    apart = [pair for column in place.T.tolist() for pair in itertools.combinations(column, 2)]
    scopes = [*map(tuple, place.tolist()), *apart]
    return FactorGraph.from_tables(np.full(place.size, 2), scopes, [some] * n + [both] * len(apart))


def clauses(n: int, ratio: float, k: int, random: Random) -> FactorGraph:
    scopes, tables = [], []
    for _ in range(int(n * ratio)):
        table = np.zeros((2,) * k)
        table[tuple(random.integers(0, 2, k))] = -np.inf
        scopes.append(tuple(random.permutation(n)[:k].tolist()))
        tables.append(table)
    return FactorGraph.from_tables(np.full(n, 2), scopes, tables)


def sudoku(broken: bool = False, *, seed: int, random: Random) -> FactorGraph:
    """A sudoku of 17 clues as pairs that differ; broken: with one more clue, which is wrong."""
    clues = np.array([int(clue) - 1 for clue in SUDOKUS[seed % len(SUDOKUS)]])
    given, free = np.flatnonzero(clues >= 0), np.flatnonzero(clues < 0)
    proper = with_clues(3, given, clues)
    return with_clues(3, given, mapmrf.solve(proper).labels, random.permutation(free)) if broken else proper


def large_sudoku(
    base: int, empty: float, diagonals: bool = False, broken: bool = False, *, random: Random
) -> FactorGraph:
    """A sudoku of base^2 rows from a shuffled solution, with a share of its cells empty, or all for diagonals."""
    n = base * base
    rows, columns = (np.concatenate([base * g + random.permutation(base) for g in range(base)]) for _ in range(2))
    r, c = np.meshgrid(rows, columns, indexing="ij")
    solution = random.permutation(n)[(base * (r % base) + r // base + c) % n].ravel()
    free, given = np.split(random.permutation(n * n), [n * n if diagonals else int(empty * n * n)])
    return with_clues(base, given, solution, free if broken else None, diagonals)


def with_clues(
    base: int, given: Ints, solution: Ints, free: Ints | None = None, diagonals: bool = False
) -> FactorGraph:
    """Pairs that differ and cells that are given; with `free` cells, one of them is given a wrong state."""
    n = base * base
    row, column = np.divmod(np.arange(n * n), n)
    parts = [row, column, row // base * base + column // base]
    unit = np.logical_or.reduce([part[:, None] == part for part in parts])
    for side in (row == column, row + column == n - 1) if diagonals else ():
        unit |= side[:, None] & side
    unary = np.zeros((n * n, n))
    unary[given] = -np.inf
    unary[given, solution[given]] = 0.0
    if free is not None:
        cell = int(free[0])
        seen = {*solution[given[unit[cell, given]]].tolist(), int(solution[cell])}
        unary[cell, np.arange(n) != min(set(range(n)) - seen)] = -np.inf
    return FactorGraph.from_pairwise(unary, np.argwhere(np.triu(unit, 1)), differ(n))


def stated_sudoku(seed: int) -> FactorGraph:
    """A sudoku of 17 clues as constraints."""
    cell = np.arange(81).reshape(9, 9)
    boxes = cell.reshape(3, 3, 3, 3).swapaxes(1, 2).reshape(9, 9)
    groups = [*cell.tolist(), *cell.T.tolist(), *boxes.tolist()]
    graph = FactorGraph.from_tables([9] * 81, [], [])
    graph = graph.with_constraints([constraints.all_different(group) for group in groups])
    clues = SUDOKUS[seed % len(SUDOKUS)]
    return graph.condition({at: int(clue) - 1 for at, clue in enumerate(clues) if clue != "0"})


def assignment(n: int, random: Random) -> FactorGraph:
    """Every variable another state, of the largest sum."""
    gains = random.normal(size=(n, n))
    graph = FactorGraph.from_tables([n] * n, [(i,) for i in range(n)], list(gains))
    return graph.with_constraints([constraints.all_different(range(n))])


def selection(n: int, n_pairs: int, k: int, tables: bool = False, *, random: Random, scale: float = 1.0) -> FactorGraph:
    """At most k of n items, which gain alone and in pairs; the constraint may be rewritten as tables."""
    n, k = n_at(n, scale), max(1, round(k * scale))
    n_pairs = min(n_at(n_pairs, scale), n * (n - 1) // 2)
    unary = np.stack([np.zeros(n), random.normal(size=n)], axis=1)
    chosen = np.sort(random.permutation(n * (n - 1) // 2)[:n_pairs])
    gains = np.zeros((n_pairs, 2, 2))
    gains[:, 1, 1] = random.normal(size=n_pairs)
    graph = FactorGraph.from_pairwise(unary, complete(n)[chosen], gains)
    graph = graph.with_constraints([constraints.at_most_k(range(n), k)])
    if not tables:
        return graph
    from mapmrf.constraints.as_tables import rewrite

    return rewrite(graph).graph


def budget(n: int, random: Random) -> FactorGraph:
    """Items with a price, of which some exclude each other, under a budget."""
    gains, prices = random.uniform(1.0, 5.0, n), random.integers(1, 8, n)
    graph = FactorGraph.from_tables([2] * n, [(i,) for i in range(n)], [[0.0, gain] for gain in gains])
    apart = [constraints.at_most_one(random.permutation(n)[:3].tolist()) for _ in range(n // 2)]
    limit = constraints.linear(range(n), prices.tolist(), upper=int(prices.sum()) // 4)
    return graph.with_constraints([limit, *apart])


def segmentation(side: int, random: Random) -> FactorGraph:
    """A noisy disc, of which the number of pixels is known."""
    row, column = np.mgrid[:side, :side] - (side - 1) / 2
    disc = row**2 + column**2 < (side / 3) ** 2
    picture = (disc + random.normal(scale=0.8, size=disc.shape)).ravel()
    unary = -np.stack([picture**2, (picture - 1) ** 2], axis=1)
    graph = FactorGraph.from_pairwise(unary, grid_edges(side, side, wrap=False), 0.5 * np.eye(2))
    return graph.with_constraints([constraints.exactly_k(range(side * side), int(disc.sum()))])


def label_costs(side: int, n_labels: int, price: float, random: Random) -> FactorGraph:
    """A noisy picture of four areas, in which every label that is used has a price."""
    picture = np.zeros((side, side))
    picture[side // 3 :, : side // 2] = 2
    picture[:, side // 2 :] = 4
    picture[side // 2 :, side // 2 :] = 1
    noisy = (picture + random.normal(scale=1.2, size=picture.shape)).ravel()
    unary = -((noisy[:, None] - np.arange(n_labels)) ** 2)
    graph = FactorGraph.from_pairwise(unary, grid_edges(side, side, wrap=False), np.eye(n_labels))
    return graph.with_constraints([constraints.label_cost(k, price) for k in range(n_labels)])


# -- pictures ---------------------------------------------------------------------------------------------------------

WHOLE = 100.0
"""Costs of the pictures for `expansion` are multiplied by this and rounded, because gco rounds others."""


@dataclass(frozen=True)
class Picture:
    """A labelling problem as arrays: log potentials, and what pairs lose, by name and weight."""

    unary: Floats
    weight: float | dict[tuple[int, ...], Floats]
    smoothness: str = "potts"
    truncation: float | None = None
    neighbours: int | None = None
    photo: Floats | None = None
    seeds: Ints | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        return self.unary.shape[:-1]

    @property
    def n_labels(self) -> int:
        return self.unary.shape[-1]

    @cached_property
    def table(self) -> Floats:
        return -pictures.smoothness_table(self.smoothness, self.n_labels, truncation=self.truncation)

    @cached_property
    def graph(self) -> FactorGraph:
        neighbours = self.neighbours if isinstance(self.weight, float) else None
        shared = {"weight": self.weight, "truncation": self.truncation, "neighbours": neighbours}
        return pictures.grid_model(self.unary, self.smoothness, **shared)

    def weights(self) -> dict[tuple[int, ...], Floats]:
        if not isinstance(self.weight, float):
            return self.weight
        offsets = pictures.neighbour_offsets(len(self.shape), self.neighbours)
        return {offset: np.asarray(self.weight / math.hypot(*offset)) for offset in offsets}


def noisy(shape: tuple[int, ...], n_labels: int, noise: float) -> Floats:
    """Smooth regions of so many labels, under noise."""
    at = np.meshgrid(*(np.linspace(0, 1, n) for n in shape), indexing="ij")
    height = np.sin(9 * at[-1] + 4 * at[0]) * np.cos(7 * at[0] - 3 * at[-1]) + 0.5 * np.sin(13 * at[len(at) // 2])
    edges = np.quantile(height, np.linspace(0, 1, n_labels + 1)[1:-1])
    return np.digitize(height, edges) + np.random.default_rng(0).normal(scale=noise, size=shape)


def binary_picture(dim: int, side: int, noise: float, weight: float, neighbours: int, scale: float) -> Picture:
    seen = noisy((side_at(side, scale ** (2 / dim)),) * dim, 2, noise)
    weights = pictures.contrast_weights(seen, weight, neighbours=neighbours)
    return Picture(pictures.unary_from_differences(seen, [0, 1]), weights, neighbours=neighbours)


def potts_picture(side: int, n_labels: int, dim: int = 2, *, scale: float) -> Picture:
    seen = noisy((side_at(side, scale ** (2 / dim)),) * dim, n_labels, 1.0)
    return Picture(pictures.unary_from_differences(seen, range(n_labels), weight=0.5), 1.0)


def linear_picture(scale: float) -> Picture:
    seen = noisy((side_at(400, scale),) * 2, 4, 0.5) * 31 / 3
    unary = pictures.unary_from_differences(seen, range(32), difference="absolute", truncation=10.0, weight=0.2)
    return Picture(unary, 0.25, "linear", 5.0)


def photo(scale: float) -> Picture:
    """A cup on a table, from scribbles: three labels, contrast-sensitive weights on 8 neighbours."""
    from skimage import data

    step = max(1, round(1 / scale**0.5)) if scale < 1 else 1
    picture = data.coffee()[::step, ::step].astype(float)
    seeds = np.full((400, 600), -1)
    seeds[300:385, 470:580], seeds[60:250, 500:580] = 0, 0  # table
    seeds[60:150, 230:330], seeds[330:350, 190:300] = 1, 1  # cup and saucer
    seeds[2:40, 2:40] = 2  # the dark corner
    seeds = seeds[::step, ::step]
    unary = np.maximum(pictures.unary_from_seeds(picture, seeds), -1000.0)
    weights = pictures.contrast_weights(picture, 30.0, neighbours=8, floor=0.05, channel_axis=-1)
    return Picture(unary, weights, neighbours=8, photo=picture, seeds=seeds)


def whole_potts(side: int, n_labels: int, scale: float) -> Picture:
    """A picture of a few shapes under noise, whose labels cost whole numbers where they change."""
    side = side_at(side, scale)
    observed = datasets.potts_image(side, side, labels=n_labels, noise=1.2, seed=0).observed
    costs = np.round(WHOLE * (observed[..., None] - np.arange(n_labels)) ** 2 / 2.88)
    return Picture(-costs, 0.8 * WHOLE)


def depth(scale: float) -> Picture:
    """A smooth surface with a step, measured with noise: truncated linear costs, whole numbers."""
    side, n_labels = side_at(400, scale), 32
    y, x = np.mgrid[:side, :side]
    truth = (n_labels / 2 + n_labels / 2.5 * np.sin(x / 40) * np.cos(y / 55)).clip(0, n_labels - 1)
    truth[side // 4 : side // 2, side // 4 : side // 2] = 0.8 * n_labels
    measured = truth + np.random.default_rng(0).normal(0, n_labels / 12, truth.shape)
    costs = np.minimum(np.abs(measured[..., None] - np.arange(n_labels)), n_labels / 4)
    return Picture(-np.round(WHOLE * costs), WHOLE, "linear", 4.0)


# -- all of them ------------------------------------------------------------------------------------------------------


def made(entry: Sequence[Any], **known: Any) -> Any:
    """The result of a function of this module or of `mapmrf.datasets`, given its arguments and what it asks for."""
    name, *arguments = entry
    function = globals().get(name) or getattr(datasets, name)
    asked = inspect.signature(function).parameters
    return function(*arguments, **{key: value for key, value in known.items() if key in asked})


def picture(name: str, scale: float) -> Picture:
    return made(TABLE[name], scale=scale)


def generator(entry: Sequence[Any], *stream: int) -> Maker:
    def make(seed: int, scale: float) -> FactorGraph:
        random = np.random.default_rng([seed, *stream] if stream else seed)
        found = made(entry, seed=seed, scale=scale, random=random)
        return found if isinstance(found, FactorGraph) else found.graph

    return make


with Path(__file__).with_name("models.toml").open("rb") as file:
    TABLE = tomllib.load(file)
GROUPS: dict[str, dict[str, list[Any]]] = {name: entry for name, entry in TABLE.items() if isinstance(entry, dict)}
GENERATED: dict[str, Maker] = {
    **{name: generator(entry) for name, entry in TABLE.items() if name not in GROUPS},
    **{name: generator(each[name], k) for each in GROUPS.values() for k, name in enumerate(each)},
}
