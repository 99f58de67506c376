"""Violations of a labelling of log potential -inf."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from mapmrf.arrays import Floats, Ints, ranges
from mapmrf.model.graph import FactorGraph
from mapmrf.model.names import Names


@dataclass(frozen=True)
class Violation:
    """A factor whose potential is -inf, a hard constraint that does not hold, or a variable in a forbidden state.

    Attributes
    ----------
    factor
        Index of the factor in the graph; None for a constraint, a unary potential, and the constant.
    variables, states
        The variables and their states, by name where the model has names, else by index.
    constraint
        Index of the constraint in the graph; None for everything else.

    Examples
    --------
    >>> import mapmrf
    >>> graph = mapmrf.FactorGraph.from_pairwise([[0], [0]], [[0, 1]], [[float("-inf")]])
    >>> mapmrf.solve(graph).violated
    (Violation(factor=0, variables=(0, 1), states=(0, 0)),)
    >>> print(mapmrf.solve(graph).violated[0])
    factor 0 (0=0, 1=0)
    """

    factor: int | None
    variables: tuple[int | str, ...]
    states: tuple[int | str, ...]
    constraint: int | None = None

    def __repr__(self) -> str:
        shown = f"Violation(factor={self.factor}, variables={self.variables}, states={self.states}"
        return f"{shown})" if self.constraint is None else f"{shown}, constraint={self.constraint})"

    def __str__(self) -> str:
        pairs = ", ".join(f"{name}={state}" for name, state in zip(self.variables, self.states, strict=True))
        if self.constraint is not None:
            return f"constraint {self.constraint} ({pairs})"
        if self.factor is None:
            return pairs or "the constant"
        return f"factor {self.factor} ({pairs})"


class Shortfall(NamedTuple):
    """Measure of an infeasible labelling: its number of violations, and the value of the rest."""

    n_violated: int
    rest: float

    def better_than(self, other: Shortfall) -> bool:
        return (self.n_violated, -self.rest) < (other.n_violated, -other.rest)


def _terms(graph: FactorGraph, labels: Ints) -> tuple[Floats, Floats, Floats]:
    """Potentials of the variables and the factors, and penalties of constraints."""
    of_factors = np.zeros(graph.n_factors)
    if graph.n_factors:
        inside = np.add.reduceat(labels[graph.scope] * graph.stride, graph.scope_ptr[:-1])
        of_factors = graph.theta_t[graph.table_ptr[graph.table_of] + inside]
        if graph.weight is not None:
            of_factors = of_factors * graph.weight
    of_constraints = np.zeros(graph.n_constraints)
    if graph.constraints is not None:
        bad = graph.constraints.violated(labels)
        of_constraints[bad] = -graph.constraints.penalty[bad]
    return graph.theta_v[graph.var_ptr[:-1] + labels], of_factors, of_constraints


def shortfall(graph: FactorGraph, labels: Ints) -> Shortfall:
    terms = np.concatenate([*_terms(graph, labels), [graph.constant]])
    bad = np.isneginf(terms)
    return Shortfall(int(np.count_nonzero(bad)), float(terms[~bad].sum()))


def penalised(graph: FactorGraph) -> FactorGraph:
    """Return the model with a loss in place of every -inf, larger than everything else together.

    Its best labellings have the fewest violations, and the largest value among those.
    """
    graph = graph.expanded()
    loss = 1.0 + 2.0 * graph.size
    theta_v, theta_t = (np.where(np.isneginf(theta), -loss, theta) for theta in (graph.theta_v, graph.theta_t))
    limits = graph.constraints
    if limits is not None:
        limits = replace(limits, penalty=np.minimum(limits.penalty, loss))
    return replace(graph, theta_v=theta_v, theta_t=theta_t, constant=max(graph.constant, -loss), constraints=limits)


def violations(graph: FactorGraph, labels: Ints) -> tuple[Violation, ...]:
    """List the violations of a labelling: the constant, variables, factors, then hard constraints."""
    return tuple(_listed(graph, labels))


def _listed(graph: FactorGraph, labels: Ints) -> Iterator[Violation]:
    if graph.constant == -np.inf:
        yield Violation(None, (), ())
    of_variables, of_factors, of_constraints = _terms(graph, labels)
    bad = np.flatnonzero(np.isneginf(of_variables))
    for name, state in zip(*_named(graph.names, bad, labels), strict=True):
        yield Violation(None, (name,), (state,))
    bad = np.flatnonzero(np.isneginf(of_factors))
    size = graph.arity[bad]
    variables, states = _named(graph.names, graph.scope[ranges(graph.scope_ptr[bad], size)], labels)
    end = 0
    for a, n in zip(bad.tolist(), size.tolist(), strict=True):
        begin, end = end, end + n
        yield Violation(a, tuple(variables[begin:end]), tuple(states[begin:end]))
    for c in np.flatnonzero(np.isneginf(of_constraints)).tolist():
        assert graph.constraints is not None
        variables, states = _named(graph.names, graph.constraints.variables(c), labels)
        yield Violation(None, tuple(variables), tuple(states), constraint=c)


def _named(names: Names | None, scope: Ints, labels: Ints) -> tuple[list[int | str], list[int | str]]:
    """Variables and their states, by name where there are names."""
    variables: list[int | str] = scope.tolist()
    states: list[int | str] = labels[scope].tolist()
    if names is not None and names.states is not None:
        states = [names.states[i][k] for i, k in zip(scope.tolist(), labels[scope].tolist(), strict=True)]
    if names is not None:
        variables = [names.variables[i] for i in scope.tolist()]
    return variables, states
