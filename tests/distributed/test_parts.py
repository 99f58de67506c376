"""Parts: what each has to know, files and their checksums, labels by parts."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from mpi_runs import needs_metis

import mapmrf
from mapmrf import FactorGraph, distributed
from mapmrf.datasets import grid, potts_image, random_graph
from mapmrf.distributed.cutting import metis, n_cut, owners, slab_starts, slabs, split
from mapmrf.distributed.evaluation import evaluate
from mapmrf.distributed.parts import OneProcess, Part, is_parts, part_path, parts_of
from mapmrf.distributed.run import PartedModel, uniform_at
from mapmrf.errors import FormatError, OptionError
from mapmrf.run.dual_state import ArrayFile, read_arrays, write_arrays

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
    model = PartedModel(OneProcess(), parts, graph.n_vars, graph.n_factors, 0)
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


def test_a_part_that_was_written_is_read_back(tmp_path: Path) -> None:
    folder = distributed.partition(MODELS["random"], tmp_path / "parts", 3, "slabs")
    assert is_parts(tmp_path / "parts") and not is_parts(tmp_path)
    expected = split(MODELS["random"], slabs(30, 3), 3)
    for part, other in zip(folder.read(range(3)), expected, strict=True):
        assert (part.n_own, part.n_inside, part.n_constrained) == (other.n_own, other.n_inside, other.n_constrained)
        assert np.array_equal(part.send, other.send) and np.array_equal(part.graph.theta_t, other.graph.theta_t)
        assert not part.graph.theta_v.flags.writeable


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
    with pytest.raises(FormatError, match=r"part-00001\.mrf: damaged"):
        distributed.read_part(path)


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
    with pytest.raises(FormatError, match="found a file of kind 'part', expected a file of kind 'labels'"):
        read_arrays(path, "labels")


def test_impossible_requests_are_refused(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="10 parts of 9 variables"):
        distributed.partition(grid(3, 3), tmp_path, 10)
    with pytest.raises(OptionError, match="cut is 'best'"):
        distributed.partition(grid(3, 3), tmp_path, 2, "best")  # type: ignore[arg-type]
    with pytest.raises(FormatError, match=r"it has no parts\.json"):
        distributed.solve(tmp_path)
    with pytest.raises(OptionError, match="3 ranks but 2 parts"):
        parts_of(0, 3, 2)
    distributed.partition(grid(3, 3), tmp_path, 2)
    with pytest.raises(OptionError, match="icm does not run on a model in parts"):
        distributed.solve(tmp_path, method="icm")


def test_labels_by_parts_are_joined(tmp_path: Path) -> None:
    graph = MODELS["potts"]
    distributed.partition(graph, tmp_path, 3)
    result = distributed.solve(tmp_path)
    result.write_labels(tmp_path / "labels")
    labels = distributed.join_labels(tmp_path / "labels")
    assert np.array_equal(labels, result.gather()) and graph.value(labels) == pytest.approx(result.value)
    (tmp_path / "labels" / "labels-00001.mrf").unlink()
    with pytest.raises(FormatError, match="the labels of part 1 are missing"):
        distributed.join_labels(tmp_path / "labels")


@pytest.mark.parametrize("seed", [3, [1, 2]])
def test_a_stream_of_random_numbers_is_entered_anywhere(seed: int | list[int]) -> None:
    places = np.random.default_rng(0).integers(0, 200_000, 50)
    assert np.array_equal(uniform_at(seed, places), np.random.default_rng(seed).random(200_000)[places])
    assert np.array_equal(uniform_at(seed, places, skip=7), np.random.default_rng(seed).random(200_007)[7:][places])


def test_result_in_one_piece(tmp_path: Path) -> None:
    graph = grid(6, 6, 2.0, seed=1)
    distributed.partition(graph, tmp_path, 2)
    found = distributed.solve(tmp_path, max_iterations=300)
    whole = found.whole()
    assert isinstance(whole, mapmrf.Result) and whole.value == found.value and whole.gap == found.gap
    assert "36 variables, 60 factors, 2 parts on 1 rank" in found.summary()
