"""The command that checks a certificate: `verify`."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import click

from mapmrf.cli.program import bytes_option, complain, evidence_option, json_option, main, read_labels, read_model

if TYPE_CHECKING:
    from fractions import Fraction

    from mapmrf.certificates import Verification

NOT_PROVEN = 4
"""Exit code for a certificate that is not valid, or leaves a wider gap than requested."""


@main.command()
@click.argument("model")
@click.argument("solution")
@click.argument("certificate")
@evidence_option
@click.option(
    "--fast", is_flag=True, help="Round potentials up to multiples of a power of 2 instead of using exact fractions."
)
@click.option(
    "--gap-tolerance", type=click.FloatRange(min=0), metavar="GAP", help="Fail if the relative gap is wider than this."
)
@bytes_option
@json_option
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

    graph = read_model(model, evidence)
    labels = read_labels(solution, graph)
    try:
        found = check(graph, labels, Certificate.read(certificate), exact=not fast)
    except InvalidCertificate as error:
        complain(f"not valid: {error}")
        return NOT_PROVEN
    click.echo(_json(found, fast) if as_json else _report(found, fast))
    if gap_tolerance is not None and found.relative_gap() > gap_tolerance:
        complain(f"the relative gap is {found.relative_gap():.3g}, expected at most {gap_tolerance:g}")
        return NOT_PROVEN
    return 0


def _report(found: Verification, fast: bool) -> str:
    """Format a short report."""
    gap = "none" if found.gap is None else "0" if found.gap == 0 else f"{float(found.gap):.3g}"
    relative = "" if found.gap is None else f"  (relative {found.relative_gap():.3g})"
    better = "better" if found.optimal else "above the bound" if found.gap is None else f"better by more than {gap}"
    meaning = f"proven: no labelling is {better}"
    if found.bound is None:
        meaning = "proven: every labelling has probability zero"
    arithmetic = "64-bit multiples of a power of 2, potentials rounded up" if fast else "fractions"
    return "\n".join(
        [
            f"log potential  {_number(found.value)}",
            f"proven bound   {_number(found.bound)}",
            f"gap            {gap}{relative}",
            f"certificate    valid, {meaning}",
            f"arithmetic     {arithmetic}",
        ]
    )


def _number(number: Fraction | None) -> str:
    return "-inf" if number is None else f"{float(number):.12g}"


def _json(found: Verification, fast: bool) -> str:
    """Format one JSON object, with fractions as text."""
    fractions = {name: getattr(found, name) for name in ("value", "bound", "gap")}
    data = {name: None if number is None else float(number) for name, number in fractions.items()}
    exact = {f"{name}_exact": None if number is None else str(number) for name, number in fractions.items()}
    figures = {"optimal": found.optimal, "n_open": found.n_open, "eliminated": found.eliminated, "fast": fast}
    return json.dumps({**data, **exact, **figures})
