"""Compile all kernels, by runs on small generated models that call each of them with every signature.

Used by ``mapmrf compile`` and by the build hook of the wheel. Kernels are specialised by the types of their
arguments, not by sizes, so a small model of every shape is enough: binary or not, pairs or larger factors, shared
tables, forbidden entries, trees, variables without factors, and one that is large enough for the kernels of large
models.
"""

from __future__ import annotations

import importlib
import multiprocessing
import os
import platform
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from mapmrf.compilation import machine_code
from mapmrf.compilation.store import Key
from mapmrf.model.graph import FactorGraph

Run = tuple[str, str, dict[str, Any]]  # a method, the name of a model, and options

# -- models -----------------------------------------------------------------------------------------------------------


def _spins(side: int) -> FactorGraph:
    from mapmrf.datasets import grid

    return grid(side, side, 3.0, seed=0)


def _mixed() -> FactorGraph:
    """Factors of two to four variables of two to four states, a tenth of all entries forbidden."""
    from mapmrf.datasets import random_graph

    return random_graph(24, 40, states=(2, 4), arity=(2, 4), hard=0.1, seed=3)


def _image(height: int, width: int, labels: int, noise: float = 1.2, smoothness: float = 0.8) -> FactorGraph:
    from mapmrf.datasets import potts_image

    return potts_image(height, width, labels=labels, noise=noise, smoothness=smoothness, seed=0).graph


def _pairs(n_states: int, edges: np.ndarray, hard: float) -> FactorGraph:
    """Normal potentials on given pairs; `hard` is the fraction of forbidden entries, none of them in labelling 0."""
    rng = np.random.default_rng(0)
    unary = rng.normal(size=(int(edges.max()) + 1, n_states))
    tables = 2.0 * rng.normal(size=(len(edges), n_states, n_states))
    forbidden = rng.random(tables.shape) < hard
    forbidden[:, 0, 0] = False
    tables[forbidden] = -np.inf
    return FactorGraph.from_pairwise(unary, edges, tables)


def _lattice(side: int) -> np.ndarray:
    place = np.arange(side * side).reshape(side, side)
    across = np.stack([place[:, :-1].ravel(), place[:, 1:].ravel()], axis=1)
    return np.concatenate([across, np.stack([place[:-1].ravel(), place[1:].ravel()], axis=1)])


def _smooth() -> FactorGraph:
    """A weighted lattice with six labels and their distance as loss: pairs that are not handled as tables."""
    rng, edges, k = np.random.default_rng(0), _lattice(5), np.arange(6.0)
    loss = np.minimum(np.abs(k[:, None] - k), 3.0)
    return FactorGraph.from_pairwise(rng.normal(size=(25, 6)), edges, -loss, weight=rng.random(len(edges)))


def _triples() -> FactorGraph:
    """Binary variables in random triples; the last variables are in no factor."""
    rng, n = np.random.default_rng(0), 30
    scopes = [(i,) for i in range(n + 2)] + [tuple(rng.choice(n, 3, replace=False).tolist()) for _ in range(60)]
    return FactorGraph.from_tables(np.full(n + 2, 2), scopes, [rng.normal(size=(2,) * len(scope)) for scope in scopes])


def _protein() -> FactorGraph:
    """Variables of 2 to 9 states, a third of all pairs, a few clashes."""
    rng, n = np.random.default_rng(0), 16
    card = rng.integers(2, 10, n)
    pairs = [(i, j) for i in range(n) for j in range(i + 1, n) if j == i + 1 or rng.random() < 0.3]
    scopes: list[tuple[int, ...]] = [*((i,) for i in range(n)), *pairs]
    tables = [rng.gumbel(size=card[list(scope)]) for scope in scopes]
    for table in tables[n::3]:
        table[rng.random(table.shape) < 0.05] -= 50.0
    return FactorGraph.from_tables(card, scopes, tables)


def _colouring(side: int) -> FactorGraph:
    """Four colours on a grid, and on its diagonals if it is small: neighbours must differ."""
    place = np.arange(side * side).reshape(side, side)
    diagonal = np.stack([place[:-1, :-1].ravel(), place[1:, 1:].ravel()], axis=1)
    edges = np.concatenate([_lattice(side), diagonal]) if side < 10 else _lattice(side)
    differ = np.where(np.eye(4, dtype=bool), -np.inf, 0.0)
    return FactorGraph.from_pairwise(np.random.default_rng(0).normal(size=(side * side, 4)), edges, differ)


def _tree() -> FactorGraph:
    """A tree with three states: each variable is joined to a random earlier one."""
    rng = np.random.default_rng(0)
    return _pairs(3, np.array([[rng.integers(0, i), i] for i in range(1, 40)]), hard=0.0)


def _pedigree() -> FactorGraph:
    """A Bayesian network: conditional tables of up to two parents, some of them deterministic."""
    rng, n = np.random.default_rng(0), 60
    card = rng.integers(2, 5, n)
    scopes, tables = [], []
    for i in range(n):
        parents = [] if i < 8 else rng.choice(np.arange(max(0, i - 25), i), 2, replace=False).tolist()
        chance = rng.dirichlet(np.full(card[i], 0.5), size=tuple(card[parents]))
        if rng.random() < 0.4:
            chance = np.where(chance == chance.max(axis=-1, keepdims=True), 1.0, 0.0)
        scopes.append((*parents, i))
        with np.errstate(divide="ignore"):
            tables.append(np.log(chance))
    return FactorGraph.from_tables(card, scopes, tables)


def _priced() -> FactorGraph:
    """An image with three labels, each with a cost if it is used."""
    from mapmrf.images import grid_model

    return grid_model(np.random.default_rng(0).random((6, 7, 3)), weight=0.2, label_costs=1.0)


def _differing(edges: np.ndarray, rng: np.random.Generator) -> FactorGraph:
    """Binary variables: pairs should differ, and a few must not both be 1."""
    tables = rng.random((len(edges), 1, 1)) * (1.0 - np.eye(2))
    tables[::7, 1, 1] = -np.inf
    return FactorGraph.from_pairwise(rng.normal(size=(int(edges.max()) + 1, 2)), edges, tables)


def _gates() -> FactorGraph:
    rng = np.random.default_rng(0)
    edges = np.stack([2 * rng.integers(20, size=80), 1 + 2 * rng.integers(20, size=80)], axis=1)
    return _differing(edges, rng)


def _circuit() -> FactorGraph:
    rng = np.random.default_rng(0)
    edges = np.array([rng.permutation(40)[:2] for _ in range(80)])
    return FactorGraph.from_pairwise(rng.normal(size=(40, 2)), edges, np.eye(2), weight=rng.random(80))


def _wide_triples() -> FactorGraph:
    """Triples along the rows of a grid and pairs between them, enough for several threads."""
    random, place = np.random.default_rng(0), np.arange(84_000).reshape(300, 280)
    rows = np.stack([place[:, :-2], place[:, 1:-1], place[:, 2:]], axis=-1).reshape(-1, 3)
    scopes: list[tuple[int, ...]] = [*map(tuple, rows.tolist()), *((i, i + 280) for i in place[:-1].ravel().tolist())]
    triple, pair = random.normal(size=(2, 2, 2)), random.normal(size=(2, 2))
    return FactorGraph.from_tables(
        np.full(place.size, 2), scopes, [triple if len(scope) == 3 else pair for scope in scopes]
    )


def _tallied() -> FactorGraph:
    """Pairs of variables with two and three states, and constraints of every kind, hard and soft."""
    from mapmrf import constraints as stated

    rng = np.random.default_rng(0)
    card = [2] * 8 + [3] * 4
    scopes = [(i, i + 1) for i in range(10)]
    tables = [rng.normal(size=(card[i], card[j])) for i, j in scopes]
    priced = [stated.at_most_k(range(6), 2, 1.0), stated.xor([0, 2, (9, 1)], 1, 2.0), stated.label_cost(2, 1.0)]
    return FactorGraph.from_tables(card, scopes, tables).with_constraints(
        [
            *priced,
            stated.exactly_k(range(8), 4),
            stated.linear([0, 1, 3, (8, 2)], [3, 2, 4, 1], upper=6),
            stated.xor([1, 4, 5]),
            stated.or_with_output([2, 3], 6),
            stated.all_different([8, 9, 11]),
        ]
    )


def _bids() -> FactorGraph:
    """Binary variables of which at most one is 1, stated by pairs; too many for elimination."""
    edges = np.array([(i, j) for i in range(40) for j in range(i + 1, 40)])
    exclusive = np.array([[0.0, 0.0], [0.0, -np.inf]])
    return FactorGraph.from_pairwise(np.stack([np.zeros(40), np.linspace(1.0, 2.0, 40)], axis=1), edges, exclusive)


def _unsolvable() -> FactorGraph:
    """Four colours on a random graph with too many edges: enough conflicts for every part of a search."""
    rng = np.random.default_rng(0)
    pairs = np.array([(i, j) for i in range(150) for j in range(i + 1, 150)])
    chosen = pairs[np.sort(rng.permutation(len(pairs))[:660])]
    return FactorGraph.from_pairwise(np.zeros((150, 4)), chosen, np.where(np.eye(4, dtype=bool), -np.inf, 0.0))


def _counted() -> FactorGraph:
    """Three states on a lattice, with constraints of every kind."""
    from mapmrf import constraints

    graph = _pairs(3, _lattice(4), hard=0.05)
    return graph.with_constraints(
        [
            constraints.at_most_k([(i, 0) for i in range(16)], 6),
            constraints.linear([(i, 1) for i in range(16)], np.linspace(0.5, 2.0, 16), upper=4.0),
            constraints.xor([(i, 2) for i in range(4)], 0),
            constraints.or_with_output([(4, 1), (5, 1)], (6, 1)),
            constraints.all_different([8, 9, 10]),
            constraints.label_cost(2, 1.5),
        ]
    )


MODELS: dict[str, Callable[[], FactorGraph]] = {
    "spins": lambda: _spins(8),
    "spins20": lambda: _spins(20),
    "many": lambda: _spins(105),
    "large": lambda: _spins(230),
    "labels": lambda: _pairs(5, _lattice(6), hard=0.0),
    "potts": lambda: _image(8, 9, 3),
    "smooth": _smooth,
    "triples": _triples,
    "protein": _protein,
    "hard": lambda: _pairs(4, _lattice(6), hard=0.08),
    "colouring": lambda: _colouring(6),
    "tree": _tree,
    "dense": lambda: _pairs(2, np.array([(i, j) for i in range(24) for j in range(i + 1, 24)]), hard=0.0),
    "pedigree": _pedigree,
    "mixed": _mixed,
    "mask": lambda: _image(8, 9, 2),
    "priced": _priced,
    "photo2": lambda: _image(230, 230, 2),  # large enough for several threads, as are the wide ones
    "photo3": lambda: _image(230, 230, 3),
    "differing": lambda: _differing(_lattice(6), np.random.default_rng(0)),
    "circuit": _circuit,
    "gates": _gates,
    "wide_spins": lambda: _image(600, 600, 2, 0.8, 1.2),
    "wide_labels": lambda: _image(110, 110, 30, 0.8, 1.2),
    "wide_hard": lambda: _colouring(200),
    "wide_triples": _wide_triples,
    "unsolvable": _unsolvable,
    "bids": _bids,
    "counted": _counted,
    "tallied": _tallied,
}

# -- runs -------------------------------------------------------------------------------------------------------------

_ANY = ("spins", "labels", "potts", "triples", "protein", "hard", "tree", "dense", "pedigree", "mixed")
_WIDE = ("wide_spins", "wide_labels", "wide_hard", "wide_triples")
_PAIRS = ("spins", "labels", "potts", "protein", "hard", "tree", "dense")


def _runs(methods: str, models: tuple[str, ...] = _ANY, **options: Any) -> list[Run]:
    return [(method, model, {"max_iterations": 30, **options}) for method in methods.split() for model in models]


CERTAINTY = "certainty"  # the group of queries for more than one labelling

GROUPS: dict[str, list[Run]] = {
    "messages": [
        *_runs("trws adsal mplp bp"),
        *_runs("adsal", ("mixed",), presolve_iterations=5),  # early enough to be smoothed
        *_runs("bp trbp", ("spins", "mixed"), schedule="sequential"),
        *_runs("trbp"),
        *_runs("trws", ("spins20", "colouring", "pedigree"), order="breadth_first"),
        *_runs("trws", _WIDE, threads=2, max_iterations=1),
        *_runs("mplp", ("hard", "pedigree"), order="random"),
        *_runs("mplp", ("hard", "spins"), schedule="forward"),
        *_runs("bp mplp", ("photo2", "photo3"), max_iterations=2, threads=2),
        *_runs("mplp bp", ("counted", "tallied")),
    ],
    "LS-LP": [
        *_runs("lslp", starts=2),
        *_runs("lslp", ("spins", "triples", "hard"), sphere="factors"),
        *_runs("lslp", ("spins", "mixed", "labels"), sphere="affine", relaxation=1.4),
        *_runs("lslp", ("spins", "mixed", "triples"), preset="paper"),
        *_runs("lslp", ("spins", "mixed", "triples"), variant="free", epsilon=0.01),
        *_runs("lslp", ("spins", "tree"), sphere="off"),
        *_runs("lslp", ("spins", "potts", "pedigree"), sphere_block=20),
        *_runs("lslp", ("many", "smooth"), max_iterations=4),
        *_runs("lslp", ("large",), max_iterations=4, threads=2),
        *_runs("lslp", ("counted", "tallied"), starts=1),
        *_runs("lslp", ("tallied",), sphere="affine", epsilon=0.01),
    ],
    "branch and bound": [
        *_runs("branch", memory=16.0),
        *_runs("branch", ("pedigree", "mixed", "colouring", "dense", "spins20"), i_bound=4),
        *_runs("branch", ("dense", "mixed"), caching=False, i_bound=4),
        *_runs("branch", ("counted", "tallied"), i_bound=2),
    ],
    "soft consistency": [*_runs("wcsp", (*_ANY, "colouring", "bids"), local_search=1)],
    "moves": [
        *_runs("icm flips chains blocks"),
        *_runs("icm", ("many", "colouring"), starts=3),
        *_runs("flips", depth=2),
        *_runs("chains", breadth=2),
        *_runs("annealing", _ANY),
        *_runs("annealing", ("labels", "spins", "mixed"), rule="heat_bath", max_iterations=20),
    ],
    CERTAINTY: [*_runs("trws", ("spins", "mixed", "smooth"), margins=True)],
    "flow": [
        *_runs("maxflow", ("mask", "differing", "circuit", "gates"), max_iterations=1000),
        *_runs("qpbo", ("mask", "differing", "circuit", "gates", "spins", "hard"), rounds=1),
        *_runs("expansion", ("mask", "circuit", "priced", *_PAIRS)),
        *_runs("expansion", ("potts", "dense"), move="swap"),
        *_runs("fusion", ("mask", "potts", "spins"), crossover="flow", max_iterations=2),
    ],
    "decomposition": [
        *_runs("dd_sg psdd"),
        *_runs("dd_sg", ("spins", "mixed"), decomposition="factors", rule="polyak"),
        *_runs("dd_sg", ("spins", "mixed"), rule="diminishing", decode="majority"),
        *_runs("psdd", ("spins",), rule="level", primal="last"),
    ],
    "clusters": [
        *_runs("mplp_c", max_iterations=60),
        *_runs("mplp_c", ("mixed", "spins20"), triplets=False, max_iterations=200),
        *_runs("mplp_c", ("dense", "labels"), cycles=False, max_iterations=60),
    ],
    "restarts": [
        *_runs("restarts"),
        *_runs("restarts", ("spins", "mixed"), move="blocks"),
        *_runs("restarts", ("spins", "mixed"), move="flips"),
        *_runs("restarts", ("protein",), temperature=0.5),
        *_runs("restarts", ("tree",), move="chains"),
        *_runs("fusion", max_iterations=3),
        *_runs("fusion", ("spins", "mixed"), descent="flips", max_iterations=3),
        *_runs("fusion", ("spins", "mixed"), descent="blocks", max_iterations=3),
    ],
    "AD3": [
        *_runs("ad3"),
        *_runs("ad3", ("spins", "mixed", "pedigree"), branch_and_bound=True, max_iterations=300),
        *_runs("ad3", ("potts",), relaxation=1.5),
        *_runs("ad3", ("tallied",), branch_and_bound=True, max_iterations=300),
        *_runs("l2box", _PAIRS),
    ],
    "programs": [
        *_runs("cuts", ("spins20", "potts", "mixed", "pedigree", "labels", "protein"), solver="highs", rounds=3),
        *_runs("lp", ("spins", "hard", "pedigree", "mixed")),
    ],
    "spins": [
        *_runs("tabu sdp", ("spins", "dense", "circuit", "differing")),
        *_runs("tabu", ("dense",), trajectories=3, max_iterations=1000),
        *_runs("sdp", ("spins",), max_iterations=1000),
        *_runs("sdp", ("spins20",), cut_spins=0),
    ],
    "constraints": [*_runs("icm tabu", ("counted",))],
}
"""Runs that share kernels are in one group, compiled by one process. The longest come first."""

AUTO: list[Run] = [
    *_runs("auto", (*_ANY, "colouring", "spins20"), max_iterations=60),
    *_runs("auto", ("many",), max_iterations=8),
    *_runs("auto", ("unsolvable",), max_iterations=12),
]
"""Most kernels of `auto` are those of other methods, so it comes last."""


def compile_group(name: str) -> str:
    """Do the runs of a group, or of `auto`."""
    import mapmrf

    graphs: dict[str, FactorGraph] = {}
    unlisted = _runs(name) if name in unlisted_methods() else []  # so that new methods ship compiled as well
    for method, model, options in AUTO if name == "auto" else [*GROUPS.get(name, ()), *unlisted]:
        if model not in graphs:
            graphs[model] = MODELS[model]()
        with suppress(mapmrf.UnsupportedModel):
            mapmrf.solve(graphs[model], method, **options)
    if name == CERTAINTY:
        for graph in graphs.values():
            _ask(graph)
    return name


def _ask(graph: FactorGraph) -> None:
    """Compute several labellings and max-marginals in every way, and drop states as certificates do."""
    import mapmrf
    from mapmrf.engines.reduction.simplify import StateDrops, drop_states
    from mapmrf.model.problem import Problem
    from mapmrf.questions.ranked import SolveCalls, rank_by_passes

    mapmrf.solve_best(graph, 3, "branch", memory=16.0)
    rank_by_passes(graph, 3, SolveCalls(mapmrf.Branch(), seed=0, threads=1))
    mapmrf.max_marginals(graph, "icm", memory=0)
    lam_e = np.zeros(int(graph.card[graph.scope].sum()))
    drop_states(StateDrops.of(Problem.compile(graph)), lam_e, np.isfinite(graph.theta_v), -np.inf)


def unlisted_methods() -> list[str]:
    """Methods with kernels that no group lists."""
    from mapmrf.run.registry import method_names

    listed = {method for runs in GROUPS.values() for method, _, _ in runs} | {"auto", "exhaustive", "toulbar2"}
    return [name for name in method_names() if name not in listed]


def compile_all(jobs: int, listener: Callable[[int, int, str], None] = lambda done, total, name: None) -> None:
    """Compile missing kernels in `jobs` processes; the listener is called after every group."""
    groups = [*GROUPS, *unlisted_methods()]
    total = len(groups) + 1
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(jobs, mp_context=context) as pool:
        try:
            waiting = {pool.submit(compile_group, name) for name in groups}
            done = 0
            while waiting:
                ended, waiting = wait(waiting, return_when=FIRST_COMPLETED)
                for future in ended:
                    done += 1
                    listener(done, total, future.result())
            listener(total, total, pool.submit(compile_group, "auto").result())
        except BaseException:
            for process in list((pool._processes or {}).values()):
                process.kill()
            raise


def build_archive(path: Path, jobs: int) -> int:
    """Compile all kernels for the baseline CPU of this architecture into an archive; return their number."""
    # The process must not have imported numba yet, which reads the name of the target CPU on import.
    from mapmrf.compilation.store import baseline, lacks, user_store, write_archive

    base = baseline()
    if base is None:
        raise RuntimeError(f"there is no baseline for the architecture {platform.machine()}")
    if lacks(base.cpu):
        raise RuntimeError(lacks(base.cpu))
    if "numba" in sys.modules:
        raise RuntimeError("numba is already loaded")
    with tempfile.TemporaryDirectory() as folder:
        os.environ.update(
            NUMBA_CPU_NAME=base.cpu, NUMBA_CPU_FEATURES="", NUMBA_CACHE_DIR=folder, MAPMRF_KERNELS="compile"
        )
        compile_all(jobs, _Estimate().tell)
        return write_archive(path, base.cpu, (entry for entry in user_store().entries() if _is_ours(*entry)))


class _Estimate:
    """Says how many groups of kernels are compiled, and how long the rest will take if it goes on like this."""

    def __init__(self) -> None:
        self.began = time.monotonic()

    def tell(self, done: int, total: int, name: str) -> None:
        spent = time.monotonic() - self.began
        left = f", about {spent * (total - done) / done:.0f} s left" if done < total else ""
        print(f"mapmrf: compiled {done} of {total} groups of kernels in {spent:.0f} s{left}: {name}")


def _is_ours(key: Key, made_from: str, code: bytes) -> bool:
    """Return whether code is that of a kernel of this package, and can be loaded."""
    module, _, name = key.name.rpartition(".")
    kernel = getattr(importlib.import_module(module), name) if module.startswith("mapmrf.") else None
    return kernel is not None and kernel.stamp == made_from and callable(machine_code.load(code))


def main(path: str, jobs: int) -> None:
    print("mapmrf: compiling all kernels for this platform, which takes some minutes", flush=True)
    print(f"mapmrf: {build_archive(Path(path), jobs)} kernels")


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
