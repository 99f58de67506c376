"""Small random factor graphs for hypothesis, and an optimum by brute force that shares no code with the package."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
from hypothesis import strategies as st

from mapmrf.model.graph import FactorGraph
from mapmrf.model.problem import Problem
from mapmrf.run.method import Method, Start

if TYPE_CHECKING:
    from mapmrf.engines.reduction.simplify import Simplified

MAX_LABELLINGS = 4096
"""Brute force in plain Python stays fast below this."""


@dataclass
class Recipe:
    """A model as lists: easy to change in a test before it becomes a FactorGraph.

    Without `weights` all are 1.
    """

    card: list[int]
    scopes: list[tuple[int, ...]] = field(default_factory=list)
    tables: list[np.ndarray] = field(default_factory=list)
    weights: list[float] | None = None

    def graph(self) -> FactorGraph:
        return FactorGraph.from_tables(self.card, self.scopes, self.tables, weight=self.weights)

    def add(self, scope: tuple[int, ...], table: np.ndarray, weight: float = 1.0) -> None:
        if self.weights is not None:
            self.weights.append(weight)
        self.scopes.append(scope)
        self.tables.append(table)

    def scaled(self, factor: float) -> Recipe:
        """The same model in another unit."""
        return Recipe(self.card, self.scopes, [factor * table for table in self.tables], self.weights)

    def renamed(self, new: np.ndarray) -> Recipe:
        """The same model with variable i called ``new[i]``."""
        card = [0] * len(self.card)
        for i, r in enumerate(self.card):
            card[new[i]] = r
        scopes = [tuple(int(new[i]) for i in scope) for scope in self.scopes]
        return Recipe(card, scopes, list(self.tables), None if self.weights is None else list(self.weights))


def _card(random: np.random.Generator, n_vars: int, max_card: int) -> list[int]:
    card = random.integers(1, max_card + 1, n_vars).tolist()
    while math.prod(card) > MAX_LABELLINGS:
        card[int(np.argmax(card))] -= 1
    return card


def random_recipe(
    seed: int, n_vars: int, n_factors: int, *, hard: float = 0.0, max_card: int = 4, max_arity: int = 4
) -> Recipe:
    """A model of mixed cardinalities and arities 0 to `max_arity`; `hard` is the share of -inf entries.

    Some variables stay alone, some scopes come twice and some factors share one table object.
    """
    random = np.random.default_rng(seed)
    recipe = Recipe(_card(random, n_vars, max_card))
    for _ in range(n_factors):
        if recipe.scopes and random.random() < 0.25:
            a = int(random.integers(len(recipe.scopes)))
            scope = recipe.scopes[a]
            shared = random.random() < 0.5
            recipe.add(scope, recipe.tables[a] if shared else _table(random, recipe.card, scope, hard))
            continue
        arity = min(n_vars, int(random.choice([0, 1, 1, 2, 2, 2, 3, 4])), max_arity)
        scope = tuple(random.permutation(n_vars)[:arity].tolist())
        recipe.add(scope, _table(random, recipe.card, scope, hard if arity else hard / 10))
    return recipe


def _table(random: np.random.Generator, card: list[int], scope: tuple[int, ...], hard: float) -> np.ndarray:
    table = np.asarray(random.normal(size=[card[i] for i in scope]))
    table[random.random(table.shape) < hard] = -np.inf
    return table


def random_tree(seed: int, n_vars: int, *, hard: float = 0.0) -> Recipe:
    """A model whose factor graph has no cycle: each factor of arity 2 to 4 hangs new variables on an old one."""
    random = np.random.default_rng(seed)
    recipe = Recipe(_card(random, n_vars, 3))
    for i in range(n_vars):
        recipe.add((i,), _table(random, recipe.card, (i,), hard / 2))
    grown = 1
    while grown < n_vars:
        fresh = min(int(random.integers(1, 4)), n_vars - grown)
        scope = [int(random.integers(grown)), *range(grown, grown + fresh)]
        scope = tuple(int(i) for i in random.permutation(scope))
        recipe.add(scope, _table(random, recipe.card, scope, hard))
        grown += fresh
    return recipe


def plant(recipe: Recipe, seed: int) -> np.ndarray:
    """Make one random labelling feasible in a recipe with -inf entries, and return it."""
    random = np.random.default_rng(seed)
    labels = random.integers(0, recipe.card) if recipe.card else np.zeros(0, dtype=int)
    for scope, table in zip(recipe.scopes, recipe.tables, strict=True):
        at = tuple(labels[list(scope)])
        if table[at] == -np.inf:
            table[at] = random.normal()
    return labels


def planted_graph(seed: int) -> FactorGraph:
    """A model of any arity, a third of them with -inf and a feasible labelling."""
    recipe = random_recipe(seed, 6 + seed % 4, 10 + seed % 7, hard=0.25 if seed % 3 == 0 else 0.0)
    plant(recipe, seed)
    return recipe.graph()


_SEEDS = st.integers(0, 2**32 - 1)


def _sizes(least: int, most: int) -> st.SearchStrategy[int]:
    """Sizes, all equally likely: `st.integers` favours the smallest, and an empty model tests little."""
    return st.sampled_from(range(least, most + 1))


_HARDNESS = st.sampled_from([0.1, 0.3, 0.5, 0.7])


@st.composite
def soft_recipes(draw: st.DrawFn, max_vars: int = 7, max_factors: int = 12) -> Recipe:
    """Models without hard constraints."""
    return random_recipe(draw(_SEEDS), draw(_sizes(1, max_vars)), draw(_sizes(0, max_factors)))


@st.composite
def hard_recipes(draw: st.DrawFn, max_vars: int = 7, max_factors: int = 12) -> Recipe:
    """Models with -inf entries and at least one feasible labelling."""
    n_vars, n_factors = draw(_sizes(1, max_vars)), draw(_sizes(0, max_factors))
    recipe = random_recipe(draw(_SEEDS), n_vars, n_factors, hard=draw(_HARDNESS))
    plant(recipe, draw(_SEEDS))
    return recipe


@st.composite
def any_recipes(draw: st.DrawFn, max_vars: int = 7, max_factors: int = 12) -> Recipe:
    """Models with any number of -inf entries: often infeasible."""
    n_vars, n_factors = draw(_sizes(0, max_vars)), draw(_sizes(0, max_factors))
    return random_recipe(draw(_SEEDS), n_vars, n_factors if n_vars else 0, hard=draw(_HARDNESS))


@st.composite
def tree_recipes(draw: st.DrawFn, max_vars: int = 8) -> Recipe:
    """Models without a cycle, with and without (satisfiable) hard constraints."""
    recipe = random_tree(draw(_SEEDS), draw(_sizes(1, max_vars)), hard=draw(st.sampled_from([0.0, 0.0, 0.4])))
    plant(recipe, draw(_SEEDS))
    return recipe


@st.composite
def wide_recipes(draw: st.DrawFn) -> Recipe:
    """Few variables with up to thirty states, half of the models with (satisfiable) hard constraints."""
    hard = draw(st.sampled_from([0.0, 0.3]))
    recipe = random_recipe(draw(_SEEDS), draw(_sizes(2, 4)), draw(_sizes(1, 7)), hard=hard, max_card=30, max_arity=3)
    plant(recipe, draw(_SEEDS))
    return recipe


def recipes() -> st.SearchStrategy[Recipe]:
    """Any of the above that has a feasible labelling."""
    return soft_recipes() | hard_recipes() | tree_recipes() | wide_recipes()


def alike(recipe: Recipe) -> Recipe:
    """The model in which all tables of one size without -inf have the same numbers, whatever their shapes."""
    first: dict[int, np.ndarray] = {}
    tables = list(recipe.tables)
    for a, table in enumerate(tables):
        if np.isfinite(table).all():
            tables[a] = first.setdefault(table.size, table).reshape(table.shape).copy()
    return Recipe(recipe.card, recipe.scopes, tables, recipe.weights)


def with_alike(strategy: st.SearchStrategy[Recipe]) -> st.SearchStrategy[Recipe]:
    """Models as given, every third of them with the same numbers in all tables of one size."""
    return st.integers(0, 2).flatmap(lambda number: strategy if number else strategy.map(alike))


def submodular(recipe: Recipe) -> Recipe:
    """A binary pairwise model in which every pair favours equal states; feasible where the given one is.

    State 1 stands for all but the first state and has the best of their entries; larger factors are dropped.
    """
    result = Recipe([min(r, 2) for r in recipe.card])
    if recipe.weights is not None:
        result.weights = []
    for a, (scope, table) in enumerate(zip(recipe.scopes, recipe.tables, strict=True)):
        if len(scope) > 2:
            continue
        for axis in range(len(scope)):
            table = np.maximum.reduceat(table, range(min(2, table.shape[axis])), axis=axis)
        table = np.array(table)
        if table.shape == (2, 2):
            table[[0, 1], [0, 1]] = np.maximum(table.diagonal(), (table[0, 1] + table[1, 0]) / 2)
        result.add(scope, table, 1.0 if recipe.weights is None else abs(recipe.weights[a]))
    return result


def with_submodular(strategy: st.SearchStrategy[Recipe]) -> st.SearchStrategy[Recipe]:
    """Models as given, every third of them made binary and submodular."""
    return st.integers(0, 2).flatmap(lambda number: strategy if number else strategy.map(submodular))


def weighted(recipe: Recipe, seed: int) -> Recipe:
    """The model with weights: some 0 and some negative, but positive where a table holds -inf.

    About half of the factors without -inf use the first such table of their shape.
    """
    random = np.random.default_rng(seed)
    first: dict[tuple[int, ...], np.ndarray] = {}
    result = Recipe(recipe.card, weights=[])
    for scope, table in zip(recipe.scopes, recipe.tables, strict=True):
        choices = [1.0, 0.5, 2.0, float(random.exponential())]
        if not np.isneginf(table).any():
            shared = first.setdefault(table.shape, table)
            table = shared if random.random() < 0.5 else table
            choices += [0.0, -1.0, float(random.normal())]
        result.add(scope, table, float(random.choice(choices)))
    return result


@st.composite
def with_weights(draw: st.DrawFn, strategy: st.SearchStrategy[Recipe]) -> Recipe:
    """Models as given, half of them with weights."""
    recipe = draw(strategy)
    return weighted(recipe, draw(_SEEDS)) if draw(st.booleans()) else recipe


def graphs() -> st.SearchStrategy[FactorGraph]:
    """Any model at all, feasible or not."""
    return (any_recipes() | recipes()).map(Recipe.graph)


def naive_value(recipe: Recipe, labels: tuple[int, ...]) -> float:
    """Log potential of a labelling, factor by factor."""
    terms = [table[tuple(labels[i] for i in scope)] for scope, table in zip(recipe.scopes, recipe.tables, strict=True)]
    weights = [1.0] * len(terms) if recipe.weights is None else recipe.weights
    return float(sum((weight * term for weight, term in zip(weights, terms, strict=True)), 0.0))


def all_values(graph: FactorGraph) -> np.ndarray:
    """Values of all labellings of a small graph, an axis per variable."""
    values = np.zeros(graph.card.tolist())
    for i, (begin, end) in enumerate(itertools.pairwise(graph.var_ptr.tolist())):
        values += _spread(graph.theta_v[begin:end], [i], graph.n_vars)
    values += graph.constant
    for a in range(graph.n_factors):
        values += _spread(graph.table(a), graph.scope_of(a).tolist(), graph.n_vars)
    return values


def _spread(table: np.ndarray, scope: list[int], n_vars: int) -> np.ndarray:
    """A table with an axis for every variable, of length 1 for those outside its scope."""
    order = np.argsort(scope)
    return np.expand_dims(table.transpose(order), tuple(set(range(n_vars)) - set(scope)))


def labellings(graph: FactorGraph) -> list[np.ndarray]:
    """All labellings of a small graph."""
    return [np.array(labels, dtype=np.int64) for labels in itertools.product(*map(range, graph.card.tolist()))]


def best_with_each_state(graph: FactorGraph) -> np.ndarray:
    """What the best labelling with each state is worth, a block of states per variable."""
    values = all_values(graph)
    every = range(graph.n_vars)
    best = [values.max(axis=tuple(j for j in every if j != i)) for i in every]
    return np.concatenate([np.zeros(0), *best])


def assert_reduced(graph: FactorGraph, small: Simplified) -> None:
    """A reduced model has the optimum of the whole one, and labellings go to and fro without loss."""
    optimum, labels = brute_force(graph)
    if not small.feasible:
        assert optimum == -math.inf
        return
    value, best = brute_force(small.problem.graph)
    assert math.isclose(value, optimum, rel_tol=1e-9, abs_tol=1e-9)
    whole = graph.check_labels(small.lift(np.array(best, dtype=np.int64)))
    back = small.lift(small.project(np.array(labels, dtype=np.int64)))
    for found in (whole, back):
        assert optimum == -math.inf or math.isclose(graph.value(found), optimum, rel_tol=1e-9, abs_tol=1e-9)
    graph.check_labels(small.labels)


def some_labels(recipe: Recipe, data: st.DataObject) -> np.ndarray:
    """A labelling that hypothesis draws."""
    return np.array([data.draw(st.integers(0, r - 1)) for r in recipe.card], dtype=np.int64)


def brute_force(graph: FactorGraph) -> tuple[float, tuple[int, ...]]:
    """Optimum of a small graph and its first labelling in lexicographic order, from the values of all."""
    values = all_values(graph)
    labels = tuple(int(k) for k in np.unravel_index(int(values.argmax()), values.shape)) if graph.n_vars else ()
    return float(values[labels]), labels


def cost(graph: FactorGraph, labels: np.ndarray) -> tuple[int, float]:
    """What a descent lowers: broken hard entries, then minus the finite sum."""
    terms = [graph.theta_v[graph.var_ptr[i] + k] for i, k in enumerate(labels)]
    terms += [graph.table(a)[tuple(labels[graph.scope_of(a)])] for a in range(graph.n_factors)]
    broken = sum(term == -np.inf for term in terms)
    return broken, -float(sum(term for term in terms if term > -np.inf))


def at_rest(method: Method, graph: FactorGraph, labels: np.ndarray | None = None, seed: int = 0) -> np.ndarray:
    """Where a method itself comes to rest, without the library's repair of infeasible labellings."""
    problem = Problem.compile(graph)
    state = method.start(problem, seed, Start(labels))
    while (progress := method.step(problem, state)).finished is None:
        pass
    assert progress.labels is not None
    return progress.labels


def one_changed(graph: FactorGraph, labels: np.ndarray) -> Iterator[tuple[int, int, np.ndarray]]:
    """All labellings in which one variable `i` has another state `k`: i, k, and the labels."""
    for i, r in enumerate(graph.card.tolist()):
        for k in range(r):
            if k != labels[i]:
                changed = labels.copy()
                changed[i] = k
                yield i, k, changed


def assert_no_flip_helps(graph: FactorGraph, start: np.ndarray, rest: np.ndarray) -> None:
    """A descent ends no worse than it began, where no change of one variable is better."""
    broken, lost = cost(graph, rest)
    assert (broken, lost - 1e-9) <= cost(graph, start)
    assert all(cost(graph, flipped) >= (broken, lost - 1e-9) for _, _, flipped in one_changed(graph, rest))


def is_acyclic(scopes: list[list[int]]) -> bool:
    """Whether no two variables are joined by two ways: every factor joins parts that were apart."""
    part: dict[int, set[int]] = {}
    for scope in scopes:
        joined: set[int] = set()
        for i in scope:
            mine = part.get(i, {i})
            if mine & joined:
                return False
            joined |= mine
        for i in joined:
            part[i] = joined
    return True
