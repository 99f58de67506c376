"""Files as bytes and as tokens: transparent compression, a budget for what they become, and no partially written files.

A few words of a file can describe a large table, and a small compressed file may expand to a large one. So readers
charge for the content of the file, its numbers, and the arrays that they are about to make of them, with temporary
copies, before anything is allocated.
"""

from __future__ import annotations

import bz2
import contextlib
import gzip
import io
import lzma
import os
import re
import stat
import sys
import warnings
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from contextvars import ContextVar
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import IO, Any, AnyStr, Generic, NoReturn, cast

import numpy as np

from mapmrf.arrays import Floats, Ints
from mapmrf.errors import FormatError
from mapmrf.model.graph import FactorGraph, Names
from mapmrf.model.memory import byte_count, machine_bytes, shown_bytes
from mapmrf.run.atomic_files import whole_file

AnyPath = str | os.PathLike[str]

FEW = 1 << 16  # bytes that are too few to be counted
_OPEN: dict[str, Any] = {".gz": gzip.open, ".bz2": bz2.open, ".xz": lzma.open}
_MAGIC = {b"\x1f\x8b": ".gz", b"BZh": ".bz2", b"\xfd7zXZ\x00": ".xz"}
_CORRUPT = (OSError, EOFError, ValueError, zlib.error, lzma.LZMAError)


class ByteBudget:
    """Bytes that reading one model may use: `limit`, None for the memory of the machine, and what is charged so far."""

    def __init__(self, limit: float | str | None = None) -> None:
        self.limit = byte_count(limit)
        # Systems that do not report their memory have less than 2^46 bytes.
        self.allowed = min(machine_bytes(), 2.0**46) if self.limit is None else self.limit
        self.charged: dict[str, float] = {}
        # What came through pipes: readers look at a file repeatedly, to recognise its format and to name a token.
        self.piped: dict[str, bytes] = {}

    def charge(self, path: AnyPath, needed: float, what: str, place: str = "") -> None:
        """Charge bytes; raise FormatError if the budget is exceeded, with purpose, place, total and budget."""
        # A new charge for the same purpose replaces the old one: a file may be read twice, and tables add up.
        total = sum(self.charged.values()) - self.charged.get(what, 0.0) + needed
        if total > self.allowed:
            whose = "the memory of this machine" if self.limit is None else "the memory limit"
            where = f" ({place})" if place else ""
            expected = f"expected at most {shown_bytes(self.allowed)}, {whose}"
            raise FormatError(f"{path}: {what}{where}: reading takes {shown_bytes(total)}, {expected}")
        self.charged[what] = needed


_BUDGET: ContextVar[ByteBudget | None] = ContextVar("mapmrf_budget", default=None)


@contextlib.contextmanager
def spending(memory_limit: float | str | None) -> Iterator[ByteBudget]:
    """Share a budget, and the content of pipes, among all readers called inside this context."""
    budget = ByteBudget(memory_limit)
    token = _BUDGET.set(budget)
    try:
        yield budget
    finally:
        _BUDGET.reset(token)


def charge(path: AnyPath, needed: float, what: str, place: str = "") -> None:
    """Charge the budget of the current file; outside `spending`, compare with the machine's memory."""
    budget = _BUDGET.get()
    if budget is not None:
        budget.charge(path, needed, what, place)
    elif needed > FEW:
        ByteBudget().charge(path, needed, what, place)


# -- reading ----------------------------------------------------------------------------------------------------------


def compression(path: AnyPath) -> str:
    suffix = Path(path).suffix.lower()
    return suffix if suffix in _OPEN else ""


def beside(model: AnyPath) -> Path | None:
    """The evidence file that lies beside a model, ``MODEL.evid``."""
    path = Path(model)
    plain = path.with_name(path.name.removesuffix(compression(path)))
    names = [f"{each}.evid{suffix}" for each in (path, plain) for suffix in ("", ".gz", ".bz2", ".xz")]
    return next((Path(name) for name in names if Path(name).is_file()), None)


def plain_name(path: AnyPath) -> str:
    """Name of the file in lower case and without a compression suffix; formats are recognised by it."""
    name = Path(path).name.lower()
    return name.removesuffix(compression(path))


def read_bytes(path: AnyPath) -> bytes:
    """Read a file, decompressed if its name or its first bytes show that it is compressed; ``-`` is standard input."""
    try:
        name = os.fspath(path)
        if name == "-" or not (stat.S_ISREG((about := os.stat(path)).st_mode) or stat.S_ISDIR(about.st_mode)):
            data = _piped(name)
        else:
            charge(path, about.st_size, "the file")
            data = Path(path).read_bytes()
    except (OSError, ValueError) as error:
        if isinstance(error, FormatError):
            raise
        raise FormatError(f"{path}: cannot read: {_reason(error)}") from None
    kind = compression(path) or next((kind for magic, kind in _MAGIC.items() if data.startswith(magic)), "")
    if not kind:
        return data
    try:
        with _OPEN[kind](io.BytesIO(data)) as file:
            return _pieces(path, file, "its decompressed content")
    except _CORRUPT as error:
        if isinstance(error, FormatError):
            raise
        raise FormatError(f"{path}: damaged or truncated {kind} file: {_reason(error)}") from None


def _piped(name: str) -> bytes:
    """The content of a pipe, a terminal or standard input, which can be read only once."""
    budget = _BUDGET.get()
    if budget is not None and name in budget.piped:
        return budget.piped[name]
    if name == "-":
        data = _pieces(name, sys.stdin.buffer, "standard input")
    else:
        with Path(name).open("rb") as file:
            data = _pieces(name, file, "the file")
    if budget is not None:
        budget.piped[name] = data
    return data


def _pieces(path: AnyPath, file: IO[bytes], what: str) -> bytes:
    """The content of a file of unknown size, charged piece by piece: a few bytes may expand to very many."""
    pieces, size = [], 0
    while piece := file.read(1 << 20):
        size += len(piece)
        charge(path, 2 * size, what)  # the pieces, and their concatenation
        pieces.append(piece)
    return b"".join(pieces)


# -- writing ----------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def replacing(path: AnyPath, *, keep: bool | None = None) -> Iterator[IO[bytes]]:
    """Open a file, compressed according to its suffix, that replaces `path` once it is complete; see `whole_file`."""
    try:
        with whole_file(path, keep=keep) as raw, _compressed(raw, compression(path)) as file:
            yield file
    except OSError as error:
        raise FormatError(f"{path}: cannot write: {_reason(error)}") from None


def write_bytes(path: AnyPath, data: bytes, *, keep: bool | None = None) -> None:
    with replacing(path, keep=keep) as file:
        file.write(data)


def write_text(path: AnyPath, parts: Iterable[str]) -> None:
    """Write a file part by part, so that a large model is never in memory as text."""
    with replacing(path) as file:
        for text in parts:
            file.write(text.encode())


def _compressed(raw: IO[bytes], kind: str) -> AbstractContextManager[IO[bytes]]:
    if kind == ".gz":
        # Neither name nor time is stored: equal models give equal files.
        return cast(IO[bytes], gzip.GzipFile(filename="", mode="wb", compresslevel=6, fileobj=raw, mtime=0))
    if kind == ".bz2":
        return cast(IO[bytes], bz2.BZ2File(raw, "wb"))
    if kind == ".xz":
        return cast(IO[bytes], lzma.LZMAFile(raw, "wb"))
    return contextlib.nullcontext(raw)


def _reason(error: Exception) -> str:
    """The reason of an error in one line, without the path, which the message already contains."""
    text = getattr(error, "strerror", None) or str(error) or type(error).__name__
    return " ".join(text.split())


# -- Text as tokens: numbers parsed in one go, words one by one, and errors that name the line and the token ----------


_COMMENT = re.compile(rb"(?m)#[^\n]*|^[ \t]*c(?!\S)[^\n]*")

_C_COMMENT = re.compile(rb"/\*.*?\*/", re.DOTALL)

NUMBER = re.compile(rb"[+-]?(?:(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?|inf(?:inity)?|nan)", re.IGNORECASE)

TOKEN = re.compile(rb"\S+")


# -- text -------------------------------------------------------------------------------------------------------------


def read_text(path: AnyPath) -> bytes:
    """Bytes of a text file with its comments (``c ...`` lines, ``# ...``) blanked out, positions unchanged."""
    return without_comments(path, read_bytes(path))


def without_comments(path: AnyPath, text: bytes) -> bytes:
    """Blank out ``c ...`` lines, ``# ...`` and the mark of UTF-8."""
    if text.startswith(b"\xef\xbb\xbf"):
        text = b"   " + text[3:]
    # Most files have no comments; searching for the two characters first is many times faster than the pattern.
    if b"#" in text or b"c" in text:
        charge(path, len(text), "its text without comments")
        text = _COMMENT.sub(lambda match: b" " * len(match[0]), text)
    return text


def without_c_comments(path: AnyPath, text: bytes) -> bytes:
    """Blank out ``/* ... */``, positions unchanged."""
    text = _C_COMMENT.sub(lambda match: re.sub(rb"[^\n]", b" ", match[0]), text)
    if b"/*" in text:
        line = text.count(b"\n", 0, text.index(b"/*")) + 1
        raise FormatError(f"{path}: line {line}: found a comment without an end, expected '*/'")
    return text


def whole_number(token: bytes) -> int | None:
    """A token as an integer of at least 0, None if it is not one; `int` would also accept signs and ``1_0``."""
    return int(token) if token.isdigit() and len(token) <= 18 else None


def shown(token: bytes) -> str:
    """Format a token for a message: printable, quoted and not too long."""
    text = ascii(token.decode("utf-8", "backslashreplace"))
    return text if len(text) <= 42 else text[:39] + "...'"


def fail_at(path: AnyPath, text: bytes, token: int, what: str, expected: str) -> NoReturn:
    """Raise the error for a token (counted from 0 here, from 1 in the message)."""
    match = next(islice(TOKEN.finditer(text), token, None), None)
    if match is None:  # the file has changed in the meantime
        raise FormatError(f"{path}: {what} (token {token + 1}): expected {expected}")
    line = text.count(b"\n", 0, match.start()) + 1
    raise FormatError(f"{path}: {what} (line {line}, token {token + 1}): found {shown(match[0])}, expected {expected}")


# -- numbers ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class NumberFile:
    """The numbers of a file, after `skipped` leading words; `at` below always counts numbers from 0."""

    # The text was dropped to save memory; `text` reads it again, after an error.

    path: AnyPath
    numbers: Floats
    skipped: int = 0
    text: Callable[[AnyPath], bytes] = read_text
    places: Sequence[int] | None = None  # the token of each number, if other words stand between them

    def fail(self, at: int, what: str, expected: str) -> NoReturn:
        if at >= len(self.numbers):
            n = len(self.numbers) + self.skipped
            raise FormatError(f"{self.path}: {what}: the file ends after {n} tokens, expected {expected}")
        place = self.skipped + at if self.places is None else self.places[at]
        fail_at(self.path, self.text(self.path), place, what, expected)

    def integers(self, begin: int, count: int, low: int, high: float, what: str) -> Ints:
        """Return `count` integers in ``low .. high``; ``{}`` in `what` becomes the position of a bad one."""
        part = self.numbers[begin : begin + count]
        bad = first_not_whole(part, low, high)
        if bad is not None or len(part) < count:
            j = len(part) if bad is None else bad
            self.fail(begin + j, what.format(j), whole_range(low, high))
        return part.astype(np.int64)


def first_not_whole(found: Floats, low: float, high: float | Ints | Floats) -> int | None:
    """Place of the first number that is not an integer in ``low .. high``, None if all are."""
    # Written so that NaN is found as well.
    bad = np.flatnonzero(~((found >= low) & (found <= high) & (found == np.floor(found))))
    return int(bad[0]) if len(bad) else None


def whole_range(low: int, high: float) -> str:
    return f"a whole number of at least {low}" if high >= 2**30 else f"a whole number from {low} to {high:.0f}"


def read_numbers(path: AnyPath, words: tuple[str, ...]) -> tuple[str, NumberFile]:
    """Read a file of numbers that starts with one of some words, in upper or lower case."""
    text = read_text(path)
    first = TOKEN.search(text)
    if first is None:
        raise FormatError(f"{path}: the file is empty, expected {' or '.join(words)}")
    word = first[0].decode("ascii", "replace").upper()
    if word not in words:
        fail_at(path, text, 0, "first word", " or ".join(words))
    del first  # it keeps the text alive
    return word, numbers_of(path, text, "among the numbers", skipped=1)


def numbers_of(
    path: AnyPath,
    text: bytes,
    what: str = "among the terms",
    again: Callable[[AnyPath], bytes] = read_text,
    hint: str = "",
    skipped: int = 0,
) -> NumberFile:
    """Parse a text that contains nothing but numbers, or one word before them; `again` reads it, after an error."""
    # The hint is for files of another format, with words in capitals.
    charge_numbers(path, text)
    numbers = parse_numbers(TOKEN.sub(b"", text, count=skipped) if skipped else text)
    if numbers is None:
        place, word, _ = first_non_number(path, text, skipped)
        fail_at(path, text, place, what, f"a number{hint if word.isupper() else ''}")
    return NumberFile(path, numbers, skipped, again)


def charge_numbers(path: AnyPath, text: bytes) -> None:
    """Charge for the numbers of a text: at most one per blank, plus one."""
    if len(text) > FEW:
        most = min(len(text) // 2, sum(map(text.count, (b" ", b"\n", b"\t", b"\r")))) + 1
        charge(path, 8.0 * most + len(text), "its numbers")


def parse_numbers(text: bytes) -> Floats | None:
    """All blank-separated numbers of a text, or None if something in it is not a number."""
    if TOKEN.search(text) is None:
        return np.zeros(0)
    try:
        with warnings.catch_warnings():
            # numpy raises on bad text since 2.3; before, it warned and returned what it had understood.
            warnings.simplefilter("error", DeprecationWarning)
            return np.fromstring(text, dtype=np.float64, sep=" ")
    except (ValueError, DeprecationWarning):
        return None


def first_non_number(path: AnyPath, text: bytes, skipped: int = 0) -> tuple[int, bytes, bytes]:
    """Place of the first token that is not a number, the token, and the one before it."""
    before = b""
    for place, match in enumerate(TOKEN.finditer(text)):
        if place >= skipped and NUMBER.fullmatch(match[0]) is None:
            return place, match[0], before
        before = match[0]
    raise FormatError(f"{path}: cannot read the numbers of this file")


# -- words ------------------------------------------------------------------------------------------------------------


class Scanner(Generic[AnyStr]):
    """Reads a text token by token, by a pattern; `at` is where it goes on, and `last` where the last token began."""

    def __init__(self, path: AnyPath, text: AnyStr, token: re.Pattern[AnyStr], newline: AnyStr) -> None:
        self.path: AnyPath = path
        self.text: AnyStr = text
        self.token: re.Pattern[AnyStr] = token
        self.newline: AnyStr = newline
        self.at = self.last = 0

    def line(self, at: int) -> int:
        return self.text.count(self.newline, 0, at) + 1

    def fail(self, what: str, expected: str, found: str = "") -> NoReturn:
        """Raise the error for the last token; `found` describes it if it is not a token."""
        match = self.token.search(self.text, self.last)
        token = match[0] if match else self.text[:0]
        found = found or shown(token if isinstance(token, bytes) else token.encode("utf-8", "replace"))
        raise FormatError(f"{self.path}: {what} (line {self.line(self.last)}): found {found}, expected {expected}")

    def fail_at_end(self, what: str) -> NoReturn:
        line = self.line(len(self.text))
        raise FormatError(f"{self.path}: {what}: the file ends in line {line}, expected more")


# -- Names of variables and states in formats that cannot represent all of them ---------------------------------------


def names_lost(graph: FactorGraph) -> list[str]:
    if graph.names is None or graph.n_vars == 0:
        return []
    what = "variables" if graph.names.states is None else "variables and their states"
    return [f"the names of {graph.n_vars} {what} are dropped"]


@dataclass(frozen=True)
class Allowed:
    """Which names a format can represent, and whether it needs names for states."""

    # A variable without a name, or with one that is not allowed or not unique, is called ``x`` and its index; likewise,
    # with ``s``, the states of a variable if one of them has such a name. If state names are optional, they are
    # omitted.

    pattern: re.Pattern[str]
    states_required: bool = False

    def fits(self, name: str) -> bool:
        """Return whether a name can be written; names that are not printable never can."""
        return name.isprintable() and self.pattern.fullmatch(name) is not None


def fitting_names(graph: FactorGraph, allowed: Allowed) -> Names:
    """Names that a format can represent; a variable without state names has none in `states`."""
    taken: dict[str, int] = {}  # the first variable with a name that is allowed
    for i, name in enumerate(graph.names.variables if graph.names else ()):
        if allowed.fits(name):
            taken.setdefault(name, i)
    variables = []
    for i in range(graph.n_vars):
        name = graph.names.variables[i] if graph.names else ""
        if taken.get(name) != i:
            name = f"x{i}"
            while name in taken:
                name += "_"
            taken[name] = i
        variables.append(name)
    return Names(tuple(variables), tuple(_states(graph, i, allowed) for i in range(graph.n_vars)))


def names_replaced(graph: FactorGraph, allowed: Allowed) -> list[str]:
    if graph.names is None:
        return []
    fitting = fitting_names(graph, allowed)
    lost = []
    n = sum(a != b for a, b in zip(graph.names.variables, fitting.variables, strict=True))
    if n:
        lost.append(f"the names of {n} variables are replaced")
    states = zip(graph.names.states or (), fitting.states or (), strict=False)
    n = sum(a != (b or tuple(map(str, range(len(a))))) for a, b in states)
    if n:
        lost.append(f"the names of the states of {n} variables are replaced")
    return lost


def _states(graph: FactorGraph, i: int, allowed: Allowed) -> tuple[str, ...]:
    """Names of the states of a variable, empty if it has none."""
    known = graph.names.states[i] if graph.names and graph.names.states else ()
    if known and len(set(known)) == len(known) and all(map(allowed.fits, known)):
        return known
    if not allowed.states_required:
        return ()
    return tuple(f"s{k}" for k in range(int(graph.card[i])))
