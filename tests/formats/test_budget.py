"""Readers charge for what they build, and refuse in one line what the budget does not allow."""

from __future__ import annotations

import bz2
import gzip
import lzma
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

import mapmrf
from mapmrf import FormatError, OptionError
from mapmrf.cli import main
from mapmrf.formats.files import ByteBudget, charge, spending
from mapmrf.model.memory import machine_bytes
from refusals import refuses

SMALL = {
    # So many factors that their table is not replaced by constraints.
    "potts.LG": f"MARKOV 21 {'4096 ' * 21} 20 " + " ".join(f"2 {i} {i + 1}" for i in range(20)) + " -1 -1" * 20,
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
    mapmrf.read(sys.argv[1], max_bytes=float(sys.argv[2]))
except mapmrf.FormatError as error:
    print(error)
print(peak() - before)
"""


@pytest.mark.parametrize("name", SMALL)
def test_a_small_file_that_stands_for_much_is_refused(name: str, tmp_path: Path) -> None:
    path = tmp_path / name
    path.write_text(SMALL[name])
    with pytest.raises(FormatError) as caught:
        mapmrf.read(path, max_bytes=50e6)
    message = str(caught.value)
    assert message.startswith(f"{path}: its ") and "\n" not in message
    assert "reading takes" in message and message.endswith("expected at most 50 MB, max_bytes")


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


@pytest.mark.parametrize(("suffix", "pack"), [(".gz", gzip.compress), (".bz2", bz2.compress), (".xz", lzma.compress)])
def test_a_compressed_file_is_charged_as_it_unpacks(suffix: str, pack: object, tmp_path: Path) -> None:
    path = tmp_path / f"bomb.uai{suffix}"
    path.write_bytes(pack(b"MARKOV 0 0" + b" " * 30_000_000))  # type: ignore[operator]
    assert path.stat().st_size < 100_000
    with pytest.raises(FormatError, match=r"its decompressed content: reading takes .* expected at most 10 MB"):
        mapmrf.read(path, max_bytes=10e6)
    assert mapmrf.read(path, max_bytes=500e6).n_vars == 0


def test_a_large_dataset_that_was_never_written_is_refused(tmp_path: Path) -> None:
    h5py = pytest.importorskip("h5py")
    path = tmp_path / "m.h5"
    with h5py.File(path, "w") as file:
        group = file.create_group("gm")
        group["header"] = np.array([2, 0, 2**36, 0, 0, 1], dtype=np.uint64)
        group.create_dataset("numbers-of-states", shape=(2**36,), chunks=(1024,), dtype=np.uint64)
    assert path.stat().st_size < 100_000
    with pytest.raises(FormatError, match=r"its datasets \(numbers-of-states has 68719476736 numbers\)"):
        mapmrf.read(path, max_bytes=1e9)


def test_potts_factors_of_many_values_share_a_table(tmp_path: Path) -> None:
    n, states = 300, 60
    values = -np.round(np.random.default_rng(1).random(n), 6) - 0.1
    scopes = "".join(f"2 {i} {i + 1}\n" for i in range(n))
    tables = "".join(f"-1 {value:.6f}\n" for value in values)
    path = tmp_path / "chain.LG"
    path.write_text(f"MARKOV {n + 1} {f'{states} ' * (n + 1)} {n}\n{scopes}{tables}")
    graph = mapmrf.read(path, max_bytes=2e6)  # written out, the tables would take 8.6 MB
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
    refuses(OptionError, "expected a number of bytes above 0", mapmrf.read, "model.uai", max_bytes=bad)


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
    done = CliRunner().invoke(main, [*command, "--max-bytes", "50MB"])
    assert done.exit_code == 2 and done.stderr.startswith("mapmrf: error: potts.LG: its tables (factor 0 has")
    assert "expected at most 50 MB" in done.stderr and len(done.stderr.splitlines()) == 1


def test_models_of_a_batch_have_a_budget_each(tmp_path: Path) -> None:
    paths = [tmp_path / name for name in ("potts.LG", "tiny.uai")]
    paths[0].write_text(SMALL["potts.LG"])
    paths[1].write_text("MARKOV 1 2 0")
    done = CliRunner().invoke(main, ["solve", *map(str, paths), "-m", "icm", "--max-bytes", "5e7"])
    assert done.exit_code == 2 and "expected at most 50 MB" in done.stderr and "tiny.uai" in done.stdout


@pytest.mark.parametrize("text", ["much", "-1", "0", "1.2.3GB", "5XB"])
def test_the_option_must_be_a_number_of_bytes(text: str, tmp_path: Path) -> None:
    done = CliRunner().invoke(main, ["check", str(tmp_path / os.devnull), f"--max-bytes={text}"])
    assert done.exit_code == 2 and "expected a number of bytes such as 2e9 or 2GB" in done.stderr


def test_runs_of_a_benchmark_have_a_budget(tmp_path: Path) -> None:
    path, records = tmp_path / "potts.LG", tmp_path / "r.jsonl"
    path.write_text(SMALL["potts.LG"])
    command = ["bench", str(path), "--methods", "icm", "--time-limit", "5", "--jobs", "1", "-o", str(records)]
    done = CliRunner().invoke(main, [*command, "--max-bytes", "50MB"])
    assert "1 runs recorded" in done.output, done.output
    for record in (*mapmrf.bench.Records.read(records), *mapmrf.bench.run("icm", path, time_limit=5, max_bytes=50e6)):
        assert record["outcome"] == "error" and "expected at most 50 MB, max_bytes" in record["message"]
    refuses(OptionError, "max_bytes", mapmrf.bench.run, "icm", path, max_bytes=-1.0)


def test_all_commands_that_read_models_have_the_option() -> None:
    without = {"compile", "completion", "generate", "join", "methods", "report"}
    options = {name: {flag for one in command.params for flag in one.opts} for name, command in main.commands.items()}
    assert {name for name, flags in options.items() if "--max-bytes" not in flags} == without


def test_a_model_that_is_streamed_has_no_budget(tmp_path: Path) -> None:
    command = ["partition", "m.uai", str(tmp_path), "--parts", "2", "--stream", "--max-bytes", "1GB"]
    done = CliRunner().invoke(main, command)
    assert done.exit_code == 2 and "--max-bytes cannot be combined with --stream" in done.stderr
