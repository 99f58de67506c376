"""Is `auto` ever behind one of the methods that it is made of? Values after 0.3, 1 and 5 seconds, row by row.

    python benches/parts.py                                # the generated structures of models.toml
    python benches/parts.py --data DATA                    # and the files of a folder of models
    python benches/parts.py --models families/dbn structures/triples --marks 0.3 1 --whole
    python benches/parts.py --data DATA --proofs 10        # times to proof, against the fastest single method

A figure is how much better (+) or worse (-) the value of `auto` is than the best of the other methods alone after the
same time, in percent of that best value, with the name of the method. Every method has a run with each mark as its time
limit, so what it answers when its time is up counts too; none where `auto` has proven its labelling by then. Rows in
which `auto` is behind are run twice again, and the median counts. At the end come the rows in which it is behind by
more than 0.1 %. With `--whole` all methods run on all models, and their values at the last mark follow, in percent of
the best. With `--proofs S` the table has the seconds until the proof of optimality instead, of `auto` and of the
fastest of the methods that prove, each with a limit of S; `auto` is behind where it takes more than 1.5 times as long
and a tenth of a second. `--known FILE` keeps the values of the parts, so that after a change of `auto` only `auto` runs
again.

Seconds are those of the processor, over all threads of the process: the clock that the library reads is replaced, so
limits are kept by processor time too, and other work on the machine matters little. HiGHS and SCIP count in full.
"""

from __future__ import annotations

import argparse
import csv
import math
import threading
import time
import warnings
from pathlib import Path

time.perf_counter = time.process_time  # before the library is imported

import mapmrf  # noqa: E402
from mapmrf.compilation import CompileClock  # noqa: E402
from mapmrf.run.clock import wait_for_all  # noqa: E402
from models import Model, select  # noqa: E402

PARTS = ("icm", "bp", "trws", "lslp", "chains", "tabu", "expansion")
PROVERS = ("wcsp", "branch", "cuts", "trws", "sdp", "qpbo", "maxflow")
LATER, LATE = 1.5, 0.1  # factor, and seconds more, by which `auto` may be later with a proof
BEHIND = 0.1  # percent by which `auto` may be behind
LOADING = 0.01  # seconds of loading kernels after which a run is repeated
FILES = (
    "families", "wcsp", "other", "globals", "maxcut", "grids/20x20%2", "grids/40x40%2", "grids/80x80%2", "protein",
    "seg-2%10", "seg-21%2", "scene%4",
)  # fmt: skip

Values = dict[tuple[str, float], float]  # by method and mark; nan where a method does not take the model
Row = list[tuple[float, str]]  # by how much `auto` is ahead at each mark, and of which method; of none if proven


class LoadingClock(CompileClock):
    """Seconds that any thread spends loading or compiling kernels."""

    def begin(self) -> None:
        self.join()
        super().begin()


def run(graph: mapmrf.FactorGraph, method: str, marks: list[float], values: Values) -> float:
    """Run a method with each mark as time limit and note its values; return when it had a proof, inf if never."""
    proven = runtime = math.inf
    end = time.process_time() + 1.0
    callback = {"callback": lambda point, labels: time.process_time() > end}
    first = callback if method in ("auto", "cuts") else {"max_iterations": 2}
    try:
        mapmrf.solve(graph, method, **first)  # compiles kernels, for which a run with a time limit may not wait
        for mark in reversed(marks):
            if mark <= runtime:  # otherwise it has ended by itself before
                result = solved(graph, method, mark)
                runtime = result.runtime
            values[method, mark] = result.value
            if result.status.closes_gap:
                proven = runtime
    except mapmrf.UnsupportedModel:
        values.update({(method, mark): math.nan for mark in marks})
    return proven


def solved(graph: mapmrf.FactorGraph, method: str, seconds: float) -> mapmrf.Result:
    """A run in which no kernels are loaded, unless that happens three times."""
    for _ in range(3):
        with LoadingClock() as clock:
            result = mapmrf.solve(graph, method, time_limit=seconds)
            wait_for_all()
            for thread in threading.enumerate():
                if thread.name == "mapmrf-solver":  # HiGHS or SCIP may still be at a linear program
                    thread.join()
        if clock.seconds < LOADING:
            break
    return result


def ahead(value: float, other: float) -> float:
    """How much better a value is than another one, in percent of the latter."""
    if value == other:
        return 0.0
    return 100.0 * (value - other) / max(abs(other), 1e-9) if math.isfinite(other) else math.inf


def row_of(values: Values, parts: list[str], marks: list[float], proven: float) -> Row:
    """The best of the parts at each mark, and how far `auto` is ahead of it."""
    row: Row = []
    for mark in marks:
        others = {method: value for method in parts if (value := values.get((method, mark), math.nan)) == value}
        best = max(others, key=lambda method: others[method]) if others and mark <= proven else ""
        row.append((ahead(values["auto", mark], others[best]) if best else 0.0, best))
    return row


def measured(graph: mapmrf.FactorGraph, values: Values, given: argparse.Namespace) -> Row:
    """A row, the median of three where `auto` is behind; values of the parts that are not known yet are added."""
    proven = run(graph, "auto", given.marks, values)
    for method in given.parts:
        marks = [mark for mark in given.marks if (mark <= proven or given.whole) and (method, mark) not in values]
        if marks:
            run(graph, method, marks, values)
    row = row_of(values, given.parts, given.marks, proven)
    rivals = sorted({best for by, best in row if by < -BEHIND})
    again: list[Row] = [row]
    for _ in range(2 if rivals else 0):
        others: Values = {}
        proven = run(graph, "auto", given.marks, others)
        for method in rivals:
            run(graph, method, given.marks, others)
        again.append(row_of(others, rivals, given.marks, proven))
    medians = [sorted(some)[len(some) // 2] for some in zip(*again, strict=True)]
    return [median if first[0] < -BEHIND else first for first, median in zip(row, medians, strict=True)]


def proofs(models: list[Model], seconds: float, parts: list[str]) -> None:
    """Print times to proof; once a method has one, the others have no longer than that."""
    behind = []
    print("| model | `auto` | fastest | of |\n|---|--:|--:|---|")
    for model in models:
        graph, least, best = model.build(1.0), math.inf, ""
        for method in parts:
            taken = run(graph, method, [min(seconds, least)], {})
            least, best = min((least, best), (taken, method))
        own = min(run(graph, "auto", [seconds], {}) for _ in range(2))  # noise: the better time counts
        print(f"| {model.name} | {own:.3f} | {least:.3f} | {best} |", flush=True)
        behind += [f"{model.name}: {own:.3f} s, {best} {least:.3f} s"] if own > LATER * least + LATE else []
    print(f"\nlater than {LATER:g} times and {LATE:g} s, {len(behind)} of {len(models)}:", *behind, sep="\n- ")


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--data", help="folder of the benchmark models")
    options.add_argument("--models", nargs="+", help="sets, folders or generated families, as for run.py")
    options.add_argument("--marks", nargs="+", type=float, default=[0.3, 1.0, 5.0])
    options.add_argument("--parts", nargs="+", help="methods to compare with")
    options.add_argument("--proofs", type=float, help="seconds for a proof: compare times to proof instead of values")
    options.add_argument("--whole", action="store_true", help="run all methods on all models")
    options.add_argument("--known", type=Path, help="file that keeps the values of the parts")
    given = options.parse_args()
    given.parts = given.parts or (PROVERS if given.proofs else PARTS)
    groups = given.models or (["structures", *FILES] if given.data else ["structures"])
    models = [model for group in groups for model in select(group, given.data)]
    if given.proofs:
        return proofs(models, given.proofs, given.parts)
    known: dict[str, Values] = {}
    if given.known is not None and given.known.exists():
        for model, method, mark, value in csv.reader(given.known.read_text().splitlines()):
            known.setdefault(model, {})[method, float(mark)] = float(value)
    behind, table = [], []
    print(f"| model | {' | '.join(f'{mark:g} s' for mark in given.marks)} |\n|---|{'--:|' * len(given.marks)}")
    for model in models:
        try:
            graph = model.build(1.0)
        except mapmrf.FormatError as error:
            print(f"| {model.name} | not read: {error} |")
            continue
        values = known.setdefault(model.name, {})
        row = measured(graph, values, given)
        cells = (f"{by:+.2f} {best}" if best else "proven" for by, best in row)
        print(f"| {model.name} | {' | '.join(cells)} |", flush=True)
        for mark, (by, best) in zip(given.marks, row, strict=True):
            if by < -BEHIND:
                behind.append(f"{model.name} after {mark:g} s: {by:.2f} % behind {best}")
        last = [values.get((method, given.marks[-1]), math.nan) for method in ("auto", *given.parts)]
        top = max(value for value in last if value == value)
        shares = (f"{100 + ahead(value, top):.1f}" if value == value else "" for value in last)
        table.append(f"| {model.name} | {' | '.join(shares)} |")
        if given.known is not None:
            rows = [(name, *key, value) for name in known for key, value in known[name].items() if key[0] != "auto"]
            with given.known.open("w", newline="") as file:
                csv.writer(file).writerows(rows)
    print(f"\nbehind by more than 0.1 %, {len(behind)} of {len(given.marks) * len(table)}:", *behind, sep="\n- ")
    if given.whole:
        columns = ("auto", *given.parts)
        print(f"\n| after {given.marks[-1]:g} s | {' | '.join(columns)} |\n|---|{'--:|' * len(columns)}")
        print("\n".join(table))


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    main()
