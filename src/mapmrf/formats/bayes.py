"""Bayesian networks between a file and a `FactorGraph`: one conditional probability table (CPT) per variable."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from mapmrf.arrays import Floats, Ints, offsets
from mapmrf.errors import FormatError
from mapmrf.formats.files import charge, write_text
from mapmrf.formats.tables import COPIES, TABLES, Factors, build, check_states, check_values, to_log, variables_with
from mapmrf.model.builders import MOST_VARIABLES, blocks
from mapmrf.model.graph import FactorGraph, Names

_ROW_TOL = 1e-6  # tolerance for the sums of rows: other rows are reported when they are read
_SUM_TOL = 1e-2  # tolerance for the sum of a row in a network that is written: printed tables have two digits
_WRONG_ROWS = "rows of conditional probability tables do not sum to 1"
_log = logging.getLogger("mapmrf")


@dataclass(frozen=True, eq=False)
class ConditionalTable:
    """The CPT of a variable: probabilities, an axis for each parent and the last for the child."""

    child: int
    parents: tuple[int, ...]
    probability: Floats


Text = Callable[[FactorGraph, list[ConditionalTable]], Iterator[str]]  # writes the text of a network, part by part


# -- reading ----------------------------------------------------------------------------------------------------------


def table_size(path: Path, shape: Sequence[int], what: str, before: int = 0) -> int:
    """Number of entries of a CPT, given those of the tables before it; raise FormatError if it is too large."""
    if len(shape) > MOST_VARIABLES:
        raise FormatError(f"{path}: {what}: found {len(shape)} variables, expected at most {MOST_VARIABLES}")
    size = math.prod(map(float, shape))
    charge(path, 8.0 * COPIES * (size + before), TABLES, f"{what} has {size:.4g} entries")
    return int(size)


def network_graph(path: Path, tables: list[ConditionalTable], names: Names) -> FactorGraph:
    """The graph of a network; the scope of a factor is the parents, then the child. The list is emptied."""
    card = np.array([len(states) for states in names.states or ()], dtype=np.int64)
    check_states(path, card)
    missing = np.setdiff1d(np.arange(len(card)), [table.child for table in tables])
    if len(missing):
        raise FormatError(f"{path}: found no probabilities of variable {names.variables[missing[0]]!r}, expected some")
    scopes = [(*table.parents, table.child) for table in tables]
    sizes = [table.probability.size for table in tables]
    theta_t = np.concatenate([np.zeros(0), *(table.probability.ravel() for table in tables)])
    tables.clear()  # they are as large as the tables
    to_log(theta_t, "potential")
    factors = Factors.joined(scopes, sizes, theta_t)
    warn_about_rows(path, card, factors, names)
    return build(path, card, factors, names)


def warn_about_rows(path: Path, card: Ints, factors: Factors, names: Names | None = None) -> None:
    """Log how many rows of conditional probability tables (child last), given as logs, do not sum to 1."""
    filled = np.flatnonzero(np.diff(factors.scope_ptr) > 0)
    child_card = card[factors.scope[factors.scope_ptr[1:][filled] - 1]]
    n_bad, first = 0, len(factors.table_of)
    for c in np.unique(child_card).tolist():
        mine = filled[child_card == c]
        t, one_user = np.unique(factors.table_of[mine], return_index=True)
        sizes = np.diff(factors.table_ptr)[t]
        entries = blocks(factors.theta_t, factors.table_ptr[t], sizes)
        with np.errstate(over="ignore"):
            sums = np.exp(entries, out=entries).reshape(-1, c).sum(axis=1)
        sums -= 1.0
        wrong = (np.abs(sums, out=sums) > _ROW_TOL).view(np.int8)
        n_wrong = np.add.reduceat(wrong, offsets(sizes // c)[:-1], dtype=np.int64)
        n_bad, first = n_bad + int(n_wrong.sum()), min([first, *mine[one_user[n_wrong > 0]].tolist()])
    if n_bad:
        what = f"in factor {first}" if names is None else f"of {names.variables[factors.scope_of(first)[-1]]!r}"
        _log.warning("%s: %s: %d, the first %s", path, _WRONG_ROWS, n_bad, what)


# -- writing ----------------------------------------------------------------------------------------------------------


def network_of(path: Path, graph: FactorGraph) -> list[ConditionalTable]:
    """Tables of a graph that is a Bayesian network: variables without parents first, then a table per factor."""
    # A variable that is in one factor only, and over which that factor is normalised, must be its child; without the
    # factor the others form a smaller network. So the children are found from the leaves upwards, and nothing is
    # guessed.
    if abs(graph.constant) > _SUM_TOL:
        raise FormatError(f"{path}: not a Bayesian network: the graph has a constant of {graph.constant:.6g}")
    child_of = _children(path, graph)
    roots = [i for i in range(graph.n_vars) if i not in child_of]
    tables = [ConditionalTable(i, (), _root(path, graph, i)) for i in roots]
    for a, i in sorted((a, i) for i, a in child_of.items()):
        scope = graph.scope_of(a).tolist()
        table = np.moveaxis(graph.table(a), scope.index(i), -1)
        tables.append(ConditionalTable(i, tuple(v for v in scope if v != i), np.exp(table)))
    return tables


def _root(path: Path, graph: FactorGraph, i: int) -> Floats:
    probability: Floats = np.exp(graph.theta_v[graph.var_ptr[i] : graph.var_ptr[i + 1]])
    total = probability.sum()
    if not abs(total - 1.0) <= _SUM_TOL:
        raise FormatError(
            f"{path}: not a Bayesian network: variable {i} is not the child of a factor, and its potentials sum to "
            f"{total:.6g} instead of 1"
        )
    return probability


def _children(path: Path, graph: FactorGraph) -> dict[int, int]:
    """Variable -> factor whose child it is."""
    factors_of: list[set[int]] = [set() for _ in range(graph.n_vars)]
    for a in range(graph.n_factors):
        for i in graph.scope_of(a).tolist():
            factors_of[i].add(a)
    loud = set(variables_with(graph, graph.theta_v != 0).tolist())  # with potentials beside their factors
    child_of: dict[int, int] = {}
    leaves = [i for i in range(graph.n_vars) if len(factors_of[i]) == 1]
    while leaves:
        i = leaves.pop()
        if len(factors_of[i]) != 1 or i in loud:
            continue
        (a,) = factors_of[i]
        if not _is_cpt(graph, a, i):
            continue
        child_of[i] = a
        for j in graph.scope_of(a).tolist():
            factors_of[j].discard(a)
            if len(factors_of[j]) == 1:
                leaves.append(j)
    left = set(range(graph.n_factors)) - set(child_of.values())
    if left:
        raise FormatError(
            f"{path}: not a Bayesian network: factor {min(left)} is not the conditional probability table of a variable"
        )
    return child_of


def _is_cpt(graph: FactorGraph, a: int, i: int) -> bool:
    axis = graph.scope_of(a).tolist().index(i)
    table = graph.table(a)
    if table.max(initial=0.0) > 1.0:
        return False
    sums = np.exp(table).sum(axis=axis)
    return bool((np.abs(sums - 1.0) <= _SUM_TOL).all())


def write_network(path: Path, graph: FactorGraph, values: str | None, text: Text) -> None:
    check_values(path, values, ("potential",), "probabilities")
    write_text(path, text(graph, network_of(path, graph)))
