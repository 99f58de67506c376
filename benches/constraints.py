"""Constraints: `auto` compared with CP-SAT, toulbar2 and AD3 on models with constraints, as a Markdown table.

    python benches/constraints.py
    python benches/constraints.py --seconds 10 --only selection

The models are generated: sudokus of 17 clues, assignments, a selection of at most k items with gains of pairs, items
under a budget, and an image of two labels whose object has a given size. CP-SAT gets native constraints and
products as 0/1 variables, its potentials rounded to millionths. toulbar2 and AD3 are the methods of that name here:
toulbar2 gets tables with auxiliary variables. Without OR-Tools or toulbar2 their columns stay empty. Times are wall
time of one thread, without imports and compilation; values are log potentials.
"""

from __future__ import annotations

import argparse
import importlib.util
import math
import multiprocessing
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from typing import Any, NamedTuple

import numpy as np

import mapmrf
from mapmrf import FactorGraph, constraints
from mapmrf.constraints import ConstraintKind

UNIT = 1_000_000
"""Units of a log potential for CP-SAT, whose numbers are whole."""


class Outcome(NamedTuple):
    """The value found, whether it is proven, and the seconds."""

    value: float
    proven: bool
    seconds: float


# -- models -----------------------------------------------------------------------------------------------------------

SUDOKUS = (
    "000000010400000000020000000000050407008000300001090000300400200050100000000806000",
    "000000012000035000000600070700000300000400800100000000000120000080000040050000600",
    "000000010400000000020000000000050604008000300001090000300400200050100000000807000",
)


def sudoku(seed: int) -> FactorGraph:
    """A sudoku of 17 clues."""
    cell = np.arange(81).reshape(9, 9)
    boxes = cell.reshape(3, 3, 3, 3).swapaxes(1, 2).reshape(9, 9)
    groups = [*cell.tolist(), *cell.T.tolist(), *boxes.tolist()]
    graph = FactorGraph.from_tables([9] * 81, [], [])
    graph = graph.with_constraints([constraints.all_different(group) for group in groups])
    clues = SUDOKUS[seed % len(SUDOKUS)]
    return graph.condition({at: int(clue) - 1 for at, clue in enumerate(clues) if clue != "0"})


def assignment(n: int, seed: int) -> FactorGraph:
    """Every variable another state, of the largest sum."""
    gains = np.random.default_rng(seed).normal(size=(n, n))
    graph = FactorGraph.from_tables([n] * n, [(i,) for i in range(n)], list(gains))
    return graph.with_constraints([constraints.all_different(range(n))])


def selection(n: int, n_pairs: int, k: int, seed: int) -> FactorGraph:
    """At most k of n items, which gain alone and in pairs."""
    random = np.random.default_rng(seed)
    unary = np.stack([np.zeros(n), random.normal(size=n)], axis=1)
    both = np.triu_indices(n, 1)
    chosen = np.sort(random.permutation(len(both[0]))[:n_pairs])
    tables = np.zeros((n_pairs, 2, 2))
    tables[:, 1, 1] = random.normal(size=n_pairs)
    graph = FactorGraph.from_pairwise(unary, np.stack(both, axis=1)[chosen], tables)
    return graph.with_constraints([constraints.at_most_k(range(n), k)])


def budget(n: int, seed: int) -> FactorGraph:
    """Items with a price, of which some exclude each other, under a budget."""
    random = np.random.default_rng(seed)
    gains, prices = random.uniform(1.0, 5.0, n), random.integers(1, 8, n)
    graph = FactorGraph.from_tables([2] * n, [(i,) for i in range(n)], [[0.0, gain] for gain in gains])
    apart = [constraints.at_most_one(random.permutation(n)[:3].tolist()) for _ in range(n // 2)]
    limit = constraints.linear(range(n), prices.tolist(), upper=int(prices.sum()) // 4)
    return graph.with_constraints([limit, *apart])


def segmentation(side: int, seed: int) -> FactorGraph:
    """A noisy disc, of which the number of pixels is known."""
    random = np.random.default_rng(seed)
    row, column = np.mgrid[:side, :side] - (side - 1) / 2
    disc = row**2 + column**2 < (side / 3) ** 2
    picture = disc + random.normal(scale=0.8, size=disc.shape)
    place = np.arange(side * side).reshape(side, side)
    edges = np.concatenate([np.stack([place[:, :-1].ravel(), place[:, 1:].ravel()], 1),
                            np.stack([place[:-1].ravel(), place[1:].ravel()], 1)])  # fmt: skip
    unary = -np.stack([picture.ravel() ** 2, (picture.ravel() - 1) ** 2], axis=1)
    graph = FactorGraph.from_pairwise(unary, edges, 0.5 * np.eye(2))
    return graph.with_constraints([constraints.exactly_k(range(side * side), int(disc.sum()))])


FAMILIES: dict[str, Callable[[int], FactorGraph]] = {
    "sudoku, 17 clues": sudoku,
    "assignment of 20": lambda seed: assignment(20, seed),
    "selection: at most 12 of 300, 2000 pairs": lambda seed: selection(300, 2000, 12, seed),
    "budget: 60 items": lambda seed: budget(60, seed),
    "segmentation: 16 x 16 pixels, size given": lambda seed: segmentation(16, seed),
}

# -- solvers ----------------------------------------------------------------------------------------------------------


def by_mapmrf(graph: FactorGraph, method: str, seconds: float) -> Outcome:
    """The answer of a method."""
    result = mapmrf.solve(graph, method, time_limit=seconds)
    return Outcome(result.value, result.status.closes_gap, result.runtime)


def by_cpsat(graph: FactorGraph, seconds: float) -> Outcome:
    """The answer of CP-SAT, with one worker."""
    from ortools.sat.python import cp_model

    began = time.perf_counter()
    model = cp_model.CpModel()
    x = [[model.new_bool_var("") for _ in range(r)] for r in graph.card.tolist()]
    for states in x:
        model.add_exactly_one(states)
    terms = list(_terms(model, graph, x))
    _add_constraints(model, graph, x)
    model.maximize(sum(round(UNIT * gain) * literal for gain, literal in terms if math.isfinite(gain)))
    solver = cp_model.CpSolver()
    solver.parameters.num_workers = 1
    solver.parameters.max_time_in_seconds = seconds
    status = solver.solve(model)
    spent = time.perf_counter() - began
    if status not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
        return Outcome(-math.inf, status == cp_model.INFEASIBLE, spent)
    labels = [[solver.boolean_value(literal) for literal in states].index(True) for states in x]
    return Outcome(graph.value(labels), status == cp_model.OPTIMAL, spent)


def _terms(model: Any, graph: FactorGraph, x: list[list[Any]]) -> Iterator[tuple[float, Any]]:
    """Potentials with the literals that earn them; a product gets a literal of its own."""
    for i, states in enumerate(x):
        block = graph.theta_v[graph.var_ptr[i] : graph.var_ptr[i + 1]]
        for literal, gain in zip(states, block.tolist(), strict=True):
            if gain == -math.inf:
                model.add_bool_and([literal.Not()])
            yield gain, literal
    for a in range(graph.n_factors):
        scope, table = graph.scope_of(a).tolist(), graph.table(a)
        for config in np.argwhere(table != 0.0).tolist():
            literals = [x[i][k] for i, k in zip(scope, config, strict=True)]
            product = model.new_bool_var("")
            model.add_bool_or([product, *(literal.Not() for literal in literals)])
            for literal in literals:
                model.add_implication(product, literal)
            yield float(table[tuple(config)]), product


def _add_constraints(model: Any, graph: FactorGraph, x: list[list[Any]]) -> None:
    stated = graph.constraints
    assert stated is not None
    for c in range(len(stated)):
        mine = stated.span(c)
        if stated.kind[c] == ConstraintKind.ALL_DIFFERENT:
            scope = stated.var[mine].tolist()
            model.add_all_different([sum(k * literal for k, literal in enumerate(x[i])) for i in scope])
            continue
        assert stated.kind[c] == ConstraintKind.LINEAR
        pairs = zip(stated.weight[mine].tolist(), stated.var[mine].tolist(), stated.state[mine].tolist(), strict=True)
        total = sum(int(weight) * x[i][k] for weight, i, k in pairs)
        if stated.lower[c] > -math.inf:
            model.add(total >= int(stated.lower[c]))
        if stated.upper[c] < math.inf:
            model.add(total <= int(stated.upper[c]))


# -- the table --------------------------------------------------------------------------------------------------------


def cell(outcomes: list[Outcome]) -> str:
    """Mean value, how many are proven, and the mean time."""
    if not outcomes:
        return ""
    value = float(np.mean([outcome.value for outcome in outcomes]))
    proven = sum(outcome.proven for outcome in outcomes)
    return f"{value:.3f}, {proven} proven, {np.mean([outcome.seconds for outcome in outcomes]):.2f} s"


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--seconds", type=float, default=10.0, help="time limit for each model")
    options.add_argument("--models", type=int, default=3, help="number of models per family")
    options.add_argument("--only", default="", help="only families whose names contain this")
    args = options.parse_args()
    methods = ["auto", "ad3", *(["toulbar2"] if importlib.util.find_spec("pytoulbar2") is not None else [])]
    has_peer = importlib.util.find_spec("ortools") is not None
    for method in methods:  # compile
        for graph in (sudoku(1), selection(40, 100, 5, 1), segmentation(6, 1)):
            mapmrf.solve(graph, method, max_iterations=20, time_limit=200)
    print(f"| models | {' | '.join(methods)} | CP-SAT |")
    print("|---|" + "---|" * (len(methods) + 1))
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as apart:
        for name, make in FAMILIES.items():
            if args.only not in name:
                continue
            graphs = [make(seed) for seed in range(args.models)]
            cells = [cell([by_mapmrf(graph, method, args.seconds) for graph in graphs]) for method in methods]
            theirs = [apart.submit(by_cpsat, graph, args.seconds).result() for graph in graphs] if has_peer else []
            print(f"| {name} | {' | '.join(cells)} | {cell(theirs)} |", flush=True)


if __name__ == "__main__":
    main()
