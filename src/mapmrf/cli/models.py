"""Commands that read and write model files: `info`, `convert`, `check`, `score`."""

from __future__ import annotations

import click

from mapmrf.cli.output import check_outputs, strict_json, write_model
from mapmrf.cli.program import evidence_option, json_option, main, read_labels, read_model


@main.command()
@click.argument("model")
@json_option
def info(model: str, as_json: bool) -> None:
    """Print the size, structure and memory of MODEL."""
    import dataclasses

    from mapmrf.model_summary import summarise

    found = summarise(read_model(model))
    click.echo(strict_json(dataclasses.asdict(found)) if as_json else found.text())


@main.command()
@click.argument("source", metavar="IN")
@click.argument("target", metavar="OUT")
def convert(source: str, target: str) -> None:
    """Convert the model IN to the format given by the suffix of OUT."""
    check_outputs(target)
    write_model(read_model(source), target)


@main.command()
@click.argument("model")
@evidence_option
def check(model: str, evidence: str | None) -> None:
    """Read MODEL and report whether it is valid."""
    graph = read_model(model, evidence)
    click.echo(f"{model}: ok, {graph.n_vars} variables, {graph.n_factors} factors")


@main.command()
@click.argument("model")
@click.argument("solution")
@evidence_option
@json_option
def score(model: str, solution: str, evidence: str | None, as_json: bool) -> None:
    """Print the log potential of a SOLUTION file on MODEL."""
    graph = read_model(model, evidence)
    value = graph.value(read_labels(solution, graph))
    click.echo(strict_json({"value": value}) if as_json else repr(value))
