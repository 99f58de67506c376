"""The table of docs/how-to-choose.md, model kind x method, from records of `mapmrf bench`."""

from __future__ import annotations

import argparse
import math
import statistics

from mapmrf.bench.groups import Group, figure, group, seconds, title
from mapmrf.bench.records import read_records


def cell(mine: Group, run: str) -> str:
    """Mean distance to the best known value in percent, models proven, median seconds."""
    done = [model for _, model in mine.models if (model, run) in mine.cells]
    if not done:
        return ""
    losses = []
    for model in done:
        value, best = mine.mean(model, run, figure("value")), mine.best[model]
        assert value is not None
        losses.append(100 * max(0.0, best - value) / max(1.0, abs(best)) if math.isfinite(value) else math.inf)
    proven = sum(mine.cells[model, run][0]["status"] == "optimal" for model in done)
    time = statistics.median(mine.column(run, seconds))
    loss = statistics.fmean(losses)
    short = "0" if loss < 5e-4 else f"{loss:.2g}" if loss < 10 else f"{loss:.0f}"
    text = f"{short} %, {_time(time)}"
    return f"{text}, all proven" if proven == len(done) else f"{text}, {proven}/{len(done)}" if proven else text


def _time(seconds: float) -> str:
    return f"{1e3 * seconds:.2g} ms" if seconds < 0.0995 else f"{seconds:.2g} s"


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("records", nargs="+")
    groups = group(read_records(*options.parse_args().records))
    runs = list(dict.fromkeys(run for mine in groups for _, run in mine.runs))
    print("| method | " + " | ".join(f"{title(mine.name)} ({len(mine.models)})" for mine in groups) + " |")
    print("|---" * (len(groups) + 1) + "|")
    for run in runs:
        print(f"| `{run}` | " + " | ".join(cell(mine, run) for mine in groups) + " |")


if __name__ == "__main__":
    main()
