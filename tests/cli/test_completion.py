"""Shell completion: the scripts are made, bash takes its own, and what it offers is right."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from command_line import run
from mapmrf.run.registry import method_names

BASH = shutil.which("bash")


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_every_shell_has_a_script(shell: str) -> None:
    done = run("completion", shell)
    assert done.exit_code == 0 and "_MAPMRF_COMPLETE" in done.stdout and "mapmrf" in done.stdout


def test_another_shell_is_one_line() -> None:
    done = run("completion", "tcsh")
    assert done.exit_code == 2 and done.stderr.count("\n") == 1 and "bash" in done.stderr


def asked(*words: str) -> list[tuple[str, str]]:
    """Kinds and texts that a shell gets for the last of some words."""
    environment = {
        **os.environ,
        "_MAPMRF_COMPLETE": "bash_complete",
        "COMP_WORDS": " ".join(["mapmrf", *words]),
        "COMP_CWORD": str(len(words)),
    }
    command = [sys.executable, "-m", "mapmrf"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    return [(kind, text) for kind, _, text in (line.partition(",") for line in done.stdout.splitlines())]


def texts(*words: str) -> list[str]:
    return [text for _, text in asked(*words)]


def test_commands_options_methods_and_files_are_completed() -> None:
    assert texts("so") == ["solve"]
    assert "--time-limit" in texts("solve", "--ti")
    assert texts("solve", "--method", "") == method_names()
    assert texts("solve", "--method", "trw") == ["trws"]
    assert texts("bench", "--methods", "icm,trw") == ["icm,trws"]
    assert asked("solve", "--method", "my_file.py") == [("file", "my_file.py")]
    assert texts("tune", "--method", "icm", "--set", "st") == ["starts="]
    assert asked("solve", "mod") == [("file", "mod")]
    assert asked("solve", "model.uai", "--output", "x") == asked("info", "x") == [("file", "x")]
    assert asked("report", "records.jsonl", "--figures", "") == [("dir", "")]
    assert texts("completion", "b") == ["bash"]


@pytest.mark.skipif(BASH is None, reason="needs bash")
def test_bash_sources_the_script_and_completes(tmp_path: Path) -> None:
    program = tmp_path / "mapmrf"
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m mapmrf "$@"\n')
    program.chmod(0o755)
    (tmp_path / "script").write_text(run("completion", "bash").stdout)
    code = """
        source "$1/script" || exit 1
        complete -p mapmrf || exit 2
        COMP_WORDS=(mapmrf solve --method trw); COMP_CWORD=3
        _mapmrf_completion mapmrf
        printf '%s\\n' "${COMPREPLY[@]}"
    """
    environment = {**os.environ, "PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}"}
    command = [str(BASH), "--norc", "-c", code, "bash", str(tmp_path)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert "-F _mapmrf_completion mapmrf" in done.stdout and done.stdout.splitlines()[-1] == "trws"
