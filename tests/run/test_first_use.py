"""The first use of the library in a process, from several threads at a time: nothing hangs or sees half of a module.

pytest -m slow -s -n 0 tests/run/test_first_use.py        # 200 processes, with a line for each
"""

from __future__ import annotations

import importlib.util
import itertools
import json
import subprocess
import sys

import pytest

import mapmrf
from mapmrf.datasets import grid

HUNG = 300
"""Seconds after which a process counts as hung and shows where; a kernel may have to be compiled."""

SCRIPT = f"""
import faulthandler, json, sys
from types import SimpleNamespace
faulthandler.dump_traceback_later({HUNG}, exit=True)
import mapmrf
from concurrent.futures import ThreadPoolExecutor
n, files = int(sys.argv[1]), sys.argv[2:]
{{}}
print(json.dumps([float(result.value) for result in found]))
"""

WAYS = {
    "solve_many": "found = mapmrf.solve_many(files, jobs=n)",
    "solve_rows": "found = mapmrf.solve_rows(mapmrf.read(files[0]), [{0: 0}, {0: 1}] * 4, jobs=n)",
    "threads": "found = ThreadPoolExecutor(n).map(mapmrf.solve, files)",
    "methods": """
names = ["trws", "icm", "bp", "mplp", "chains", "flips", "blocks", "auto"]
found = ThreadPoolExecutor(n).map(mapmrf.solve, files, names)
""",
    "command": """
from mapmrf.cli import main
main(["solve", *files, "-j", str(n), "--json", "-q"])
""",
    "dask": """
import dask
found = dask.compute(*map(dask.delayed(mapmrf.solve), files), scheduler="threads", num_workers=n)
""",
    "torch": """
def value(file):
    import torch
    graph = mapmrf.read(file)
    layer = mapmrf.torch.MapLayer(graph, mapmrf.torch.LayerSmoothing("imle", samples=1), jobs=2)
    return layer(torch.tensor(graph.theta_v).repeat(2, 1)).sum()
found = [SimpleNamespace(value=value) for value in ThreadPoolExecutor(n).map(value, files)]
""",
}


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, float]:
    """Files of models that need kernels, and their best values."""
    folder, best = tmp_path_factory.mktemp("models"), {}
    for k in range(8):
        path = str(folder / f"{k}.uai")
        mapmrf.write(grid(15, 15, coupling=2.0, seed=k), path)
        best[path] = mapmrf.solve(path).value
    return best


def use(way: str, n: int, models: dict[str, float]) -> None:
    """Use the library in a new process, which must end well."""
    if way in ("dask", "torch") and importlib.util.find_spec(way) is None:
        pytest.skip(f"needs {way}")
    command = [sys.executable, "-c", SCRIPT.format(WAYS[way]), str(n), *models]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    found = [json.loads(line) for line in done.stdout.splitlines()]
    values = [each["value"] for each in found] if way == "command" else found[0]
    assert len(values) == len(models)
    if way in ("solve_many", "threads", "command", "dask"):
        assert values == pytest.approx(list(models.values()))


@pytest.mark.parametrize(("way", "n"), list(zip(WAYS, itertools.cycle([2, 8]))))
def test_the_first_use_is_from_several_threads(way: str, n: int, models: dict[str, float]) -> None:
    use(way, n, models)


@pytest.mark.slow
@pytest.mark.parametrize("time", range(15))
@pytest.mark.parametrize("n", [2, 8])
@pytest.mark.parametrize("way", WAYS)
def test_the_first_use_goes_well_every_time(way: str, n: int, time: int, models: dict[str, float]) -> None:
    use(way, n, models)
