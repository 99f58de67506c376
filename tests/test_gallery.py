"""The gallery: the script draws the pictures that the page shows."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def drawn(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with all pictures of the script; a warning or a failure of it is one of the test."""
    pytest.importorskip("matplotlib")
    pytest.importorskip("networkx")
    folder = tmp_path_factory.mktemp("gallery")
    command = [sys.executable, "-W", "error", str(ROOT / "examples" / "gallery.py"), "--output", str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"})
    assert done.returncode == 0, done.stderr
    return folder


def test_the_script_draws_what_the_page_shows(drawn: Path) -> None:
    text = (ROOT / "docs" / "gallery.md").read_text(encoding="utf-8")
    shown = set(re.findall(r"\(pictures/(gallery-[^)]*)\)", text))
    assert {path.name for path in drawn.iterdir()} == shown
    assert shown == {path.name for path in (ROOT / "docs" / "pictures").glob("gallery-*")}


def test_the_pictures_have_the_size_of_those_in_the_documentation(drawn: Path) -> None:
    image = pytest.importorskip("PIL.Image")
    for path in sorted(drawn.iterdir()):
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
