"""Write tables and pages by suffix: a page, one file of tables, or CSV with one file per table."""

from __future__ import annotations

import os
from collections.abc import Sequence
from difflib import get_close_matches
from fnmatch import fnmatchcase
from pathlib import Path

from mapmrf.bench.cells import Table
from mapmrf.bench.forms import SUFFIXES, to_csv, write_tables
from mapmrf.errors import OptionError
from mapmrf.formats.files import write_bytes

PAGES = (".html", ".htm")
NAMED = 8
"""Number of tables listed in an error."""


def is_folder(output: str) -> bool:
    """Return whether a name means a folder: it is one, or ends in a slash."""
    return output.endswith(("/", os.sep)) or os.path.isdir(output)


def check_suffix(output: str) -> None:
    """Reject a name that does not determine a format.

    Raises
    ------
    OptionError
        If it is neither a folder nor has a known suffix.
    """
    if not is_folder(output) and not output.endswith((*PAGES, *SUFFIXES.values())):
        known = ", ".join(SUFFIXES.values())
        raise OptionError(f"{output}: expected a name that ends in .html, {known}, or a folder for CSV")


def choose(made: Sequence[Table], wanted: Sequence[str] | None) -> list[Table]:
    """Select tables by name, with wildcards ``*`` and ``?``; all for None.

    Raises
    ------
    OptionError
        If no table matches a name.
    """
    names = [table.name for table in made]
    for pattern in wanted or []:
        if not any(fnmatchcase(name, pattern) for name in names):
            near = get_close_matches(pattern, names) or [*names[:NAMED], "..."]
            raise OptionError(f"tables: found {pattern!r}, expected one of {len(names)} such as {', '.join(near)}")
    return [table for table in made if not wanted or any(fnmatchcase(table.name, pattern) for pattern in wanted)]


def table_paths(made: Sequence[Table], output: str) -> list[str]:
    """The files that tables are written to: one, or for CSV one per table."""
    if is_folder(output):
        return [str(Path(output) / f"{table.name}.csv") for table in made]
    if len(made) == 1 or not output.endswith(SUFFIXES["csv"]):
        return [output]
    return [f"{output.removesuffix('.csv')}-{table.name}.csv" for table in made]


def write_table_files(made: Sequence[Table], output: str) -> list[str]:
    """Write tables in the format given by the name; return the file names."""
    check_suffix(output)
    paths = table_paths(made, output)
    if is_folder(output):
        Path(output).mkdir(parents=True, exist_ok=True)
    if is_folder(output) or output.endswith(SUFFIXES["csv"]):
        for path, table in zip(paths, made, strict=True):
            write_bytes(path, to_csv(table).encode())
    else:
        form = next(form for form, suffix in SUFFIXES.items() if output.endswith(suffix))
        write_bytes(output, (write_tables(made, form) + "\n").encode())
    return paths
