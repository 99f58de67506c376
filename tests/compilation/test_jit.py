"""The cache of kernels on disk survives whatever it finds there."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

import numpy as np
import pytest
from numba import typeof

from mapmrf.compilation import jit
from mapmrf.compilation.jit import compiled, kind_of
from mapmrf.compilation.store import Origin, Store

MODULE = """
from typing import NamedTuple
import numpy as np
from mapmrf.compilation.jit import compiled

class {struct}(NamedTuple):
    values: np.ndarray

@compiled
def total(given):
    return given.values.sum()

def main():
    print(total({struct}(np.arange(4.0))), total.n_loaded)
"""


def run_in_a_process(folder: Path, struct: str) -> list[str]:
    """The sum by the kernel, and how often it came from the cache, in a process of its own."""
    (folder / "module.py").write_text(MODULE.format(struct=struct))
    env = {**os.environ, "NUMBA_CACHE_DIR": str(folder / "cache"), "PYTHONDONTWRITEBYTECODE": "1"}
    command = [sys.executable, "-c", "import module; module.main()"]
    return subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, check=True).stdout.split()


def test_a_kernel_is_compiled_once(tmp_path: Path) -> None:
    assert [run_in_a_process(tmp_path, "Given") for _ in range(2)] == [["6.0", "0"], ["6.0", "1"]]


Run = Callable[..., list[str]]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Load a module as new processes would, with a cache of its own: the sum, and how often it came from there."""
    store = Store(tmp_path / "cache" / "cpu")
    monkeypatch.setattr(jit, "origins", lambda: (Origin("cache", store, ""),))
    monkeypatch.setattr(jit, "user_store", lambda: store)

    def run(struct: str, code: str = MODULE) -> list[str]:
        path, module = tmp_path / "module.py", ModuleType("module")
        path.write_text(code.format(struct=struct))
        monkeypatch.setitem(sys.modules, "module", module)
        exec(compile(path.read_text(), path, "exec"), vars(module))
        module.main()
        return capsys.readouterr().out.split()

    return run


def test_a_renamed_struct_or_a_changed_kernel_is_compiled_again(run: Run) -> None:
    assert run("Given") == ["6.0", "0"]
    assert run("Other") == ["6.0", "0"]
    assert run("Other") == ["6.0", "1"]
    run("Given")
    assert run("Given", MODULE.replace("values.sum()", "values.sum() + 1")) == ["7.0", "0"]


def test_damaged_code_is_compiled_again(run: Run, tmp_path: Path) -> None:
    run("Given")
    (file,) = (tmp_path / "cache").rglob("*.kernel")
    for content in (b"", b"\x80\x05nonsense", file.read_bytes()[:-1]):
        file.write_bytes(content)
        assert run("Given") == ["6.0", "0"]
    assert run("Given") == ["6.0", "1"]


def test_a_folder_that_cannot_be_written_does_no_harm(run: Run, tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("a file in the place of the folder")
    assert [run("Given"), run("Given")] == [["6.0", "0"], ["6.0", "0"]]


@compiled
def scaled(values: np.ndarray, by: int) -> float:
    return by * values.sum()


@compiled
def optional(values: np.ndarray, by: int | None = None) -> float:
    return values.sum() if by is None else by * values.sum()


@compiled
def collected(values: np.ndarray, *more: float) -> float:
    return values.sum() + len(more) * 2.0


@compiled
def outer(values: np.ndarray, small: np.ndarray) -> float:
    return scaled(values, 2) + scaled(values, small[0]) + scaled(values, len(values))


def test_calls_between_kernels_share_one_specialisation_and_know_wrapped_integers() -> None:
    outer.compile(kind_of((np.ones(3), np.array([5], dtype=np.int32))))  # what is loaded has its callees inside
    assert outer(np.ones(3), np.array([5], dtype=np.int32)) == 3 * (2 + 5 + 3)
    assert len(scaled.dispatcher.linked.overloads) == 1
    assert len(scaled.dispatcher.overloads) == 0  # Python has not called it
    assert outer(np.ones(2), np.array([-(2**31)], dtype=np.int32)) == 2.0 * (2 - 2**31 + 2)


def test_arguments_may_have_names_and_defaults_and_be_any_number() -> None:
    assert scaled(by=2, values=np.ones(3)) == 6.0
    assert [optional(np.ones(3)), optional(np.ones(3), None), optional(np.ones(3), 2)] == [3.0, 3.0, 6.0]
    assert [collected(np.ones(3), 2.0), collected(np.ones(3))] == [5.0, 3.0]


def test_with_the_compiler_disabled_kernels_are_functions(tmp_path: Path) -> None:
    code = "from mapmrf.compilation.jit import compiled\nprint(type(compiled(len)).__name__)"
    env = {**os.environ, "NUMBA_DISABLE_JIT": "1"}
    found = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "builtin_function_or_method"


class Pair(NamedTuple):
    values: np.ndarray
    shift: float


VALUES = np.arange(4.0)
UNLIKE = [
    Pair(VALUES, 1.0),
    Pair(VALUES, 1),
    Pair(VALUES, True),
    Pair(VALUES, 2**63),
    Pair(VALUES[::2], 1.0),
    Pair(np.frombuffer(VALUES.tobytes()), 1.0),
    Pair(VALUES.astype(np.int64), 1.0),
    Pair(VALUES.reshape(2, 2), 1.0),
    Pair(np.asfortranarray(VALUES.reshape(2, 2)), 1.0),
    (VALUES, 1.0),
]
"""Arguments of different types: numbers, layouts, arrays that can be written to or not, and classes."""


def test_arguments_are_of_one_kind_where_numba_gives_them_one_type() -> None:
    for one, other in itertools.product(UNLIKE, repeat=2):
        assert (kind_of(one) == kind_of(other)) == (typeof(one) == typeof(other)), (one, other)


def test_machine_code_for_arguments_takes_others_of_their_types() -> None:
    kernel = compiled(lambda pair: pair.values.sum() + pair.shift)
    for pair in UNLIKE[:1] + UNLIKE[4:6]:
        entry = kernel.entry((pair,))
        assert entry is kernel.entry((pair._replace(shift=7.0),))
        assert entry(pair._replace(shift=7.0)) == pair.values.sum() + 7.0


LOADED = """
import sys
import numpy as np
from {module} import Given, Named, failing, named
assert named(Given(np.arange(3.0), 2)) == Named(3.0, (2, True))
for _ in range(2):
    try:
        failing(Given(np.arange(3.0), 2))
    except ValueError as error:
        assert str(error) == "too few"
print("numba" in sys.modules)
import numba
print(numba.njit(lambda x: x + 1)(1))  # which finds its own extensions loaded
named(Given(np.arange(3.0, dtype=np.float32), 2))
"""

RETURNING = """
from typing import NamedTuple
import numpy as np
from mapmrf.compilation.jit import compiled

class Given(NamedTuple):
    values: np.ndarray
    n: int

class Named(NamedTuple):
    total: float
    rest: tuple[int, bool]

@compiled
def named(given):
    copy = given.values * 1.0
    return Named(copy.sum(), (given.n, given.n > 1))

@compiled
def failing(given):
    if given.n < 3:
        raise ValueError("too few")
    return given.values * 2.0
"""


def test_machine_code_is_loaded_without_numba_which_may_come_later(tmp_path: Path) -> None:
    (tmp_path / "returning.py").write_text(RETURNING)
    env = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path / "cache"), "PYTHONDONTWRITEBYTECODE": "1"}
    command = [sys.executable, "-c", LOADED.format(module="returning")]
    for known in ("True", "False"):
        done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True)
        assert done.stdout.split() == [known, "2"], done.stderr
