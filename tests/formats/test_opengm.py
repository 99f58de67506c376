"""The HDF5 format of OpenGM: every type of function, sharing, round trips, malformed files, a real model."""

from __future__ import annotations

import gzip
import io
import itertools
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from format_models import T3 as MODEL
from format_models import Example, error_of, graphs, write_opengm
from hypothesis import given

import mapmrf
from benchmark_models import benchmark
from binary_models import grid_pairs
from mapmrf import formats
from mapmrf.errors import FormatError
from mapmrf.formats import opengm
from mapmrf.model.graph import FactorGraph
from refusals import refuses

h5py = pytest.importorskip("h5py")

T3 = {
    "header": [2, 0, 3, 3, 1, 16000, 3, 1],
    "numbers-of-states": [2, 3, 2],
    "function-id-16000/indices": [1, 2, 2, 2, 3, 2, 3, 2],
    # The first variable runs fastest; the last factor is on (1, 2).
    "function-id-16000/values": [0, -0.5, -0.2, 0.3, 0.1, -0.4, 0, -0.1, 0, -0.3, 0.2, -0.6, np.inf, -0.1],
    "factors": [0, 0, 1, 0, 1, 0, 2, 0, 1, 2, 0, 2, 1, 2],
}


def save(path: Path, datasets: dict[str, object], group: str = "gm") -> Path:
    """An HDF5 file with these datasets, whole numbers as OpenGM stores them."""
    data = content(datasets, group)
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    return path


def content(datasets: dict[str, object], group: str = "gm", whole: bool = True) -> bytes:
    """The bytes of such a file; the numbers as they are if not `whole`."""
    memory = io.BytesIO()
    with h5py.File(memory, "w") as file:
        for name, data in datasets.items():
            array = np.asarray(data)
            if array.dtype.kind == "i" and whole and not name.endswith("values"):
                array = array.astype(np.uint64)
            file[f"{group}/{name}" if group else name] = array
    return memory.getvalue()


def one_type(path: Path, *function: Any) -> FactorGraph:
    return formats.read(write_opengm(path, *function))


def same_energy(graph: FactorGraph, energy: Callable[..., float]) -> None:
    for x in itertools.product(*map(range, graph.card.tolist())):
        assert graph.value(x) == pytest.approx(-energy(*x), abs=1e-12), x


@pytest.mark.parametrize("group", ["", "gm", "another"])
def test_the_group_may_have_another_name(tmp_path, group) -> None:
    assert formats.read(save(tmp_path / "t3.h5", T3, group)).n_factors == 2


@pytest.mark.parametrize("dtype", ["float32", "float64", "int64", "uint64"])
@pytest.mark.parametrize("old", [False, True])
def test_all_kinds_of_numbers(tmp_path, dtype, old) -> None:
    values = np.array([3, 5, 7, 9], dtype=dtype)
    datasets = {
        "header": [2, 0, 2, 1, 1, 16000, 1] if old else [2, 0, 2, 1, 1, 16000, 1, 1],
        "numbers-of-states": [2, 2],
        "function-id-16000/indices": [2, 2, 2],
        "function-id-16000/values": values,
        "factors": [0, 0, 2, 0, 1],
    }
    assert formats.read(save(tmp_path / "m.h5", datasets)).table(0).tolist() == [[-3, -7], [-5, -9]]


# -- types of functions -----------------------------------------------------------------------------------------------


def test_explicit_and_sparse_functions(tmp_path) -> None:
    table = np.random.default_rng(0).normal(size=(2, 3, 4))
    graph = one_type(tmp_path / "m.h5", 16000, (2, 3, 4), [3, 2, 3, 4], table.ravel(order="F").tolist())
    same_energy(graph, lambda *x: table[x])
    # key = x_1 + s_1 x_2 + s_1 s_2 x_3
    indices = [3, 2, 3, 4, 3, 1 + 2 * 2 + 6 * 3, 0, 2 * 1]
    graph = one_type(tmp_path / "m.h5", 16001, (2, 3, 4), indices, [0.5, 7.0, 8.0, 9.0])
    listed = {(1, 2, 3): 7.0, (0, 0, 0): 8.0, (0, 1, 0): 9.0}
    same_energy(graph, lambda *x: listed.get(x, 0.5))


@pytest.mark.parametrize("shape", [(4, 4), (3, 5), (5, 2)])
@pytest.mark.parametrize(
    ("kind", "values", "energy"),
    [
        (16002, [1.5], lambda x, y: 1.5 * abs(x - y)),
        (16003, [2.0, 1.5], lambda x, y: 1.5 * min(abs(x - y), 2.0)),
        (16004, [1.5], lambda x, y: 1.5 * (x - y) ** 2),
        (16005, [3.0, 1.5], lambda x, y: 1.5 * min((x - y) ** 2, 3.0)),
        (16006, [0.25, 0.75], lambda x, y: 0.25 if x == y else 0.75),
    ],
)
def test_functions_of_pairs(tmp_path, shape, kind, values, energy) -> None:
    same_energy(one_type(tmp_path / "m.h5", kind, shape, list(shape), values), energy)


@pytest.mark.parametrize("shape", [(3,), (2, 3), (3, 3, 2)])
def test_potts_n_and_constant(tmp_path, shape) -> None:
    indices = [len(shape), *shape]
    graph = one_type(tmp_path / "m.h5", 16007, shape, indices, [0.25, 0.75])
    same_energy(graph, lambda *x: 0.25 if len(set(x)) == 1 else 0.75)
    graph = one_type(tmp_path / "m.h5", 16008, shape, indices, [1.25])
    same_energy(graph, lambda *x: 1.25)


def test_potts_g_of_three(tmp_path) -> None:
    graph = one_type(tmp_path / "m.h5", 16011, (3, 3, 3), [3, 3, 3, 3], [0.0, 1.0, 2.0, 4.0, 7.0])
    # The pairs (1,0), (2,0), (2,1) count 1, 2 and 4; the values above are named after their sum.
    same_energy(graph, lambda x, y, z: (x == y) + 2 * (x == z) + 4 * (y == z))


def test_potts_g_of_four(tmp_path) -> None:
    def code(x: Sequence[int]) -> int:
        pairs = [(1, 0), (2, 0), (2, 1), (3, 0), (3, 1), (3, 2)]
        return sum(2**k for k, (i, j) in enumerate(pairs) if x[i] == x[j])

    shape = (4, 4, 4, 4)
    codes = sorted({code(x) for x in itertools.product(*map(range, shape))})
    assert len(codes) == 15  # the number of partitions of four things
    graph = one_type(tmp_path / "m.h5", 16011, shape, [4, *shape], [float(c) for c in codes])
    same_energy(graph, lambda *x: code(x))
    two = one_type(tmp_path / "m.h5", 16011, (2, 3, 2, 2), [4, 2, 3, 2, 2], [float(c) for c in codes])
    same_energy(two, lambda *x: code(x))


@pytest.mark.parametrize("kind", [15999, 16009, 16010, 16033, 16166, 12345])
def test_other_types_are_refused_by_their_number(tmp_path, kind) -> None:
    path = tmp_path / "m.h5"
    write_opengm(path, kind, (2, 2), [2, 2], [0.0])
    assert str(kind) in error_of(path, formats.read, path)


# -- sharing, scales --------------------------------------------------------------------------------------------------


def potts_grid(path: Path, side: int, *, shared: bool) -> Path:
    """A grid whose factors are Potts functions: one for all, or one each."""
    edges = grid_pairs(side, side)
    n = len(edges)
    count = 1 if shared else n
    function = np.zeros(n) if shared else np.arange(n)
    factors = np.column_stack([function, np.zeros(n), np.full(n, 2), edges])
    datasets = {
        "header": [2, 0, side * side, n, 1, 16006, count, 1],
        "numbers-of-states": [3] * (side * side),
        "function-id-16006/indices": [3, 3] * count,
        "function-id-16006/values": np.tile([0.0, 1.0], count),
        "factors": factors.astype(np.uint64).ravel(),
    }
    return save(path, datasets)


@pytest.mark.parametrize("shared", [True, False])
def test_equal_functions_are_one_table(tmp_path, shared) -> None:
    graph = formats.read(potts_grid(tmp_path / "m.h5", 20, shared=shared))
    assert (graph.n_factors, graph.n_tables) == (760, 1)
    formats.write(graph, tmp_path / "again.h5")
    with h5py.File(tmp_path / "again.h5") as file:
        assert file["gm/header"][:].tolist() == [2, 0, 400, 760, 1, 16000, 1, 1]


def test_hard_threshold(tmp_path) -> None:
    datasets = {**T3, "function-id-16000/values": [1e7 if v == np.inf else v for v in T3["function-id-16000/values"]]}
    path = save(tmp_path / "t3.h5", datasets)
    assert formats.read(path).value([0, 1, 1]) < -9e6
    assert opengm.read(path, hard_threshold=1e7).value([0, 1, 1]) == -np.inf


def test_values_says_what_the_numbers_are(tmp_path) -> None:
    path = save(tmp_path / "t3.h5", {**T3, "function-id-16000/values": np.arange(14.0)})
    costs, logs = formats.read(path), formats.read(path, values="log")
    assert np.array_equal(costs.theta_v, -logs.theta_v)
    assert formats.read(path, values="potential").theta_v[0] == -np.inf
    save(path, {**T3, "function-id-16000/values": -np.arange(14.0)})
    assert "entry 1: found -1.0" in error_of(path, formats.read, path, values="potential")
    assert "costs or logs" in error_of(path, formats.write, costs, path, values="potential")


# -- writing ----------------------------------------------------------------------------------------------------------


@given(graph=graphs())
def test_written_scopes_increase_and_functions_are_distinct(tmp_path_factory, graph: FactorGraph) -> None:
    path = tmp_path_factory.mktemp("opengm") / "m.h5"
    formats.write(graph, path)
    with h5py.File(path) as file:
        header = file["gm/header"][:].tolist()
        assert header[:4] == [2, 0, graph.n_vars, header[3]] and len(header) == 8
        numbers = file["gm/factors"][:].tolist() if header[3] else []
    at = 0
    for _ in range(header[3]):
        function, kind, order = numbers[at : at + 3]
        scope = numbers[at + 3 : at + 3 + order]
        assert function < header[6] and kind == 0 and scope == sorted(set(scope))
        at += 3 + order
    assert at == len(numbers)


# -- what is wrong ----------------------------------------------------------------------------------------------------

ZOO = {
    "no header": ({"header": None}, ["no dataset 'header'"]),
    "short header": ({"header": [2, 0, 3]}, ["'header'", "ends after 3 numbers"]),
    "version": ({"header": [3, 1, 3, 3, 1, 16000, 3, 1]}, ["version 3.1", "2.0"]),
    "header too short for its types": ({"header": [2, 0, 3, 3, 4, 16000, 3, 1]}, ["'header'", "14 for 4 types"]),
    "no states": ({"numbers-of-states": None}, ["'numbers-of-states'", "no dataset"]),
    "too few states": ({"numbers-of-states": [2, 3]}, ["'numbers-of-states'", "ends after 2"]),
    "state 0": ({"numbers-of-states": [2, 0, 2]}, ["'numbers-of-states', entry 1", "found 0", "at least 1"]),
    "too many states": ({"numbers-of-states": [2, 2**40, 2]}, ["states", "expected at most"]),
    "states as text": ({"numbers-of-states": np.array([b"a", b"b"])}, ["'numbers-of-states'", "row of numbers"]),
    "no values": ({"function-id-16000/values": None}, ["'function-id-16000/values'", "no dataset"]),
    "too few values": ({"function-id-16000/values": [1.0, 2.0]}, ["function-id-16000", "2 values", "14"]),
    "nan": ({"function-id-16000/values": [np.nan] * 14}, ["function-id-16000/values', entry 0", "nan"]),
    "infinite reward": ({"function-id-16000/values": [-np.inf] * 14}, ["entry 0", "-inf", "finite cost or inf"]),
    "too few shapes": ({"function-id-16000/indices": [1, 2, 2]}, ["function-id-16000", "3 indices", "3 functions"]),
    "a shape too large": ({"function-id-16000/indices": [1, 2, 2, 2, 3, 9, 3, 2]}, ["function-id-16000", "8 indices"]),
    "shape with 0": ({"function-id-16000/indices": [1, 2, 2, 0, 3, 2, 3, 2]}, ["0 states"]),
    "huge shape": ({"function-id-16000/indices": [1, 2, 2, 2**40, 2**40, 2, 3, 2]}, ["14 values"]),
    "no factors": ({"factors": None}, ["'factors'", "no dataset"]),
    "factors cut off": ({"factors": T3["factors"][:-1]}, ["'factors'", "ends after 13 numbers"]),
    "factors too long": ({"factors": [*T3["factors"], 7]}, ["'factors', entry 14", "found 7"]),
    "unknown function": ({"factors": [3, *T3["factors"][1:]]}, ["'factors', entry 0", "found 3", "from 0 to 2"]),
    "unknown type": ({"factors": [0, 1, *T3["factors"][2:]]}, ["'factors', entry 1", "found 1", "from 0 to 0"]),
    "unknown variable": ({"factors": [0, 0, 1, 9, *T3["factors"][4:]]}, ["factor 0", "variable 9", "0 to 2"]),
    "variable twice": (
        {
            "numbers-of-states": [2, 2, 2],
            "function-id-16000/indices": [1, 2, 2, 2, 2, 2, 2, 2],
            "function-id-16000/values": np.zeros(10),
            "factors": [*T3["factors"][:8], 0, *T3["factors"][9:]],
        },
        ["factor 1", "variable 0", "twice"],
    ),
    "another shape": ({"factors": [0, 0, 1, 1, *T3["factors"][4:]]}, ["factor 0", "[2] states", "[3]"]),
    "another order": ({"factors": [1, 0, 1, 1, *T3["factors"][4:]]}, ["factor 0", "[2, 3] states"]),
    "negative": ({"factors": -np.array(T3["factors"], dtype=np.int64)}, ["'factors'", "at least 0"]),
}


def changed(change: dict[str, object]) -> bytes:
    """The example with other datasets, or without some."""
    return content({name: data for name, data in {**T3, **change}.items() if data is not None}, whole=False)


CONTRACT = {
    "opengm": Example(
        "m.h5",
        content(T3),
        graphs,
        {None: 1e20, "log": 1e20, "cost": 1e20},
        lambda *x: MODEL.value(x),
        exact=(None, "log", "cost"),
        others="costs or logs",
        malformed={kind: (changed(change), parts) for kind, (change, parts) in ZOO.items()},
        unfit={
            "energies that mean forbidden": (
                [2],
                [(0,)],
                [[0.0, -1e35]],
                ["a finite log potential of -1e+35 would be read back as forbidden"],
            )
        },
        aliases=("m.hdf5",),
    )
}


@pytest.mark.parametrize(
    ("kind", "indices", "values", "part"),
    [
        (16001, [2, 2, 2, 1, 4], [0.0, 1.0], "beyond the last entry"),
        (16001, [2, 2, 2, 9, 0], [0.0, 1.0], "5 indices"),
        (16001, [2, 2, 2, 1, 0, 0], [0.0, 1.0], "6 indices"),
        (16001, [2, 2, 2, 1, 0], [0.0], "1 values"),
        (16001, [2, 2**30, 2**30, 0], [0.0], "expected one on [2, 2]"),
        (16002, [2, 2, 2], [1.0], "3 indices"),
        (16002, [2, 2], [np.inf], "impossible values"),
        (16003, [2, 2], [1.0], "1 values"),
        (16002, [2**20, 2**20], [1.0], "expected at most"),
        (16007, [9, 2, 2], [0.0, 1.0], "3 indices"),
        (16011, [12, *[2] * 12], [0.0], "12 variables"),
        (16011, [3, 2, 2, 2], [0.0, 1.0], "2 values"),
    ],
)
def test_malformed_functions(tmp_path, kind, indices, values, part) -> None:
    path = tmp_path / "m.h5"
    write_opengm(path, kind, (2, 2), indices, values)
    message = error_of(path, formats.read, path)
    assert part in message, message


def test_damaged_files(tmp_path) -> None:
    path = save(tmp_path / "t3.h5", T3)
    whole = path.read_bytes()
    for end in (0, 10, 100, len(whole) // 2, len(whole) - 600):
        path.write_bytes(whole[:end])
        error_of(path, formats.read, path)
    path.write_bytes(b"no HDF5 at all")
    assert "HDF5" in error_of(path, formats.read, path)


def test_without_h5py(tmp_path, monkeypatch) -> None:
    path = save(tmp_path / "t3.h5", T3)
    monkeypatch.setitem(sys.modules, "h5py", None)
    assert "pip install 'mapmrf[hdf5]'" in error_of(path, formats.read, path)
    assert "h5py" in error_of(path, formats.write, MODEL, path)


@pytest.mark.data
def test_a_real_model_has_its_optimal_energy() -> None:
    graph = benchmark("other/triplepoint4-plain-ring.h5")
    assert (graph.n_vars, graph.n_factors, graph.n_tables) == (14400, 28560, 1)
    result = mapmrf.solve(graph, "lslp")
    assert result.value == pytest.approx(-484.5907, abs=1e-3)


@pytest.mark.parametrize("where", ["gm", "gm/factors", "gm/header"])
def test_links_out_of_the_file_are_refused(tmp_path, where) -> None:
    other = save(tmp_path / "other.h5", T3)
    path = save(tmp_path / "model.h5", T3)
    for link in (h5py.ExternalLink(str(other), f"/{where}"), h5py.SoftLink("/elsewhere")):
        with h5py.File(path, "a") as file:
            del file[where]
            file[where] = link
        refuses(FormatError, "is a link, expected a group", mapmrf.read, path)


@pytest.mark.parametrize("kind", ["external", "virtual", "plugin"])
def test_numbers_in_other_files_or_by_plugins_are_refused(tmp_path, kind) -> None:
    path, numbers = save(tmp_path / "model.h5", T3), np.array(T3["factors"], dtype=np.uint64)
    (tmp_path / "raw.bin").write_bytes(numbers.tobytes())
    with h5py.File(path, "a") as file:
        del file["gm/factors"]
        if kind == "external":
            raw = [(str(tmp_path / "raw.bin"), 0, numbers.nbytes)]
            file["gm"].create_dataset("factors", numbers.shape, numbers.dtype, external=raw)
        elif kind == "virtual":
            layout = h5py.VirtualLayout(numbers.shape, numbers.dtype)
            layout[:] = h5py.VirtualSource(str(tmp_path / "other.h5"), "factors", numbers.shape, numbers.dtype)
            file["gm"].create_virtual_dataset("factors", layout)
        else:
            file["gm"].create_dataset("factors", data=numbers, compression="lzf")
    refuses(FormatError, r"stored in another file|needs the filter 32000", mapmrf.read, path)


@pytest.mark.parametrize("kind", [16002, 16003, 16004, 16005, 16006])
def test_large_functions_that_are_multiples_of_one_share_its_table(tmp_path, kind) -> None:
    n, states = 40, 50
    weights = np.round(np.random.default_rng(kind).random(n) + 0.1, 6)
    before = {16003: [3.0], 16005: [3.0], 16006: [0.0]}.get(kind, [])
    path = tmp_path / "m.h5"
    with h5py.File(path, "w") as file:
        group = file.create_group("gm")
        group["header"] = np.array([2, 0, n + 1, n, 1, kind, n, 1], dtype=np.uint64)
        group["numbers-of-states"] = np.full(n + 1, states, dtype=np.uint64)
        group[f"function-id-{kind}/indices"] = np.full(2 * n, states, dtype=np.uint64)
        group[f"function-id-{kind}/values"] = np.concatenate([[*before, weight] for weight in weights])
        group["factors"] = np.concatenate([[a, 0, 2, a, a + 1] for a in range(n)]).astype(np.uint64)
    graph = formats.read(path)
    assert graph.n_tables == 1 and graph.weight is not None
    apart = {16003: 3.0, 16004: 25.0, 16005: 3.0, 16006: 1.0}.get(kind, 5.0)
    labels = 5 * (np.arange(n + 1) % 2)
    assert graph.value(labels) == pytest.approx(-apart * weights.sum())
    assert graph.value(labels * 0) == 0.0
    assert opengm.read(path, hard_threshold=1e7).value(labels) == pytest.approx(-apart * weights.sum())
