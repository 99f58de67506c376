"""Commands that solve: `solve`, `demo`, `tune`, `methods`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import click

from mapmrf.cli.answering import Question, QuestionRun
from mapmrf.cli.batch import BatchRequest, solve_batch
from mapmrf.cli.output import (
    check_outputs,
    methods_report,
    report,
    strict_json,
    tuning_json,
    tuning_report,
    write_result,
    write_rows,
)
from mapmrf.cli.parted_solving import PartsRequest, Saving, is_part_folder, solve_parts
from mapmrf.cli.program import (
    INFEASIBLE,
    INTERRUPTED,
    bytes_option,
    complain,
    evidence_option,
    force_option,
    json_option,
    main,
    max_bytes,
    memory_option,
    method_option,
    read_labels,
    read_model,
    seed_option,
    set_option,
    time_option,
)
from mapmrf.errors import OptionError
from mapmrf.model.memory import byte_count
from mapmrf.run.interrupts import leaving

if TYPE_CHECKING:
    from mapmrf.arrays import Ints
    from mapmrf.model.graph import FactorGraph
    from mapmrf.run.method import Method
    from mapmrf.run.result import Result, TracePoint

Lines = Literal["improvements", "log"]
"""What a run prints besides its result: a line per improvement, or a full log."""

OUTPUT_HELP = """Write the labelling: the full result to *.json, otherwise a solution file (.MPE). With several models,
a folder for their solutions; with an evidence table, a .csv, .tsv or .jsonl file of answers."""


PART_BOUND_HELP = "For a model in parts: iterations of TRW-S in each part, for a tighter bound."


NEGLIGIBLE = 1e-9
"""Largest relative gap of a certificate that is not reported."""


@main.command()
@click.argument("models", nargs=-1, required=True, metavar="MODEL...")
@method_option
@evidence_option
@click.option("--evidence-table", metavar="FILE.csv", help="Solve MODEL once for each row of observations.")
@set_option
@time_option
@memory_option
@seed_option
@click.option(
    "--threads", type=click.IntRange(min=0), default=1, show_default=True, help="Threads per model, 0 for all cores."
)
@click.option(
    "--jobs",
    "-j",
    type=click.IntRange(min=1),
    default=1,
    show_default=True,
    help="Number of models solved in parallel.",
)
@click.option(
    "--backend", metavar="NAME", help="Backend for parallel runs: threads, processes, or a joblib backend such as dask."
)
@click.option("--initial", metavar="FILE", help="Solution file to start from.")
@click.option("--output", "-o", metavar="FILE|DIR/", help=OUTPUT_HELP)
@json_option
@click.option("--trace", metavar="FILE.csv", help="Write the trace of the run.")
@click.option("--polish", metavar="NAME", help="Method that improves the final labelling, such as blocks.")
@click.option("--progress", is_flag=True, help="Print a line per improvement: time, phase, value, bound and gap.")
@click.option(
    "--log", is_flag=True, help="Print a log: the model, improvements, and which phases found and proved the answer."
)
@click.option("--gap-tolerance", type=float, metavar="GAP", help="Stop at this relative gap.  [default: 1e-6]")
@click.option(
    "--abs-gap-tolerance",
    type=float,
    default=0.0,
    metavar="GAP",
    help="Stop at this difference between bound and value.",
)
@click.option("--best", type=click.IntRange(min=1), metavar="M", help="Find the M best labellings.")
@click.option(
    "--distance",
    type=click.IntRange(min=1),
    metavar="D",
    help="Minimum number of variables in which the M best differ.",
)
@click.option("--query", metavar="NAMES", help="Variables to maximise over, by name or index; sum out all others.")
@click.option(
    "--margins", is_flag=True, help="Compute how certain each label is, for --json, -o *.json and `mapmrf plot`."
)
@click.option("--checkpoint", metavar="DIR", help="Save the state of the run in this folder at regular intervals.")
@click.option("--every", type=click.FloatRange(min=0), default=300.0, metavar="S", help="Seconds between checkpoints.")
@click.option("--resume", is_flag=True, help="Resume from the checkpoint, if there is one.")
@click.option("--part-bound", type=click.IntRange(min=0), default=0, metavar="N", help=PART_BOUND_HELP)
@click.option("--certificate", metavar="FILE.npz", help="Write a dual point that proves a bound, for `mapmrf verify`.")
@bytes_option
@force_option
@click.option("--quiet", "-q", is_flag=True, help="Print nothing but errors.")
def solve(
    models: Sequence[str],
    method: str | None,
    evidence: str | None,
    evidence_table: str | None,
    settings: Sequence[str],
    time_limit: float | None,
    memory_limit: str | None,
    seed: int,
    threads: int,
    jobs: int,
    backend: str | None,
    initial: str | None,
    output: str | None,
    as_json: bool,
    trace: str | None,
    polish: str | None,
    progress: bool,
    log: bool,
    gap_tolerance: float | None,
    abs_gap_tolerance: float,
    best: int | None,
    distance: int | None,
    query: str | None,
    margins: bool,
    checkpoint: str | None,
    every: float,
    resume: bool,
    part_bound: int,
    certificate: str | None,
    quiet: bool,
) -> int:
    """Find a labelling of MODEL with high log potential.

    Several models are reported one per line, or with --json one object per line, in the order given. A model that
    cannot be solved does not stop the others. The time limit applies to each model.

    MODEL may be a folder of parts, see `mapmrf partition`; under mpiexec, they are shared among the ranks.
    """
    saving = Saving(checkpoint, every, resume)
    if len(models) == 1 and is_part_folder(models[0]):
        refused: dict[str, object] = {
            "--evidence": evidence, "--evidence-table": evidence_table, "--backend": backend,
            "--threads": threads if threads != 1 else None, "--best": best, "--query": query,
            "--margins": margins or None, "--memory-limit": memory_limit,
        }  # fmt: skip
        wanted = PartsRequest(output, trace, as_json, "log" if log else "improvements" if progress else None, quiet)
        common: dict[str, Any] = {
            "time_limit": time_limit, "seed": seed, "gap_tolerance": gap_tolerance,
            "abs_gap_tolerance": abs_gap_tolerance, "initial": initial, **saving._asdict(),
            "polish": _polisher(polish), "part_bound": part_bound,
        }  # fmt: skip
        return solve_parts(models[0], _method(method or "lslp", settings), common, wanted, refused)
    many = len(models) > 1 or backend is not None or _is_folder(output) or evidence_table is not None
    question = Question(best, distance, query)
    if many:
        single: dict[str, object] = {
            "--initial": initial, "--trace": trace, "--progress": progress or None, "--log": log or None,
            "--best": best, "--distance": distance, "--query": query, "--margins": margins or None,
            "--checkpoint": checkpoint,
            "--certificate": certificate,
        }  # fmt: skip
        _refuse_for_many(models, evidence_table, single)
    else:
        check_outputs(output, trace, certificate)
    chosen = _method(method, settings)
    limits: dict[str, Any] = {
        "time_limit": time_limit, "seed": seed, "threads": threads or None, "polish": _polisher(polish),
        "gap_tolerance": gap_tolerance, "abs_gap_tolerance": abs_gap_tolerance,
        "memory_limit": byte_count(memory_limit),
    }  # fmt: skip
    if question.asked:
        unused: dict[str, object] = {
            "--initial": initial, "--trace": trace, "--polish": polish, "--progress": progress or None,
            "--log": log or None, "--gap-tolerance": gap_tolerance, "--margins": margins or None,
            "--checkpoint": checkpoint, "--certificate": certificate, "--memory-limit": memory_limit,
        }  # fmt: skip
        question.check(unused)
        shared = {key: limits[key] for key in ("time_limit", "seed", "threads")}
        return QuestionRun(chosen, shared, output, as_json, quiet).run(question, models[0], evidence)
    if not many:
        limits |= {"margins": margins, "certificate": certificate is not None, **saving._asdict()}
        lines: Lines | None = "log" if log else "improvements" if progress else None
        return SingleRun(chosen, limits, initial, output, trace, certificate, as_json, lines, quiet).run(
            models[0], evidence
        )
    options = {**limits, "jobs": jobs, "backend": backend, "progress": not quiet, "max_bytes": max_bytes()}
    request = BatchRequest(chosen, options, evidence, output, as_json, quiet)
    return solve_batch(models, evidence_table, request)


@dataclass(frozen=True)
class SingleRun:
    """The options of a run on one model: how to solve it, what to write and what to print."""

    method: Method
    limits: dict[str, Any]
    initial: str | None
    output: str | None
    trace: str | None
    certificate: str | None
    as_json: bool
    lines: Lines | None
    quiet: bool

    def run(self, model: str, evidence: str | None) -> int:
        """Read and solve the model, write and print the result; return the exit code."""
        graph = read_model(model, evidence)
        start = None if self.initial is None else read_labels(self.initial, graph)
        arguments = {**self.limits, "initial": start, "progress": not (self.quiet or self.lines)}
        if self.lines == "log":
            _say(_opening_line(model, graph, self.method))
        result = _solve(graph, self.method, arguments, self.lines)
        if self.lines == "log":
            from mapmrf.run.progress import closing_lines

            for line in closing_lines(result):
                _say(line)
        try:
            _write(result, self.output, self.trace)
            _write_certificate(result, self.certificate)
        finally:  # the answer must not be lost if the disk is full
            if self.as_json or not self.quiet:
                click.echo(result.to_json() if self.as_json else report(result))
        return _exit_code(result)


def _is_folder(output: str | None) -> bool:
    return output is not None and (output.endswith("/") or Path(output).is_dir())


def _refuse_for_many(models: Sequence[str], table: str | None, single: dict[str, object]) -> None:
    """Reject options that apply to a single run only."""
    if table is not None and len(models) > 1:
        raise OptionError(f"--evidence-table: found {len(models)} models, expected one")
    for option, value in single.items():
        if value is not None:
            raise OptionError(
                f"{option} is for a single run, found {'an evidence table' if table else 'several models'}"
            )


def _method(name: str | None, settings: Sequence[str]) -> Method:
    """Build the method first, so that a misspelt option is reported before a large model is read."""
    with leaving():  # numpy and numba are imported here
        from mapmrf.cli.settings import parse_settings
        from mapmrf.run.registry import DEFAULT_METHOD, make_method, method_class

        name = name or DEFAULT_METHOD
        return make_method(name, parse_settings(method_class(name), settings))


def _polisher(name: str | None) -> Method | None:
    return None if name is None else _method(name, ())


def _say(line: str) -> None:
    click.echo(line, err=True)


def _opening_line(model: str, graph: FactorGraph, method: Method) -> str:
    """The model and the method, for the head of a log."""
    from mapmrf._version import __version__

    most = int(graph.card.max(initial=0))
    size = f"{graph.n_vars} variables of up to {most} states, {graph.n_factors} factors"
    return f"mapmrf {__version__}, {method.name} on {model}: {size}"


def _solve(graph: FactorGraph, method: Method, arguments: dict[str, Any], shown: Lines | None) -> Result:
    """Solve; Ctrl-C returns the incumbent, also outside the solver loop, which handles it itself."""
    from mapmrf.arrays import segment_argmax
    from mapmrf.run.progress import ImprovementLines
    from mapmrf.run.result import Result, Status
    from mapmrf.run.solve import solve

    initial = arguments["initial"]
    best = [segment_argmax(graph.theta_v, graph.var_ptr) if initial is None else initial]

    lines = ImprovementLines(_say, regularly=shown == "log") if shown is not None else None

    def keep(point: TracePoint, labels: Ints) -> None:
        best[0] = labels
        if lines is not None:
            lines.update(point, labels)

    try:
        return solve(graph, method, callback=keep, **arguments)
    except KeyboardInterrupt:
        return Result.of_labels(graph, best[0], Status.INTERRUPTED, method.name)


def _write(result: Result, output: str | None, trace: str | None) -> None:
    if output is not None and not write_result(result, output):
        complain(f"{output} not written: {result.status.meaning}")
    if trace is not None:
        result.write_trace(trace)


def _write_certificate(result: Result, path: str | None) -> None:
    if path is not None and result.certificate is None:
        complain(f"{path} not written: no certificate was found")
    elif path is not None and result.certificate is not None:
        result.certificate.write(path)
        bound, value = result.certificate.bound, result.value
        if bound > (value if value == -math.inf else value + NEGLIGIBLE * max(1.0, abs(value))):
            complain(f"{path} proves no more than the bound {bound:.12g}: the value is {value:.12g}")


def _exit_code(result: Result) -> int:
    from mapmrf.run.result import Status

    return {Status.INFEASIBLE: INFEASIBLE, Status.INTERRUPTED: INTERRUPTED}.get(result.status, 0)


@main.command()
@click.argument("models", nargs=-1, metavar="[MODEL]...")
@click.option("--output", "-o", metavar="FILE.png", default="mapmrf-demo.png", show_default=True, help="Picture file.")
@bytes_option
@force_option
def demo(models: Sequence[str], output: str) -> None:
    """Solve, explain and draw two example models.

    Each MODEL given is then solved and explained as well.
    """
    check_outputs(output)
    from mapmrf.cli.demo import tour

    for paragraph in tour(output, {model: read_model(model) for model in models}):
        click.echo(f"{paragraph}\n")


@main.command()
@click.argument("model")
@method_option
@evidence_option
@click.option("--grid", multiple=True, metavar="KEY=V,V,..", help="Values to try for an option, or seeds.")
@set_option
@time_option
@click.option("--jobs", type=click.IntRange(min=1), help="Number of runs in parallel; by default all cores.")
@click.option("--output", "-o", metavar="FILE.csv", help="Write the full table.")
@bytes_option
@force_option
@json_option
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
    check_outputs(output)
    from mapmrf.cli.settings import parse_settings
    from mapmrf.questions.tune import tune
    from mapmrf.run.registry import method_class

    name = method or "lslp"
    axes = _axes(method_class(name), grid)
    options = parse_settings(method_class(name), settings)
    graph = read_model(model, evidence)
    search: dict[str, Any] = {**axes, **options}
    tuning = tune(graph, name, time_limit=time_limit, jobs=jobs, progress=True, **search)
    if output is not None:
        write_rows(tuning.table, output)
    click.echo(tuning_json(tuning) if as_json else tuning_report(tuning))
    return _exit_code(tuning.result)


def _axes(cls: type[Method], texts: Sequence[str]) -> dict[str, Any]:
    """The values to try: of the paper's parameters by name, or a grid of any options."""
    from mapmrf.cli.settings import parse_grid
    from mapmrf.questions.tune import PAPER_AXES

    axes = parse_grid(cls, texts)
    seeds = {"seeds": axes.pop("seeds")} if "seeds" in axes else {}
    if set(axes) <= set(PAPER_AXES):
        return {**axes, **seeds}
    return {"grid": axes, **seeds}


@main.command()
@json_option
def methods(as_json: bool) -> None:
    """List the methods, what each provides, and its options."""
    import dataclasses

    from mapmrf.run.registry import methods

    known: dict[str, dict[str, Any]] = {}
    for name, cls in methods().items():
        flags = {flag: getattr(cls, flag) for flag in ("gives_bound", "exact", "exact_on_trees")}
        options = dataclasses.asdict(cls())  # type: ignore[call-overload]
        known[name] = {"title": cls.title, "family": cls.family, **flags, "options": options}
    click.echo(strict_json(known) if as_json else methods_report(known))
