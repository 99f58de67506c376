"""Recompute the best known values of the catalogue: a proof, or a better labelling, replaces the old value.

python benches/best_values.py                                # compare seg-2, seg-21 and scene
python benches/best_values.py --write                        # and write proven values to catalogue.csv
python benches/best_values.py --sets grids --method cuts --time-limit 600
"""

from __future__ import annotations

import argparse
import csv
import io
from pathlib import Path

import mapmrf
from mapmrf.datasets import Entry, entries, locate, verify
from mapmrf.datasets.catalogue import SETS

CATALOGUE = Path(mapmrf.__file__).parent / "datasets" / "catalogue.csv"
EASY = ("seg-2", "seg-21", "scene")
DIGITS = 9
"""Decimals that are kept: far below what two orders of summation differ by is of no use."""
SLACK = 1e-4
"""How far below a value that was stored with four decimals its exact one may lie."""


def main() -> None:
    options = _options()
    found: dict[tuple[str, str], tuple[str, str]] = {}
    for entry in (entry for which in options.sets for entry in entries(which)):
        path = locate(entry, options.data)
        if path is not None and verify(entry, path):
            result = mapmrf.solve(mapmrf.read(path), options.method, time_limit=options.time_limit)
            found |= _judge(entry, result)
    if options.write and found:
        CATALOGUE.write_text(_updated(found), encoding="utf-8", newline="")
        print(f"{CATALOGUE}: {len(found)} values written")


def _judge(entry: Entry, result: mapmrf.Result) -> dict[tuple[str, str], tuple[str, str]]:
    """New value and status of a model; None if the result neither proves nor improves anything."""
    proven = result.status is mapmrf.Status.OPTIMAL
    before = entry.best
    print(f"{entry.set:8} {entry.name:22} {before!s:>14} {result.value:18.{DIGITS}f} {result.status.value}", flush=True)
    if before is not None and proven and result.value < before - SLACK:
        raise SystemExit(f"{entry.name}: {result.method} calls {result.value} optimal, the catalogue has {before}")
    better = before is None or result.value > before + SLACK
    if not (proven or better):
        return {}
    status = f"{'optimal' if proven else 'feasible'} ({result.method})"
    return {(entry.set, entry.name): (repr(round(result.value, DIGITS)), status)}


def _updated(found: dict[tuple[str, str], tuple[str, str]]) -> str:
    """The catalogue with new values and statuses, otherwise unchanged."""
    with open(CATALOGUE, newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    for row in rows:
        key = (row["set"], row["name"])
        row["best"], row["best_status"] = found.get(key, (row["best"], row["best_status"]))
    out = io.StringIO()
    writer = csv.DictWriter(out, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return out.getvalue()


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", help="folder of the benchmark models; by default MAPMRF_DATA, else the cache")
    parser.add_argument("--sets", nargs="+", default=EASY, choices=list(SETS))
    parser.add_argument("--method", default="branch")
    parser.add_argument("--time-limit", type=float, default=60.0)
    parser.add_argument("--write", action="store_true", help="write catalogue.csv")
    return parser.parse_args()


if __name__ == "__main__":
    main()
