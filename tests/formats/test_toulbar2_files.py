"""WCSP and CFN files as toulbar2 reads them, and what both formats keep: shared tables, decimals, the optimum."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from format_models import again
from hypothesis import given
from hypothesis import strategies as st
from test_cfn import HEAD
from test_cfn import T3 as T3_CFN
from test_wcsp import T3 as T3_WCSP

from mapmrf import formats
from mapmrf.model.graph import FactorGraph
from strategies import brute_force, random_recipe

both_formats = pytest.mark.parametrize("suffix", [".wcsp", ".cfn"])

SOLVE = """
import json, os, sys
import pytoulbar2
for path in sys.argv[1:]:
    read, write = os.pipe()
    if os.fork() == 0:  # toulbar2 keeps settings of a file for the next one
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        problem = pytoulbar2.CFN()
        try:
            problem.Read(path)
            found = problem.Solve()
        except Exception as error:
            found = None if "Contradiction" in type(error).__name__ else ("error", str(error))
        os.write(write, json.dumps(None if found is None else [list(map(int, found[0])), found[1]]).encode())
        os._exit(0)
    os.close(write)
    print(os.read(read, 1 << 16).decode())
    os.wait()
"""


def toulbar2(paths: list[Path]) -> list[tuple[list[int], float] | None]:
    """Optimal labels and costs by toulbar2, None for an infeasible model."""
    pytest.importorskip("pytoulbar2")
    command = [sys.executable, "-c", SOLVE, *map(str, paths)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)
    return [json.loads(line) for line in done.stdout.splitlines()]


@both_formats
def test_toulbar2_reads_what_is_written(tmp_path: Path, suffix: str) -> None:
    cases = []
    for seed in range(24):
        recipe = random_recipe(seed, 2 + seed % 5, seed % 9, hard=0.0 if seed % 3 else 0.3, max_arity=3)
        recipe.tables = [np.round(table, 3) if seed % 2 else table for table in recipe.tables]
        cases.append((recipe.graph(), tmp_path / f"{seed}{suffix}"))
        formats.write(*cases[-1])
    for (graph, path), found in zip(cases, toulbar2([path for _, path in cases]), strict=True):
        best, _ = brute_force(graph)
        if found is None:
            assert best == -math.inf
            continue
        at, cost = found
        name = path.read_text().split()[0]
        decimals, offset = (int(part.split("=")[1]) for part in name.split(":")[1:]) if ":" in name else (0, 0)
        assert graph.value(at) == pytest.approx(best, abs=1e-9)
        assert (offset - cost) / 10.0**decimals == pytest.approx(best, abs=1e-9)


BY_HAND = [
    (".wcsp", T3_WCSP),
    (".wcsp", "m 3 2 3 10  2 2 2  -2 0 1 5 1  1 1 2  2 1 2 5 -1  1 0 0 1  1 3"),
    (".wcsp", "m 1 2 2 10  2  1 0 0 3  0 3  1 4  0 7  0 2 1 1"),
    (".wcsp", "m 2 2 1 10  2 2  2 0 1 10 1  1 1 9"),
    (".cfn", T3_CFN),
    (".cfn", HEAD % ("<10.00", "{scope: [a], costs: [12.9 13]} {scope: [b], costs: [-3 0 1]}")),
    (".cfn", HEAD % (">5.00", "{scope: [a b], costs: [2.0 4 1 3 5 6]} {scope: [b], costs: [2 3 inf]}")),
    (".cfn", HEAD % ("<10.00", "f: {scope: [b a], costs: g} g: {scope: [b a], costs: [1 2 3 0 4 5]}")),
    (".cfn", HEAD % ("<10.00", "{scope: [b], defaultcost: 3, costs: [v 0.25]}")),
    (".cfn", HEAD % ("<10.00", "{scope: [], costs: [-3.5]}")),
]


def test_toulbar2_reads_files_by_hand_as_we_do(tmp_path: Path) -> None:
    paths = [tmp_path / f"{k}{suffix}" for k, (suffix, _) in enumerate(BY_HAND)]
    for path, (_, text) in zip(paths, BY_HAND, strict=True):
        path.write_text(text)
    for path, found in zip(paths, toulbar2(paths), strict=True):
        graph = formats.read(path)
        assert found is not None
        sign = 1.0 if 'mustbe: ">' in path.read_text() else -1.0
        assert sign * found[1] == pytest.approx(graph.value(found[0]))
        assert graph.value(found[0]) == pytest.approx(brute_force(graph)[0])


@both_formats
def test_written_tables_are_shared(tmp_path: Path, suffix: str) -> None:
    table = np.array([[0.0, -1.0], [-1.0, 0.0]])
    chain = FactorGraph.from_tables([2] * 5, [(i, i + 1) for i in range(4)], [table] * 4)
    formats.write(chain, tmp_path / f"m{suffix}")
    text = (tmp_path / f"m{suffix}").read_text()
    if suffix == ".wcsp":  # the header, four functions, and the two tuples of the first
        assert text.count("\n") == 2 + 4 + 2
    else:
        assert text.count("costs: f3") == 3 and text.count("costs: [") == 1
    assert formats.read(tmp_path / f"m{suffix}").n_tables == 1


@both_formats
@given(costs=st.lists(st.integers(-1000, 1000), min_size=12, max_size=12), digits=st.integers(0, 9))
def test_decimal_costs_are_kept_to_the_last_digit(suffix: str, costs: list[int], digits: int) -> None:
    table = np.array(costs) / 10.0**digits
    table = -np.abs(table) if suffix == ".wcsp" else table  # others are shifted, and then rounded once more
    graph = FactorGraph.from_tables([3, 4], [(1, 0)], [table])
    read = again(graph, f"m{suffix}")
    assert np.array_equal(read.theta_t, graph.theta_t) and read.constant == 0
