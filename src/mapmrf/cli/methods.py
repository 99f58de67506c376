"""Commands about methods and their options: `methods` and `tune`; ``rho=0.5`` takes the type of the option `rho`."""

from __future__ import annotations

import dataclasses
import json
import textwrap
import types
import typing
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import click

from mapmrf import cli
from mapmrf.errors import OptionError, suggestion

if TYPE_CHECKING:
    from mapmrf.run.method import Method

_BOOLS = {"true": True, "yes": True, "on": True, "1": True, "false": False, "no": False, "off": False, "0": False}
_WORDS = {bool: ["true", "false"], type(None): ["none"]}
_WANTED = {int: "a whole number", float: "a number", bool: "true or false", str: "text", type(None): "none"}


@cli.main.command()
@click.argument("model")
@cli.method_option
@cli.evidence_option
@click.option("--grid", multiple=True, metavar="KEY=V,V,..", help="Values to try for an option, or seeds.")
@cli.set_option
@cli.time_option
@cli.jobs_option
@click.option(
    "--output", "-o", metavar="FILE", help="Write the full table (.csv, .tsv), or what --json prints (.json)."
)
@cli.memory_option()
@cli.force_option
@cli.json_option
def tune(
    model: str,
    method: str | None,
    evidence: str | None,
    grid: Sequence[str],
    settings: Sequence[str],
    time_limit: float | None,
    jobs: int | None,
    output: str | None,
    as_json: bool,
) -> int:
    """Search for the best parameters for MODEL.

    Without --grid, the paper's grid of rho, eta and rho_upper is searched; a --grid of other options replaces it.
    """
    cli.check_outputs(output)
    from mapmrf.questions.tune import PAPER_AXES, tune
    from mapmrf.run.registry import method_class

    name = method or "lslp"
    axes: dict[str, Any] = parse_grid(method_class(name), grid)
    seeds = {"seeds": axes.pop("seeds")} if "seeds" in axes else {}
    if not set(axes) <= set(PAPER_AXES):
        axes = {"grid": axes}
    options = parse_settings(method_class(name), settings)
    graph = cli.read_model(model, evidence)
    tuning = tune(graph, name, time_limit=time_limit, jobs=jobs, progress=True, **axes, **seeds, **options)
    result = json.loads(tuning.result.to_json())
    found = cli.strict_json({"best": tuning.best, "result": result, "table": tuning.table})
    if output is not None:
        from mapmrf.formats.files import plain_name, write_bytes

        rows = [list(tuning.table[0]), *(list(row.values()) for row in tuning.table)]
        delimiter = "\t" if plain_name(output).endswith(".tsv") else ","
        text = f"{found}\n" if plain_name(output).endswith(".json") else cli.csv_text(rows, delimiter)
        write_bytes(output, text.encode())
    if as_json:
        click.echo(found)
    else:
        best = " ".join(f"--set {key}={value}" for key, value in tuning.best.items())
        first = sorted(tuning.table, key=lambda row: (-row["value"], row["runtime"]))[:10]
        click.echo(f"{cli.table(first)}\n\nbest           {best}\n{cli.report(tuning.result)}")
    return cli.exit_code(tuning.result.status)


@cli.main.command()
@click.argument("names", metavar="[NAME]...", nargs=-1)
@cli.json_option
def methods(names: Sequence[str], as_json: bool) -> None:
    """List the methods and what each provides, or the options of the methods NAME."""
    from mapmrf.run.registry import described_options, method_class, methods

    chosen = {name: method_class(name) for name in names} or methods()
    if as_json:
        known: dict[str, dict[str, Any]] = {}
        for name, cls in chosen.items():
            flags = {key: getattr(cls, key) for key in ("recommended", "gives_bound", "exact", "exact_on_trees")}
            options = dataclasses.asdict(cls())  # type: ignore[call-overload]
            known[name] = {"title": cls.title, "family": cls.family, **flags, "options": options}
        click.echo(cli.strict_json(known))
    elif names:
        for name, cls in chosen.items():
            click.echo(f"{name}: {cls.title}")
            for together, meaning in described_options(cls).items():
                click.echo("  " + ", ".join(f"{key}={getattr(cls(), key)}" for key in together))
                click.echo(
                    textwrap.fill(meaning.replace("``", ""), 100, initial_indent=" " * 6, subsequent_indent=" " * 6)
                )
    else:
        for recommended, heading in ((True, ""), (False, "\nMethods of the paper, and building blocks\n")):
            rows = []
            for name, cls in chosen.items():
                if cls.recommended == recommended:
                    exact = "yes" if cls.exact else "on trees" if cls.exact_on_trees else "no"
                    bound = "yes" if cls.gives_bound else "no"
                    rows.append({"name": name, "bound": bound, "exact": exact, "title": cls.title})
            click.echo(heading + cli.table(rows))
        click.echo("\nmapmrf methods NAME lists the options of a method, for --set.")


# -- options as text -------------------------------------------------------------------------------------------------


def parse_settings(cls: type[Method], texts: Iterable[str]) -> dict[str, Any]:
    """Parse texts such as ``rho=0.5`` as options of a method; unknown names are left to `make_method`."""
    hints = typing.get_type_hints(cls)
    options = {}
    for text in texts:
        key, value = _split(text)
        options[key] = _parse(key, value, hints.get(key, str))
    return options


def parse_grid(cls: type[Method], texts: Iterable[str]) -> dict[str, list[Any]]:
    """Parse texts such as ``rho=0.1,0.5`` as lists of values of a method's options; `seeds` are whole numbers."""
    known = [item.name for item in dataclasses.fields(cls)]  # type: ignore[arg-type]
    hints = {name: hint for name, hint in typing.get_type_hints(cls).items() if name in known} | {"seeds": int}
    result: dict[str, list[Any]] = {}
    for text in texts:
        key, values = _split(text)
        if key not in hints:
            nearest = suggestion(key, hints)
            raise OptionError(
                f"--grid: found {key!r}, expected seeds or an option of {cls.name}: {', '.join(known)}{nearest}"
            )
        result[key] = [_parse(key, value, hints[key]) for value in values.split(",")]
    return result


def _split(text: str) -> tuple[str, str]:
    """Split at the first ``=``; dashes in the name become underscores."""
    key, sign, value = text.partition("=")
    if not sign or not key.strip():
        raise OptionError(f"found {text!r}, expected key=value")
    return key.strip().replace("-", "_"), value.strip()


def _parse(key: str, text: str, hint: Any) -> Any:
    choices = _choices(hint)
    for choice in choices:
        try:
            return _as(choice, text)
        except ValueError:
            continue
    wanted = " or ".join(_WANTED.get(choice, repr(choice)) for choice in choices)
    raise OptionError(f"option {key}: found {text!r}, expected {wanted}")


def _choices(hint: Any) -> list[Any]:
    """Types and literals of an annotation, None first and str last, since it accepts everything."""
    if typing.get_origin(hint) is typing.Literal:
        return list(typing.get_args(hint))
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        parts = [choice for part in typing.get_args(hint) for choice in _choices(part)]
        return sorted(parts, key=lambda part: (part is str, part is not type(None)))
    return [hint]


def option_choices(cls: type[Method]) -> dict[str, list[str]]:
    """The options of a method, each with its words where it takes only some."""
    hints = typing.get_type_hints(cls)
    words: dict[str, list[str]] = {}
    for item in dataclasses.fields(cls):  # type: ignore[arg-type]
        choices = _choices(hints[item.name])
        words[item.name] = (
            []
            if {int, float, str} & set(choices)
            else [word for choice in choices for word in _WORDS.get(choice, [str(choice)])]
        )
    return words


def _as(choice: Any, text: str) -> Any:
    if choice is bool and text.lower() in _BOOLS:
        return _BOOLS[text.lower()]
    if choice is type(None) and text.lower() == "none":
        return None
    if choice is int:
        try:
            return int(text)
        except ValueError:
            if float(text).is_integer():  # 1e5
                return int(float(text))
    if choice in (float, str):
        return choice(text)
    if not isinstance(choice, type) and text == str(choice):
        return choice
    raise ValueError
