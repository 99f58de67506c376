"""The cache of kernels on disk survives whatever it finds there."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

MODULE = """
from typing import NamedTuple
import numpy as np
from mapmrf.kernels.jit import compiled

class {struct}(NamedTuple):
    values: np.ndarray

@compiled
def total(given):
    return given.values.sum()

def main():
    print(total({struct}(np.arange(4.0))), sum(total.stats.cache_hits.values()))
"""


def run(folder: Path, struct: str) -> list[str]:
    """The sum by the kernel, and how often it came from the cache, in a process of its own."""
    (folder / "module.py").write_text(MODULE.format(struct=struct))
    env = {**os.environ, "NUMBA_CACHE_DIR": str(folder / "cache"), "PYTHONDONTWRITEBYTECODE": "1"}
    command = [sys.executable, "-c", "import module; module.main()"]
    return subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, check=True).stdout.split()


def test_a_kernel_is_compiled_once(tmp_path: Path) -> None:
    assert [run(tmp_path, "Given"), run(tmp_path, "Given")] == [["6.0", "0"], ["6.0", "1"]]


def test_a_renamed_struct_is_compiled_again(tmp_path: Path) -> None:
    run(tmp_path, "Given")
    assert run(tmp_path, "Other") == ["6.0", "0"]
    assert run(tmp_path, "Other") == ["6.0", "1"]


@pytest.mark.parametrize("content", [b"", b"\x80\x05nonsense"], ids=["empty", "damaged"])
def test_a_damaged_index_is_replaced(tmp_path: Path, content: bytes) -> None:
    run(tmp_path, "Given")
    for index in (tmp_path / "cache").rglob("*.nbi"):
        index.write_bytes(content)
    assert run(tmp_path, "Given") == ["6.0", "0"]
    assert run(tmp_path, "Given") == ["6.0", "1"]
