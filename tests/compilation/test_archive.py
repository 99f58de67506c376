"""Archives of compiled kernels: what is written is read, and nothing damaged ever is."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mapmrf.compilation.archive import Archive, ArchiveError, Key, write_archive
from mapmrf.compilation.sources import kernel_files, stamp, stamp_of

ENTRIES = [(Key("mapmrf.kernels.forests.f", "(int64,)"), b"code" * 100), (Key("mapmrf.g", "()"), b"")]


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("archive") / "deep" / "kernels.bin"
    assert write_archive(path, "x86-64-v3", ENTRIES) == 2
    return path


def test_what_is_written_is_read(archive: Path) -> None:
    found = Archive(archive)
    assert (len(found), found.stamp, found.cpu) == (2, stamp(), "x86-64-v3")
    assert [found.get(key, "") for key, _ in ENTRIES] == [code for _, code in ENTRIES]
    assert found.get(Key("mapmrf.g", "(int64,)"), "") is None
    assert list(archive.parent.iterdir()) == [archive]


@given(data=st.data())
def test_a_damaged_archive_is_refused_or_gives_nothing_wrong(
    data: st.DataObject, archive: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    content = bytearray(archive.read_bytes())
    at = data.draw(st.integers(0, len(content) - 1))
    content[at] ^= data.draw(st.integers(1, 255))
    path = tmp_path_factory.mktemp("damaged") / "kernels.bin"
    path.write_bytes(bytes(content[: data.draw(st.sampled_from([len(content), at]))]))
    try:
        found = Archive(path)
    except ArchiveError:
        return
    for key, code in ENTRIES:
        assert found.get(key, "") in (code, None)


def test_no_file_and_another_file_are_refused(tmp_path: Path) -> None:
    (tmp_path / "other").write_bytes(b"MZ" * 100)
    for name in ("missing", "other"):
        with pytest.raises(ArchiveError):
            Archive(tmp_path / name)


def test_a_stamp_covers_the_kernels_that_a_kernel_calls() -> None:
    from mapmrf.engines.admm import factor_steps, forest_qp

    for module in (factor_steps, forest_qp):
        assert Path(str(module.__file__)) in kernel_files()
    assert len({stamp(), *(stamp_of(path) for path in kernel_files())}) == 1 + len(kernel_files())


def test_a_stamp_changes_with_an_imported_file(tmp_path: Path) -> None:
    code = tmp_path / "kernel.py"
    code.write_text("from mapmrf.kernels.jit import compiled\n")
    first = stamp_of(code)
    other = tmp_path / "other.py"
    other.write_text("from mapmrf.kernels.forests import components\n")
    assert len({first, stamp_of(other), stamp_of(tmp_path / "missing.py")}) == 3
    assert stamp_of(tmp_path / "missing.py") == ""
