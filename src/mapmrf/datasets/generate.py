"""Generators of models: spin grids, random factor graphs, and noisy images, reproducible by seed."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from mapmrf.arrays import Bools, Floats, Ints, offsets, short
from mapmrf.errors import OptionError
from mapmrf.model.graph import FactorGraph

Span = int | tuple[int, int]
"""A count, or the smallest and the largest count."""

MAX_TABLE = 1 << 24
"""Largest table that `random_graph` makes, in entries."""


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
    seed
        Random seed.

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
    scope = _grid_edges(rows, cols, wrap)
    h = rng.uniform(-field, field, rows * cols)
    j = rng.uniform(-coupling, coupling, len(scope))
    return _pairwise(
        2, (h[:, None] * np.array([-1.0, 1.0])).ravel(), scope, (j[:, None] * np.array([1.0, -1.0, -1.0, 1.0])).ravel()
    )


def random_graph(
    n_vars: int,
    n_factors: int,
    states: Span = (2, 4),
    arity: Span = (2, 3),
    hard: float = 0.0,
    seed: int = 0,
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
    seed
        Random seed.

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
    _require(n_configs.max(initial=0) <= MAX_TABLE, f"a table would need {n_configs.max(initial=0):.3g} entries")
    planted = rng.integers(card)
    return FactorGraph(
        card=card,
        theta_v=_normal_with_holes(rng, offsets(card)[:-1] + planted, int(card.sum()), hard),
        scope_ptr=offsets(size),
        scope=short(np.concatenate([np.zeros(0, dtype=np.int64), *scopes])),
        table_of=short(np.arange(n_factors)),
        table_ptr=offsets(n_configs),
        theta_t=_normal_with_holes(rng, _places(scopes, card, planted, n_configs), int(n_configs.sum()), hard),
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
    seed
        Random seed.

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
    graph = _pairwise(labels, unary.ravel(), _grid_edges(height, width, wrap=False), pairwise.ravel())
    return PottsImage(graph, observed, truth)


def check_potts(height: int, width: int, labels: int, noise: float, smoothness: float) -> None:
    """Raise OptionError for invalid parameters."""
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
    """Smallest and largest count, checked."""
    low, high = (span, span) if isinstance(span, int) else span
    limit = "" if most is None else f" and at most {most}"
    fine = least <= low <= high and (most is None or high <= most)
    _require(fine, f"{what} is {low} to {high}, expected at least {least}{limit}, the smaller first")
    return low, high


def _grid_edges(rows: int, cols: int, wrap: bool) -> Ints:
    """All pairs of neighbours, (n, 2), the smaller variable first except for pairs across a border."""
    at = np.arange(rows * cols).reshape(rows, cols)
    pairs = [(at[:, :-1], at[:, 1:]), (at[:-1], at[1:])]
    # A ring of two would repeat the pair that is already there.
    if wrap and cols > 2:
        pairs.append((at[:, -1], at[:, 0]))
    if wrap and rows > 2:
        pairs.append((at[-1], at[0]))
    return np.concatenate([np.stack([a.ravel(), b.ravel()], axis=1) for a, b in pairs])


def _pairwise(states: int, theta_v: Floats, scope: Ints, theta_t: Floats) -> FactorGraph:
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
    )


def _places(scopes: list[Ints], card: Ints, planted: Ints, n_configs: Floats) -> Ints:
    """Position of the planted labelling in every table."""
    inside = [np.ravel_multi_index(tuple(planted[scope]), tuple(card[scope])) for scope in scopes]
    return offsets(n_configs)[:-1] + np.array(inside, dtype=np.int64)


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
