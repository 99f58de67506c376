"""dimod: quadratic models with or without constraints, and polynomials, as factor graphs and back; QUBOs as arrays."""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from collections.abc import Callable, Hashable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from mapmrf.arrays import Floats, Ints
from mapmrf.constraints import Constraint, linear
from mapmrf.constraints.as_tables import refuse_constraints
from mapmrf.errors import FormatError, GraphError, OptionError, UnsupportedModel, needed
from mapmrf.formats import quadratic
from mapmrf.model.builders import as_array
from mapmrf.model.graph import FactorGraph
from mapmrf.model.names import index_of, labels_of, names_of

_STATES: dict[str, tuple[Hashable, ...]] = {"BINARY": (0, 1), "SPIN": (-1, 1)}
MOST_ENTRIES = 1 << 16  # of the table of a quadratic or soft constraint
MOST_STEPS = 1000  # penalties in place of a soft constraint
MOST_VALUES = 100_000  # of an integer variable

Term = tuple[tuple[int, ...], float]
"""The places of the variables of a product, which may repeat, and its coefficient."""


# -- from dimod -------------------------------------------------------------------------------------------------------


def from_dimod(model: Any) -> FactorGraph:
    """Turn any model of dimod into a factor graph; the log potential of a labelling is minus its energy.

    A BinaryQuadraticModel, DiscreteQuadraticModel, ConstrainedQuadraticModel, QuadraticModel or BinaryPolynomial.

    Examples
    --------
    >>> import dimod, mapmrf
    >>> mapmrf.solve(from_dimod(dimod.BinaryQuadraticModel({"a": 1.0}, {}, 0.5, "SPIN"))).assignment
    {'a': '-1'}
    """
    for kind in type(model).__mro__:
        if kind.__name__ == "QuadraticModel":
            return from_cqm(needed("dimod").ConstrainedQuadraticModel.from_quadratic_model(model))
        if kind.__name__ in _READERS:
            return _READERS[kind.__name__](model)
    raise UnsupportedModel(f"found a {type(model).__name__}, expected a model of dimod")


def from_qubo(coefficients: Mapping[Any, float] | ArrayLike, *, offset: float = 0.0) -> FactorGraph:
    """Turn a QUBO into a factor graph: the log potential of a labelling is minus its energy, which is to be minimised.

    Parameters
    ----------
    coefficients : (n, n)
        A mapping from pairs of labels to numbers, or an array (n, n), dense or sparse, of which all entries count. The
        energy is the sum of ``coefficients[i, j] * x[i] * x[j]``; those of equal labels are linear. Labels become
        names; they are sorted if they are integers.
    offset
        A constant of the energy.

    Examples
    --------
    >>> import mapmrf
    >>> result = mapmrf.solve(from_qubo({("a", "a"): -1.0, ("b", "b"): -1.0, ("a", "b"): 3.0, ("b", "c"): -2.5}))
    >>> result.assignment, result.value
    ({'a': '0', 'b': '1', 'c': '1'}, 3.5)
    >>> from_qubo([[-1, 2], [0, -1]]).value([1, 1])
    0.0
    """
    if isinstance(coefficients, Mapping):
        pairs = list(coefficients)
        wrong = [pair for pair in pairs if not (isinstance(pair, tuple) and len(pair) == 2)]
        if wrong:
            raise GraphError(f"{wrong[0]!r} is no pair of labels, expected coefficients like {{('a', 'b'): 1.0}}")
        labels = list(dict.fromkeys(label for pair in pairs for label in pair))
        if all(index_of(label) is not None for label in labels):
            labels.sort()
        place = {label: i for i, label in enumerate(labels)}
        i, j = np.array([[place[a], place[b]] for a, b in pairs], dtype=np.int64).reshape(-1, 2).T
        weight = as_array(list(coefficients.values()), "the coefficients")
    else:
        sparse = getattr(coefficients, "tocoo", None)
        square: Any = as_array(coefficients, "the coefficients") if sparse is None else sparse()
        if len(square.shape) != 2 or square.shape[0] != square.shape[1]:
            raise GraphError(f"the coefficients have shape {square.shape}, expected (n, n)")
        labels = list(range(square.shape[0]))
        i, j = np.nonzero(square) if sparse is None else (square.row, square.col)
        weight = as_array(square[i, j] if sparse is None else square.data, "the coefficients")
    if not np.isfinite(weight).all():
        at = int(np.flatnonzero(~np.isfinite(weight))[0])
        raise GraphError(f"coefficient {labels[i[at]]!r}, {labels[j[at]]!r} is {weight[at]}, expected a finite number")
    n = max(1, len(labels))
    pair, same = np.unique(np.minimum(i, j) * np.int64(n) + np.maximum(i, j), return_inverse=True)
    total = np.bincount(same, weight, len(pair)).astype(np.float64)
    return _quadratic(labels, pair // n, pair % n, total, offset, "BINARY")


def _quadratic(
    labels: Sequence[Hashable], i: Ints, j: Ints, weight: Floats, offset: float, vartype: str
) -> FactorGraph:
    terms = quadratic.Terms(len(labels), i, j, weight, float(offset), vartype == "SPIN")
    graph = quadratic.graph_of(Path("QUBO"), terms, -1.0)
    return dataclasses.replace(graph, names=names_of(labels, [_STATES[vartype]] * len(labels)))


def from_bqm(bqm: Any) -> FactorGraph:
    """Turn a BinaryQuadraticModel into a factor graph; the log potential of a labelling is minus its energy.

    Variables keep their order and, as strings, their labels. State 0 is the value 0 (of a spin: -1), state 1 is 1. All
    interactions share one table, each with its own weight (`FactorGraph.weight`).

    Examples
    --------
    >>> import dimod, mapmrf
    >>> bqm = dimod.BinaryQuadraticModel({"a": 1.0}, {("a", "b"): 2.0}, 0.5, "SPIN")
    >>> graph = from_bqm(bqm)
    >>> mapmrf.solve(graph).assignment, graph.value([0, 1]), float(bqm.energy({"a": -1, "b": 1}))
    ({'a': '-1', 'b': '1'}, 2.5, -2.5)
    """
    # By default it sorts the labels, or some of them if not all can be compared.
    vectors = bqm.to_numpy_vectors(variable_order=list(bqm.variables))
    linear, at = np.asarray(vectors.linear_biases, dtype=np.float64), np.arange(len(vectors.linear_biases))
    i, j = (np.asarray(ends, dtype=np.int64) for ends in (vectors.quadratic.row_indices, vectors.quadratic.col_indices))
    ends = np.concatenate([at, i]), np.concatenate([at, j])
    weight = np.concatenate([linear, vectors.quadratic.biases])
    return _quadratic(list(bqm.variables), *ends, weight, vectors.offset, bqm.vartype.name)


def from_dqm(dqm: Any) -> FactorGraph:
    """Turn a DiscreteQuadraticModel into a factor graph; the log potential of a labelling is minus its energy.

    Examples
    --------
    >>> import dimod
    >>> dqm = dimod.DiscreteQuadraticModel()
    >>> dqm.add_variable(3, label="colour"), dqm.add_variable(2, label="size")
    ('colour', 'size')
    >>> dqm.set_quadratic("colour", "size", {(2, 1): -4.0})
    >>> from_dqm(dqm).value([2, 1])
    4.0
    """
    vectors = dqm.to_numpy_vectors(return_offset=True)
    starts = np.asarray(vectors.case_starts, dtype=np.int64)
    linear = np.asarray(vectors.linear_biases, dtype=np.float64)
    card = np.diff(np.append(starts, len(linear)))
    pairs, tables = _case_tables(vectors.quadratic, starts, card)
    return FactorGraph.from_energies(
        card,
        [(), *((i,) for i in range(len(card))), *pairs],
        [[float(vectors.offset)], *np.split(linear, starts[1:]), *tables],
        names=names_of(list(dqm.variables), [list(dqm.get_cases(v)) for v in dqm.variables]),
    )


def _case_tables(quadratic: Any, starts: Ints, card: Ints) -> tuple[list[tuple[int, int]], list[Floats]]:
    """A table for each pair of variables that interact, from the biases between their cases."""
    ends = np.stack([np.asarray(quadratic.row_indices), np.asarray(quadratic.col_indices)]).astype(np.int64)
    owner = np.searchsorted(starts, ends, side="right") - 1
    case = ends - starts[owner]
    found: dict[tuple[int, int], Floats] = {}
    for k, bias in enumerate(np.asarray(quadratic.biases, dtype=np.float64).tolist()):
        (i, s), (j, t) = sorted([(int(owner[0, k]), int(case[0, k])), (int(owner[1, k]), int(case[1, k]))])
        if (i, j) not in found:
            found[i, j] = np.zeros((card[i], card[j]))
        found[i, j][s, t] += bias
    return list(found), list(found.values())


def from_polynomial(polynomial: Any) -> FactorGraph:
    """Turn a BinaryPolynomial into a factor graph with a factor for each term; log potential = minus energy.

    Terms of the same degree share a table, each with its own weight (`FactorGraph.weight`).

    Raises
    ------
    UnsupportedModel
        If a term has more than 20 variables.

    Examples
    --------
    >>> import dimod
    >>> graph = from_polynomial(dimod.BinaryPolynomial({"a": 1.0, "abc": -2.0}, "BINARY"))
    >>> graph.value([1, 1, 1]), graph.value([1, 0, 1])
    (1.0, -1.0)
    """
    variables = variables_of(polynomial)
    place = {variable: i for i, variable in enumerate(variables)}
    states = _STATES[polynomial.vartype.name]
    energy = _Energy([np.array(states, dtype=np.float64)] * len(variables))
    for term, bias in polynomial.items():
        if len(term) > 20:  # its table has 2 to the power of the degree entries
            raise UnsupportedModel(f"a term has {len(term)} variables, expected at most 20")
        energy.add(tuple(sorted(place[variable] for variable in term)), bias)
    return energy.graph(variables, [states] * len(variables))


def variables_of(polynomial: Any) -> list[Any]:
    """The variables of a polynomial in a reproducible order: it keeps them in a set."""
    try:
        return sorted(polynomial.variables)
    except TypeError:
        return sorted(polynomial.variables, key=lambda variable: (type(variable).__name__, repr(variable)))


class _Energy:
    """Factors for the terms of an energy: equal products share a table, with their coefficients as weights."""

    def __init__(self, values: list[Floats]) -> None:
        self.values = values  # of each variable, by state
        self.scopes: list[tuple[int, ...]] = []
        self.tables: list[Floats] = []
        self.weights: list[float] = []
        self._known: dict[tuple[tuple[bytes, int], ...], Floats] = {}
        self.products: dict[tuple[int, ...], int] = {}  # the variables that are products of others

    def add(self, scope: tuple[int, ...], bias: float) -> None:
        powers = Counter(scope)
        self.scopes.append(tuple(powers))
        self.tables.append(self.product(powers))
        self.weights.append(0.0 - float(bias))  # no "-0"

    def forbid(self, scope: tuple[int, ...], table: Floats) -> None:
        self.scopes.append(scope)
        self.tables.append(table)
        self.weights.append(1.0)

    def product(self, powers: Mapping[int, int]) -> Floats:
        """The product of powers of some variables, with an axis for each."""
        key = tuple((self.values[i].tobytes(), power) for i, power in powers.items())
        if key not in self._known:
            found = np.ones(())
            for i, power in powers.items():
                found = np.multiply.outer(found, self.values[i] ** power)
            self._known[key] = found
        return self._known[key]

    def graph(self, variables: Sequence[Hashable], states: Sequence[Sequence[Hashable]]) -> FactorGraph:
        names = names_of(variables, states)
        return FactorGraph.from_tables(
            [len(each) for each in self.values], self.scopes, self.tables, weight=self.weights, names=names
        )


# -- constrained quadratic models --------------------------------------------------------------------------------------


def from_cqm(cqm: Any) -> FactorGraph:
    """Turn a ConstrainedQuadraticModel into a factor graph; minus the log potential is the energy, with soft penalties.

    Hard linear constraints become `linear` constraints with their labels as names. Quadratic ones, and soft ones with
    their penalties, become tables if these are small. Otherwise a quadratic constraint is linear in further variables,
    one for each product, which come last and have names like ``a*b``; a soft linear one with whole coefficients becomes
    a constraint with a penalty for every step of its violation.

    Raises
    ------
    UnsupportedModel
        If a variable is real or has no bounds, or a soft constraint fits none of these.

    Examples
    --------
    >>> import dimod, mapmrf
    >>> i, j = dimod.Integer("i", upper_bound=4), dimod.Integer("j", upper_bound=4)
    >>> cqm = dimod.ConstrainedQuadraticModel()
    >>> cqm.set_objective(-i * j)
    >>> _ = cqm.add_constraint(2 * i + j <= 6, label="budget")
    >>> result = mapmrf.solve(from_cqm(cqm))
    >>> result.assignment, result.value
    ({'i': '1', 'j': '4'}, 4.0)
    """
    variables = list(cqm.variables)
    energy = _Energy([_values_of(cqm, variable) for variable in variables])
    place = {variable: i for i, variable in enumerate(variables)}
    energy.add((), cqm.objective.offset)
    for scope, bias in _terms(cqm.objective, place):
        energy.add(scope, bias)
    stated: list[Constraint] = []
    for label, comparison in cqm.constraints.items():
        condition = _Condition(str(label), comparison, place, energy.values)
        table = condition.table(energy)
        if table is not None:
            energy.forbid(condition.scope, table)
        else:
            stated += condition.stated(energy)
    products = ["*".join(str(variables[i]) for i in scope) for scope in energy.products]
    states = [[int(value) for value in each] for each in energy.values]
    return energy.graph([*variables, *products], states).with_constraints(stated)


def _values_of(cqm: Any, variable: Any) -> Floats:
    kind = cqm.vartype(variable).name
    if kind in _STATES:
        return np.array(_STATES[kind], dtype=np.float64)
    low, high = math.ceil(cqm.lower_bound(variable)), math.floor(cqm.upper_bound(variable))
    if kind != "INTEGER" or high - low >= MOST_VALUES:
        found = "real" if kind != "INTEGER" else f"an integer from {low} to {high}"
        raise UnsupportedModel(
            f"variable {variable!r} is {found}, expected an integer with at most {MOST_VALUES} values"
        )
    return np.arange(low, high + 1, dtype=np.float64)


def _terms(model: Any, place: Mapping[Any, int]) -> list[Term]:
    """The linear and the quadratic terms that are not 0."""
    terms: list[Term] = [((place[v],), float(bias)) for v, bias in model.iter_linear()]
    terms += [(tuple(sorted((place[u], place[v]))), float(bias)) for u, v, bias in model.iter_quadratic()]
    return [term for term in terms if term[1] != 0.0]


class _Condition:
    """A constraint of a CQM: the sum of some terms, compared with a number."""

    def __init__(self, label: str, comparison: Any, place: Mapping[Any, int], values: list[Floats]) -> None:
        lhs, self.label, self.sense = comparison.lhs, label, comparison.sense.name
        self.terms, self.limit = _terms(lhs, place), float(comparison.rhs) - float(lhs.offset)
        self.weight = float(lhs.weight())  # inf if it is hard
        self.power = 2 if lhs.penalty() == "quadratic" else 1
        self.scope = tuple(sorted({i for scope, _ in self.terms for i in scope}))
        self.tolerance = 1e-8 + 1e-6 * abs(comparison.rhs)  # as in dimod
        self.sizes = [len(values[i]) for i in self.scope]

    def price(self, total: Floats) -> Floats:
        """Minus what the constraint costs if the terms have this sum."""
        violation = {"Eq": np.abs, "Le": np.positive, "Ge": np.negative}[self.sense](total - self.limit)
        bad = violation > self.tolerance
        return np.where(bad, -np.inf if self.weight == math.inf else -self.weight * violation**self.power, 0.0)

    def table(self, energy: _Energy) -> Floats | None:
        """The whole constraint as a table, unless that is large, or it is hard and linear."""
        n_entries, quadratic = math.prod(self.sizes), any(len(set(scope)) > 1 for scope, _ in self.terms)
        plain = n_entries > 1 and self.weight == math.inf and not quadratic
        if plain or len(self.scope) > 20 or n_entries > MOST_ENTRIES:
            return None
        total = np.zeros(self.sizes)
        for scope, bias in self.terms:
            powers = Counter(scope)
            axes = [size if i in powers else 1 for i, size in zip(self.scope, self.sizes, strict=True)]
            total += bias * energy.product(powers).reshape(axes)
        return self.price(total)

    def stated(self, energy: _Energy) -> list[Constraint]:
        """As constraints on indicators; products of different variables get variables of their own."""
        sums: dict[int, Floats] = {}
        for scope, bias in self.terms:
            powers = Counter(scope)
            i = scope[0] if len(powers) == 1 else _product_variable(scope, energy)
            sums[i] = sums.get(i, 0.0) + bias * (energy.product(powers) if len(powers) == 1 else energy.values[i])
        pairs = [(i, k) for i, some in sums.items() for k in range(1, len(some)) if some[k] != some[0]]
        weights = [float(sums[i][k] - sums[i][0]) for i, k in pairs]
        limit = self.limit - sum(float(some[0]) for some in sums.values())
        low, high = limit if self.sense != "Le" else -math.inf, limit if self.sense != "Ge" else math.inf
        if not pairs:  # the terms cancel
            energy.forbid((), self.price(np.array(self.limit - limit)))
            return []
        if self.weight == math.inf:
            return [linear(pairs, weights, lower=low, upper=high, name=self.label)]
        if any(number % 1 for number in (*weights, limit)):
            raise UnsupportedModel(f"constraint {self.label!r} is soft, on many variables and not of whole numbers")
        most, least = (sum(float(end(some - some[0])) for some in sums.values()) for end in (np.max, np.min))
        above = int(max(0.0, most - limit)) if high < math.inf else 0
        below = int(max(0.0, limit - least)) if low > -math.inf else 0
        if above + below > MOST_STEPS:
            raise UnsupportedModel(f"constraint {self.label!r} is soft, with {above + below} steps of its violation")
        found = []
        for step in range(max(above, below)):  # each further step costs the difference of two penalties
            price = self.weight * ((step + 1) ** self.power - step**self.power)
            if step < above:
                found.append(linear(pairs, weights, upper=high + step, penalty=price, name=self.label))
            if step < below:
                found.append(linear(pairs, weights, lower=low - step, penalty=price, name=self.label))
        return found


def _product_variable(scope: tuple[int, ...], energy: _Energy) -> int:
    """The variable that is the product of two others, made on first use."""
    if scope not in energy.products:
        products = np.multiply.outer(*(energy.values[i] for i in scope))
        energy.products[scope] = len(energy.values)
        energy.values.append(np.unique(products))
        tied = products[..., None] == energy.values[-1]
        energy.forbid((*scope, energy.products[scope]), np.where(tied, 0.0, -np.inf))
    return energy.products[scope]


_READERS: dict[str, Callable[[Any], FactorGraph]] = {
    "BinaryQuadraticModel": from_bqm,
    "DiscreteQuadraticModel": from_dqm,
    "ConstrainedQuadraticModel": from_cqm,
    "BinaryPolynomial": from_polynomial,
}


# -- to dimod ---------------------------------------------------------------------------------------------------------


def to_bqm(graph: FactorGraph, vartype: str = "BINARY") -> Any:
    """Turn a binary pairwise model into a BinaryQuadraticModel; energy = minus log potential, offset included.

    Parameters
    ----------
    graph
        A model with two states per variable, at most two variables per factor, and finite potentials only.
    vartype
        ``"BINARY"``: state 0 is the value 0. ``"SPIN"``: state 0 is the value -1.

    Raises
    ------
    UnsupportedModel
        If the model is of another kind; the message gives the reason.

    Examples
    --------
    >>> import mapmrf
    >>> graph = mapmrf.FactorGraph.from_pairwise([[0, 1], [0, 0]], [[0, 1]], [[1, 0], [0, 1]])
    >>> bqm = to_bqm(graph)
    >>> float(bqm.energy({0: 1, 1: 1})), graph.value([1, 1])
    (-2.0, 2.0)
    """
    refuse_constraints(graph, "a BQM")
    if vartype not in _STATES:
        raise OptionError(f"vartype={vartype!r}, expected 'BINARY' or 'SPIN'")
    try:
        quadratic.check(Path("BinaryQuadraticModel"), graph)
    except FormatError as error:
        raise UnsupportedModel(str(error)) from None
    spin = vartype == "SPIN" and quadratic.is_spin(graph)  # exactly, without the detour via 0 and 1
    terms = quadratic.terms_of(graph, spin)
    linear = np.zeros(graph.n_vars)
    unary = terms.i == terms.j
    np.add.at(linear, terms.i[unary], terms.weight[unary])
    bqm = needed("dimod").BinaryQuadraticModel.from_numpy_vectors(
        linear,
        (terms.i[~unary], terms.j[~unary], terms.weight[~unary]),
        terms.offset,
        "SPIN" if spin else "BINARY",
        variable_order=labels_of(graph),
    )
    return bqm.change_vartype(vartype, inplace=True)


def to_dqm(graph: FactorGraph) -> Any:
    """Turn a pairwise model into a DiscreteQuadraticModel whose energy is minus the log potential, offset included.

    Raises
    ------
    UnsupportedModel
        If a factor has more than two variables, or a configuration is forbidden.

    Examples
    --------
    >>> import mapmrf
    >>> graph = mapmrf.FactorGraph.from_tables([2, 3], [(), (0, 1)], [[1.0], [[0, 1, 2], [3, 4, 5]]])
    >>> float(to_dqm(graph).energy({0: 1, 1: 2}))
    -6.0
    """
    refuse_constraints(graph, "a DQM")
    wide = np.flatnonzero(graph.arity > 2)
    if len(wide):
        raise UnsupportedModel(f"factor {wide[0]} has {graph.arity[wide[0]]} variables, expected at most 2")
    if not (np.isfinite(graph.theta_v).all() and np.isfinite(graph.theta_t).all() and np.isfinite(graph.constant)):
        raise UnsupportedModel("the model forbids something (-inf), expected only finite numbers")
    dqm = needed("dimod").DiscreteQuadraticModel()
    labels = labels_of(graph)
    for i, label in enumerate(labels):
        dqm.add_variable(int(graph.card[i]), label=label)
        dqm.set_linear(label, -graph.theta_v[graph.var_ptr[i] : graph.var_ptr[i + 1]])
    for (i, j), table in pair_tables(graph).items():
        dqm.set_quadratic(labels[i], labels[j], -table)
    dqm.offset = -graph.constant
    return dqm


def pair_tables(graph: FactorGraph) -> dict[tuple[int, int], Floats]:
    """The sum of the factors on each pair of variables; setting them one by one would overwrite."""
    found: dict[tuple[int, int], Floats] = {}
    for a in range(graph.n_factors):
        i, j = graph.scope_of(a).tolist()
        table = graph.table(a) if i < j else graph.table(a).T
        pair = (min(i, j), max(i, j))
        found[pair] = found[pair] + table if pair in found else table
    return found
