"""Speed of LS-LP: time per factor and iteration, next to streaming the same bytes with numpy in the same run.

`structured` compares pairs that are Potts, linear or quadratic with the same tables read in full.
"""

from __future__ import annotations

import argparse
import resource
import statistics
import time
from collections.abc import Callable

import numpy as np

import mapmrf
from catalogue import data_folder, models
from mapmrf.datasets.generate import grid
from mapmrf.engines.admm.engine import Engine
from mapmrf.engines.admm.layout import NO_FORMS
from mapmrf.model.problem import Problem
from mapmrf.run.method import Start


def best(work: Callable[[], object], repeats: int, clock: Callable[[], float] = time.process_time) -> float:
    """Shortest of several runs, in seconds of the processor: others may be at work on the machine."""
    times = []
    for _ in range(repeats):
        began = clock()
        work()
        times.append(clock() - began)
    return min(times)


def engine_of(graph: mapmrf.FactorGraph, threads: int) -> Engine:
    """A run of the default method in its sphere phase."""
    method = mapmrf.LSLP(lp_phase=False)
    state = method.start(Problem.compile(graph, threads), 0, Start())
    return state.the_engine


def streamed(engine: Engine) -> float:
    """Seconds numpy takes to read and write the bytes of an iteration once."""
    layout = engine.layout
    arrays = (layout.pairs.strength, layout.pairs.edge_mu, layout.variables.nbr_q)
    n_read = engine.q.nbytes + engine.mu.nbytes * 2 + sum(array.nbytes for array in arrays)
    n_write = engine.q.nbytes + engine.mu.nbytes * 2
    source, target = np.ones(n_read // 8), np.ones(n_write // 8)

    def stream() -> None:
        source.sum()
        target.fill(1.0)

    return best(stream, 20)


def grids(sizes: list[int]) -> None:
    print("| grid | factors | ns per factor and iteration | streaming the bytes | ratio |")
    print("|---|---|---|---|---|")
    for size in sizes:
        engine = engine_of(grid(size, size, coupling=5.0, seed=0), 1)
        n = engine.problem.n_factors
        rounds = max(2, 400_000 // n)
        engine.run(2)
        spent = best(lambda: engine.run(rounds), 9 if size < 1000 else 5) / rounds  # noqa: B023
        base = streamed(engine)
        print(
            f"| {size}x{size} | {n} | {1e9 * spent / n:.1f} | {1e9 * base / n:.1f} | {spent / base:.1f} |", flush=True
        )


def threads(size: int) -> None:
    graph = grid(size, size, coupling=5.0, seed=0)
    one, two = engine_of(graph, 1), engine_of(graph, 2)
    for engine in (one, two):
        engine.run(2)
    times: list[list[float]] = [[], []]
    for _ in range(300):
        for engine, mine in zip((one, two), times, strict=True):
            mine.append(best(lambda: engine.run(1), 1, time.perf_counter))  # noqa: B023
    shortest = min(times[0]) / min(times[1])
    median = statistics.median(times[0]) / statistics.median(times[1])
    same = bool(np.array_equal(one.mu, two.mu))
    print(f"\n2 threads on {size}x{size}: {shortest:.2f}x (shortest of 300 iterations), {median:.2f}x (median)")
    print(f"the same iterates: {same}")


def structured(sizes: list[int]) -> None:
    """The factor step and the measurement of structured pairs, and of the same tables in disguise."""
    print("\n| pairs | states | ns per factor: iteration | measurement | first iteration | in disguise | | |")
    print("|---|---|---|---|---|---|---|---|")
    for name in ("Potts", "truncated linear", "truncated quadratic"):
        for n in sizes:
            graph = _image(name, n, max(6, int(60 / np.sqrt(n / 4))))
            figures = [*_costs(graph), *_costs(graph, disguised=True)]
            print(f"| {name} | {n} | " + " | ".join(f"{figure:.0f}" for figure in figures) + " |", flush=True)


def _image(name: str, n: int, side: int) -> mapmrf.FactorGraph:
    """An image of so many labels with smooth unary potentials."""
    d = np.abs(np.arange(n)[:, None] - np.arange(n)).astype(float)
    losses = {"Potts": 1.0 * (d > 0), "truncated linear": np.minimum(0.3 * d, 2.0)}
    loss = losses.get(name, np.minimum(0.05 * d**2, 2.0))
    place = np.arange(side * side).reshape(side, side)
    across, down = np.stack([place[:, :-1], place[:, 1:]], axis=-1), np.stack([place[:-1], place[1:]], axis=-1)
    unary = 0.3 * np.cumsum(np.random.default_rng(0).normal(size=(side * side, n)), axis=1)
    return mapmrf.FactorGraph.from_pairwise(unary, np.concatenate([across.reshape(-1, 2), down.reshape(-1, 2)]), -loss)


def _costs(graph: mapmrf.FactorGraph, disguised: bool = False) -> list[float]:
    """Nanoseconds per factor of an iteration, a measurement and the first iteration."""
    for _ in range(2):  # the first time may compile
        problem = Problem.compile(graph)
        if disguised:
            problem.__dict__["forms"] = NO_FORMS  # what the cached property would find
        engine = mapmrf.LSLP(lp_phase=False).start(problem, 0, Start()).the_engine
        first = best(lambda: engine.run(1), 1)  # noqa: B023
    engine.run(30)
    costs = [best(lambda: engine.run(3), 9) / 3, best(engine.measure, 5), first]
    return [1e9 * cost / graph.n_factors for cost in costs]


def whole_runs(data: str | None) -> None:
    """Averages over whole default runs of real models."""
    folder = data_folder(data)
    print("\n| model | factors | iterations | ns per factor and iteration, looks included |")
    print("|---|---|---|---|")
    for which in ("seg-21", "protein"):
        model = models(folder, which)[0]
        graph = mapmrf.read(model.path)
        spent = []
        for _ in range(3):
            result = mapmrf.solve(graph, "lslp", lp_iterations=300, starts=1, max_iterations=900)
            seconds = result.runtime - result.compile_time
            spent.append(1e9 * seconds / result.iterations / graph.n_factors)
        print(f"| {model.name} | {graph.n_factors} | {result.iterations} | {min(spent):.0f} |", flush=True)


def million(iterations: int) -> None:
    """A million variables, start to end."""
    graph = grid(1000, 1000, coupling=5.0, seed=0)
    mapmrf.solve(grid(10, 10, seed=0), "lslp")
    began = time.perf_counter()
    result = mapmrf.solve(graph, "lslp", starts=1, lp_phase=False, max_iterations=iterations)
    spent = time.perf_counter() - began
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(f"1000x1000: {result.iterations} iterations in {spent:.1f} s, value {result.value:.0f}")
    print(f"peak memory of the process {peak:.0f} MiB")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", help="folder of the benchmark models")
    parser.add_argument("--sizes", nargs="+", type=int, default=[20, 80, 300, 1000, 2000])
    parser.add_argument("--parts", nargs="+", default=["grids", "threads", "structured", "runs"])
    parser.add_argument("--million", action="store_true", help="only the 1000x1000 run, for its memory")
    args = parser.parse_args()
    if args.million:
        million(600)
        return
    if "grids" in args.parts:
        grids(args.sizes)
    if "threads" in args.parts:
        threads(1000)
    if "structured" in args.parts:
        structured([8, 32, 64, 128])
    if "runs" in args.parts:
        whole_runs(args.data)


if __name__ == "__main__":
    main()
