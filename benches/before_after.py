"""Compare two source trees of mapmrf in one run: same answers, same speed, same time to compile.

    python benches/before_after.py BEFORE_SRC AFTER_SRC [--methods lslp trws] [--models grid80] [--answers-only]

Each tree runs in its own worker process, with the same interpreter; the workers take turns, so that other work on
the machine hits both. Every case is a method on a model with a fixed number of iterations and no time limit. An answer
is the digest of the labels, value, bound, relaxed value, iterations and status. A field that already varies from run to
run in the tree before (HiGHS and SCIP use their own threads, and steps of `auto` wait for them) is not compared.

Times are processor times, the smallest of several repeats. Where a method iterates, a short run is subtracted from a
long one, so that reading and starting do not count. With `--kernels` only the time within compiled kernels counts, as
their Python callers see it. Kernels are timed as a user has them, loaded and not compiled in the same process, where
calls between kernels may go to other copies of the code. The exit status is 1 if an answer differs.
"""

from __future__ import annotations

import argparse
import gc
import hashlib
import json
import math
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, nullcontext
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

FIELDS = ("model", "error", "labels", "value", "bound", "relaxed", "iterations", "status")
LEAST_SECONDS = 0.1
"""Processor time that a measurement should take at least: short solves are repeated within it."""
CLOSE, MOST_ROUNDS = 0.03, 3
"""A case whose times differ by more than this share is repeated so many times as often as asked for."""
RETRIES = 3
"""Further runs of a case whose answers differ, to see whether they vary within the tree before."""
REAL_FILES = {
    "file:grids": "grids/grid40x40.f10.uai.gz",
    "file:protein": "protein/didNotconverge4.uai.gz",
    "file:segmentation2": "segmentation2/3_20_s.binary.uai.gz",
    "file:segmentation21": "segmentation21/*.uai.gz",
    "file:scene": "scene/0000047.uai.gz",
    "file:pedigree": "families/linkage-pedigree1.uai.gz",
    "file:detection": "families/detection-deer_rescaled_1002.K10.F100.model.uai.gz",
}

# -- models ---------------------------------------------------------------------------------------------------------


def lattice(side: int) -> np.ndarray:
    """Pairs of neighbours of a square grid."""
    place = np.arange(side * side).reshape(side, side)
    across = np.stack([place[:, :-1].ravel(), place[:, 1:].ravel()], axis=1)
    return np.concatenate([across, np.stack([place[:-1].ravel(), place[1:].ravel()], axis=1)])


def spins(side: int) -> Any:
    from mapmrf.datasets import grid

    return grid(side, side, 3.0, seed=0)


def potts() -> Any:
    from mapmrf.datasets import potts_image

    return potts_image(40, 50, labels=3, noise=1.2, smoothness=0.8, seed=0).graph


def random_pairs(n_states: int, edges: np.ndarray, strength: float, hard: float = 0.0) -> Any:
    """Normal potentials on given pairs; `hard` is the share of forbidden entries, of which labelling 0 has none."""
    import mapmrf

    rng = np.random.default_rng(0)
    unary = rng.normal(size=(int(edges.max()) + 1, n_states))
    tables = strength * rng.normal(size=(len(edges), n_states, n_states))
    forbidden = rng.random(tables.shape) < hard
    forbidden[:, 0, 0] = False
    tables[forbidden] = -np.inf
    return mapmrf.FactorGraph.from_pairwise(unary, edges, tables)


def colouring() -> Any:
    """Four colours on a grid with diagonals: neighbours must differ."""
    import mapmrf

    rng, side = np.random.default_rng(0), 16
    place = np.arange(side * side).reshape(side, side)
    diagonal = np.stack([place[:-1, :-1].ravel(), place[1:, 1:].ravel()], axis=1)
    differ = np.where(np.eye(4, dtype=bool), -np.inf, 0.0)
    return mapmrf.FactorGraph.from_pairwise(
        rng.normal(size=(side * side, 4)), np.concatenate([lattice(side), diagonal]), differ
    )


def triples() -> Any:
    """Binary variables in random factors of three."""
    import mapmrf

    rng, n = np.random.default_rng(0), 300
    scopes = [(i,) for i in range(n)] + [tuple(rng.choice(n, 3, replace=False).tolist()) for _ in range(600)]
    return mapmrf.FactorGraph.from_tables(
        np.full(n, 2), scopes, [rng.normal(size=(2,) * len(scope)) for scope in scopes]
    )


def protein() -> Any:
    """Variables of 2 to 20 states, a sixth of all pairs, a few clashes."""
    import mapmrf

    rng, n = np.random.default_rng(0), 60
    card = rng.integers(2, 21, n)
    pairs = [(i, j) for i in range(n) for j in range(i + 1, n) if j == i + 1 or rng.random() < 0.16]
    scopes = [(i,) for i in range(n)] + pairs
    tables = [rng.gumbel(size=card[list(scope)]) for scope in scopes]
    for table in tables[n::3]:
        table[rng.random(table.shape) < 0.05] -= 50.0
    return mapmrf.FactorGraph.from_tables(card, scopes, tables)


def tree() -> Any:
    """Three states, each variable hung on a random earlier one."""
    rng, n = np.random.default_rng(0), 2000
    return random_pairs(3, np.array([[rng.integers(max(0, i - 50), i), i] for i in range(1, n)]), 1.0)


def dense() -> Any:
    return random_pairs(2, np.array([(i, j) for i in range(80) for j in range(i + 1, 80)]), 1.0)


def pedigree() -> Any:
    """A Bayesian network: conditional tables of up to two parents, some of them deterministic."""
    import mapmrf

    rng, n = np.random.default_rng(0), 150
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
    return mapmrf.FactorGraph.from_tables(card, scopes, tables)


def mixed(n_vars: int, n_factors: int) -> Any:
    """Factors of two to four variables of two to four states, a tenth of all entries forbidden."""
    from mapmrf.datasets import random_graph

    return random_graph(n_vars, n_factors, states=(2, 4), arity=(2, 4), hard=0.1, seed=3)


MODELS: dict[str, Callable[[], Any]] = {
    "grid4": lambda: spins(4),
    "grid20": lambda: spins(20),
    "grid80": lambda: spins(80),
    "grid300": lambda: spins(300),
    "labels21": lambda: random_pairs(21, lattice(15), 2.0),
    "potts3": potts,
    "triples": triples,
    "protein": protein,
    "hard": lambda: random_pairs(5, lattice(14), 1.0, hard=0.05),
    "colouring": colouring,
    "tree": tree,
    "dense": dense,
    "pedigree": pedigree,
    "mixed": lambda: mixed(80, 140),
    "small": lambda: mixed(30, 45),
}


def build(name: str, data: str) -> Any:
    """A generated model, or the one in a file below the folder `data`."""
    if name in MODELS:
        return MODELS[name]()
    import mapmrf

    return mapmrf.read(min(Path(data).glob(REAL_FILES[name])))


# -- cases ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Case:
    """A method on a model: iterations of the long run, and of the short one that is taken off it (0: none)."""

    method: str
    model: str
    iterations: int
    short: int = 0
    options: dict[str, Any] = field(default_factory=dict)

    @property
    def title(self) -> str:
        """The method with its options."""
        return " ".join([self.method, *(f"{key}={value}" for key, value in self.options.items())])


OPEN: dict[str, dict[str, Any]] = {
    "bp": {"tol": 0.0},
    "trbp": {"tol": 0.0},
    "trws": {"tol": 0.0},
    "mplp": {"tol": 0.0},
    "adsal": {"tol": 0.0},
    "dd_sg": {"patience": 10**9},
    "psdd": {"patience": 10**9},
    "ad3": {"primal_tol": 1e-300, "dual_tol": 1e-300},
    "lslp": {"tol": 1e-300, "stop": "plain", "starts": 1, "lp_phase": False},
    "l2box": {"tol": 0.0, "history": 0},
}
"""Options that keep a run from ending early."""

BUDGETS: dict[str, dict[str, tuple[int, int]]] = {
    "bp": {"grid80": (800, 20), "grid300": (60, 4), "labels21": (400, 20), "triples": (1500, 50), "mixed": (1500, 50)},
    "trbp": {
        "grid80": (900, 20),
        "grid300": (60, 3),
        "labels21": (300, 10),
        "triples": (1200, 50),
        "mixed": (1200, 50),
    },
    "trws": {
        "grid80": (150, 5),
        "grid300": (50, 4),
        "labels21": (200, 20),
        "triples": (400, 50),
        "hard": (500, 50),
        "mixed": (1000, 50),
        "protein": (500, 10),
    },
    "mplp": {"grid80": (300, 20), "grid300": (16, 4), "labels21": (300, 10), "triples": (800, 50), "mixed": (1000, 50)},
    "adsal": {"grid80": (30, 10), "grid300": (16, 2), "labels21": (30, 10), "triples": (150, 30), "hard": (150, 30)},
    "dd_sg": {"grid80": (150, 20), "grid300": (16, 4), "labels21": (200, 20), "triples": (800, 50), "mixed": (900, 0)},
    "psdd": {"grid80": (150, 20), "grid300": (12, 4), "labels21": (300, 20), "triples": (800, 50), "mixed": (500, 0)},
    "ad3": {
        "grid80": (500, 20),
        "grid300": (40, 4),
        "labels21": (100, 10),
        "triples": (500, 50),
        "hard": (1000, 0),
        "protein": (200, 0),
        "pedigree": (1000, 0),
        "mixed": (500, 0),
    },
    "lslp": {
        "grid80": (500, 20),
        "grid300": (40, 4),
        "labels21": (100, 10),
        "potts3": (200, 20),
        "triples": (500, 50),
        "hard": (1000, 0),
        "protein": (200, 0),
        "dense": (3000, 20),
        "pedigree": (1000, 0),
        "mixed": (500, 0),
    },
    "l2box": {"grid80": (60, 10), "labels21": (40, 10), "potts3": (60, 10), "hard": (500, 20), "dense": (1000, 20)},
}
"""Iterations of the long and of the short run of the methods that iterate on large arrays."""

WHOLE: tuple[Case, ...] = (
    Case("icm", "grid300", 1000),
    Case("icm", "labels21", 1000, options={"starts": 50}),
    Case("icm", "triples", 1000, options={"starts": 50}),
    Case("icm", "pedigree", 1000, options={"starts": 20}),
    Case("flips", "grid80", 1000),
    Case("flips", "grid300", 1000, options={"depth": 1}),
    Case("flips", "triples", 1000),
    Case("flips", "labels21", 1000, options={"depth": 2}),
    Case("flips", "pedigree", 1000, options={"depth": 2}),
    Case("chains", "grid80", 1000),
    Case("chains", "labels21", 1000),
    Case("chains", "triples", 1000),
    Case("chains", "hard", 1000),
    Case("chains", "mixed", 1000, options={"breadth": 2}),
    Case("blocks", "grid80", 20),
    Case("blocks", "labels21", 5),
    Case("blocks", "triples", 20),
    Case("blocks", "pedigree", 10),
    Case("fusion", "grid20", 20),
    Case("fusion", "grid80", 3, options={"descent": "flips"}),
    Case("fusion", "triples", 5, options={"descent": "blocks"}),
    Case("fusion", "labels21", 3),
    Case("fusion", "hard", 5),
    Case("restarts", "grid80", 8),
    Case("restarts", "grid20", 50, options={"move": "blocks"}),
    Case("restarts", "triples", 50, options={"move": "flips"}),
    Case("restarts", "labels21", 3),
    Case("restarts", "protein", 20, options={"temperature": 0.5}),
    Case("restarts", "mixed", 20),
    Case("annealing", "grid80", 100),
    Case("annealing", "grid300", 5, options={"reads": 2}),
    Case("annealing", "labels21", 100, options={"rule": "heat_bath"}),
    Case("annealing", "dense", 1000),
    Case("annealing", "triples", 300),
    Case("annealing", "pedigree", 300),
    Case("branch", "grid20", 100),
    Case("branch", "tree", 300),
    Case("branch", "triples", 100, options={"memory": 64.0}),
    Case("branch", "protein", 60, options={"memory": 64.0}),
    Case("branch", "pedigree", 300, options={"i_bound": 6}),
    Case("branch", "dense", 100, options={"caching": False, "i_bound": 8}),
    Case("branch", "mixed", 300, options={"memory": 16.0}),
    Case("branch", "colouring", 100, options={"i_bound": 6}),
    Case("cuts", "grid20", 10**6, options={"solver": "highs"}),
    Case("cuts", "grid20", 10**6),
    Case("cuts", "potts3", 10**6, options={"rounds": 3, "solver": "highs"}),
    Case("cuts", "small", 10**6),
    Case("lp", "grid20", 10**6),
    Case("lp", "hard", 10**6),
    Case("lp", "pedigree", 10**6),
    Case("lp", "small", 10**6, options={"solver": "ipm"}),
    Case("lp", "tree", 10**6),
    Case("exhaustive", "grid4", 10**9),
    Case("mplp_c", "grid20", 300),
    Case("mplp_c", "hard", 200),
    Case("mplp_c", "triples", 100),
    Case("mplp_c", "labels21", 30),
    Case("mplp_c", "protein", 30),
    Case("mplp_c", "pedigree", 200),
    Case("auto", "grid20", 3000),
    Case("auto", "grid80", 60),
    Case("auto", "labels21", 80),
    Case("auto", "triples", 100),
    Case("auto", "protein", 100),
    Case("auto", "hard", 3000),
    Case("auto", "colouring", 40),
    Case("auto", "tree", 3000),
    Case("auto", "dense", 60),
    Case("auto", "pedigree", 60),
    Case("auto", "mixed", 60),
    Case("auto", "grid300", 12),
    Case("toulbar2", "grid4", 10**9),
)
"""Methods whose runs are timed as a whole."""

VARIANTS: tuple[Case, ...] = (
    Case("bp", "grid20", 100, options={"schedule": "sequential"}),
    Case("bp", "mixed", 100, options={"schedule": "sequential", "decode": "argmax"}),
    Case("bp", "tree", 1000),
    Case("bp", "colouring", 200),
    Case("trbp", "grid20", 100, options={"schedule": "sequential", "weights": "uniform"}),
    Case("trbp", "tree", 1000, options={"weights": "degree"}),
    Case("trbp", "hard", 200),
    Case("trws", "tree", 100),
    Case("trws", "colouring", 300, options={"order": "breadth_first"}),
    Case("trws", "pedigree", 300, options={"order": "given", "decode_every": 3}),
    Case("adsal", "mixed", 200, options={"order": "breadth_first"}),
    Case("adsal", "tree", 200),
    Case("mplp", "hard", 300, options={"order": "model", "schedule": "forward"}),
    Case("mplp", "pedigree", 300, options={"order": "random"}),
    Case("mplp", "tree", 300),
    Case("dd_sg", "grid20", 300, options={"decomposition": "factors", "rule": "polyak"}),
    Case("dd_sg", "hard", 300, options={"rule": "diminishing", "decode": "majority"}),
    Case("dd_sg", "tree", 300, options={"decode": "average"}),
    Case("psdd", "grid20", 300, options={"rule": "level", "primal": "last"}),
    Case("psdd", "hard", 300),
    Case("psdd", "tree", 300),
    Case("ad3", "grid20", 3000, options={"branch_and_bound": True}),
    Case("ad3", "mixed", 1000, options={"branch_and_bound": True, "node_order": "depth"}),
    Case("ad3", "tree", 1000),
    Case("ad3", "potts3", 2000, options={"relaxation": 1.5}),
    Case("lslp", "grid20", 2000),
    Case("lslp", "grid20", 2000, options={"preset": "paper"}),
    Case("lslp", "triples", 500, options={"preset": "paper", "variant": "free", "epsilon": 0.01}),
    Case("lslp", "hard", 500, options={"sphere": "factors"}),
    Case("lslp", "mixed", 500, options={"sphere": "affine", "relaxation": 1.4}),
    Case("lslp", "pedigree", 500, options={"sphere_block": 20, "starts": 3}),
    Case("lslp", "tree", 500, options={"sphere": "off"}),
    Case("lslp", "potts3", 500, options={"start_from": "onehot", "freeze_after": 50, "read_out": "last"}),
    Case("l2box", "grid20", 500),
    Case("l2box", "protein", 200),
    Case("l2box", "colouring", 300),
    Case("icm", "colouring", 1000, options={"init": "zeros", "starts": 5}),
    Case("restarts", "tree", 5, options={"move": "chains"}),
    Case("mplp_c", "mixed", 200, options={"triplets": False}),
    Case("mplp_c", "dense", 60, options={"cycles": False}),
    Case("lp", "triples", 10**6, options={"presolve": True}),
    Case("lp", "mixed", 10**6, options={"solver": "choose"}),
    Case("toulbar2", "pedigree", 10**9),
)
"""Other options and models: their answers are compared, their time is not."""

REAL: tuple[Case, ...] = (
    Case("lslp", "file:grids", 300, 20, {"tol": 1e-300, "stop": "plain", "starts": 1, "lp_phase": False}),
    Case("lslp", "file:protein", 15, 5, {"tol": 1e-300, "stop": "plain", "starts": 1, "lp_phase": False}),
    Case("lslp", "file:segmentation2", 200),
    Case("lslp", "file:segmentation21", 50),
    Case("ad3", "file:scene", 100),
    Case("ad3", "file:protein", 15, 5),
    Case("trws", "file:segmentation21", 100),
    Case("trws", "file:protein", 60, 10, {"tol": 0.0}),
    Case("mplp", "file:protein", 40, 10, {"tol": 0.0}),
    Case("bp", "file:detection", 20),
    Case("chains", "file:protein", 1000),
    Case("blocks", "file:grids", 20),
    Case("branch", "file:pedigree", 100),
    Case("mplp_c", "file:protein", 20),
    Case("auto", "file:scene", 3000),
    Case("auto", "file:segmentation2", 3000),
    Case("auto", "file:segmentation21", 10),
    Case("auto", "file:pedigree", 20),
    Case("auto", "file:detection", 5),
)


def timed_cases(data: str) -> list[Case]:
    """All cases whose time is compared."""
    loops = [
        Case(method, model, high, low, OPEN[method])
        for method, budgets in BUDGETS.items()
        for model, (high, low) in budgets.items()
    ]
    return [*loops, *WHOLE, *(REAL if data else ())]


def chosen(cases: Iterable[Case], args: argparse.Namespace) -> list[Case]:
    """The cases of the methods and models that were asked for."""
    return [
        case
        for case in cases
        if (not args.methods or case.method in args.methods) and (not args.models or case.model in args.models)
    ]


# -- the worker -----------------------------------------------------------------------------------------------------


def answer(graph: Any, case: Case, iterations: int) -> dict[str, Any]:
    """What a run found, or why it failed."""
    import mapmrf

    try:
        result = mapmrf.solve(graph, case.method, max_iterations=iterations, seed=1, **case.options)
    except Exception as error:  # the two trees may well fail alike
        return {"error": f"{type(error).__name__}: {error}".splitlines()[0]}
    return {
        "labels": hashlib.sha256(np.ascontiguousarray(result.labels, dtype=np.int64).tobytes()).hexdigest()[:16],
        "value": result.value,
        "bound": result.bound,
        "relaxed": result.relaxed_value,
        "iterations": result.iterations,
        "status": result.status.value,
    }


def digest(graph: Any) -> str:
    """Digest of the model itself: the trees must generate, or read, the same one."""
    arrays = (graph.card, graph.theta_v, graph.scope_ptr, graph.scope, potentials(graph))
    return hashlib.sha256(b"".join(np.asarray(x, dtype=np.float64).tobytes() for x in arrays)).hexdigest()[:16]


def potentials(graph: Any) -> np.ndarray:
    """All entries of all factors: one tree may store a table and weights where the other stores tables."""
    sizes = np.diff(graph.table_ptr)[graph.table_of].astype(np.int64)
    shift = np.repeat(graph.table_ptr[graph.table_of] - np.append(0, np.cumsum(sizes))[:-1], sizes)
    entries = graph.theta_t[np.arange(sizes.sum()) + shift]
    weight = getattr(graph, "weight", None)
    return (entries if weight is None else entries * np.repeat(weight, sizes)) + 0.0


class Compilations:
    """Counts numba's compilations of our kernels, and the processor time of all compilations that are not nested."""

    def __init__(self) -> None:
        from numba.core import event

        self.count, self.seconds, self.depth, self.began = 0, 0.0, 0, 0.0
        outer = self

        class Listener(event.Listener):
            def on_start(self, event: Any) -> None:
                outer.begin(event.data["dispatcher"].py_func.__module__)

            def on_end(self, event: Any) -> None:
                outer.end()

        event.register("numba:compile", Listener())

    def begin(self, module: str) -> None:
        """Count a compilation of a kernel in `module`."""
        self.count += module.startswith("mapmrf")
        if self.depth == 0:
            self.began = time.process_time()
        self.depth += 1

    def end(self) -> None:
        """Add the time of an outermost compilation."""
        self.depth -= 1
        if self.depth == 0:
            self.seconds += time.process_time() - self.began


class KernelClock:
    """Processor time in the kernels that Python calls while the clock is entered; all must have been compiled before.

    Compiled code has its callees inside, so the names of kernels in our modules can stand for something else meanwhile.
    Kernels that evaluate labellings are left out: older trees do that in numpy, which does not count either.
    """

    def __init__(self) -> None:
        self.seconds = 0.0
        self.places: list[tuple[dict[Any, Any], Any, Any]] = []

    def __enter__(self) -> KernelClock:
        from numba.core.dispatcher import Dispatcher

        spaces = [vars(module) for name, module in sys.modules.items() if name.startswith("mapmrf.")]
        spaces += [table for space in spaces for table in space.values() if isinstance(table, dict)]
        for space in spaces:
            for name, kernel in list(space.items()):
                if isinstance(kernel, Dispatcher) and kernel.py_func.__module__ != "mapmrf.kernels.evaluation":
                    self.places.append((space, name, kernel))
                    space[name] = self.timed(kernel)
        return self

    def __exit__(self, *_: object) -> None:
        for space, name, kernel in self.places:
            space[name] = kernel

    def timed(self, kernel: Any) -> Any:
        """The kernel, its calls timed, also those without a look at the types."""

        def call(*args: Any) -> Any:
            began = time.thread_time()
            found = kernel(*args)
            self.seconds += time.thread_time() - began
            return found

        if hasattr(kernel, "entry"):
            call.entry = lambda args: self.timed(kernel.entry(args))  # type: ignore[attr-defined]
        return call


def work(data: str) -> None:
    """Serve requests, one JSON object per line, until standard input ends."""
    channel = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what solvers print goes elsewhere
    compilations = Compilations()
    graphs: dict[str, Any] = {}
    digests: dict[str, str] = {}
    for line in sys.stdin:
        request = json.loads(line)
        case = Case(**request["case"])
        if case.model not in graphs:
            graphs[case.model] = build(case.model, data)
            digests[case.model] = digest(graphs[case.model])
        gc.collect()
        clock = KernelClock()
        with clock if request["kernels"] else nullcontext():
            began = time.process_time()
            for _ in range(request["runs"]):
                found = answer(graphs[case.model], case, request["iterations"])
            seconds = (clock.seconds if request["kernels"] else time.process_time() - began) / request["runs"]
        reply = {"answer": {"model": digests[case.model], **found}, "seconds": seconds}
        reply |= {"compiled": compilations.count, "compile_seconds": compilations.seconds}
        print(json.dumps(reply), file=channel, flush=True)


class Worker:
    """A process that solves with the package of one tree.

    Kernels are cached by the tree's contents: numba itself does not notice when a kernel in another file has changed.
    """

    def __init__(self, source: Path, data: str, cache: str | None = None) -> None:
        cache = cache or str(Path(tempfile.gettempdir()) / f"mapmrf-kernels-{os.getuid()}" / tree_digest(source))
        environment = {**os.environ, "PYTHONPATH": str(source), "NUMBA_CACHE_DIR": cache, "MAPMRF_KERNELS": "compile"}
        command = [sys.executable, __file__, "--worker", str(source), str(source), "--data", data]
        pipe, void = subprocess.PIPE, subprocess.DEVNULL
        self.start = lambda: subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=void, text=True, env=environment)
        self.process, self.compiled = self.start(), 0

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def end(self) -> None:
        """Let the process end."""
        assert self.process.stdin
        self.process.stdin.close()
        self.process.wait()

    def renew(self) -> None:
        """Go on in another process, which loads what this one has compiled."""
        if self.compiled:
            self.end()
            self.process, self.compiled = self.start(), 0

    def run(self, case: Case, iterations: int, runs: int = 1, kernels: bool = False) -> dict[str, Any]:
        """Solve, `runs` times: the answer and the processor time of one, or the time of its kernels."""
        assert self.process.stdin and self.process.stdout
        request = {"case": asdict(case), "iterations": iterations, "runs": runs, "kernels": kernels}
        print(json.dumps(request), file=self.process.stdin, flush=True)
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit(f"the worker died in {case.title} on {case.model}")
        reply: dict[str, Any] = json.loads(line)
        self.compiled = reply["compiled"]
        return reply


def tree_digest(source: Path) -> str:
    """Digest of all Python files of a tree."""
    files = sorted((source / "mapmrf").rglob("*.py"))
    total = hashlib.sha256(str(source).encode())
    for path in files:
        total.update(str(path.relative_to(source)).encode() + path.read_bytes())
    return total.hexdigest()[:16]


# -- comparing ------------------------------------------------------------------------------------------------------


@dataclass
class Comparison:
    """The answers of both trees to a case, and its processor times per run."""

    case: Case
    before: list[dict[str, Any]] = field(default_factory=list)
    after: list[dict[str, Any]] = field(default_factory=list)
    times: tuple[float, float] | None = None

    def differences(self) -> list[str]:
        """Fields in which the trees differ, with the relative difference of numbers."""
        found = []
        for name in FIELDS:
            old, new = ({json.dumps(run.get(name)) for run in runs} for runs in (self.before, self.after))
            if len(old) == 1 and new != old:
                found.append(name + apart(json.loads(min(old)), json.loads(min(new - old))))
        return found

    def varying(self) -> list[str]:
        """Fields that vary within the tree before."""
        return [name for name in FIELDS if len({json.dumps(run.get(name)) for run in self.before}) > 1]

    @property
    def ratio(self) -> float | None:
        """Time after over time before."""
        return None if self.times is None or min(self.times) <= 0 else self.times[1] / self.times[0]


def apart(old: Any, new: Any) -> str:
    """What to say of two values that are not the same."""
    numbers = all(isinstance(x, int | float) and math.isfinite(x) for x in (old, new))
    if numbers:
        return f" {abs(new - old) / max(abs(old), abs(new)):.1e}"
    return f" {old} -> {new}" if len(f"{old}{new}") < 60 else f" -> {new}" if isinstance(new, str) else ""


def compare_answers(case: Case, workers: tuple[Worker, Worker]) -> Comparison:
    """Run a case once in each tree, and again where the answers differ."""
    found = Comparison(case)
    for _ in range(1 + RETRIES):
        for runs, worker in zip((found.before, found.after), workers, strict=True):
            runs.append(worker.run(case, case.iterations)["answer"])
        if found.before[-1] == found.after[-1] and len(found.before) == 1:
            break
    return found


def measure(found: Comparison, workers: tuple[Worker, Worker], repeats: int, kernels: bool) -> None:
    """Time a case: the smallest time of the long run less that of the short one, in each tree."""
    case = found.case
    lengths = [n for n in (case.short, case.iterations) if n]
    for worker in workers:
        for n in lengths:
            worker.run(case, n)  # compiles what is still to be compiled
        worker.renew()
    runs = []
    for n in lengths:
        once = max(min(worker.run(case, n)["seconds"] for _ in range(2)) for worker in workers)
        runs.append(min(200, max(1, math.ceil(LEAST_SECONDS / len(lengths) / max(once, 1e-4)))))
    least = np.full((2, len(lengths)), np.inf)
    for repeat in range(MOST_ROUNDS * repeats):
        for k, n in enumerate(lengths):
            for w in (0, 1) if (repeat + k) % 2 else (1, 0):
                reply = workers[w].run(case, n, runs[k], kernels)
                least[w, k] = min(least[w, k], reply["seconds"])
        times = least[:, -1] - (least[:, 0] if len(lengths) > 1 else 0.0)
        found.times = (float(times[0]), float(times[1]))
        if repeat + 1 == repeats and found.ratio is not None and abs(found.ratio - 1) <= CLOSE:
            break  # else all further rounds are made: stopping at the first ratio that pleases would bias it


def table_row(found: Comparison) -> str:
    """One case as a line of the table."""
    differences, varying = found.differences(), found.varying()
    verdict = "**differs**: " + ", ".join(differences) if differences else "same"
    if varying:
        verdict += f" (varies before: {', '.join(varying)})"
    error = found.before[0].get("error")
    if error and not differences:
        verdict += f" ({error.split(':')[0]})"
    cells = [found.case.method if found.case.options == OPEN.get(found.case.method) else found.case.title]
    cells += [found.case.model, verdict]
    if found.times is not None:
        ratio = found.ratio
        cells += [*(f"{1e3 * t:.1f}" for t in found.times), "" if ratio is None else f"{ratio:.3f}"]
    return "| " + " | ".join(cells) + " |"


def summary(rows: list[Comparison]) -> Iterator[str]:
    """How many answers differ, and the spread of the ratios."""
    yield f"{len(rows)} cases, {sum(bool(row.differences()) for row in rows)} differ."
    ratios = sorted((row.ratio, row.case.title, row.case.model) for row in rows if row.ratio is not None)
    if ratios:
        mean = math.exp(sum(math.log(ratio) for ratio, *_ in ratios) / len(ratios))
        worst = ratios[-1]
        yield f"Time after / before: geometric mean {mean:.3f}, largest {worst[0]:.3f} ({worst[1]} on {worst[2]}),"
        yield f"{sum(ratio > 1.03 for ratio, *_ in ratios)} of {len(ratios)} above 1.03."


def compare(args: argparse.Namespace) -> int:
    """Print the table; the exit status."""
    timed = chosen(timed_cases(args.data), args)
    untimed = chosen(VARIANTS, args)
    head = ["method", "model", "answer"] + ([] if args.answers_only else ["before, ms", "after, ms", "ratio"])
    print("| " + " | ".join(head) + " |\n" + "|---" * len(head) + "|")
    rows = []
    with Worker(args.before, args.data) as old, Worker(args.after, args.data) as new:
        for case in (*timed, *untimed):
            row = compare_answers(case, (old, new))
            if not args.answers_only and case not in untimed and case.method != "toulbar2":
                measure(row, (old, new), args.repeats, args.kernels)
            rows.append(row)
            print(table_row(row), flush=True)
    print("\n" + "\n".join(summary(rows)))
    return int(any(row.differences() for row in rows))


def compare_compiling(args: argparse.Namespace) -> int:
    """Print the time to compile all kernels that the cases of a method use, from an empty cache."""
    print("| method | kernels before | after | compiling before, s | after, s | ratio |\n|---|---|---|---|---|---|")
    totals = np.zeros((2, 2))
    cases = chosen((*timed_cases(args.data), *VARIANTS), args)
    for method in dict.fromkeys(case.method for case in cases):
        with ExitStack() as stack:
            figures = np.zeros((2, 2))
            for w, source in enumerate((args.before, args.after)):
                cache = stack.enter_context(tempfile.TemporaryDirectory())
                worker = stack.enter_context(Worker(source, args.data, cache))
                for case in cases:
                    if case.method == method:
                        reply = worker.run(case, case.short or case.iterations)
                        figures[w] = reply["compiled"], reply["compile_seconds"]
        totals += figures
        print(compile_row(f"`{method}`", figures), flush=True)
    print(compile_row("all", totals))
    return 0


def compile_row(title: str, figures: np.ndarray) -> str:
    (n_old, old), (n_new, new) = figures
    return f"| {title} | {n_old:.0f} | {n_new:.0f} | {old:.1f} | {new:.1f} | {new / old if old else 1:.3f} |"


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("before", type=lambda text: Path(text).resolve(), help="folder with the old package")
    options.add_argument("after", type=lambda text: Path(text).resolve(), help="folder with the new package")
    options.add_argument("--methods", nargs="+", help="only these methods")
    options.add_argument("--models", nargs="+", help=f"only these models: {', '.join((*MODELS, *REAL_FILES))}")
    options.add_argument("--repeats", type=int, default=5)
    options.add_argument("--answers-only", action="store_true", help="do not measure times")
    options.add_argument("--kernels", action="store_true", help="count only the time within kernels")
    options.add_argument("--compile", action="store_true", help="measure compiling from an empty cache instead")
    options.add_argument("--data", default="", help="folder of the benchmark models, to use some of them as well")
    options.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    args = options.parse_args()
    if args.worker:
        work(args.data)
        return 0
    for source in (args.before, args.after):
        if not (source / "mapmrf").is_dir():
            options.error(f"{source} has no folder mapmrf")
    return compare_compiling(args) if args.compile else compare(args)


if __name__ == "__main__":
    sys.exit(main())
