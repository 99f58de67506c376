"""The relaxed JSON of CFN files: quotes, commas and colons are optional, and all brackets are equivalent."""

from __future__ import annotations

import re
from typing import NoReturn

from mapmrf.errors import FormatError
from mapmrf.formats.files import AnyPath, read_bytes
from mapmrf.formats.tokens import shown

OPEN, CLOSE = b"[", b"]"
_COMMENT = re.compile(rb"(?m)^#[^\n]*")
TOKEN = re.compile(rb'[\s,:]*(?:([{\[])|([}\]])|"([^"\n]*)"|([^\s,:{}\[\]"]+))')
_BRACKET = re.compile(rb"[{}\[\]]")
_BLANKS = bytes.maketrans(b',:"', b"   ")


class Scanner:
    """Tokenizer: brackets are `OPEN` and `CLOSE`, everything else is words without quotes."""

    def __init__(self, path: AnyPath) -> None:
        self.path = path
        self._text = _COMMENT.sub(lambda match: b" " * len(match[0]), read_bytes(path))
        self._at = 0
        self._last = 0
        self._ahead: re.Match[bytes] | None = None

    def count(self, word: bytes) -> int:
        """How often a word occurs in the file, at most."""
        return self._text.count(word)

    def peek(self) -> bytes:
        """Return the next token without consuming it; empty at the end of the file."""
        match = self._ahead
        if match is None or match.pos != self._at:
            match = self._ahead = TOKEN.match(self._text, self._at)
        if match is None:
            return b""
        kind = match.lastindex
        return OPEN if kind == 1 else CLOSE if kind == 2 else match[kind or 0]

    def take(self, what: str) -> bytes:
        """Consume the next token, a word or a bracket."""
        token = self.peek()
        if self._ahead is None:
            self._fail_here(what)
        self._last, self._at = self._ahead.start(self._ahead.lastindex or 0), self._ahead.end()
        return token

    def word(self, what: str) -> bytes:
        """Consume the next token, which must not be a bracket."""
        token = self.take(what)
        if token in (OPEN, CLOSE):
            self.fail(what, "a word")
        return token

    def open(self, what: str) -> None:
        """Consume an opening bracket."""
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
        end = _BRACKET.search(self._text, self._at)
        if end is None:
            self._at = len(self._text)
            self._fail_here(what)
        words = self._text[self._at : end.start()].translate(_BLANKS)
        if end[0] in b"[{":
            self._last = end.start()
            self.fail(what, "words without brackets")
        self._last, self._at = self._at, end.end()
        return words

    def skip(self, what: str) -> None:
        """Skip a word or a bracket with its content."""
        depth = 0
        while True:
            token = self.take(what)
            depth += (token == OPEN) - (token == CLOSE)
            if depth == 0:
                return

    def end(self) -> None:
        """Raise FormatError if anything follows."""
        self.peek()
        if self._ahead is not None:
            self.take("after the last bracket")
            self.fail("after the last bracket", "the end of the file")

    @property
    def place(self) -> int:
        """Position of the last token read."""
        return self._last

    def fail(self, what: str, expected: str, found: str = "", place: int | None = None) -> NoReturn:
        """Raise the error for the last token, or one at a position; `found` describes it if it is not a token."""
        self._last = self._last if place is None else place
        match = TOKEN.match(self._text, self._last)
        found = found or (shown(match[0].strip(b' \t\r\n,:"')) if match else "nothing")
        raise FormatError(f"{self.path}: {what} (line {self._line(self._last)}): found {found}, expected {expected}")

    def _fail_here(self, what: str) -> NoReturn:
        """Raise the error for a file that ends too early, or continues with a stray quote."""
        rest = self._text[self._at :].strip(b" \t\r\n,:")
        if rest:
            found, line = f"found {shown(rest[:20])}", self._line(self._text.index(rest, self._at))
            raise FormatError(f"{self.path}: {what} (line {line}): {found}, expected a closed quote")
        raise FormatError(f"{self.path}: {what}: the file ends in line {self._line(len(self._text))}, expected more")

    def _line(self, at: int) -> int:
        return self._text.count(b"\n", 0, at) + 1
