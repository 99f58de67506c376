"""Reading and writing UAI models: what the numbers and the layout mean."""

from __future__ import annotations

import itertools
import logging
import math

import numpy as np
import pytest

from mapmrf import formats
from mapmrf.formats import uai
from mapmrf.graph import FactorGraph


def read(tmp_path, text: str, name: str = "m.uai", **options) -> FactorGraph:
    path = tmp_path / name
    path.write_bytes(text.encode())
    return formats.read(path, **options)


def all_values(graph: FactorGraph) -> np.ndarray:
    return np.array([graph.value(x) for x in itertools.product(*[range(c) for c in graph.card])])


def test_example(tmp_path, t3, t3_uai, t3_lg) -> None:
    for name, text in (("t3.uai", t3_uai), ("t3.LG", t3_lg)):
        graph = read(tmp_path, text, name)
        assert graph.card.tolist() == [2, 3, 2]
        assert graph.scope.tolist() == [0, 1, 2, 1]
        assert np.allclose(all_values(graph), all_values(t3), rtol=0, atol=1e-12)
        assert graph.value([1, 1, 0]) == pytest.approx(1.2)
        assert [graph.value([x0, 1, 1]) for x0 in (0, 1)] == [-np.inf, -np.inf]
        assert np.count_nonzero(np.isneginf(all_values(graph))) == 2


@pytest.mark.parametrize(
    "change",
    [
        lambda text: text.replace("\n", "\r\n"),
        lambda text: text.replace("\n", " "),
        lambda text: text.replace("\n", "\n\n\t "),
        lambda text: text.replace("MARKOV", "markov  "),
        lambda text: "c a comment\nc\n" + text.replace("2 0 1\n", "2 0 1 # the first pair\nc 5 6 7\n"),
        lambda text: "# written by a program\r\n" + text + "# the end",
        lambda text: text.strip(),
        lambda text: "\ufeff" + text,
    ],
)
def test_blanks_and_comments(tmp_path, t3, t3_uai, change) -> None:
    assert np.allclose(all_values(read(tmp_path, change(t3_uai))), all_values(t3), rtol=0, atol=1e-12)


def test_constants_unaries_and_single_states(tmp_path) -> None:
    text = "MARKOV 4 1 2 3 2  5  0  1 1  1 1  2 0 1  0   1 2.0  2 1 3  2 2 5  2 1 10  1 0.5"
    graph = read(tmp_path, text)
    assert graph.constant == pytest.approx(0.0)
    assert graph.n_factors == 1
    assert graph.value([0, 1, 2, 1]) == pytest.approx(math.log(3 * 5 * 10))


def test_no_factors_and_no_variables(tmp_path) -> None:
    assert read(tmp_path, "MARKOV 2 3 4 0").value([2, 3]) == 0.0
    assert read(tmp_path, "MARKOV\n0\n\n0\n").n_vars == 0
    assert read(tmp_path, "MARKOV 0 1 0 1 5").constant == pytest.approx(math.log(5))


def test_last_variable_is_fastest_in_the_scope_as_written(tmp_path) -> None:
    graph = read(tmp_path, "MARKOV 3 2 3 4 1  3 2 0 1  24 " + " ".join(str(k + 1) for k in range(24)))
    for x0, x1, x2 in itertools.product(range(2), range(3), range(4)):
        assert graph.value([x0, x1, x2]) == pytest.approx(math.log(1 + x2 * 6 + x0 * 3 + x1))


def test_equal_tables_are_shared(tmp_path) -> None:
    pairs = [(i, i + 1) for i in range(9)]
    tables = ["4 1 2 2 1", "4 3 0 0 3", "4 1.0 2 2.00 1e0"]
    text = f"MARKOV 10 {'2 ' * 10} 9 " + " ".join(f"2 {i} {j}" for i, j in pairs)
    graph = read(tmp_path, text + " " + " ".join(tables[a % 3] for a in range(9)))
    assert graph.table_of.tolist() == [0, 1, 0] * 3
    assert np.exp(graph.theta_t).round(9).tolist() == [1, 2, 2, 1, 3, 0, 0, 3]


def test_numbers(tmp_path) -> None:
    text = "MARKOV 1 6 1 1 0 6 1e-3 +2.5E2 .5 5. 4.9406564584124654e-324 0"
    expected = [math.log(x) for x in (1e-3, 250, 0.5, 5, 5e-324)]
    assert read(tmp_path, text).theta_v[:5].tolist() == pytest.approx(expected)
    assert read(tmp_path, text).theta_v[5] == -np.inf


def test_logs(tmp_path) -> None:
    text = "MARKOV 1 6 1 1 0 6 -1e30 -1e39 -inf -9e29 -1e400 3"
    expected = [-np.inf, -np.inf, -np.inf, -9e29, -np.inf, 3]
    assert read(tmp_path, text, "m.LG").theta_v.tolist() == expected
    assert read(tmp_path, text, "m.uai.LG").theta_v.tolist() == expected
    assert read(tmp_path, text, "m.uai", values="log").theta_v.tolist() == expected


def test_costs(tmp_path) -> None:
    text = "MARKOV 1 4 1 1 0 4 1.5 -2 inf 1e31"
    assert read(tmp_path, text, values="cost").theta_v.tolist() == [-1.5, 2, -np.inf, -np.inf]
    assert read(tmp_path, "MARKOV 1 2 1 1 0 2 1 2", "m.LG", values="potential").theta_v[1] == pytest.approx(math.log(2))


def test_potts_extension(tmp_path) -> None:
    text = "MARKOV 4 3 3 2 2  4  1 0  2 0 1  2 2 3  2 1 0    3 0 -1 -1   -1 -0.5  -1 -0.5  9 0 -1 -1 -1 0 -1 -1 -1 0"
    graph = read(tmp_path, text, "m.UAI.LG")
    assert graph.value([0, 0, 1, 1]) == 0.0
    assert graph.value([0, 1, 1, 0]) == -2.0
    assert graph.value([1, 1, 0, 0]) == -1.0
    shared = "MARKOV 3 2 2 2 2  2 0 1  2 1 2   -1 -7  -1 -7"
    assert read(tmp_path, shared, "m.LG").n_tables == 1
    assert read(tmp_path, shared, values="cost").value([0, 1, 0]) == 14.0
    assert read(tmp_path, shared.replace("-7", "-inf"), "m.LG").value([0, 1, 0]) == -np.inf


def test_bayes_child_is_last(tmp_path, caplog) -> None:
    text = "BAYES 2 2 3 2  1 0  2 0 1  2 .25 .75  6 .1 .2 .7  .3 .3 .4"
    with caplog.at_level(logging.WARNING, logger="mapmrf"):
        graph = read(tmp_path, text)
    assert caplog.text == ""
    assert graph.value([1, 2]) == pytest.approx(math.log(0.75 * 0.4))
    assert sum(np.exp(all_values(graph))) == pytest.approx(1.0)


def test_bayes_reports_rows_to_the_log(tmp_path, caplog) -> None:
    text = "BAYES 2 2 3 2  1 0  2 0 1  2 .25 .75  6 .1 .2 .7  .3 .3 .41"
    with caplog.at_level(logging.WARNING, logger="mapmrf"):
        graph = read(tmp_path, text)
    assert "m.uai" in caplog.text and "factor 1" in caplog.text
    assert graph.value([1, 2]) == pytest.approx(math.log(0.75 * 0.41))  # taken as it is
    caplog.clear()
    with caplog.at_level(logging.WARNING, logger="mapmrf"):
        read(tmp_path, text.replace("BAYES", "MARKOV"))
    assert caplog.text == ""


def test_writes_only_what_matters(tmp_path) -> None:
    graph = FactorGraph.from_tables([2, 2], [(1, 0), (0,)], [[0, 0.5, 1, 2], [0, -np.inf]])
    path = tmp_path / "m.LG"
    formats.write(graph, path)
    assert " ".join(path.read_text().split()) == "MARKOV 2 2 2 2 1 0 2 1 0 2 0 -1e+39 4 0 0.5 1 2"
    formats.write(graph, path, values="cost")
    assert " ".join(path.read_text().split()) == "MARKOV 2 2 2 2 1 0 2 1 0 2 0 1e+39 4 0 -0.5 -1 -2"


def test_potentials_out_of_range_are_scaled(tmp_path) -> None:
    tables = [[1000.0, 1001.0], [-1500.0, -200.0], [-800.0, 10.0, -np.inf, -802.0]]
    graph = FactorGraph.from_tables([2, 2], [(0,), (1,), (0, 1)], tables)
    formats.write(graph, tmp_path / "m.uai")
    again = formats.read(tmp_path / "m.uai")
    assert np.allclose(all_values(again), all_values(graph), rtol=0, atol=1e-9)


def test_what_potentials_cannot_hold(tmp_path, error_of) -> None:
    path = tmp_path / "m.uai"
    wide = FactorGraph.from_tables([2, 2], [(0, 1)], [[0, 0, -2000, 0]])
    assert "factor 0" in error_of(path, formats.write, wide, path)
    far = FactorGraph.from_tables([2], [(0,), ()], [[0, -2000], [0]])
    assert ".LG" in error_of(path, formats.write, far, path)
    constant = FactorGraph.from_tables([2], [()], [[5000]])
    assert "constant" in error_of(path, formats.write, constant, path)
    assert not path.exists()
    for graph in (wide, far, constant):
        formats.write(graph, tmp_path / "m.LG")
        assert all_values(formats.read(tmp_path / "m.LG")).tolist() == all_values(graph).tolist()


def test_what_logs_cannot_hold(tmp_path, error_of) -> None:
    path = tmp_path / "m.LG"
    graph = FactorGraph.from_tables([2], [(0,)], [[0, -1e35]])
    assert "forbidden" in error_of(path, formats.write, graph, path)


def test_large_models_are_written_in_pieces(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr("mapmrf.formats.uai._CHUNK", 8)
    random = np.random.default_rng(0)
    scopes = [tuple(random.permutation(6)[: 1 + a % 3]) for a in range(40)]
    card = [2, 3, 2, 1, 2, 3]
    tables = [np.full(int(np.prod([card[i] for i in scope])), float(a % 5)) for a, scope in enumerate(scopes)]
    graph = FactorGraph.from_tables(card, scopes, tables)
    formats.write(graph, tmp_path / "m.LG")
    again = formats.read(tmp_path / "m.LG")
    assert again.scope.tolist() == graph.scope.tolist()
    assert all_values(again).tolist() == all_values(graph).tolist()


def test_sniff() -> None:
    assert uai.sniff(b"\n markov 3") and uai.sniff(b"BAYES\n")
    assert not uai.sniff(b"{}") and not uai.sniff(b"")
