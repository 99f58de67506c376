"""UAI files that are larger than memory: cut into parts without ever holding their tables.

The numbers of the text go to a temporary file, from which each part reads the tables that it needs. Only the
cardinalities, the scopes and the offsets of the tables are in memory.
"""

from __future__ import annotations

import gzip
import os
import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import IO, NamedTuple

import numpy as np

from mapmrf.arrays import Floats, Ints, offsets, ranges, segment_max, short
from mapmrf.distributed.cutting import Cut, check_parts, metis, place_part, slabs
from mapmrf.distributed.parts import ModelCounts, Part, PartFolder, write_manifest, write_part
from mapmrf.errors import FormatError, GraphError
from mapmrf.formats.tables import expected, first_bad, first_equal, to_log
from mapmrf.model.graph import FactorGraph

BLOCK = 1 << 24  # bytes of text read at a time
AHEAD = 1 << 16  # scopes processed together


class FileLayout(NamedTuple):
    """A UAI file: its numbers and their layout."""

    # `start` and `size` are the offsets and lengths of the tables in `numbers`; `of` is the index of a factor among
    # those of two or more variables.

    numbers: Floats
    card: Ints
    scope_ptr: Ints
    scope: Ints
    start: Ints
    size: Ints
    of: Ints


def stream_partition(
    path: str | os.PathLike[str], folder: str | os.PathLike[str], parts: int, cut: Cut = "slabs"
) -> PartFolder:
    """Cut a ``.uai`` or ``.LG`` file, compressed by gzip or not, into parts; its tables are never all in memory.

    Parameters
    ----------
    path
        The file. Comments and Potts factors of size -1 are not supported.
    folder, parts, cut
        As for `partition`; ``"auto"`` is ``"slabs"``.

    Examples
    --------
    >>> import pathlib, mapmrf
    >>> graph = mapmrf.datasets.grid(6, 6, seed=1)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = pathlib.Path(folder, "model.uai")
    ...     mapmrf.write(graph, path)
    ...     _ = stream_partition(path, folder, 3)
    ...     result = mapmrf.distributed.solve(folder, max_iterations=50)
    >>> abs(graph.value(result.gather()) - result.value) < 1e-9
    True
    """
    source, place = Path(path), Path(folder)
    place.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=place) as room:
        layout = _read(source, Path(room, "numbers"))
        n_vars = len(layout.card)
        check_parts(parts, n_vars)
        owner = metis(_skeleton(layout), parts) if cut == "metis" and parts > 1 else slabs(n_vars, parts)
        values = "log" if source.name.lower().removesuffix(".gz").endswith(".lg") else "potential"
        checksums = [write_part(place, _part(layout, owner, number, parts, values, source)) for number in range(parts)]
        n_factors = int(np.count_nonzero(np.diff(layout.scope_ptr) >= 2))
        del layout
    return write_manifest(place, ModelCounts(n_vars, n_factors, parts), checksums)


# -- reading ----------------------------------------------------------------------------------------------------------


def _blocks(file: IO[bytes]) -> Iterator[bytes]:
    """Text in pieces that end between two tokens."""
    rest = b""
    while data := file.read(BLOCK):
        data = rest + data
        cut = max(data.rfind(b" "), data.rfind(b"\n"), data.rfind(b"\t"))
        if cut < 0:
            rest = data
            continue
        yield data[:cut]
        rest = data[cut:]
    yield rest


def _numbers(source: Path, spool: Path) -> Floats:
    """Write the numbers of a text to a binary file and map it into memory."""
    first = True
    try:
        with gzip.open(source) if source.suffix == ".gz" else source.open("rb") as file, spool.open("wb") as out:
            for text in _blocks(file):  # type: ignore[arg-type]
                if first:
                    word, _, text = text.lstrip().partition(b"\n") if b"\n" in text else (text, b"", b"")
                    head = word.split()
                    if not head or head[0].upper() not in (b"MARKOV", b"BAYES"):
                        raise FormatError(f"{source}: expected MARKOV or BAYES at the start")
                    text, first = b" ".join(head[1:]) + b" " + text, False
                _parse(source, text).tofile(out)
    except (OSError, EOFError) as error:
        reason = getattr(error, "strerror", None) or error
        raise FormatError(f"{source}: cannot read: {reason}") from None
    return np.memmap(spool, np.float64, "r") if spool.stat().st_size else np.zeros(0)


def _parse(source: Path, text: bytes) -> Floats:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        try:
            return np.fromstring(text, sep=" ") if text.strip() else np.zeros(0)
        except (DeprecationWarning, ValueError):
            bad = next((token for token in text.split() if not _is_number(token)), b"")
            raise FormatError(f"{source}: found {bad.decode(errors='replace')!r}, expected a number") from None


def _is_number(token: bytes) -> bool:
    try:
        float(token)
    except ValueError:
        return False
    return True


def _read(source: Path, spool: Path) -> FileLayout:
    numbers = _numbers(source, spool)
    n_vars = _count(source, numbers, 0, "number of variables")
    n_factors = _count(source, numbers, n_vars + 1, "number of factors")
    card = _whole(source, np.array(numbers[1 : n_vars + 1]), 1, 2**30 + 1, "cardinality")
    scope_ptr, scope, at = _scopes(source, numbers, n_vars + 2, (n_vars, n_factors))
    arity = np.diff(scope_ptr)
    entries, filled = np.ones(n_factors), arity > 0
    if filled.any():
        with np.errstate(over="ignore"):
            entries[filled] = np.multiply.reduceat(card[scope].astype(np.float64), scope_ptr[:-1][filled])
    total = at + float((entries + 1).sum())
    if len(numbers) != total:
        raise FormatError(f"{source}: it ends after {len(numbers)} numbers, expected {total:.16g}")
    size = entries.astype(np.int64)
    start = at + 1 + np.concatenate([[0], np.cumsum(size + 1)])
    for begin in range(0, n_factors, AHEAD):
        some = slice(begin, begin + AHEAD)
        wrong = np.flatnonzero(numbers[start[:-1][some] - 1] != size[some])
        if len(wrong):
            a = begin + int(wrong[0])
            raise FormatError(
                f"{source}: table of factor {a}: found size {numbers[start[a] - 1]:g}, expected {size[a]}"
            )
    return FileLayout(numbers, card, scope_ptr, scope, start[:-1], size, np.cumsum(arity >= 2) - 1)


def _count(source: Path, numbers: Floats, at: int, what: str) -> int:
    found = float(numbers[at]) if at < len(numbers) else -1.0
    if not (0 <= found <= len(numbers) and found == int(found)):
        raise FormatError(f"{source}: {what}: found {found:g}, expected a whole number that fits the file")
    return int(found)


def _whole(source: Path, found: Floats, low: int, high: int, what: str) -> Ints:
    """Whole numbers from `low` to below `high`."""
    bad = np.flatnonzero(~((found >= low) & (found < high) & (found == np.floor(found))))
    if len(bad):
        expected = f"a whole number from {low} to {high - 1}"
        raise FormatError(f"{source}: {what}: found {found[bad[0]]:g} out of range, expected {expected}")
    return found.astype(np.int64)


def _scopes(source: Path, numbers: Floats, at: int, counts: tuple[int, int]) -> tuple[Ints, Ints, int]:
    """Offsets and variables of all scopes, and where they end: runs of factors of one arity at a time."""
    n_vars, n_factors = counts
    none: Ints = np.zeros(0, dtype=np.int64)
    arities, scopes, left = [none], [none], n_factors
    while left:
        arity = _count(source, numbers, at, f"arity of factor {n_factors - left}")
        step = arity + 1
        most = min(left, AHEAD, (len(numbers) - at) // step)
        if most == 0:
            raise FormatError(f"{source}: it ends within the scope of factor {n_factors - left}")
        table = np.asarray(numbers[at : at + most * step]).reshape(most, step)
        other = np.flatnonzero(table[:, 0] != arity)
        n = int(other[0]) if len(other) else most
        arities.append(np.full(n, arity))
        scopes.append(_whole(source, table[:n, 1:].ravel(), 0, n_vars, f"scope near factor {n_factors - left}"))
        at, left = at + n * step, left - n
    return offsets(np.concatenate(arities)), np.concatenate(scopes), at


# -- parts ------------------------------------------------------------------------------------------------------------


def _skeleton(layout: FileLayout) -> FactorGraph:
    """Scopes alone, for METIS."""
    pairs = np.flatnonzero(np.diff(layout.scope_ptr) >= 2)
    arity = np.diff(layout.scope_ptr)[pairs]
    scope = layout.scope[ranges(layout.scope_ptr[pairs], arity)]
    none = np.zeros(0)
    table_ptr = np.zeros(len(pairs) + 1, dtype=np.int32)
    return FactorGraph(layout.card, none, offsets(arity), scope, short(np.arange(len(pairs))), table_ptr, none)


def _part(layout: FileLayout, owner: Ints, number: int, n_parts: int, values: str, source: Path) -> Part:
    arity = np.diff(layout.scope_ptr)
    touches = np.zeros(len(arity), dtype=bool)
    filled = np.flatnonzero(arity > 0)
    touches[filled] = segment_max(
        owner[layout.scope] == number, np.append(layout.scope_ptr[:-1][filled], len(layout.scope))
    )
    chosen = np.flatnonzero(touches & (arity >= 2))
    own = np.flatnonzero(owner == number)
    touched = np.unique(layout.scope[ranges(layout.scope_ptr[chosen], arity[chosen])])
    var = np.concatenate([own, touched[owner[touched] != number]])
    local = np.full(len(owner), -1, dtype=np.int64)
    local[var] = np.arange(len(var))
    ones = filled[arity[filled] == 1]
    ones = ones[local[layout.scope[layout.scope_ptr[ones]]] >= 0]
    constants = np.flatnonzero(arity == 0) if number == 0 else filled[:0]
    picked = np.sort(np.concatenate([chosen, ones, constants]))
    graph = _local_graph(layout, picked, var, local, (values, source))
    state_at = offsets(layout.card)[:-1][var].astype(np.int64)
    return place_part(number, n_parts, graph, var, len(own), (owner[var], state_at, layout.of[chosen]))


def _local_graph(layout: FileLayout, picked: Ints, var: Ints, local: Ints, meaning: tuple[str, Path]) -> FactorGraph:
    """The model of some factors; equal tables are stored once."""
    values, source = meaning
    size, arity = layout.size[picked], np.diff(layout.scope_ptr)[picked]
    theta = np.array(layout.numbers[ranges(layout.start[picked], size)])
    bad = first_bad(theta, values)
    if bad is not None:
        a = int(picked[np.searchsorted(np.cumsum(size), bad, side="right")])
        raise FormatError(f"{source}: table of factor {a}: found {theta[bad]:g}, expected {expected(values)}")
    to_log(theta, values)
    start = np.concatenate([[0], np.cumsum(size)])[:-1]
    used, table_of = np.unique(first_equal(theta, start, size), return_inverse=True)
    scope = local[layout.scope[ranges(layout.scope_ptr[picked], arity)]]
    tables = theta[ranges(start[used], size[used])]
    try:
        return FactorGraph.from_arrays(
            layout.card[var], offsets(arity), scope, table_of.astype(np.int64), offsets(size[used]), tables
        )
    except GraphError as error:
        raise FormatError(f"{source}: {error}") from None
