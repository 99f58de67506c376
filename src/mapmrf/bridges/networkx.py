"""networkx: factor graphs as networkx graphs, to be drawn and analysed, and models from annotated graphs."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from itertools import combinations
from typing import Any, SupportsFloat

import numpy as np
from numpy.typing import ArrayLike

from mapmrf.arrays import Floats
from mapmrf.constraints.as_tables import refuse_constraints
from mapmrf.errors import GraphError, needed
from mapmrf.model.builders import as_array
from mapmrf.model.graph import FactorGraph
from mapmrf.model.names import index_of, labels_of, names_of

Scope = tuple[Hashable, ...]
Place = dict[Hashable, int]


def to_networkx(graph: FactorGraph, *, primal: bool = False) -> Any:
    """Turn a factor graph into an undirected networkx graph with all its numbers as attributes.

    A variable is a node with its name, or its index if it has none, and the attributes ``card``, ``unary`` (its log
    potentials, shape ``(card,)``), ``states`` (their names, if known) and ``bipartite=0``. The graph's attribute
    ``constant`` is the constant of the model.

    Parameters
    ----------
    primal
        If false, the bipartite factor graph: factor `a` is a node ``("factor", a)`` with ``scope`` (the nodes of its
        variables), ``table`` (log potentials, with an axis for each of them, times its weight), ``arity`` and
        ``bipartite=1``. Variables are joined to their factors; the attribute ``axis`` of such an edge is the
        variable's axis of the table.
        If true, the primal graph: variables that share a factor are joined; ``factors`` of an edge lists these, and
        ``pairwise`` is the sum of those on just the two variables, if any, with rows for the first node of ``scope``.

    Examples
    --------
    >>> import mapmrf
    >>> model = mapmrf.FactorGraph.from_tables([2, 2, 2], [(0, 1), (1, 2)], [[0, 1, 2, 3], [1, 0, 0, 1]])
    >>> sorted(map(str, to_networkx(model).neighbors(1)))
    ["('factor', 0)", "('factor', 1)"]
    >>> list(to_networkx(model, primal=True).edges)
    [(0, 1), (1, 2)]
    """
    refuse_constraints(graph, "a networkx graph")
    found = needed("networkx").Graph(constant=graph.constant)
    variables = labels_of(graph)
    for i, variable in enumerate(variables):
        block = slice(graph.var_ptr[i], graph.var_ptr[i + 1])
        found.add_node(variable, card=int(graph.card[i]), unary=graph.theta_v[block], bipartite=0)
        if graph.names is not None and graph.names.states is not None:
            found.nodes[variable]["states"] = graph.names.states[i]
    for a in range(graph.n_factors):
        scope = tuple(variables[i] for i in graph.scope_of(a).tolist())
        if primal:
            table = graph.table(a)
            for one, other in combinations(scope, 2):
                if not found.has_edge(one, other):
                    found.add_edge(one, other, factors=[])
                found.edges[one, other]["factors"].append(a)
            if len(scope) == 2:
                edge = found.edges[scope]
                if "pairwise" not in edge:
                    edge.update(scope=scope, pairwise=table)
                else:
                    edge["pairwise"] = edge["pairwise"] + (table if edge["scope"] == scope else table.T)
        else:
            found.add_node(("factor", a), scope=scope, table=graph.table(a), arity=len(scope), bipartite=1)
            found.add_edges_from((variable, ("factor", a), {"axis": k}) for k, variable in enumerate(scope))
    return found


def from_networkx(
    graph: Any,
    *,
    unary: str = "unary",
    pairwise: str = "pairwise",
    default: ArrayLike | None = None,
    weight: str | None = None,
) -> FactorGraph:
    """Build a model from a networkx graph: a variable for each node, a pairwise factor for each edge.

    The numbers are natural-log potentials. A bipartite graph made by `to_networkx` is converted back with its factors
    of any arity: a node with the attributes ``table`` and ``scope`` is a factor.

    Parameters
    ----------
    graph
        A Graph, DiGraph or multigraph. Nodes may be of any type; their labels become the names.
    unary
        Node attribute with the log potentials of a variable, shape ``(card,)``. A node without it gets zeros; how many
        is known from its attribute ``states``, a sequence of names, or ``card``, or from a table of one of its edges.
    pairwise
        Edge attribute with the log potentials of a pair, shape ``(card of the first, card of the second)``. Rows belong
        to the source of a directed edge; of an undirected one to the node that comes first among ``graph.nodes``,
        unless the edge has an attribute ``scope`` with its two nodes in the order of the axes.
    default : (card, card)
        Table for all edges without this attribute; without a default, such an edge is an error.
    weight
        Edge attribute with the multiplier of the edge's table, such as ``"weight"``; 1 for edges without it. By default
        there are no weights.

    Examples
    --------
    >>> import networkx, mapmrf
    >>> ring = networkx.cycle_graph(4)
    >>> networkx.set_node_attributes(ring, {0: [0.0, 1.0]}, "unary")
    >>> model = from_networkx(ring, default=[[0.0, 0.5], [0.5, 0.0]])  # neighbours prefer to differ
    >>> mapmrf.solve(model).assignment
    {'0': 1, '1': 0, '2': 1, '3': 0}
    >>> ring.edges[0, 1]["weight"] = 3.0
    >>> from_networkx(ring, default=[[0.0, 0.5], [0.5, 0.0]], weight="weight").value([0, 1, 1, 1])
    2.0
    """
    variables = [node for node, data in graph.nodes(data=True) if not _is_factor(data)]
    place = {node: i for i, node in enumerate(variables)}
    # One object for all edges that share it, so that it is stored once.
    shared = None if default is None else as_array(default, "default")
    factors = [*_factor_nodes(graph), *_edges(graph, place, pairwise, shared, weight)]
    inferred: dict[Hashable, int] = {}
    for scope, table, _ in factors:
        for node, size in zip(scope, _shape(scope, table), strict=False):
            inferred.setdefault(node, size)
    blocks, states = [], []
    for node in variables:
        block, named = _node(node, graph.nodes[node], unary, inferred.get(node))
        blocks.append(block)
        states.append(named)
    card = [len(block) for block in blocks]
    scopes = [[place[variable] for variable in scope] for scope, _, _ in factors]
    for (scope, table, _), at in zip(factors, scopes, strict=True):
        expected = tuple(card[i] for i in at)
        if _shape(scope, table) != expected:
            raise GraphError(f"the table of {scope!r} has shape {_shape(scope, table)}, expected {expected}")
    named_states = [range(len(block)) if some is None else some for block, some in zip(blocks, states, strict=True)]
    return FactorGraph.from_tables(
        card,
        [(), *((i,) for i in range(len(variables))), *scopes],
        [[float(graph.graph.get("constant", 0.0))], *blocks, *(table for _, table, _ in factors)],
        weight=[*[1.0] * (1 + len(variables)), *(factor for _, _, factor in factors)],
        names=names_of(variables, None if all(some is None for some in states) else named_states),
    )


def _is_factor(data: dict[str, Any]) -> bool:
    return "table" in data and "scope" in data


def _node(
    node: Hashable, data: dict[str, Any], unary: str, inferred: int | None
) -> tuple[Floats, Sequence[Hashable] | None]:
    states = data.get("states")
    if unary in data:
        block = as_array(data[unary], f"{unary!r} of node {node!r}")
    else:
        card = index_of(data.get("card", inferred)) if states is None else len(states)
        if "card" not in data and card is None:
            raise GraphError(f"node {node!r} has no attribute {unary!r}, 'card' or 'states', and no edge with a table")
        if card is None:
            raise GraphError(f"'card' of node {node!r} is {data['card']!r}, expected a whole number")
        block = np.zeros(card)
    if block.ndim != 1 or (states is not None and len(states) != len(block)):
        expected = "one number per state" if states is None else f"one number for each of {len(states)} states"
        raise GraphError(f"{unary!r} of node {node!r} has shape {block.shape}, expected {expected}")
    return block, states


def _factor_nodes(graph: Any) -> Iterator[tuple[Scope, Any, float]]:
    for node, data in graph.nodes(data=True):
        if _is_factor(data):
            scope = tuple(data["scope"])
            missing = [variable for variable in scope if variable not in graph or _is_factor(graph.nodes[variable])]
            if missing:
                raise GraphError(f"factor node {node!r}: {missing[0]!r} of its scope is not a variable of the graph")
            yield scope, data["table"], 1.0


def _edges(
    graph: Any, place: Place, pairwise: str, default: Floats | None, weight: str | None
) -> Iterator[tuple[Scope, Any, float]]:
    """Scope, table and weight of every edge between two variables; the names are those of attributes."""
    for one, other, data in graph.edges(data=True):
        if one not in place or other not in place:
            continue
        scope = (one, other) if graph.is_directed() or place[one] < place[other] else (other, one)
        scope = tuple(data.get("scope", scope))
        if set(scope) != {one, other}:
            raise GraphError(f"'scope' of edge {(one, other)!r} is {scope!r}, expected its two nodes")
        table = data.get(pairwise, default)
        if table is None:
            raise GraphError(f"edge {(one, other)!r} has no attribute {pairwise!r}, and there is no default")
        factor = 1.0 if weight is None else data.get(weight, 1.0)
        if not isinstance(factor, SupportsFloat):
            raise GraphError(f"{weight!r} of edge {(one, other)!r} is {factor!r}, expected a number")
        yield scope, table, float(factor)


def _shape(scope: Scope, table: Any) -> tuple[int, ...]:
    try:
        return np.shape(table)
    except ValueError:
        raise GraphError(f"the table of {scope!r} is ragged, expected an axis for each of its nodes") from None
