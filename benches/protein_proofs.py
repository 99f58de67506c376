"""Proofs on the Protein models by cutting planes over products of spins, as a Markdown table.

    python benches/protein_proofs.py --models didNotconverge1 didNotconverge2 --methods cuts auto --time-limit 100

Seconds are of the processor. Folders are expected below MAPMRF_DATA, or ../shared/data next to the repository.
"""

from __future__ import annotations

import argparse
import csv
import os
import time
from pathlib import Path

import mapmrf

FOLDER = Path(os.environ.get("MAPMRF_DATA") or Path(__file__).parents[2] / "shared" / "data")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", default=[f"didNotconverge{k}" for k in (1, 2, 4, 5, 6, 8)])
    parser.add_argument("--methods", nargs="+", default=["cuts"])
    parser.add_argument("--time-limit", type=float, default=100.0)
    parser.add_argument("--threads", type=int, default=1)
    arguments = parser.parse_args()
    with open(FOLDER / "reference_values.csv", newline="", encoding="utf-8") as file:
        known = {row["file"]: row["logpot"] for row in csv.DictReader(file)}
    print("| model | method | reference | value | bound | gap | status | nodes or iterations | CPU s |")
    print("|---|---|---|---|---|---|---|---|---|")
    for name in arguments.models:
        path = f"protein/{name}.uai.gz"
        graph = mapmrf.read(FOLDER / path)
        for method in arguments.methods:
            began = time.process_time()
            result = mapmrf.solve(graph, method, time_limit=arguments.time_limit, threads=arguments.threads)
            gap, cpu = 100 * (result.gap or 0.0), time.process_time() - began
            cells = [name, method, known[path], f"{result.value:.4f}", f"{result.bound:.4f}", f"{gap:.6f} %"]
            cells += [result.status.value, str(result.iterations), f"{cpu:.1f}"]
            print("|", " | ".join(cells), "|", flush=True)


if __name__ == "__main__":
    main()
