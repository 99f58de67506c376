"""Look-alikes: generated models with the size, structure and difficulty of the paper's sets, reproducible by number.

Every family has its own recipe: superpixels of a generated image (seg-2, seg-21, scene), spin glasses on a grid
(grids), and proteins that interact and live in compartments (protein).
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from mapmrf.arrays import Floats, Ints, offsets, short
from mapmrf.datasets.catalogue import entries, model_set
from mapmrf.datasets.generate import grid
from mapmrf.errors import OptionError
from mapmrf.model.graph import FactorGraph

Random = np.random.Generator


def lookalike(which: str, number: int, *, scale: float = 1.0) -> FactorGraph:
    """Generate a look-alike of a set by its number.

    Parameters
    ----------
    which
        The set: ``seg-2``, ``seg-21``, ``scene``, ``grids`` or ``protein``.
    number
        From 1 to `n_lookalikes`.
    scale
        Number of variables relative to the models of the set.

    Raises
    ------
    UnknownName
        If the set does not exist.
    OptionError
        If the number is out of range, or the scale is not above 0.

    Examples
    --------
    >>> lookalike("seg-2", 1).card.tolist()[:3]
    [2, 2, 2]
    >>> lookalike("grids", 2, scale=0.25)
    FactorGraph(n_vars=100, n_factors=200, n_tables=200)
    """
    count = n_lookalikes(which)
    if not 1 <= number <= count:
        raise OptionError(f"number is {number}, expected 1 to {count} for {which}")
    if not 0 < scale < np.inf:
        raise OptionError(f"scale is {scale}, expected a finite number above 0")
    return _RECIPES[which](number, scale)


def n_lookalikes(which: str) -> int:
    """Number of look-alikes of a set: the number of the paper's models, but at most 50.

    Examples
    --------
    >>> n_lookalikes("protein"), n_lookalikes("scene")
    (7, 50)
    """
    return min(model_set(which).n_models, 50)


def lookalike_name(which: str, number: int) -> str:
    """Name of a look-alike.

    Examples
    --------
    >>> lookalike_name("grids", 3)
    'grids-like-03'
    """
    return f"{which}-like-{number:02d}"


# -- superpixels -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class _Picture:
    """Superpixels of a synthetic image of a few regions.

    Attributes
    ----------
    edges : (n_edges, 2)
        Superpixels that touch.
    region : (n,)
        The region of each superpixel.
    contrast : (n_edges,)
        Difference of colour across a border, 0 to 1.
    """

    edges: Ints
    region: Ints
    contrast: Floats


_CELL = 14
"""Pixels along the side of a superpixel."""


def _picture(n: int, n_regions: int, rng: Random) -> _Picture:
    rows = max(1, round((0.75 * n) ** 0.5))
    cols = -(-n // rows)
    cells = np.sort(rng.permutation(rows * cols)[:n])
    # Integer coordinates: distances are exact, and the image is the same on every machine.
    y = cells // cols * _CELL + rng.integers(1, _CELL - 1, n)
    x = cells % cols * _CELL + rng.integers(1, _CELL - 1, n)
    edges = _touching(_nearest(rows * _CELL, cols * _CELL, y, x))
    centre = rng.integers(0, n, n_regions)
    region = np.argmin((y[:, None] - y[centre]) ** 2 + (x[:, None] - x[centre]) ** 2, axis=1)
    colour = rng.random((n_regions, 3))[region] + rng.normal(0, 0.08, (n, 3))
    difference = np.abs(colour[edges[:, 0]] - colour[edges[:, 1]]).mean(axis=1)
    return _Picture(edges, region, np.clip(2 * difference, 0, 1))


def _nearest(height: int, width: int, y: Ints, x: Ints) -> Ints:
    """The nearest of some points for every pixel; the first one wins ties."""
    across = (np.arange(width)[:, None] - x) ** 2
    return np.stack([np.argmin(across + (row - y) ** 2, axis=1) for row in range(height)])


def _touching(picture: Ints) -> Ints:
    """Pairs of labels that are adjacent somewhere, each once, the smaller first."""
    sides = [(picture[:, :-1], picture[:, 1:]), (picture[:-1], picture[1:])]
    pairs = np.concatenate([np.stack([a.ravel(), b.ravel()], axis=1) for a, b in sides])
    pairs = np.sort(pairs[pairs[:, 0] != pairs[:, 1]], axis=1)
    return np.unique(pairs, axis=0)


def _scores(picture: _Picture, labels: Ints, n_states: int, rng: Random) -> Floats:
    """Scores of a classifier whose errors agree within a region, (n, n_states), favouring the regions' labels."""
    n_regions = len(labels)
    ahead = rng.uniform(0.6, 1.8, n_regions)
    by_region = rng.normal(0, 0.5, (n_regions, n_states))
    by_region[np.arange(n_regions), labels] += ahead
    return by_region[picture.region] + rng.normal(0, 0.5, (len(picture.region), n_states))


def _seg_2(number: int, scale: float) -> FactorGraph:
    rng = np.random.default_rng([2, number])
    picture = _picture(_size(rng, 228, 4, scale), 6, rng)
    scores = rng.uniform(0.8, 1.6) * _scores(picture, rng.permutation(np.arange(6) % 2), 2, rng)
    weight = 1.5 - 0.48 * picture.contrast
    slant = 0.06 - 0.28 * (weight - 1.02) + rng.normal(0, 0.012, len(weight))
    tables = np.zeros((len(weight), 2, 2))
    tables[:, 0, 0], tables[:, 1, 1] = np.minimum(slant, 0), np.minimum(-slant, 0)
    tables[:, 0, 1] = tables[:, 1, 0] = -weight
    return _with_lone_variable(scores, picture.edges, tables, rng)


def _seg_21(number: int, scale: float) -> FactorGraph:
    rng = np.random.default_rng([21, number])
    picture = _picture(_size(rng, 228, 4, scale), 8, rng)
    labels = rng.choice(21, 5, replace=False)[rng.integers(0, 5, 8)]
    scores = rng.uniform(-6, -1, 21) + 2.5 * _scores(picture, labels, 21, rng)
    scores[np.arange(len(scores)), labels[picture.region]] += 3
    # The costs of adjacent labels are learned from many images, and so are the same in all of them.
    learnt = np.random.default_rng(21)
    apart = learnt.normal(1.0, 0.05, (21, 21))
    apart = np.triu(apart, 1) + np.triu(apart, 1).T
    alone = np.concatenate([[0.0], learnt.uniform(0.1, 0.42, 20)])
    weight = 1.6 - 0.6 * picture.contrast
    tables = -weight[:, None, None] * (apart + np.diag(alone))
    return _with_lone_variable(scores, picture.edges, tables, rng)


def _scene(number: int, scale: float) -> FactorGraph:
    rng = np.random.default_rng([8, number])
    picture = _picture(_size(rng, 182, 14, scale), 9, rng)
    labels = rng.choice(8, 6, replace=False)[rng.integers(0, 6, 9)]
    scores = rng.uniform(-1.5, 1.5, 8) + 2.2 * _scores(picture, labels, 8, rng)
    scores[np.arange(len(scores)), labels[picture.region]] += 1
    learnt = np.random.default_rng(8)
    gain = np.diag(learnt.uniform(0.15, 0.45, 8)) - np.triu(learnt.uniform(0, 0.1, (8, 8)), 1)
    gain = np.triu(gain) + np.triu(gain, 1).T
    weight = 1.5 - 1.3 * picture.contrast
    tables = weight[:, None, None] * gain * rng.uniform(0.9, 1.1, (len(weight), 8, 8))
    return FactorGraph.from_pairwise(scores, picture.edges, tables)


def _size(rng: Random, mean: int, spread: int, scale: float) -> int:
    return max(2, round(scale * rng.integers(mean - spread, mean + spread, endpoint=True)))


def _with_lone_variable(scores: Floats, edges: Ints, tables: Floats, rng: Random) -> FactorGraph:
    """A model with an isolated variable 0, as in every file of the PIC-2011 Segmentation; largest potentials 0."""
    unary = np.concatenate([rng.normal(-1, 1, (1, scores.shape[1])), scores])
    return FactorGraph.from_pairwise(unary - unary.max(axis=1, keepdims=True), edges + 1, tables)


# -- spin glasses ----------------------------------------------------------------------------------------------------


def _grids(number: int, scale: float) -> FactorGraph:
    """Side, strength and borders as in the model of the same number; scale applies to variables, not sides."""
    found = re.fullmatch(r"grid(\d+)x\d+\.f(\d+)(\.wrap)?", entries("grids")[number - 1].name)
    assert found is not None
    side = max(2, round(int(found[1]) * scale**0.5))
    return grid(side, side, coupling=float(found[2]), wrap=found[3] is not None, seed=number)


# -- proteins --------------------------------------------------------------------------------------------------------

_EXTREME = 4
"""The number of the look-alike whose learning has diverged, like the paper's M5."""


def _protein(number: int, scale: float) -> FactorGraph:
    """Which proteins interact (I), and in which compartments each lives (L), as seen by noisy experiments.

    A variable for every pair that may interact, one for every protein and compartment, and a leaf for every experiment;
    a factor (L, L, I) for every pair and compartment, and one (I, I, I) for every triangle of pairs. All factors of a
    kind share a table.
    """
    rng = np.random.default_rng([14, number])
    learnt = _extreme if number == _EXTREME else _moderate
    n_proteins = max(6, round(862 * scale))
    pairs = _interactions(n_proteins, rng)
    layout = _FamilyLayout()
    interacts = layout.variables(len(pairs), learnt([-0.7, -0.68], rng))
    sure = 0.0 if number == _EXTREME else 0.005
    for repeats, seen, false, missed in ((2, 0.31, 0.01, 0.45), (1, 0.23, sure, 0.7), (2, 0.325, 0.1, 0.75)):
        done = [np.flatnonzero(rng.random(len(pairs)) < seen) for _ in range(repeats)]
        layout.observe(interacts[np.sort(np.concatenate(done))], _experiment(false, missed))
    tested = np.sort(rng.permutation(n_proteins)[: round(0.983 * n_proteins)])
    for prior, false, missed in ((0.08, 0.005, 0.02), (0.22, 0.2, 0.04), (0.12, 0.05, 0.6), (0.25, 0.2, 0.1)):
        lives = layout.variables(n_proteins, learnt([math.log(1 - prior), math.log(prior)], rng))
        layout.observe(lives[tested], _experiment(false, missed))
        # Neither protein is here, one is, both are; and they do not interact, or do.
        cases = learnt([-2.1, -2.1, -1.8, -2.5, -2.8, -1.5], rng)
        layout.factors(np.column_stack([lives[pairs], interacts]), cases[[0, 1, 2, 3, 2, 3, 4, 5]])
    cases = learnt([-2.06, -2.06, -2.57, -1.33], rng)  # by how many of the three interact
    layout.factors(interacts[_triangles(pairs, n_proteins)], cases[[0, 1, 1, 2, 1, 2, 2, 3]])
    return layout.graph()


def _moderate(mean: Sequence[float], rng: Random) -> Floats:
    """Log potentials near the given ones."""
    return np.array(mean) + rng.normal(0, 0.06, len(mean))


def _extreme(mean: Sequence[float], rng: Random) -> Floats:
    """Log potentials that are far apart, whatever their intended values."""
    values = -rng.exponential(100.0, len(mean))
    return np.asarray(values - values.max())


def _experiment(false: float, missed: float) -> Floats:
    """Log probability of an observation given the truth."""
    with np.errstate(divide="ignore"):
        return np.asarray(np.log([1 - false, false, missed, 1 - missed]))


class _FamilyLayout:
    """Collects binary variables and factors that share tables."""

    def __init__(self) -> None:
        self.theta_v: list[Floats] = []
        self.scopes: list[Ints] = []
        self.tables: list[Floats] = []
        self.n_vars = 0

    def variables(self, count: int, log_prior: Floats) -> Ints:
        """Add variables, and return their indices."""
        self.theta_v.append(np.tile(log_prior, count))
        self.n_vars += count
        return np.arange(self.n_vars - count, self.n_vars)

    def observe(self, hidden: Ints, table: Floats) -> None:
        """Add a leaf to each of some variables."""
        self.factors(np.column_stack([hidden, self.variables(len(hidden), np.zeros(2))]), table)

    def factors(self, scopes: Ints, table: Floats) -> None:
        """Add factors, (n, arity), that share a table."""
        if len(scopes):
            self.scopes.append(scopes)
            self.tables.append(table)

    def graph(self) -> FactorGraph:
        counts = [len(scopes) for scopes in self.scopes]
        return FactorGraph(
            card=np.full(self.n_vars, 2),
            theta_v=np.concatenate(self.theta_v),
            scope_ptr=offsets(np.repeat([scopes.shape[1] for scopes in self.scopes], counts)),
            scope=short(np.concatenate([scopes.ravel() for scopes in self.scopes])),
            table_of=short(np.repeat(np.arange(len(counts)), counts)),
            table_ptr=offsets([len(table) for table in self.tables]),
            theta_t=np.concatenate(self.tables),
        )


def _interactions(n: int, rng: Random) -> Ints:
    """Pairs of proteins, 3.47 per protein, at least one each: two fifths in complexes, others with popular partners."""
    wanted = min(round(3.47 * n), n * (n - 1) // 2)
    popular = rng.lognormal(0, 0.5, n)
    popular /= popular.sum()
    pairs: dict[tuple[int, int], None] = {}
    while len(pairs) < 0.4 * wanted:
        members = np.sort(rng.choice(n, min(n, int(rng.integers(4, 17))), replace=False))
        first, second = np.triu_indices(len(members), 1)
        kept = rng.random(len(first)) < 0.66
        pairs.update(dict.fromkeys(zip(members[first[kept]].tolist(), members[second[kept]].tolist(), strict=True)))
    met = {i for pair in pairs for i in pair}
    lonely = [i for i in range(n) if i not in met]
    while lonely or len(pairs) < wanted:
        one, other = lonely[-1] if lonely else int(rng.integers(n)), int(rng.choice(n, p=popular))
        if one != other:
            pairs[min(one, other), max(one, other)] = None
            lonely = lonely[:-1]
    return np.array(list(pairs), dtype=np.int64)


def _triangles(pairs: Ints, n: int) -> Ints:
    """Every three pairs that join three proteins, as indices into the list of pairs, (n_triangles, 3)."""
    place = {(a, b): k for k, (a, b) in enumerate(pairs.tolist())}
    later: list[list[int]] = [[] for _ in range(n)]
    for a, b in sorted(place):
        later[a].append(b)
    found = [
        (place[a, b], place[a, c], place[b, c])
        for a in range(n)
        for at, b in enumerate(later[a])
        for c in later[a][at + 1 :]
        if (b, c) in place
    ]
    return np.array(found, dtype=np.int64).reshape(-1, 3)


_RECIPES: dict[str, Callable[[int, float], FactorGraph]] = {
    "seg-2": _seg_2,
    "seg-21": _seg_21,
    "scene": _scene,
    "grids": _grids,
    "protein": _protein,
}
