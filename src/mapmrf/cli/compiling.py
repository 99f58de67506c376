"""The command `compile`: machine code of all kernels, and where it comes from."""

from __future__ import annotations

import os
import time

import click

from mapmrf.cli.program import main


@main.command("compile")
@click.option(
    "--native", is_flag=True, help="Compile for this machine's CPU; this code is then used instead of the package's."
)
@click.option("--jobs", "-j", type=click.IntRange(min=1), metavar="N", help="Processes.  [default: all cores]")
@click.option("--status", is_flag=True, help="Only print which code is in use, and why.")
def compile_command(native: bool, jobs: int | None, status: bool) -> None:
    """Compile all kernels into the user's cache.

    An installed package contains machine code for any common CPU, so this is not needed. `--native` compiles for all
    features of this machine.
    """
    from mapmrf.compilation.store import mark_native

    if not status:
        began = time.perf_counter()
        if native:
            os.environ["MAPMRF_KERNELS"] = "compile"
        _compile(jobs or os.cpu_count() or 1)
        if native:
            del os.environ["MAPMRF_KERNELS"]
            mark_native()
        click.echo(f"compiled in {time.perf_counter() - began:.0f} s")
    for line in status_lines():
        click.echo(line)


def status_lines() -> list[str]:
    """List the possible sources of machine code in the order of search, and which is in use."""
    from mapmrf.compilation.store import origins

    used = {True: "used", False: "not used"}
    lines = [f"{used[origin.code is not None]:10}{origin.what}: {origin.reason}" for origin in origins()]
    return [*lines, "else      compiled when first used"]


def _compile(jobs: int) -> None:
    from mapmrf.compilation.precompile import compile_all
    from mapmrf.run.progress import TerminalBar

    with TerminalBar("compiling", "bar", "count", "{task.fields[state]}", "elapsed", total=None) as bar:
        compile_all(jobs, lambda done, total, name: bar.draw(completed=done, total=total, state=name))
