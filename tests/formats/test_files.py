"""The register, compression, and writing that never leaves half a file."""

from __future__ import annotations

import bz2
import gzip
import logging
import lzma
import os
import subprocess
import sys
import threading
import warnings
from pathlib import Path

import numpy as np
import pytest

import mapmrf
from mapmrf import formats
from mapmrf.errors import FormatError, GraphError, OptionError
from mapmrf.formats.files import plain_name, read_bytes, replacing, write_bytes
from refusals import refuses

COMPRESS = {".gz": gzip.compress, ".bz2": bz2.compress, ".xz": lzma.compress}


@pytest.mark.parametrize("suffix", ["", *COMPRESS])
def test_writes_compressed(tmp_path, t3, suffix) -> None:
    path = tmp_path / ("t3.LG" + suffix)
    formats.write(t3, path)
    data = path.read_bytes()
    if suffix:
        assert not data.startswith(b"MARKOV")
    assert read_bytes(path).startswith(b"MARKOV")
    assert np.array_equal(formats.read(path).theta_t, t3.theta_t)
    formats.write(t3, path)
    assert path.read_bytes() == data


def test_compression_is_seen_without_a_suffix_and_in_several_members(tmp_path, t3_uai) -> None:
    path = tmp_path / "t3.uai"
    path.write_bytes(gzip.compress(t3_uai.encode()))
    assert formats.read(path).n_vars == 3
    path = tmp_path / "t3.uai.gz"
    path.write_bytes(gzip.compress(t3_uai[:50].encode()) + gzip.compress(t3_uai[50:].encode()))
    assert formats.read(path).n_vars == 3


@pytest.mark.parametrize("suffix", COMPRESS)
@pytest.mark.parametrize("damage", ["cut", "flipped", "junk"])
def test_damaged_compression(tmp_path, error_of, t3_uai, suffix, damage) -> None:
    data = bytearray(COMPRESS[suffix](t3_uai.encode()))
    if damage == "cut":
        data = data[: len(data) // 2]
    elif damage == "flipped":
        data[len(data) // 2] ^= 0xFF
    else:
        data = bytearray(t3_uai.encode())
    path = tmp_path / ("t3.uai" + suffix)
    path.write_bytes(data)
    assert suffix in error_of(path, formats.read, path)


def test_unknown_suffix(tmp_path, error_of, t3, t3_uai) -> None:
    path = tmp_path / "t3.xyz.gz"
    message = error_of(path, formats.write, t3, path)
    assert "'.xyz'" in message and ".uai" in message
    path.write_bytes(gzip.compress(b"hello world"))
    assert "'.xyz'" in error_of(path, formats.read, path)
    path.write_bytes(gzip.compress(t3_uai.encode()))
    assert formats.read(path).n_vars == 3  # known by its first word
    bare = tmp_path / "model"
    bare.write_text("what is this")
    assert "without a suffix" in error_of(bare, formats.read, bare)


def test_what_cannot_be_opened(tmp_path, error_of, t3) -> None:
    missing = tmp_path / "no.uai"
    assert "No such file" in error_of(missing, formats.read, missing)
    folder = tmp_path / "folder.uai"
    folder.mkdir()
    assert "directory" in error_of(folder, formats.read, folder)
    assert "directory" in error_of(folder, formats.write, t3, folder)
    nowhere = tmp_path / "no" / "t3.uai"
    assert "No such file" in error_of(nowhere, formats.write, t3, nowhere)


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root may do everything")
def test_permissions(tmp_path, error_of, t3) -> None:
    path = tmp_path / "t3.uai"
    path.write_text("keep")
    path.chmod(0o000)
    assert "Permission denied" in error_of(path, formats.read, path)
    assert "Permission denied" in error_of(path, formats.write, t3, path)


def test_bad_values_option(tmp_path, t3) -> None:
    refuses(OptionError, "potential, log, cost", formats.read, tmp_path / "t3.uai", values="energy")
    refuses(OptionError, "energy", formats.write, t3, tmp_path / "t3.uai", values="energy")


def test_failure_leaves_the_old_file(tmp_path) -> None:
    path = tmp_path / "old.txt"
    path.write_text("old")
    with pytest.raises(KeyboardInterrupt), replacing(path) as file:
        file.write(b"new, but not all of it")
        raise KeyboardInterrupt
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["old.txt"]


def test_devices_are_not_replaced() -> None:
    write_bytes(os.devnull, b"nothing")
    assert not Path(os.devnull).is_file()


def test_plain_name() -> None:
    assert plain_name("a/B.UAI.LG.xz") == "b.uai.lg"
    assert plain_name("B") == "b"


def test_evidence_option(tmp_path, t3_uai, error_of, caplog) -> None:
    path, evidence = tmp_path / "t3.uai", tmp_path / "t3.uai.evid"
    path.write_text(t3_uai)
    evidence.write_text("1 0 0")
    graph = mapmrf.read(path, evidence=evidence)
    assert graph.value([1, 1, 0]) == -np.inf
    assert graph.value([0, 1, 0]) == pytest.approx(mapmrf.read(path).value([0, 1, 0]))
    assert mapmrf.read(path, evidence={0: 0}).value([0, 1, 0]) == pytest.approx(graph.value([0, 1, 0]))
    refuses(GraphError, "variable 7", mapmrf.read, path, evidence={7: 0})
    missing = tmp_path / "no.evid"
    assert "No such file" in error_of(missing, mapmrf.read, path, evidence=missing)
    evidence.write_text("2\n1 0 0\n1 0 1\n")
    with caplog.at_level(logging.WARNING, logger="mapmrf"):
        assert mapmrf.read(path, evidence=evidence).value([1, 1, 0]) == -np.inf
    assert "2 samples" in caplog.text


# -- pipes and huge numbers -------------------------------------------------------------------------------------------


PAIR = "MARKOV 2  2 2  1  2 0 1  4  1 2 3 4"


def run(*words: str, given: bytes | None = None, shell: str | None = None) -> subprocess.CompletedProcess[bytes]:
    command = [sys.executable, "-m", "mapmrf", *words]
    if shell is not None:
        return subprocess.run(["bash", "-c", shell, "bash", *command], capture_output=True, check=False, timeout=300)
    return subprocess.run(command, input=given, capture_output=True, check=False, timeout=300)


def fed(path: Path, data: bytes) -> threading.Thread:
    """A pipe that is written to once."""
    os.mkfifo(path)
    writer = threading.Thread(target=path.write_bytes, args=(data,), daemon=True)
    writer.start()
    return writer


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no pipes with names")
@pytest.mark.parametrize("data", [PAIR.encode(), gzip.compress(PAIR.encode())], ids=["plain", "gzip"])
def test_a_pipe_is_read_once_and_recognised_by_its_content(tmp_path: Path, data: bytes) -> None:
    writer = fed(tmp_path / "pipe", data)
    graph = formats.read(tmp_path / "pipe")
    writer.join()
    assert graph.value([1, 1]) == pytest.approx(np.log(4))
    writer = fed(tmp_path / "again", PAIR.replace("3 4", "3 x").encode())
    refuses(FormatError, r"again: among the numbers \(line 1, token 13\): found 'x'", formats.read, tmp_path / "again")
    writer.join()


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no pipes with names")
def test_a_pipe_is_charged_to_the_budget(tmp_path: Path) -> None:
    writer = fed(tmp_path / "pipe", PAIR.encode() + b" " * 20_000)
    refuses(FormatError, "pipe: the file: reading takes", formats.read, tmp_path / "pipe", max_bytes=10_000)
    writer.join()


@pytest.mark.parametrize("name", ["-", "/dev/stdin"])
def test_a_model_comes_from_standard_input(name: str) -> None:
    done = run("solve", name, "-m", "exhaustive", "--json", given=PAIR.encode())
    assert done.returncode == 0, done.stderr
    assert b'"labels": [1, 1]' in done.stdout


@pytest.mark.skipif(not Path("/dev/fd").is_dir(), reason="no /dev/fd")
def test_a_shell_can_give_pipes_for_model_and_evidence(tmp_path: Path) -> None:
    (tmp_path / "m.uai").write_text(PAIR)
    script = f'"$@" solve <(cat {tmp_path}/m.uai) --evidence <(echo 1 0 0) -m exhaustive --json'
    done = run(shell=script)
    assert done.returncode == 0, done.stderr
    assert b'"labels": [0, 1]' in done.stdout


@pytest.mark.parametrize("closed", [">&-", "2>&-", ">&- 2>&-", "<&- >&-"])
def test_closed_standard_streams_are_no_error(tmp_path: Path, closed: str) -> None:
    (tmp_path / "m.uai").write_text(PAIR)
    done = run(shell=f'"$@" solve {tmp_path}/m.uai -m exhaustive -o {tmp_path}/m.MPE {closed}')
    assert (done.returncode, done.stderr) == (0, b"")
    assert (tmp_path / "m.MPE").read_text() == "MPE\n2 1 1\n"


HUGE = {
    "m.cfn": '{problem: {name: a, mustbe: "<1.0"}, variables: {x: 2, y: 2}, functions: {'
    f"f: {{scope: [x], costs: [-1{'0' * 308} 0]}}, g: {{scope: [y], costs: [-1{'0' * 308} 0]}}}}}}",
    "m.uai": "BAYES 1  2  1  1 0  2  1e308 1e308",
    "m.erg": "1  2  0  2 1e308 1e308",
    "m.bif": "network a { } variable A { type discrete [ 2 ] { a, b }; } probability ( A ) { table 1e308, 1e308; }",
}


@pytest.mark.parametrize("name", HUGE)
def test_huge_numbers_are_read_without_warnings(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text(HUGE[name])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert formats.read(tmp_path / name).n_vars in (1, 2)
