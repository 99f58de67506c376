"""The tables of docs/reproduce.md from records of `mapmrf bench`: our log potential, and the paper's in parentheses."""

from __future__ import annotations

import argparse
import statistics

from mapmrf.bench.groups import Group, figure, group, log_potential, title
from mapmrf.bench.records import read_records
from mapmrf.bench.tables import SUMMARISED
from mapmrf.datasets.catalogue import COLUMNS, model_figure, set_figure


def pair(ours: float | None, paper: float | None, digits: int) -> str:
    """Our figure, and the paper's in parentheses."""
    first = "" if ours is None else f"{ours:.{digits}f}"
    return first if paper is None else f"{first} ({paper:g})".strip()


def by_model(mine: Group) -> None:
    runs = [(method, run) for method, run in mine.runs if mine.column(run, figure("value"))]
    print(f"\n### {title(mine.name)}\n")
    print("| | model | best known | " + " | ".join(f"`{run}`" for _, run in runs) + " |")
    print("|---" * (len(runs) + 3) + "|")
    for index, model in mine.models:
        cells = [
            pair(mine.mean(model, run, log_potential), model_figure(mine.name, model, method), 1)
            for method, run in runs
        ]
        print(f"| {index} | {model} | {mine.best[model]:.1f} | " + " | ".join(cells) + " |")


def by_set(groups: list[Group]) -> None:
    methods = [method for method in COLUMNS if any(mine.column(method, log_potential) for mine in groups)]
    print("| | " + " | ".join(f"{title(mine.name)} ({len(mine.models)} models)" for mine in groups) + " |")
    print("|---" * (len(groups) + 1) + "|")
    for method in methods:
        cells = []
        for mine in groups:
            found = mine.column(method, log_potential)
            ours = statistics.fmean(found) if found else None
            cells.append(pair(ours, set_figure(mine.name, method), 2))
        print(f"| `{method}` | " + " | ".join(cells) + " |")


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("records", nargs="+")
    groups = group(read_records(*options.parse_args().records))
    by_set([mine for mine in groups if mine.name in SUMMARISED])
    for mine in groups:
        if mine.name not in SUMMARISED:
            by_model(mine)


if __name__ == "__main__":
    main()
