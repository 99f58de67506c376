"""Models from pipes and standard input, and numbers that are too large to be added up."""

from __future__ import annotations

import gzip
import os
import subprocess
import sys
import threading
import warnings
from pathlib import Path

import numpy as np
import pytest

from mapmrf import formats
from mapmrf.errors import FormatError

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
    with pytest.raises(FormatError, match=r"again: among the numbers \(line 1, token 13\): found 'x'"):
        formats.read(tmp_path / "again")
    writer.join()


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no pipes with names")
def test_a_pipe_is_charged_to_the_budget(tmp_path: Path) -> None:
    writer = fed(tmp_path / "pipe", PAIR.encode() + b" " * 20_000)
    with pytest.raises(FormatError, match="pipe: the file: reading takes"):
        formats.read(tmp_path / "pipe", max_bytes=10_000)
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
