"""The cells and columns of a table, and splitting of wide tables."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any

from mapmrf.plots.display import needed


@dataclass(frozen=True)
class Cell:
    """The text of a cell, the number to sort by, and its rank if it has one."""

    text: str = ""
    value: float | None = None
    best: bool = False
    rank: int | None = None

    @property
    def shown(self) -> str:
        """The text, with the rank in parentheses."""
        return self.text if self.rank is None else f"{self.text} ({self.rank})"

    @property
    def is_figure(self) -> bool:
        """Whether the text is a number, rather than something sorted by one, such as M1."""
        return self.value is not None and self.text[:1] in tuple("+-.0123456789in")


@dataclass(frozen=True)
class Column:
    """A heading: its name, its run, and whether it is repeated in every piece of a split table."""

    name: str
    of: str = ""
    key: bool = False

    @property
    def full(self) -> str:
        """A name that is unique in the table.

        >>> Column("paper", "lslp").full, Column("ours", "lslp").full
        ('lslp paper', 'lslp')
        """
        return self.of if self.name == "ours" and self.of else f"{self.of} {self.name}".strip()


@dataclass(frozen=True)
class Table:
    """A table, ready to be written in any format; `of` is its set, empty for all.

    Printed, it is text in aligned columns; a notebook shows it as a table.

    Examples
    --------
    >>> table = Table("speed", "Seconds", [Column("run", key=True), Column("s")], [[Cell("icm"), number(0.5, 2)]])
    >>> print(table)
    Seconds
    <BLANKLINE>
    run     s
    ---  ----
    icm  0.50
    """

    name: str
    title: str
    columns: Sequence[Column]
    rows: Sequence[Sequence[Cell]]
    note: str = ""
    summary: Sequence[Cell] | None = None
    of: str = ""

    @property
    def lines(self) -> list[Sequence[Cell]]:
        """The rows, and the summary below them."""
        return [*self.rows, *([self.summary] if self.summary is not None else [])]

    @property
    def grouped(self) -> bool:
        """Whether several columns belong to one run, so that the head has two lines."""
        return any(column.of for column in self.columns)

    def __str__(self) -> str:
        from mapmrf.bench.forms import to_text

        return to_text(self)

    def _repr_html_(self) -> str:
        """HTML for notebooks."""
        from mapmrf.bench.page_tables import table_html

        return table_html(self)

    def to_pandas(self) -> Any:
        """The table as a `pandas.DataFrame`: figures as numbers, without the ranks and the row below.

        Examples
        --------
        >>> table = Table("speed", "Seconds", [Column("run", key=True), Column("s")], [[Cell("icm"), number(0.5, 2)]])
        >>> float(table.to_pandas()["s"].sum())
        0.5
        """
        pandas = needed("pandas")
        return pandas.DataFrame(
            [[cell.value if cell.is_figure else cell.text for cell in row] for row in self.rows],
            columns=[column.full for column in self.columns],
        )

    def numeric(self) -> list[bool]:
        """Which columns hold figures."""
        return [any(line[k].is_figure for line in self.lines) for k in range(len(self.columns))]

    def only(self, places: Sequence[int]) -> Table:
        """Some of the columns."""
        pick: Callable[[Sequence[Any]], list[Any]] = lambda items: [items[k] for k in places]  # noqa: E731
        below = None if self.summary is None else pick(self.summary)
        return replace(self, columns=pick(self.columns), rows=[pick(row) for row in self.rows], summary=below)


def split(table: Table, width: float, measure: Callable[[Cell], float], gap: float) -> list[Table]:
    """Split a table into pieces of at most `width`; key columns are repeated, columns of one run stay together.

    Parameters
    ----------
    table
        The table.
    width
        Width of a piece, in the units of `measure`. A piece with a single run may be wider.
    measure
        Width of a cell.
    gap
        Space between two columns.
    """
    sizes = [gap + max(measure(cell) for cell in _down(table, k)) for k in range(len(table.columns))]
    keys = [k for k, column in enumerate(table.columns) if column.key]
    others = (k for k, column in enumerate(table.columns) if not column.key)
    blocks = [list(some) for _, some in groupby(others, key=lambda k: table.columns[k].of or k)]
    pieces: list[list[int]] = []
    room = 0.0
    for block in blocks:
        needed = sum(sizes[k] for k in block)
        if not pieces or needed > room:
            pieces.append([*keys])
            room = width + gap - sum(sizes[k] for k in keys)
        pieces[-1] += block
        room -= needed
    if len(pieces) < 2:
        return [table]
    named = f"{table.title} ({{}} of {len(pieces)})"
    return [replace(table.only(piece), title=named.format(n)) for n, piece in enumerate(pieces, start=1)]


def _down(table: Table, k: int) -> list[Cell]:
    """A column, including its heading."""
    return [Cell(table.columns[k].name), *(line[k] for line in table.lines)]


def number(x: Any, digits: int, *, sign: bool = False) -> Cell:
    """A number as a cell; empty for None.

    >>> number(1.25, 1, sign=True).text, number(-0.001, 2, sign=True).text, number(None, 2).text
    ('+1.2', '0.00', '')
    """
    if x is None:
        return Cell()
    value = float(x)
    if not math.isfinite(value):
        return Cell(str(value), value)
    rounded = round(value, digits) + 0.0  # no negative zero
    return Cell(f"{rounded:{'+' if sign and rounded else ''}.{digits}f}", value)


def count(n: int) -> Cell:
    """An integer as a cell."""
    return Cell(str(n), float(n))
