"""The worked examples run, small, say what they found, beat each pixel on its own, and draw a picture."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from scripts import ROOT


def run(name: str, *arguments: str) -> str:
    """What an example prints; a warning or a failure of it is one of the test."""
    command = [sys.executable, "-W", "error", str(ROOT / "examples" / f"{name}.py"), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"})
    assert done.returncode == 0, done.stderr
    return done.stdout


WRONG = r"^(.*?): (?:wrong disparities: )?([\d.]+) % (?:of the pixels differ|of \d+ voxels are wrong|by more than 1)"
GAIN = r"^([\w ]+): PSNR ([\d.]+) dB"
DRAWN: dict[str, tuple[int, str, Callable[[dict[str, float]], bool]]] = {
    "segmentation": (4, WRONG, lambda w: max(w["every pixel"], w["superpixels"]) < 0.6 * w["each pixel alone"]),
    "coins": (2, r"^(.*): 2[0-4] coins, (\d+) regions", lambda n: n["segment"] < 0.6 * n["brightness alone"]),
    "volume": (2, WRONG, lambda w: w["truth"] == 0 and w["26 neighbours"] < 0.6 * w["each voxel alone"]),
    "denoising": (8, GAIN, lambda g: g["trws"] > max(g["icm"], g["noisy"] + 3) and g["icm"] > g["noisy"]),
    "inpainting": (4, GAIN, lambda g: g["trws"] > g["nearest known pixel"] + 1),
    "stereo": (6, WRONG, lambda w: w["trws"] < 0.7 * w["each pixel alone"]),
}
"""By how much the pictures of an example are shrunk, the figures that it prints, and what makes them good."""


@pytest.mark.parametrize("name", DRAWN)
def test_an_example_draws_its_panels_and_beats_each_pixel_alone(name: str, tmp_path: Path) -> None:
    pytest.importorskip("skimage", reason="the examples use pictures of scikit-image")
    pytest.importorskip("matplotlib")
    image = pytest.importorskip("PIL.Image")
    shrink, pattern, good = DRAWN[name]
    path = tmp_path / f"{name}.png"
    text = run(name, "--output", str(path), "--shrink", str(shrink), "--seconds", "600", "--iterations", "10")
    with image.open(path) as picture:
        assert picture.format == "PNG" and min(picture.size) > 100
    assert "energy" in text and "gap" in text
    found = {what: float(number) for what, number in re.findall(pattern, text, re.MULTILINE)}
    assert good(found), found


@pytest.mark.skipif(sys.platform == "win32", reason="asks the system for peak memory as Unix counts it")
def test_the_large_model_says_what_it_takes() -> None:
    size = ("--height", "100", "--width", "120", "--labels", "4")
    text = run("half_a_million", *size, "--method", "icm", "--contrast")
    assert "estimate:" in text
    assert re.search(r"memory: \d+ MB taken, \d+ MB estimated", text)


# -- the gallery ------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def gallery(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with all pictures of the script."""
    pytest.importorskip("matplotlib")
    pytest.importorskip("networkx")
    folder = tmp_path_factory.mktemp("gallery")
    run("gallery", "--output", str(folder))
    return folder


def test_the_script_draws_what_the_page_shows(gallery: Path) -> None:
    text = (ROOT / "docs" / "gallery.md").read_text(encoding="utf-8")
    shown = set(re.findall(r"\(pictures/(gallery-[^)]*)\)", text))
    assert {path.name for path in gallery.iterdir()} == shown
    assert shown == {path.name for path in (ROOT / "docs" / "pictures").glob("gallery-*")}


def test_the_pictures_have_the_size_of_those_in_the_documentation(gallery: Path) -> None:
    image = pytest.importorskip("PIL.Image")
    for path in sorted(gallery.iterdir()):
        with image.open(path) as picture, image.open(ROOT / "docs" / "pictures" / path.name) as kept:
            assert picture.format == "WEBP"
            assert picture.size == kept.size
            assert len(picture.convert("RGB").getcolors(1 << 24)) > 50


def test_every_picture_of_the_page_names_a_script_that_is_there() -> None:
    text = (ROOT / "docs" / "gallery.md").read_text(encoding="utf-8")
    sections = text.split("\n## ")[1:]
    assert all("![" in section and "```python" in section for section in sections)
    for script in re.findall(r"`((?:examples|docs/pictures)/\w+\.py)`", text):
        assert (ROOT / script).exists()


# -- notebooks --------------------------------------------------------------------------------------------------------


FOLDER = ROOT / "notebooks"
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))
every_notebook = pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
BEFORE = "%reset -f\nimport os, warnings\nos.chdir({folder!r})\nwarnings.simplefilter('error')\ndel os, warnings"
"""Runs before the first cell: nothing is left of the last notebook, and a warning is a failure here, too."""


def code_cells(notebook: dict[str, Any]) -> list[dict[str, Any]]:
    return [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]


def test_there_are_notebooks() -> None:
    assert len(NOTEBOOKS) >= 5


@every_notebook
def test_it_is_stored_without_outputs_and_places_of_a_machine(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    for cell in code_cells(json.loads(text)):
        assert cell["outputs"] == []
        assert cell["execution_count"] is None
    assert not re.search(r"/(home|root|tmp|Users)/|[A-Z]:\\\\", text)


@pytest.fixture(scope="module")
def kernel() -> Iterator[Any]:
    pytest.importorskip("nbclient", reason="notebooks are run by nbclient and ipykernel")
    pytest.importorskip("ipykernel", reason="notebooks are run by nbclient and ipykernel")
    manager = pytest.importorskip("jupyter_client").KernelManager(kernel_name="python3")
    manager.start_kernel()
    yield manager
    manager.shutdown_kernel(now=True)
    manager.context.term()


@every_notebook
@pytest.mark.filterwarnings("default")  # those of Jupyter are not ours; in the kernel warnings are errors
def test_it_runs_and_writes_no_file(path: Path, tmp_path: Path, kernel: Any) -> None:
    import nbclient
    import nbformat

    if "skimage" in path.read_text(encoding="utf-8"):
        pytest.importorskip("skimage", reason="the photograph is one of scikit-image")
    notebook = nbformat.read(path, as_version=4)
    notebook.cells.insert(1, nbformat.v4.new_code_cell(BEFORE.format(folder=str(tmp_path / "cwd"))))
    before = sorted(FOLDER.iterdir())
    folder = tmp_path / "cwd"
    folder.mkdir()
    client = nbclient.NotebookClient(notebook, km=kernel, timeout=120)
    client.execute(cleanup_kc=False)
    client.kc.stop_channels()
    assert list(folder.iterdir()) == []
    assert sorted(FOLDER.iterdir()) == before
    assert shows_pictures(notebook) == mentions_pictures(notebook)


def mentions_pictures(notebook: Any) -> int:
    """Cells that end with a figure."""
    return sum(cell.source.splitlines()[-1].startswith("plots.") for cell in code_cells(notebook))


def shows_pictures(notebook: Any) -> int:
    """Cells that show one."""
    return sum(any("image/png" in output.get("data", {}) for output in cell.outputs) for cell in code_cells(notebook))
