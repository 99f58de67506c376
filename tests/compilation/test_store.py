"""The user's cache: a file per kernel, never trusted."""

from __future__ import annotations

import os
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from mapmrf.compilation.store import KEEP_DAYS, Key, Store, cache_folder, own_stamps

KEY = Key("mapmrf.kernels.forests.f", "(int64,)")


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
    other = Key("mapmrf.kernels.forests.g", "(int64,)")
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


def test_entries_leave_out_what_is_stale_or_foreign(tmp_path: Path) -> None:
    store = Store(tmp_path)
    name, made_from = next(iter(own_stamps().items()))
    key = Key(name, "(int64,)")
    store.put(key, made_from, b"fresh")
    store.put(Key(name, "()"), "stale", b"stale")
    store.put(Key("somebody.f", "()"), "stamp", b"foreign")
    assert list(store.entries()) == [(key, b"fresh")]


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
