"""Conversion between any two formats keeps the model, and says in one line what a file cannot hold."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from format_models import labellings
from test_format_contract import INSTALLED

from mapmrf import formats
from mapmrf.cli import main
from mapmrf.errors import FormatError
from mapmrf.model.graph import FactorGraph, Names

NETWORKS = {"bif", "xmlbif", "erg"}
NAMED = {"cfn", *NETWORKS}
"""Formats with names of variables and states."""


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


def cut() -> FactorGraph:
    """A model that does not change when all states are swapped."""
    table = np.array([[0.0, 1.5], [1.5, 0.0]])
    return FactorGraph.from_tables([2] * 3, [(0, 1), (1, 2)], [table, -table])


def convert(source: Path, target: Path) -> str:
    """Run the command; its complaints."""
    done = CliRunner().invoke(main, ["convert", str(source), str(target)])
    assert done.exit_code == 0, done.stderr
    assert done.stdout == ""
    return done.stderr


def written(graph: FactorGraph, folder: Path) -> dict[str, Path]:
    """Format -> the model in it, for all formats that can hold it."""
    folder.mkdir(exist_ok=True)
    paths = {name: folder / example.name for name, example in INSTALLED.items()}
    for name, path in list(paths.items()):
        try:
            formats.write(graph, path)
        except FormatError:
            del paths[name]
    return paths


@pytest.mark.parametrize(("model", "least"), [(hard, 6), (network, 11), (cut, 9)])
def test_any_two_formats(tmp_path: Path, model: Callable[[], FactorGraph], least: int) -> None:
    graph = model()
    sources = written(graph, tmp_path / "sources")
    assert len(sources) >= least - ("opengm" not in INSTALLED)
    for (one, source), (other, path) in itertools.product(sources.items(), repeat=2):
        if one in ("qubo", "coo") and other in NETWORKS:  # terms do not say of which tables they are made
            continue
        target = tmp_path / f"{path.name}.gz"
        convert(source, target)
        read = formats.read(target)
        assert np.array_equal(read.card, graph.card)
        for x in labellings(graph):
            assert math.isclose(read.value(x), graph.value(x), abs_tol=1e-9), (one, other)
        assert model is not hard or read.n_tables == 2
        assert graph.names is None or (read.names == graph.names) == ({one, other} <= NAMED)


@pytest.mark.parametrize(
    ("target", "parts"),
    [
        ("m.xml", []),
        ("m.bif.gz", []),
        ("m.LG", ["names of 2 variables and their states are dropped"]),
        ("m.uai", ["names of 2 variables and their states are dropped"]),
        ("m.fg", ["names of 2 variables"]),
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
