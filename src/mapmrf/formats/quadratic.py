"""Binary quadratic models, the energy sum of a_i x_i and b_ij x_i x_j: to and from factor graphs and lists of terms."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from mapmrf.arrays import Floats, Ints, offsets
from mapmrf.errors import FormatError
from mapmrf.formats import tokens
from mapmrf.formats._tables import Factors, build
from mapmrf.formats.budget import charge
from mapmrf.formats.names import names_lost
from mapmrf.formats.tokens import NumberFile, parse_numbers
from mapmrf.model.graph import FactorGraph

MOST_VARIABLES = 2**27
NUMBER = rb"([+-]?[0-9.][0-9.eE+-]*)"
_CHUNK = 1 << 16


@dataclass(frozen=True, eq=False)
class Terms:
    """Coefficients as a list; the same variable twice is a linear term. The states of a spin are -1 and 1."""

    n_vars: int
    i: Ints
    j: Ints
    weight: Floats
    offset: float
    spin: bool


def sign_of(path: Path, values: str | None) -> float:
    """The sign that turns coefficients into log potentials: -1 unless `values` says that they are logs."""
    if values not in (None, "cost", "log"):
        raise FormatError(f"{path}: values={values!r}, but the numbers of this format are costs or logs")
    return 1.0 if values == "log" else -1.0


# -- reading ----------------------------------------------------------------------------------------------------------


def numbers_of(path: Path, text: bytes, what: str = "among the terms") -> NumberFile:
    """Parse a text that contains nothing but numbers."""
    tokens.charge_numbers(path, text)
    numbers = parse_numbers(text)
    if numbers is not None:
        return NumberFile(path, numbers)
    for place, match in enumerate(tokens.TOKEN.finditer(text)):
        if tokens.NUMBER.fullmatch(match[0]) is None:
            tokens.fail_at(path, text, place, what, "a number")
    raise FormatError(f"{path}: cannot read the numbers of this file")


def columns(file: NumberFile, n_vars: int) -> tuple[Ints, Ints, Floats]:
    """Check and return the three numbers of every term."""
    if len(file.numbers) % 3:
        file.fail(len(file.numbers), "last term", "two variables and a weight")
    rows = file.numbers.reshape(-1, 3)
    pairs = rows[:, :2]
    bad = np.flatnonzero(~((pairs >= 0) & (pairs < n_vars) & (pairs == np.floor(pairs))))
    if len(bad):
        row, column = divmod(int(bad[0]), 2)
        file.fail(3 * row + column, f"term {row}", f"a variable from 0 to {n_vars - 1}" if n_vars else "no term")
    bad = np.flatnonzero(~np.isfinite(rows[:, 2]))
    if len(bad):
        file.fail(3 * int(bad[0]) + 2, f"weight of term {bad[0]}", "a finite number")
    return pairs[:, 0].astype(np.int64), pairs[:, 1].astype(np.int64), rows[:, 2].copy()


def offset_of(path: Path, pattern: re.Pattern[bytes], data: bytes) -> float:
    """The constant given in a comment, 0 if there is none."""
    match = pattern.search(data)
    if match is None:
        return 0.0
    numbers = parse_numbers(match[1])
    if numbers is None or len(numbers) != 1 or not np.isfinite(numbers).all():
        raise FormatError(f"{path}: offset: found {tokens.shown(match[1])}, expected a finite number")
    return float(numbers[0])


def charge_variables(path: Path, n_vars: int, n_terms: int) -> None:
    """Charge for binary variables and pairs of them: one number in a file may mean very many variables."""
    charge(path, 64.0 * n_vars + 200.0 * n_terms, "its variables and terms", f"{n_vars} variables")


def graph_of(path: Path, terms: Terms, sign: float) -> FactorGraph:
    """Make a unary factor per linear term and a pairwise one per coupler; a spin is -1 in state 0, +1 in state 1.

    All couplers share a table, with their coefficients as weights.
    """
    charge_variables(path, terms.n_vars, len(terms.i))
    linear = terms.i == terms.j
    one, two = ((-1.0, 1.0), (1.0, -1.0, -1.0, 1.0)) if terms.spin else ((0.0, 1.0), (0.0, 0.0, 0.0, 1.0))
    weight = sign * terms.weight
    counts = [1, int(linear.sum()), int((~linear).sum())]
    factors = Factors(
        offsets(np.repeat([0, 1, 2], counts)),
        np.concatenate([terms.i[linear], np.stack([terms.i[~linear], terms.j[~linear]], axis=1).ravel()]),
        np.repeat([0, 1, 2], counts),
        offsets([1, 2, 4]),
        np.array([1.0, *one, *two]),
        np.concatenate([[sign * terms.offset], weight[linear], weight[~linear]]) + 0.0,  # no "-0"
    )
    return build(path, np.full(terms.n_vars, 2), factors)


# -- writing ----------------------------------------------------------------------------------------------------------


def check_quadratic(path: Path, graph: FactorGraph) -> None:
    """Raise FormatError unless a graph is a binary quadratic model."""
    problem = _unfit(graph)
    if problem:
        raise FormatError(f"{path}: {problem}")


def _unfit(graph: FactorGraph) -> str:
    wrong = np.flatnonzero(graph.card != 2)
    if len(wrong):
        return f"variable {wrong[0]} has {graph.card[wrong[0]]} states, expected 2 of every variable"
    wrong = np.flatnonzero(graph.arity > 2)
    if len(wrong):
        return f"factor {wrong[0]} has {graph.arity[wrong[0]]} variables, expected at most 2"
    hard = np.flatnonzero(graph.theta_v == -np.inf)
    if len(hard):
        return f"state {hard[0] % 2} of variable {hard[0] // 2} is forbidden, expected only finite numbers"
    hard = np.flatnonzero((graph.theta_t == -np.inf).reshape(-1, 4).any(axis=1)[graph.table_of])
    if len(hard):
        return f"factor {hard[0]} forbids a configuration, expected only finite numbers"
    return "" if np.isfinite(graph.constant) else "the constant is -inf, expected a finite number"


def is_spin(graph: FactorGraph) -> bool:
    """Return whether the model is exactly one of products of spins: h s_i and J s_i s_j."""
    unary, tables = graph.theta_v.reshape(-1, 2), graph.theta_t.reshape(-1, 4)  # weights do not matter for this
    symmetric = (tables == tables[:, :1] * [1.0, -1.0, -1.0, 1.0]).all() and (unary[:, 0] == -unary[:, 1]).all()
    return bool(symmetric and (unary.any() or tables.any()))


def terms_of(graph: FactorGraph, spin: bool) -> Terms:
    """Energies as terms, linear ones first: non-zero ones, and those of variables without any other term."""
    graph.check_sums()
    unary = graph.theta_v.reshape(-1, 2)
    t00, t01, t10, t11 = _pair_tables(graph)
    i, j = graph.scope.reshape(-1, 2).T.astype(np.int64)
    if spin:
        linear, coupling, offset = -unary[:, 1], -t11, -graph.constant
    else:
        linear = unary[:, 0] - unary[:, 1]
        np.add.at(linear, i, t00 - t10)
        np.add.at(linear, j, t00 - t01)
        coupling = t01 + t10 - t00 - t11
        offset = -float(graph.constant + unary[:, 0].sum() + t00.sum())
    isolated = np.ones(graph.n_vars, dtype=bool)
    isolated[graph.scope] = False
    listed = np.flatnonzero((linear != 0) | isolated)
    first = np.concatenate([listed, np.minimum(i, j)])
    second = np.concatenate([listed, np.maximum(i, j)])
    return Terms(graph.n_vars, first, second, np.concatenate([linear[listed], coupling]) + 0.0, offset + 0.0, spin)


def _pair_tables(graph: FactorGraph) -> Floats:
    """The four entries of every pair, (4, n_factors)."""
    tables = graph.theta_t.reshape(-1, 4).T[:, graph.table_of]
    return tables if graph.weight is None else tables * graph.weight


def term_text(terms: Terms, sign: float, number: Callable[[float], str]) -> Iterator[str]:
    """Yield lines ``i j weight``."""
    for begin in range(0, len(terms.i), _CHUNK):
        some = slice(begin, begin + _CHUNK)
        rows = zip(terms.i[some].tolist(), terms.j[some].tolist(), (-sign * terms.weight[some]).tolist(), strict=True)
        yield "".join([f"{i} {j} {number(weight)}\n" for i, j, weight in rows])


def quadratic_losses(graph: FactorGraph, spin: bool) -> list[str]:
    """Describe what a list of terms cannot represent."""
    offset = terms_of(graph, spin).offset
    kept = [f"the constant {-offset:.6g} is written as a comment, which other programs ignore"] if offset else []
    return [*names_lost(graph), *kept]
