"""Global cost functions inside a WCSP: words among the numbers, each with its own parameters."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple, NoReturn

from mapmrf.arrays import Ints
from mapmrf.constraints import Constraint
from mapmrf.errors import FormatError
from mapmrf.formats import tokens
from mapmrf.formats._globals import KEYWORDS, Constrained, WrittenFunction, at_least, different


class WordFunction(NamedTuple):
    """A function given by a keyword: its scope, keyword and parameters."""

    number: int
    scope: list[int]
    keyword: str
    words: list[bytes]


class SplitText(NamedTuple):
    """The words of a file without its global functions, and the functions."""

    words: list[bytes]
    functions: list[WordFunction]


def split(path: Path, text: bytes) -> SplitText | None:
    """Extract the global functions of a file; None if it cannot be parsed, because of some other error."""
    words = text.split()
    try:
        return _Walker(path, text, words).run()
    except FormatError:
        raise
    except (ValueError, IndexError, OverflowError):
        return None


class _Walker:
    def __init__(self, path: Path, text: bytes, words: list[bytes]) -> None:
        self.path, self.text, self.words = path, text, words

    def run(self) -> SplitText:
        words = self.words
        n_vars, n_functions = int(words[1]), int(words[3])
        at = 5 + n_vars
        kept, functions = words[:at], []
        for number in range(n_functions):
            arity = abs(int(words[at]))
            default = at + 1 + arity
            if words[default] == b"-1" and tokens.NUMBER.fullmatch(words[default + 1]) is None:
                scope = [int(word) for word in words[at + 1 : default]]
                keyword = words[default + 1].decode("utf-8", "replace")
                end = default + 2 + self.length(keyword, default + 2, len(scope))
                if end > len(words):
                    raise FormatError(f"{self.path}: function {number}: found the end of the file inside {keyword!r}")
                functions.append(WordFunction(number, scope, keyword, words[default + 2 : end]))
            else:
                count = int(words[default + 1])
                end = default + 2 + max(count, 0) * (arity + 1)
                kept.extend(words[at:end])
            at = end
        kept.extend(words[at:])
        kept[3] = str(n_functions - len(functions)).encode()
        return SplitText(kept, functions)

    def length(self, keyword: str, at: int, arity: int) -> int:
        """Number of parameters."""
        words = self.words
        if keyword == "salldiff":
            return 2
        if keyword == "sgcc":
            return 3 + 3 * int(words[at + 2])
        if keyword == "samong":
            return 5 + int(words[at + 4])
        if keyword == "knapsack":
            return 1 + arity
        if keyword in ("knapsackp", "clique"):
            end, step = at + 1, 2 if keyword == "knapsackp" else 1
            for _ in range(arity):
                end += 1 + step * int(words[end])
            return end - at
        self.fail(at - 1)

    def fail(self, at: int) -> NoReturn:
        expected = f"tuples with their costs, or one of {', '.join(KEYWORDS)}"
        tokens.fail_at(self.path, self.text, at, "cost function without a table", expected)


def constraints_of(path: Path, function: WordFunction, upper: float, card: Ints) -> Iterator[Constraint]:
    """The constraints of a function; costs that reach the upper bound forbid."""
    bad = [i for i in function.scope if not 0 <= i < len(card)]
    if bad or not function.scope:
        found = f"variable {bad[0]}" if bad else "no variables"
        raise FormatError(f"{path}: function {function.number} ({function.keyword}): found {found} in its scope")
    try:
        yield from _parsed(function, upper, card)
    except FormatError as error:
        raise FormatError(f"{path}: function {function.number} ({function.keyword}): {error}") from None
    except (ValueError, IndexError, OverflowError):
        raise FormatError(
            f"{path}: function {function.number} ({function.keyword}): cannot read its parameters "
            f"{b' '.join(function.words[:8]).decode('utf-8', 'replace')!r}"
        ) from None


def _parsed(function: WordFunction, upper: float, card: Ints) -> Iterator[Constraint]:
    words, scope = function.words, function.scope
    if function.keyword in ("salldiff", "sgcc", "samong"):
        measure, cost = words[0].decode("utf-8", "replace"), float(words[1])
        cost = math.inf if cost >= upper else cost
        if measure not in ("var", "dec") or not cost >= 0:
            raise ValueError
        if function.keyword == "salldiff":
            yield from different(scope, measure, cost, card)
            return
        if measure == "dec" or (function.keyword == "sgcc" and math.isfinite(cost)):
            raise ValueError
        yield from Constrained(scope, measure, cost, _limits(function)).constraints(card)
    elif function.keyword == "knapsack":  # of variables with states 0 and 1
        weights = [[(1, float(weight))] if card[i] > 1 else [] for i, weight in zip(scope, words[1:], strict=True)]
        yield at_least(scope, float(words[0]), weights)
    else:
        yield _rows(function)


def _limits(function: WordFunction) -> list[tuple[tuple[int, ...], int, int]]:
    numbers = [int(word) for word in function.words[2:]]
    if function.keyword == "samong":
        return [(tuple(numbers[3:]), numbers[0], numbers[1])]
    return [((numbers[at],), numbers[at + 1], numbers[at + 2]) for at in range(1, len(numbers), 3)]


def _rows(function: WordFunction) -> Constraint:
    """``knapsackp``, and ``clique``: at most one variable in one of its states."""
    numbers = [int(word) for word in function.words]
    at, weights = 1, []
    for _ in function.scope:
        count = numbers[at]
        if function.keyword == "clique":
            weights.append([(k, -1.0) for k in numbers[at + 1 : at + 1 + count]])
            at += 1 + count
        else:
            mine = numbers[at + 1 : at + 1 + 2 * count]
            weights.append([(k, float(w)) for k, w in zip(mine[::2], mine[1::2], strict=True)])
            at += 1 + 2 * count
    capacity = float(numbers[0]) * (-1.0 if function.keyword == "clique" else 1.0)
    return at_least(function.scope, capacity, weights)


def text_of(function: WrittenFunction, upper: float) -> str:
    """A function as a line of a file."""
    start = f"{len(function.scope)} {' '.join(map(str, function.scope))} -1 {function.keyword}"
    if function.keyword == "salldiff":
        return f"{start} var {upper:.0f}\n"
    by_variable = (f"{len(mine)} {' '.join(f'{k} {w}' for k, w in mine)}" for mine in function.weights)
    return f"{start} {function.capacity} {' '.join(by_variable)}\n"
