"""Commands that read and write model files: `info`, `convert`, `check`, `score`."""

from __future__ import annotations

import click

from mapmrf.cli.output import check_outputs, strict_json, write_model
from mapmrf.cli.program import (
    bytes_option,
    evidence_option,
    force_option,
    json_option,
    main,
    read_labels,
    read_model,
)


@main.command()
@click.argument("model")
@bytes_option
@json_option
def info(model: str, as_json: bool) -> None:
    """Print the size, structure and memory of MODEL."""
    import dataclasses

    from mapmrf.model.summary import summarise

    found = summarise(read_model(model))
    click.echo(strict_json(dataclasses.asdict(found)) if as_json else found.text())


@main.command()
@click.argument("source", metavar="IN")
@click.argument("target", metavar="OUT")
@click.option("--tables", is_flag=True, help="Write constraints as tables, with auxiliary variables at the end.")
@bytes_option
@force_option
def convert(source: str, target: str, tables: bool) -> None:
    """Convert the model IN to the format given by the suffix of OUT."""
    check_outputs(target)
    graph = read_model(source)
    if tables:
        from mapmrf.constraints.as_tables import without_constraints

        graph = without_constraints(graph)
    write_model(graph, target)


@main.command()
@click.argument("model")
@evidence_option
@bytes_option
def check(model: str, evidence: str | None) -> None:
    """Read MODEL and report whether it is valid."""
    graph = read_model(model, evidence)
    constraints = f", {graph.n_constraints} constraints" if graph.n_constraints else ""
    click.echo(f"{model}: ok, {graph.n_vars} variables, {graph.n_factors} factors{constraints}")


@main.command()
@click.argument("model")
@click.argument("solution")
@evidence_option
@bytes_option
@json_option
def score(model: str, solution: str, evidence: str | None, as_json: bool) -> None:
    """Print the log potential of a SOLUTION file on MODEL."""
    graph = read_model(model, evidence)
    value = graph.value(read_labels(solution, graph))
    click.echo(strict_json({"value": value}) if as_json else repr(value))
