"""Runners of other packages (extra `peers`): those of `mapmrf.bench`, toulbar2, CP-SAT, D-Wave's tabu, graph cuts.

CP-SAT of OR-Tools gets its own constraints and one worker: pairs that must differ become differences of integer
variables, forbidden configurations clauses; other potentials are products as 0/1 variables, rounded to millionths.

On pictures all packages get the same unaries, weights of pairs and table of smoothness. *Build* is the time from these
arrays to the package's own model, *solve* that until the labelling is there. gco supports only integers and gets
energies rounded to a millionth of the largest. The random walker of scikit-image minimises another function, from the
scribbles alone; its labelling is shown with its value in our model, and is not a competitor in that.
"""

from __future__ import annotations

import functools
import importlib.util
import itertools
import math
import multiprocessing
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from typing import Any

import numpy as np

import mapmrf
from mapmrf import FactorGraph
from mapmrf.arrays import Ints
from mapmrf.bench import peers
from mapmrf.constraints import ConstraintKind
from mapmrf.errors import UnsupportedModel
from models import Picture, differ, picture
from runners import Clock, Record, Task, recorded, solve

MILLION = 1_000_000
"""Units of a log potential for CP-SAT, and gco's largest energy."""


def needed(module: str) -> None:
    if importlib.util.find_spec(module) is None:
        raise UnsupportedModel(f"{module} is not installed")


@functools.cache
def _process(name: str) -> ProcessPoolExecutor:
    """The process of a peer; it is kept, so that imports and compiled code are reused for all models."""
    return ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn"))


def peer(task: Task, name: str) -> Record:
    """A peer of `mapmrf.bench.peers`, in a process of its own: some cannot be loaded together."""
    if name not in peers.installed():
        raise UnsupportedModel(peers.advice([name]))
    clock = Clock()
    asked = (name, task.graph, task.seconds, task.seed)
    return recorded(_process(name).submit(peers.solve_with, *asked).result(), clock)


def toulbar2(task: Task) -> Record:
    """The faster one of toulbar2's hybrid and depth-first searches, without the start of its process."""
    records = [solve(task, "toulbar2", search=search) for search in ("hbfs", "dfs")]
    best = min(records, key=lambda record: (record["proof s"], -record["value"]))
    _, start = toulbar2_start()
    return {**best, **{name: max(0.005, best[name] - start) for name in ("processor s", "proof s")}}


def toulbar2_dfs(task: Task) -> Record:
    """Depth-first search, without the start of its process."""
    start, _ = toulbar2_start()
    record = solve(replace(task, time_limit=task.seconds + start), "toulbar2", search="dfs")
    return {**record, "trace": [(max(0.0, at - start), value, phase) for at, value, phase in record["trace"]]}


def fresh(task: Task, method: str, **options: Any) -> Record:
    """A method in a process of its own for every model, in which what it needs has been loaded."""
    small = mapmrf.datasets.grid(5, 5, coupling=1.0, seed=0)
    run = functools.partial(mapmrf.solve, method=method, **options)
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as process:
        process.submit(run, small).result()
        clock = Clock()
        return recorded(process.submit(run, task.graph, time_limit=task.seconds).result(), clock)


@functools.cache
def toulbar2_start() -> tuple[float, float]:
    """Seconds of toulbar2 on a model of two variables, by the clock and of the processor."""
    pair, spent = mapmrf.datasets.grid(1, 2), []
    for _ in range(3):
        clock = Clock()
        mapmrf.solve(pair, "toulbar2")
        spent.append(clock.spent())
    wall, processor = np.min(spent, axis=0).tolist()
    return wall, processor


def dwave_tabu(task: Task) -> Record:
    needed("dwave")
    weights = np.array([task.graph.table(a)[0, 1] for a in range(task.graph.n_factors)])
    pairs = task.graph.scope.reshape(-1, 2)
    trace = _process("dwave").submit(_tabu, task.graph.n_vars, pairs, weights, task.seconds).result()
    return {"value": trace[-1][1], "status": "time_limit", "processor s": task.seconds, "trace": trace}


def _tabu(n: int, pairs: np.ndarray, weights: np.ndarray, seconds: float) -> list[tuple[float, float, str]]:
    """Improvements of a tabu search that goes on from its best state."""
    import dimod
    from dwave.samplers import TabuSampler

    coupled = (pairs[:, 0], pairs[:, 1], weights / 2)
    model = dimod.BQM.from_numpy_vectors(np.zeros(n), coupled, -weights.sum() / 2, "SPIN")
    began, trace, state = time.process_time(), [(0.0, -math.inf, "tabu")], {}
    for seed in itertools.count():
        found = TabuSampler().sample(model, num_reads=1, timeout=500, seed=seed, **state)
        if -found.first.energy > trace[-1][1]:
            trace.append((time.process_time() - began, -found.first.energy, "tabu"))
            state = {"initial_states": found.first.sample}
        if time.process_time() - began > seconds:
            break
    return trace


def cpsat(task: Task) -> Record:
    needed("ortools")
    value, proven, seconds = _process("cpsat").submit(_cpsat, task.graph, task.seconds).result()
    feasible = value > -math.inf
    status = "time_limit" if not proven else "optimal" if feasible else "infeasible"
    record = {"value": value, "proven": proven, "feasible": feasible, "status": status, "seconds": seconds}
    return {**record, "decided": proven or feasible, "decision s": seconds}


def _cpsat(graph: FactorGraph, seconds: float) -> tuple[float, bool, float]:
    """The value found, whether the answer is proven, and the seconds, the time to build the model included."""
    from ortools.sat.python import cp_model

    began = time.perf_counter()
    model, solver = cp_model.CpModel(), cp_model.CpSolver()
    tables = (graph.table(a) for a in range(graph.n_factors))
    differences = graph.constraints is None and all(np.array_equal(table, differ(len(table))) for table in tables)
    x = _differences(model, graph, cp_model) if differences else _literals(model, graph)
    solver.parameters.num_workers = 1
    solver.parameters.max_time_in_seconds = seconds
    status = solver.solve(model)
    spent = time.perf_counter() - began
    if status not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
        return -math.inf, status == cp_model.INFEASIBLE, spent
    if differences:
        labels = [solver.value(one) for one in x]
    else:
        labels = [[solver.boolean_value(one) for one in states].index(True) for states in x]
    return graph.value(labels), status == cp_model.OPTIMAL, spent


def _differences(model: Any, graph: FactorGraph, cp_model: Any) -> list[Any]:
    """An integer variable for every variable, with its allowed states; the unary potentials are 0 or -inf."""
    x = []
    for begin, end in itertools.pairwise(graph.var_ptr):
        states = np.flatnonzero(graph.theta_v[begin:end] > -np.inf).tolist()
        x.append(model.new_int_var_from_domain(cp_model.Domain.from_values(states), ""))
    for i, j in graph.scope.reshape(-1, 2).tolist():
        model.add(x[i] != x[j])
    return x


def _literals(model: Any, graph: FactorGraph) -> list[list[Any]]:
    """A literal for every state; the potentials and constraints are stated with these."""
    x = [[model.new_bool_var("") for _ in range(r)] for r in graph.card.tolist()]
    for states in x:
        model.add_exactly_one(states)
    terms = [(round(MILLION * gain), literal) for gain, literal in _terms(model, graph, x) if math.isfinite(gain)]
    _add_constraints(model, graph, x)
    if any(gain for gain, _ in terms):
        model.maximize(sum(gain * literal for gain, literal in terms))
    return x


def _terms(model: Any, graph: FactorGraph, x: list[list[Any]]) -> Iterator[tuple[float, Any]]:
    """Potentials with the literals that earn them; a product gets a literal of its own, what is forbidden a clause."""
    for gain, literal in zip(graph.theta_v.tolist(), itertools.chain.from_iterable(x), strict=True):
        if gain == -math.inf:
            model.add_bool_and([literal.Not()])
        yield gain, literal
    for a in range(graph.n_factors):
        scope, table = graph.scope_of(a).tolist(), graph.table(a)
        for config in np.argwhere(table != 0.0).tolist():
            literals = [x[i][k] for i, k in zip(scope, config, strict=True)]
            if table[tuple(config)] == -math.inf:
                model.add_bool_or([literal.Not() for literal in literals])
                continue
            product = model.new_bool_var("")
            model.add_bool_or([product, *(literal.Not() for literal in literals)])
            for literal in literals:
                model.add_implication(product, literal)
            yield float(table[tuple(config)]), product


def _add_constraints(model: Any, graph: FactorGraph, x: list[list[Any]]) -> None:
    stated = graph.constraints
    for c in range(0 if stated is None else len(stated)):
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


Found = tuple[Ints, tuple[float, float], tuple[float, float]]
"""A labelling, and seconds to build and to solve its model, by the clock and of the processor."""


def image_peer(task: Task, module: str, **options: Any) -> Record:
    needed(module)
    labels, built, solved = BY_MODULE[module](picture(task.model.group, task.scale), **options)
    processor = solved[1] + (0.0 if math.isnan(built[1]) else built[1])
    return {"value": task.graph.value(labels), "build s": built[0], "seconds": solved[0], "processor s": processor}


def by_maxflow(case: Picture) -> Found:
    """The minimum cut of PyMaxflow for two labels, its alpha-expansion for even weights on straight neighbours."""
    package = importlib.import_module("maxflow")
    if case.n_labels > 2:
        if not isinstance(case.weight, float) or case.neighbours is not None:
            raise UnsupportedModel("PyMaxflow expands labels on grids of one weight only")
        expand = importlib.import_module("maxflow.fastmin").aexpansion_grid
        clock = Clock()
        labels = expand(-case.unary, case.weight * case.table)
        return labels.ravel(), (math.nan, math.nan), clock.lap()
    clock = Clock()
    weights = case.weights()
    network = package.GraphFloat(math.prod(case.shape), len(weights) * math.prod(case.shape))
    nodes = network.add_grid_nodes(case.shape)
    for offset, array in weights.items():
        full = np.zeros(case.shape)
        full[tuple(slice(max(0, -o), -o if o > 0 else None) for o in offset)] = array
        structure = np.zeros((3,) * len(offset))
        structure[tuple(1 + o for o in offset)] = 1
        network.add_grid_edges(nodes, full, structure=structure, symmetric=True)
    network.add_grid_tedges(nodes, -case.unary[..., 1], -case.unary[..., 0])
    built = clock.lap()
    network.maxflow()
    return np.asarray(network.get_grid_segments(nodes), dtype=np.int64).ravel(), built, clock.lap()


def by_gco(case: Picture, start: bool = False) -> Found:
    """Alpha-expansion of gco until no label improves; with `start`, from the best label of every pixel on its own."""
    network = importlib.import_module("gco").GCO()
    scope = case.graph.scope.reshape(-1, 2)  # pairs are not what is timed: gco's users have them, too
    unary = case.unary.reshape(-1, case.n_labels)
    clock = Clock()
    sizes = {offset: np.subtract(case.shape, np.abs(offset)) for offset in case.weights()}
    weight = np.concatenate([np.broadcast_to(w, sizes[offset]).ravel() for offset, w in case.weights().items()])
    largest = max(float(-case.unary.min()), float(weight.max() * case.table.max()))
    scale = 1.0 if np.all(unary == np.rint(unary)) and largest < MILLION else MILLION / largest
    network.create_general_graph(len(unary), case.n_labels)
    network.set_data_cost(np.rint(-scale * unary).astype(np.intc))
    first, second = scope.min(axis=1), scope.max(axis=1)
    network.set_all_neighbors(first, second, np.rint(scale * weight).astype(np.intc))
    network.set_smooth_cost(case.table.astype(np.intc))
    for i, label in enumerate(unary.argmax(axis=1).tolist() if start else ()):
        network.init_label_at_site(i, label)
    built = clock.lap()
    network.expansion(-1)
    found = network.get_labels().astype(np.int64), built, clock.lap()
    network.destroy_graph()
    return found


def by_walker(case: Picture) -> Found:
    if case.seeds is None or case.photo is None:
        raise UnsupportedModel("the random walker needs scribbles")
    walker = importlib.import_module("skimage.segmentation").random_walker
    clock = Clock()
    found = walker(case.photo / 255, case.seeds + 1, mode="cg_j", channel_axis=-1)
    return found.ravel() - 1, (math.nan, math.nan), clock.lap()


BY_MODULE: dict[str, Callable[..., Found]] = {"gco": by_gco, "maxflow": by_maxflow, "skimage": by_walker}
RIVALS: dict[str, Callable[..., Record]] = {
    runner.__name__: runner for runner in (peer, toulbar2, toulbar2_dfs, fresh, dwave_tabu, cpsat, image_peer)
}
