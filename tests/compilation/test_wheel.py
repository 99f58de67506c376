"""The whole, as a new user meets it: the built wheel in a fresh environment with empty caches compiles nothing.

Builds the wheel and installs it from the registry, so it takes minutes: ``pytest -m wheel -n 0``.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

SOLVE = """
import json, sys
import mapmrf
from mapmrf.datasets import grid, lookalike, random_graph
import mapmrf.compilation as compilation

class Listener:
    n = 0
    def begin(self): self.n += 1
    def end(self): pass

count = Listener()
compilation.listeners.append(count)
found = {}
for name, graph in mapmrf_models().items():
    result = mapmrf.solve(graph, time_limit=5.0)
    found[name] = [result.value, result.bound, result.status.value]
print(json.dumps({"compiled": count.n, "numba": "numba" in sys.modules, "found": found}))
"""

MODELS = '''
def mapmrf_models():
    """A model of each family, small enough to be solved to the end."""
    from mapmrf.datasets import grid, lookalike, potts_image, random_graph, sets
    models = {name: lookalike(name, 1) for name in sets()}
    models["grid"] = grid(12, 12, 3.0, seed=1)
    models["potts"] = potts_image(20, 20, labels=4, noise=1.0, smoothness=0.8, seed=0).graph
    models["mixed"] = random_graph(40, 60, states=(2, 4), arity=(2, 4), hard=0.1, seed=5)
    return models
'''

pytestmark = pytest.mark.wheel


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    subprocess.run([sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "-w", folder, ROOT], check=True)
    (found,) = folder.glob("*.whl")
    return found


@pytest.fixture(scope="module")
def python(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("venv")
    subprocess.run([sys.executable, "-m", "venv", folder], check=True)
    scripts = folder / ("Scripts" if os.name == "nt" else "bin")
    subprocess.run([scripts / "python", "-m", "pip", "install", "--quiet", wheel], check=True)
    return scripts / "python"


def run(python: Path, home: Path, *arguments: str) -> str:
    """What a command of the fresh environment prints, with a home and caches that are empty before."""
    home.mkdir(exist_ok=True)
    env = {key: word for key, word in os.environ.items() if not key.startswith(("NUMBA", "MAPMRF", "PYTHON"))}
    env |= {"HOME": str(home), "XDG_CACHE_HOME": str(home / "cache"), "NUMBA_CACHE_DIR": str(home / "kernels")}
    done = subprocess.run([python, *arguments], cwd=home, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def kept(home: Path) -> list[Path]:
    return list((home / "kernels").rglob("*.kernel"))


def test_the_wheel_is_for_this_platform_and_leaves_numba_alone(wheel: Path) -> None:
    version = f"cp{sys.version_info.major}{sys.version_info.minor}"
    assert f"-{version}-{version}-" in wheel.name
    with zipfile.ZipFile(wheel) as files:
        assert "mapmrf/compiled/kernels.bin" in files.namelist()
        (metadata,) = (name for name in files.namelist() if name.endswith("METADATA"))
        text = files.read(metadata).decode()
    assert "Requires-Dist: numba>=" in text
    assert "Requires-Dist: llvmlite" not in text


def test_what_ships_is_in_use(python: Path, tmp_path: Path) -> None:
    first = run(python, tmp_path / "home", "-m", "mapmrf", "compile", "--status").splitlines()[0]
    assert first.startswith("used      shipped: ")


def test_the_demo_compiles_nothing(python: Path, tmp_path: Path) -> None:
    assert "optimal" in run(python, tmp_path / "home", "-m", "mapmrf", "demo")
    assert kept(tmp_path / "home") == []


def test_a_model_of_each_family_is_solved_as_warm_and_nothing_is_compiled(python: Path, tmp_path: Path) -> None:
    cold, warm = (json.loads(run(python, tmp_path / "home", "-c", MODELS + SOLVE)) for _ in range(2))
    assert (cold["compiled"], cold["numba"]) == (0, False)
    assert kept(tmp_path / "home") == []
    proven = [name for name, (_, _, status) in warm["found"].items() if status == "optimal"]
    assert len(proven) >= 6
    for name in proven:
        assert cold["found"][name][0] == pytest.approx(warm["found"][name][0], rel=1e-9), name
        assert cold["found"][name][2] == "optimal", name


def test_damaged_code_is_not_loaded(python: Path, tmp_path: Path) -> None:
    code = "import mapmrf.compilation.store as o; print(o.SHIPPED)"
    archive = Path(run(python, tmp_path / "home", "-c", code).strip())
    content = archive.read_bytes()
    try:
        archive.write_bytes(content[: len(content) // 2])
        solve = (
            "import mapmrf; from mapmrf.datasets import grid; print(mapmrf.solve(grid(9, 9, 1.0, seed=0), 'icm').value)"
        )
        cut = run(python, tmp_path / "cut", "-c", solve)
        archive.write_bytes(content)
        assert cut == run(python, tmp_path / "whole", "-c", solve)
        assert kept(tmp_path / "cut") != []
        assert kept(tmp_path / "whole") == []
    finally:
        archive.write_bytes(content)
