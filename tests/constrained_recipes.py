"""Small random models with constraints of all kinds, and an optimum by brute force that shares no code with them."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator

import numpy as np

from mapmrf import constraints
from mapmrf.constraints import Constraint
from mapmrf.model.graph import FactorGraph
from strategies import naive_value, random_recipe

SUMS = (
    "exactly_one", "at_most_one", "at_least_one", "at_most_k", "exactly_k", "linear", "real", "or_with_output", "xor",
    "all_different", "label_cost",
)  # fmt: skip
"""Kinds that are conditions on sums, which some engines take as they are."""
KINDS = (*SUMS, "regular")


def random_constraint(random: np.random.Generator, card: list[int], kind: str, soft: bool) -> Constraint:
    """A constraint of a kind on some of the variables, with a penalty if `soft`."""
    every = [(i, k) for i, r in enumerate(card) for k in range(r)]
    size = int(random.integers(1, min(len(every), 6) + 1))
    pairs = [every[n] for n in random.permutation(len(every))[:size]]
    penalty = float(random.exponential(2.0)) if soft else None
    if kind in ("at_most_k", "exactly_k"):
        return getattr(constraints, kind)(pairs, int(random.integers(0, size + 1)), penalty)
    if kind in ("linear", "real"):
        weights = random.integers(-3, 4, size) if kind == "linear" else np.round(random.normal(size=size), 2)
        limits = sorted(random.integers(-3, 5, 2).tolist())
        which = int(random.integers(3))
        lower, upper = limits[0] if which else -math.inf, limits[1] if which < 2 else math.inf
        return constraints.linear(pairs, weights.tolist(), lower=lower, upper=upper, penalty=penalty)
    if kind == "or_with_output":
        return constraints.or_with_output(pairs[1:] or [every[0]], pairs[0], penalty) if size > 1 else _tautology(every)
    if kind == "xor":
        return constraints.xor(pairs, int(random.integers(2)), penalty)
    if kind == "all_different":
        some = random.permutation(len(card))[: int(random.integers(1, min(len(card), 4) + 1))]
        return constraints.all_different(some.tolist(), penalty)
    if kind == "label_cost":
        return constraints.label_cost(int(random.integers(max(card))), float(random.exponential(1.0)))
    if kind == "regular":
        return _regular(random, card, penalty)
    return getattr(constraints, kind)(pairs, penalty)


def _regular(random: np.random.Generator, card: list[int], penalty: float | None) -> Constraint:
    """A random automaton: not deterministic, perhaps with states out of reach, no words at all, or weights."""
    variables = random.integers(len(card), size=int(random.integers(1, len(card) + 1))).tolist()
    if random.random() < 0.7:  # each at most once
        variables = random.permutation(len(card))[: len(variables)].tolist()
    n_states, letters = int(random.integers(1, 4)), range(max(card[i] for i in variables))
    every = [(a, k, b) for a in range(n_states) for k in letters for b in range(n_states)]
    arcs = [arc for arc in every if random.random() < (1.0, 0.7, 0.5)[n_states - 1]] or every[:1]
    if random.random() < 0.6:
        arcs = [(*arc, float(weight)) for arc, weight in zip(arcs, random.normal(size=len(arcs)), strict=True)]
    states = sorted({state for arc in arcs for state in (arc[0], arc[2])})
    ends = [state for state in states if random.random() < 0.6]
    accepting = (None, ends, {state: float(random.normal()) for state in ends})[int(random.integers(3))]
    some = int(random.choice(states))
    return constraints.regular(variables, arcs, initial=some, accepting=accepting, penalty=penalty)


def _tautology(every: list[tuple[int, int]]) -> Constraint:
    return constraints.at_most_k(every[:1], 1)


def random_constrained(
    seed: int, n_vars: int = 5, n_constraints: int = 3, *, soft: float = 0.4, kinds: tuple[str, ...] = KINDS
) -> ConstrainedRecipe:
    """A model of mixed cardinalities with some constraints; a share of them soft."""
    random = np.random.default_rng([seed, 15])
    recipe = random_recipe(seed, n_vars, 6, hard=0.1 * (seed % 2), max_card=3, max_arity=3)
    drawn = random.permutation(len(kinds))[:n_constraints]
    stated = [random_constraint(random, recipe.card, kinds[kind], bool(random.random() < soft)) for kind in drawn]
    return ConstrainedRecipe(recipe, stated)


def one_kind(
    kind: str, seed: int, soft: bool, *, n: int = 2, n_vars: int = 4, n_factors: int = 5, hard: float = 0.0
) -> ConstrainedRecipe:
    """A model with some constraints of one kind."""
    random = np.random.default_rng([seed, KINDS.index(kind), int(soft)])
    recipe = random_recipe(seed, n_vars, n_factors, hard=hard, max_card=3, max_arity=3)
    return ConstrainedRecipe(recipe, [random_constraint(random, recipe.card, kind, soft) for _ in range(n)])


class ConstrainedRecipe:
    """A recipe and constraints, evaluated by plain Python."""

    def __init__(self, recipe, stated: list[Constraint]) -> None:
        self.recipe, self.stated, self.card = recipe, stated, recipe.card

    def graph(self) -> FactorGraph:
        return self.recipe.graph().with_constraints(self.stated)

    def value(self, labels: tuple[int, ...]) -> float:
        total = naive_value(self.recipe, labels)
        for constraint in self.stated:
            best = best_run(constraint, labels) if constraint.made_by == "regular" else 0.0
            total += best if best > -math.inf and holds(constraint, labels, self.recipe.card) else -constraint.penalty
        return total

    def values(self) -> Iterator[tuple[tuple[int, ...], float]]:
        """All labellings with their values."""
        for labels in itertools.product(*(range(r) for r in self.recipe.card)):
            yield labels, self.value(labels)

    def optimum(self) -> float:
        return max(value for _, value in self.values())


def holds(constraint: Constraint, labels: tuple[int, ...], card: list[int]) -> bool:
    """Whether labels satisfy a constraint on indices."""
    if constraint.made_by == "regular":
        return best_run(constraint, labels) > -math.inf
    if constraint.made_by == "all_different":
        taken = [labels[i] for i in constraint.indicators]
        return len(set(taken)) == len(taken)
    pairs = constraint.indicators
    if pairs is None:
        pairs = [(i, constraint.label) for i, r in enumerate(card) if r > constraint.label]
    on = [labels[pair[0]] == pair[1] for pair in pairs]
    if constraint.made_by == "or_with_output":
        return any(on[:-1]) == on[-1]
    if constraint.made_by == "xor":
        return sum(on) % 2 == constraint.lower
    total = math.fsum(w for w, is_on in zip(constraint.weights or [1] * len(on), on, strict=True) if is_on)
    return constraint.lower - 1e-9 <= total <= constraint.upper + 1e-9


def best_run(constraint: Constraint, labels: tuple[int, ...]) -> float:
    """The value of the best accepting run of an automaton, by trying all runs; -inf if there is none."""
    _, arcs, initial, ends = constraint.data

    def best(state: int, word: list[int]) -> float:
        if not word:
            return dict(ends).get(state, -math.inf)
        return max(
            (w + best(b, word[1:]) for a, k, b, w in arcs if (a, k) == (state, word[0])),
            default=-math.inf,
        )

    return best(initial, [labels[i] for i in constraint.indicators])
