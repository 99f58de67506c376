"""What every format promises. A format that is registered is tested here by the `CONTRACT` in a file of this folder.

It reads what it writes, compressed or not; it recognises its files; it refuses numbers of another meaning; and a file
that is cut, wrong or random is an error in one line that names it, or a model.
"""

from __future__ import annotations

import importlib
import itertools
import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from format_models import Example, again, error_of, labellings, read_text
from hypothesis import given
from hypothesis import strategies as st

from benchmark_models import benchmark
from mapmrf import formats
from mapmrf.cli import main
from mapmrf.errors import FormatError, MapMRFError
from mapmrf.model.graph import FactorGraph, Names

VALUES = (None, "potential", "log", "cost")
NETWORKS = {"bif", "xmlbif", "erg"}
NAMED = {"cfn", *NETWORKS}
"""Formats with names of variables and states."""
PACKED = (".gz", ".bz2", ".xz")


def collected() -> dict[str, Example]:
    """Format -> its example, from the modules beside this one that have a `CONTRACT`."""
    found: dict[str, Example] = {}
    for path in sorted(Path(__file__).parent.glob("test_*.py")):
        if path.stem != Path(__file__).stem and "\nCONTRACT = " in path.read_text(encoding="utf-8"):
            try:
                found |= importlib.import_module(path.stem).CONTRACT
            except pytest.skip.Exception:  # what the format needs is not installed
                found[path.stem.removeprefix("test_")] = None
    return found


EXAMPLES = collected()
INSTALLED = {name: example for name, example in EXAMPLES.items() if example is not None}
every_format = pytest.mark.parametrize("example", INSTALLED.values(), ids=list(INSTALLED))
ALLOWED = [(name, values) for name, example in INSTALLED.items() for values in example.limits]
REFUSED = [(name, v) for name, example in INSTALLED.items() for v in VALUES if v not in (None, *example.limits)]
MALFORMED = [(name, kind) for name, example in INSTALLED.items() for kind in example.malformed]
UNFIT = [(name, kind) for name, example in INSTALLED.items() for kind in example.unfit]
VARIANTS = [(name, change) for name, example in INSTALLED.items() for change in example.variants]


REAL = [(name, file) for name, example in INSTALLED.items() for file in example.real]


def test_every_format_has_a_contract() -> None:
    modules = {module.__name__.rpartition(".")[2]: module for module in formats._register().values()}
    assert {name for name in modules if not hasattr(modules[name], "WRITE_ONLY")} == set(EXAMPLES)
    for name, example in INSTALLED.items():
        assert formats._format_of(Path(example.name)) is modules[name]
        assert callable(modules[name].read) and callable(modules[name].write)


def size_of(graph: FactorGraph) -> float:
    """How large a sum of potentials may become, and how many terms it has."""
    parts = [np.abs(part[np.isfinite(part)]).sum() for part in (graph.theta_v, graph.theta_t, np.array(graph.constant))]
    return 1.0 + graph.n_vars + 8.0 * float(sum(parts))


def rounded(name: str, graph: FactorGraph) -> float:
    """By how much every number of a file differs at most, as its format says."""
    losses = getattr(formats._format_of(Path(name)), "losses", lambda graph: [])(graph)
    return sum(float(text.split()[-1]) for text in losses if "rounded, by at most" in text)


def assert_same(read: FactorGraph, graph: FactorGraph, name: str, *, exact: bool) -> None:
    assert np.array_equal(read.card, graph.card)
    assert read.n_factors == graph.n_factors or (graph.n_factors and not exact)  # those on the same pair may be joined
    slack = 1e-12 * size_of(graph) + 2.1 * rounded(name, graph) * (graph.n_vars + graph.n_factors + 1)
    for x in list(labellings(graph))[:200]:
        assert read.value(x) == pytest.approx(graph.value(x), abs=slack)
    if exact:
        assert np.array_equal(read.theta_v, graph.theta_v) and read.constant == graph.constant
        for a in range(graph.n_factors):
            mine, theirs = np.argsort(graph.scope_of(a)), np.argsort(read.scope_of(a))
            assert np.array_equal(read.scope_of(a)[theirs], graph.scope_of(a)[mine])
            assert np.array_equal(read.table(a).transpose(theirs), graph.table(a).transpose(mine))


@pytest.mark.parametrize(("name", "values"), ALLOWED)
@given(data=st.data())
def test_any_model_comes_back(name: str, values: str | None, data: st.DataObject) -> None:
    example = INSTALLED[name]
    graph = data.draw(example.models(example.limits[values]))
    file = data.draw(st.sampled_from([example.name, *example.aliases])) + data.draw(st.sampled_from(["", "", *PACKED]))
    read = again(graph, file, values=values)
    assert_same(read, graph, example.name, exact=values in example.exact)
    if graph.names is not None:
        assert read.names == graph.names


@every_format
@pytest.mark.parametrize("suffix", ["", *PACKED])
def test_its_example_means_what_it_says_under_all_names(tmp_path: Path, example: Example, suffix: str) -> None:
    for name in (example.name, *example.aliases):
        with formats.files.replacing(tmp_path / f"{name}{suffix}") as file:
            file.write(example.data)
        graph = formats.read(tmp_path / f"{name}{suffix}")
        for x in labellings(graph):
            assert graph.value(x) == pytest.approx(example.worth(*x), rel=1e-12, abs=1e-12)


@pytest.mark.parametrize(("name", "change"), VARIANTS)
def test_what_a_format_leaves_open_means_nothing(tmp_path: Path, name: str, change: Callable[[str], str]) -> None:
    example = INSTALLED[name]
    plain, other = (read_text(tmp_path, text, example.name) for text in (example.text, change(example.text)))
    assert other.names == plain.names
    for x in labellings(plain):
        assert other.value(x) == pytest.approx(plain.value(x), rel=1e-12, abs=1e-12)


@every_format
def test_files_without_a_suffix_are_recognised(tmp_path: Path, example: Example) -> None:
    module = formats._format_of(Path(example.name))
    if not hasattr(module, "sniff"):
        pytest.skip("its files begin like those of others")
    assert module.sniff(example.data) and not module.sniff(b"") and not module.sniff(b"what is this")
    for name in ("model", "model.xyz"):
        (tmp_path / name).write_bytes(example.data)
        assert formats._format_to_read(tmp_path / name) is module
        formats.read(tmp_path / name)


@pytest.mark.parametrize(("name", "values"), REFUSED)
def test_numbers_of_another_meaning_are_refused(tmp_path: Path, name: str, values: str) -> None:
    example = INSTALLED[name]
    path = tmp_path / example.name
    path.write_bytes(example.data)
    graph = formats.read(path)
    assert example.others in error_of(path, formats.write, graph, path, values=values)
    if name != "opengm":  # which is read with potentials, but not written
        assert example.others in error_of(path, formats.read, path, values=values)
    assert path.read_bytes() == example.data


@pytest.mark.parametrize(("name", "kind"), MALFORMED)
def test_malformed(tmp_path: Path, name: str, kind: str) -> None:
    *file, text, parts = INSTALLED[name].malformed[kind]
    path = tmp_path / (file[0] if file else INSTALLED[name].name)
    path.write_bytes(text.encode("latin-1") if isinstance(text, str) else text)
    message = error_of(path, formats.read, path)
    for part in parts:
        assert part in message, message


@pytest.mark.parametrize(("name", "kind"), UNFIT)
def test_a_model_that_it_cannot_hold_is_refused(tmp_path: Path, name: str, kind: str) -> None:
    *file, card, scopes, tables, parts = INSTALLED[name].unfit[kind]
    path = tmp_path / (file[0] if file else INSTALLED[name].name)
    message = error_of(path, formats.write, FactorGraph.from_tables(card, scopes, tables), path)
    assert all(part in message for part in parts), message
    assert not path.exists()


@every_format
def test_every_cut_is_an_error(tmp_path: Path, example: Example) -> None:
    path = tmp_path / example.name
    for text in example.cuts:
        path.write_text(text)
        with pytest.raises(FormatError):
            formats.read(path)


@every_format
@given(data=st.data())
def test_random_files_are_an_error_or_a_model(tmp_path_factory, example: Example, data: st.DataObject) -> None:
    path = tmp_path_factory.mktemp("random") / example.name
    words = st.lists(st.sampled_from(example.tokens), max_size=25).map(" ".join).map(str.encode)
    path.write_bytes(example.start.encode() + data.draw(words | st.binary(max_size=60)))
    try:
        graph = formats.read(path)
    except MapMRFError as error:
        assert str(path) in str(error) and "\n" not in str(error)
    else:
        assert len(graph.theta_v) == graph.card.sum()


ODD_NAMES = ["x1", "x0", "a b", "1a", "inf", "é", "a", "a<b & c", "]]>", 'with "quotes"', "no, (or) more"]
NAMES = st.text(st.characters(codec="utf-8"), max_size=4) | st.sampled_from(ODD_NAMES)


@pytest.mark.parametrize("name", sorted(NAMED))
@given(data=st.data())
def test_names_are_kept_or_said_to_be_replaced(name: str, data: st.DataObject) -> None:
    card = data.draw(st.lists(st.integers(1, 3), min_size=1, max_size=4))
    variables = tuple(data.draw(st.lists(NAMES, min_size=len(card), max_size=len(card))))
    states = tuple(tuple(data.draw(st.lists(NAMES, min_size=r, max_size=r))) for r in card)
    tables = [np.log(np.full(r, 1.0 / r)) for r in card]
    graph = FactorGraph.from_tables(card, [(i,) for i in range(len(card))], tables, names=Names(variables, states))
    read = again(graph, INSTALLED[name].name)
    assert np.allclose(read.theta_v, graph.theta_v) and len(set(read.names.variables)) == len(card)
    lost = formats._format_of(Path(INSTALLED[name].name)).losses(graph)
    kept = read.names.variables == variables
    assert kept == (not any("variables are replaced" in text and "states" not in text for text in lost))
    if not any("states" in text for text in lost):
        assert (read.names.states or tuple(tuple(map(str, range(r))) for r in card)) == states


@every_format
@pytest.mark.parametrize("scale", [1e308, -1e308, 1e4])
def test_huge_numbers_are_written_or_refused_in_one_line(tmp_path: Path, example: Example, scale: float) -> None:
    table = np.array([[1.7, 0.3], [0.2, 1.0]]) * scale
    path = tmp_path / example.name
    for scopes, tables in (([(0,), (1,)], [table[0], table[1]]), ([(0, 1), (0, 1)], [table, table])):
        graph = FactorGraph.from_tables([2, 2], scopes, tables)
        try:
            formats.write(graph, path)
        except MapMRFError as error:
            assert "\n" not in str(error) and not path.exists()
            continue
        read = formats.read(path)
        assert abs(scale) > 1e300 or math.isclose(read.value([0, 1]), graph.value([0, 1]), rel_tol=1e-9)
        path.unlink()


@pytest.mark.data
@pytest.mark.parametrize(("name", "file"), REAL)
def test_a_real_model_survives_being_written(tmp_path: Path, name: str, file: str) -> None:
    example, graph = INSTALLED[name], benchmark(file)
    assert (graph.n_vars, graph.n_factors) == example.real[file]
    values = example.exact[0] if example.exact else None
    formats.write(graph, tmp_path / example.name, values=values)
    again = formats.read(tmp_path / example.name, values=values)
    assert again.names == graph.names
    for array in ("card", "theta_v", "scope", "table_of", "theta_t"):
        assert np.array_equal(getattr(again, array), getattr(graph, array)), array


# -- conversion between any two formats -------------------------------------------------------------------------------


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


@pytest.mark.parametrize(("model", "least"), [(hard, 6), (network, 14), (cut, 12)])
def test_any_two_formats(tmp_path: Path, model: Callable[[], FactorGraph], least: int) -> None:
    graph = model()
    sources = written(graph, tmp_path / "sources")
    assert len(sources) >= least - ("opengm" not in INSTALLED)
    for (one, source), (other, path) in itertools.product(sources.items(), repeat=2):
        if (
            one in ("qubo", "coo", "qpbo", "sat", "pseudo_boolean") and other in NETWORKS
        ):  # terms do not say of which tables they are made
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
        ("m.erg", []),
        ("m.xml", []),
        ("m.bif.gz", []),
        ("m.LG", ["names of 2 variables and their states are dropped"]),
        ("m.uai", ["names of 2 variables and their states are dropped"]),
        ("m.fg", ["names of 2 variables"]),
        ("m.cfn", ["rounded, by at most 5e-15"]),
        ("m.wcsp", ["names of 2 variables", "rounded, by at most 5e-15"]),
        ("m.qubo", ["names of 2 variables", "constant -0.421"]),
        ("m.coo", ["names of 2 variables", "constant -0.421"]),
        ("m.mc", ["names of 2 variables", "constant 2"]),
    ],
)
def test_what_is_lost_is_said_in_one_line(tmp_path, target, parts) -> None:
    formats.write(network(), tmp_path / "source.bif")
    pair = FactorGraph.from_tables([2, 2], [(), (0, 1)], [[2.0], [0.0, 1.0, 1.0, 0.0]], names=Names(("a", "b")))
    formats.write(pair, tmp_path / "source.cfn")
    said = convert(tmp_path / ("source.cfn" if target == "m.mc" else "source.bif"), tmp_path / target)
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
