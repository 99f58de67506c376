"""Any model written and read again is the same model."""

from __future__ import annotations

import math
import tempfile
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mapmrf import formats
from mapmrf.errors import FormatError
from mapmrf.model.graph import FactorGraph


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


def same_layout(some: FactorGraph, other: FactorGraph) -> bool:
    return all(np.array_equal(getattr(some, name), getattr(other, name)) for name in ("card", "scope_ptr", "scope"))


def per_factor(graph: FactorGraph) -> np.ndarray:
    return np.concatenate([np.zeros(0), *(graph.table(a).ravel() for a in range(graph.n_factors))])


def again(graph: FactorGraph, name: str, **options: str) -> FactorGraph:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, name)
        formats.write(graph, path, **options)
        assert list(Path(folder).iterdir()) == [path]
        return formats.read(path, **options)


@pytest.mark.parametrize(
    ("name", "values"),
    [("m.LG", None), ("m.uai.LG.gz", None), ("m.LG.bz2", None), ("m.lg.xz", None), ("m.uai", "log"), ("m.uai", "cost")],
)
@given(graph=graphs())
def test_logs_are_exact(name: str, values: str | None, graph: FactorGraph) -> None:
    options = {} if values is None else {"values": values}
    read = again(graph, name, **options)
    assert same_layout(read, graph)
    assert np.array_equal(read.theta_v, graph.theta_v)
    assert np.array_equal(per_factor(read), per_factor(graph))
    assert read.constant == graph.constant


@pytest.mark.parametrize("name", ["m.uai", "m.uai.gz", "m.uai.bz2", "m.uai.xz"])
# Six factors may share a variable: up to here their sum needs no scaling.
@given(graph=graphs(limit=100.0))
def test_potentials_are_exact_but_for_the_logarithm(name: str, graph: FactorGraph) -> None:
    read = again(graph, name)
    assert same_layout(read, graph)
    assert np.allclose(read.theta_v, graph.theta_v, rtol=0, atol=1e-12)
    assert np.allclose(per_factor(read), per_factor(graph), rtol=0, atol=1e-12)
    assert read.constant == pytest.approx(graph.constant, abs=1e-12)


@given(graph=graphs(limit=1000.0))
def test_potentials_out_of_range_are_scaled_or_refused(graph: FactorGraph) -> None:
    try:
        read = again(graph, "m.uai")
    except FormatError as error:
        assert "write .LG" in str(error)
    else:
        labels = np.array([graph.theta_v[a:b].argmax() for a, b in pairwise(graph.var_ptr.tolist())], dtype=np.int64)
        assert read.value(labels) == pytest.approx(graph.value(labels), abs=1e-9)


@given(graph=graphs())
def test_reading_shares_all_equal_tables(graph: FactorGraph) -> None:
    read = again(graph, "m.LG")
    distinct = {tuple((graph.table(a).ravel() + 0.0).tolist()) for a in range(graph.n_factors)}
    assert read.n_tables == len(distinct)


@pytest.mark.parametrize("suffix", [".uai", ".suai", ".fg"])
@pytest.mark.parametrize(("scale", "digits"), [(1e-9, 7), (1e-14, 2), (1e-300, 0)])
def test_lost_digits_are_reported(tmp_path, caplog, suffix, scale, digits) -> None:
    """A potential near 1 has 16 digits, of which its log keeps few."""
    theta = np.array([[0.9, 0.1], [0.3, 0.7]]) * scale
    graph = FactorGraph.from_tables([2, 2], [(0, 1)], [theta])
    formats.write(graph, tmp_path / f"m{suffix}")
    assert f"m{suffix}: log potentials that differ by at most" in caplog.text
    assert f"keep {digits} digits as potentials: write .LG (logs) to keep all" in caplog.text
    lost = np.abs(formats.read(tmp_path / f"m{suffix}").value([0, 0]) - graph.value([0, 0]))
    assert lost <= 1.2e-16
    assert digits == 0 or lost <= 2 * scale * 10.0**-digits
    caplog.clear()
    formats.write(graph, tmp_path / "m.LG")
    formats.write(FactorGraph.from_tables([2, 2], [(0, 1)], [theta / scale]), tmp_path / f"m{suffix}")
    formats.write(FactorGraph.from_tables([2, 2], [], []), tmp_path / f"m{suffix}")
    assert formats.read(tmp_path / "m.LG").value([0, 0]) == graph.value([0, 0])
    assert caplog.text == ""
