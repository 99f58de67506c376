"""The notebooks run, leave nothing behind, and are stored without outputs."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

FOLDER = Path(__file__).parents[1] / "notebooks"
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
