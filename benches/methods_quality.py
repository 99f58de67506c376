"""One run of every method on the benchmark models, compared with the paper's columns, as Markdown tables.

Methods run with their defaults, which are the paper's iteration limits (ICM from the paper's start); those without such
a limit, and MPLP-C, get `--time-limit`.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator

import mapmrf
from catalogue import Model, data_folder, models, parser
from mapmrf.datasets.catalogue import COLUMNS, model_figure, set_figure

TIMED = ("branch", "mplp_c", "toulbar2", "lp")
"""Methods that run until they are done or the time is over."""
AS_IN_PAPER: dict[str, dict[str, object]] = {"icm": {"init": "zeros"}}
"""Options with which a method begins where the paper's program did."""
UNLIMITED = 10**9
RELAXED = ("lp", "psdd", "ad3")
"""Methods of which the paper prints the value before rounding."""
EASY = ("seg-2", "seg-21", "scene")


def run(model: Model, method: str, time_limit: float) -> mapmrf.Result | None:
    """One run, or None where the method does not take the model."""
    timed = {"time_limit": time_limit, "max_iterations": UNLIMITED} if method in TIMED else {}
    try:
        return mapmrf.solve(mapmrf.read(model.path), method, **timed, **AS_IN_PAPER.get(method, {}))
    except mapmrf.UnsupportedModel:
        return None


def easy_line(which: str, found: list[Model], method: str, time_limit: float) -> None:
    """A line for a method on a whole set."""
    if run(found[0], method, time_limit) is None:  # this one compiles
        return
    results = [(model, run(model, method, time_limit)) for model in found]
    done = [(model, result) for model, result in results if result is not None]
    hit = sum(model.best is not None and abs(result.value - model.best) < 1e-3 for model, result in done)
    proven = sum(result.status == "optimal" for _, result in done)
    mean = statistics.mean(result.value for _, result in done)
    best = statistics.mean(model.best for model, _ in done if model.best is not None)
    relaxed = [result.relaxed_value for _, result in done if result.relaxed_value is not None]
    unrounded = f"{statistics.mean(relaxed):.3f}" if method in RELAXED and relaxed else ""
    times = [1e3 * (result.runtime - result.compile_time) for _, result in done]
    paper = set_figure(which, method)
    print(
        f"| {which} | `{method}` | {mean:.3f} | {unrounded} | {best:.3f} | {'' if paper is None else paper} | "
        f"{hit}/{len(done)} | {proven}/{len(done)} | {statistics.median(times):.1f} |",
        flush=True,
    )


def long_lines(which: str, found: list[Model], method: str, time_limit: float) -> Iterator[tuple[str, float, float]]:
    """A line per model; yields (model, ratio to the paper, ratio of the bound to the LP value)."""
    print(f"\n### {which}: `{method}` ({COLUMNS.get(method, 'not in the paper')})\n")
    print("| model | value | unrounded | paper | % of paper | best known | bound | LP | status | iterations | s |")
    print("|---|---|---|---|---|---|---|---|---|---|---|")
    for model in found:
        result = run(model, method, time_limit)
        if result is None:
            print(f"| {model.name} | does not take this model |")
            continue
        paper, lp = model_figure(which, model.name, method), model_figure(which, model.name, "lp")
        compared = result.relaxed_value if method in RELAXED and result.relaxed_value is not None else result.value
        ratio = math.nan if paper is None else compared / paper if paper > 0 else paper / compared
        bound = math.nan if result.bound is None or lp is None else result.bound / lp
        print(
            f"| {model.name} | {result.value:.2f} | {_number(result.relaxed_value)} | {_number(paper)} | "
            f"{_number(100 * ratio)} | {_number(model.best)} | {_number(result.bound)} | {_number(lp)} | "
            f"{result.status} | {result.iterations} | {result.runtime - result.compile_time:.2f} |",
            flush=True,
        )
        yield model.name, ratio, bound


def _number(x: float | None) -> str:
    return "" if x is None or math.isnan(x) else f"{x:.2f}"


def summary(which: str, method: str, lines: list[tuple[str, float, float]]) -> None:
    """Smallest ratio to the paper and range of the bound's ratio to the LP value."""
    ratios = [ratio for _, ratio, _ in lines if not math.isnan(ratio)]
    bounds = [bound for _, _, bound in lines if not math.isnan(bound)]
    print(f"\n{which} `{method}`:", end=" ")
    if ratios:
        least = f"least {100 * min(ratios):.1f} %, mean {100 * statistics.mean(ratios):.1f} %"
        print(f"value against the paper {least};", end=" ")
    if bounds:
        print(f"bound against the LP {100 * min(bounds):.3f} to {100 * max(bounds):.3f} %", end="")
    print(flush=True)


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--methods", nargs="+", default=list(COLUMNS))
    options.add_argument("--time-limit", type=float, default=60.0)
    options.add_argument("--models", nargs="+", help="only these models, by name")
    args = options.parse_args()
    folder = data_folder(args.data)
    wanted = {which: models(folder, which) for which in args.sets}
    if args.models:
        wanted = {which: [model for model in found if model.name in args.models] for which, found in wanted.items()}
    easy = [which for which in args.sets if which in EASY and wanted[which]]
    if easy:
        print("| set | method | mean | unrounded | optimum | paper (whole set) | at the optimum | proven | median ms |")
        print("|---|---|---|---|---|---|---|---|---|")
    for which in easy:
        for method in args.methods:
            easy_line(which, wanted[which], method, args.time_limit)
    for which in args.sets:
        if which in EASY or not wanted[which]:
            continue
        for method in args.methods:
            summary(which, method, list(long_lines(which, wanted[which], method, args.time_limit)))


if __name__ == "__main__":
    main()
