"""The lock of a release: every package pinned, with the hash of its file."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest


@pytest.fixture(scope="module")
def lock() -> ModuleType:
    spec = importlib.util.spec_from_file_location("lock", Path(__file__).parents[1] / "benches" / "lock.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def item(name: str, version: str, **archive: Any) -> dict[str, Any]:
    return {"metadata": {"name": name, "version": version}, "download_info": {"url": "https://x/f.whl", **archive}}


def test_packages_are_pinned_with_their_hashes_in_order(lock: ModuleType) -> None:
    hashes = {"archive_info": {"hashes": {"sha256": "ab" * 32}}}
    report = {"install": [item("numpy", "2.0", **hashes), item("Markdown_It", "3.1", **hashes)]}
    assert lock.lock_lines(report) == [
        f"markdown-it==3.1 --hash=sha256:{'ab' * 32}",
        f"numpy==2.0 --hash=sha256:{'ab' * 32}",
    ]


@pytest.mark.parametrize("archive", [{}, {"archive_info": {}}, {"archive_info": {"hashes": {"md5": "ab"}}}])
def test_a_file_without_a_hash_is_an_error(lock: ModuleType, archive: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"numpy 2\.0 has no SHA-256: https://x/f\.whl"):
        lock.lock_lines({"install": [item("numpy", "2.0", **archive)]})


def test_the_core_and_the_extras_asked_for_are_pinned(lock: ModuleType) -> None:
    core = lock.requirements([])
    assert any(text.startswith("numba") for text in core)
    assert not any(text.startswith("matplotlib") for text in core)
    assert any(text.startswith("matplotlib") for text in lock.requirements(["plots"]))
