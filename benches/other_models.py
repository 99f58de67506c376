"""A method on the models of the folder `other`: pedigrees, side chains, constraint problems and more, in Markdown."""

from __future__ import annotations

import argparse
import csv
from pathlib import Path

import mapmrf
from catalogue import data_folder


def references(folder: Path) -> dict[str, tuple[float, str]]:
    """Reference value and how it is known, by file name."""
    with open(folder / "reference_values.csv", newline="", encoding="utf-8") as file:
        rows = [row for row in csv.DictReader(file) if row["file"].startswith("other/") and row["logpot"]]
    return {Path(row["file"]).name: (float(row["logpot"]), row["status"]) for row in rows}


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--data", help="folder of the benchmark models")
    options.add_argument("--method", default="branch")
    options.add_argument("--time-limit", type=float, default=60.0)
    args = options.parse_args()
    folder = data_folder(args.data)
    print("| file | value | reference | known as | bound | status | s |")
    print("|---|---|---|---|---|---|---|")
    for name, (reference, known) in sorted(references(folder).items()):
        graph = mapmrf.read(folder / "other" / name)
        result = mapmrf.solve(graph, args.method, time_limit=args.time_limit)
        bound = "" if result.bound is None else f"{result.bound:.4f}"
        seconds = result.runtime - result.compile_time
        print(
            f"| {name} | {result.value:.4f} | {reference:.4f} | {known} | {bound} | {result.status} | {seconds:.2f} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
