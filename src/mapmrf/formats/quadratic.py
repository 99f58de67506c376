"""Binary quadratic models, the energy sum of a_i x_i and b_ij x_i x_j: to and from factor graphs and lists of terms."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

import numpy as np

from mapmrf.arrays import Floats, Ints, offsets
from mapmrf.errors import FormatError
from mapmrf.formats.files import NumberFile, charge, first_not_whole, names_lost, parse_numbers, shown, write_text
from mapmrf.formats.tables import Factors, build, check_values
from mapmrf.model.graph import FactorGraph

MOST_VARIABLES = 2**27
NUMBER = rb"([+-]?[0-9.][0-9.eE+-]*)"


@dataclass(frozen=True, eq=False)
class Terms:
    """Coefficients as a list; the same variable twice is a linear term. The states of a spin are -1 and 1."""

    n_vars: int
    i: Ints
    j: Ints
    weight: Floats
    offset: float
    spin: bool


def sign_of(path: Path, values: str | None, usual: str = "cost") -> float:
    """The sign that turns coefficients into log potentials: -1 for costs, 1 for logs."""
    check_values(path, values, ("cost", "log"), "costs or logs")
    return 1.0 if (values or usual) == "log" else -1.0


# -- reading ----------------------------------------------------------------------------------------------------------


def read_lines(
    file: NumberFile, begin: int, n: int, line: str = "term", end: str = "variable", first: int = 0, loops: bool = True
) -> tuple[Ints, Ints, Floats]:
    """Lines ``i j weight`` from a number of the file on, on n variables numbered from `first`, here from 0."""
    # `line` and `end` are what the format calls a line and what it connects.
    if (len(file.numbers) - begin) % 3:
        file.fail(len(file.numbers), f"last {line}", "two variables and a weight")
    rows = file.numbers[begin:].reshape(-1, 3)
    bad = first_not_whole(rows[:, :2].ravel(), first, first + n - 1)
    if bad is not None:
        row, column = divmod(bad, 2)
        expected = f"a {end} from {first} to {first + n - 1}" if n else f"no {line}"
        file.fail(begin + 3 * row + column, f"{line} {first + row}", expected)
    i, j = (rows[:, k].astype(np.int64) - first for k in range(2))
    equal, infinite = np.flatnonzero(i == j), np.flatnonzero(~np.isfinite(rows[:, 2]))
    if not loops and len(equal):
        file.fail(begin + 3 * int(equal[0]) + 1, f"{line} {first + equal[0]}", f"another {end} than the first")
    if len(infinite):
        file.fail(begin + 3 * int(infinite[0]) + 2, f"weight of {line} {first + infinite[0]}", "a finite number")
    return i, j, rows[:, 2].copy()


def offset_of(path: Path, pattern: re.Pattern[bytes], data: bytes) -> float:
    """The constant given in a comment, 0 if there is none."""
    match = pattern.search(data)
    if match is None:
        return 0.0
    numbers = parse_numbers(match[1])
    if numbers is None or len(numbers) != 1 or not np.isfinite(numbers).all():
        raise FormatError(f"{path}: offset: found {shown(match[1])}, expected a finite number")
    return float(numbers[0])


def charge_variables(path: Path, n_vars: int, n_terms: int) -> None:
    """Charge for binary variables and pairs of them: one number in a file may mean very many variables."""
    charge(path, 64.0 * n_vars + 200.0 * n_terms, "its variables and terms", f"{n_vars} variables")


def graph_of(path: Path, terms: Terms, sign: float) -> FactorGraph:
    """Make a unary factor per linear term and a pairwise one per coupler; a spin is -1 in state 0, +1 in state 1."""
    # All couplers share a table, with their coefficients as weights.
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


def check(path: Path, graph: FactorGraph) -> None:
    many, large = np.flatnonzero(graph.card != 2), np.flatnonzero(graph.arity > 2)
    problem = ""
    if len(many):
        problem = f"variable {many[0]} has {graph.card[many[0]]} states, expected 2 of every variable"
    elif len(large):
        problem = f"factor {large[0]} has {graph.arity[large[0]]} variables, expected at most 2"
    elif len(hard := np.flatnonzero(graph.theta_v == -np.inf)):
        problem = f"state {hard[0] % 2} of variable {hard[0] // 2} is forbidden, expected only finite numbers"
    elif len(hard := np.flatnonzero((graph.theta_t == -np.inf).reshape(-1, 4).any(axis=1)[graph.table_of])):
        problem = f"factor {hard[0]} forbids a configuration, expected only finite numbers"
    elif not np.isfinite(graph.constant):
        problem = "the constant is -inf, expected a finite number"
    if problem:
        raise FormatError(f"{path}: {problem}")


def is_spin(graph: FactorGraph) -> bool:
    """Return whether the model is exactly one of products of spins: h s_i and J s_i s_j."""
    unary, tables = graph.theta_v.reshape(-1, 2), graph.theta_t.reshape(-1, 4)  # weights do not matter for this
    symmetric = (tables == tables[:, :1] * [1.0, -1.0, -1.0, 1.0]).all() and (unary[:, 0] == -unary[:, 1]).all()
    return bool(symmetric and (unary.any() or tables.any()))


def terms_of(graph: FactorGraph, spin: bool) -> Terms:
    """Energies as terms, linear ones first: non-zero ones, and those of variables without any other term."""
    graph.check_sums()
    unary = graph.theta_v.reshape(-1, 2)
    tables = graph.theta_t.reshape(-1, 4).T[:, graph.table_of]
    t00, t01, t10, t11 = tables if graph.weight is None else tables * graph.weight
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


def write_terms(
    path: Path, head: str, terms: Terms, sign: float, number: Callable[[float], str], end: str = ""
) -> None:
    """Write a header, lines ``i j weight``, and an end."""
    write_text(path, chain([head], _term_text(terms, sign, number), [end]))


def _term_text(terms: Terms, sign: float, number: Callable[[float], str]) -> Iterator[str]:
    step = 1 << 16
    for begin in range(0, len(terms.i), step):
        some = slice(begin, begin + step)
        rows = zip(terms.i[some].tolist(), terms.j[some].tolist(), (-sign * terms.weight[some]).tolist(), strict=True)
        yield "".join([f"{i} {j} {number(weight)}\n" for i, j, weight in rows])


def losses(graph: FactorGraph, spin: bool = False) -> list[str]:
    offset = terms_of(graph, spin).offset
    kept = [f"the constant {-offset:.6g} is written as a comment, which other programs ignore"] if offset else []
    return [*names_lost(graph), *kept]
