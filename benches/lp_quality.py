"""One run of LP-LP per benchmark model against the paper's column: value, bound, kind, iterations and CPU time."""

from __future__ import annotations

import statistics
import time

import mapmrf
from catalogue import Model, data_folder, models, parser

# The paper's LP-LP column: the optimum of the relaxation, by file.
PAPER_LPLP = {
    "grid20x20.f10": 3736.7,
    "grid20x20.f10.wrap": 3830.3,
    "grid20x20.f15": 5605.1,
    "grid20x20.f15.wrap": 5745.5,
    "grid20x20.f5.wrap": 1915.2,
    "grid40x40.f10": 15601.2,
    "grid40x40.f10.wrap": 16291.5,
    "grid40x40.f15": 23401.8,
    "grid40x40.f15.wrap": 24437.3,
    "grid40x40.f2": 3121.2,
    "grid40x40.f2.wrap": 3231.6,
    "grid40x40.f5": 7800.6,
    "grid40x40.f5.wrap": 8078.5,
    "grid80x80.f10": 62943.0,
    "grid80x80.f10.wrap": 63993.1,
    "grid80x80.f15": 94414.5,
    "grid80x80.f15.wrap": 96243.6,
    "grid80x80.f2": 12721.3,
    "grid80x80.f2.wrap": 12875.6,
    "grid80x80.f5.wrap": 31996.9,
}

# The paper's means of the easy sets, over 50, 50 and 715 models; not comparable where the catalogue has fewer.
PAPER_MEANS = {"seg-2": (50, -75.5), "seg-21": (50, -324.89), "scene": (715, 866.66)}


def run(model: Model, solver: str, presolve: bool, time_limit: float) -> tuple[mapmrf.Result, float]:
    """A result and its CPU seconds: HiGHS runs on one thread."""
    graph = mapmrf.read(model.path)
    began = time.process_time()
    result = mapmrf.solve(graph, "lp", solver=solver, presolve=presolve, time_limit=time_limit)
    return result, time.process_time() - began


def short_table(which: str, found: list[Model], results: list[tuple[mapmrf.Result, float]]) -> None:
    """A line for a set of easy models."""
    valid = sum(result.kind == "valid" for result, _ in results)
    tight = sum(
        result.relaxed_value is not None and abs(result.relaxed_value - model.best) < 1e-3
        for model, (result, _) in zip(found, results, strict=True)
        if model.best is not None
    )
    n_paper, paper = PAPER_MEANS[which]
    values = [result.relaxed_value for result, _ in results if result.relaxed_value is not None]
    mean = f"{statistics.mean(values):.2f}" if values else ""
    compared = f"{paper}" if n_paper == len(found) else f"({paper} over {n_paper})"
    iterations = statistics.mean(result.iterations for result, _ in results)
    times = [seconds for _, seconds in results]
    print(
        f"| {which} | {len(found)} | {valid} | {tight} | {mean} | {compared} | {iterations:.1f} | "
        f"{statistics.median(times):.3f} | {max(times):.3f} |",
        flush=True,
    )


def long_row(model: Model, result: mapmrf.Result, seconds: float) -> float | None:
    """A line for a model; returns how far it is from the paper."""
    paper = PAPER_LPLP.get(model.name)
    relaxed = result.relaxed_value
    off = None if paper is None or relaxed is None else relaxed - paper
    print(
        f"| {model.name} | {paper or ''} | {'' if relaxed is None else f'{relaxed:.4f}'} | "
        f"{'' if off is None else f'{off:+.4f}'} | {result.bound:.4f} | {result.kind or ''} | {result.status} | "
        f"{result.iterations} | {seconds:.2f} |",
        flush=True,
    )
    return off


def main() -> None:
    options = parser(__doc__)
    options.set_defaults(sets=["seg-2", "seg-21", "scene", "grids"])
    options.add_argument("--solver", default="simplex", choices=["simplex", "ipm", "choose"])
    options.add_argument("--presolve", action="store_true")
    options.add_argument("--time-limit", type=float, default=600.0)
    args = options.parse_args()
    folder = data_folder(args.data)
    easy = [which for which in args.sets if which in PAPER_MEANS]
    if easy:
        print("| set | models | valid | tight | mean relaxed value | paper | iterations | median CPU s | max CPU s |")
        print("|---|---|---|---|---|---|---|---|---|")
    for which in args.sets:
        found = models(folder, which)
        if which in easy:
            results = [run(model, args.solver, args.presolve, args.time_limit) for model in found]
            short_table(which, found, results)
            continue
        print(f"\n| {which} | paper | relaxed value | difference | bound | kind | status | iterations | CPU s |")
        print("|---|---|---|---|---|---|---|---|---|")
        off = [long_row(model, *run(model, args.solver, args.presolve, args.time_limit)) for model in found]
        known = [abs(x) for x in off if x is not None]
        if known:
            print(f"\nlargest difference {max(known):.4f} over {len(known)} models; the paper prints one decimal")


if __name__ == "__main__":
    main()
