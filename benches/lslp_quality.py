"""One run of LS-LP per benchmark model, with its defaults: value, kind, status, gap and time, as Markdown tables."""

from __future__ import annotations

import statistics

import mapmrf
from catalogue import Model, data_folder, models, parser


def run(model: Model, seed: int) -> tuple[mapmrf.Result, float]:
    graph = mapmrf.read(model.path)
    result = mapmrf.solve(graph, "lslp", seed=seed)
    return result, result.runtime - result.compile_time


def short_table(which: str, found: list[Model], seed: int) -> None:
    """A line for a set of easy models."""
    run(found[0], seed)  # compile
    results = [(model, *run(model, seed)) for model in found]
    valid = sum(result.kind == "valid" for _, result, _ in results)
    optimal = sum(result.status == "optimal" and (result.gap or 0) <= 1e-6 for _, result, _ in results)
    hit = sum(abs(result.value - model.best) < 1e-3 for model, result, _ in results if model.best is not None)
    times = [1e3 * seconds for _, _, seconds in results]
    mean = statistics.mean(result.value for _, result, _ in results)
    print(
        f"| {which} | {len(found)} | {valid} | {hit} | {optimal} | {mean:.4f} | "
        f"{statistics.median(times):.1f} | {max(times):.1f} |",
        flush=True,
    )


def long_table(which: str, found: list[Model], seed: int) -> None:
    """A line per model."""
    run(found[0], seed)
    print(f"\n| {which} | value | best known | % | paper | bound | kind | status | iterations | s |")
    print("|---|---|---|---|---|---|---|---|---|---|")
    shares = []
    for model in found:
        result, seconds = run(model, seed)
        share = "" if model.best is None else f"{100 * result.value / model.best:.2f}"
        if model.best is not None:
            shares.append(100 * result.value / model.best)
        print(
            f"| {model.name} | {result.value:.2f} | {model.best} | {share} | {model.paper} | {result.bound:.2f} | "
            f"{result.kind} | {result.status} | {result.iterations} | {seconds:.2f} |",
            flush=True,
        )
    if shares and which == "grids":
        print(f"\nmean {statistics.mean(shares):.2f} %, lowest {min(shares):.2f} %")


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--seed", type=int, default=0)
    args = options.parse_args()
    folder = data_folder(args.data)
    easy = [which for which in args.sets if which in ("seg-2", "seg-21", "scene")]
    if easy:
        print("| set | models | valid | optimum | proven | mean value | median ms | max ms |")
        print("|---|---|---|---|---|---|---|---|")
    for which in easy:
        short_table(which, models(folder, which), args.seed)
    for which in args.sets:
        if which not in easy:
            long_table(which, models(folder, which), args.seed)


if __name__ == "__main__":
    main()
