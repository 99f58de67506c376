"""Generators of models: spin grids, random factor graphs, and noisy images, reproducible by seed."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from mapmrf.arrays import Bools, Floats, Ints, offsets, short
from mapmrf.datasets.catalogue import entries, model_set
from mapmrf.errors import OptionError
from mapmrf.model.graph import FactorGraph

Span = int | tuple[int, int]  # a count, or the smallest and the largest count


def grid(
    rows: int, cols: int, coupling: float = 1.0, field: float = 1.0, wrap: bool = False, seed: int = 0
) -> FactorGraph:
    """Spin glass on a grid, by the recipe of the PIC-2011 Grids.

    The states 0 and 1 are the spins ``s = -1`` and ``s = +1``. A variable has the log potential ``h_i s_i`` with
    ``h_i`` uniform in ``[-field, field]``, a pair of neighbours ``J_ij s_i s_j`` with ``J_ij`` uniform in
    ``[-coupling, coupling]``.

    Parameters
    ----------
    rows, cols
        Size of the grid; the variable in row `r` and column `c` is ``r * cols + c``.
    coupling
        Strength of the pair potentials; the larger, the harder.
    field
        Strength of the unary potentials.
    wrap
        Connect opposite borders into a torus.

    Examples
    --------
    >>> graph = grid(3, 4, coupling=2.0)
    >>> graph.n_vars, graph.n_factors
    (12, 17)
    >>> grid(3, 4, wrap=True).n_factors
    24
    """
    _require(rows >= 1 and cols >= 1, f"a grid of {rows} x {cols}, expected at least 1 x 1")
    _require(0 <= coupling < np.inf, f"coupling is {coupling}, expected a finite number of at least 0")
    _require(0 <= field < np.inf, f"field is {field}, expected a finite number of at least 0")
    rng = np.random.default_rng(seed)
    scope = grid_edges(rows, cols, wrap)
    h = rng.uniform(-field, field, rows * cols)
    j = rng.uniform(-coupling, coupling, len(scope))
    return lay_out_pairs(
        2, (h[:, None] * np.array([-1.0, 1.0])).ravel(), scope, (j[:, None] * np.array([1.0, -1.0, -1.0, 1.0])).ravel()
    )


def random_graph(
    n_vars: int, n_factors: int, states: Span = (2, 4), arity: Span = (2, 3), hard: float = 0.0, seed: int = 0
) -> FactorGraph:
    """Random factor graph with normal log potentials and a planted labelling that violates no hard constraint.

    Parameters
    ----------
    n_vars, n_factors
        Number of variables and of factors; every factor has its own table.
    states, arity
        States of a variable and variables of a factor: a number, or the smallest and the largest one.
    hard
        Fraction of the unary and factor entries that are forbidden (`-inf`).

    Examples
    --------
    >>> graph = random_graph(8, 12, states=3, arity=(2, 4), hard=0.2)
    >>> graph.n_vars, graph.n_factors, int(graph.arity.max()) <= 4
    (8, 12, True)
    """
    _require(n_vars >= 1, f"{n_vars} variables, expected at least 1")
    _require(n_factors >= 0, f"{n_factors} factors, expected at least 0")
    _require(0 <= hard <= 1, f"hard is {hard}, expected a fraction from 0 to 1")
    low, high = _span(arity, "arity", 2, n_vars if n_factors else None)
    rng = np.random.default_rng(seed)
    card = rng.integers(*_span(states, "states", 1), n_vars, endpoint=True)
    size = rng.integers(low, high, n_factors, endpoint=True)
    scopes = [rng.choice(n_vars, k, replace=False) for k in size]
    n_configs = np.array([np.prod(card[scope], dtype=np.float64) for scope in scopes])
    _require(n_configs.max(initial=0) <= 1 << 24, f"a table would need {n_configs.max(initial=0):.3g} entries")
    planted = rng.integers(card)
    inside = [np.ravel_multi_index(tuple(planted[scope]), tuple(card[scope])) for scope in scopes]
    spared = offsets(n_configs)[:-1] + np.array(inside, dtype=np.int64)
    return FactorGraph(
        card=card,
        theta_v=_normal_with_holes(rng, offsets(card)[:-1] + planted, int(card.sum()), hard),
        scope_ptr=offsets(size),
        scope=short(np.concatenate([np.zeros(0, dtype=np.int64), *scopes])),
        table_of=short(np.arange(n_factors)),
        table_ptr=offsets(n_configs),
        theta_t=_normal_with_holes(rng, spared, int(n_configs.sum()), hard),
    )


@dataclass(frozen=True, eq=False)
class PottsImage:
    """A noisy image and the model to denoise it.

    Attributes
    ----------
    graph
        The model; the pixel in row `r` and column `c` is variable ``r * width + c``.
    observed : (height, width)
        The noisy image: grey level `k` where the label is `k`, plus noise.
    truth : (height, width)
        The labels from which the image was made.

    Examples
    --------
    >>> image = potts_image(20, 30, labels=3)
    >>> image.truth.shape, int(image.truth.max()), image.graph.n_vars
    ((20, 30), 2, 600)
    """

    graph: FactorGraph
    observed: Floats
    truth: Ints


def potts_image(
    height: int, width: int, labels: int = 4, noise: float = 0.8, smoothness: float = 1.2, seed: int = 0
) -> PottsImage:
    """Image of a few shapes with Gaussian noise, and the Potts model for its segmentation.

    A pixel with grey level `y` has the log potential ``-(y - k)^2 / (2 noise^2)`` for label `k`; two neighbours lose
    `smoothness` if their labels differ. All pairs share one table.

    Parameters
    ----------
    height, width
        Size of the image in pixels.
    labels
        Number of labels; neighbouring grey levels are 1 apart.
    noise
        Standard deviation of the noise.
    smoothness
        Cost of a border between two pixels.

    Examples
    --------
    >>> image = potts_image(20, 30, labels=3)
    >>> image.observed.shape, image.graph.n_vars, image.graph.n_tables
    ((20, 30), 600, 1)
    >>> image.graph.value(image.truth.ravel()) > image.graph.value(0 * image.truth.ravel())
    True
    """
    check_potts(height, width, labels, noise, smoothness)
    rng = np.random.default_rng(seed)
    truth = shapes(range(height), height, width, labels, rng)
    observed = truth + rng.normal(0.0, noise, truth.shape)
    unary = potts_unary(observed, labels, noise)
    pairwise = smoothness * (np.eye(labels) - 1.0)
    graph = lay_out_pairs(labels, unary.ravel(), grid_edges(height, width, wrap=False), pairwise.ravel())
    return PottsImage(graph, observed, truth)


def check_potts(height: int, width: int, labels: int, noise: float, smoothness: float) -> None:
    _require(height >= 1 and width >= 1, f"a picture of {height} x {width}, expected at least 1 x 1")
    _require(labels >= 1, f"{labels} labels, expected at least 1")
    _require(0 < noise < np.inf, f"noise is {noise}, expected a finite number above 0")
    _require(0 <= smoothness < np.inf, f"smoothness is {smoothness}, expected a finite number of at least 0")


def potts_unary(observed: Floats, labels: int, noise: float) -> Floats:
    """Log potentials of the labels at every pixel, (n_pixels, labels)."""
    return -((observed.reshape(-1, 1) - np.arange(labels)) ** 2) / (2 * noise**2)


# -- parts ----------------------------------------------------------------------------------------------------------


def _require(fine: bool, otherwise: str) -> None:
    if not fine:
        raise OptionError(otherwise)


def _span(span: Span, what: str, least: int, most: int | None = None) -> tuple[int, int]:
    low, high = (span, span) if isinstance(span, int) else span
    limit = "" if most is None else f" and at most {most}"
    fine = least <= low <= high and (most is None or high <= most)
    _require(fine, f"{what} is {low} to {high}, expected at least {least}{limit}, the smaller first")
    return low, high


def grid_edges(rows: int, cols: int, wrap: bool) -> Ints:
    """All pairs of neighbours, (n, 2), the smaller variable first except for pairs across a border."""
    at = np.arange(rows * cols).reshape(rows, cols)
    pairs = [(at[:, :-1], at[:, 1:]), (at[:-1], at[1:])]
    # A ring of two would repeat the pair that is already there.
    if wrap and cols > 2:
        pairs.append((at[:, -1], at[:, 0]))
    if wrap and rows > 2:
        pairs.append((at[-1], at[0]))
    return np.concatenate([np.stack([a.ravel(), b.ravel()], axis=1) for a, b in pairs])


def lay_out_pairs(
    states: int, theta_v: Floats, scope: Ints, theta_t: Floats, weight: Floats | None = None
) -> FactorGraph:
    """Lay out a pairwise model directly: the arrays are valid, and checking would cost more than building them."""
    n = len(scope)
    size = states * states
    n_tables = len(theta_t) // size if n else 0
    return FactorGraph(
        card=np.full(len(theta_v) // states, states),
        theta_v=theta_v,
        scope_ptr=short(np.arange(n + 1) * 2),
        scope=short(scope.ravel()),
        table_of=short(np.arange(n) if n_tables == n else np.zeros(n, dtype=np.int64)),
        table_ptr=short(np.arange(n_tables + 1) * size),
        theta_t=theta_t[: n_tables * size],
        weight=weight,
    )


def _normal_with_holes(rng: np.random.Generator, spared: Ints, size: int, hard: float) -> Floats:
    """Normal numbers, a fraction `hard` of them -inf, but none at the `spared` positions."""
    values = rng.normal(size=size)
    holes = rng.random(size) < hard
    holes[spared] = False
    values[holes] = -np.inf
    return values


def shapes(rows: range, height: int, width: int, labels: int, rng: np.random.Generator) -> Ints:
    """Rows of an image of boxes, bands and discs: two of every label, in random order, later ones on top."""
    y, x = np.indices((len(rows), width)) + 0.5
    y += rows.start
    picture = np.zeros((len(rows), width), dtype=np.int64)
    for turn, k in enumerate(rng.permutation(np.repeat(np.arange(labels), 2))):
        picture[_SHAPES[turn % len(_SHAPES)](y / height, x / width, width / height, rng)] = k
    return picture


def _band(y: Floats, x: Floats, aspect: float, rng: np.random.Generator) -> Bools:
    angle = rng.uniform(0, np.pi)
    across = (y - rng.uniform(0.2, 0.8)) * np.cos(angle) + (x - rng.uniform(0.2, 0.8)) * np.sin(angle)
    return np.asarray(np.abs(across) < rng.uniform(0.05, 0.12))


def _box(y: Floats, x: Floats, aspect: float, rng: np.random.Generator) -> Bools:
    tall, wide = rng.uniform(0.12, 0.25, 2)
    return np.asarray((np.abs(y - rng.uniform(0, 1)) < tall) & (np.abs(x - rng.uniform(0, 1)) < wide))


def _disc(y: Floats, x: Floats, aspect: float, rng: np.random.Generator) -> Bools:
    distance = np.hypot(y - rng.uniform(0.15, 0.85), aspect * (x - rng.uniform(0.15, 0.85)))
    return np.asarray(distance < rng.uniform(0.12, 0.28))


_SHAPES = (_box, _band, _disc)


# Look-alikes: generated models with the size, structure and difficulty of the paper's sets, reproducible by number.
# Every family has its own recipe: superpixels of a generated image (seg-2, seg-21, scene), spin glasses on a grid
# (grids), and proteins that interact and live in compartments (protein).

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
    """Superpixels of a synthetic image of a few regions."""

    edges: Ints  # (n_edges, 2): superpixels that touch
    region: Ints  # (n,): the region of each superpixel
    contrast: Floats  # (n_edges,): difference of colour across a border, 0 to 1


def _picture(n: int, n_regions: int, rng: Random) -> _Picture:
    side = 14  # of a superpixel, in pixels
    rows = max(1, round((0.75 * n) ** 0.5))
    cols = -(-n // rows)
    cells = np.sort(rng.permutation(rows * cols)[:n])
    # Integer coordinates: distances are exact, and the image is the same on every machine.
    y = cells // cols * side + rng.integers(1, side - 1, n)
    x = cells % cols * side + rng.integers(1, side - 1, n)
    # The nearest of some points for every pixel, the first one in ties; then the pairs of points that touch somewhere.
    across = (np.arange(cols * side)[:, None] - x) ** 2
    picture = np.stack([np.argmin(across + (row - y) ** 2, axis=1) for row in range(rows * side)])
    sides = [(picture[:, :-1], picture[:, 1:]), (picture[:-1], picture[1:])]
    pairs = np.concatenate([np.stack([a.ravel(), b.ravel()], axis=1) for a, b in sides])
    pairs = np.sort(pairs[pairs[:, 0] != pairs[:, 1]], axis=1)
    edges = np.unique(pairs, axis=0)
    centre = rng.integers(0, n, n_regions)
    region = np.argmin((y[:, None] - y[centre]) ** 2 + (x[:, None] - x[centre]) ** 2, axis=1)
    colour = rng.random((n_regions, 3))[region] + rng.normal(0, 0.08, (n, 3))
    difference = np.abs(colour[edges[:, 0]] - colour[edges[:, 1]]).mean(axis=1)
    return _Picture(edges, region, np.clip(2 * difference, 0, 1))


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


def _protein(number: int, scale: float) -> FactorGraph:
    """Which proteins interact (I), and in which compartments each lives (L), as seen by noisy experiments."""
    # A variable for every pair that may interact, one for every protein and compartment, and a leaf for every
    # experiment; a factor (L, L, I) for every pair and compartment, and one (I, I, I) for every triangle of pairs. All
    # factors of a kind share a table.
    rng = np.random.default_rng([14, number])
    diverged = number == 4  # its learning, like that of the paper's M5
    learnt = _extreme if diverged else _moderate
    n_proteins = max(6, round(862 * scale))
    pairs = _interactions(n_proteins, rng)
    layout = _FamilyLayout()
    interacts = layout.variables(len(pairs), learnt([-0.7, -0.68], rng))
    sure = 0.0 if diverged else 0.005
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
    # Every three pairs that join three proteins, as indices into the list of pairs, (n_triangles, 3).
    place = {(a, b): k for k, (a, b) in enumerate(pairs.tolist())}
    later: list[list[int]] = [[] for _ in range(n_proteins)]
    for a, b in sorted(place):
        later[a].append(b)
    found = [
        (place[a, b], place[a, c], place[b, c])
        for a in range(n_proteins)
        for at, b in enumerate(later[a])
        for c in later[a][at + 1 :]
        if (b, c) in place
    ]
    layout.factors(interacts[np.array(found, dtype=np.int64).reshape(-1, 3)], cases[[0, 1, 1, 2, 1, 2, 2, 3]])
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
        self.theta_v.append(np.tile(log_prior, count))
        self.n_vars += count
        return np.arange(self.n_vars - count, self.n_vars)

    def observe(self, hidden: Ints, table: Floats) -> None:
        self.factors(np.column_stack([hidden, self.variables(len(hidden), np.zeros(2))]), table)

    def factors(self, scopes: Ints, table: Floats) -> None:
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


_RECIPES: dict[str, Callable[[int, float], FactorGraph]] = {
    "seg-2": _seg_2,
    "seg-21": _seg_21,
    "scene": _scene,
    "grids": _grids,
    "protein": _protein,
}
