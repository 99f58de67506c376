"""Cut a model into parts: the owner of each variable, and the data of each part."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Literal, get_args

import numpy as np

from mapmrf.arrays import Ints, frozen, offsets, ranges
from mapmrf.distributed.parts import ModelCounts, Part, PartFolder, lean, write_manifest, write_part
from mapmrf.engines.admm.tiled import find_runs
from mapmrf.errors import OptionError, UnsupportedModel
from mapmrf.model.graph import FactorGraph

Cut = Literal["auto", "metis", "slabs"]
"""How variables are distributed: by METIS, or as equal ranges of indices.

``auto``: ranges for lattices with long rows, and if METIS cuts hardly fewer factors.
"""
ALIGNED = 16  # slabs begin at multiples of this, the size of a block of variables with its own sphere


def partition(
    graph: FactorGraph | str | os.PathLike[str], folder: str | os.PathLike[str], parts: int, cut: Cut = "auto"
) -> PartFolder:
    """Cut a model into parts and write each to a separate file.

    Parameters
    ----------
    graph
        The model, or a file to read it from.
    parts
        Number of parts: at least the number of ranks.
    cut
        ``"metis"``, ``"slabs"`` (equal ranges of variables, suited to images and volumes) or ``"auto"``.

    Examples
    --------
    >>> import tempfile, mapmrf
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     mapmrf.distributed.partition(mapmrf.datasets.grid(6, 6, seed=1), folder, 3, "slabs").counts.n_parts
    3
    """
    from mapmrf.run.solve import as_graph

    graph = as_graph(graph)
    if graph.constraints is not None:
        raise UnsupportedModel("models with constraints cannot be cut into parts: rewrite them as tables first")
    check_parts(parts, graph.n_vars)
    if cut not in get_args(Cut):
        raise OptionError(f"cut is {cut!r}, expected one of {', '.join(get_args(Cut))}")
    place = Path(folder)
    place.mkdir(parents=True, exist_ok=True)
    checksums = [write_part(place, part) for part in split(graph, owners(graph, parts, cut), parts)]
    return write_manifest(place, ModelCounts(graph.n_vars, graph.n_factors, parts), checksums)


def check_parts(parts: int, n_vars: int) -> None:
    if not 1 <= parts <= max(1, n_vars):
        raise OptionError(f"{parts} parts of {n_vars} variables, expected 1 to {max(1, n_vars)}")


# -- which variable goes where ---------------------------------------------------------------------------------------


def owners(graph: FactorGraph, parts: int, cut: Cut) -> Ints:
    ranges_of = slabs(graph.n_vars, parts)
    if cut == "slabs" or parts == 1 or (cut == "auto" and has_rows(graph)):
        return ranges_of
    if cut == "metis":
        return metis(graph, parts)
    try:
        found = metis(graph, parts)
    except ImportError:
        return ranges_of
    return ranges_of if n_cut(graph, ranges_of) <= 1.2 * n_cut(graph, found) else found


def has_rows(graph: FactorGraph) -> bool:
    """Return whether all factors are pairs in long rows, as in images: ADMM needs no indices on slabs of these."""
    pairs = graph.n_factors > 0 and bool(np.all(graph.arity == 2))
    return pairs and find_runs(graph.scope.reshape(-1, 2)) is not None


def slabs(n_vars: int, parts: int) -> Ints:
    """Equal ranges of variables; they begin at multiples of a block where there are enough variables."""
    return np.repeat(np.arange(parts), np.diff(slab_starts(n_vars, parts)))


def slab_starts(n_vars: int, parts: int, unit: int = ALIGNED) -> Ints:
    """Where the ranges begin, and the last one ends; multiples of `unit` where there are enough variables."""
    unit = unit if n_vars >= 4 * unit * parts else 1
    starts = [n_vars // unit * part // parts * unit for part in range(parts)]
    return np.array([*starts, n_vars], dtype=np.int64)


def metis(graph: FactorGraph, parts: int) -> Ints:
    """Parts of equal size with few factors across, by METIS."""
    try:
        import pymetis
    except ImportError:
        raise ImportError("cut='metis' needs pymetis: pip install 'mapmrf[mpi]' ('.[mpi]' in a checkout)") from None
    ptr, nbr = _adjacency(graph)
    adjacency = pymetis.CSRAdjacency(ptr.astype(np.int32), nbr.astype(np.int32))
    _, found = pymetis.part_graph(parts, adjacency=adjacency, options=pymetis.Options(seed=1))
    owner = np.asarray(found, dtype=np.int64)
    empty = np.setdiff1d(np.arange(parts), owner)
    for part in empty.tolist():  # METIS may leave parts of tiny models empty
        largest = int(np.bincount(owner, minlength=parts).argmax())
        owner[np.flatnonzero(owner == largest)[-1]] = part
    return owner


def _adjacency(graph: FactorGraph) -> tuple[Ints, Ints]:
    """Which variables share a factor, as CSR: all pairs of the variables of each."""
    from scipy.sparse import coo_array

    pairs = [np.zeros((0, 2), dtype=np.int64)]
    for arity in np.unique(graph.arity).tolist():
        members = np.flatnonzero(graph.arity == arity)
        scope = graph.scope[graph.scope_ptr[members][:, None] + np.arange(arity)]
        first, second = np.triu_indices(arity, 1)
        pairs.append(np.stack([scope[:, first].ravel(), scope[:, second].ravel()], axis=1))
    i, j = np.concatenate(pairs).T
    ones = np.ones(2 * len(i), dtype=np.int8)
    found = coo_array((ones, (np.concatenate([i, j]), np.concatenate([j, i]))), shape=(graph.n_vars, graph.n_vars))
    csr = found.tocsr()
    return csr.indptr, csr.indices


def n_cut(graph: FactorGraph, owner: Ints) -> int:
    if graph.n_factors == 0:
        return 0
    of = owner[graph.scope]
    starts = graph.scope_ptr[:-1]
    return int(np.count_nonzero(np.maximum.reduceat(of, starts) != np.minimum.reduceat(of, starts)))


# -- what each part has to know --------------------------------------------------------------------------------------


def split(graph: FactorGraph, owner: Ints, n_parts: int) -> Iterator[Part]:
    of_edge = owner[graph.scope]
    for number in range(n_parts):
        mine = np.zeros(graph.n_factors, dtype=bool)
        mine[np.repeat(np.arange(graph.n_factors), graph.arity)[of_edge == number]] = True
        yield _part(graph, owner, number, n_parts, np.flatnonzero(mine))


def _part(graph: FactorGraph, owner: Ints, number: int, n_parts: int, factors: Ints) -> Part:
    """Cut a part out of a model: `factors` are those that touch its variables."""
    own = np.flatnonzero(owner == number)
    scope = graph.scope[ranges(graph.scope_ptr[factors], graph.arity[factors])]
    touched = np.unique(scope)
    var = np.concatenate([own, touched[owner[touched] != number]])
    order = np.argsort(var, kind="stable")
    used, table_of = np.unique(graph.table_of[factors], return_inverse=True)
    sizes = np.diff(graph.table_ptr)[used]
    local = FactorGraph(
        card=graph.card[var],
        theta_v=graph.theta_v[ranges(graph.var_ptr[var], graph.card[var])],
        scope_ptr=offsets(graph.arity[factors]),
        scope=order[np.searchsorted(var, scope, sorter=order)],
        table_of=table_of,
        table_ptr=offsets(sizes),
        theta_t=graph.theta_t[ranges(graph.table_ptr[used], sizes)],
        constant=graph.constant if number == 0 else 0.0,
        weight=None if graph.weight is None else graph.weight[factors],
    )
    return place_part(number, n_parts, local, var, len(own), (owner[var], graph.var_ptr[var], factors))


def place_part(
    number: int, n_parts: int, graph: FactorGraph, var: Ints, own: int, of_whole: tuple[Ints, Ints, Ints]
) -> Part:
    """Make a part from its model, in which own variables come first and factors keep the whole model's order."""
    # `of_whole`: the parts that own the variables, where the whole model has their states, and numbers of the factors.
    part_of, state_at, factor = of_whole
    starts = graph.scope_ptr[:-1]
    cut = np.logical_or.reduceat(graph.scope >= own, starts) if len(starts) else np.zeros(0, dtype=bool)
    elsewhere = graph.scope[starts] >= own
    # Inside, across the cut and counted here, across and counted elsewhere.
    order = np.argsort(cut.astype(np.int8) + elsewhere, kind="stable")
    local = replace(
        graph,
        card=graph.card.astype(np.int64),  # as kernels expect it
        scope_ptr=offsets(graph.arity[order]),
        scope=lean(graph.scope[ranges(graph.scope_ptr[order], graph.arity[order])]),
        table_of=lean(graph.table_of[order]),
        weight=None if graph.weight is None else graph.weight[order],
    )
    send = _copies(graph, np.flatnonzero(cut), own, part_of)
    neighbours, counts = np.unique(send[:, 0], return_counts=True)
    return Part(
        number=number,
        n_parts=n_parts,
        graph=local,
        n_own=own,
        n_inside=int(np.count_nonzero(~cut)),
        n_constrained=int(np.count_nonzero(~elsewhere)),
        var=frozen(lean(var)),
        state_at=frozen(lean(state_at)),
        factor=frozen(lean(factor[order])),
        halo_part=frozen(lean(part_of[own:])),
        neighbours=frozen(lean(neighbours)),
        send_ptr=frozen(offsets(counts)),
        send=frozen(lean(send[:, 1])),
    )


def _copies(graph: FactorGraph, cut: Ints, own: int, part_of: Ints) -> Ints:
    """Pairs (part, own variable), sorted: which part has copies of which variable, for every factor across the cut."""
    found = [np.zeros((0, 2), dtype=np.int64)]
    first, arity = graph.scope_ptr[cut], graph.arity[cut]
    for size in np.unique(arity).tolist():
        scope = graph.scope[first[arity == size][:, None] + np.arange(size)].astype(np.int64)
        for k in range(size):
            for j in range(size):
                across = (scope[:, k] < own) & (scope[:, j] >= own)
                pairs = np.stack([part_of[scope[across, j]], scope[across, k]], axis=1)
                found.append(np.unique(pairs, axis=0))
    return np.unique(np.concatenate(found), axis=0)
