"""Commands about the installed program: `compile` its kernels, and `completion` of its commands by a shell.

A shell that completes runs this program with an environment variable set. How a value is completed follows from the
metavar of its option.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from typing import Any

import click
from click.shell_completion import CompletionItem, get_completion_class

from mapmrf.cli import ASKED, jobs_option, main

FILES = ("FILE", "MODEL", "RECORDS", "IN", "OUT", "SOLUTION")
"""Metavars of files, possibly inside brackets and the like."""


@main.command("compile")
@click.option(
    "--native", is_flag=True, help="Compile for this machine's CPU; this code is then used instead of the package's."
)
@jobs_option
@click.option("--status", is_flag=True, help="Only print which code is in use, and why.")
def compile_command(native: bool, jobs: int | None, status: bool) -> None:
    """Compile all kernels into the user's cache.

    An installed package contains machine code for any common CPU, so this is not needed. `--native` compiles for all
    features of this machine.
    """
    from mapmrf.compilation.precompile import compile_all
    from mapmrf.compilation.store import mark_native, origins
    from mapmrf.run.progress import TerminalBar

    if not status:
        began = time.perf_counter()
        if native:
            os.environ["MAPMRF_KERNELS"] = "compile"
        with TerminalBar("compiling", "bar", "count", "{task.fields[state]}", "elapsed", total=None) as bar:
            compile_all(
                jobs or os.cpu_count() or 1,
                lambda done, total, name: bar.draw(completed=done, total=total, state=name),
            )
        if native:
            del os.environ["MAPMRF_KERNELS"]
            mark_native()
        click.echo(f"compiled in {time.perf_counter() - began:.0f} s")
    for origin in origins():  # in the order of search
        click.echo(f"{'not used' if origin.code is None else 'used':10}{origin.what}: {origin.reason}")
    click.echo("else      compiled when first used")


@main.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """Print a completion script, to be sourced by the shell."""
    cls: Any = get_completion_class(shell)
    click.echo(cls(main, {}, "mapmrf", ASKED).source())


class NameType(click.ParamType):  # type: ignore[type-arg]
    """Text that is completed as a file, a folder or a name from a list; in a list, after its last comma."""

    name = "text"

    def __init__(self, kind: str) -> None:
        self.kind = kind

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        if self.kind in ("file", "dir"):
            return [CompletionItem(incomplete, type=self.kind)]
        from mapmrf.cli.methods import option_choices
        from mapmrf.run.registry import DEFAULT_METHOD, method_class, method_names

        if self.kind == "method":
            names = method_names()
        else:
            name = ctx.params.get("method") or (DEFAULT_METHOD if ctx.info_name == "solve" else "lslp")
            choices = option_choices(method_class(name))
            key, sign, _ = incomplete.partition("=")
            names = [f"{key}={value}" for value in choices.get(key, ())] if sign else [f"{name}=" for name in choices]
        before, comma, begun = incomplete.rpartition(",")
        found = [CompletionItem(f"{before}{comma}{name}") for name in names if name.startswith(begun)]
        may_be_file = self.kind == "method" and not found
        return [CompletionItem(incomplete, type="file")] if may_be_file else found


def prepare_completion(group: click.Group) -> None:
    """Give every text value of the program a type that a shell can complete."""
    for parameter in _parameters(group):
        if isinstance(parameter.type, click.types.StringParamType) and (kind := _kind(parameter)):
            parameter.type = NameType(kind)


def _parameters(group: click.Group) -> Iterator[click.Parameter]:
    context = click.Context(group)
    for command in (group.get_command(context, name) for name in group.list_commands(context)):
        assert command is not None
        yield from command.params
        if isinstance(command, click.Group):
            yield from _parameters(command)


def _kind(parameter: click.Parameter) -> str | None:
    if parameter.name in ("method", "methods", "polish"):
        return "method"
    if parameter.name in ("settings", "grid"):
        return "option"
    words = (parameter.metavar or str(parameter.name).upper()).strip("[].").split(".")[0].split("|")
    if "DIR" in words:
        return "dir"
    return "file" if any(word.strip(".[]") in FILES for word in words) else None
