"""The CFN format of toulbar2, ``.cfn``: decimal costs, names of variables and values, in relaxed JSON."""

from __future__ import annotations

import logging
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from mapmrf.arrays import Floats, Ints, offsets
from mapmrf.errors import FormatError
from mapmrf.formats.cost_functions import build_with_functions, is_of_pairs
from mapmrf.formats.files import (
    Allowed,
    AnyPath,
    Scanner,
    charge,
    fitting_names,
    names_replaced,
    parse_numbers,
    read_bytes,
    shown,
    write_text,
)
from mapmrf.formats.global_functions import (
    KEYWORDS,
    MOST_NESTED,
    Dialect,
    GlobalFunction,
    WrittenFunction,
    like,
    written,
)
from mapmrf.formats.lists import stays_list
from mapmrf.formats.tables import (
    COPIES,
    DIGITS,
    MOST_DECIMALS,
    TABLES,
    Factors,
    check_states,
    check_values,
    choose_decimals,
    factors_to_write,
    rounding,
)
from mapmrf.model.graph import FactorGraph, Names

SUFFIXES = (".cfn",)
CONSTRAINTS = True

_log = logging.getLogger("mapmrf")

OPEN, CLOSE = b"[", b"]"
_COMMENT = re.compile(rb"(?m)^#[^\n]*|//[^\n]*")
_TOKEN = re.compile(rb'[\s,:]*(?:([{\[])|([}\]])|"([^"\n]*)"|([^\s,:{}\[\]"]+))')
_BRACKET = re.compile(rb"[{}\[\]]")
_BLANKS = bytes.maketrans(b',:"', b"   ")
_BOUND = re.compile(rb"([<>])([+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?|[+-]?inf)")
_WHOLE = re.compile(rb"[+-]?\d{1,18}")
_EXPECTED = "finite numbers, or 'inf' where forbidden"
_NAMES = Allowed(re.compile(r'[^0-9.+\-\s/#\[\]{}:,"][^\s/#\[\]{}:,"]*'))


def sniff(data: bytes) -> bool:
    return re.match(rb'[\s,:]*[{\[][\s,:]*"?problem"?[\s,:]*[{\[]', data[:200]) is not None


# -- reading ----------------------------------------------------------------------------------------------------------


class _RelaxedJson(Scanner[bytes]):
    """Relaxed JSON: quotes, commas and colons are optional, and all brackets are equivalent, `OPEN` or `CLOSE`."""

    def __init__(self, path: AnyPath) -> None:
        text = _COMMENT.sub(lambda match: b" " * len(match[0]), read_bytes(path))
        super().__init__(path, text, _TOKEN, b"\n")
        self._ahead: re.Match[bytes] | None = None

    def peek(self) -> bytes:
        """Return the next token without consuming it; empty at the end of the file."""
        match = self._ahead
        if match is None or match.pos != self.at:
            match = self._ahead = _TOKEN.match(self.text, self.at)
        if match is None:
            return b""
        kind = match.lastindex
        return OPEN if kind == 1 else CLOSE if kind == 2 else match[kind or 0]

    def take(self, what: str) -> bytes:
        token = self.peek()
        if self._ahead is None:
            self._fail_here(what)
        self.last, self.at = self._ahead.start(self._ahead.lastindex or 0), self._ahead.end()
        return token

    def word(self, what: str) -> bytes:
        """Consume the next token, which must not be a bracket."""
        token = self.take(what)
        if token in (OPEN, CLOSE):
            self.fail(what, "a word")
        return token

    def open(self, what: str) -> None:
        if self.take(what) != OPEN:
            self.fail(what, "'{' or '['")

    def closes(self, what: str) -> bool:
        """Consume a closing bracket if it comes next; return whether it does."""
        token = self.peek()
        if self._ahead is None:
            self._fail_here(what)
        if token == CLOSE:
            self.take(what)
        return token == CLOSE

    def rest(self, what: str) -> bytes:
        """All words up to the closing bracket, which is consumed, separated by blanks."""
        end = _BRACKET.search(self.text, self.at)
        if end is None:
            self.at = len(self.text)
            self._fail_here(what)
        words = self.text[self.at : end.start()].translate(_BLANKS)
        if end[0] in b"[{":
            self.last = end.start()
            self.fail(what, "words without brackets")
        self.last, self.at = self.at, end.end()
        return words

    def skip(self, what: str) -> None:
        depth = 0
        while True:
            token = self.take(what)
            depth += (token == OPEN) - (token == CLOSE)
            if depth == 0:
                return

    def end(self) -> None:
        self.peek()
        if self._ahead is not None:
            self.take("after the last bracket")
            self.fail("after the last bracket", "the end of the file")

    def fail(self, what: str, expected: str, found: str = "") -> NoReturn:
        match = _TOKEN.match(self.text, self.last)
        super().fail(what, expected, found or (shown(match[0].strip(b' \t\r\n,:"')) if match else "nothing"))

    def _fail_here(self, what: str) -> NoReturn:
        """Raise the error for a file that ends too early, or continues with a stray quote."""
        rest = self.text[self.at :].strip(b" \t\r\n,:")
        if not rest:
            self.fail_at_end(what)
        line = self.line(self.text.index(rest, self.at))
        raise FormatError(f"{self.path}: {what} (line {line}): found {shown(rest[:20])}, expected a closed quote")


@dataclass(frozen=True)
class _Dense:
    """The text of a table whose numbers are parsed later, all tables at once."""

    function: int
    size: int
    text: bytes
    what: str
    place: int


@dataclass(eq=False)
class _CfnModel:
    """The content read so far; `refers` are the functions that use the table of another, by its name."""

    # `lists` has the tuples of those functions whose tables are their default and the costs of their tuples.

    sign: float = 1.0
    bound: float = np.inf
    variables: list[str] = field(default_factory=list)
    values: list[list[str] | None] = field(default_factory=list)
    card: list[int] = field(default_factory=list)
    place: dict[str, int] = field(default_factory=dict)
    scopes: list[list[int]] = field(default_factory=list)
    tables: list[Floats | None] = field(default_factory=list)
    dense: list[_Dense] = field(default_factory=list)
    lists: dict[int, Ints] = field(default_factory=dict)
    refers: dict[int, bytes] = field(default_factory=dict)
    functions: dict[bytes, int] = field(default_factory=dict)
    repeated: str = ""  # the name of several functions
    n_entries: float = 0.0
    globals: list[tuple[str, GlobalFunction]] = field(default_factory=list)
    decimals: int = 0
    depth: int = 0  # how many networks this one is inside of
    cut: bool = False  # whether a cost has more decimals than the bound

    def state(self, i: int, name: bytes) -> int:
        values = self.values[i]
        return int(name) if values is None or name.isdigit() else values.index(name.decode("utf-8", "replace"))

    def variable(self, name: bytes) -> int:
        return int(name) if name.isdigit() else self.place[name.decode("utf-8", "replace")]

    def number(self, word: bytes) -> float:
        """A cost to be minimised."""
        cost = np.array([self.sign * float(word)])
        self.truncate(cost)
        return float(cost[0])

    def truncate(self, costs: Floats) -> None:
        """Drop the decimals that the bound does not have, in place."""
        unit = 10.0**self.decimals
        # What is whole but for round-off has no more decimals.
        with np.errstate(over="ignore", invalid="ignore"):
            whole = np.rint(costs * unit)
            other = np.isfinite(whole) & (np.abs(costs * unit - whole) > 1e-6) & (np.abs(whole) < 2**52)
        if other.any():
            costs[other] = np.trunc(costs[other] * unit) / unit
            self.cut = True


def read(path: Path, *, values: str | None = None) -> FactorGraph:
    """Read a CFN; costs are minimised or maximised as its bound says, and forbidden where no total can satisfy it."""
    # Tables that the file shares are shared. Costs keep as many decimals as the bound has, as toulbar2 does. Functions
    # without tables become constraints, and so do large functions with few tuples; an interval is a domain from 0 on.
    check_values(path, values, ("cost",), "costs")
    scanner = _RelaxedJson(path)
    scanner.open("start of the file")
    graph = _network(scanner)
    scanner.end()
    return graph


def _network(scanner: _RelaxedJson, depth: int = 0) -> FactorGraph:
    """A network, up to its closing bracket."""
    path, model = Path(scanner.path), _CfnModel(depth=depth)
    for part, content in (("problem", _problem), ("variables", _variables), ("functions", _functions)):
        if scanner.word(f"part {part!r}").decode("utf-8", "replace") != part:
            scanner.fail(f"part {part!r}", repr(part))
        scanner.open(f"part {part!r}")
        content(scanner, model)
    if not scanner.closes("end of the file"):
        scanner.take("end of the file")
        scanner.fail("end of the file", "a closing bracket")
    _parse_dense(scanner, model)
    table_of, tables = _shared(path, model)
    table_ptr = offsets([len(table) for table in tables])
    costs = tables[0].copy() if len(tables) == 1 else np.concatenate([np.zeros(0), *tables])
    del tables
    model.tables.clear()
    if model.cut:
        _log.info("%s: costs keep %d decimals, as many as the bound has", path, model.decimals)
    if model.repeated:
        _log.info("%s: several functions are called %r", path, model.repeated)
    # Forbid every cost with which the total must reach the bound, whatever the other functions cost.
    lowest = 0.0
    if len(table_of):
        least = np.minimum(np.minimum.reduceat(costs, table_ptr[:-1]), 0.0)
        lowest = float(least[table_of].sum())
        limit = model.bound - (lowest - least)
        costs[costs >= (limit[0] if len(limit) == 1 else np.repeat(limit, np.diff(table_ptr)))] = np.inf
    np.negative(costs, out=costs)
    costs += 0.0  # no "-0"
    lists = {int(table_of[a]): tuples for a, tuples in model.lists.items()}
    scope = np.array([i for scope in model.scopes for i in scope], dtype=np.int64)
    scope_ptr = offsets([len(scope) for scope in model.scopes])
    factors = Factors(scope_ptr, scope, table_of, table_ptr, costs, lists=lists)
    dialect = Dialect(
        np.array(model.card, dtype=np.int64), model.state, model.variable, model.number, model.bound - lowest
    )
    return build_with_functions(path, factors, _names(model), model.globals, dialect)


def _problem(scanner: _RelaxedJson, model: _CfnModel) -> None:
    bounded = False
    while not scanner.closes("part 'problem'"):
        key = scanner.word("part 'problem'")
        if key != b"mustbe":
            scanner.skip("part 'problem'")
            continue
        match = _BOUND.fullmatch(scanner.word("mustbe"))
        if match is None:
            scanner.fail("mustbe", "'<' or '>' and a bound")
        model.sign = 1.0 if match[1] == b"<" else -1.0
        model.bound = model.sign * float(match[2])
        plain = match[2].translate(None, b"eEinf") == match[2]
        model.decimals = len(match[2].partition(b".")[2]) if plain else MOST_DECIMALS
        bounded = True
    if not bounded:
        scanner.fail("part 'problem'", "'mustbe' with a bound", "its end")


def _variables(scanner: _RelaxedJson, model: _CfnModel) -> None:
    while not scanner.closes("part 'variables'"):
        name = scanner.word("name of a variable").decode("utf-8", "replace")
        if name in model.place:
            scanner.fail("name of a variable", "a name that no other variable has")
        model.place[name] = len(model.variables)
        model.variables.append(name)
        what, values = f"domain of variable {name!r}", None
        token = scanner.take(what)
        if token == OPEN:
            values = scanner.rest(what).decode("utf-8", "replace").split()
            if not values or len(set(values)) < len(values):
                scanner.fail(what, "at least one, each with another name", f"{len(values)} values")
        elif _WHOLE.fullmatch(token) is None or int(token) == 0:
            scanner.fail(what, "a number of values from 1 on or a list of them")
        model.values.append(values)
        model.card.append(len(values) if values else abs(int(token)))
    check_states(Path(scanner.path), np.array(model.card, dtype=np.int64))


def _functions(scanner: _RelaxedJson, model: _CfnModel) -> None:
    while not scanner.closes("part 'functions'"):
        a = len(model.scopes)
        what = f"function {a}"
        if scanner.peek() != OPEN:
            name = scanner.word("name of a function")
            if name in model.functions:
                model.repeated = name.decode("utf-8", "replace")
            model.functions[name] = a  # if it has a table
            what = f"function {name.decode('utf-8', 'replace')!r}"
        scanner.open(what)
        _function(scanner, model, what)


def _function(scanner: _RelaxedJson, model: _CfnModel, what: str) -> None:
    scope: list[int] | None = None
    default: float | None = None
    found = False
    while not scanner.closes(what):
        key = scanner.word(what)
        if key == b"scope" and scope is None:
            scanner.open(f"scope of {what}")
            scope = [_variable(scanner, model, token, what) for token in scanner.rest(f"scope of {what}").split()]
            model.scopes.append(scope)
        elif key == b"defaultcost" and scope is not None:
            numbers = parse_numbers(scanner.word(f"default of {what}"))
            if numbers is None or len(numbers) != 1:
                scanner.fail(f"default of {what}", "a number")
            default = float(_checked(scanner, model, numbers, what)[0])
        elif key == b"costs" and scope is not None and not found:
            found = True
            _costs(scanner, model, scope, default, what)
        elif key == b"type" and scope is not None and not found:
            found = True
            model.scopes.pop()
            _global(scanner, model, scope, what)
        else:
            scanner.fail(what, "'scope', then 'defaultcost' or 'costs', each once")
    if not found:
        scanner.fail(what, "'scope' and 'costs'", "its end")


def _global(scanner: _RelaxedJson, model: _CfnModel, scope: list[int], what: str) -> None:
    kind = scanner.word(what).decode("utf-8", "replace")
    if kind not in KEYWORDS:
        scanner.fail(what, f"a function with costs, or {like(kind)}", f"a global function of type {kind!r}")
    if scanner.word(what) != b"params":
        scanner.fail(what, "'params'")
    scanner.open(f"params of {what}")
    given: dict[str, Any] = {}
    if is_of_pairs(kind):
        given["params"] = scanner.rest(f"params of {what}").split()
    else:
        while not scanner.closes(f"params of {what}"):
            name = scanner.word(f"params of {what}").decode("utf-8", "replace")
            if name == "cfn":
                scanner.open(f"params of {what}")
                if model.depth == MOST_NESTED:
                    scanner.fail(f"params of {what}", f"at most {MOST_NESTED} networks inside each other")
                given["network"] = _network(scanner, model.depth + 1)
            elif scanner.peek() == OPEN:
                scanner.open(f"params of {what}")
                given[name] = _nested(scanner, f"params of {what}")
            else:
                given[name] = scanner.word(f"params of {what}")
    model.globals.append((what, GlobalFunction(kind, scope, given)))


def _nested(scanner: _RelaxedJson, what: str, depth: int = MOST_NESTED) -> list[Any]:
    """The words, and lists of the same, up to the closing bracket."""
    found: list[Any] = []
    while not scanner.closes(what):
        if scanner.peek() == OPEN:
            scanner.open(what)
            if depth == 0:
                scanner.fail(what, f"at most {MOST_NESTED} nested brackets")
            found.append(_nested(scanner, what, depth - 1))
        else:
            found.append(scanner.word(what))
    return found


def _variable(scanner: _RelaxedJson, model: _CfnModel, token: bytes, what: str) -> int:
    i = model.place.get(token.decode("utf-8", "replace"))
    if i is None and _WHOLE.fullmatch(token) is not None:
        i = int(token)
    if i is None or not 0 <= i < len(model.card):
        scanner.fail(f"scope of {what}", f"a variable, by name or from 0 to {len(model.card) - 1}", shown(token))
    return i


def _costs(scanner: _RelaxedJson, model: _CfnModel, scope: list[int], default: float | None, what: str) -> None:
    """Read a dense table, a default with tuples, or the name of a function that has a table."""
    a = len(model.tables)
    if scanner.peek() != OPEN:
        model.refers[a] = scanner.word(f"costs of {what}")
        model.tables.append(None)
        return
    scanner.open(f"costs of {what}")
    text = scanner.rest(f"costs of {what}")
    shape = [model.card[i] for i in scope]
    size = math.prod(map(float, shape))
    if default is not None:
        tuples, costs = _tuples(scanner, model, scope, text, what)
        if stays_list(size, len(costs), shape):
            model.lists[a] = tuples
            _charge(scanner, model, len(costs) + 1.0, what)
            model.tables.append(np.append(default, costs))
            return
        _charge(scanner, model, size, what)
        at = np.zeros(len(costs), dtype=np.int64)
        for j, states in enumerate(shape):
            at = at * states + tuples[:, j]
        table = np.full(int(size), default)
        table[at] = costs
        model.tables.append(table)
        return
    _charge(scanner, model, size, what)
    count = len(text.split())
    if count != size:
        scanner.fail(f"costs of {what}", f"{size:.0f} numbers", f"{count} words")
    model.dense.append(_Dense(a, count, text, what, scanner.last))
    model.tables.append(None)


def _charge(scanner: _RelaxedJson, model: _CfnModel, size: float, what: str) -> None:
    model.n_entries += size
    charge(scanner.path, 8.0 * COPIES * model.n_entries, TABLES, f"{what} has {size:.4g} entries")


def _parse_dense(scanner: _RelaxedJson, model: _CfnModel) -> None:
    """Parse the numbers of all dense tables together, which is many times faster than one by one."""
    numbers = parse_numbers(b" ".join([some.text for some in model.dense]))
    if numbers is None:
        for some in model.dense:
            if parse_numbers(some.text) is None:
                bad = next(word for word in some.text.split() if parse_numbers(word) is None)
                scanner.last = some.place
                scanner.fail(f"costs of {some.what}", "numbers", shown(bad))
        raise FormatError(f"{scanner.path}: cannot read the numbers of this file")
    at = 0
    for some in model.dense:
        model.tables[some.function] = numbers[at : at + some.size]
        at += some.size
    wrong = _wrong(model, numbers)
    if len(wrong):
        ends = np.cumsum([some.size for some in model.dense])
        some = model.dense[int(np.searchsorted(ends, wrong[0], side="right"))]
        scanner.last = some.place
        scanner.fail(f"costs of {some.what}", _EXPECTED, str(numbers[wrong[0]]))
    numbers *= model.sign
    model.truncate(numbers)
    numbers[np.isinf(numbers)] = np.inf


def _wrong(model: _CfnModel, numbers: Floats) -> Ints:
    """Positions of numbers that are not costs; ``inf`` forbids, also where costs are maximised."""
    return np.flatnonzero(np.isnan(numbers) | ((numbers == -np.inf) & (model.sign > 0)))


def _checked(scanner: _RelaxedJson, model: _CfnModel, numbers: Floats, what: str) -> Floats:
    """Costs to be minimised, infinite where forbidden."""
    if len(_wrong(model, numbers)):
        scanner.fail(f"costs of {what}", _EXPECTED, "nan or -inf")
    numbers = model.sign * numbers
    model.truncate(numbers)
    return np.where(np.isinf(numbers), np.inf, numbers)


def _tuples(scanner: _RelaxedJson, model: _CfnModel, scope: list[int], text: bytes, what: str) -> tuple[Ints, Floats]:
    """Tuples (n_tuples, arity) of states by name or index, with their costs; the last of repeated ones is used."""
    words, k = text.split(), len(scope)
    if len(words) % (k + 1):
        scanner.fail(f"costs of {what}", f"tuples of {k} values and a cost", f"{len(words)} words")
    costs = parse_numbers(b" ".join(words[k :: k + 1]))
    if costs is None:
        scanner.fail(f"costs of {what}", f"tuples of {k} values and a cost", "a cost that is not a number")
    tuples = np.zeros((len(costs), k), dtype=np.int64)
    for j, i in enumerate(scope):
        known = {value.encode(): state for state, value in enumerate(model.values[i] or ())}
        mine = words[j :: k + 1]
        states = [known[w] if w in known else int(w) if _WHOLE.fullmatch(w) else -1 for w in mine]
        for state, word in zip(states, mine, strict=True):
            if not 0 <= state < model.card[i]:
                scanner.fail(f"costs of {what}", f"a value of variable {model.variables[i]!r}", shown(word))
        tuples[:, j] = states
    return tuples, _checked(scanner, model, costs, what)


def _shared(path: Path, model: _CfnModel) -> tuple[Ints, list[Floats]]:
    """The table of every function, including those given by the name of another function."""
    tables = [table for table in model.tables if table is not None]
    own = np.cumsum([table is not None for table in model.tables]) - 1
    table_of = np.array(own, dtype=np.int64)
    for a, name in model.refers.items():
        b = model.functions.get(name, -1)
        if b < 0 or model.tables[b] is None:
            found = name.decode("utf-8", "replace")[:40]
            raise FormatError(f"{path}: function {a}: found costs {found!r}, expected a function with costs of its own")
        mine, other = ([model.card[i] for i in model.scopes[f]] for f in (a, b))
        if mine != other:
            raise FormatError(
                f"{path}: function {a}: found {mine} values, expected {other} as for function "
                f"{name.decode('utf-8', 'replace')!r}, whose costs it has"
            )
        table_of[a] = own[b]
    return table_of, tables


def _names(model: _CfnModel) -> Names:
    variables = tuple(model.variables)
    if all(values is None for values in model.values):
        return Names(variables)
    pairs = zip(model.values, model.card, strict=True)
    return Names(variables, tuple(tuple(map(str, range(r))) if v is None else tuple(v) for v, r in pairs))


# -- writing ----------------------------------------------------------------------------------------------------------


def _decimals(graph: FactorGraph) -> tuple[int, bool, float]:
    """Decimals to write, whether they are exact, and the sum of the largest magnitudes of costs."""
    graph.check_sums()
    total = abs(graph.constant) if np.isfinite(graph.constant) else 0.0
    for theta, ptr, of in (
        (graph.theta_v, graph.var_ptr, np.arange(graph.n_vars)),
        (graph.theta_t, graph.table_ptr, graph.table_of),
    ):
        if len(of):
            size = np.abs(np.where(np.isinf(theta), 0.0, theta))
            total += float(np.maximum.reduceat(size, ptr[:-1])[of].sum())
    decimals, exact = choose_decimals([np.array([graph.constant]), graph.theta_v, graph.theta_t], total)
    return decimals, exact, total


def losses(graph: FactorGraph) -> list[str]:
    decimals, exact, _ = _decimals(graph)
    return [*names_replaced(graph, _NAMES), *rounding(decimals, exact)]


def write(graph: FactorGraph, path: Path, *, values: str | None = None) -> None:
    """Write a CFN to be minimised, with as many decimals as necessary, up to 15 digits in all."""
    check_values(path, values, ("cost",), "costs")
    graph, functions = written(path, graph)
    decimals, _, total = _decimals(graph)
    if decimals < 0:
        raise FormatError(f"{path}: the costs add up to {total:.4g}, expected at most 1e{DIGITS}, write .wcsp instead")
    # What a violation costs cannot be made up for by costs below 0.
    bound, violation = (f"{limit:.{decimals}f}" for limit in (total + 1.0, 2.0 * total + 1.0))
    write_text(path, _text(graph, f" %.{decimals}f", (bound, violation), functions))


def _text(graph: FactorGraph, number: str, limits: tuple[str, str], functions: list[WrittenFunction]) -> Iterator[str]:
    names = fitting_names(graph, _NAMES)
    yield f'{{\n problem: {{name: mapmrf, mustbe: "<{limits[0]}"}},\n variables: {{\n'
    for i, name in enumerate(names.variables):
        states = names.states[i] if names.states else ()
        yield f"  {name}: [{' '.join(states)}]\n" if states else f"  {name}: {graph.card[i]}\n"
    yield " },\n functions: {\n"
    factors = factors_to_write(graph, (graph.constant, graph.theta_v, graph.theta_t), 0.0, alone=False)
    # A shared table is written with the last factor that uses it, to which the others refer.
    last = dict(zip(factors.table_of.tolist(), range(len(factors.table_of)), strict=True))
    for a, t in enumerate(factors.table_of.tolist()):
        scope = " ".join([names.variables[i] for i in factors.scope_of(a).tolist()])
        costs = f"f{last[t]}"
        if last[t] == a:  # as decimals, inf where forbidden
            entries = 0.0 - factors.theta_t[factors.table_ptr[t] : factors.table_ptr[t + 1]]
            costs = f"[{((number * len(entries)) % tuple(entries.tolist())).strip()}]"
        yield f"  f{a}: {{scope: [{scope}], costs: {costs}}}\n"
    for c, function in enumerate(functions):
        yield f"  g{c}: {_function_text(function, names.variables, limits[1])}\n"
    yield " }\n}\n"


def _function_text(function: WrittenFunction, names: tuple[str, ...], violation: str) -> str:
    scope = " ".join(names[i] for i in function.scope)
    if function.keyword == "salldiff":
        return f"{{scope: [{scope}], type: salldiff, params: {{metric: var, cost: {violation}}}}}"
    triples = (
        f"[{names[i]} {k} {w}]" for i, mine in zip(function.scope, function.weights, strict=True) for k, w in mine
    )
    params = f"capacity: {function.capacity}, weightedvalues: [{' '.join(triples)}]"
    return f"{{scope: [{scope}], type: knapsackv, params: {{{params}}}}}"
