"""Files as toulbar2 reads them, in one process for many."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

SOLVE = """
import json, os, sys
import pytoulbar2
for path in sys.argv[1:]:
    read, write = os.pipe()
    if os.fork() == 0:  # toulbar2 keeps settings of a file for the next one
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        problem = pytoulbar2.CFN()
        try:
            problem.Read(path)
            found = problem.Solve()
        except Exception as error:
            found = None if "Contradiction" in type(error).__name__ else ("error", str(error))
        os.write(write, json.dumps(None if found is None else [list(map(int, found[0])), found[1]]).encode())
        os._exit(0)
    os.close(write)
    print(os.read(read, 1 << 16).decode())
    os.wait()
"""


def toulbar2(paths: list[Path]) -> list[tuple[list[int], float] | str | None]:
    """Optimal labels and costs, None for an infeasible model, "" for a file on which it ends."""
    pytest.importorskip("pytoulbar2")
    command = [sys.executable, "-c", SOLVE, *map(str, paths)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)
    return [json.loads(line) if line else line for line in done.stdout.splitlines()]
