"""How good the defaults of LS-LP are: one option changed at a time, on Grids (quality) and the easy sets (proofs)."""

from __future__ import annotations

import statistics
import time
from typing import Any

import mapmrf
from catalogue import Model, data_folder, models, parser
from mapmrf.datasets.generate import random_graph

CHANGES: dict[str, dict[str, Any]] = {
    "defaults": {},
    "rho 0.05": {"rho": 0.05},
    "rho 1": {"rho": 1.0},
    "rho 2": {"rho": 2.0},
    "rho 5": {"rho": 5.0},
    "eta 1.005": {"eta": 1.005},
    "eta 1.03": {"eta": 1.03},
    "eta 1.1": {"eta": 1.1},
    "rho_upper 50": {"rho_upper": 50.0},
    "rho_upper 1e6": {"rho_upper": 1e6},
    "starts 1": {"starts": 1},
    "starts 2": {"starts": 2},
    "starts 10": {"starts": 10, "max_iterations": 13_000},
    "no LP phase": {"lp_phase": False},
    "no beliefs": {"beliefs": 0},
    "no climbing": {"climb": False},
    "neither beliefs nor climbing": {"beliefs": 0, "climb": False},
    "lp_rho 0.1": {"lp_rho": 0.1},
    "lp_rho 1.6": {"lp_rho": 1.6},
    "sphere affine": {"sphere": "affine"},
    "sphere_weight 0.3": {"sphere_weight": 0.3},
    "sphere_weight 3": {"sphere_weight": 3.0},
    "one sphere in all starts": {"alternate_block": 0},
    "blocks of 16 in all starts": {"sphere_block": 16},
    "blocks of 64 in all starts": {"sphere_block": 64, "alternate_block": 64},
    "relaxation 1.5": {"relaxation": 1.5},
    "noise 0.1": {"noise": 0.1},
    "one-hot start": {"start_from": "onehot"},
    "last read-out": {"read_out": "last"},
    "epsilon 1e-5, tied": {"epsilon": 1e-5},
    "epsilon 1e-5, free": {"epsilon": 1e-5, "variant": "free"},
}

NEITHER = CHANGES["neither beliefs nor climbing"]
SPHERES = {
    "neither beliefs nor climbing": NEITHER,
    "one sphere in all starts": {**NEITHER, "alternate_block": 0},
    "blocks of 16 in all starts": {**NEITHER, "sphere_block": 16},
    "blocks of 64 in all starts": {**NEITHER, "sphere_block": 64, "alternate_block": 64},
    "defaults": {},
}


def grids(found: list[tuple[Model, mapmrf.FactorGraph]], seeds: int, options: dict[str, Any]) -> str:
    """Mean and lowest percentage of the best known value, valid runs, iterations and time."""
    shares, valid, iterations = [], 0, []
    began = time.perf_counter()
    for model, graph in found:
        for seed in range(seeds):
            result = mapmrf.solve(graph, "lslp", seed=seed, **options)
            shares.append(100 * result.value / (model.best or 1.0))
            valid += result.kind == "valid"
            iterations.append(result.iterations)
    spent = (time.perf_counter() - began) / len(shares)
    return (
        f"{statistics.mean(shares):.2f} | {min(shares):.2f} | {valid}/{len(shares)} | "
        f"{statistics.median(iterations):.0f} | {spent:.2f}"
    )


def proofs(found: list[tuple[Model, mapmrf.FactorGraph]], options: dict[str, Any]) -> str:
    """How many models end proven optimal, and the median time."""
    results = [mapmrf.solve(graph, "lslp", **options) for _, graph in found]
    proven = sum(result.status == "optimal" for result in results)
    return f"{proven}/{len(results)} | {1e3 * statistics.median(result.runtime for result in results):.1f}"


def triples(options: dict[str, Any]) -> str:
    """Mean value and valid runs on generated third-order models, where the kind of sphere matters."""
    graphs = [random_graph(100, 200, states=2, arity=3, seed=seed) for seed in range(6)]
    results = [mapmrf.solve(graph, "lslp", **options) for graph in graphs]
    valid = sum(result.kind == "valid" for result in results)
    return f"{statistics.mean(result.value for result in results):.2f} | {valid}/{len(results)}"


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--seeds", type=int, default=2)
    args = options.parse_args()
    print("| sphere | 100 variables, 200 random triples: mean value | valid |")
    print("|---|---|---|")
    for name, changes in SPHERES.items():
        print(f"| {name} | {triples(changes)} |", flush=True)
    print()
    folder = data_folder(args.data)
    hard = [(model, mapmrf.read(model.path)) for model in models(folder, "grids") if "80x80" not in model.name]
    easy = [(m, mapmrf.read(m.path)) for which in ("seg-2", "scene", "seg-21") for m in models(folder, which)[:10]]
    print("| change | Grids: mean % | lowest % | valid | iterations | s | easy: proven | ms |")
    print("|---|---|---|---|---|---|---|---|")
    for name, changes in CHANGES.items():
        mapmrf.solve(easy[0][1], "lslp", **changes)
        print(f"| {name} | {grids(hard, args.seeds, changes)} | {proofs(easy, changes)} |", flush=True)


if __name__ == "__main__":
    main()
