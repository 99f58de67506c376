"""What the tests of formats share: examples of files, random models that a kind of format can hold, and round trips."""

from __future__ import annotations

import itertools
import math
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import strategies as st

from mapmrf import formats
from mapmrf.errors import FormatError
from mapmrf.model.graph import FactorGraph, Names

NUMBERS = ("0", "1", "2", "3", "-1", "0.5", "nan", "1e9", "inf", "1e300")
POTENTIALS = {None: 100.0, "potential": 100.0, "log": 1e20, "cost": 1e20}
PROBABILITIES = {None: 1.0, "potential": 1.0}
Models = Callable[[float], st.SearchStrategy[FactorGraph]]


T3 = FactorGraph.from_tables(
    [2, 3, 2],
    [(0,), (0, 1), (2, 1)],
    [[0, 0.5], [0.2, -0.1, 0, -0.3, 0.4, 0.1], [0, 0.3, -0.2, 0.6, float("-inf"), 0.1]],
)
"""Mixed cardinalities, an unsorted scope, a forbidden entry."""
_PAIR, _OTHER = np.log([0.1, 0.9, 0.2, 0.8]), np.log([0.3, 0.7, 0.4, 0.6])
_HALVES = np.log([0.5, 0.5])
_NO_NETWORKS: dict[str, tuple[Any, ...]] = {
    "a constant": ([2], [(), (0,)], [[1.0], _HALVES], "constant of 1"),
    "potentials": ([2], [(0,)], [[0.0, 1.0]], "variable 0 is not the child of a factor, and its potentials sum to 3.7"),
    "a variable alone": ([2], [], [], "variable 0 is not the child of a factor"),
    "a table of no variable": ([2, 2], [(0, 1)], [np.log([0.1, 0.2, 0.3, 0.4])], "factor 0 is not the conditional"),
    "two tables of one variable": (
        [2, 2],
        [(0, 1), (0, 1), (0,)],
        [np.log(np.full(4, 0.5))] * 2 + [_HALVES],
        "factor 0 is not",
    ),
    "evidence": ([2, 2], [(0,), (0, 1), (1,)], [_HALVES, _PAIR, [0.0, -math.inf]], "factor 0 is not"),
    "a cycle": ([2, 2], [(0, 1), (1, 0)], [_PAIR, _OTHER], "factor 0 is not"),
    "forbidden": ([2, 2], [(0, 1)], [[-math.inf] * 4], "factor 0 is not"),
    "too large": ([2, 2], [(0, 1)], [[800.0, 0, 0, 0]], "factor 0 is not"),
}
NO_NETWORKS = {kind: (*model, ["not a Bayesian network", part]) for kind, (*model, part) in _NO_NETWORKS.items()}
"""The largest number -> models."""


class Example(NamedTuple):
    """What the contract needs to know of a format."""

    name: str  # of a file
    text: str | bytes  # its content
    models: Models  # that it can hold
    limits: Mapping[str | None, float]  # the largest number for each meaning of numbers; None: the usual one
    worth: Callable[..., float]  # the value of every labelling of the example
    exact: tuple[str | None, ...] = ()  # the meanings with which numbers are kept bit for bit
    others: str = ""  # what a refusal of other meanings says that the numbers are
    variants: Sequence[Callable[[str], str]] = ()  # changes of the text that mean nothing
    malformed: Mapping[str, tuple[str | bytes | list[str], ...]] = {}
    """Kind of error -> a wrong file (its name first, if it is not the usual one) and parts of the message."""
    unfit: Mapping[str, tuple[Any, ...]] = {}
    """Kind -> cardinalities, scopes and tables of a model that it cannot hold, likewise, and parts of the message."""
    cuts: Sequence[str] = ()  # prefixes of the text that cannot be read, each of which must be refused
    start: str = ""  # the beginning of random files
    tokens: Sequence[str] = NUMBERS  # that follow
    aliases: tuple[str, ...] = ()  # further names that mean the same
    real: Mapping[str, tuple[int, int]] = {}  # benchmark files, with their numbers of variables and factors

    @property
    def data(self) -> bytes:
        return self.text.encode() if isinstance(self.text, str) else self.text


def prefixes(text: str, first: int = 0, last: int = 0) -> list[str]:
    """All that begins like a text and stops before its end, or `last` characters earlier."""
    return [text[:end] for end in range(first, len(text.rstrip()) - last)]


def word_prefixes(text: str) -> list[str]:
    words = text.split()
    return [" ".join(words[:end]) for end in range(len(words))]


def numbers(limit: float) -> st.SearchStrategy[float]:
    return st.one_of(
        st.just(-math.inf),
        st.just(0.0),
        st.integers(-3, 3).map(float),
        st.floats(-limit, limit),
        st.floats(-1e-300, 1e-300),
    )


@st.composite
def graphs(draw: st.DrawFn, limit: float = 1e20) -> FactorGraph:
    """Arity 0 to 4, unsorted scopes, single states, variables in no factor, shared and repeated tables."""
    card = draw(st.lists(st.integers(1, 3), max_size=6))
    scope = st.permutations(range(len(card))).flatmap(lambda p: st.integers(0, min(4, len(p))).map(lambda k: p[:k]))
    scopes = draw(st.lists(scope, max_size=6))
    tables = []
    for variables in scopes:
        size = math.prod(card[i] for i in variables)
        tables.append(draw(st.lists(numbers(limit), min_size=size, max_size=size)))
    return FactorGraph.from_tables(card, scopes, tables)


@st.composite
def networks(draw: st.DrawFn, limit: float = 1.0) -> FactorGraph:
    """Random networks: any order of the variables in a scope, zeros, deterministic tables, with and without names."""
    card = draw(st.lists(st.integers(1, 4), max_size=6))
    order = draw(st.permutations(range(len(card))))
    random = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    scopes, tables = [], []
    for k, child in enumerate(order):
        parents = [i for i in order[:k] if draw(st.booleans())][:3]
        table = random.dirichlet(np.ones(card[child]), size=[card[i] for i in parents])
        if draw(st.booleans()):
            table = np.eye(card[child])[random.integers(0, card[child], size=[card[i] for i in parents])]
        scope = [*parents, child]
        axes = draw(st.permutations(range(len(scope))))
        scopes.append([scope[j] for j in axes])
        with np.errstate(divide="ignore"):
            tables.append(np.log(table.transpose(axes)))
    names = Names(tuple(f"V{i}" for i in range(len(card))), tuple(tuple(f"v{k}" for k in range(r)) for r in card))
    return FactorGraph.from_tables(card, scopes, tables, names=names if draw(st.booleans()) else None)


@st.composite
def binary_graphs(draw: st.DrawFn, limit: float = 1e6) -> FactorGraph:
    n = draw(st.integers(0, 6))
    number = st.floats(-limit, limit) | st.integers(-3, 3).map(float) | st.floats(-1e-9, 1e-9)
    scope = st.permutations(range(n)).flatmap(lambda p: st.integers(0, min(2, n)).map(lambda k: p[:k]))
    scopes = draw(st.lists(scope, max_size=8))
    tables = [draw(st.lists(number, min_size=2 ** len(s), max_size=2 ** len(s))) for s in scopes]
    return FactorGraph.from_tables([2] * n, scopes, tables)


@st.composite
def cut_graphs(draw: st.DrawFn, limit: float = 1e6) -> FactorGraph:
    """Binary models that do not change when all states are swapped."""
    n = draw(st.integers(2, 6))
    pairs = draw(st.lists(st.permutations(range(n)).map(lambda p: tuple(p[:2])), max_size=8))
    number = st.floats(-limit, limit) | st.integers(-3, 3).map(float)
    tables = [[same, other, other, same] for same, other in draw(st.tuples(*[st.tuples(number, number)] * len(pairs)))]
    return FactorGraph.from_tables([2] * n, [(), *pairs], [[draw(number)], *tables])


def labellings(graph: FactorGraph) -> itertools.product[tuple[int, ...]]:
    return itertools.product(*map(range, graph.card.tolist()))


def again(graph: FactorGraph, name: str, **options: str | None) -> FactorGraph:
    """Write a model and read it; nothing but the file may be left."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, name)
        formats.write(graph, path, **options)
        assert list(Path(folder).iterdir()) == [path]
        return formats.read(path, **options)


def read_text(folder: Path, text: str | bytes, name: str, **options: str) -> FactorGraph:
    """Read a file with this content."""
    path = folder / name
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return formats.read(path, **options)


def error_of(path: Path, function: Callable[..., object], *arguments: object, **options: object) -> str:
    """The message of a call that must raise FormatError: one line that names the file."""
    with pytest.raises(FormatError) as caught:
        function(*arguments, **options)
    message = str(caught.value)
    assert str(path) in message and "\n" not in message and len(message) < 400
    return message


def write_opengm(path: Path, kind: int, shape: Sequence[int], indices: Sequence[int], values: Sequence[float]) -> Path:
    """An OpenGM model of one function of a type on all variables."""
    h5py, n = pytest.importorskip("h5py"), len(shape)
    with h5py.File(path, "w") as file:
        file["gm/header"] = np.array([2, 0, n, 1, 2, 16000, 0, kind, 1, 1], dtype=np.uint64)
        file["gm/numbers-of-states"] = np.array(shape, dtype=np.uint64)
        file[f"gm/function-id-{kind}/indices"] = np.array(indices, dtype=np.uint64)
        file[f"gm/function-id-{kind}/values"] = np.array(values, dtype=np.float64)
        file["gm/factors"] = np.array([0, 1, n, *range(n)], dtype=np.uint64)
    return path
