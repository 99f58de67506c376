"""Archives of compiled kernels: what is written is read, and nothing damaged ever is."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mapmrf.compilation.store import Archive, ArchiveError, Key, _parse, kernel_stamps, stamp, stamp_of, write_archive

ENTRIES = [(Key("mapmrf.kernels.forests.f", "(int64,)"), b"code" * 100), (Key("mapmrf.g", "()"), b"")]


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("archive") / "deep" / "kernels.bin"
    assert write_archive(path, "x86-64-v3", ENTRIES) == 2
    return path


def test_what_is_written_is_read(archive: Path) -> None:
    found = Archive(archive)
    assert (len(found), found.stamp, found.cpu) == (2, stamp(), "x86-64-v3")
    assert [found.get(key) for key, _ in ENTRIES] == [code for _, code in ENTRIES]
    assert found.get(Key("mapmrf.g", "(int64,)")) is None
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
    for key, code in ENTRIES:
        assert found.get(key) in (code, None)


def test_no_file_and_another_file_are_refused(tmp_path: Path) -> None:
    (tmp_path / "other").write_bytes(b"MZ" * 100)
    for name in ("missing", "other"):
        with pytest.raises(ArchiveError):
            Archive(tmp_path / name)


def test_every_kernel_has_a_stamp_of_its_own_and_a_missing_file_none(tmp_path: Path) -> None:
    stamps = kernel_stamps()
    assert len(stamps) > 300
    assert len({stamp(), *stamps.values()}) == 1 + len(stamps)
    assert stamp_of("module.kernel", tmp_path / "missing.py") == ""


KERNEL = """\
from mapmrf.compilation.jit import compiled
from mapmrf.kernels.forests import components

SCALE = 2.0
OTHER = 3.0

@compiled
def helper(x):
    return SCALE * x

@compiled
def kernel(x):
    {doc}
    return helper(x) + {called}

def driver(x):
    return kernel(x) + OTHER
"""


def stamp_of_text(path: Path, text: str) -> str:
    path.write_text(text)
    _parse.cache_clear()
    return stamp_of("module.kernel", path)


def test_a_stamp_changes_with_what_a_kernel_calls(tmp_path: Path) -> None:
    code = KERNEL.format(doc="pass", called="1.0")
    changed = [
        code,
        code.replace("SCALE = 2.0", "SCALE = 2.5"),
        code.replace("SCALE * x", "SCALE * x * x"),
        code.replace("1.0", "components"),
        code.replace("1.0", "components").replace("forests import components", "forests import other as components"),
        code.replace("@compiled\ndef kernel", "@bare\ndef kernel").replace("import compiled", "import bare, compiled"),
    ]
    assert len({stamp_of_text(tmp_path / "kernels.py", text) for text in changed}) == len(changed)


def test_a_stamp_ignores_comments_docstrings_and_drivers(tmp_path: Path) -> None:
    code = KERNEL.format(doc="pass", called="1.0")
    equal = [
        code,
        code.replace("    pass\n", '    """It says what it does."""\n    pass\n'),
        code.replace("OTHER = 3.0", "OTHER = 4.0"),
        code.replace("def driver(x):", "# why\ndef driver(x, y=1):"),
    ]
    assert len({stamp_of_text(tmp_path / "kernels.py", text) for text in equal}) == 1
