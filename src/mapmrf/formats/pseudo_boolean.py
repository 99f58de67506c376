"""Pseudo-Boolean models, ``.opb`` and ``.wbo``: an objective of products of literals, and linear inequalities.

In ``.wbo`` there is no objective, and constraints after a cost in brackets may be violated. The constant of a model is
written as a comment, ``* offset=x``, which this module reads.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import NoReturn

import numpy as np

from mapmrf.arrays import Floats
from mapmrf.constraints import Constraint, linear
from mapmrf.constraints.flat import WITHIN
from mapmrf.errors import FormatError, UnsupportedModel
from mapmrf.formats import boolean, quadratic
from mapmrf.formats.boolean import Conjunctions, tables_of
from mapmrf.formats.cost_functions import limited
from mapmrf.formats.files import Allowed, fitting_names, names_replaced, plain_name, read_bytes, shown, write_text
from mapmrf.formats.tables import MOST_STATES, check_values, naming
from mapmrf.model.graph import FactorGraph, Names

SUFFIXES = (".opb", ".wbo")
CONSTRAINTS = True

_OFFSET = re.compile(rb"(?m)^[ \t]*\*[ \t]*offset[ \t]*=[ \t]*" + quadratic.NUMBER + rb"[ \t\r]*$")
_COUNT = re.compile(rb"#[ \t]*(variable|constraint)[ \t]*=[ \t]*(\d{1,18})")
_COMMENT = re.compile(rb"(?m)^[ \t]*\*[^\n]*")
_TOKEN = re.compile(
    rb"(?P<number>[+-]?\s*(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)|(?P<sign>[+-])|(?P<literal>~?\s*[A-Za-z_][^\s;~+<>=]*)"
    rb"|(?P<compare>>=|<=|=)|(?P<other>\S)"
)
_PART = re.compile(rb"\s*(min|max|soft)\s*:|\s*\[([^\]]*)\]")
_NUMBERED = re.compile("x[1-9][0-9]{0,8}")
_NAMES = Allowed(re.compile(r"[A-Za-z_][A-Za-z0-9_]*"))

Terms = list[tuple[float, list[tuple[str, int]]]]
"""Coefficients with the literals, variables and states, that they are multiplied by."""


def sniff(data: bytes) -> bool:
    return re.match(rb"\s*\*[ \t]*#variable[ \t]*=|\s*(min|max|soft)[ \t]*:", data) is not None


# -- reading ----------------------------------------------------------------------------------------------------------


@dataclass(eq=False)
class _PseudoBoolean:
    path: Path
    sign: float = 1.0  # of costs in the objective
    objective: Terms = field(default_factory=list)
    rows: list[tuple[Terms, str, float, float]] = field(default_factory=list)
    top: float = math.inf
    names: dict[str, None] = field(default_factory=dict)

    def fail(self, line: int, what: str, found: bytes, expected: str) -> NoReturn:
        raise FormatError(f"{self.path}: {what} (line {line}): found {shown(found)}, expected {expected}")

    def statement(self, text: bytes, line: int, first: bool) -> None:
        part = _PART.match(text)
        cost, what = math.inf, "the objective" if part and part[1] else f"constraint {len(self.rows) + 1}"
        body = text[part.end() :] if part else text
        if part and part[1] is None:
            cost = self.number(part[2], line, f"the cost of {what}")
            if cost < 0.0:
                self.fail(line, f"the cost of {what}", part[2].strip(), "a number of at least 0")
        elif part and not first:
            self.fail(line, part[1].decode(), part[1], "it before all constraints, and once")
        if part and part[1] == b"soft":
            self.top = self.number(body, line, "the top cost") if body.strip() else math.inf
            return
        terms, compare, right = self.terms(body, line, what)
        if part and part[1]:
            if compare:
                self.fail(line, what, compare.encode(), "terms only")
            self.sign, self.objective = (1.0 if part[1] == b"min" else -1.0), terms
        elif not compare:
            self.fail(line, what, body.strip()[-20:], "'>=', '<=' or '=' and a number at its end")
        else:
            self.rows.append((terms, compare, right, math.inf if cost >= self.top else cost))

    def number(self, word: bytes, line: int, what: str) -> float:
        try:
            found = float(word.replace(b" ", b""))
        except ValueError:
            found = math.nan
        if not math.isfinite(found):
            self.fail(line, what, word.strip(), "a finite number")
        return found

    def terms(self, text: bytes, line: int, what: str) -> tuple[Terms, str, float]:
        """The terms, and the comparison at their end with its number."""
        terms: Terms = []
        compare, sign, open_term, kind = "", 1.0, False, None
        for match in _TOKEN.finditer(text):
            before, kind, word = kind, match.lastgroup, match[0]
            if compare:
                if kind != "number" or text[match.end() :].strip():
                    self.fail(line, what, text[match.start() :].strip(), "a number and ';' after the comparison")
                return terms, compare, sign * self.number(word, line, what)
            if kind == "number":
                terms.append((sign * self.number(b"".join(word.split()), line, what), []))
                sign, open_term = 1.0, True
            elif kind == "sign":
                sign, open_term = (-1.0 if word == b"-" else 1.0), False
            elif kind == "literal":
                name = word.lstrip(b"~ \t\r\n").decode("utf-8", "replace")
                self.names.setdefault(name)
                if not open_term:
                    terms.append((sign, []))
                    sign, open_term = 1.0, True
                terms[-1][1].append((name, 0 if word.startswith(b"~") else 1))
            elif kind == "compare" and before != "sign":
                compare = word.decode()
            else:
                self.fail(line, what, word, "a number, a variable or a comparison")
        if compare or kind == "sign":
            self.fail(line, what, text.rstrip()[-1:], "a number after it")
        return terms, "", 0.0


def read(path: Path, *, values: str | None = None) -> FactorGraph:
    """Read a pseudo-Boolean model; what is minimised becomes its negative."""
    check_values(path, values, ("cost",), "costs")
    data = read_bytes(path)
    if not data.strip():
        raise FormatError(f"{path}: the file is empty, expected an objective or constraints")
    text = _COMMENT.sub(lambda match: b" " * len(match[0]), data)
    model, at = _PseudoBoolean(path), 0
    *statements, rest = text.split(b";")
    for n, statement in enumerate(statements):
        line = text.count(b"\n", 0, at + len(statement) - len(statement.lstrip())) + 1
        model.statement(statement, line, n == 0)
        at += len(statement) + 1
    if rest.strip():
        line = text.count(b"\n", 0, len(text) - len(rest.lstrip())) + 1
        model.fail(line, "the last statement", rest.strip(), "';' at its end")
    counts = {what: int(n) for what, n in _COUNT.findall(data[: data.find(b"\n") + 1 or len(data)])}
    if counts.get(b"constraint", len(model.rows)) != len(model.rows):
        raise FormatError(f"{path}: found {len(model.rows)} constraints, expected {counts[b'constraint']} as in line 1")
    return _graph(path, model, counts.get(b"variable", 0), -quadratic.offset_of(path, _OFFSET, data))


def _graph(path: Path, model: _PseudoBoolean, n_vars: int, constant: float) -> FactorGraph:
    place = {name: i for i, name in enumerate(model.names)}
    if all(map(_NUMBERED.fullmatch, place)):  # the usual names, all of which there are
        place = {name: int(name[1:]) - 1 for name in place}
        n_vars = max([n_vars, *(i + 1 for i in place.values())])
        names = None
    else:
        n_vars, names = len(place), Names(tuple(place))
    if 2 * n_vars > MOST_STATES:
        raise FormatError(f"{path}: found {n_vars} variables, expected at most {MOST_STATES // 2}")
    products = _products([(model.sign * weight, literals) for weight, literals in model.objective], place)
    if constant:
        products[()] = products.get((), 0.0) + constant
    found: list[Constraint] = []
    for number, (terms, compare, right, cost) in enumerate(model.rows, 1):
        inequality = _products(terms, place)
        shift = inequality.pop((), 0.0)
        limits = (-math.inf if compare == "<=" else right - shift), (math.inf if compare == ">=" else right - shift)
        try:
            if inequality:
                found.append(_constraint(path, inequality, limits, cost))
            elif not limits[0] <= 0.0 <= limits[1]:
                products[()] = products.get((), 0.0) + cost
        except UnsupportedModel as error:
            raise FormatError(f"{path}: constraint {number}: {error}") from None
    graph = Conjunctions.of(n_vars, list(products), list(products.values())).graph(path, names)
    with naming(path):
        return graph.with_constraints(found) if found else graph


def _products(terms: Terms, place: dict[str, int]) -> dict[tuple[tuple[int, int], ...], float]:
    """Literals -> coefficient, without products that are always 0."""
    found: dict[tuple[tuple[int, int], ...], float] = {}
    for weight, literals in terms:
        key = tuple(sorted({(place[name], state) for name, state in literals}))
        if len({i for i, _ in key}) == len(key):
            found[key] = found.get(key, 0.0) + weight
    return found


def _constraint(
    path: Path, products: dict[tuple[tuple[int, int], ...], float], limits: tuple[float, float], cost: float
) -> Constraint:
    lower, upper = limits
    if all(len(key) == 1 for key in products):
        literals, weights = [key[0] for key in products], list(products.values())
        return linear(literals, weights, lower=lower, upper=upper, penalty=None if math.isinf(cost) else cost)
    scope = sorted({i for key in products for i, _ in key})
    inner = {i: at for at, i in enumerate(scope)}
    moved = [[(inner[i], k) for i, k in key] for key in products]
    network = Conjunctions.of(len(scope), moved, list(products.values())).graph(path)
    above = 1e-6 * max(1.0, *map(abs, products.values()))
    return limited("linear", network, scope, (lower - above, upper + above), np.full(scope[-1] + 1, 2), cost)


# -- writing ----------------------------------------------------------------------------------------------------------


def losses(graph: FactorGraph) -> list[str]:
    return [*names_replaced(graph, _NAMES), *boolean.losses(graph, named=True)]


def write(graph: FactorGraph, path: Path, *, values: str | None = None) -> None:
    """Write a binary model: tables as sums of products, forbidden entries and constraints as inequalities."""
    check_values(path, values, ("cost",), "costs")
    boolean.check(path, graph)
    soft = plain_name(path).endswith(".wbo")
    names = tuple(f"x{i + 1}" for i in range(graph.n_vars))
    if graph.names is not None:
        names = fitting_names(graph, _NAMES).variables
    sums, rows = dict[tuple[int, ...], float](), list[str]()
    for scope, table in tables_of(graph):
        for at in np.argwhere(np.isneginf(table)).tolist():
            literals = "".join(f"+1 {'~' if k else ''}{names[i]} " for i, k in zip(scope, at, strict=True))
            rows.append(f"{literals}>= 1 ;\n" if scope else ">= 1 ;\n")
        for part, weight in _polynomial(scope, np.where(np.isneginf(table), 0.0, table)):
            sums[part] = sums.get(part, 0.0) - weight
    constant = sums.pop((), 0.0)
    if soft:  # a product that costs is a constraint that is violated with it
        for part, weight in sums.items():
            constant += min(0.0, weight)
            literals = " ".join(names[i] for i in part)
            rows.append(f"[{abs(weight):.17g}] +1 {literals} {'= 0' if weight > 0 else '>= 1'} ;\n" if weight else "")
    rows.extend(_rows(path, graph, names, soft))
    rows = [row for row in rows if row]
    objective = "".join(
        f"{weight:+.17g} {' '.join(names[i] for i in part)} " for part, weight in sums.items() if weight
    )
    start = "soft: ;\n" if soft else f"min: {objective};\n" if objective else ""
    offset = f"* offset={-constant:.17g}\n" if constant else ""
    write_text(path, [f"* #variable= {graph.n_vars} #constraint= {len(rows)}\n", offset, start, *rows])


def _polynomial(scope: list[int], table: Floats) -> Iterator[tuple[tuple[int, ...], float]]:
    """The coefficients of all products of some of the variables."""
    sums = table.copy()
    for axis in range(sums.ndim):
        moved = np.moveaxis(sums, axis, 0)
        moved[1] -= moved[0]
    for at in np.argwhere(sums != 0.0).tolist():
        yield tuple(sorted(i for i, k in zip(scope, at, strict=True) if k)), float(sums[tuple(at)])


def _rows(path: Path, graph: FactorGraph, names: tuple[str, ...], soft: bool) -> Iterator[str]:
    constraints = graph.constraints
    for c in range(0 if constraints is None else len(constraints)):
        assert constraints is not None
        found = list(constraints.kind_of(c).sums(constraints, c, graph.card))
        hard = bool(constraints.hard[c])
        if not found or any(each.condition != WITHIN for each in found):
            raise FormatError(f"{path}: constraint {constraints.called(c)} is no linear inequality")
        if not hard and (not soft or len(found) > 1 or np.isfinite([found[0].least, found[0].most]).all()):
            raise FormatError(f"{path}: constraint {constraints.called(c)} has a penalty, expected .wbo and one limit")
        for each in found:
            terms = "".join(
                f"{weight:+.17g} {'' if k else '~'}{names[i]} "
                for i, k, weight in zip(each.var.tolist(), each.state.tolist(), each.weight.tolist(), strict=True)
            )
            start = "" if hard else f"[{constraints.penalty[c]:.17g}] "
            for limit, compare in ((each.least, ">="), (each.most, "<=")):
                if np.isfinite(limit):
                    yield f"{start}{terms}{compare} {limit:.17g} ;\n"
