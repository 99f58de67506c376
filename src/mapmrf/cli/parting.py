"""Commands for models in parts: `partition` and `join`."""

from __future__ import annotations

import click

from mapmrf.cli.output import check_outputs, check_parts
from mapmrf.cli.program import bytes_option, evidence_option, force_option, main, max_bytes, read_model
from mapmrf.errors import OptionError


@main.command()
@click.argument("model")
@click.argument("folder", metavar="DIR")
@click.option("--parts", type=click.IntRange(min=1), required=True, metavar="N", help="Number of parts.")
@click.option(
    "--cut", type=click.Choice(("auto", "metis", "slabs")), default="auto", show_default=True, help="How to cut."
)
@click.option("--stream", is_flag=True, help="Read a .uai file that does not fit into memory; cut slabs by default.")
@evidence_option
@bytes_option
@force_option
def partition(model: str, folder: str, parts: int, cut: str, stream: bool, evidence: str | None) -> None:
    """Cut MODEL into parts, for a run on many machines.

    Every part is a file in DIR. `mpiexec -n 4 mapmrf solve DIR` solves the model; any number of
    ranks up to the number of parts gives the same answer.
    """
    if stream and evidence is not None:
        raise OptionError("--evidence cannot be combined with --stream")
    if stream and max_bytes() is not None:
        raise OptionError("--max-bytes cannot be combined with --stream, which never holds the tables in memory")
    check_parts(folder)
    if stream:
        from mapmrf.distributed.streaming import stream_partition

        found = stream_partition(model, folder, parts, cut)  # type: ignore[arg-type]
    else:
        from mapmrf.distributed.cutting import partition

        found = partition(read_model(model, evidence), folder, parts, cut)  # type: ignore[arg-type]
    click.echo(f"{folder}: {found.counts.n_parts} parts of {found.counts.n_vars} variables")


@main.command()
@click.argument("folder", metavar="DIR")
@click.option("--output", "-o", metavar="FILE", required=True, help="Solution file (.MPE) to write.")
@force_option
def join(folder: str, output: str) -> None:
    """Join the labels that `solve -o DIR/` wrote into one solution file."""
    check_outputs(output)
    from mapmrf.distributed.evaluation import join_labels
    from mapmrf.formats.solution import write_solution

    write_solution(output, join_labels(folder))
