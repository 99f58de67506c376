"""The register, compression, writing that never leaves half a file, and the budget of bytes that readers charge."""

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

import click
import numpy as np
import pytest
from format_models import T3, error_of

import mapmrf
from command_line import refused
from command_line import run as call
from mapmrf import formats
from mapmrf.cli import COMMANDS, main
from mapmrf.errors import FormatError, GraphError, OptionError, UnknownName
from mapmrf.formats.files import ByteBudget, charge, plain_name, read_bytes, replacing, spending, write_bytes
from mapmrf.model.memory import machine_bytes
from refusals import refuses

PAIR = "MARKOV 2  2 2  1  2 0 1  4  1 2 3 4"
COMPRESS = {".gz": gzip.compress, ".bz2": bz2.compress, ".xz": lzma.compress}


@pytest.mark.parametrize("suffix", COMPRESS)
def test_a_model_is_written_compressed_and_always_as_the_same_bytes(tmp_path, suffix) -> None:
    path = tmp_path / f"t3.LG{suffix}"
    formats.write(T3, path)
    data = path.read_bytes()
    assert not data.startswith(b"MARKOV") and read_bytes(path).startswith(b"MARKOV")
    formats.write(T3, path)
    assert path.read_bytes() == data


def test_compression_is_seen_without_a_suffix_and_in_several_members(tmp_path) -> None:
    path = tmp_path / "t3.uai"
    path.write_bytes(gzip.compress(PAIR.encode()))
    assert formats.read(path).n_vars == 2
    path = tmp_path / "t3.uai.gz"
    path.write_bytes(gzip.compress(PAIR[:20].encode()) + gzip.compress(PAIR[20:].encode()))
    assert formats.read(path).n_vars == 2


@pytest.mark.parametrize("suffix", COMPRESS)
@pytest.mark.parametrize("damage", ["cut", "flipped", "junk"])
def test_damaged_compression(tmp_path, suffix, damage) -> None:
    data = bytearray(COMPRESS[suffix](PAIR.encode()))
    if damage == "cut":
        data = data[: len(data) // 2]
    elif damage == "flipped":
        data[len(data) // 2] ^= 0xFF
    else:
        data = bytearray(PAIR.encode())
    path = tmp_path / ("t3.uai" + suffix)
    path.write_bytes(data)
    assert suffix in error_of(path, formats.read, path)


def test_unknown_suffix(tmp_path) -> None:
    path = tmp_path / "t3.xyz.gz"
    message = error_of(path, formats.write, T3, path)
    assert "'.xyz'" in message and ".uai" in message
    path.write_bytes(gzip.compress(b"hello world"))
    assert "'.xyz'" in error_of(path, formats.read, path)
    path.write_bytes(gzip.compress(PAIR.encode()))
    assert formats.read(path).n_vars == 2  # known by its first word
    bare = tmp_path / "model"
    bare.write_text("what is this")
    assert "without a suffix" in error_of(bare, formats.read, bare)


def test_what_cannot_be_opened(tmp_path) -> None:
    missing = tmp_path / "no.uai"
    assert "No such file" in error_of(missing, formats.read, missing)
    folder = tmp_path / "folder.uai"
    folder.mkdir()
    assert "directory" in error_of(folder, formats.read, folder)
    assert "directory" in error_of(folder, formats.write, T3, folder)
    nowhere = tmp_path / "no" / "t3.uai"
    assert "No such file" in error_of(nowhere, formats.write, T3, nowhere)


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root may do everything")
def test_permissions(tmp_path) -> None:
    path = tmp_path / "t3.uai"
    path.write_text("keep")
    path.chmod(0o000)
    assert "Permission denied" in error_of(path, formats.read, path)
    assert "Permission denied" in error_of(path, formats.write, T3, path)


def test_bad_values_option(tmp_path) -> None:
    refuses(OptionError, "potential, log, cost", formats.read, tmp_path / "t3.uai", values="energy")
    refuses(OptionError, "energy", formats.write, T3, tmp_path / "t3.uai", values="energy")


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


def test_evidence_option(tmp_path, caplog) -> None:
    path, evidence = tmp_path / "t3.uai", tmp_path / "t3.uai.evid"
    path.write_text(PAIR)
    evidence.write_text("1 0 0")
    graph = mapmrf.read(path, evidence=evidence)
    assert graph.value([1, 1]) == -np.inf
    assert graph.value([0, 1]) == pytest.approx(mapmrf.read(path).value([0, 1]))
    assert mapmrf.read(path, evidence={0: 0}).value([0, 1]) == pytest.approx(graph.value([0, 1]))
    refuses(GraphError, "variable 7", mapmrf.read, path, evidence={7: 0})
    missing = tmp_path / "no.evid"
    assert "No such file" in error_of(missing, mapmrf.read, path, evidence=missing)
    evidence.write_text("2\n1 0 0\n1 0 1\n")
    with caplog.at_level(logging.WARNING, logger="mapmrf"):
        assert mapmrf.read(path, evidence=evidence).value([1, 1]) == -np.inf
    assert "2 samples" in caplog.text


def test_evidence_in_words_and_beside_the_model(tmp_path) -> None:
    path = tmp_path / "m.cfn"
    path.write_text("{problem:{name:m mustbe:<9} variables:{rain:[no yes] wet:3} functions:{f:{scope:[] costs:[1]}}}")
    graph = mapmrf.read(path, evidence="rain=yes, 1=2")
    assert graph.value([1, 2]) == -1 and graph.value([0, 2]) == graph.value([1, 1]) == -np.inf
    refuses(UnknownName, "evidence rain=yess: .*'yess'", mapmrf.read, path, evidence="rain=yess")
    refuses(FormatError, "found 'rain', expected variable=state", mapmrf.read, path, evidence="wet=1,rain")
    assert mapmrf.read(path, evidence="auto").value([0, 0]) == -1
    (tmp_path / "m.cfn.evid").write_text("1 0 1")
    assert mapmrf.read(path, evidence="auto").value([0, 0]) == -np.inf
    assert "m.cfn.evid lies beside the model and is not used" in call("check", str(path)).stderr
    assert "beside" not in call("check", str(path), "--evidence", "rain=no").stderr


# -- pipes and huge numbers -------------------------------------------------------------------------------------------


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
    refuses(FormatError, "pipe: the file: reading takes", formats.read, tmp_path / "pipe", memory_limit=10_000)
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


# -- the budget -------------------------------------------------------------------------------------------------------

SMALL = {
    "potts.LG": "MARKOV 2 4096 4096 1 2 0 1 -1 -1",
    "default.bif": "network n { }"
    + "".join(f"variable V{i} {{ type discrete [ 2 ] {{ a, b }}; }}" for i in range(24))
    + "".join(f"probability ( V{i} ) {{ table 0.5, 0.5; }}" for i in range(1, 24))
    + f"probability ( V0 | {', '.join(f'V{i}' for i in range(1, 24))} ) {{ default 0.5, 0.5; }}",
    "many.coo": "0 9999999 1\n",
    "many.mc": "9999999 0\n",
    "many.qubo": "p qubo 0 9999999 0 0\n",
    "states.uai": "MARKOV 1 99999999 0",
}
"""Small files that take 100 MB or more."""

READ = """
import sys
from pathlib import Path
import mapmrf, mapmrf.formats.{module}
def peak():
    return 1024 * int(Path("/proc/self/status").read_text().split("VmHWM:")[1].split()[0])
before = peak()
try:
    mapmrf.read(sys.argv[1], memory_limit=float(sys.argv[2]))
except mapmrf.FormatError as error:
    print(error)
print(peak() - before)
"""


@pytest.mark.parametrize("name", SMALL)
def test_a_small_file_that_stands_for_much_is_refused(name: str, tmp_path: Path) -> None:
    path = tmp_path / name
    path.write_text(SMALL[name])
    with pytest.raises(FormatError) as caught:
        mapmrf.read(path, memory_limit=50e6)
    message = str(caught.value)
    assert message.startswith(f"{path}: its ") and "\n" not in message
    assert "reading takes" in message and message.endswith("expected at most 50 MB, the memory limit")


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="looks into /proc")
@pytest.mark.parametrize(("name", "module"), [("default.bif", "bif"), ("potts.LG", "uai")])
def test_reading_takes_no_more_than_it_charges(name: str, module: str, tmp_path: Path) -> None:
    path = tmp_path / name
    path.write_text(SMALL[name])
    for budget, least in ((50e6, 0.0), (450e6, 100e6)):
        command = [sys.executable, "-c", READ.format(module=module), str(path), str(budget)]
        lines = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
        assert len(lines) == (2 if budget < 100e6 else 1)
        assert least <= float(lines[-1]) <= budget


@pytest.mark.parametrize("suffix", COMPRESS)
def test_a_compressed_file_is_charged_as_it_unpacks(suffix: str, tmp_path: Path) -> None:
    path = tmp_path / f"bomb.uai{suffix}"
    path.write_bytes(COMPRESS[suffix](b"MARKOV 0 0" + b" " * 30_000_000))
    assert path.stat().st_size < 100_000
    with pytest.raises(FormatError, match=r"its decompressed content: reading takes .* expected at most 10 MB"):
        mapmrf.read(path, memory_limit=10e6)
    assert mapmrf.read(path, memory_limit=500e6).n_vars == 0


def test_a_large_dataset_that_was_never_written_is_refused(tmp_path: Path) -> None:
    h5py = pytest.importorskip("h5py")
    path = tmp_path / "m.h5"
    with h5py.File(path, "w") as file:
        group = file.create_group("gm")
        group["header"] = np.array([2, 0, 2**36, 0, 0, 1], dtype=np.uint64)
        group.create_dataset("numbers-of-states", shape=(2**36,), chunks=(1024,), dtype=np.uint64)
    assert path.stat().st_size < 100_000
    with pytest.raises(FormatError, match=r"its datasets \(numbers-of-states has 68719476736 numbers\)"):
        mapmrf.read(path, memory_limit=1e9)


def test_potts_factors_of_many_values_share_a_table(tmp_path: Path) -> None:
    n, states = 300, 60
    values = -np.round(np.random.default_rng(1).random(n), 6) - 0.1
    scopes = "".join(f"2 {i} {i + 1}\n" for i in range(n))
    tables = "".join(f"-1 {value:.6f}\n" for value in values)
    path = tmp_path / "chain.LG"
    path.write_text(f"MARKOV {n + 1} {f'{states} ' * (n + 1)} {n}\n{scopes}{tables}")
    graph = mapmrf.read(path, memory_limit=2e6)  # written out, the tables would take 8.6 MB
    assert graph.n_tables == 1 and graph.weight is not None
    labels = np.arange(n + 1) % 2
    assert graph.value(labels) == pytest.approx(values.sum())
    assert graph.value(np.zeros(n + 1, dtype=int)) == 0.0


def test_potts_factors_that_forbid_have_a_table_of_their_own(tmp_path: Path) -> None:
    path = tmp_path / "hard.LG"
    path.write_text(f"MARKOV 4 {'300 ' * 4} 3  2 0 1 2 1 2 2 2 3  -1 -0.5 -1 -inf -1 -0.25")
    graph = mapmrf.read(path)
    assert graph.n_tables == 2
    assert graph.value([0, 1, 1, 2]) == -0.75
    assert graph.value([0, 0, 1, 1]) == -np.inf


def test_the_budget_counts_what_is_asked_for_once() -> None:
    budget = ByteBudget(100)
    budget.charge("f", 60, "its text")
    budget.charge("f", 60, "its text")
    with pytest.raises(FormatError, match=r"f: its tables \(factor 3\): reading takes 110 B, expected at most 100 B"):
        budget.charge("f", 50, "its tables", "factor 3")
    budget.charge("f", 40, "its tables")


def test_by_default_the_budget_is_the_memory_of_the_machine() -> None:
    assert ByteBudget().allowed == min(machine_bytes(), 2.0**46)
    refuses(FormatError, r"expected at most .*, the memory of this machine", charge, "f", 2.0**47, "its tables")
    with spending(10), pytest.raises(FormatError, match="expected at most 10 B"):
        charge("f", 11, "its tables")


@pytest.mark.parametrize("bad", [0, -1.0, float("nan")])
def test_a_budget_is_a_number_of_bytes(bad: float) -> None:
    refuses(OptionError, "expected a number of bytes above 0", mapmrf.read, "model.uai", memory_limit=bad)


@pytest.mark.parametrize(
    "command",
    [
        ("info", "potts.LG"),
        ("check", "potts.LG"),
        ("solve", "potts.LG", "-m", "icm"),
        ("convert", "potts.LG", "out.uai"),
        ("tune", "potts.LG"),
        ("uai", "potts.LG", "", "none", "MPE"),
    ],
)
def test_the_commands_have_the_option(command, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("potts.LG").write_text(SMALL["potts.LG"])
    said = refused(*command, "--memory-limit", "50MB")
    assert said.startswith("mapmrf: error: potts.LG: its tables (factor 0 has") and "at most 50 MB" in said


def test_models_of_a_batch_have_a_budget_each(tmp_path: Path) -> None:
    paths = [tmp_path / name for name in ("states.uai", "tiny.uai")]
    paths[0].write_text(SMALL["states.uai"])
    paths[1].write_text("MARKOV 1 2 0")
    done = call("solve", *paths, "-m", "icm", "--memory-limit", "4e8")
    assert done.exit_code == 2 and "expected at most 400 MB" in done.stderr and "tiny.uai" in done.stdout


@pytest.mark.parametrize("text", ["much", "-1", "0", "1.2.3GB", "5XB"])
def test_the_option_must_be_a_number_of_bytes(text: str) -> None:
    assert "expected a number of bytes such as 2e9 or 2GB" in refused("check", os.devnull, f"--memory-limit={text}")


def test_runs_of_a_benchmark_have_a_budget(tmp_path: Path) -> None:
    path, records = tmp_path / "states.uai", tmp_path / "r.jsonl"
    path.write_text(SMALL["states.uai"])
    command = ["bench", path, "--methods", "icm", "--time-limit", 5, "--jobs", 1, "-o", records]
    done = call(*command, "--memory-limit", "400MB")
    assert "1 runs recorded" in done.output, done.output
    again = mapmrf.bench.run("icm", path, time_limit=5, memory_limit="400MB")
    for record in (*mapmrf.bench.Records.read(records), *again):
        assert record["outcome"] == "error" and "expected at most 400 MB, the memory limit" in record["message"]
    refuses(OptionError, "memory_limit", mapmrf.bench.run, "icm", path, memory_limit=-1.0)


def test_all_commands_that_read_models_have_the_option() -> None:
    without = {"compile", "completion", "generate", "join", "methods", "report"}
    commands = {name: main.get_command(click.Context(main), name) for name in COMMANDS}
    options = {name: {flag for one in command.params for flag in one.opts} for name, command in commands.items()}
    assert {name for name, flags in options.items() if "--memory-limit" not in flags} == without


def test_a_model_that_is_streamed_has_no_budget(tmp_path: Path) -> None:
    said = refused("partition", "m.uai", tmp_path, "--parts", 2, "--stream", "--memory-limit", "1GB")
    assert "--memory-limit cannot be combined with --stream" in said
