"""The Ergo format of the UAI evaluations 2006 and 2008, ``.erg``: Bayesian networks.

Comments are ``/* ... */``. The tokens are the number of variables, their cardinalities, for each variable the number
of its parents and these, then for each variable the size of its table and the entries: the last parent runs faster
than the first, and the variable itself fastest. Two sections with names may follow, each after its comment:
``/* Names */``, a line for each variable, and ``/* Labels */``, a line with the names of its states.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import numpy as np

from mapmrf.arrays import Ints, offsets, ranges
from mapmrf.errors import FormatError
from mapmrf.formats import uai
from mapmrf.formats.bayes import ConditionalTable, warn_about_rows, write_network
from mapmrf.formats.files import (
    Allowed,
    AnyPath,
    fitting_names,
    names_replaced,
    numbers_of,
    read_bytes,
    without_c_comments,
    without_comments,
)
from mapmrf.formats.tables import (
    MOST_COUNT,
    MOST_STATES,
    Factors,
    build,
    check_states,
    check_values,
    expected,
    first_bad,
    table_sizes,
    to_log,
)
from mapmrf.model.graph import FactorGraph, Names

SUFFIXES = (".erg",)

_SECTION = re.compile(rb"/\*\s*(names|labels)\s*\*/", re.IGNORECASE)
_STARTS = re.compile(rb"\s*(/\*|\d+\s[\d\s]*/\*)")
_NAMES = Allowed(re.compile(r"(?!.*(/\*|\*/))\S+"))
_log = logging.getLogger("mapmrf")


def sniff(data: bytes) -> bool:
    return _STARTS.match(data) is not None


# -- reading ----------------------------------------------------------------------------------------------------------


def read(path: Path, *, values: str | None = None) -> FactorGraph:
    """Read a Bayesian network; probabilities of 0 are forbidden."""
    # Rows that do not sum to 1 are kept as they are, and logged.
    check_values(path, values, ("potential",), "probabilities")
    file = numbers_of(path, _text(path), "among the numbers", _text)
    n_vars = int(file.integers(0, 1, 0, MOST_COUNT, "number of variables")[0])
    card = file.integers(1, n_vars, 1, MOST_STATES, "cardinality of variable {}")
    check_states(path, card)
    names = ("parents of variable", "parents of variable")
    arity_at, parent_ptr, parents, at = uai.read_scopes(file, 1 + n_vars, n_vars, n_vars, names)
    own = np.flatnonzero(parents == np.repeat(np.arange(n_vars), np.diff(parent_ptr)))
    if len(own):
        i = int(np.searchsorted(parent_ptr, own[0], side="right")) - 1
        file.fail(int(arity_at[i]) + 1 + int(own[0] - parent_ptr[i]), f"parents of variable {i}", "another variable")
    scope_ptr, scope = offsets(np.diff(parent_ptr) + 1), np.insert(parents, parent_ptr[1:], np.arange(n_vars))
    size, potts = table_sizes(card[scope], scope_ptr), np.zeros(n_vars, dtype=bool)
    start = uai.table_places(
        file, at, size, potts, "variable", lambda i: (f"table size of variable {i}", f"{size[i]:.0f}")
    )
    table_ptr = offsets(size.astype(np.int64))
    theta_t = file.numbers[ranges(start, np.diff(table_ptr))]
    bad = first_bad(theta_t, "potential")
    if bad is not None:
        i = int(np.searchsorted(table_ptr, bad, side="right")) - 1
        entry = bad - int(table_ptr[i])
        file.fail(int(start[i]) + entry, f"table of variable {i}, entry {entry}", expected("potential"))
    to_log(theta_t, "potential")
    factors = Factors(scope_ptr, scope, np.arange(n_vars), table_ptr, theta_t)
    warn_about_rows(path, card, factors)
    return build(path, card, factors, _names(path, card))


def _text(path: AnyPath) -> bytes:
    """The part with numbers, with comments blanked out, so that positions do not change."""
    return without_c_comments(path, without_comments(path, _SECTION.split(read_bytes(path), 1)[0]))


def _names(path: Path, card: Ints) -> Names | None:
    """Names of the variables and states, if the file has such sections; names that are not unique are left out."""
    _, *sections = _SECTION.split(read_bytes(path))
    kinds = [kind.lower() for kind in sections[::2]]
    if not kinds:
        return None
    found = dict(zip(kinds, (_lines(path, section) for section in sections[1::2]), strict=True))
    variables = tuple(found.get(b"names", ()))
    if b"names" not in found:
        variables = tuple(f"x{i}" for i in range(len(card)))
    if len(variables) != len(card):
        raise FormatError(f"{path}: found {len(variables)} names, expected one line for each of {len(card)} variables")
    if len(set(variables)) < len(variables):
        _log.warning("%s: two variables have the same name, so all names are left out", path)
        return None
    if b"labels" not in found:
        return Names(variables)
    rows = [tuple(line.split()) for line in found[b"labels"]]
    if len(rows) != len(card):
        raise FormatError(f"{path}: found labels of {len(rows)} variables, expected a line for each of {len(card)}")
    for name, row, n in zip(variables, rows, card.tolist(), strict=True):
        if len(row) != n:
            raise FormatError(f"{path}: labels of variable {name!r}: found {len(row)}, expected {n}")
        if len(set(row)) < n:
            _log.warning("%s: two states of %r have the same name, so the names of states are left out", path, name)
            return Names(variables)
    return Names(variables, tuple(rows))


def _lines(path: Path, section: bytes) -> list[str]:
    lines = without_c_comments(path, section).decode("utf-8", "replace").splitlines()
    return [line.strip() for line in lines if line.strip()]


# -- writing ----------------------------------------------------------------------------------------------------------


losses = partial(names_replaced, allowed=_NAMES)


def write(graph: FactorGraph, path: Path, *, values: str | None = None) -> None:
    write_network(path, graph, values, _network_text)


def _network_text(graph: FactorGraph, tables: list[ConditionalTable]) -> Iterator[str]:
    ordered = sorted(tables, key=lambda table: table.child)
    yield f"/* Number of variables */\n{graph.n_vars}\n/* Cardinalities */\n{' '.join(map(str, graph.card.tolist()))}\n"
    yield "/* Parents */\n"
    for table in ordered:
        yield " ".join(map(str, (len(table.parents), *table.parents))) + "\n"
    yield "/* Probabilities */\n"
    for table in ordered:
        rows = table.probability.reshape(-1, int(graph.card[table.child])).tolist()
        yield f"{table.probability.size}\n" + "".join([" ".join(f"{p:.17g}" for p in row) + "\n" for row in rows])
    if graph.names is None:
        return
    names = fitting_names(graph, _NAMES)
    yield "/* Names */\n" + "".join(f"{name}\n" for name in names.variables)
    if graph.names.states is not None:
        labels = [states or map(str, range(r)) for states, r in zip(names.states or (), graph.card, strict=True)]
        yield "/* Labels */\n" + "".join(" ".join(row) + "\n" for row in labels)
