"""Models in which a certificate is checked: in integers, and with variables maximised out."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mapmrf.arrays import Bools, Floats, Ints, offsets
from mapmrf.certificates.certificate import Certificate, InvalidCertificate
from mapmrf.model.factor_pool import FactorPool
from mapmrf.model.graph import FactorGraph

# -- The model with some variables maximised out one by one, with all sums rounded up ---------------------------------
# A value of the smaller model is at least the largest value of the whole model with the same labels, and exceeds it
# only by round-off: a bound on the one is a bound on the other.

MOST_TABLE = 1 << 20  # maximum number of entries of the table of a variable that is maximised out


def without(graph: FactorGraph, first: Ints) -> tuple[FactorGraph, Ints]:
    """The model without some variables, maximised out in this order, and the indices of those that are left."""
    # Its factors are the remaining ones, in their order, and then the maxima, each combined with the factors on a
    # subset of its variables.
    pool = FactorPool.of_graph(graph, add_up, _times_up)
    for i in first.tolist():
        around = pool.around(i)
        size = math.prod(pool.card[j] for j in around) * pool.card[i]
        if size > MOST_TABLE:
            raise InvalidCertificate(f"the table of variable {i} has {size} entries, expected at most {MOST_TABLE}")
        total, axis = pool.take(i, around)
        pool.merge(around, total.max(axis))
    kept = np.setdiff1d(np.arange(graph.n_vars), first)
    if any(np.any(np.isposinf(table)) for table in (pool.constant, *pool.unary.values(), *pool.tables.values())):
        raise InvalidCertificate("a sum of potentials overflows")
    return pool.graph(kept), kept


def add_up(one: Floats, other: Floats) -> Floats:
    """The sum, rounded up where it is not exact."""
    total = one + other
    with np.errstate(invalid="ignore"):
        part = total - one
        error = (one - (total - part)) + (other - part)
    return np.where(np.isfinite(total) & (error > 0), np.nextafter(total, np.inf), total)


def _times_up(weight: float, table: Floats) -> Floats:
    """A table times a weight, rounded up; a weight of 0 keeps forbidden entries."""
    if weight == 1.0:
        return table
    product = weight * np.where(np.isfinite(table), table, 0.0)
    above = np.where((product == 0) & ((weight == 0) | (table == 0)), 0.0, np.nextafter(product, np.inf))
    return np.where(np.isfinite(table), above, -np.inf)


# -- Exact maximisation over the remaining states, variable by variable -----------------------------------------------


def eliminated(model: IntegerModel, left: Bools, order: Ints, max_entries: int) -> Any:
    """The largest value of all labellings by the states `left`, `model.least` if there is none."""
    # None if `order` lacks a variable with several states, or the tables would have more entries than `max_entries`.
    ptr = model.graph.var_ptr.astype(np.int64)
    n_left = np.add.reduceat(left.astype(np.int64), ptr[:-1]) if len(ptr) > 1 else np.zeros(0, dtype=np.int64)
    if not n_left.all():
        return model.least
    states, at = np.flatnonzero(left) - np.repeat(ptr[:-1], n_left), np.cumsum(n_left) - n_left
    several = {i: states[at[i] : at[i] + n_left[i]] for i in np.flatnonzero(n_left > 1).tolist()}
    turns = [i for i in order.tolist() if i in several]
    if len(turns) < len(several):
        return None
    closed, card = states[at], n_left.tolist()  # the first state of every variable, which is the only one of most
    unary = {i: model.theta_v[ptr[i] + several[i]] for i in turns}
    total = model.constant + sum(model.theta_v[(ptr[:-1] + closed)[n_left == 1]].tolist())
    constant = np.array([total], dtype=model.theta_v.dtype)
    pool = FactorPool(card, unary, constant, lambda one, other: np.maximum(one + other, model.least))
    for group in model.groups:
        _restrict(model, group, closed, several, pool)
    for i in turns:
        around = pool.around(i)
        max_entries -= math.prod([card[j] for j in around]) * card[i]
        if max_entries < 0:
            return None
        total, axis = pool.take(i, around)
        pool.put(around, np.asarray(total.max(axis), dtype=model.theta_v.dtype))
    return pool.constant.item()


def _restrict(
    model: IntegerModel, group: FactorGroup, closed: Ints, several: Mapping[int, Ints], pool: FactorPool
) -> None:
    """Add the entries of factors whose variables are all closed, and the tables of those with `several` states."""
    closed, entries = closed[group.scope], np.where(group.allowed, group.tables, model.least)
    touched = (np.take(pool.card, group.scope) > 1).any(axis=1)
    at = np.ravel_multi_index(tuple(closed.T), group.shape)
    for number in entries[np.arange(len(at)), at][~touched].tolist():
        pool.constant[0] = max(pool.constant.item() + number, model.least)
    rows = np.flatnonzero(touched)
    scopes, states, cubes = group.scope[rows].tolist(), closed[rows].tolist(), entries.reshape(-1, *group.shape)
    for a, scope, fixed in zip(rows.tolist(), scopes, states, strict=True):
        cube = cubes[a]
        some: list[int] = []
        for i, state in zip(scope, fixed, strict=True):
            mine = several.get(i)
            axis = len(some)
            if mine is None:
                cube = cube.take(state, axis)
                continue
            cube = cube if len(mine) == cube.shape[axis] else cube.take(mine, axis)
            some.append(i)
        pool.put(some, cube)


# -- The model in integers: exact multiples of a power of 2, or rounded up to one for speed ---------------------------


Integers = NDArray[Any]  # Python's integers of any size, or 64-bit ones
MOST_SHIFT = 30  # bits behind the point of numbers of which all potentials may be multiples


@dataclass(frozen=True, eq=False)
class FactorGroup:
    """The factors of one shape."""

    factors: Ints  # (n,) their indices in the model
    shape: tuple[int, ...]  # states of their variables
    scope: Ints  # (n, arity) their variables
    # states, edges: (n, shape[k]) for each k: the states of their k-th variables among all states, and among all edges'
    # states
    states: tuple[Ints, ...]
    edges: tuple[Ints, ...]
    tables: Integers  # (n, n_configs) their potentials; 0 where forbidden
    allowed: Bools  # (n, n_configs) whether the potentials are finite

    def broadcast(self, numbers: Any, k: int) -> Any:
        """Numbers by the states of the k-th variables, to be combined with all configurations: (n, *shape)."""
        return numbers.reshape(len(numbers), *(size if j == k else 1 for j, size in enumerate(self.shape)))


@dataclass(frozen=True, eq=False)
class IntegerModel:
    """A model and a dual point, as multiples of ``2 ** -shift``."""

    graph: FactorGraph
    shift: int
    constant: Any
    # theta_v, allowed: (n_states,): unary potentials, 0 where forbidden, and whether they are finite
    theta_v: Integers
    allowed: Bools
    groups: tuple[FactorGroup, ...]  # the factors, by shape
    # lam, cut, offset: the messages; the amounts that the cycles add to each factor if its labels differ, (n_factors,),
    # and to all labellings
    lam: Integers
    cut: Integers
    offset: Any
    least: Any  # substitute for -inf: any sum with it is below all others
    slack: int  # largest possible excess of sums over the exact ones; 0 if numbers are exact
    grain: Fraction  # a number of which all values are multiples, 0 if none is known: see `grain`

    def fraction(self, number: Any) -> Fraction:
        return Fraction(int(number)) / Fraction(2) ** self.shift

    def goal(self, worth: Fraction) -> int:
        """The largest multiple such that labellings with a bound up to it are worth no more than `worth`."""
        scale = Fraction(2) ** self.shift
        worth = self.rounded_down(worth)
        return math.ceil((worth + self.grain) * scale) - 1 if self.grain else math.floor(worth * scale)

    def target(self, worth: Fraction | None, labels: Ints | None = None) -> int | None:
        """The bound up to which labellings need not be considered, given the value of `labels`; None for -inf."""
        # Where numbers are rounded, that includes the bound that is proven for the labelling itself.
        if worth is None:
            return None
        goal = self.goal(worth)
        return goal if labels is None or not self.slack else max(goal, int(self.value(labels)) + self.slack)

    def rounded_down(self, bound: Fraction) -> Fraction:
        """The largest possible value up to a bound: integer potentials have integer sums."""
        return bound // self.grain * self.grain if self.grain else bound

    def with_messages(self, lam: Floats) -> IntegerModel:
        scale = _Scale(self.slack == 0, self.shift, 0, self.least)
        return dataclasses.replace(self, lam=scale.near(lam))

    @classmethod
    def build(cls, graph: FactorGraph, certificate: Certificate, exact: bool) -> IntegerModel:
        """Convert all numbers exactly, or round potentials up and the dual point to nearest."""
        # Any dual point proves a bound as long as the messages that a factor takes are those that its variables give.
        lam = certificate.lam if len(certificate.lam) else np.zeros(int(graph.card[graph.scope].sum()))
        scale = _Scale.exact(graph, certificate) if exact else _Scale.rounded(graph, certificate)
        allowed = np.isfinite(graph.theta_v)
        shapes: dict[tuple[int, ...], list[int]] = {}
        card, ptr = graph.card[graph.scope].tolist(), graph.scope_ptr.tolist()
        for a in range(graph.n_factors):
            shapes.setdefault(tuple(card[ptr[a] : ptr[a + 1]]), []).append(a)
        groups = tuple(_group(graph, scale, shape, np.array(factors, np.int64)) for shape, factors in shapes.items())
        cycles, weight = certificate.cycles, scale.near(certificate.cycles.weight)
        cut, sizes = np.zeros(graph.n_factors, dtype=weight.dtype), np.diff(cycles.ptr)
        each = np.repeat(weight, sizes)
        np.add.at(cut, cycles.factor, np.where(cycles.odd == 1, -each, each))
        owner = np.repeat(np.arange(cycles.n), sizes)
        n_odd = np.bincount(owner, weights=cycles.odd, minlength=cycles.n).astype(np.int64)
        return cls(
            graph=graph,
            shift=scale.shift,
            constant=scale.up(np.array([graph.constant]))[0],
            theta_v=scale.up(np.where(allowed, graph.theta_v, 0.0)),
            allowed=allowed,
            groups=groups,
            lam=scale.near(lam),
            cut=cut,
            offset=sum((weight * (n_odd - 1)).tolist()),
            least=scale.least,
            slack=0 if exact else 2 * _n_terms(graph, certificate),
            grain=grain(graph),
        )

    def value(self, labels: Ints) -> Any:
        graph = self.graph
        total = self.constant + sum(self.theta_v[graph.var_ptr[:-1] + labels].tolist())
        for group in self.groups:
            places = np.ravel_multi_index(tuple(labels[group.scope].T), group.shape)
            total += sum(group.tables[np.arange(len(group.factors)), places].tolist())
        return total


@dataclass(frozen=True)
class _Scale:
    """Conversion of numbers to multiples of ``2 ** -shift``; `weight_shift` is the share of weights in it."""

    exact_numbers: bool
    shift: int
    weight_shift: int
    least: Any

    @classmethod
    def exact(cls, graph: FactorGraph, certificate: Certificate) -> _Scale:
        """The shift at which all numbers, and all products of weights and potentials, are whole."""
        weights = np.ones(1) if graph.weight is None else graph.weight
        weight_shift = _shift_of(weights)
        others = [graph.theta_v, graph.theta_t, certificate.lam, certificate.cycles.weight, np.array([graph.constant])]
        others.append(certificate.tree.lam)
        shift = weight_shift + max(map(_shift_of, others))
        return cls(True, shift, weight_shift, -(2 ** (shift + math.ceil(_log_size(graph, certificate)) + 8)))

    @classmethod
    def rounded(cls, graph: FactorGraph, certificate: Certificate) -> _Scale:
        """The shift at which all sums fit into 64 bits."""
        # bits of the largest sum of 64-bit numbers
        return cls(False, 58 - math.ceil(_log_size(graph, certificate)), 0, -(2**61))

    def up(self, values: Floats, shift: int | None = None) -> Integers:
        """Multiples that are not below the values."""
        shift = self.shift if shift is None else shift
        return _integers(values, shift) if self.exact_numbers else np.ceil(np.ldexp(values, shift)).astype(np.int64)

    def near(self, values: Floats) -> Integers:
        return (
            _integers(values, self.shift) if self.exact_numbers else np.rint(np.ldexp(values, self.shift)).astype(int)
        )

    def products(self, weights: Floats, values: Floats) -> Integers:
        """Multiples that are not below the products of weights (n,) and values (n, m)."""
        if not self.exact_numbers:
            above = np.nextafter(weights[:, None] * values, np.inf)
            return self.up(np.where((weights[:, None] == 0) | (values == 0), 0.0, above))
        return _integers(weights, self.weight_shift)[:, None] * _integers(values, self.shift - self.weight_shift)


def exact_value(graph: FactorGraph, labels: Ints) -> Fraction | None:
    """The exact value of a labelling; None if it is -inf."""
    places = graph.table_ptr[graph.table_of].astype(np.int64)
    if graph.n_factors:
        places += np.add.reduceat(labels[graph.scope] * graph.stride, graph.scope_ptr[:-1])
    tables, unary = graph.theta_t[places], np.append(graph.theta_v[graph.var_ptr[:-1] + labels], graph.constant)
    if not (np.isfinite(tables).all() and np.isfinite(unary).all()):
        return None
    weight = np.ones(graph.n_factors) if graph.weight is None else graph.weight
    shift_w, shift = _shift_of(weight), max(_shift_of(tables), _shift_of(unary))
    total = sum((_integers(weight, shift_w) * _integers(tables, shift)).tolist())
    return Fraction(total + (sum(_integers(unary, shift).tolist()) << shift_w), 2 ** (shift + shift_w))


def _shift_of(values: Floats) -> int:
    """The smallest shift, 0 or more, at which finite values are whole."""
    some = np.unique(values[np.isfinite(values) & (values != 0)])
    mantissa, exponent = np.frexp(some)
    bits = np.ldexp(mantissa, 53).astype(np.int64)
    low = np.log2((bits & -bits).astype(np.float64)).astype(np.int64)  # zeros at the end
    return max(0, int((53 - exponent - low).max(initial=0)))


def _integers(values: Floats, shift: int) -> Integers:
    """Values times ``2 ** shift`` as Python integers, which they must be."""
    mantissa, exponent = np.frexp(values)
    bits = np.ldexp(mantissa, 53).astype(np.int64)
    power = exponent.astype(np.int64) - 53 + shift
    # Only zeros are shifted out; if everything is small, 64 bits are enough.
    bits = bits >> np.minimum(np.maximum(-power, 0), 63)
    return np.asarray(bits.astype(object) << np.maximum(power, 0).astype(object))


def _log_size(graph: FactorGraph, certificate: Certificate) -> float:
    """Base-2 logarithm of a bound on every sum over the model and the dual point, at least 0."""
    weight = 1.0 if graph.weight is None else np.abs(graph.weight)
    size, tree = np.abs(certificate.lam), certificate.tree
    messages = float(size.sum())
    if tree.n:  # a bound for all its nodes, with room, so that a few more messages do not change the scale
        largest = np.zeros(max(len(size), int(tree.lam_at.max(initial=-1)) + 1))
        largest[: len(size)] = size
        np.maximum.at(largest, tree.lam_at, np.abs(tree.lam))
        messages = max(4 * messages, float(largest.sum()))
    with np.errstate(over="ignore"):
        total = abs(graph.constant) + _sizes(graph.theta_v, graph.var_ptr).sum() + 2 * messages
        total += (_sizes(graph.theta_t, graph.table_ptr)[graph.table_of] * weight).sum()
        total += 2 * (certificate.cycles.weight * np.diff(certificate.cycles.ptr)).sum()
    if np.isfinite(total):
        return max(0.0, math.log2(total + 1)) + 2
    return 1024.0 + 1024.0 + math.log2(_n_terms(graph, certificate))  # products of the largest floats


def grain(graph: FactorGraph) -> Fraction:
    """A number of which all finite potentials are multiples, such as 1 for integers; 0 if none is found in 64 bits."""
    weight = np.ones(1) if graph.weight is None else graph.weight
    unary = np.append(graph.theta_v, graph.constant)
    shift_w, shift = _shift_of(weight), max(_shift_of(unary), _shift_of(graph.theta_t))
    if shift_w > MOST_SHIFT or shift > MOST_SHIFT:
        return Fraction(0)
    parts = [np.where(np.isfinite(some), some, 0.0) for some in (weight, unary, graph.theta_t)]
    if max(float(np.abs(some).max(initial=0.0)) for some in parts) >= 2.0 ** (62 - MOST_SHIFT):
        return Fraction(0)
    weights, unaries, tables = (
        np.ldexp(some, by).astype(np.int64) for some, by in zip(parts, (shift_w, shift, shift), strict=True)
    )
    of_table = np.gcd.reduceat(tables, graph.table_ptr[:-1]) if len(tables) else np.zeros(0, dtype=np.int64)
    used = np.broadcast_to(weights, graph.n_factors).tolist()
    shared = math.gcd(*(w * t for w, t in set(zip(used, of_table[graph.table_of].tolist(), strict=True))))
    shared = math.gcd(shared, int(np.gcd.reduce(unaries)) << shift_w)
    return Fraction(shared, 2 ** (shift + shift_w))


def _sizes(values: Floats, ptr: Ints) -> Floats:
    """The largest magnitude of the finite values in every block."""
    size = np.where(np.isfinite(values), np.abs(values), 0.0)
    return np.maximum.reduceat(size, ptr[:-1]) if len(ptr) > 1 else np.zeros(0)


def _n_terms(graph: FactorGraph, certificate: Certificate) -> int:
    """Upper bound on the terms of the longest sum."""
    return 1 + graph.n_vars + graph.n_factors + 2 * len(graph.scope) + 2 * len(certificate.cycles.factor)


def _group(graph: FactorGraph, scale: _Scale, shape: tuple[int, ...], factors: Ints) -> FactorGroup:
    edges = graph.scope_ptr[factors].astype(np.int64)[:, None] + np.arange(len(shape))
    scope = graph.scope[edges].astype(np.int64)
    places = graph.table_ptr[graph.table_of[factors]].astype(np.int64)[:, None] + np.arange(math.prod(shape))
    tables = graph.theta_t[places]
    allowed = np.isfinite(tables)
    finite = np.where(allowed, tables, 0.0)
    weight = None if graph.weight is None else graph.weight[factors]
    edge_ptr = offsets(graph.card[graph.scope]).astype(np.int64)
    return FactorGroup(
        factors=factors,
        shape=shape,
        scope=scope,
        states=_blocks(graph.var_ptr[scope].astype(np.int64), shape),
        edges=_blocks(edge_ptr[edges], shape),
        tables=scale.up(finite) if weight is None else scale.products(weight, finite),
        allowed=allowed,
    )


def _blocks(at: Ints, shape: tuple[int, ...]) -> tuple[Ints, ...]:
    """Positions of all states, from the offsets of each variable."""
    return tuple(at[:, k][:, None] + np.arange(size) for k, size in enumerate(shape))
