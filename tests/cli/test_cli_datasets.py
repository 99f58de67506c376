"""`mapmrf datasets`: what is there, what is fetched, and what is made up."""

from __future__ import annotations

import functools
import gzip
import hashlib
import json
import os
import select
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result

import command_line
import mapmrf
from clocks import PATIENCE, wait_until
from mapmrf.datasets import catalogue, entries, grid, lookalike, sets


def run(*args: object) -> Result:
    return command_line.run("datasets", *args)


def done(*args: object) -> str:
    return command_line.done("datasets", *args)


def refused(*args: object) -> list[str]:
    """The lines on standard error of a command that must fail."""
    result = run(*args)
    assert (result.exit_code, result.stdout) == (2, ""), result.output
    lines = result.stderr.splitlines()
    assert all(line.startswith("mapmrf: ") for line in lines)
    return lines


@pytest.fixture
def known(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A folder with the files of a mirror: the first two grids, as small models that the catalogue knows."""
    mirror = tmp_path / "mirror"
    (mirror / "grids").mkdir(parents=True)
    found = list(entries("grids"))
    for k in (0, 1):
        path = mirror / found[k].file
        mapmrf.write(grid(3, 3 + k), path)
        digest = hashlib.sha256(gzip.decompress(path.read_bytes())).hexdigest()
        found[k] = replace(found[k], sha256=digest, url="")
    changed = (*found[:2], replace(found[2], sha256=None, url=""))
    everything = {name: entries(name) for name in sets()} | {"grids": changed}
    monkeypatch.setattr(catalogue, "entries", everything.__getitem__)
    return mirror


@pytest.fixture
def mirror(known: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    class Quiet(SimpleHTTPRequestHandler):
        def log_message(self, format: str, *args: Any) -> None:
            pass

    monkeypatch.setenv("no_proxy", "*")
    with ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=str(known))) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


# -- listing ---------------------------------------------------------------------------------------------------------


def test_an_empty_folder_is_listed(tmp_path: Path) -> None:
    text = done("--data", tmp_path)
    assert text.startswith(f"data folder  {tmp_path}\n")
    assert "missing from grids: grid20x20.f10, grid20x20.f10.wrap, grid20x20.f15 and 18 more\n" in text
    assert "699 not named in the catalogue" in text
    assert text.count(" paper ") == 5
    assert " files " not in text


def test_the_default_folder_is_that_of_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MAPMRF_DATA", str(tmp_path))
    assert json.loads(done("--json"))["folders"] == [str(tmp_path)]
    monkeypatch.delenv("MAPMRF_DATA")
    if sys.platform == "linux":
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
        assert done().startswith(f"data folder  {tmp_path / 'mapmrf'}\n")


def test_files_are_counted_verified_and_measured(known: Path) -> None:
    text = done("--data", known, "--verify")
    assert "grids    21      3      2      2         PIC-2011 Grids" in text
    files = next(line.split() for line in text.splitlines() if line.startswith("grids    files"))
    assert files[2:] == ["2", "10.5", "14.5", "29", "2", "2", "4"]
    data = json.loads(done("--data", known, "--json", "--verify"))["sets"]["grids"]
    assert [model["verified"] for model in data["models"]] == [True, True, None]
    assert data["models"][0]["path"] == str(known / "grids" / "grid20x20.f10.uai.gz")
    assert data["models"][2]["path"] is None
    assert data["statistics"]["files"]["edges"] == 29
    assert data["statistics"]["paper"]["edges"] == 12472.4
    assert data["statistics"]["difference"]["edges"] == 29 - 12472.4
    unverified = json.loads(done("--data", known, "--json"))["sets"]["grids"]["models"]
    assert all(model["verified"] is None for model in unverified)


def test_wrong_and_unreadable_files_are_named_and_not_measured(known: Path) -> None:
    mapmrf.write(grid(5, 5), known / "grids" / "grid20x20.f10.uai.gz")
    text = done("--data", known, "--verify")
    assert f"{known / 'grids' / 'grid20x20.f10.uai.gz'}: differs from the catalogue\n" in text
    assert "grids    21      3      2      1  " in text
    assert "grids    files       1       12 " in text
    assert "differs" not in done("--data", known)
    (known / "grids" / "grid20x20.f10.uai.gz").write_bytes(b"\x1f\x8bnot really")
    result = run("--data", known)
    assert result.exit_code == 0
    (line,) = result.stderr.splitlines()
    assert line.startswith("mapmrf: warning: ")
    assert "grid20x20.f10.uai.gz" in line
    assert "grids    files       1  " in result.stdout


def test_a_folder_that_is_not_there_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    result = run("--data", tmp_path / "typo")
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr == f"mapmrf: error: --data: {tmp_path / 'typo'} is not a folder\n"
    monkeypatch.setenv("MAPMRF_DATA", str(tmp_path / "typo"))
    result = run()
    assert result.exit_code == 0
    assert result.stderr == f"mapmrf: warning: MAPMRF_DATA: {tmp_path / 'typo'} is not a folder\n"


# -- downloading -----------------------------------------------------------------------------------------------------


def test_a_set_is_fetched_from_a_mirror(mirror: str, known: Path, tmp_path: Path) -> None:
    (known / "grids" / "grid20x20.f15.uai").write_text("MARKOV 1 2 0")
    assert done("download", "grids", "--data", tmp_path / "data", "--source", mirror) == ""
    names = sorted(path.name for path in (tmp_path / "data" / "grids").iterdir())
    assert names == ["grid20x20.f10.uai.gz", "grid20x20.f10.wrap.uai.gz", "grid20x20.f15.uai"]
    assert "grids    21      3      3      2 " in done("--data", tmp_path / "data", "--verify")
    assert done("--data", tmp_path / "data", "download", "grids", "--source", mirror) == ""


def test_what_fails_is_a_line_each(mirror: str, known: Path, tmp_path: Path) -> None:
    mapmrf.write(grid(5, 5), known / "grids" / "grid20x20.f10.uai.gz")
    wrong, absent = refused("download", "grids", "--data", tmp_path / "data", "--source", mirror)
    assert "grid20x20.f10.uai.gz: wrong checksum" in wrong
    assert "grid20x20.f15.uai.gz: 404" in absent
    names = [path.name for path in (tmp_path / "data" / "grids").iterdir()]
    assert names == ["grid20x20.f10.wrap.uai.gz"]


def test_files_without_an_address_are_left_to_the_hand(known: Path, tmp_path: Path) -> None:
    result = run("download", "grids", "scene", "--data", tmp_path / "data")
    assert (result.exit_code, result.stdout) == (0, "")
    grids, scene = result.stderr.splitlines()
    assert grids.startswith("mapmrf: grids: no download address for grid20x20.f10.uai, grid20x20.f10.wrap.uai, ")
    assert grids.endswith(f"see {sets()['grids'].page}, and put them into {tmp_path / 'data' / 'grids'}")
    assert "0000047.uai, 0000051.uai, 0000059.uai and 13 more" in scene
    assert not (tmp_path / "data").exists()


def test_bad_usage_is_one_line(tmp_path: Path) -> None:
    assert "'seg2'" in refused("download", "seg2")[0]
    assert "http or https" in refused("download", "grids", "--data", tmp_path, "--source", "here")[0]
    assert "9/grids/grid20x20.f10.uai.gz: " in unreachable(tmp_path)


def unreachable(folder: Path) -> str:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("mapmrf.datasets.download.PAUSE", 0.0)
        (line,) = refused("download", "grids", "protein", "--data", folder, "--source", "http://127.0.0.1:9")
    return line


SLOW = """
import sys
from http.server import BaseHTTPRequestHandler, HTTPServer
import threading, time

class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.send_header("Content-Length", "1000000")
        self.end_headers()
        self.wfile.write(b"MARKOV " * 10_000)
        time.sleep(1000)
    def log_message(self, *args):
        pass

server = HTTPServer(("127.0.0.1", 0), Handler)
threading.Thread(target=server.serve_forever, daemon=True).start()
import signal
signal.signal(signal.SIGINT, signal.default_int_handler)
from mapmrf.cli import main
main(["datasets", "download", "grids", "--data", sys.argv[1], "--source", f"http://127.0.0.1:{server.server_port}"])
"""


@pytest.mark.skipif(sys.platform == "win32", reason="no SIGINT and no pseudo-terminals there")
def test_progress_is_shown_on_a_terminal_and_ctrl_c_leaves_the_part(tmp_path: Path) -> None:
    environment = {**os.environ, "no_proxy": "*", "TERM": "xterm", "COLUMNS": "100"}
    ours, theirs = os.openpty()
    command = [sys.executable, "-c", SLOW, str(tmp_path)]
    process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=theirs)
    os.close(theirs)
    seen, part = b"", tmp_path / "grids" / "grid20x20.f10.uai.gz.part"
    while b"grid20x20.f10.uai.gz" not in seen and select.select([ours], [], [], PATIENCE)[0]:
        seen += os.read(ours, 1000)
    assert b"grid20x20.f10.uai.gz" in seen
    wait_until(lambda: part.exists() and part.stat().st_size > 50_000)
    process.send_signal(signal.SIGINT)
    said, _ = process.communicate(timeout=PATIENCE)
    seen += os.read(ours, 100_000)
    os.close(ours)
    assert (process.returncode, said) == (130, b"") and seen.endswith(b"mapmrf: interrupted\r\n")
    assert list(part.parent.iterdir()) == [part]
    left = part.read_bytes()
    assert 50_000 < len(left) <= 70_000  # but for the last chunk
    assert left == (b"MARKOV " * 10_000)[: len(left)]


# -- look-alikes -----------------------------------------------------------------------------------------------------


def test_a_look_alike_is_written(tmp_path: Path) -> None:
    path = tmp_path / "like.uai.gz"
    assert done("generate", "protein", 2, "--scale", 0.02, "--output", path) == ""
    graph, made = mapmrf.read(path), lookalike("protein", 2, scale=0.02)
    labels = [k % 2 for k in range(made.n_vars)]
    assert graph.n_tables == made.n_tables
    assert graph.value(labels) == pytest.approx(made.value(labels))
