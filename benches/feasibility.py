"""Feasibility: `auto` compared with CP-SAT on models of hard constraints alone, as a Markdown table.

    python benches/feasibility.py
    python benches/feasibility.py --seconds 5 --models 2

Every row is a family of generated models. Times are wall time of one thread, without imports and compilation; CP-SAT
gets differences of integer variables and clauses, not tables, with its own time to build the model included. Without
OR-Tools its columns stay empty.
"""

from __future__ import annotations

import argparse
import importlib.util
import itertools
import math
import multiprocessing
import statistics
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from typing import Any, NamedTuple

import numpy as np

import mapmrf
from mapmrf import FactorGraph, Status


class Outcome(NamedTuple):
    """Whether a labelling was found; None if that was not decided in time, and the seconds."""

    feasible: bool | None
    seconds: float


# -- models -----------------------------------------------------------------------------------------------------------


def differ(states: int) -> np.ndarray:
    """The table of two variables that must not be equal."""
    return np.where(np.eye(states, dtype=bool), -np.inf, 0.0)


def colouring(n: int, degree: float, states: int, seed: int) -> FactorGraph:
    """A random graph of this average degree, whose neighbours must differ."""
    pairs = np.array(list(itertools.combinations(range(n), 2)))
    chosen = np.random.default_rng(seed).permutation(len(pairs))[: int(n * degree / 2)]
    return FactorGraph.from_pairwise(np.zeros((n, states)), pairs[np.sort(chosen)], differ(states))


def pigeons(n: int, holes: int) -> FactorGraph:
    """Pigeons in different holes."""
    return FactorGraph.from_pairwise(np.zeros((n, holes)), list(itertools.combinations(range(n), 2)), differ(holes))


def pigeon_clauses(n: int, holes: int) -> FactorGraph:
    """The same, with a binary variable for every pigeon and hole."""
    some, both = np.zeros((2,) * holes), np.zeros((2, 2))
    some[(0,) * holes] = both[1, 1] = -np.inf
    place = np.arange(n * holes).reshape(n, holes)
    pairs = [pair for column in place.T.tolist() for pair in itertools.combinations(column, 2)]
    scopes = [*map(tuple, place.tolist()), *pairs]
    return FactorGraph.from_tables(np.full(place.size, 2), scopes, [some] * n + [both] * len(pairs))


SUDOKUS = (
    "000000010400000000020000000000050407008000300001090000300400200050100000000806000",
    "800000000003600000070090200050007000000045700000100030001000068008500010090000400",
    "000000012000035000000600070700000300000400800100000000000120000080000040050000600",
)


def sudoku(seed: int, broken: bool = False) -> FactorGraph:
    """A sudoku of 9 x 9 cells; broken: with one more clue, which is wrong."""
    clues = SUDOKUS[seed % len(SUDOKUS)]
    unary = np.zeros((81, 9))
    for cell, clue in enumerate(clues):
        if clue != "0":
            unary[cell] = -np.inf
            unary[cell, int(clue) - 1] = 0.0
    row, column = np.divmod(np.arange(81), 9)
    block = row // 3 * 3 + column // 3
    unit = (row[:, None] == row) | (column[:, None] == column) | (block[:, None] == block)
    graph = FactorGraph.from_pairwise(unary, np.argwhere(np.triu(unit, 1)), differ(9))
    if not broken:
        return graph
    solution = mapmrf.solve(graph).labels
    cell = int(np.flatnonzero(np.array(list(clues)) == "0")[5 * seed])
    wrong = next(k for k in range(9) if k != solution[cell] and not _is_seen(unary, unit[cell], k))
    unary[cell, np.arange(9) != wrong] = -np.inf
    return FactorGraph.from_pairwise(unary, np.argwhere(np.triu(unit, 1)), differ(9))


def _is_seen(unary: np.ndarray, unit: np.ndarray, k: int) -> bool:
    """Return whether a clue in one of these cells is the state."""
    clues = np.flatnonzero(unit & (np.isneginf(unary).sum(axis=1) == 8))
    return bool(np.any(unary[clues, k] == 0.0))


def large_sudoku(base: int, holes: float, seed: int, diagonals: bool = False, broken: bool = False) -> FactorGraph:
    """A sudoku of base^2 rows from a shuffled solution, of which a share is left out.

    diagonals: with both diagonals as further units, of which nothing is given. broken: with one more clue, which is
    not that of the solution.
    """
    n, random = base * base, np.random.default_rng(seed)
    rows, columns = (np.concatenate([base * g + random.permutation(base) for g in range(base)]) for _ in range(2))
    r, c = np.meshgrid(rows, columns, indexing="ij")
    solution = random.permutation(n)[(base * (r % base) + r // base + c) % n].ravel()
    row, column = np.divmod(np.arange(n * n), n)
    block = row // base * base + column // base
    unit = (row[:, None] == row) | (column[:, None] == column) | (block[:, None] == block)
    if diagonals:
        for side in (row == column, row + column == n - 1):
            unit |= side[:, None] & side
    order = np.array([]) if diagonals else random.permutation(n * n)
    given = order[int(holes * n * n) :].astype(np.int64)
    unary = np.zeros((n * n, n))
    unary[given] = -np.inf
    unary[given, solution[given]] = 0.0
    if broken:
        cell = int(order[0])
        seen = np.zeros(n, dtype=bool)
        seen[solution[given[unit[cell, given]]]] = True
        wrong = next(int(k) for k in random.permutation(n) if not seen[k] and k != solution[cell])
        unary[cell, np.arange(n) != wrong] = -np.inf
    return FactorGraph.from_pairwise(unary, np.argwhere(np.triu(unit, 1)), differ(n))


def clauses(n: int, ratio: float, k: int, seed: int) -> FactorGraph:
    """Random clauses of `k` literals."""
    rng = np.random.default_rng(seed)
    scopes, tables = [], []
    for _ in range(int(n * ratio)):
        table = np.zeros((2,) * k)
        table[tuple(rng.integers(0, 2, k))] = -np.inf
        scopes.append(tuple(rng.permutation(n)[:k].tolist()))
        tables.append(table)
    return FactorGraph.from_tables(np.full(n, 2), scopes, tables)


FAMILIES: dict[str, Callable[[int], FactorGraph]] = {
    "sudoku": sudoku,
    "sudoku with a wrong clue": lambda seed: sudoku(seed, broken=True),
    "sudoku 16 x 16, 60 % empty": lambda seed: large_sudoku(4, 0.6, seed),
    "sudoku 16 x 16, empty, with diagonals": lambda seed: large_sudoku(4, 1.0, seed, diagonals=True),
    "sudoku 25 x 25, 50 % empty": lambda seed: large_sudoku(5, 0.5, seed),
    "sudoku 25 x 25, 60 % empty": lambda seed: large_sudoku(5, 0.6, seed),
    "sudoku 25 x 25, 70 % empty": lambda seed: large_sudoku(5, 0.7, seed),
    "sudoku 25 x 25, empty": lambda seed: large_sudoku(5, 1.0, seed),
    "sudoku 25 x 25, 50 % empty, with a wrong clue": lambda seed: large_sudoku(5, 0.5, seed, broken=True),
    "10 pigeons, 9 holes": lambda seed: pigeons(10, 9),
    "10 pigeons, 9 holes, as clauses": lambda seed: pigeon_clauses(10, 9),
    "3 colours, 200 vertices of degree 4.4": lambda seed: colouring(200, 4.4, 3, seed),
    "3 colours, 200 vertices of degree 4.7": lambda seed: colouring(200, 4.7, 3, seed),
    "4 colours, 100 vertices of degree 9.7": lambda seed: colouring(100, 9.7, 4, seed),
    "4 colours, 100 vertices of degree 8.6": lambda seed: colouring(100, 8.6, 4, seed),
    "4 colours, 150 vertices of degree 8.7": lambda seed: colouring(150, 8.7, 4, seed),
    "5 colours, 60 vertices of degree 13": lambda seed: colouring(60, 13.0, 5, seed),
    "5 colours, 100 vertices of degree 14": lambda seed: colouring(100, 14.0, 5, seed),
    "3-SAT, 150 variables, 4.26 clauses each": lambda seed: clauses(150, 4.26, 3, seed),
    "3-SAT, 200 variables, 4.26 clauses each": lambda seed: clauses(200, 4.26, 3, seed),
    "4-SAT, 80 variables, 9.9 clauses each": lambda seed: clauses(80, 9.9, 4, seed),
}

# -- solvers ----------------------------------------------------------------------------------------------------------


def by_auto(graph: FactorGraph, seconds: float) -> Outcome:
    """The answer of `auto`."""
    result = mapmrf.solve(graph, time_limit=seconds)
    if result.value > -math.inf:
        return Outcome(True, result.found.time if result.found is not None else result.runtime)
    return Outcome(False if result.status is Status.INFEASIBLE else None, result.runtime)


def by_cpsat(graph: FactorGraph, seconds: float) -> Outcome:
    """The answer of CP-SAT, with one worker."""
    from ortools.sat.python import cp_model

    began = time.perf_counter()
    model = cp_model.CpModel()
    if np.all(graph.card == 2):
        _add_clauses(model, graph)
    else:
        _add_differences(model, graph, cp_model)
    solver = cp_model.CpSolver()
    solver.parameters.num_workers = 1
    solver.parameters.max_time_in_seconds = seconds
    status = solver.solve(model)
    spent = time.perf_counter() - began
    return Outcome({cp_model.OPTIMAL: True, cp_model.FEASIBLE: True, cp_model.INFEASIBLE: False}.get(status), spent)


def _add_clauses(model: Any, graph: FactorGraph) -> None:
    x = [model.new_bool_var("") for _ in range(graph.n_vars)]
    for a in range(graph.n_factors):
        for config in np.argwhere(np.isneginf(graph.table(a))):
            model.add_bool_or([x[i].Not() if k else x[i] for i, k in zip(graph.scope_of(a), config, strict=True)])


def _add_differences(model: Any, graph: FactorGraph, cp_model: Any) -> None:
    x = []
    for begin, end in itertools.pairwise(graph.var_ptr):
        states = np.flatnonzero(graph.theta_v[begin:end] > -np.inf).tolist()
        x.append(model.new_int_var_from_domain(cp_model.Domain.from_values(states), ""))
    for i, j in graph.scope.reshape(-1, 2).tolist():
        model.add(x[i] != x[j])


# -- the table --------------------------------------------------------------------------------------------------------


def cells(outcomes: Sequence[Outcome]) -> str:
    """Median and largest time, and how many were not decided."""
    if not outcomes:
        return " | "
    seconds = [outcome.seconds for outcome in outcomes]
    undecided = sum(outcome.feasible is None for outcome in outcomes)
    note = f" ({undecided} undecided)" if undecided else ""
    return f"{statistics.median(seconds):.3f} | {max(seconds):.3f}{note}"


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--seconds", type=float, default=10.0, help="time limit for each model")
    options.add_argument("--models", type=int, default=5, help="number of models per family")
    options.add_argument("--only", default="", help="only families whose names contain this")
    args = options.parse_args()
    for seed in range(2):  # compile
        by_auto(colouring(150, 8.7, 4, seed), 100.0)
        by_auto(clauses(40, 4.2, 3, seed), 100.0)
    has_peer = importlib.util.find_spec("ortools") is not None
    print("| models | feasible | auto, median s | largest | CP-SAT, median s | largest |")
    print("|---|---|---|---|---|---|")
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as apart:
        for name, make in FAMILIES.items():
            if args.only not in name:
                continue
            graphs = [make(seed) for seed in range(args.models)]
            ours = [by_auto(graph, args.seconds) for graph in graphs]
            theirs = [apart.submit(by_cpsat, graph, args.seconds).result() for graph in graphs] if has_peer else []
            for mine, other in zip(ours, theirs, strict=False):
                assert None in (mine.feasible, other.feasible) or mine.feasible == other.feasible, name
            feasible = sum(outcome.feasible is True for outcome in ours)
            print(f"| {name} | {feasible} of {len(ours)} | {cells(ours)} | {cells(theirs)} |", flush=True)


if __name__ == "__main__":
    main()
