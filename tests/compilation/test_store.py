"""The user's cache, a file per kernel, and archives of them, neither ever trusted; and the stamps of kernels."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clocks import wait_until
from mapmrf.compilation import jit
from mapmrf.compilation.store import (
    KEEP_DAYS,
    Archive,
    ArchiveError,
    Key,
    Store,
    cache_folder,
    digest,
    stamp_of,
    versions,
    write_archive,
)

KEY = Key("mapmrf.kernels.heaps_and_forests.f", "(int64,)")


def test_code_is_found_by_kernel_signature_and_sources(tmp_path: Path) -> None:
    store = Store(tmp_path / "cpu")
    store.put(KEY, "stamp", b"one\ntwo")
    assert store.get(KEY, "stamp") == b"one\ntwo"
    assert store.get(KEY, "other") is None
    assert store.get(Key(KEY.name, "()"), "stamp") is None


def test_a_file_of_another_kernel_is_not_taken(tmp_path: Path) -> None:
    store = Store(tmp_path)
    store.put(KEY, "stamp", b"code")
    (file,) = tmp_path.iterdir()
    other = Key("mapmrf.kernels.heaps_and_forests.g", "(int64,)")
    store.put(other, "stamp", b"other")
    (mine,) = set(tmp_path.iterdir()) - {file}
    mine.write_bytes(file.read_bytes())
    assert store.get(other, "stamp") is None


@pytest.mark.skipif(not hasattr(os, "getuid"), reason="files have no owner")
def test_code_of_another_user_is_not_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = Store(tmp_path)
    store.put(KEY, "stamp", b"code")
    monkeypatch.setattr(os, "fstat", lambda file: SimpleNamespace(st_uid=os.getuid() + 1, st_mode=0o100644))
    assert store.get(KEY, "stamp") is None
    monkeypatch.undo()
    assert store.get(KEY, "stamp") == b"code"


@pytest.mark.skipif(not hasattr(os, "getuid"), reason="files have no owner")
@pytest.mark.parametrize(("mode", "taken"), [(0o600, True), (0o644, True), (0o664, False), (0o646, False)])
def test_code_that_others_can_write_is_not_taken(mode: int, taken: bool, tmp_path: Path) -> None:
    store = Store(tmp_path)
    store.put(KEY, "stamp", b"code")
    (file,) = tmp_path.iterdir()
    file.chmod(mode)
    assert (store.get(KEY, "stamp") == b"code") == taken
    store.put(KEY, "stamp", b"new")  # compiled again and stored in its place
    assert store.get(KEY, "stamp") == b"new"


def test_entries_leave_out_what_is_damaged(tmp_path: Path) -> None:
    store = Store(tmp_path)
    store.put(KEY, "stamp", b"whole")
    store.put(Key("mapmrf.f", "()"), "stamp", b"damaged")
    (damaged,) = [path for path in tmp_path.iterdir() if b"damaged" in path.read_bytes()]
    damaged.write_bytes(damaged.read_bytes()[:-1])
    assert list(store.entries()) == [(KEY, "stamp", b"whole")]


def test_what_nobody_used_for_long_is_removed(tmp_path: Path) -> None:
    old = Store(tmp_path / "old")
    old.put(KEY, "stamp", b"code")
    (file,) = old.folder.iterdir()
    long_ago = time.time() - (KEEP_DAYS + 1) * 86400
    os.utime(file, (long_ago, long_ago))
    Store(tmp_path / "new").put(KEY, "stamp", b"code")
    assert not file.exists()


def test_the_folder_is_the_users(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path))
    assert cache_folder() == tmp_path / "mapmrf"
    monkeypatch.delenv("NUMBA_CACHE_DIR")
    assert cache_folder().name == "kernels"


# -- archives ---------------------------------------------------------------------------------------------------------

ENTRIES = [(KEY, "stamp", b"code" * 100), (Key("mapmrf.g", "()"), "other", b"")]


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("archive") / "deep" / "kernels.bin"
    assert write_archive(path, "x86-64-v3", ENTRIES) == 2
    return path


def test_what_is_written_is_read(archive: Path) -> None:
    found = Archive(archive)
    assert (len(found), found.versions, found.cpu) == (2, versions(), "x86-64-v3")
    assert [found.get(key, made_from) for key, made_from, _ in ENTRIES] == [code for *_, code in ENTRIES]
    assert found.get(Key("mapmrf.g", "(int64,)"), "other") is None
    assert found.get(KEY, "stale") is None
    assert list(archive.parent.iterdir()) == [archive]


@given(data=st.data())
def test_a_damaged_archive_is_refused_or_gives_nothing_wrong(data, archive, tmp_path_factory) -> None:
    content = bytearray(archive.read_bytes())
    at = data.draw(st.integers(0, len(content) - 1))
    content[at] ^= data.draw(st.integers(1, 255))
    path = tmp_path_factory.mktemp("damaged") / "kernels.bin"
    path.write_bytes(bytes(content[: data.draw(st.sampled_from([len(content), at]))]))
    try:
        found = Archive(path)
    except ArchiveError:
        return
    for key, made_from, code in ENTRIES:
        assert found.get(key, made_from) in (code, None)


def test_no_file_and_another_file_are_refused(tmp_path: Path) -> None:
    (tmp_path / "other").write_bytes(b"MZ" * 100)
    for name in ("missing", "other"):
        with pytest.raises(ArchiveError):
            Archive(tmp_path / name)


# -- stamps -----------------------------------------------------------------------------------------------------------


KERNEL = """\
from typing import NamedTuple
import mapmrf.run.pace as pace
from mapmrf.compilation.jit import bare, compiled, when_compiling
from mapmrf.kernels.heaps_and_forests import part_of as components, grow_forest as sift_up

SCALE = 2.0
OTHER = 3.0

class Pair(NamedTuple):
    first: float
    second: float = 1.0

def overloaded(x):
    return x

def meaning():
    return 1

when_compiling.append(meaning)

@compiled
def helper(x):
    return SCALE * overloaded(x)

@compiled
def kernel(x):
    {doc}
    return helper(x) + {called} + pace.ADMM + sum([y * 2.0 for y in x]) + Pair(x, x).first

def driver(x):
    return kernel(x) + OTHER
"""


def stamp_of_text(text: str, monkeypatch: pytest.MonkeyPatch) -> str:
    module, known = ModuleType("module"), list[Any]()
    monkeypatch.setitem(sys.modules, "module", module)
    monkeypatch.setattr(jit, "when_compiling", known)
    exec(compile(text, "module.py", "exec"), vars(module))
    return stamp_of(vars(module)["kernel"], known)


def test_a_stamp_changes_with_all_that_a_kernel_is_made_of(monkeypatch: pytest.MonkeyPatch) -> None:
    code = KERNEL.format(doc="pass", called="1.0")
    changed = [
        code,
        code.replace("SCALE = 2.0", "SCALE = 2.5"),
        code.replace("SCALE * overloaded", "SCALE * 2 * overloaded"),
        code.replace("    return x\n", "    return x + x\n"),
        code.replace("return 1", "return 2"),
        code.replace("y * 2.0", "y * 3.0"),
        code.replace("    second: float = 1.0", "    third: float = 1.0"),
        code.replace("1.0 + pace", "components + pace"),
        code.replace("1.0 + pace", "components + pace").replace("part_of as", "grow_forest as"),
        code.replace("@compiled\ndef kernel", "@bare\ndef kernel"),
    ]
    stamps = {stamp_of_text(text, monkeypatch) for text in changed}
    monkeypatch.setattr("mapmrf.run.pace.ADMM", 1)
    assert len(stamps | {stamp_of_text(code, monkeypatch)}) == len(changed) + 1


def test_a_stamp_ignores_comments_docstrings_and_drivers(monkeypatch: pytest.MonkeyPatch) -> None:
    code = KERNEL.format(doc='"""It says something."""', called="1.0")
    equal = [
        code,
        code.replace("something", "what it does"),
        code.replace("OTHER = 3.0", "OTHER = 4.0"),
        code.replace("def driver(x):", "# why\ndef driver(x, y=1):"),
    ]
    assert len({stamp_of_text(text, monkeypatch) for text in equal}) == 1


def test_a_stamp_is_the_same_in_every_process() -> None:
    code = (
        "from mapmrf.engines.moves.flip_state import *; from mapmrf.engines.messages import sweeps, trws_binary as t; "
    )
    code += "print(t.spin_worker.stamp, t.iterate_spins.stamp)"
    run = [subprocess.run([sys.executable, "-c", code], capture_output=True, check=True) for _ in range(2)]
    assert run[0].stdout == run[1].stdout


# -- several processes on one cache -----------------------------------------------------------------------------------


posix = pytest.mark.skipif(os.name != "posix", reason="kills processes")
WRITER = """
import sys
from pathlib import Path
from mapmrf.compilation.store import Key
from mapmrf.compilation.store import Store
store, letter = Store(Path(sys.argv[1])), sys.argv[2].encode()
print("ready", flush=True)
while True:
    store.put(Key("mapmrf.kernels.heaps_and_forests.f", "(int64,)"), "stamp", letter * 2_000_000)
"""


@posix
def test_two_writers_and_a_kill_leave_whole_kernels(tmp_path: Path) -> None:
    store, draw, seen = Store(tmp_path / "cpu"), random.Random(1), set()
    for _ in range(3):
        writers = [
            subprocess.Popen([sys.executable, "-c", WRITER, str(store.folder), letter], stdout=subprocess.PIPE)
            for letter in "ab"
        ]
        for writer in writers:
            assert writer.stdout is not None
            writer.stdout.readline()
        wait_until(lambda: store.get(KEY, "stamp") is not None)
        for _ in range(20):
            code = store.get(KEY, "stamp")
            assert code is None or (len(code) == 2_000_000 and len(set(code)) == 1)
            seen.add(code[:1] if code else None)
        time.sleep(draw.uniform(0.0, 0.1))
        for writer in writers:
            writer.send_signal(signal.SIGKILL)
            writer.communicate()
        code = store.get(KEY, "stamp")
        assert code is not None and len(set(code)) == 1 and len(code) == 2_000_000
    assert seen & {b"a", b"b"}


@posix
@pytest.mark.slow
def test_commands_share_a_cache_while_one_is_killed(tmp_path: Path) -> None:
    """Kernels are compiled by two commands at once, one of which is killed; what is left works and is not damaged."""
    import mapmrf
    from mapmrf.datasets import grid

    model, draw = tmp_path / "m.uai", random.Random(2)
    mapmrf.write(grid(20, 20, 2.0, seed=1), model)
    expected = mapmrf.solve(mapmrf.read(model), "icm").value
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path / "cache")}
    command = [sys.executable, "-m", "mapmrf", "solve", str(model), "-m", "icm", "--json"]
    for _ in range(4):
        pair = [subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) for _ in range(2)]
        time.sleep(draw.uniform(1.0, 8.0))
        pair[0].kill()
        pair[0].communicate()
        answer, _ = pair[1].communicate()
        assert pair[1].returncode == 0 and mapmrf.Result.from_json(answer).value == expected
    kernels = list((tmp_path / "cache").rglob("*.kernel"))
    assert kernels
    for path in kernels:
        head, _, body = path.read_bytes().partition(b"\n")
        assert head == digest(body).encode(), path
