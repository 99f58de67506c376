"""The Bayesian Interchange Format, ``.bif``: networks with the names of their variables and states."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import numpy as np

from mapmrf.arrays import Floats
from mapmrf.errors import FormatError
from mapmrf.formats.bayes import ConditionalTable, network_graph, table_size, write_network
from mapmrf.formats.files import Allowed, Scanner, fitting_names, names_replaced, read_bytes, shown
from mapmrf.formats.tables import check_values
from mapmrf.model.graph import FactorGraph, Names

SUFFIXES = (".bif",)

_COMMENT = re.compile(r'"[^"\n]*"|//[^\n]*|/\*.*?(?:\*/|\Z)', re.DOTALL)
_TOKEN = re.compile(r'"([^"\n]*)"|([{}()\[\];])|([^\s{}()\[\];|,"]+)|(")')
_STOP = re.compile(r'[{}()\[\];"]')
_BLANKS = str.maketrans(",|", "  ")
_PROPERTY = re.compile(r'(?>"[^"\n]*"|[^;])*+;')
_PLAIN = re.compile(r'[^\s{}()\[\];|,"/]+')
_NAMES = Allowed(re.compile(r'[^"\s](?:[^"]*[^"\s])?'), states_required=True)


def sniff(data: bytes) -> bool:
    return re.match(rb"\s*network\s+[^\s{]+\s*\{", data[:400]) is not None


# -- reading ----------------------------------------------------------------------------------------------------------


class _BifScanner(Scanner[str]):
    """Commas and bars count as blanks; a token is a word, or one of the special characters."""

    def __init__(self, path: Path) -> None:
        data = read_bytes(path)
        try:
            text = data.decode("utf-8-sig")
        except UnicodeDecodeError:
            text = data.decode("latin-1")
        # Comments become as many blanks, so that positions do not change; quoted names are kept.
        text = _COMMENT.sub(lambda m: m[0] if m[0][0] == '"' else re.sub(r"[^\n]", " ", m[0]), text)
        super().__init__(path, text, _TOKEN, "\n")

    def take(self, what: str) -> tuple[str, bool]:
        """Consume the next token; return it, and whether it is one of the special characters."""
        match = _TOKEN.search(self.text, self.at)
        if match is None:
            self.fail_at_end(what)
        self.last, self.at = match.start(), match.end()
        if match[4]:
            self.fail(what, "a quote that is closed in its line")
        return (match[1], False) if match[1] is not None else (match[2] or match[3], match[2] is not None)

    def more(self) -> bool:
        return _TOKEN.search(self.text, self.at) is not None

    def word(self, what: str) -> str:
        token, special = self.take(what)
        if special:
            self.fail(what, "a word")
        return token

    def expect(self, character: str, what: str) -> None:
        if self.take(what) != (character, True):
            self.fail(what, repr(character))

    def words(self, end: str, what: str) -> list[str]:
        """All words up to a special character, which is consumed."""
        stop = _STOP.search(self.text, self.at)
        if stop is not None and stop[0] == end:  # nearly always: nothing is quoted
            plain = self.text[self.at : stop.start()].translate(_BLANKS).split()
            self.last, self.at = stop.start(), stop.end()
            return plain
        found: list[str] = []
        while True:
            token, special = self.take(what)
            if special:
                if token != end:
                    self.fail(what, f"a word or {end!r}")
                return found
            found.append(token)

    def numbers(self, count: int, what: str) -> list[float]:
        """Read `count` probabilities, up to a semicolon."""
        words = self.words(";", what)
        if len(words) != count:
            self.fail(what, f"{count} numbers", f"{len(words)} words")
        numbers = []
        for word in words:
            try:
                number = float(word)
            except ValueError:
                number = math.nan
            if not 0.0 <= number < math.inf or "_" in word:
                self.fail(what, "finite numbers of at least 0", shown(word.encode()))
            numbers.append(number)
        return numbers

    def skip_property(self) -> None:
        match = _PROPERTY.match(self.text, self.at)
        if match is None:
            self.fail("property", "a semicolon at its end")
        self.at = match.end()


@dataclass
class _Network:
    states: dict[str, list[str]] = field(default_factory=dict)
    place: dict[str, int] = field(default_factory=dict)
    tables: dict[str, ConditionalTable] = field(default_factory=dict)
    n_entries: int = 0


def read(path: Path, *, values: str | None = None) -> FactorGraph:
    """Read a Bayesian network; a probability of 0 forbids the configuration."""
    # Properties are skipped. Rows that do not sum to 1 are kept as they are, and logged.
    check_values(path, values, ("potential",), "probabilities")
    scanner = _BifScanner(path)
    network = _Network()
    if not scanner.more():
        raise FormatError(f"{path}: the file is empty, expected 'network'")
    while scanner.more():
        what = "start of a block"
        block = scanner.word(what)
        if block == "network":
            scanner.word("name of the network")
            scanner.expect("{", "network")
            while (token := scanner.take("network")) != ("}", True):
                if token != ("property", False):
                    scanner.fail("network", "'property' or '}'")
                scanner.skip_property()
        elif block == "variable":
            _variable(scanner, network)
        elif block == "probability":
            _probability(scanner, network)
        else:
            scanner.fail(what, "'network', 'variable' or 'probability'")
    names = Names(tuple(network.states), tuple(map(tuple, network.states.values())))
    tables = list(network.tables.values())
    network.tables.clear()
    return network_graph(path, tables, names)


def _variable(scanner: _BifScanner, network: _Network) -> None:
    name = scanner.word("name of a variable")
    what = f"variable {name!r}"
    if name in network.states:
        scanner.fail(what, "a name that no other variable has")
    scanner.expect("{", what)
    while (token := scanner.take(what)) != ("}", True):
        if token == ("property", False):
            scanner.skip_property()
        elif token == ("type", False) and name not in network.states:
            network.place[name] = len(network.place)
            network.states[name] = _type(scanner, what)
        else:
            scanner.fail(what, "'type', 'property' or '}'")
    if name not in network.states:
        scanner.fail(what, "'type'", "its end")


def _type(scanner: _BifScanner, what: str) -> list[str]:
    if scanner.word(f"type of {what}") != "discrete":
        scanner.fail(f"type of {what}", "'discrete'")
    scanner.expect("[", f"type of {what}")
    count = scanner.word(f"number of states of {what}")
    if not (count.isascii() and count.isdigit() and 0 < len(count) < 10 and int(count) > 0):
        scanner.fail(f"number of states of {what}", "a whole number of at least 1")
    scanner.expect("]", f"type of {what}")
    scanner.expect("{", f"type of {what}")
    states = scanner.words("}", f"states of {what}")
    if len(states) != int(count) or len(set(states)) != len(states):
        scanner.fail(f"states of {what}", f"{int(count)} different ones", f"{len(set(states))} different ones")
    scanner.expect(";", f"type of {what}")
    return states


def _probability(scanner: _BifScanner, network: _Network) -> None:
    """Read a table, given as all entries, row by row, or with a default."""
    scanner.expect("(", "probability")
    scope = []
    for name in scanner.words(")", "probability"):
        if name not in network.states or name in scope:
            scanner.fail("probability", "variables of this network, each once", shown(name.encode()))
        scope.append(name)
    if not scope or scope[0] in network.tables:
        scanner.fail("probability", "a variable that has none yet", f"those of {' '.join(scope)[:40]!r}")
    child, *parents = scope
    what = f"probability of {child!r}"
    shape = [len(network.states[name]) for name in (*parents, child)]
    size = table_size(Path(scanner.path), shape, what, network.n_entries)
    network.n_entries += size
    rows = np.full((size // shape[-1], shape[-1]), np.nan)
    scanner.expect("{", what)
    _rows(scanner, rows, [network.states[name] for name in parents], what)
    at = network.place
    network.tables[child] = ConditionalTable(at[child], tuple(at[name] for name in parents), rows.reshape(shape))


def _rows(scanner: _BifScanner, rows: Floats, parents: list[list[str]], what: str) -> None:
    """Fill the rows of a table, one per tuple of the parents' states."""
    places = [{state: k for k, state in enumerate(states)} for states in parents]
    default: list[float] | None = None
    while (token := scanner.take(what)) != ("}", True):
        if token == ("property", False):
            scanner.skip_property()
        elif token == ("table", False) and np.isnan(rows).all():
            # The child runs slowest here.
            rows[:] = np.array(scanner.numbers(rows.size, what)).reshape(rows.shape[1], -1).T
        elif token == ("default", False) and default is None:
            default = scanner.numbers(rows.shape[1], what)
        elif token == ("(", True):
            # Index of the row for a tuple of the parents' states.
            words = scanner.words(")", what)
            if len(words) != len(places):
                scanner.fail(what, f"a state for each of {len(places)} parents", f"a row for {len(words)} states")
            row = 0
            for word, known in zip(words, places, strict=True):
                if word not in known:
                    scanner.fail(what, f"one of the states {' '.join(known)[:60]}", shown(word.encode()))
                row = row * len(known) + known[word]
            if not math.isnan(rows[row, 0]):
                scanner.fail(what, "every row once", f"row {row} again")
            rows[row] = scanner.numbers(rows.shape[1], what)
        else:
            scanner.fail(what, "'table', 'default', 'property' or '(', and every table and default once")
    missing = np.isnan(rows[:, 0])
    if not missing.any():
        return
    if default is None:
        scanner.fail(what, f"{len(rows)} rows or a default", f"no row {missing.argmax()}")
    for k, probability in enumerate(default):
        rows[missing, k] = probability


# -- writing ----------------------------------------------------------------------------------------------------------


losses = partial(names_replaced, allowed=_NAMES)


def write(graph: FactorGraph, path: Path, *, values: str | None = None) -> None:
    write_network(path, graph, values, _text)


def _text(graph: FactorGraph, tables: list[ConditionalTable]) -> Iterator[str]:
    """Yield the file; tables with parents are written row by row, which all programs read alike."""
    names = fitting_names(graph, _NAMES)
    variables = [_quoted(name) for name in names.variables]
    states = [[_quoted(name) for name in some] for some in names.states or ()]
    yield "network mapmrf {\n}\n"
    for name, some in zip(variables, states, strict=True):
        yield f"variable {name} {{\n  type discrete [ {len(some)} ] {{ {', '.join(some)} }};\n}}\n"
    for table in tables:
        parents = ", ".join(variables[i] for i in table.parents)
        given = f" | {parents}" if parents else ""
        yield f"probability ( {variables[table.child]}{given} ) {{\n"
        rows = table.probability.reshape(-1, int(graph.card[table.child]))
        for at, row in zip(np.ndindex(*table.probability.shape[:-1]), rows, strict=True):
            of = ", ".join(states[i][k] for i, k in zip(table.parents, at, strict=True))
            start = f"({of})" if parents else "table"
            yield f"  {start} {', '.join([f'{p:.17g}' for p in row.tolist()])};\n"
        yield "}\n"


def _quoted(name: str) -> str:
    return name if _PLAIN.fullmatch(name) else f'"{name}"'
