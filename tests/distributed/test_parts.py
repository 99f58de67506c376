"""Parts: what each has to know, files and their checksums, labels by parts."""

from __future__ import annotations

import gzip
import importlib.util
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mapmrf
from mapmrf import FactorGraph, distributed, images
from mapmrf.datasets import grid, potts_image, random_graph
from mapmrf.distributed import streaming
from mapmrf.distributed.cutting import metis, n_cut, owners, slab_starts, slabs, split
from mapmrf.distributed.evaluation import evaluate
from mapmrf.distributed.lattices import PottsPicture, SpinGrid, grid_parts, image_parts, potts_parts, slabs_of
from mapmrf.distributed.parts import Part, PartFolder, Ranks, part_path, parts_of
from mapmrf.distributed.run import PartedModel, uniform_at
from mapmrf.distributed.streaming import stream_partition
from mapmrf.errors import FormatError, GraphError, OptionError
from mapmrf.run.state import ArrayFile, read_arrays, write_arrays
from refusals import refuses

needs_metis = pytest.mark.skipif(importlib.util.find_spec("pymetis") is None, reason="needs pymetis")

MODELS = {
    "grid": grid(7, 9, 2.0, seed=1),
    "random": random_graph(30, 50, states=(1, 4), arity=(2, 4), hard=0.1, seed=2),
    "potts": potts_image(8, 9, 3, seed=0).graph,
    "weighted": FactorGraph.from_pairwise(
        np.zeros((12, 2)), [(i, i + 1) for i in range(11)], np.eye(2), weight=np.arange(1.0, 12.0)
    ),
}


def scattered(graph: FactorGraph, n: int) -> np.ndarray:
    owner = np.random.default_rng(0).integers(0, n, graph.n_vars)
    owner[:n] = np.arange(n)
    return owner


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("n", [1, 2, 5])
def test_parts_hold_every_factor_once_and_know_their_neighbours(name: str, n: int) -> None:
    graph = MODELS[name]
    for owner in (slabs(graph.n_vars, n), scattered(graph, n)):
        parts = list(split(graph, owner, n))
        own = np.concatenate([part.var[: part.n_own] for part in parts])
        assert sorted(own.tolist()) == list(range(graph.n_vars))
        counted = np.concatenate([part.factor[: part.n_constrained] for part in parts])
        assert sorted(counted.tolist()) == list(range(graph.n_factors))
        for part in parts:
            check_part(graph, owner, part)
            for other in parts:
                sent = part.var[part.sent_to(other.number)]
                assert sent.tolist() == other.var[other.copied_from(part.number)].tolist()


def check_part(graph: FactorGraph, owner: np.ndarray, part: Part) -> None:
    """Every factor of an own variable is there, with its variables and its table."""
    mine = {a for a in range(graph.n_factors) if part.number in owner[graph.scope_of(a)]}
    assert set(part.factor.tolist()) == mine
    assert np.array_equal(part.graph.card, graph.card[part.var])
    assert np.array_equal(part.halo_part, owner[part.var[part.n_own :]])
    for a, number in enumerate(part.factor.tolist()):
        assert part.var[part.graph.scope_of(a)].tolist() == graph.scope_of(number).tolist()
        assert np.array_equal(part.graph.table(a), graph.table(number))
        assert (a < part.n_inside) == bool(np.all(owner[graph.scope_of(number)] == part.number))
        assert (a < part.n_constrained) == (owner[graph.scope_of(number)[0]] == part.number)


@pytest.mark.parametrize("name", MODELS)
def test_the_value_of_a_labelling_is_that_of_the_whole_model(name: str) -> None:
    graph, rng = MODELS[name], np.random.default_rng(1)
    parts = list(split(graph, scattered(graph, 3), 3))
    model = PartedModel(Ranks(), parts, graph.n_vars, graph.n_factors, 0)
    for _ in range(20):
        labels = rng.integers(0, graph.card)
        found = evaluate(model.ranks, parts, model.pick(labels), model.slices)
        value = -np.inf if found.n_violated else found.rest
        assert value == pytest.approx(graph.value(labels), rel=1e-12)


def test_slabs_are_equal_ranges_that_begin_at_blocks() -> None:
    assert slab_starts(10, 3).tolist() == [0, 3, 6, 10]
    starts = slab_starts(10_000, 7)
    assert np.all(starts[:-1] % 16 == 0) and starts[-1] == 10_000
    assert np.ptp(np.diff(starts)) <= 32


@needs_metis
def test_metis_cuts_less_than_ranges_where_numbers_mean_nothing(tmp_path: Path) -> None:
    whole = grid(16, 16, seed=0)
    mixed = np.random.default_rng(0).permutation(256)
    pairs = mixed[whole.scope.reshape(-1, 2)]
    graph = FactorGraph.from_pairwise(np.zeros((256, 2)), pairs, np.eye(2))
    assert n_cut(graph, metis(graph, 4)) < n_cut(graph, slabs(256, 4)) / 2
    assert np.array_equal(owners(graph, 4, "auto"), metis(graph, 4))
    assert np.bincount(metis(graph, 4)).max() <= 70
    assert np.array_equal(owners(grid(60, 60), 4, "auto"), slabs(3600, 4))
    assert set(metis(MODELS["weighted"], 12)) == set(range(12))


def assert_same(folder: PartFolder, graph: FactorGraph, owner: np.ndarray, tolerance: float = 0.0) -> None:
    """The parts in a folder are those of the whole model, but for the sharing of tables and numbers of factors."""
    n = folder.counts.n_parts
    assert (folder.counts.n_vars, folder.counts.n_factors) == (graph.n_vars, graph.n_factors)
    for part, other in zip(folder.read(range(n)), split(graph, owner, n), strict=True):
        for name in ("n_own", "n_inside", "n_constrained"):
            assert getattr(part, name) == getattr(other, name)
        for name in ("var", "state_at", "halo_part", "neighbours", "send_ptr", "send"):
            assert np.array_equal(getattr(part, name), getattr(other, name)), name
        assert np.array_equal(np.argsort(part.factor), np.argsort(other.factor))
        assert np.array_equal(part.graph.scope, other.graph.scope) and not part.graph.theta_v.flags.writeable
        assert np.allclose(part.graph.theta_v, other.graph.theta_v, rtol=tolerance, atol=tolerance)
        assert part.graph.constant == pytest.approx(other.graph.constant)
        for a in range(part.graph.n_factors):
            assert np.allclose(part.graph.table(a), other.graph.table(a), rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("name", MODELS)
def test_parts_that_were_written_are_read_back(name: str, tmp_path: Path) -> None:
    folder = distributed.partition(MODELS[name], tmp_path / "parts", 3, "slabs")
    assert_same(folder, MODELS[name], slabs(MODELS[name].n_vars, 3))


def test_every_damaged_byte_of_a_part_is_noticed(tmp_path: Path) -> None:
    distributed.partition(grid(3, 3), tmp_path, 2, "slabs")
    path = part_path(tmp_path, 1)
    whole = path.read_bytes()
    rng = np.random.default_rng(0)
    for at in [*rng.integers(0, len(whole), 40).tolist(), 0, 9, 17, 25, len(whole) - 1]:
        broken = bytearray(whole)
        broken[at] ^= 0x40
        path.write_bytes(broken)
        try:
            part = distributed.read_part(path)
        except (FormatError, MemoryError):
            continue
        assert np.array_equal(part.graph.theta_v, grid(3, 3).theta_v[ranges_of(part)])  # a byte between two arrays
    path.write_bytes(whole[: len(whole) // 2])
    refuses(FormatError, r"part-00001\.mrf: damaged", distributed.read_part, path)


def test_a_part_of_another_model_is_refused(tmp_path: Path) -> None:
    distributed.partition(grid(3, 3), tmp_path / "one", 2)
    distributed.partition(grid(3, 3, seed=1), tmp_path / "other", 2)
    part_path(tmp_path / "other", 1).replace(part_path(tmp_path / "one", 1))
    with pytest.raises(
        mapmrf.MapMRFError, match=r"part-00001\.mrf: part 1 of 2, but not the one that parts\.json names"
    ):
        distributed.solve(tmp_path / "one")


def ranges_of(part: Part) -> np.ndarray:
    return (2 * part.var[:, None] + np.arange(2)).ravel()


def test_files_are_written_whole_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "a.mrf"
    write_arrays(path, ArrayFile("part", {"n": 1}, {"x": np.arange(5), "none": np.zeros((0, 3))}))
    with pytest.raises(TypeError):
        write_arrays(path, ArrayFile("part", {}, {"x": np.zeros(1, dtype=[("a", np.int64)])}))
    found = read_arrays(path, "part", mapped=False)
    assert found.figures == {"n": 1} and found.arrays["x"].tolist() == [0, 1, 2, 3, 4]
    assert found.arrays["none"].shape == (0, 3)
    assert [file.name for file in tmp_path.iterdir()] == ["a.mrf"]
    refuses(FormatError, "found a file of kind 'part', expected a file of kind 'labels'", read_arrays, path, "labels")


def test_labels_by_parts_are_joined_and_a_result_in_one_piece(tmp_path: Path) -> None:
    graph = MODELS["potts"]
    distributed.partition(graph, tmp_path, 3)
    result = distributed.solve(tmp_path)
    result.write_labels(tmp_path / "labels")
    labels = distributed.join_labels(tmp_path / "labels")
    assert np.array_equal(labels, result.gather()) and graph.value(labels) == pytest.approx(result.value)
    whole = result.whole()
    assert isinstance(whole, mapmrf.Result) and whole.value == result.value and whole.gap == result.gap
    assert f"72 variables, {graph.n_factors} factors, 3 parts on 1 rank" in result.summary()
    (tmp_path / "labels" / "labels-00001.mrf").unlink()
    refuses(FormatError, "the labels of part 1 are missing", distributed.join_labels, tmp_path / "labels")


@pytest.mark.parametrize("seed", [3, [1, 2]])
def test_a_stream_of_random_numbers_is_entered_anywhere(seed: int | list[int]) -> None:
    places = np.random.default_rng(0).integers(0, 200_000, 50)
    assert np.array_equal(uniform_at(seed, places), np.random.default_rng(seed).random(200_000)[places])
    assert np.array_equal(uniform_at(seed, places, skip=7), np.random.default_rng(seed).random(200_007)[7:][places])


# -- files that are cut while they are read ---------------------------------------------------------------------------


MODELS_STREAMING = {
    "grid": grid(7, 6, 2.0, seed=1),
    "mixed": random_graph(30, 40, states=(1, 4), arity=(2, 4), hard=0.1, seed=2),
    "constant": FactorGraph.from_tables([2, 3], [(), (1,), (1, 0)], [[1.5], [0, 1, 2], np.arange(6.0).reshape(3, 2)]),
}


@pytest.mark.parametrize("name", MODELS_STREAMING)
@pytest.mark.parametrize("suffix", [".uai", ".LG", ".uai.gz"])
@pytest.mark.parametrize("block", [1 << 20, 64])
def test_the_parts_are_those_of_the_model_that_is_read_whole(name, suffix, block, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(streaming, "BLOCK", block)
    path = tmp_path / f"model{suffix}"
    mapmrf.write(MODELS_STREAMING[name], path)
    graph = mapmrf.read(path)
    folder = stream_partition(path, tmp_path / "parts", 2)
    assert_same(folder, graph, slabs(graph.n_vars, 2), 1e-14)
    assert sorted(path.name for path in (tmp_path / "parts").iterdir()) == [
        "part-00000.mrf", "part-00001.mrf", "parts.json",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("MRF 2 2 2 0", "expected MARKOV or BAYES"),
        ("MARKOV\n2 2 2 1\n2 0 1\n4 1 2 3", "it ends after 11 numbers, expected 12"),
        ("MARKOV\n2 2 2 1\n2 0 1\n3 1 2 3 4", "table of factor 0: found size 3, expected 4"),
        ("MARKOV\n2 2 2 1\n2 0 1\n4 1 2 x 4", "found 'x', expected a number"),
        ("MARKOV\n2 2 2 1\n2 0 5\n4 1 2 3 4", "out of range"),
        ("MARKOV\n2 2 2 1\n2 0 1\n4 1 2 -3 4", "table of factor 0: found -3, expected a finite potential"),
        ("MARKOV\n2 2 2 1\n4 0 1", "it ends within the scope of factor 0"),
        ("", "expected MARKOV or BAYES"),
    ],
)
def test_what_is_wrong_is_said_with_the_name_of_the_file(text: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "model.uai"
    path.write_text(text)
    with pytest.raises(FormatError, match=r"model\.uai: ") as caught:
        stream_partition(path, tmp_path / "parts", 1)
    assert message in str(caught.value)


def test_a_damaged_archive_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "model.uai.gz"
    path.write_bytes(gzip.compress(b"MARKOV\n1 2 0\n")[:-4])
    with pytest.raises(FormatError):
        stream_partition(path, tmp_path / "parts", 1)


# -- models that are built by parts -----------------------------------------------------------------------------------


def assert_same_rows(folder: PartFolder, graph: FactorGraph, row: int) -> None:
    starts = [slab.begin for slab in slabs_of(graph.n_vars // row, folder.counts.n_parts)]
    assert_same(folder, graph, np.searchsorted(starts, np.arange(graph.n_vars) // row, side="right") - 1)


@pytest.mark.parametrize("parts", [1, 2, 5])
def test_a_spin_glass_and_a_noisy_picture_by_parts_are_the_whole_ones(parts: int, tmp_path: Path) -> None:
    folder = grid_parts(SpinGrid(11, 7, 2.5, 0.5, 3), tmp_path / "grid", parts)
    assert_same_rows(folder, grid(11, 7, 2.5, field=0.5, seed=3), 7)
    folder = potts_parts(PottsPicture(150, 9, 3, 0.7, 1.1, 5), tmp_path / "potts", parts)
    assert_same_rows(folder, potts_image(150, 9, 3, 0.7, 1.1, seed=5).graph, 9)


@pytest.mark.parametrize(
    ("shape", "options"),
    [
        ((9, 6, 2), {"weight": 0.7}),
        ((9, 6, 3), {"neighbours": 8, "smoothness": "linear", "truncation": 1.5}),
        ((6, 4, 3, 3), {"costs": True}),
        ((9, 6, 2), {"weight": {(0, 1): np.linspace(0, 1, 45).reshape(9, 5), (1, 0): 2.0, (2, 1): 0.5}}),
    ],
)
def test_an_image_by_parts_is_the_whole_one(shape: tuple[int, ...], options: dict[str, Any], tmp_path: Path) -> None:
    np.save(tmp_path / "unary.npy", np.random.default_rng(1).normal(size=shape))
    unary = np.load(tmp_path / "unary.npy", mmap_mode="r")
    folder = image_parts(unary, tmp_path / "parts", 3, **options)
    graph = images.grid_model(unary, **options)
    far = isinstance(options.get("weight"), Mapping)
    assert max(part.graph.n_vars - part.n_own for part in folder.read(range(3))) > 2 * 6 * far
    assert_same_rows(folder, graph, int(np.prod(shape[1:-1])))


def test_impossible_requests_are_refused(tmp_path: Path) -> None:
    refuses(OptionError, "4 parts of 3 variables", grid_parts, SpinGrid(3, 5), tmp_path, 4)
    refuses(GraphError, r"unary has shape \(3, 4\)", image_parts, np.zeros((3, 4)), tmp_path, 2)
    refuses(OptionError, "10 parts of 9 variables", distributed.partition, grid(3, 3), tmp_path, 10)
    refuses(OptionError, "cut is 'best'", distributed.partition, grid(3, 3), tmp_path, 2, "best")
    refuses(FormatError, r"it has no parts\.json", distributed.solve, tmp_path)
    refuses(OptionError, "3 ranks but 2 parts", parts_of, 0, 3, 2)
    distributed.partition(grid(3, 3), tmp_path, 2)
    refuses(OptionError, "icm does not run on a model in parts", distributed.solve, tmp_path, method="icm")
