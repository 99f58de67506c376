"""Layout of a graph: components are laid out by networkx, without overlaps, and packed into rows."""

from __future__ import annotations

from typing import Any

import numpy as np

from mapmrf.arrays import Floats, Ints

LARGE = 200
"""Number of nodes up to which distances follow those in the graph (Kamada-Kawai); beyond, springs are faster."""
ROUNDS = 300
APART = 1.5
"""Space between components."""

NO_NETWORKX = "drawing a factor graph needs networkx: pip install 'mapmrf[plots]'"


def node_layout(edges: Ints, radius: Floats, length: float) -> Floats:
    """Positions of the nodes, (n, 2): each component separately, the components in rows, largest first.

    Parameters
    ----------
    edges : (n_edges, 2)
        Pairs of nodes.
    radius : (n,)
        Space that each node needs around it.
    length
        Length of a typical edge.
    """
    try:
        import networkx as nx
    except ImportError:
        raise ImportError(NO_NETWORKX) from None
    n = len(radius)
    graph = nx.empty_graph(n)
    graph.add_edges_from(edges.tolist())
    blocks: list[tuple[Ints, Floats]] = []
    for nodes in sorted((sorted(nodes) for nodes in nx.connected_components(graph)), key=len, reverse=True):
        component = nx.Graph()  # with nodes and edges in order: the layout depends on it
        component.add_nodes_from(nodes)
        component.add_edges_from(sorted(graph.subgraph(nodes).edges))
        members = np.array(nodes)
        blocks.append((members, _turned(_parted(_spread(component, length), radius[members]))))
    return _packed(n, blocks)


def _spread(graph: Any, length: float) -> Floats:
    """Positions of the nodes of a connected graph, with distances close to those in the graph."""
    import networkx as nx

    if len(graph) == 1:
        return np.zeros((1, 2))
    if len(graph) <= LARGE:
        places = nx.kamada_kawai_layout(graph)
    else:
        places = nx.spring_layout(graph, seed=0, iterations=ROUNDS)
    found = np.array([places[node] for node in graph])
    edges = np.array([(a, b) for a, b in nx.convert_node_labels_to_integers(graph).edges])
    typical = np.median(np.linalg.norm(found[edges[:, 0]] - found[edges[:, 1]], axis=1))
    return np.asarray(found * (length / max(float(typical), 1e-9)))


def _distances(places: Floats) -> Floats:
    x, y = places.T
    return np.asarray(np.hypot(x[:, None] - x, y[:, None] - y))


def _parted(places: Floats, radius: Floats) -> Floats:
    """Push overlapping nodes apart, a little at a time."""
    need = radius[:, None] + radius
    np.fill_diagonal(need, 0.0)
    for _ in range(ROUNDS):
        found = _distances(places)
        lack = np.maximum(need - found, 0.0)
        if lack.max(initial=0.0) <= 0.05 * need.max(initial=0.0):
            break
        # Each of the two moves a quarter of the way, since several pushes may add up.
        share = 0.25 * lack / np.maximum(found, 1e-9)
        places = places + places * share.sum(axis=1)[:, None] - share @ places
    return places


def _turned(places: Floats) -> Floats:
    """Rotate to be wider than high, and centre."""
    centred = places - places.mean(axis=0)
    _, _, axes = np.linalg.svd(centred, full_matrices=False)
    return np.asarray(centred @ axes.T) if len(places) > 1 else centred


def _packed(n: int, blocks: list[tuple[Ints, Floats]]) -> Floats:
    """Pack components into rows such that the whole is about as wide as high."""
    places = np.zeros((n, 2))
    sizes = [np.ptp(part, axis=0) + APART for _, part in blocks]
    width = max([1.3 * np.sqrt(sum(float(s.prod()) for s in sizes)), *(float(s[0]) for s in sizes)], default=0.0)
    x = y = tallest = 0.0
    for (members, part), size in zip(blocks, sizes, strict=True):
        if x > 0 and x + size[0] > width:
            x, y, tallest = 0.0, y - tallest, 0.0
        corner = np.array([part[:, 0].min(), part[:, 1].max()])
        places[members] = part - corner + [x, y]
        x, tallest = x + float(size[0]), max(tallest, float(size[1]))
    return places
