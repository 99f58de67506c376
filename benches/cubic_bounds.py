"""Bounds for binary models of pairs and triples by a first-order solver over spins and products, as a Markdown table.

    python benches/cubic_bounds.py --models didNotconverge2 --rounds 12

An experiment: theta becomes a polynomial of degree 3 in spins, with a column for every product of two or three spins of
a factor. The rows say that the eight states of a triple have no negative weight, so that triples with a pair in common
agree on it, which the local polytope does not ask for; rounds of odd-cycle inequalities follow. Forbidden entries count
as -10000, so that bounds hold. Folders are expected below MAPMRF_DATA, or ../shared/data beside the repository.
"""

from __future__ import annotations

import argparse
import csv
import itertools
import os
import time
from collections import defaultdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np

import mapmrf
from mapmrf.arrays import Floats, Ints, offsets
from mapmrf.engines.program.odd_cycle_separation import OddCycleSeparation
from mapmrf.engines.program.primal_dual import IterationLimits, PrimalDual
from mapmrf.engines.program.spin_form import SpinCuts

FOLDER = Path(os.environ.get("MAPMRF_DATA") or Path(__file__).parents[2] / "shared" / "data")
FORBIDDEN = -1e4
ROUND = IterationLimits(60, 300, 0.2)
EFFORTS = (0.15, 0.08, 0.1), (0.05, 0.03, 0.05), (0.02, 0.01, 0.02)
TRIPLE_CODE = -1e9
"""Codes of the rows of triples are at most this; those of cycles are positive."""


class CubicForm:
    """A model as constant + cost z: spins first, then products of three, then products of two."""

    def __init__(self, graph: mapmrf.FactorGraph) -> None:
        terms = _polynomial(graph)
        self.n = graph.n_vars
        self.triples = sorted(key for key in terms if len(key) == 3)
        pairs = {pair for triple in self.triples for pair in itertools.combinations(triple, 2)}
        self.pairs = sorted(pairs | {key for key in terms if len(key) == 2})
        keys = [*((i,) for i in range(self.n)), *self.triples, *self.pairs]
        cost = np.array([terms.get(key, 0.0) for key in keys])
        of_pairs = np.abs(cost[self.n + len(self.triples) :])
        self.unit = float(np.median(of_pairs[of_pairs > 1e-12]))
        self.constant, self.cost = terms[()], cost / self.unit
        first, second = np.array(self.pairs, dtype=np.int64).T.copy()
        self.compact = SimpleNamespace(n=self.n + len(self.triples), first=first, second=second)

    def rows_of_triples(self) -> SpinCuts:
        """No state of a triple has a negative weight."""
        place = {pair: self.compact.n + e for e, pair in enumerate(self.pairs)}
        columns = np.array(
            [
                [*triple, *(place[pair] for pair in itertools.combinations(triple, 2)), self.n + t]
                for t, triple in enumerate(self.triples)
            ]
        )
        signs = [[a, b, c, a * b, a * c, b * c, a * b * c] for a, b, c in itertools.product([-1, 1], repeat=3)]
        n = 8 * len(columns)
        positive = np.tile(np.array(signs) < 0, (len(columns), 1, 1)).reshape(-1)
        code = TRIPLE_CODE - np.arange(n, dtype=np.float64)
        ptr = offsets(np.full(n, 7))
        return SpinCuts.of_entries(ptr, np.repeat(columns, 8, axis=0).reshape(-1), positive, np.ones(n), code)


def _polynomial(graph: mapmrf.FactorGraph) -> dict[tuple[int, ...], float]:
    """Coefficients of the products of spins."""
    terms: defaultdict[tuple[int, ...], float] = defaultdict(float)
    terms[()] = graph.constant
    for i in range(graph.n_vars):
        _add(terms, [i], graph.theta_v[2 * i : 2 * i + 2])
    for a in range(graph.n_factors):
        scope = graph.scope[graph.scope_ptr[a] : graph.scope_ptr[a + 1]].tolist()
        table = graph.theta_t[graph.table_ptr[graph.table_of[a]] :][: 2 ** len(scope)]
        _add(terms, scope, table if graph.weight is None else graph.weight[a] * table)
    return terms


def _add(terms: defaultdict[tuple[int, ...], float], scope: list[int], table: Floats) -> None:
    """Add the Walsh transform of a table."""
    values = np.maximum(table, FORBIDDEN).reshape((2,) * len(scope)) / 2 ** len(scope)
    for axis in range(len(scope)):
        low, high = np.take(values, 0, axis), np.take(values, 1, axis)
        values = np.stack([high + low, high - low], axis)
    for chosen in itertools.product([0, 1], repeat=len(scope)):
        terms[tuple(sorted(itertools.compress(scope, chosen)))] += float(values[chosen])


def _rounds(graph: mapmrf.FactorGraph, n_rounds: int) -> tuple[float, Ints, int, int]:
    """The best bound, the signs of the last spins, how many of these are in between, and the number of cycles."""
    form = CubicForm(graph)
    solver, separation = PrimalDual(cast(Any, form)), OddCycleSeparation(cast(Any, form.compact))
    solver.replace_cuts(np.zeros(0, dtype=bool), form.rows_of_triples())
    bound, n_quiet = np.inf, 0
    for _ in range(n_rounds):
        for _ in solver.run(ROUND):
            pass
        bound = min(bound, form.constant + form.unit * solver.bound)
        cut = np.clip((1 - solver.z[form.compact.n :]) / 2, 0, 1)
        for _ in separation.run(cut, *EFFORTS[min(n_quiet // 2, 2)]):
            pass
        found = separation.best(form.n)
        upper = (np.diff(found.ptr) - 2).astype(np.float64)
        column = form.compact.n + found.edge.astype(np.int64)
        cycles = SpinCuts.of_entries(found.ptr, column, found.odd == 0, upper, separation.codes(found))
        kept = (solver.y_cut > 0) | (solver.slack() <= 0.05) | (solver.cuts.code <= TRIPLE_CODE)
        new = cycles.new(solver.cuts.only(kept))
        n_quiet = 0 if new.n else n_quiet + 1
        solver.replace_cuts(kept, new)
    spins = solver.z[: form.n]
    between, n_cycles = np.count_nonzero(np.abs(spins) < 0.9), np.count_nonzero(solver.cuts.code > 0)
    return bound, (spins > 0).astype(np.int64), int(between), int(n_cycles)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", default=[f"didNotconverge{k}" for k in (1, 2, 5, 6)])
    parser.add_argument("--rounds", type=int, default=12)
    arguments = parser.parse_args()
    with open(FOLDER / "reference_values.csv", newline="", encoding="utf-8") as file:
        known = {row["file"]: row["logpot"] for row in csv.DictReader(file)}
    print("| model | best known | bound | gap | spins in between | cycles | CPU s |\n|---|---|---|---|---|---|---|")
    for name in arguments.models:
        path = f"protein/{name}.uai.gz"
        graph, began = mapmrf.read(FOLDER / path), time.process_time()
        bound, labels, between, n_cycles = _rounds(graph, arguments.rounds)
        value = max(float(known.get(path) or -np.inf), graph.value(labels))
        gap, cpu = 100 * (bound - value) / abs(value), time.process_time() - began
        cells = [name, f"{value:.4f}", f"{bound:.4f}", f"{gap:.4f} %", between, n_cycles, f"{cpu:.1f}"]
        print("|", " | ".join(map(str, cells)), "|", flush=True)


if __name__ == "__main__":
    main()
