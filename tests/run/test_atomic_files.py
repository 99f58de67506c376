"""Files that are written are complete or absent, whatever happens on the way, and old ones are kept."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import mapmrf
from command_line import run
from mapmrf.datasets import grid
from mapmrf.formats.files import write_bytes
from mapmrf.run.atomic_files import drop_old, keeping_old, kept_name

POSIX = pytest.mark.skipif(os.name != "posix", reason="limits of files and devices are those of POSIX")


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "grid.uai"
    mapmrf.write(grid(3, 3, 2.0, seed=1), path)
    return path


# -- what was there before --------------------------------------------------------------------------------------------


def test_the_library_replaces_and_the_command_line_keeps(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    for text in (b"one", b"two"):
        write_bytes(path, text)
    assert names(tmp_path) == ["a.txt"]
    with keeping_old():
        write_bytes(path, b"three")
        assert (path.read_bytes(), kept_name(path).read_bytes()) == (b"three", b"two")
        write_bytes(path, b"three")  # the same again
        assert kept_name(path).read_bytes() == b"two"
        drop_old()
        write_bytes(path, b"four")
        assert kept_name(path).read_bytes() == b"two"
    assert names(tmp_path) == ["a.txt", "a.txt~"]


def test_an_empty_file_is_not_worth_keeping(tmp_path: Path) -> None:
    (tmp_path / "a.txt").touch()
    with keeping_old():
        write_bytes(tmp_path / "a.txt", b"new")
    assert names(tmp_path) == ["a.txt"]


def test_a_link_stays_a_link_and_the_mode_stays(tmp_path: Path) -> None:
    target, link = tmp_path / "a.txt", tmp_path / "link"
    target.write_bytes(b"old")
    target.chmod(0o640)
    link.symlink_to(target)
    with keeping_old():
        write_bytes(link, b"new")
    assert link.is_symlink() and target.read_bytes() == b"new" and target.stat().st_mode & 0o777 == 0o640
    assert (tmp_path / "a.txt~").read_bytes() == b"old"


@pytest.mark.parametrize(
    ("arguments", "output"),
    [
        (("solve", "{model}", "-m", "icm", "-q", "-o", "{out}"), "labels.MPE"),
        (("solve", "{model}", "-m", "icm", "-q", "-o", "{out}"), "result.json"),
        (("solve", "{model}", "-m", "icm", "-q", "--trace", "{out}"), "trace.csv"),
        (("solve", "{model}", "-q", "--certificate", "{out}"), "proof.npz"),
        (("convert", "{model}", "{out}"), "other.wcsp"),
        (("generate", "grid", "2", "3", "-o", "{out}"), "made.uai"),
        (("tune", "{model}", "-m", "icm", "--grid", "starts=1,2", "--jobs", "1", "-o", "{out}"), "table.csv"),
        (("plot", "{model}", "-o", "{out}"), "graph.svg"),
    ],
)
def test_commands_keep_what_they_replace(tmp_path: Path, model: Path, arguments: tuple[str, ...], output: str) -> None:
    if arguments[0] == "plot":
        pytest.importorskip("matplotlib")
    folder = tmp_path / "out"
    folder.mkdir()
    (folder / output).write_text("precious")
    command = [word.format(model=model, out=folder / output) for word in arguments]
    done = run(*command)
    assert done.exit_code == 0, done.output
    assert (folder / f"{output}~").read_text() == "precious"
    assert names(folder) == [output, f"{output}~"]
    (folder / f"{output}~").unlink()
    (folder / output).write_text("not precious")
    assert run(*command, "--force").exit_code == 0
    assert names(folder) == [output] and (folder / output).read_bytes() != b"not precious"


def test_parts_are_not_replaced_without_force(tmp_path: Path, model: Path) -> None:
    folder = tmp_path / "parts"
    assert run("partition", model, folder, "--parts", 2).exit_code == 0
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    again = run("partition", model, folder, "--parts", 3)
    assert again.exit_code == 2 and "already holds a model in parts" in again.stderr
    assert run("generate", "grid", 4, 4, "--parts", 2, "-o", folder).exit_code == 2
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before
    assert run("partition", model, folder, "--parts", 3, "--force").exit_code == 0
    assert mapmrf.distributed.parts.PartFolder(folder).counts.n_parts == 3


def test_checkpoints_of_parts_are_set_aside(tmp_path: Path) -> None:
    graph = grid(8, 8, 3.0, seed=1)
    mapmrf.distributed.partition(graph, tmp_path / "parts", 2)
    saved = tmp_path / "saved"

    def cut(point: object, labels: object = None) -> bool:
        return True

    for seed in (1, 2):
        mapmrf.distributed.solve(tmp_path / "parts", max_iterations=400, seed=seed, checkpoint=saved, callback=cut)
        if not (saved / "checkpoint.json").exists():
            pytest.skip("the run was over before it could be cut short")
    assert (saved / "old" / "checkpoint.json").exists()
    assert len(list((saved / "old").glob("state-*.mrf"))) == 2


# -- nothing left to write to -----------------------------------------------------------------------------------------


LIMITED = """
import resource, sys
resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))
from mapmrf.cli import main
main(sys.argv[1:])
"""


@POSIX
@pytest.mark.parametrize("output", ["big.uai", "big.uai.gz", "big.wcsp", "big.LG.xz", "big.cfn"])
def test_a_full_disk_leaves_the_old_file(tmp_path: Path, output: str) -> None:
    target = tmp_path / output
    target.write_text("precious")
    command = [sys.executable, "-c", LIMITED, "generate", "random", "300", "900", "-o", str(target)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 2
    assert done.stderr.startswith(f"mapmrf: error: {target}: cannot write: ") and len(done.stderr.splitlines()) == 1
    assert target.read_text() == "precious" and names(tmp_path) == [output]


@POSIX
def test_a_full_disk_does_not_lose_the_answer(tmp_path: Path) -> None:
    model = tmp_path / "m.uai"
    mapmrf.write(grid(50, 50, seed=1), model)
    (tmp_path / "out").mkdir()
    command = ["solve", str(model), "-m", "icm", "--json", "-o", str(tmp_path / "out" / "labels.MPE")]
    done = subprocess.run([sys.executable, "-c", LIMITED, *command], capture_output=True, text=True)
    assert done.returncode == 2 and "cannot write" in done.stderr
    assert mapmrf.Result.from_json(done.stdout).labels.shape == (2500,)
    assert names(tmp_path / "out") == []


@POSIX
@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full")
@pytest.mark.parametrize("command", [("solve", "{model}", "-m", "icm", "-q", "-o", "/dev/full")])
def test_a_full_device_is_an_error(model: Path, command: tuple[str, ...]) -> None:
    done = run(*(word.format(model=model) for word in command))
    assert done.exit_code == 2 and "/dev/full: cannot write: No space left on device" in done.stderr


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="needs a folder that nobody can write to")
def test_a_read_only_folder_is_one_line(model: Path) -> None:
    done = run("convert", model, "/proc/self/fdinfo/out.uai")
    assert done.exit_code == 2 and len(done.stderr.splitlines()) == 1


@POSIX
def test_a_closed_pipe_ends_the_command_without_a_traceback(tmp_path: Path, model: Path) -> None:
    output = tmp_path / "labels.MPE"
    command = [sys.executable, "-m", "mapmrf", "solve", str(model), "-m", "icm", "-o", str(output)]
    reader, writer = os.pipe()
    os.close(reader)
    try:
        done = subprocess.run(command, stdout=writer, stderr=subprocess.PIPE, text=True)
    finally:
        os.close(writer)
    assert "Traceback" not in done.stderr and "ignored" not in done.stderr
    assert output.read_text().startswith("MPE")


WRITER = """
import sys
from mapmrf.run.atomic_files import whole_file
k = 0
print("ready", flush=True)
while True:
    k += 1
    with whole_file(sys.argv[1]) as file:
        for _ in range(50):
            file.write(b"%07d\\n" % k * 2000)
"""


@POSIX
def test_a_killed_writer_leaves_a_complete_file(tmp_path: Path) -> None:
    path, draw = tmp_path / "numbers.txt", random.Random(1)
    for _ in range(4):
        process = subprocess.Popen([sys.executable, "-c", WRITER, str(path)], stdout=subprocess.PIPE)
        assert process.stdout is not None
        process.stdout.readline()
        time.sleep(draw.uniform(0.0, 0.3))
        process.send_signal(signal.SIGKILL)
        process.communicate()
        if path.exists():
            lines = path.read_bytes().split(b"\n")
            assert len(lines) == 100_001 and len(set(lines[:-1])) == 1


@pytest.mark.skipif(not Path("/dev/stdout").exists(), reason="no such device")
def test_standard_output_is_written_to_and_not_replaced(tmp_path: Path) -> None:
    code = "from mapmrf.run.atomic_files import whole_file\nwith whole_file('/dev/stdout') as file: file.write(b'new')"
    piped = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True)
    assert piped.stdout == b"new"
    log = tmp_path / "log"
    log.write_bytes(b"old ")
    with open(log, "ab") as file:
        subprocess.run([sys.executable, "-c", code], stdout=file, check=True)
    assert log.read_bytes() == b"old new" and list(tmp_path.iterdir()) == [log]
