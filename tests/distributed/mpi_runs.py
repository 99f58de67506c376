"""Runs of the command line under a real MPI."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from mapmrf.cli import main

BESIDE = Path(sys.executable).parent / "mpiexec"
MPIEXEC = str(BESIDE) if BESIDE.exists() else shutil.which("mpiexec")
HAS_MPI = MPIEXEC is not None and importlib.util.find_spec("mpi4py") is not None
needs_mpi = pytest.mark.skipif(not HAS_MPI, reason="needs mpi4py and mpiexec: pip install 'mapmrf[mpi]'")
needs_metis = pytest.mark.skipif(importlib.util.find_spec("pymetis") is None, reason="needs pymetis")


NO_MPI = 0
"""In place of a number of ranks: one process that is not started by MPI."""


def start_mpi(n: int, *arguments: object) -> subprocess.Popen[str]:
    command = [str(MPIEXEC), "-n", str(n), sys.executable, "-m", "mapmrf", *map(str, arguments)]
    environment = {**os.environ, "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return subprocess.Popen(command, text=True, env=environment, start_new_session=True, **pipes)


def ended(process: subprocess.Popen[str], seconds: float) -> tuple[str, str]:
    """What a command printed, which must end by then."""
    try:
        return process.communicate(timeout=seconds)
    finally:
        process.kill()
        process.communicate()


def run_mpi(n: int, *arguments: object, code: int = 0) -> str:
    """Run a command of mapmrf on n ranks; returns its standard output, or standard error if it is to fail."""
    process = start_mpi(n, *arguments)
    out, err = ended(process, 300)
    assert process.returncode == code, err
    return err if code else out


def run_here(_: int, *arguments: object) -> str:
    """Run a command of mapmrf in this process, without MPI; returns its standard output."""
    found = CliRunner().invoke(main, [str(argument) for argument in arguments])
    assert found.exit_code == 0, found.output
    return found.stdout


def solved(n: int, *arguments: object) -> dict[str, Any]:
    """What `solve --json` prints, but for times."""
    found: dict[str, Any] = json.loads((run_mpi if n else run_here)(n, "solve", *arguments, "--json", "-q"))
    for name in ("runtime", "compile_time", "ranks"):
        del found[name]
    return found
