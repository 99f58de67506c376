"""The answers of all methods on 315 models against stored digests; changes are reported.

    python benches/answers.py                                  # all, some minutes; exit code 1 if an answer changed
    python benches/answers.py --threads 2 --batch              # other ways to the same answers
    python benches/answers.py --per-shape 2 --methods trws bp --twice
    python benches/answers.py --cold --per-shape 1             # with kernels compiled now, not the shipped ones
    python benches/answers.py --update                         # after an intended change; inspect the diff

The models are those of `random_models.py`. Runs are limited by iterations, never by time. A digest has three parts: of
the labels, of the value and of the bound, the last two rounded to six and five digits. Labels of runs that were cut
short depend on the last bits of sums: on CPUs without the features named in the file compare values and bounds alone
(`--values`). toulbar2 is left out: it is a separate program.
"""

from __future__ import annotations

import argparse
import csv
import hashlib
import os
import platform
import subprocess
import sys
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from llvmlite import binding

import mapmrf
import random_models
from mapmrf.errors import MapMRFError, UnsupportedModel

FILE = Path(__file__).with_name("answers.csv")
ITERATIONS = {"auto": 12, "branch": 500, "lp": 100_000, "wcsp": 200, "exhaustive": 4, "annealing": 5, "lslp": 60}
FEWEST = 15
"""Iterations of each method, and of those that are not named."""
LEFT_OUT = ("toulbar2",)
DECLINED = "-"
"""In place of a digest where a method does not take a model."""
PARTS = ("labels", "value", "bound")


def hashed(content: bytes | str) -> str:
    return hashlib.sha256(content.encode() if isinstance(content, str) else content).hexdigest()


def digest_of(result: mapmrf.Result | MapMRFError) -> str:
    """Three short hashes with dots between them."""
    if isinstance(result, MapMRFError):
        raise result
    bound = "none" if result.bound is None else f"{result.bound + 0.0:.5g}"
    labels = result.labels.astype("<i8").tobytes()
    return ".".join((hashed(labels)[:5], hashed(f"{result.value + 0.0:.6g}")[:3], hashed(bound)[:3]))


def model_digest(graph: mapmrf.FactorGraph) -> str:
    content = (array.astype("<i8").tobytes() for array in (graph.card, graph.scope, graph.table_of))
    return hashed(b"".join([graph.theta_v.tobytes(), graph.theta_t.tobytes(), *content]))[:5]


def answer(graph: mapmrf.FactorGraph, method: str, threads: int, batch: bool) -> str:
    options: dict[str, Any] = {"max_iterations": ITERATIONS.get(method, FEWEST), "threads": threads}
    try:
        if not batch:
            return digest_of(mapmrf.solve(graph, method, **options))
        first, second = (digest_of(found) for found in mapmrf.solve_many([graph, graph], method, jobs=2, **options))
        return first if first == second else "differs from itself"
    except UnsupportedModel:
        return DECLINED


def features() -> str:
    """What of the CPU decides the last bits."""
    have = binding.get_host_cpu_features()
    return " ".join([platform.machine(), *(name for name in ("fma", "avx2", "avx512f") if have.get(name))])


def stored() -> tuple[str, dict[str, dict[str, str]]]:
    """The features of the CPU, and by model the digests of the model and of all methods."""
    with FILE.open(newline="") as lines:
        about = next(lines).lstrip("# ").strip()
        return about, {row["name"]: row for row in csv.DictReader(lines)}


def update(methods: list[str]) -> None:
    """Store the answers of some methods, and keep those of the others."""
    _, rows = stored()
    for row in found(methods, random_models.names()):
        rows[row["name"]] = {**rows.get(row["name"], {}), **row}
    known = sorted({key for row in rows.values() for key in row} - {"name", "model"})
    with FILE.open("w", newline="") as out:
        out.write(f"# {features()}\n")
        table = csv.DictWriter(out, ["name", "model", *known], lineterminator="\n")
        table.writeheader()
        table.writerows(rows.values())


def found(
    methods: list[str], names: list[tuple[str, int]], threads: int = 1, batch: bool = False
) -> Iterator[dict[str, str]]:
    """The digests of models; threads of a run, and whether by `solve_many`, are ways to the same answers."""
    for shape, number in names:
        graph = random_models.model(shape, number)
        digests = {method: answer(graph, method, threads, batch) for method in methods}
        yield {"name": f"{shape} {number}", "model": model_digest(graph), **digests}


def changes(row: dict[str, str], before: dict[str, str], values_only: bool = False) -> Iterator[tuple[str, str]]:
    """What is another answer than before: the method, and what of it."""
    if row["model"] != before["model"]:
        yield "the model", "its tables or scopes: was the generator changed, or NumPy?"
        return
    for method in row.keys() - {"name", "model"}:
        now, then = row[method], before.get(method, "missing")
        parts = [part for part, x, y in zip(PARTS, now.split("."), then.split("."), strict=False) if x != y]
        if now.count(".") != then.count("."):
            parts = [f"{then} before, {now} now"]
        if values_only:
            parts = [part for part in parts if part != "labels"]
        if parts:
            yield method, ", ".join(parts)


def compare(given: argparse.Namespace) -> int:
    """Print what has changed; return how much."""
    about, before = stored()
    if about != features() and not given.values:
        print(f"stored on {about}, this is {features()}: labels may differ, try --values")
    names, count = random_models.names(given.per_shape), Counter[str]()
    for _ in range(2 if given.twice else 1):
        for row in found(given.methods, names, given.threads, given.batch):
            for method, what in changes(row, before[row["name"]], given.values):
                print(f"{row['name']}, {method}: {what}", flush=True)
                count[method] += 1
    print(f"{len(names)} models, {len(given.methods)} methods: {count.total()} answers changed {dict(count) or ''}")
    return count.total()


def main() -> int:
    methods = [name for name in sorted(mapmrf.methods()) if name not in LEFT_OUT]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--methods", nargs="+", default=methods)
    parser.add_argument("--per-shape", type=int, default=random_models.PER_SHAPE, metavar="N", help="models per shape")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--batch", action="store_true", help="use solve_many, each model twice on two jobs")
    parser.add_argument("--twice", action="store_true", help="repeat everything in the same process")
    parser.add_argument("--cold", action="store_true", help="use an empty cache, without the shipped kernels")
    parser.add_argument("--values", action="store_true", help="compare values and bounds, not labels")
    parser.add_argument("--update", action="store_true", help="write the file of digests")
    given = parser.parse_args()
    if given.cold:
        command = [sys.executable, *(word for word in sys.argv if word != "--cold")]
        with tempfile.TemporaryDirectory() as folder:
            settings = {"MAPMRF_KERNELS": "compile", "NUMBA_CACHE_DIR": folder}
            return subprocess.run(command, env={**os.environ, **settings}, check=False).returncode
    warnings.simplefilter("ignore")
    began = time.process_time()
    if given.update:
        update(given.methods)
    changed = 0 if given.update else compare(given)
    print(f"{time.process_time() - began:.0f} s of processor time")
    return int(changed > 0)


if __name__ == "__main__":
    sys.exit(main())
