"""Equal tables are stored once, and tables that are multiples of one another become one table and weights."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import mapmrf
from binary_models import grid_pairs
from mapmrf import FactorGraph
from mapmrf.arrays import offsets
from mapmrf.formats import tables
from mapmrf.formats.tables import Factors, with_weights
from strategies import recipes, weighted

SIDE = 12
POTTS = np.eye(4) - 1.0
LINEAR = -np.minimum(np.abs(np.subtract.outer(np.arange(5.0), np.arange(5.0))), 2.5)
QUADRATIC = -np.minimum(np.subtract.outer(np.arange(4.0), np.arange(4.0)) ** 2, 5.0)
ISING = np.array([[1.0, -1.0], [-1.0, 1.0]])
DECIMAL = -np.array([[0.0, 0.3, 1.0], [0.3, 0.0, 0.3], [1.0, 0.3, 0.0]])


def image(table: np.ndarray, seed: int = 0) -> FactorGraph:
    """A grid with a table times a weight of its own on every pair."""
    random = np.random.default_rng(seed)
    edges = grid_pairs(SIDE, SIDE)
    unary = random.normal(size=(SIDE * SIDE, len(table)))
    return FactorGraph.from_pairwise(unary, edges, table, weight=random.exponential(size=len(edges)))


def pairs(rows: np.ndarray, users: int = 1, arity: int = 2) -> Factors:
    """Factors on two variables, so many for each table."""
    n = users * len(rows)
    ptr, table_of = np.arange(0, rows.size + 1, rows.shape[1]), np.repeat(np.arange(len(rows)), users)
    return Factors(arity * np.arange(n + 1), np.tile(np.arange(arity), n), table_of, ptr, rows.ravel())


def assert_same_potentials(one: FactorGraph, two: FactorGraph) -> None:
    assert one.n_factors == two.n_factors
    assert np.array_equal(one.theta_v, two.theta_v)
    for a in range(one.n_factors):
        assert np.array_equal(one.scope_of(a), two.scope_of(a))
        assert np.array_equal(one.table(a), two.table(a))


@pytest.mark.parametrize("suffix", [".LG", ".h5"])
@pytest.mark.parametrize("table", [POTTS, LINEAR, QUADRATIC, ISING], ids=["potts", "linear", "quadratic", "ising"])
def test_an_image_with_contrast_comes_back_as_one_table_and_its_weights(tmp_path, suffix, table) -> None:
    if suffix == ".h5":
        pytest.importorskip("h5py")
    graph = image(table)
    path = tmp_path / f"image{suffix}"
    mapmrf.write(graph, path)
    back = mapmrf.read(path)
    assert back.n_tables == 1
    assert back.weight is not None
    assert_same_potentials(back, graph)


def test_a_table_of_decimal_numbers_is_found_where_its_products_are_exact(tmp_path: Path) -> None:
    graph = image(DECIMAL)
    mapmrf.write(graph, tmp_path / "image.LG")
    back = mapmrf.read(tmp_path / "image.LG")
    assert back.weight is not None
    assert back.n_tables <= graph.n_factors // 8
    assert_same_potentials(back, graph)


@given(seed=st.integers(0, 2**32 - 1), scale=st.sampled_from([1e-200, 1e-3, 1.0, 1e100, 1e300]))
def test_products_are_the_tables_to_the_last_bit(seed: int, scale: float) -> None:
    """Some of many tables are multiples of nothing, some hold -inf, 0, or numbers of very different sizes."""
    random = np.random.default_rng(seed)
    kinds = np.stack([POTTS, QUADRATIC, np.where(np.eye(4) == 1, -np.inf, -1.0), np.zeros((4, 4)), 1e-12 * POTTS - 1.0])
    rows = scale * random.exponential(size=(200, 1)) * kinds[random.integers(0, 5, 200)].reshape(200, 16)
    own = random.random(200) < 0.04
    rows[own] = random.normal(size=(int(own.sum()), 16))
    found = with_weights(pairs(rows))
    if found.weight is not None:
        units = found.theta_t.reshape(-1, 16)
        assert np.array_equal(found.weight[:, None] * units[found.table_of], rows)
        assert len(units) <= 200 // 8
        assert np.all(found.weight > 0)


def test_what_saves_no_memory_is_left_alone() -> None:
    random = np.random.default_rng(0)
    own = random.normal(size=(100, 16))
    assert with_weights(pairs(own)).weight is None
    few = np.outer(random.exponential(size=100), POTTS.ravel())
    assert with_weights(pairs(few)).weight is not None
    assert with_weights(pairs(few, users=100)).weight is None  # 100 tables of 10 000 factors
    assert with_weights(pairs(few, arity=1)).weight is None  # all on single variables
    assert with_weights(pairs(few[:20])).weight is None  # a small model


@given(recipe=recipes(), seed=st.integers(0, 2**32 - 1))
def test_any_model_with_weights_survives_a_file(tmp_path_factory, recipe, seed) -> None:
    graph = weighted(recipe, seed).graph()
    path = tmp_path_factory.mktemp("weights") / "model.LG"
    mapmrf.write(graph, path)
    assert_same_potentials(mapmrf.read(path), graph)


def test_writing_out_weights_is_logged_unless_the_format_has_them(tmp_path, caplog) -> None:
    caplog.set_level("INFO", logger="mapmrf")
    graph = image(ISING)
    mapmrf.write(graph, tmp_path / "model.LG")
    assert f"the format has no weights: written as {graph.n_factors} tables instead of 1" in caplog.text
    caplog.clear()
    mapmrf.write(graph, tmp_path / "model.coo")
    assert "has no weights" not in caplog.text
    back = mapmrf.read(tmp_path / "model.coo")
    assert back.n_tables == 1
    for labels in (np.zeros(graph.n_vars), np.arange(graph.n_vars) % 2):
        assert back.value(labels) == pytest.approx(graph.value(labels))


def by_hand(blocks: list[tuple[float, ...]]) -> list[int]:
    return [blocks.index(block) for block in blocks]


@given(blocks=st.lists(st.lists(st.sampled_from([0.0, -0.0, 1.0, -np.inf, 0.1]), max_size=3).map(tuple), max_size=12))
def test_first_equal(blocks: list[tuple[float, ...]]) -> None:
    ptr = offsets([len(block) for block in blocks])
    values = np.array([x for block in blocks for x in block], dtype=np.float64)
    assert tables.first_equal(values, ptr[:-1], np.diff(ptr)).tolist() == by_hand(blocks)


@pytest.mark.parametrize("chunk", [1, 7, 1 << 17])
def test_chunks_and_round_numbers(monkeypatch, chunk) -> None:
    monkeypatch.setattr(tables, "_CACHED", chunk)
    table = np.random.default_rng(0).integers(0, 4, (500, 4)).astype(np.float64)
    found = tables.first_equal(table.ravel(), np.arange(500) * 4, np.full(500, 4))
    assert found.tolist() == by_hand([tuple(row) for row in table.tolist()])


def test_colliding_hashes_keep_tables_apart(monkeypatch) -> None:
    monkeypatch.setattr(tables, "_hashes", lambda bits: np.zeros(len(bits), dtype=np.uint64))
    found = tables.first_equal(np.array([1.0, 2.0, 1.0, 3.0]), np.arange(4), np.ones(4, dtype=np.int64))
    assert found.tolist() == [0, 1, 0, 3]
