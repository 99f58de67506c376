"""Evidence tables: one model, many rows of observations, a result for each."""

from __future__ import annotations

import csv
import difflib
import io
import math
import numbers
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from mapmrf.batch.many import BatchOptions, Outcome, stream
from mapmrf.errors import FormatError, MapMRFError, UnknownName
from mapmrf.formats.files import AnyPath, plain_name, read_bytes
from mapmrf.model.graph import FactorGraph
from mapmrf.model.names import find_state, index_of
from mapmrf.run.method import Method
from mapmrf.run.registry import DEFAULT_METHOD

Row = dict[int | str, int | str]
Table = AnyPath | Sequence[Mapping[Any, Any]] | Mapping[Any, Sequence[Any]]
Cells = Iterable[tuple[Any, Any]]

_TABS = (".tsv", ".tab")


def solve_rows(
    graph: FactorGraph,
    table: Table,
    method: str | Method = DEFAULT_METHOD,
    *,
    jobs: int = 1,
    backend: str | None = None,
    progress: bool = False,
    seeds: Sequence[int] | None = None,
    **options: Any,
) -> list[Outcome]:
    """Solve one model for every row of a table of observations; results in the order of the rows.

    A row that cannot be parsed, or whose model cannot be solved, yields an error in place of a Result. The model is in
    memory once; it is conditioned on each row in turn.

    Parameters
    ----------
    table
        A CSV or TSV file with a header line, a list of dicts (one per row), or a mapping column -> values such as a
        data frame. Columns are variables by name or index, values are states by name or index; text that could be
        either is read as a name, and True and False are the states that are called so. Empty text, None and nan mean
        that the variable is not observed.
    method, jobs, backend, progress, seeds, **options
        As for `solve_many`, with one seed per row.

    Raises
    ------
    FormatError
        If the file cannot be read.
    UnknownName
        If a column is not a variable.

    Examples
    --------
    >>> import mapmrf
    >>> graph = mapmrf.FactorGraph.from_pairwise([[0, 1], [0, 0]], [[0, 1]], [[1, 0], [0, 1]])
    >>> [result.labels.tolist() for result in solve_rows(graph, [{0: 0}, {}, {0: 1, 1: 0}])]
    [[0, 0], [1, 1], [1, 0]]
    """
    rows = read_rows(table, graph)
    shared: dict[str, Any] = {"seeds": seeds, **options}
    return list(stream_rows(graph, rows, method, jobs=jobs, backend=backend, progress=progress, **shared))


def stream_rows(
    graph: FactorGraph,
    rows: Sequence[Row | MapMRFError],
    method: str | Method = DEFAULT_METHOD,
    *,
    jobs: int = 1,
    backend: str | None = None,
    progress: bool = False,
    seeds: Sequence[int] | None = None,
    **options: Any,
) -> Iterator[Outcome]:
    """Like `solve_rows` on the output of `read_rows`, but yield each result as soon as it and all before it are ready.

    Examples
    --------
    >>> import mapmrf
    >>> graph = mapmrf.FactorGraph.from_pairwise([[0, 1], [0, 0]], [[0, 1]], [[1, 0], [0, 1]])
    >>> for result in stream_rows(graph, read_rows({0: [0, 1]}, graph)):
    ...     print(result.labels)
    [0 0]
    [1 1]
    """
    pairs = ((graph, row if isinstance(row, MapMRFError) else row or None) for row in rows)
    tasks = BatchOptions.parse(method, seeds, options).tasks(pairs, len(rows))
    return stream(tasks, len(rows), jobs=jobs, backend=backend, progress=progress)


def read_rows(table: Table, graph: FactorGraph) -> list[Row | MapMRFError]:
    """Read the observations of every row, variable -> state; a row that cannot be parsed yields its error.

    Examples
    --------
    >>> import mapmrf
    >>> names = mapmrf.Names(("rain", "grass"), (("no", "yes"), ("dry", "wet")))
    >>> graph = mapmrf.FactorGraph.from_tables([2, 2], [], [], names=names)
    >>> read_rows({"grass": ["wet", "", "dry"], 0: [1, None, "yes"]}, graph)
    [{1: 1, 0: 1}, {}, {1: 0, 0: 1}]
    """
    if isinstance(table, str | os.PathLike):
        return _file_rows(table, graph)
    parser = _RowParser(graph, "evidence")
    return [parser.row(f"row {number}", cells) for number, cells in enumerate(_cells(table, parser))]


def _cells(table: Any, parser: _RowParser) -> Iterator[Cells]:
    """Pairs of column and value, row by row, from a list of dicts or a mapping of columns."""
    if not hasattr(table, "keys"):
        for row in table:
            yield zip(parser.header(row), row.values(), strict=True)
        return
    keys = list(table.keys())
    header, columns = parser.header(keys), [list(table[key]) for key in keys]
    lengths = {len(values) for values in columns}
    if len(lengths) > 1:
        raise FormatError(f"evidence: columns of {min(lengths)} to {max(lengths)} values, expected equal lengths")
    for values in zip(*columns, strict=True):
        yield zip(header, values, strict=True)


def _file_rows(path: AnyPath, graph: FactorGraph) -> list[Row | MapMRFError]:
    """The rows of a CSV or TSV file; empty lines are skipped."""
    parser = _RowParser(graph, os.fspath(path))
    try:
        text = read_bytes(path).decode("utf-8-sig")
    except UnicodeDecodeError:
        raise FormatError(f"{path}: not UTF-8 text, expected an evidence table") from None
    lines = csv.reader(io.StringIO(text, newline=""), delimiter=_delimiter(path, text))
    try:
        header = parser.header(column.strip() for column in next(lines, []))
        if not header:
            raise FormatError(f"{path}: found no columns, expected a header line of variables")
        return [_file_row(parser, header, lines.line_num, cells) for cells in lines if cells]
    except csv.Error as error:
        raise FormatError(f"{path}: line {lines.line_num}: {error}") from None


def _file_row(parser: _RowParser, header: list[int], line: int, cells: list[str]) -> Row | MapMRFError:
    if len(cells) != len(header):
        return FormatError(f"{parser.source}: line {line}: found {len(cells)} cells, expected {len(header)}")
    return parser.row(f"line {line}", zip(header, (cell.strip() for cell in cells), strict=True))


def _delimiter(path: AnyPath, text: str) -> str:
    """A tab if the suffix or the first line suggests it, otherwise the comma or semicolon found in that line."""
    first = text.partition("\n")[0]
    if plain_name(path).endswith(_TABS) or ("\t" in first and "," not in first):
        return "\t"
    return ";" if ";" in first and "," not in first else ","


class _RowParser:
    """Converts columns and cells to indices of variables and states."""

    def __init__(self, graph: FactorGraph, source: str) -> None:
        self.graph, self.source = graph, source

    def header(self, columns: Iterable[Any]) -> list[int]:
        found: dict[int, Any] = {}
        for column in columns:
            i = self.variable(column)
            if i in found:
                raise FormatError(f"{self.source}: columns {found[i]!r} and {column!r} are the same variable")
            found[i] = column
        return list(found)

    def variable(self, column: Any) -> int:
        names = self.graph.names.place if self.graph.names is not None else {}
        if isinstance(column, str) and column in names:
            return names[column]
        index = _integer(column)
        if index is not None and 0 <= index < self.graph.n_vars:
            return index
        close = difflib.get_close_matches(str(column), list(names), n=1)
        hint = f", did you mean {close[0]!r}?" if close else ""
        known = "a name or " if names else ""
        raise UnknownName(
            f"{self.source}: column {column!r} is not a variable, expected {known}0 to {self.graph.n_vars - 1}{hint}"
        )

    def row(self, place: str, cells: Cells) -> Row | MapMRFError:
        """The observations of a row, or its error."""
        row: Row = {}
        try:
            for i, value in cells:
                state = self.state(place, i, value)
                if state is not None:
                    row[i] = state
        except MapMRFError as error:
            return error
        return row

    def state(self, place: str, i: int, value: Any) -> int | None:
        """Index of the state named by a cell, None if it is empty."""
        if _missing(value):
            return None
        names = self.graph.names
        states = names.states[i] if names is not None and names.states else ()
        named = find_state(states, value) if isinstance(value, str | bool | np.bool_) else None
        if named is not None:
            return named
        index = _integer(value)
        if index is not None and 0 <= index < self.graph.card[i]:
            return index
        name = names.variables[i] if names is not None else str(i)
        some = f" or one of {', '.join(states[:8])}{' ...' if len(states) > 8 else ''}" if states else ""
        raise FormatError(
            f"{self.source}: {place}: found state {value!r} of variable {name}, "
            f"expected 0 to {self.graph.card[i] - 1}{some}"
        )


def _missing(value: Any) -> bool:
    """Return whether a cell means that nothing was observed; data frames have a special object for that."""
    if isinstance(value, float):
        return math.isnan(value)
    return value is None or type(value).__name__ == "NAType" or (isinstance(value, str) and not value)


def _integer(value: Any) -> int | None:
    """Convert to an integer, also from 1.0 as in tables with gaps; a bool is no number."""
    if isinstance(value, numbers.Integral | bool | np.bool_):
        return index_of(value)
    try:
        number = float(value)
    except (TypeError, ValueError):
        return None
    return int(number) if number.is_integer() else None
