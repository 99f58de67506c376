"""Prices of constraints, moved between them and the unary potentials to lower their joint bound."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from mapmrf.arrays import Floats, Ints, offsets, ranges
from mapmrf.compilation.jit import bare, compiled
from mapmrf.engines.elimination.elimination import BucketTree, inverse, subtree_ends
from mapmrf.engines.elimination.mini_buckets import CostShifting
from mapmrf.engines.elimination.orders import Order, PrimalGraph, preorder
from mapmrf.engines.elimination.path_constraints import SUM, ConstraintForm, ConstraintForms, PathConstraint, best_sum

MOST_ASSIGNED = 300  # maximum number of variables for which an ALL_DIFFERENT constraint has prices


class ConstraintPrices:
    """Optimises the prices of constraints, on the unary potentials of cost shifting."""

    def __init__(self, constraints: ConstraintForms, shifting: CostShifting) -> None:
        self.constraints, self.shifting = constraints, shifting
        at = constraints.problem.graph.var_ptr
        self._places = [ranges(at[form.variables], [len(gain) for gain in form.gain]) for form in constraints.forms]

    def update(self) -> None:
        self.shifting.collect()
        for form, places in zip(self.constraints.forms, self._places, strict=True):
            if form.kind == SUM:
                self._price_sum(form, places)
            elif form.guards and len(form.variables) <= MOST_ASSIGNED:
                self._price_states(form, places)
            elif form.is_cost:
                self._price_cost(form, places)

    def bound(self) -> float:
        return self.shifting.bound() + self.constraints.root

    def _price_sum(self, form: ConstraintForm, places: Ints) -> None:
        theta, gain = self.shifting.theta_v, np.concatenate(form.gain)
        score = theta[places] + form.price * gain
        ptr = offsets(np.array([len(each) for each in form.gain])).astype(np.int64)
        form.price = find_price(ptr, gain, score, form.extremes, form.record)
        theta[places] = score - form.price * gain

    def _price_states(self, form: ConstraintForm, places: Ints) -> None:
        theta = self.shifting.theta_v
        states = np.concatenate([np.arange(len(gain)) for gain in form.gain])
        row = np.repeat(np.arange(len(form.variables)), [len(gain) for gain in form.gain])
        score = np.full((len(form.variables), len(form.state_price)), -np.inf)
        score[row, states] = theta[places] + form.state_price[states]
        price = assignment_prices(score)
        if price is not None:
            form.state_price = price
            theta[places] = score[row, states] - price[states]

    def _price_cost(self, form: ConstraintForm, places: Ints) -> None:
        """Compensate the gains of the states, in equal parts, up to the label's cost."""
        theta, bonus, on = self.shifting.theta_v, np.concatenate(form.bonus), np.concatenate(form.gain) > 0.0
        score, begin = theta[places] + bonus, offsets(np.array([len(gain) for gain in form.gain])).astype(np.int64)[:-1]
        owner = np.repeat(np.arange(len(begin)), [len(gain) for gain in form.gain])
        other = np.maximum.reduceat(np.where(on, -np.inf, score), begin)[owner]
        with np.errstate(invalid="ignore"):
            gains = np.where(on & np.isfinite(score), np.maximum(0.0, score - other), 0.0)
        wanted = float(np.maximum.reduceat(gains, begin).sum())
        if not math.isfinite(wanted):
            return  # some variable has no other state: nothing to decide
        gains *= min(1.0, form.penalty / wanted) if wanted > 0.0 else 1.0
        theta[places] = score - gains
        form.bonus = np.split(gains, begin[1:])


def assignment_prices(score: Floats) -> Floats | None:
    """Return column prices at which the best columns of all rows are distinct; None if there are none."""
    from scipy.optimize import linear_sum_assignment

    n, n_states = score.shape
    square = np.zeros((n_states, n_states))
    square[:n] = score
    try:
        row, column = linear_sum_assignment(square, maximize=True)
    except ValueError:
        return None
    chosen = np.empty(n_states, dtype=np.int64)
    chosen[row] = column
    excess = square - square[np.arange(n_states), chosen][:, None]  # gain of a row from a column over its assigned one
    price = np.zeros(n_states)
    for _ in range(n_states):
        higher = np.maximum(price, (price[chosen][:, None] + excess).max(axis=0))
        if np.array_equal(higher, price):
            break
        price = higher
    return np.asarray(price - price.min())


# -- The price of a sum that minimises a bound ------------------------------------------------------------------------

HALVINGS = 60  # bisection steps


@bare
def _priced_bound(
    ptr: Ints, gain: Floats, score: Floats, ends: tuple[float, float], constraint: PathConstraint
) -> tuple[float, float]:
    """The bound of all variables and the constraint at its price, and its slope."""
    value, at = best_sum(ends[0], ends[1], constraint)
    for v in range(len(ptr) - 1):
        best, chosen = -np.inf, 0.0
        for s in range(ptr[v], ptr[v + 1]):
            if score[s] - constraint.price * gain[s] > best:
                best, chosen = score[s] - constraint.price * gain[s], gain[s]
        value += best
        at -= chosen
    return value, at


@compiled
def find_price(ptr: Ints, gain: Floats, score: Floats, ends: tuple[float, float], constraint: PathConstraint) -> float:
    """The price at which scores and constraint have the least bound; it is convex in the price."""
    spread, step = 0.0, np.inf
    for v in range(len(ptr) - 1):
        for s in range(ptr[v], ptr[v + 1]):
            for t in range(ptr[v], s):
                if np.isfinite(score[s]) and np.isfinite(score[t]) and gain[s] != gain[t]:
                    spread = max(spread, abs(score[s] - score[t]))
                    step = min(step, abs(gain[s] - gain[t]))
    if step == np.inf:
        return float(constraint.price)
    price = constraint.price
    best = _priced_bound(ptr, gain, score, ends, constraint)[0]
    low, high = -2.0 * spread / step, 2.0 * spread / step  # beyond all kinks, and of the scale of the scores
    for _ in range(HALVINGS):
        constraint.price = 0.5 * (low + high)
        value, slope = _priced_bound(ptr, gain, score, ends, constraint)
        if value < best:
            best, price = value, constraint.price
        if slope > 0.0:
            high = constraint.price
        elif slope < 0.0:
            low = constraint.price
        else:
            break
    return float(price)


# -- Bucket trees for models with constraints: the variables of a constraint lie on one path --------------------------

LARGEST_CLIQUE = 40
"""Maximum number of variables of a constraint for which they are made neighbours in the elimination order."""
MOST_CONTEXTS = 20_000_000
"""Maximum total size of contexts for which they are listed; without them the search has no cache."""


def with_cliques(graph: PrimalGraph, scopes: Sequence[Ints]) -> PrimalGraph:
    """Add an edge for each pair of variables of the same small constraint."""
    n = graph.n
    owner = np.repeat(np.arange(n), np.diff(graph.ptr))
    keys = [owner * n + graph.nbr]
    for scope in scopes:
        if 1 < len(scope) <= LARGEST_CLIQUE:
            first, second = (scope[at].astype(np.int64) for at in np.triu_indices(len(scope), 1))
            keys += [first * n + second, second * n + first]
    pairs = np.unique(np.concatenate(keys).astype(np.int64))
    return PrimalGraph(offsets(np.bincount(pairs // max(n, 1), minlength=n)), (pairs % max(n, 1)).astype(np.int32))


def tree_with_paths(graph: PrimalGraph, card: Ints, order: Order, scopes: Sequence[Ints]) -> BucketTree:
    """Build the tree of an order such that the variables of each scope lie on one path.

    A variable's parent is the next in the order that is in a table, or a constraint, of its subtree. Contexts are those
    of the tables.
    """
    n, rank = graph.n, inverse(order.order)
    above, parent = _climb(graph, order.order, rank, scopes)
    var_of, _ = preorder(order.order, parent, np.ones(n))
    position = inverse(var_of)
    lengths = np.array([above[r].bit_count() for r in rank[var_of].tolist()], dtype=np.int64)
    listed = int(lengths.sum()) <= MOST_CONTEXTS
    context = np.zeros(0, dtype=np.int64)
    if listed:
        rows = [np.sort(position[order.order[_bits(above[r])]]) for r in rank[var_of].tolist()]
        context = np.concatenate([context, *rows])
    up = np.where(parent[var_of] >= 0, position[parent[var_of]], -1)
    return BucketTree(
        var_of=var_of,
        card=card[var_of].astype(np.int64),
        parent=up,
        end=subtree_ends(up),
        context_ptr=offsets(lengths if listed else np.zeros(n, dtype=np.int64)),
        context=context,
        known=np.full(n, listed),
        peak=math.inf,
        entries=math.inf,
    )


def _climb(graph: PrimalGraph, order: Ints, rank: Ints, scopes: Sequence[Ints]) -> tuple[list[int], Ints]:
    """Return, by rank, the ranks above a subtree that its tables reach, as bits; and the parent of every variable."""
    n = graph.n
    later = [0] * n
    for scope in scopes:
        ranks = rank[scope].tolist()
        later[min(ranks)] |= sum(1 << r for r in ranks)
    above, parent = [0] * n, np.full(n, -1, dtype=np.int64)
    for r, i in enumerate(order.tolist()):
        for j in rank[graph.nbr[graph.ptr[i] : graph.ptr[i + 1]]].tolist():
            above[r] |= (j > r) << j
        above[r] &= ~(1 << r)
        later[r] &= ~(1 << r)
        both = above[r] | later[r]
        if both:
            up = (both & -both).bit_length() - 1
            parent[i] = order[up]
            above[up] |= above[r]
            later[up] |= later[r]
            later[r] = 0  # long, and not needed any more
    return above, parent


def _bits(mask: int) -> Ints:
    data = np.frombuffer(mask.to_bytes(mask.bit_length() // 8 + 1, "little"), dtype=np.uint8)
    return np.flatnonzero(np.unpackbits(data, bitorder="little"))
