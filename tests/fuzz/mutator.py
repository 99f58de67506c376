"""Our own mutator: files that are almost right, from a seed, the same on every machine."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Sequence

NUMBERS = tuple(
    b"0 1 2 3 -1 -2 7 1e300 -1e300 1e400 -inf inf nan 0.5 1e-320 2147483648 4294967296 9007199254740993 "
    b"9223372036854775807 9223372036854775808 18446744073709551616 99999999999999999999999 1e18 -0 00 1.0 1_0 0x10 "
    b"+1 1. .5 1e 1e+ 16384 65536 1000000 28 64 65 100".split()
)
WORDS = tuple(
    b"MARKOV BAYES SPARSEMARKOV p qubo network variable probability default table property type discrete salldiff sgcc "
    b"samong knapsack knapsackp clique var dec scope costs defaultcost mustbe problem functions params values null "
    b"true NaN Infinity MPE -BEGIN- c # /* */ // // -1".split()
)
TOKEN = re.compile(rb"[^\s{}()\[\]<>,;:\"]+")
JUNK = tuple(b"\x00 \xff \xef\xbb\xbf \n \r\n \t \" ' { } [ ] ( ) < > & ; , : | / \\ \x1f\x8b".split(b" "))

Mutation = Callable[[random.Random, bytes, Sequence[bytes]], bytes]


def _place(rng: random.Random, data: bytes) -> int:
    return rng.randrange(len(data) + 1)


def flip_byte(rng: random.Random, data: bytes, others: Sequence[bytes]) -> bytes:
    if not data:
        return b"\x00"
    at = rng.randrange(len(data))
    return data[:at] + bytes([data[at] ^ (1 << rng.randrange(8))]) + data[at + 1 :]


def set_byte(rng: random.Random, data: bytes, others: Sequence[bytes]) -> bytes:
    at = _place(rng, data)
    return data[:at] + bytes([rng.randrange(256)]) + data[at + 1 :]


def insert_junk(rng: random.Random, data: bytes, others: Sequence[bytes]) -> bytes:
    at = _place(rng, data)
    return data[:at] + rng.choice(JUNK) + data[at:]


def cut(rng: random.Random, data: bytes, others: Sequence[bytes]) -> bytes:
    return data[: _place(rng, data)]


def drop(rng: random.Random, data: bytes, others: Sequence[bytes]) -> bytes:
    begin = _place(rng, data)
    return data[:begin] + data[begin + rng.randrange(1, 20) :]


def repeat(rng: random.Random, data: bytes, others: Sequence[bytes]) -> bytes:
    begin = _place(rng, data)
    part = data[begin : begin + rng.randrange(1, 40)]
    return data[:begin] + part * rng.choice((2, 2, 3, 50)) + data[begin + len(part) :]


def splice(rng: random.Random, data: bytes, others: Sequence[bytes]) -> bytes:
    other = rng.choice(others)
    return data[: _place(rng, data)] + other[_place(rng, other) :]


def nest(rng: random.Random, data: bytes, others: Sequence[bytes]) -> bytes:
    """Many brackets inside each other: parsers that call themselves have an end."""
    at = _place(rng, data)
    return data[:at] + rng.choice((b"[", b"{", b"(", b'{"a":', b"<a>", b"/*")) * rng.choice((20, 3000)) + data[at:]


def _tokens(data: bytes) -> list[re.Match[bytes]]:
    return list(TOKEN.finditer(data))


def _with(data: bytes, match: re.Match[bytes], word: bytes) -> bytes:
    return data[: match.start()] + word + data[match.end() :]


def replace_token(rng: random.Random, data: bytes, others: Sequence[bytes]) -> bytes:
    found = _tokens(data)
    if not found:
        return rng.choice(NUMBERS)
    return _with(data, rng.choice(found), rng.choice(NUMBERS if rng.random() < 0.8 else WORDS))


def change_number(rng: random.Random, data: bytes, others: Sequence[bytes]) -> bytes:
    found = [match for match in _tokens(data) if match[0].lstrip(b"-").isdigit() and len(match[0]) < 19]
    if not found:
        return data
    match = rng.choice(found)
    return _with(data, match, b"%d" % (int(match[0]) + rng.choice((-2, -1, 1, 2, 100, 10**6, 2**32))))


def swap_tokens(rng: random.Random, data: bytes, others: Sequence[bytes]) -> bytes:
    found = _tokens(data)
    if len(found) < 2:
        return data
    first, second = sorted(rng.sample(found, 2), key=lambda match: match.start())
    return data[: first.start()] + second[0] + data[first.end() : second.start()] + first[0] + data[second.end() :]


def drop_token(rng: random.Random, data: bytes, others: Sequence[bytes]) -> bytes:
    found = _tokens(data)
    return _with(data, rng.choice(found), b"") if found else data


MUTATIONS: tuple[Mutation, ...] = (
    flip_byte,
    set_byte,
    insert_junk,
    cut,
    drop,
    repeat,
    splice,
    nest,
    replace_token,
    replace_token,
    replace_token,
    change_number,
    change_number,
    swap_tokens,
    drop_token,
)


def mutate(rng: random.Random, others: Sequence[bytes]) -> bytes:
    """One of some files, changed in one or a few places."""
    data = rng.choice(others)
    for _ in range(rng.choice((1, 1, 1, 2, 3, 6))):
        data = rng.choice(MUTATIONS)(rng, data, others)
    return data
