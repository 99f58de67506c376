"""What the m best labellings, max-marginals and marginal MAP are, by looking at every labelling in plain Python."""

from __future__ import annotations

import functools
import itertools
import math

import numpy as np

from constrained_recipes import ConstrainedRecipe, random_constrained
from strategies import Recipe, naive_value, random_recipe, weighted

Ranked = list[tuple[float, tuple[int, ...]]]


def varied_recipe(seed: int) -> Recipe:
    """One of many small models: every arity, constants, -inf, weights, mixed cardinalities, ties."""
    hard = (0.0, 0.1, 0.3, 0.5)[seed % 4]
    recipe = random_recipe(seed, 1 + seed % 7, seed % 13, hard=hard)
    if seed % 2:
        recipe = weighted(recipe, seed)
    if seed % 5 == 0:  # whole numbers: many labellings are worth the same
        recipe.tables = [np.where(np.isfinite(table), np.round(table), table) for table in recipe.tables]
    return recipe


def small_model(seed: int, constrained: bool) -> Recipe | ConstrainedRecipe:
    return random_constrained(seed, 2 + seed % 4, 1 + seed % 4) if constrained else varied_recipe(seed)


def all_labellings(recipe: Recipe | ConstrainedRecipe) -> Ranked:
    """Every labelling of finite value, from the best downwards."""
    value = recipe.value if isinstance(recipe, ConstrainedRecipe) else functools.partial(naive_value, recipe)
    found = [(value(x), x) for x in itertools.product(*(range(r) for r in recipe.card))]
    return sorted(((value, x) for value, x in found if value > -math.inf), key=lambda entry: -entry[0])


def best_with_each_state(recipe: Recipe | ConstrainedRecipe, ranked: Ranked) -> np.ndarray:
    """The largest value with each state, a block of states per variable."""
    best = [np.full(r, -np.inf) for r in recipe.card]
    for value, labels in ranked:
        for i, k in enumerate(labels):
            best[i][k] = max(best[i][k], value)
    return np.concatenate([np.zeros(0), *best])


def distance(one: tuple[int, ...], other: tuple[int, ...]) -> int:
    """On how many variables two labellings differ."""
    return sum(a != b for a, b in zip(one, other, strict=True))


def best_at_distance(ranked: Ranked, earlier: list[tuple[int, ...]], least: int) -> float:
    """The largest value of a labelling at a distance from all earlier ones."""
    return max((value for value, x in ranked if all(distance(x, y) >= least for y in earlier)), default=-math.inf)


def summed_out(ranked: Ranked, asked: list[int]) -> dict[tuple[int, ...], float]:
    """The log of the sum over all other variables, for each labelling of those asked for."""
    groups: dict[tuple[int, ...], list[float]] = {}
    for value, labels in ranked:
        groups.setdefault(tuple(labels[i] for i in asked), []).append(value)
    return {key: max(some) + math.log(math.fsum(math.exp(v - max(some)) for v in some)) for key, some in groups.items()}
