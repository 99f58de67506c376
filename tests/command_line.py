"""The command line in tests: in this process, or as one of its own."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from click.testing import CliRunner, Result

from mapmrf.cli import main


def run(*args: object, env: Mapping[str, str] | None = None) -> Result:
    return CliRunner().invoke(main, [str(arg) for arg in args], env=env)


def done(*args: object) -> str:
    """Standard output of a command that must succeed and be silent on standard error."""
    result = run(*args)
    assert (result.exit_code, result.stderr) == (0, ""), result.output
    return result.stdout


def refused(*args: object) -> str:
    """The one line of a command that must fail before it does anything."""
    result = run(*args)
    assert (result.exit_code, result.stdout) == (2, ""), result.output
    (line,) = result.stderr.splitlines()
    assert line.startswith("mapmrf: error: ")
    return line


def started(code: str, *args: object, env: Mapping[str, str] | None = None, **pipes: Any) -> subprocess.Popen[str]:
    """A process that runs Python code with the command line `main` at hand."""
    command = [sys.executable, "-c", f"import sys\nfrom mapmrf.cli import main\n{code}", *map(str, args)]
    both = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **pipes}
    return subprocess.Popen(command, text=True, env={**os.environ, **(env or {})}, **both)


def opened(pipe: Path) -> int:
    """Open a named pipe for writing as soon as somebody reads it."""
    while True:
        try:
            return os.open(pipe, os.O_WRONLY | os.O_NONBLOCK)
        except OSError:
            time.sleep(0.01)
