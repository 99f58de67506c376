"""The experiments of `benches/run.py`: the smallest of the table, and images that are the same for all packages."""

from __future__ import annotations

import importlib
import json
import math
import re
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

import mapmrf
from mapmrf.errors import UnsupportedModel


@pytest.fixture(scope="module")
def driver(benches: Callable[[str], ModuleType]) -> ModuleType:
    return benches("run")


@pytest.fixture(scope="module")
def bench(driver: ModuleType) -> ModuleType:
    """Other packages on pictures."""
    return importlib.import_module("rivals")


def printed(driver: ModuleType, capsys: pytest.CaptureFixture[str], *words: str) -> list[list[str]]:
    """Rows of the first table of an experiment, as cells."""
    driver.main([*words])
    lines = capsys.readouterr().out.partition("\n\n")[0].splitlines()
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


SMALLEST = [
    ["spheres", "--quick"],
    ["lslp_everywhere", "--quick", "--models", "structures/dynamic", "--runs", "icm", "bp"],
    ["native_constraints", "--quick", "--models", "segmentation: 10 x 10 pixels, size given"],
    ["feasibility", "--quick", "--runs", "auto", "--models", "sudoku with a wrong clue", "10 pigeons, 9 holes"],
    ["ablation", "--quick", "--models", "grid80", "--runs", "... + ICM", "... + restarts of regions", "annealing"],
    ["speed", "--quick", "--models", "grid80", "--runs", "trws", "bp"],
    ["expansion_threads", "--quick"],
    ["quick_inference", "--quick", "--models", "one table"],
    ["warm_start", "--quick", "--models", "one table", "--runs", "trws", "lslp without sphere"],
    ["startup", "--quick", "--models", "grid4"],
    ["images", "--quick", "--models", "potts-500x5", "binary-1000"],
]


@pytest.mark.parametrize("words", SMALLEST, ids=[words[0] for words in SMALLEST])
def test_the_smallest_experiments_print_a_full_table(driver, capsys, words) -> None:
    table = printed(driver, capsys, *words)
    assert len(table) > 2
    assert {len(row) for row in table} == {len(table[0])}
    assert words[0] == "ablation" or all(any(row[1:]) for row in table[2:])  # of grid80 no best value is known


def test_every_experiment_names_models_runners_methods_and_figures_that_exist(driver: ModuleType) -> None:
    sets = {*mapmrf.datasets.sets(), *driver.models.FOLDERS, *driver.models.GROUPS}
    for name, experiment in driver.experiments().items():
        assert experiment.about and experiment.figures, name
        for selector in experiment.models:
            assert selector in driver.models.GENERATED or re.split("[/#%]", selector)[0] in sets, selector
        for _, _, run in experiment.all_runs():
            runner = run.get("run", "solve")
            assert runner in driver.RUNNERS | driver.RIVALS, name
            method = run.get("method")
            assert method in mapmrf.methods() or method == "quick" or runner not in ("solve", "per_iteration", "memory")
        columns = {key for entry in (experiment.columns, *experiment.rows) for key in [entry] if key}
        assert columns <= {"model", "set", "run", "variant"}


def test_every_generated_model_can_be_made_at_a_small_size(driver: ModuleType) -> None:
    for name, make in driver.models.GENERATED.items():
        if name.startswith("photo"):
            pytest.importorskip("skimage")
        graph = make(1, 0.001)
        assert graph.n_vars > 0
        assert graph.n_vars <= 5000, name


def test_models_are_selected_by_set_part_and_number(driver: ModuleType) -> None:
    def names(selector: str, seeds: int = 1) -> list[str]:
        return [model.name for model in driver.models.select(selector, seeds=seeds)]

    triples = ["triples, degree 6", "triples, degree 20", "triples, 3 states, degree 9"]
    assert names("structures/triples") == triples
    assert names("structures/triples#2") == triples[:2]
    assert names("structures/triples%2") == triples[::2]
    assert names("grid80") == ["grid80"] and names("grid80", 2) == ["grid80 #0", "grid80 #1"]
    with pytest.raises(SystemExit, match="no models are called"):
        names("nothing")


def test_the_best_values_are_kept_over_several_calls(driver: ModuleType, tmp_path: Path) -> None:
    model = driver.models.Model("m", "s", lambda _: mapmrf.datasets.grid(2, 2))
    for value, share in ((-2.0, 100.0), (-1.0, 100.0), (-2.0, 0.0)):
        case = driver.Case(model, "run", "", {"value": value})
        driver.add_shares([case], tmp_path / "best.csv")
        assert case.record["percent of the best"] == share


def test_figures_of_several_runs_are_means_medians_and_counts(driver: ModuleType) -> None:
    model = driver.models.Model("m", "s", lambda _: mapmrf.datasets.grid(2, 2))
    records = [
        {"value": value, "seconds": seconds, "proven": proven, "status": "optimal"}
        for value, seconds, proven in ((1.0, 3.0, True), (2.0, 1.0, False), (6.0, 2.0, True))
    ]
    cases = [driver.Case(model, "run", "", record) for record in records]
    expected = {
        "value": 3.0, "largest value": 6.0, "seconds": 2.0, "least seconds": 1.0, "proven": "2/3", "status": "optimal",
        "bound": None,
    }  # fmt: skip
    assert {name: driver.figure(cases, name) for name in expected} == expected
    cells = ((math.inf, "proof s", "-"), (0.1234, "proof s", "0.123"), (None, "bound", ""))
    assert all(driver.cell(number, name) == text for number, name, text in cells)


def test_ratios_and_times_to_a_value(driver: ModuleType) -> None:
    model = driver.models.Model("m", "s", lambda _: mapmrf.datasets.grid(2, 2))
    cases = [driver.Case(model, run, "", {"seconds": seconds}) for run, seconds in (("a", 2.0), ("b", 3.0))]
    lines = list(driver.table(cases, ["model"], ["seconds"], "run", ["a", "b"]))
    assert lines[1] == "| m | 2.000 | 3.000 | 1.50 |"
    assert lines[2].strip() == "b / a: geometric mean 1.50, from 1.50 to 1.50"
    record = {"trace": [(0.1, 1.0, ""), (0.2, 3.0, ""), (0.3, 5.0, "")]}
    assert driver.reached(record, 1.0) == 0.1
    assert driver.reached(record, 2.0) == 0.2
    assert math.isnan(driver.reached(record, 6.0))
    assert math.isnan(driver.reached({}, 0.0))


def test_other_sources_are_run_in_turn(driver: ModuleType, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    source = str(Path(mapmrf.__file__).parents[1])
    records = tmp_path / "records.jsonl"
    table = printed(driver, capsys, "spheres", "--quick", "--runs", "icm", "--against", source, "--json", str(records))
    assert table[0][2:] == [
        f"{side}: {name}" for side in ("before", "after") for name in ("processor s", "seconds", "value")
    ] + ["ratio"]
    before, after = (json.loads(line) for line in records.read_text().splitlines())
    assert before["value"] == after["value"]


def test_an_unknown_experiment_is_a_mistake_of_one_line(driver: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        driver.main(["nothing"])
    assert "no experiment is called 'nothing'" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["binary-1000", "volume-64"])
def test_the_cut_of_pymaxflow_is_the_optimum_of_our_model(bench: ModuleType, name: str) -> None:
    pytest.importorskip("maxflow")
    case = bench.picture(name, 0.0005)
    graph = case.graph
    best = mapmrf.solve(graph.expanded(), "maxflow")
    assert graph.value(bench.by_maxflow(case)[0]) == pytest.approx(best.value)


@pytest.mark.parametrize("name", ["binary-1000", "potts-500x5", "linear-400x32", "volume-64", "photo-400x600x3"])
def test_gco_works_on_our_model_and_never_beats_its_bound(bench: ModuleType, name: str) -> None:
    pytest.importorskip("gco")
    if name.startswith("photo"):
        pytest.importorskip("skimage")
    case = bench.picture(name, 0.0005)
    graph = case.graph
    ours = mapmrf.solve(graph.expanded(), "trws", max_iterations=200)
    value = graph.value(bench.by_gco(case)[0])
    assert ours.bound is not None
    assert value <= ours.bound + 1e-6 * abs(ours.bound)
    alone = graph.value(case.unary.reshape(-1, case.n_labels).argmax(axis=1))
    assert value - alone > 0.8 * (ours.value - alone)  # the same model: it finds most of what there is to gain


def test_expansions_are_those_of_one_weight_for_all(bench: ModuleType) -> None:
    pytest.importorskip("maxflow")
    case = bench.picture("potts-500x5", 0.001)
    labels, *_ = bench.by_maxflow(case)
    assert case.graph.value(labels) > case.graph.value(case.unary.reshape(-1, 5).argmax(axis=1))
    with pytest.raises(UnsupportedModel):
        bench.by_maxflow(bench.picture("photo-400x600x3", 0.001))


@pytest.mark.skipif(sys.platform != "linux", reason="reads memory as Linux counts it")
def test_the_memory_of_methods_is_measured_in_bytes_per_variable(driver, capsys) -> None:
    words = ("--scale", "0.2", "--models", "noise-316x2", "noise-316x8", "--runs", "icm", "maxflow")
    table = printed(driver, capsys, "memory", *words, "--time-limit", "20")
    assert table[0][1:] == [f"noise-316x{n}: {what}" for n in (2, 8) for what in ("bytes per variable", "estimated")]
    icm, cut = table[2], table[3]
    assert icm[0] == "icm"
    assert 72 < float(icm[1]) < 3000
    assert cut[3] == ""
