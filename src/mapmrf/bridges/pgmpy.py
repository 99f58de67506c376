"""pgmpy: its models as factor graphs and back, and MAP queries by name."""

from __future__ import annotations

import logging
import math
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np

from mapmrf.arrays import Floats, Ints
from mapmrf.constraints.as_tables import refuse_constraints
from mapmrf.engines.elimination.numpy_elimination import sum_out
from mapmrf.errors import GraphError, OptionError, UnknownName, UnsupportedModel, needed
from mapmrf.formats.bayes import network_of
from mapmrf.model.builders import as_array
from mapmrf.model.graph import FactorGraph
from mapmrf.model.names import labels_of, names_of, place_of, states_of

KINDS = ("markov", "bayesian", "factor_graph", "factors")

_log = logging.getLogger("mapmrf")

Evidence = Mapping[Any, Any]


# -- from pgmpy -------------------------------------------------------------------------------------------------------


def from_pgmpy(model: Any) -> FactorGraph:
    """Turn a pgmpy model into a factor graph with the names of its variables and states.

    Potentials become natural logs, and those of 0 are forbidden. The variables are in the order of the model's nodes.
    Names that are not strings are converted to strings.

    Parameters
    ----------
    model
        A DiscreteBayesianNetwork, DiscreteMarkovNetwork (also under their old names), FactorGraph, JunctionTree or
        ClusterGraph, or an iterable of DiscreteFactor or TabularCPD.

    Raises
    ------
    GraphError
        If a node has no probabilities, or the factors do not agree on the states of a variable.
    UnsupportedModel
        If the model does not have discrete factors.

    Examples
    --------
    >>> class Factor:  # looks like a DiscreteFactor
    ...     variables = ["rain", "grass"]
    ...     values = [[0.7, 0.1], [0.0, 0.2]]
    ...     state_names = {"rain": ["no", "yes"], "grass": ["dry", "wet"]}
    >>> import mapmrf
    >>> mapmrf.solve(from_pgmpy([Factor()]).condition({"grass": "wet"})).assignment
    {'rain': 'yes', 'grass': 'wet'}
    """
    return _read(model).graph


@dataclass(frozen=True, eq=False)
class _PgmpyModel:
    """A factor graph, and the labels of its variables and states in pgmpy."""

    graph: FactorGraph
    variables: list[Hashable]
    states: list[list[Hashable]]

    def place(self, variable: Any) -> int:
        found = place_of(variable, self.variables)
        if found is None:
            raise UnknownName(f"no variable is named {variable!r}")
        return found

    def state(self, i: int, state: Any) -> int:
        found = place_of(state, self.states[i])
        if found is None:
            known = ", ".join(map(repr, self.states[i][:8]))
            raise UnknownName(f"variable {self.variables[i]!r} has no state named {state!r}; known: {known}")
        return found


def _read(model: Any, more: Iterable[Any] = ()) -> _PgmpyModel:
    factors = [*_factors(model), *more]
    shapes: dict[Hashable, int] = {}
    states: dict[Hashable, list[Hashable]] = {}
    tables = []
    for factor in factors:
        scope = list(factor.variables)
        table = _logs(factor.values, scope)
        tables.append((scope, table))
        for variable, size in zip(scope, table.shape, strict=True):
            if shapes.setdefault(variable, size) != size:
                raise GraphError(
                    f"variable {variable!r} has {shapes[variable]} states in one factor, {size} in another"
                )
            _note_states(states, variable, size, (getattr(factor, "state_names", None) or {}).get(variable))
    # Variables in the order of the model's nodes, then of the factors.
    nodes = list(model.nodes()) if hasattr(model, "nodes") else []
    if hasattr(model, "triangulate"):  # a Markov network: all its nodes are variables
        missing = [node for node in nodes if node not in shapes]
        if missing:
            raise GraphError(f"node {missing[0]!r} is in no factor, so the number of its states is unknown")
    listed = [node for node in nodes if node in shapes]
    variables = list(dict.fromkeys([*listed, *shapes]))
    place = {variable: i for i, variable in enumerate(variables)}
    known = [states[variable] for variable in variables]
    graph = FactorGraph.from_tables(
        [shapes[variable] for variable in variables],
        [[place[variable] for variable in scope] for scope, _ in tables],
        [table for _, table in tables],
        names=names_of(variables, known),
    )
    return _PgmpyModel(graph, variables, known)


def _factors(model: Any) -> list[Any]:
    """The factors or conditional tables of a model, each with `variables` and `values`."""
    if hasattr(model, "get_interface_nodes"):
        raise UnsupportedModel("a dynamic Bayesian network must be unrolled first")
    found = model.cpds if hasattr(model, "cpds") else getattr(model, "factors", model)
    try:
        factors = list(found)
    except TypeError:
        factors = [found]
    for factor in factors:
        if not (hasattr(factor, "variables") and hasattr(factor, "values")):
            kind = type(factor).__name__
            raise UnsupportedModel(f"found a {kind}, expected a pgmpy model with discrete factors")
    if hasattr(model, "cpds"):
        missing = set(model.nodes()) - {factor.variables[0] for factor in factors}
        if missing:
            raise GraphError(f"{len(missing)} nodes have no CPD, among them {min(missing, key=str)!r}")
    return factors


def _logs(values: Any, scope: list[Hashable]) -> Floats:
    what = f"factor on {', '.join(map(str, scope))[:60]}"
    table = as_array(values, what)
    if table.ndim != len(scope):
        raise GraphError(f"{what}: the values have {table.ndim} axes, expected one per variable")
    if not np.all(table >= 0):
        raise GraphError(
            f"{what}: found {table[~(table >= 0)][0]:.6g} among its values, expected numbers of at least 0"
        )
    with np.errstate(divide="ignore"):
        return np.asarray(np.log(table))


def _note_states(states: dict[Hashable, list[Hashable]], variable: Hashable, size: int, found: Any) -> None:
    """Keep the names of a variable's states; names replace mere numbers."""
    numbers: list[Hashable] = list(range(size))

    def is_named(some: list[Hashable]) -> bool:
        return some != numbers or any(isinstance(each, bool | np.bool_) for each in some)  # [False, True] == [0, 1]

    named = numbers if found is None else list(found)
    if len(named) != size:
        raise GraphError(f"variable {variable!r}: {len(named)} state names for {size} states")
    known = states.get(variable, numbers)
    if is_named(known) and is_named(named) and known != named:
        raise GraphError(f"the states of variable {variable!r} are {known} in one factor, {named} in another")
    states[variable] = named if is_named(named) else known


# -- queries ----------------------------------------------------------------------------------------------------------


def map_query(
    model: Any,
    variables: Sequence[Any] | None = None,
    evidence: Evidence | None = None,
    virtual_evidence: Sequence[Any] = (),
    *,
    method: Any = "branch",
    time_limit: float | None = None,
) -> dict[Any, Any]:
    """Most probable states of variables given evidence, like pgmpy's ``VariableElimination(model).map_query(...)``.

    The answer is a dict variable -> state. Without `variables`, all unobserved variables are maximised over: the most
    probable explanation. With only some of them, this is marginal MAP: the others are summed out, exactly, before the
    maximisation. This needs tables as large as those of variable elimination; if they would be too large, the query is
    refused.

    Parameters
    ----------
    evidence
        Observed variable -> state, with the labels of the model.
    virtual_evidence
        Factors in addition to the model's, such as a TabularCPD with the likelihood of each state of a variable.
    method
        Name or object of the method; ``"branch"`` is exact. If the answer is not proven optimal, this is logged.

    Raises
    ------
    GraphError
        If the evidence has probability 0.
    UnsupportedModel
        If the other variables cannot be summed out.

    Examples
    --------
    >>> class Factor:  # looks like a DiscreteFactor
    ...     variables = ["rain", "grass"]
    ...     values = [[0.35, 0.25], [0.0, 0.4]]
    ...     state_names = {"rain": ["no", "yes"], "grass": ["dry", "wet"]}
    >>> map_query([Factor()])
    {'rain': 'yes', 'grass': 'wet'}
    >>> map_query([Factor()], ["rain"])
    {'rain': 'no'}
    >>> map_query([Factor()], evidence={"grass": "dry"})
    {'rain': 'no'}
    """
    from mapmrf.run.solve import solve

    known = _read(model, virtual_evidence)
    observed = {
        known.place(variable): known.state(known.place(variable), s) for variable, s in (evidence or {}).items()
    }
    if variables is None:
        asked = [i for i in range(known.graph.n_vars) if i not in observed]
    else:
        asked = [known.place(variable) for variable in variables]
        both = [known.variables[i] for i in asked if i in observed]
        if both:
            raise OptionError(f"variable {both[0]!r} is both queried and observed")
    graph = known.graph.condition(dict(observed.items())) if observed else known.graph
    others = sorted(set(range(graph.n_vars)) - set(asked) - set(observed))
    rest, kept = sum_out(graph, others) if others else (graph, list(range(graph.n_vars)))
    result = solve(rest, method, time_limit=time_limit)
    if not math.isfinite(result.value):
        raise GraphError("the evidence has probability 0: no states of the other variables are compatible with it")
    if not result.status.closes_gap:
        gap = "" if result.gap is None else f", relative gap {result.gap:.2g}"
        _log.warning("map_query: %s is not proven optimal (%s%s)", result.method, result.status.value, gap)
    labels: Ints = np.zeros(known.graph.n_vars, dtype=np.int64)
    labels[kept] = result.labels
    return {known.variables[i]: known.states[i][labels[i]] for i in asked}


# -- to pgmpy ---------------------------------------------------------------------------------------------------------


def to_pgmpy(graph: FactorGraph, kind: str = "markov") -> Any:
    """Turn a factor graph into a pgmpy model, with its names.

    Variables without names are called ``x0``, ``x1``, ... Log potentials become potentials. A table whose largest entry
    exceeds the range of a double is scaled; the number of entries lost to underflow is logged.

    Parameters
    ----------
    kind
        ``"markov"``: a DiscreteMarkovNetwork with an edge for each pair of variables that share a factor.
        ``"bayesian"``: a DiscreteBayesianNetwork, if the graph is one, such as one read from a BIF file.
        ``"factor_graph"``: a FactorGraph. ``"factors"``: a list of DiscreteFactor.

    Raises
    ------
    FormatError
        If a Bayesian network is requested and the graph is not one.
    ImportError
        If pgmpy is not installed.

    Examples
    --------
    >>> import mapmrf
    >>> graph = mapmrf.FactorGraph.from_pairwise([[0, 1], [0, 0]], [[0, 1]], [[1, 0], [0, 1]])
    >>> sorted(to_pgmpy(graph).nodes())  # doctest: +SKIP
    ['x0', 'x1']
    """
    refuse_constraints(graph, "a pgmpy model")
    if kind not in KINDS:
        raise OptionError(f"kind={kind!r}, expected one of {', '.join(KINDS)}")
    variables: list[Any] = labels_of(graph) if graph.names else [f"x{i}" for i in range(graph.n_vars)]
    states = dict(zip(variables, states_of(graph), strict=True))
    if kind == "bayesian":
        return _bayesian(graph, variables, states)
    factors = _discrete_factors(graph, variables, states)
    if kind == "factors":
        return factors
    models = needed("pgmpy.models")
    model = models.FactorGraph() if kind == "factor_graph" else models.DiscreteMarkovNetwork()
    model.add_nodes_from(variables)
    if kind == "factor_graph":
        model.add_nodes_from(factors)
    for factor in factors:
        scope = factor.variables
        model.add_edges_from([(v, factor) for v in scope] if kind == "factor_graph" else combinations(scope, 2))
    model.add_factors(*factors)
    return model


def _discrete_factors(graph: FactorGraph, variables: list[Any], states: Mapping[Any, list[Hashable]]) -> list[Any]:
    """A factor for every variable, the first with the constant, and one for every factor."""
    tables = []
    for i in range(graph.n_vars):
        block = graph.theta_v[graph.var_ptr[i] : graph.var_ptr[i + 1]]
        tables.append(([i], block if i else block + graph.constant))
    tables.extend((graph.scope_of(a).tolist(), graph.table(a)) for a in range(graph.n_factors))
    DiscreteFactor = needed("pgmpy.factors.discrete").DiscreteFactor
    factors, lost = [], 0
    for scope, theta in tables:
        largest = float(theta.max())
        # Up to 600, potentials are in the range of a double, with room for products.
        values = np.asarray(np.exp(theta - largest if 600.0 < abs(largest) < math.inf else theta))
        lost += int(np.count_nonzero((values == 0) & (theta > -np.inf)))
        names = {variables[i]: states[variables[i]] for i in scope}
        factors.append(DiscreteFactor([variables[i] for i in scope], values.shape, values, names))
    if lost:
        _log.warning("to_pgmpy: %d potentials are too small for a double and become 0", lost)
    return factors


def _bayesian(graph: FactorGraph, variables: list[Any], states: Mapping[Any, list[Hashable]]) -> Any:
    tables = network_of(Path("to_pgmpy"), graph)
    TabularCPD = needed("pgmpy.factors.discrete").TabularCPD
    network = needed("pgmpy.models").DiscreteBayesianNetwork()
    network.add_nodes_from(variables)
    for table in tables:
        child, parents = variables[table.child], [variables[i] for i in table.parents]
        network.add_edges_from((parent, child) for parent in parents)
        network.add_cpds(
            TabularCPD(
                child,
                len(states[child]),
                table.probability.reshape(-1, len(states[child])).T,
                parents,
                [len(states[parent]) for parent in parents],
                {name: states[name] for name in (child, *parents)},
            )
        )
    return network
