"""dimod: binary and discrete quadratic models and polynomials as factor graphs, and back."""

from __future__ import annotations

import dataclasses
from collections.abc import Hashable
from pathlib import Path
from typing import Any

import numpy as np

from mapmrf.arrays import Floats, Ints
from mapmrf.bridges.pystruct import labels_of, names_of, need
from mapmrf.constraints.as_tables import refuse_constraints
from mapmrf.errors import FormatError, OptionError, UnsupportedModel
from mapmrf.formats import quadratic
from mapmrf.model.graph import FactorGraph

_STATES: dict[str, tuple[Hashable, ...]] = {"BINARY": (0, 1), "SPIN": (-1, 1)}


# -- from dimod -------------------------------------------------------------------------------------------------------


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
    linear = np.asarray(vectors.linear_biases, dtype=np.float64)
    at = np.arange(len(linear))
    terms = quadratic.Terms(
        len(linear),
        np.concatenate([at, np.asarray(vectors.quadratic.row_indices, dtype=np.int64)]),
        np.concatenate([at, np.asarray(vectors.quadratic.col_indices, dtype=np.int64)]),
        np.concatenate([linear, vectors.quadratic.biases]),
        float(vectors.offset),
        bqm.vartype.name == "SPIN",
    )
    states = _STATES[bqm.vartype.name]
    graph = quadratic.graph_of(Path("BinaryQuadraticModel"), terms, -1.0)
    return dataclasses.replace(graph, names=names_of(list(bqm.variables), [states] * len(linear)))


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
    scopes, weights = [], []
    for term, bias in polynomial.items():
        if len(term) > 20:  # its table has 2 to the power of the degree entries
            raise UnsupportedModel(f"a term has {len(term)} variables, expected at most 20")
        scopes.append(sorted(place[variable] for variable in term))
        weights.append(0.0 - float(bias))  # no "-0"
    states = _STATES[polynomial.vartype.name]
    product = [np.ones(1)]  # of so many variables, for all their states, the last fastest
    for _ in range(max(map(len, scopes), default=0)):
        product.append(np.outer(product[-1], np.array(states, dtype=np.float64)).ravel())
    tables = [product[len(scope)] for scope in scopes]
    names = names_of(variables, [states] * len(variables))
    return FactorGraph.from_tables([2] * len(variables), scopes, tables, weight=weights, names=names)


def variables_of(polynomial: Any) -> list[Any]:
    """The variables of a polynomial in a reproducible order: it keeps them in a set."""
    try:
        return sorted(polynomial.variables)
    except TypeError:
        return sorted(polynomial.variables, key=lambda variable: (type(variable).__name__, repr(variable)))


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
    bqm = need("dimod").BinaryQuadraticModel.from_numpy_vectors(
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
    dqm = need("dimod").DiscreteQuadraticModel()
    labels = labels_of(graph)
    for i, label in enumerate(labels):
        dqm.add_variable(int(graph.card[i]), label=label)
        dqm.set_linear(label, -graph.theta_v[graph.var_ptr[i] : graph.var_ptr[i + 1]])
    for (i, j), table in _pair_tables(graph).items():
        dqm.set_quadratic(labels[i], labels[j], -table)
    dqm.offset = -graph.constant
    return dqm


def _pair_tables(graph: FactorGraph) -> dict[tuple[int, int], Floats]:
    """The sum of the factors on each pair of variables; setting them one by one would overwrite."""
    found: dict[tuple[int, int], Floats] = {}
    for a in range(graph.n_factors):
        i, j = graph.scope_of(a).tolist()
        table = graph.table(a) if i < j else graph.table(a).T
        pair = (min(i, j), max(i, j))
        found[pair] = found[pair] + table if pair in found else table
    return found
