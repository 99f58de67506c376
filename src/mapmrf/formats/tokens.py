"""Files of blank-separated numbers: parsed in one go, with errors that name the line and the token."""

from __future__ import annotations

import re
import warnings
from dataclasses import dataclass
from itertools import islice
from typing import NoReturn

import numpy as np

from mapmrf.arrays import Floats, Ints
from mapmrf.errors import FormatError
from mapmrf.formats.budget import FEW, charge
from mapmrf.formats.files import AnyPath, read_bytes

_COMMENT = re.compile(rb"(?m)#[^\n]*|^[ \t]*c(?!\S)[^\n]*")
_C_COMMENT = re.compile(rb"/\*.*?\*/", re.DOTALL)
NUMBER = re.compile(rb"[+-]?(?:(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?|inf(?:inity)?|nan)", re.IGNORECASE)
TOKEN = re.compile(rb"\S+")


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


@dataclass(frozen=True, eq=False)
class NumberFile:
    """The numbers of a file, after `skipped` leading words; `at` below always counts numbers from 0."""

    path: AnyPath
    numbers: Floats
    skipped: int = 0

    def fail(self, at: int, what: str, expected: str) -> NoReturn:
        """Raise the error for a number that is not what was expected at its place."""
        if at >= len(self.numbers):
            n = len(self.numbers) + self.skipped
            raise FormatError(f"{self.path}: {what}: the file ends after {n} tokens, expected {expected}")
        token = self.skipped + at
        # The text was dropped to save memory; it is read again only after an error.
        fail_at(self.path, read_text(self.path), token, what, expected)

    def integers(self, begin: int, count: int, low: int, high: float, what: str) -> Ints:
        """Return `count` integers in ``low .. high``; ``{}`` in `what` becomes the position of a bad one."""
        part = self.numbers[begin : begin + count]
        # Written so that NaN is caught as well.
        bad = np.flatnonzero(~((part >= low) & (part <= high) & (part == np.floor(part))))
        if len(bad) or len(part) < count:
            j = int(bad[0]) if len(bad) else len(part)
            self.fail(begin + j, what.format(j), whole_range(low, high))
        return part.astype(np.int64)


def whole_range(low: int, high: float) -> str:
    """The expected range of an integer, in words."""
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
    behind = first.end()
    del first  # it keeps the text alive
    charge_numbers(path, text)
    numbers = parse_numbers(text[behind:])
    if numbers is None:
        _fail_not_a_number(path, text, 1)
    return word, NumberFile(path, numbers, skipped=1)


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


def _fail_not_a_number(path: AnyPath, text: bytes, skipped: int) -> NoReturn:
    """Raise the error for the first token that is not a number."""
    for token, match in enumerate(TOKEN.finditer(text)):
        if token >= skipped and NUMBER.fullmatch(match[0]) is None:
            fail_at(path, text, token, "after the header" if token == skipped else "among the numbers", "a number")
    raise FormatError(f"{path}: cannot read the numbers of this file")


def fail_at(path: AnyPath, text: bytes, token: int, what: str, expected: str) -> NoReturn:
    """Raise the error for a token (counted from 0 here, from 1 in the message)."""
    match = next(islice(TOKEN.finditer(text), token, None), None)
    if match is None:  # the file has changed in the meantime
        raise FormatError(f"{path}: {what} (token {token + 1}): expected {expected}")
    line = text.count(b"\n", 0, match.start()) + 1
    raise FormatError(f"{path}: {what} (line {line}, token {token + 1}): found {shown(match[0])}, expected {expected}")


def whole_number(token: bytes) -> int | None:
    """A token as an integer of at least 0, None if it is not one; `int` would also accept signs and ``1_0``."""
    return int(token) if token.isdigit() and len(token) <= 18 else None


def shown(token: bytes) -> str:
    """Format a token for a message: printable, quoted and not too long."""
    text = ascii(token.decode("utf-8", "backslashreplace"))
    return text if len(text) <= 42 else text[:39] + "...'"
