"""A benchmark that is killed and started again ends with the records of one that was not."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

import mapmrf
from clocks import wait_until
from mapmrf.bench.records import read_records
from mapmrf.datasets import grid

pytestmark = pytest.mark.skipif(os.name != "posix", reason="kills a group of processes")

SAME = ("key", "set", "model", "run", "seed", "outcome", "value", "status", "iterations", "labels")
"""What does not depend on the clock."""


def command(folder: Path, output: Path, n_seeds: int) -> list[str]:
    models = []
    for k in range(3):
        path = folder / f"m{k}.uai"
        if not path.exists():
            mapmrf.write(grid(4, 4, 2.0, seed=k), path)
        models.append(str(path))
    seeds = ",".join(map(str, range(n_seeds)))
    options = ["--methods", "exhaustive,icm", "--seeds", seeds, "--time-limit", "60", "--jobs", "2"]
    return [sys.executable, "-m", "mapmrf", "bench", *models, *options, "-o", str(output)]


def kept(path: Path) -> dict[str, dict[str, Any]]:
    return {record["key"]: {name: record.get(name) for name in SAME} for record in read_records(path)}


def n_lines(path: Path) -> int:
    return path.read_bytes().count(b"\n") if path.exists() else 0


def killed(arguments: list[str], path: Path, n_more: int) -> bool:
    """Start a benchmark and kill it, workers and all, after so many more records; False if it was done before."""
    quiet, before = subprocess.DEVNULL, n_lines(path)
    process = subprocess.Popen(arguments, stdout=quiet, stderr=quiet, start_new_session=True)
    wait_until(lambda: process.poll() is not None or n_lines(path) >= before + n_more)
    if process.poll() is not None:
        return False
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    return True


def kill_and_resume(folder: Path, n_kills: int, n_seeds: int) -> int:
    """Kill a benchmark so often, then let it end; the records must be those of an unbroken one.

    One that ends before it is killed is begun again. Returns how often that was.
    """
    whole, broken, draw = folder / "whole.jsonl", folder / "broken.jsonl", random.Random(1)
    subprocess.run(command(folder, whole, n_seeds), check=True, capture_output=True)
    n_killed = n_ended = 0
    while n_killed < n_kills and n_ended < 10 * n_kills:
        if killed(command(folder, broken, n_seeds), broken, draw.randrange(3)):
            n_killed += 1
        else:
            n_ended += 1
            broken.unlink()
    assert n_killed == n_kills
    subprocess.run(command(folder, broken, n_seeds), check=True, capture_output=True)
    assert kept(broken) == kept(whole) and len(kept(whole)) == 6 * n_seeds
    lines = broken.read_text().splitlines()
    assert len(lines) == len(kept(whole))  # no run twice
    return n_ended


APPENDING = """
import sys, time
from mapmrf.bench.records import RecordFile
blank = {"set": "own", "model": "m", "run": "icm", "method": "icm", "time_limit": 1.0, "message": "x" * 5000}
blank |= {"outcome": "done", "value": 0.0, "status": "converged", "runtime": 0.1, "trace": [[0.5, 1, 2.0]] * 500}
with RecordFile(sys.argv[1]) as file:
    print("ready", flush=True)
    for k in range(int(sys.argv[2])):
        if str(k) not in file.keys:
            file.append({"key": str(k), **blank, "value": k / 3})
"""


@pytest.mark.parametrize("n_kills", [4, pytest.param(50, marks=pytest.mark.slow)])
def test_no_record_is_lost_doubled_or_torn_by_kills(tmp_path: Path, n_kills: int) -> None:
    path, draw, n_records, seen = tmp_path / "r.jsonl", random.Random(2), 100_000, 0
    for _ in range(n_kills):
        process = subprocess.Popen([sys.executable, "-c", APPENDING, str(path), str(n_records)], stdout=subprocess.PIPE)
        assert process.stdout is not None
        process.stdout.readline()
        wait_until(lambda seen=seen: n_lines(path) > seen)
        time.sleep(draw.uniform(0.0, 0.05))
        process.kill()
        process.communicate()
        keys = [int(record["key"]) for record in read_records(path)]
        assert keys == list(range(len(keys))) and len(keys) > seen
        assert [record["value"] for record in read_records(path)] == [k / 3 for k in keys]
        seen = len(keys)
    whole = subprocess.run([sys.executable, "-c", APPENDING, str(path), str(seen + 5)], capture_output=True, check=True)
    assert whole.stdout == b"ready\n" and len(path.read_text().splitlines()) == seen + 5 == len(read_records(path))


def test_records_survive_kills(tmp_path: Path) -> None:
    kill_and_resume(tmp_path, 2, 2)


@pytest.mark.slow
def test_records_survive_fifty_kills(tmp_path: Path) -> None:
    n_ended = kill_and_resume(tmp_path, 50, 8)
    print(f"50 were killed, {n_ended} others ended before")
