"""Conversion between any two formats keeps the model, and says in one line what a file cannot hold."""

from __future__ import annotations

import itertools
import math
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from mapmrf import formats
from mapmrf.cli import main
from mapmrf.graph import FactorGraph, Names

needs_h5py = pytest.mark.skipif(find_spec("h5py") is None, reason="h5py is not installed")
H5 = pytest.param("h5", marks=needs_h5py)
ANY = ("uai", "LG", "suai", H5, "wcsp", "cfn", "fg")
NETWORKS = ("bif", "xml")
QUADRATIC = ("qubo", "coo")


def network() -> FactorGraph:
    """A Bayesian network of two binary variables, without zeros: a model that every format can hold."""
    names = Names(("rain", "wet"), (("no", "yes"), ("no", "yes")))
    tables = [np.log([0.75, 0.25]), np.log([[0.875, 0.125], [0.0625, 0.9375]])]
    return FactorGraph.from_tables([2, 2], [(0,), (0, 1)], tables, names=names)


def hard() -> FactorGraph:
    """Unequal cardinalities, an unsorted scope, a forbidden entry, a constant, a shared table, a variable alone."""
    table = np.array([[0.5, -1.25, 0.0], [2.0, -math.inf, 0.25]])
    scopes = [(), (2,), (1, 0), (1, 0), (3, 2, 1)]
    tables = [[1.5], [0.5, 0.0], table, table, np.arange(8.0).reshape(2, 2, 2)]
    return FactorGraph.from_tables([3, 2, 2, 2, 4], scopes, tables)


def convert(source: Path, target: Path) -> str:
    """Run the command; its complaints."""
    done = CliRunner().invoke(main, ["convert", str(source), str(target)])
    assert done.exit_code == 0, done.stderr
    assert done.stdout == ""
    return done.stderr


def same(some: FactorGraph, other: FactorGraph) -> bool:
    every = itertools.product(*map(range, some.card.tolist()))
    return all(math.isclose(some.value(x), other.value(x), abs_tol=1e-9) for x in every)


@pytest.mark.parametrize("source", ANY)
@pytest.mark.parametrize("target", ANY)
def test_any_two_formats(tmp_path, source, target) -> None:
    graph = hard()
    formats.write(graph, tmp_path / f"source.{source}")
    convert(tmp_path / f"source.{source}", tmp_path / f"target.{target}.gz")
    read = formats.read(tmp_path / f"target.{target}.gz")
    assert np.array_equal(read.card, graph.card)
    assert same(graph, read)
    assert read.n_tables == 2


@pytest.mark.parametrize("source", [*ANY, *NETWORKS])
@pytest.mark.parametrize("target", NETWORKS)
def test_networks(tmp_path, source, target) -> None:
    graph = network()
    formats.write(graph, tmp_path / f"source.{source}")
    convert(tmp_path / f"source.{source}", tmp_path / f"target.{target}")
    read = formats.read(tmp_path / f"target.{target}")
    assert same(graph, read)
    assert (read.names == graph.names) == (source in (*NETWORKS, "cfn"))


@pytest.mark.parametrize("source", [*ANY, *NETWORKS, *QUADRATIC])
@pytest.mark.parametrize("target", QUADRATIC)
def test_quadratic_models(tmp_path, source, target) -> None:
    graph = network()
    formats.write(graph, tmp_path / f"source.{source}")
    convert(tmp_path / f"source.{source}", tmp_path / f"target.{target}")
    assert same(graph, formats.read(tmp_path / f"target.{target}"))


@pytest.mark.parametrize(
    ("target", "parts"),
    [
        ("m.xml", []),
        ("m.bif.gz", []),
        ("m.LG", ["names of 2 variables and their states are dropped"]),
        ("m.uai", ["names of 2 variables and their states are dropped"]),
        pytest.param("m.h5", ["names of 2 variables"], marks=needs_h5py),
        ("m.cfn", ["rounded, by at most 5e-15"]),
        ("m.wcsp", ["names of 2 variables", "rounded, by at most 5e-15"]),
        ("m.qubo", ["names of 2 variables", "constant -0.421"]),
    ],
)
def test_what_is_lost_is_said_in_one_line(tmp_path, target, parts) -> None:
    formats.write(network(), tmp_path / "source.bif")
    said = convert(tmp_path / "source.bif", tmp_path / target)
    assert said.count("\n") == (1 if parts else 0)
    for part in parts:
        assert part in said and said.startswith("mapmrf: warning: ") and target in said


def test_what_cannot_be_converted_leaves_nothing(tmp_path) -> None:
    formats.write(hard(), tmp_path / "source.LG")
    for target in ("m.bif", "m.xml", "m.qubo", "m.coo"):
        done = CliRunner().invoke(main, ["convert", str(tmp_path / "source.LG"), str(tmp_path / target)])
        assert done.exit_code == 2
        assert done.stderr.count("\n") == 1 and target in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["source.LG"]
