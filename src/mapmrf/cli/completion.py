"""`mapmrf completion`: the script that lets a shell complete commands, options, methods and files.

The shell runs this program with an environment variable set. How a value is completed follows from the metavar of its
option.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import click
from click.shell_completion import CompletionItem, get_completion_class

from mapmrf.cli.program import ASKED, main

FILES = ("FILE", "MODEL", "RECORDS", "IN", "OUT", "SOLUTION")
"""Metavars of files, possibly inside brackets and the like."""


class NameType(click.ParamType):  # type: ignore[type-arg]
    """Text that is completed as a file, a folder or a name from a list; in a list, after its last comma."""

    name = "text"

    def __init__(self, kind: str) -> None:
        self.kind = kind

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        """List the possible completions."""
        if self.kind in ("file", "dir"):
            return [CompletionItem(incomplete, type=self.kind)]
        before, comma, begun = incomplete.rpartition(",")
        found = [CompletionItem(f"{before}{comma}{name}") for name in self._names(ctx) if name.startswith(begun)]
        may_be_file = self.kind == "method" and not found
        return [CompletionItem(incomplete, type="file")] if may_be_file else found

    def _names(self, ctx: click.Context) -> list[str]:
        from mapmrf.run.registry import DEFAULT_METHOD, method_class, method_names

        if self.kind == "method":
            return method_names()
        chosen = ctx.params.get("method") or DEFAULT_METHOD
        return [f"{name}=" for name in method_class(chosen).__dataclass_fields__]  # type: ignore[attr-defined]


def prepare(group: click.Group) -> None:
    """Give every text value of the program a type that a shell can complete."""
    for parameter in _parameters(group):
        if isinstance(parameter.type, click.types.StringParamType) and (kind := _kind(parameter)):
            parameter.type = NameType(kind)


def _parameters(group: click.Group) -> Iterator[click.Parameter]:
    for command in group.commands.values():
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


@main.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """Print a completion script, to be sourced by the shell."""
    cls: Any = get_completion_class(shell)
    click.echo(cls(main, {}, "mapmrf", ASKED).source())
