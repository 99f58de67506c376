"""Commands about model files: `verify`, `info`, `convert`, `check`, `score`; in parts: `partition`, `join`."""

from __future__ import annotations

import dataclasses
import json
from typing import TYPE_CHECKING

import click

from mapmrf import cli
from mapmrf.errors import OptionError

if TYPE_CHECKING:
    from mapmrf.certificates import Verification


@cli.main.command()
@click.argument("model")
@click.argument("solution")
@click.argument("certificate")
@cli.evidence_option
@click.option(
    "--fast", is_flag=True, help="Round potentials up to multiples of a power of 2 instead of using exact fractions."
)
@click.option(
    "--gap-tolerance", type=cli.AtLeast(0, float), metavar="GAP", help="Fail if the relative gap is wider than this."
)
@cli.memory_option()
@cli.json_option
def verify(
    model: str,
    solution: str,
    certificate: str,
    evidence: str | None,
    fast: bool,
    gap_tolerance: float | None,
    as_json: bool,
) -> int:
    """Check a CERTIFICATE for a SOLUTION of MODEL and print the bound that it proves.

    The check uses no solver code. The exit code is 4 if the certificate is not valid.
    """
    from mapmrf.certificates import Certificate, InvalidCertificate
    from mapmrf.certificates import verify as check

    graph = cli.read_model(model, evidence)
    labels = cli.read_labels(solution, graph)
    try:
        found = check(graph, labels, Certificate.read(certificate), exact=not fast)
    except InvalidCertificate as error:
        cli.complain(f"not valid: {error}")
        return cli.Exit.NOT_PROVEN
    click.echo(_verification_json(found, fast) if as_json else _verification_text(found, fast))
    if gap_tolerance is not None and found.relative_gap() > gap_tolerance:
        cli.complain(f"the relative gap is {found.relative_gap():.3g}, expected at most {gap_tolerance:g}")
        return cli.Exit.NOT_PROVEN
    return 0


def _verification_text(found: Verification, fast: bool) -> str:
    gap = "none" if found.gap is None else "0" if found.gap == 0 else f"{float(found.gap):.3g}"
    relative = "" if found.gap is None else f"  (relative {found.relative_gap():.3g})"
    better = "better" if found.optimal else "above the bound" if found.gap is None else f"better by more than {gap}"
    meaning = f"no labelling is {better}" if found.bound is not None else "every labelling has probability zero"
    value, bound = ("-inf" if n is None else f"{float(n):.12g}" for n in (found.value, found.bound))
    return "\n".join(
        [
            f"log potential  {value}",
            f"proven bound   {bound}",
            f"gap            {gap}{relative}",
            f"certificate    valid, proven: {meaning}",
            f"arithmetic     {'64-bit multiples of a power of 2, potentials rounded up' if fast else 'fractions'}",
        ]
    )


def _verification_json(found: Verification, fast: bool) -> str:
    fractions = {name: getattr(found, name) for name in ("value", "bound", "gap")}
    data = {name: None if number is None else float(number) for name, number in fractions.items()}
    exact = {f"{name}_exact": None if number is None else str(number) for name, number in fractions.items()}
    figures = {"optimal": found.optimal, "n_open": found.n_open, "eliminated": found.eliminated, "fast": fast}
    return json.dumps({**data, **exact, **figures})


@cli.main.command()
@click.argument("model")
@cli.memory_option()
@cli.json_option
def info(model: str, as_json: bool) -> None:
    """Print the size, structure and memory of MODEL."""
    from mapmrf.model.summary import summarise

    found = summarise(cli.read_model(model))
    click.echo(cli.strict_json(dataclasses.asdict(found)) if as_json else found.text())


@cli.main.command()
@click.argument("source", metavar="IN")
@click.argument("target", metavar="OUT")
@click.option("--tables", is_flag=True, help="Write constraints as tables, with auxiliary variables at the end.")
@cli.memory_option()
@cli.force_option
def convert(source: str, target: str, tables: bool) -> None:
    """Convert the model IN to the format given by the suffix of OUT."""
    cli.check_outputs(target)
    graph = cli.read_model(source)
    if tables:
        from mapmrf.constraints.as_tables import without_constraints

        graph = without_constraints(graph)
    cli.write_model(graph, target)


@cli.main.command()
@click.argument("model")
@cli.evidence_option
@cli.memory_option()
def check(model: str, evidence: str | None) -> None:
    """Read MODEL and report whether it is valid."""
    graph = cli.read_model(model, evidence)
    constraints = f", {graph.n_constraints} constraints" if graph.n_constraints else ""
    click.echo(f"{model}: ok, {graph.n_vars} variables, {graph.n_factors} factors{constraints}")


@cli.main.command()
@click.argument("model")
@click.argument("solution")
@cli.evidence_option
@cli.memory_option()
@cli.json_option
def score(model: str, solution: str, evidence: str | None, as_json: bool) -> None:
    """Print the log potential of a SOLUTION file on MODEL."""
    graph = cli.read_model(model, evidence)
    value = graph.value(cli.read_labels(solution, graph))
    click.echo(cli.strict_json({"value": value}) if as_json else repr(value))


# -- in parts --------------------------------------------------------------------------------------------------------


@cli.main.command()
@click.argument("model")
@click.argument("folder", metavar="DIR")
@click.option("--parts", type=cli.AtLeast(1), required=True, metavar="N", help="Number of parts.")
@click.option(
    "--cut", type=click.Choice(("auto", "metis", "slabs")), default="auto", show_default=True, help="How to cut."
)
@click.option("--stream", is_flag=True, help="Read a .uai file that does not fit into memory; cut slabs by default.")
@cli.evidence_option
@cli.memory_option()
@cli.force_option
def partition(model: str, folder: str, parts: int, cut: str, stream: bool, evidence: str | None) -> None:
    """Cut MODEL into parts, for a run on many machines.

    Every part is a file in DIR. `mpiexec -n 4 mapmrf solve DIR` solves the model; any number of
    ranks up to the number of parts gives the same answer.
    """
    if stream and evidence is not None:
        raise OptionError("--evidence cannot be combined with --stream")
    if stream and cli.memory_limit() is not None:
        raise OptionError("--memory-limit cannot be combined with --stream, which never holds the tables in memory")
    cli.check_parts(folder)
    if stream:
        from mapmrf.distributed.streaming import stream_partition

        found = stream_partition(model, folder, parts, cut)  # type: ignore[arg-type]
    else:
        from mapmrf.distributed.cutting import partition

        found = partition(cli.read_model(model, evidence), folder, parts, cut)  # type: ignore[arg-type]
    click.echo(f"{folder}: {found.counts.n_parts} parts of {found.counts.n_vars} variables")


@cli.main.command()
@click.argument("folder", metavar="DIR")
@click.option("--output", "-o", metavar="FILE", required=True, help="Solution file (.MPE) to write.")
@cli.force_option
def join(folder: str, output: str) -> None:
    """Join the labels that `solve -o DIR/` wrote into one solution file."""
    cli.check_outputs(output)
    from mapmrf.distributed.evaluation import join_labels
    from mapmrf.formats.solution import write_solution

    write_solution(output, join_labels(folder))
