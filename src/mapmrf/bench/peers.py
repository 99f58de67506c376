"""Other packages on the same models with the same limits, each imported only when run.

A peer yields its findings as it goes, and raises UnsupportedModel for a model that it does not support. Everything
before it yields `Ready` (imports, translating the model, compiling) is set-up: the clock starts then.
"""

from __future__ import annotations

import importlib.util
import math
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import numpy as np

import mapmrf
from mapmrf.arrays import Floats, Ints
from mapmrf.constraints.as_tables import without_constraints
from mapmrf.errors import UnknownName, UnsupportedModel
from mapmrf.model.graph import FactorGraph
from mapmrf.model.problem import Problem
from mapmrf.run.incumbent import Incumbent
from mapmrf.run.result import GAP_TOLERANCE, Result, Status, TracePoint


@dataclass(frozen=True)
class Found:
    """A finding of a peer: labels, an upper bound, or both."""

    # `seconds` is the time of the finding, for peers that report only afterwards; `finished` means that the peer has
    # ended.

    labels: Ints | None = None
    bound: float | None = None
    iterations: int = 0
    seconds: float | None = None
    finished: bool = False


@dataclass(frozen=True)
class Ready:
    """The end of the set-up; `start_up` are seconds before the search that count as set-up too."""

    start_up: float = 0.0


@dataclass(frozen=True)
class Peer:
    """Another package: its name for pip, the module to import, and what is run: on a graph, for seconds, by a seed."""

    package: str
    module: str
    run: Callable[[FactorGraph, float, int], Iterator[Found | Ready]]


def installed() -> list[str]:
    return [name for name, peer in PEERS.items() if _is_there(peer.module)]


def missing() -> list[str]:
    there = installed()
    return [name for name in PEERS if name not in there]


def advice(absent: Sequence[str]) -> str:
    packages = [PEERS[name].package for name in absent]
    how = "pip install 'mapmrf[peers]' ('.[peers]' in a checkout)"
    return f"not installed: {', '.join(absent)}; {how}, or only {' '.join(packages)}"


def prepare(name: str) -> str:
    """Import a peer's package, which may take seconds; return its name and version."""
    if name not in PEERS:
        raise UnknownName(f"no peer is named {name!r}; known: {', '.join(PEERS)}")
    peer = PEERS[name]
    if not _is_there(peer.module):
        raise UnsupportedModel(f"{name} is {advice([name])}")
    import_module(peer.module)
    try:
        return f"{peer.package} {version(peer.package)}"
    except PackageNotFoundError:  # importable, but not by pip
        return peer.package


def _is_there(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:  # its parent package is missing
        return False


def solve_with(name: str, graph: FactorGraph, seconds: float, seed: int) -> Result:
    """Solve a model with a peer; the value is evaluated here, as for every method."""
    # `compile_time` of the result is the set-up, `runtime` the total.
    prepare(name)
    incumbent = Incumbent(graph, graph.unary_labels)
    bound, trace, finished = None, list[TracePoint](), False
    began = started = time.perf_counter()
    for found in PEERS[name].run(without_constraints(graph), seconds, seed):
        if isinstance(found, Ready):
            started = time.perf_counter() + found.start_up
            continue
        if found.labels is not None:
            incumbent.offer(found.labels[: graph.n_vars])  # without auxiliary variables
        if found.bound is not None and math.isfinite(found.bound):
            incumbent.tighten(found.bound)
            bound = incumbent.bound
        spent, finished = max(0.0, time.perf_counter() - started), found.finished
        when = spent if found.seconds is None else found.seconds
        trace.append(TracePoint(when, found.iterations, incumbent.value, bound))
        live = found.seconds is None  # read everything that is reported afterwards
        if finished or incumbent.closed(GAP_TOLERANCE) or (live and spent >= seconds):
            break
    status = Status.CONVERGED if finished else Status.TIME_LIMIT
    if incumbent.closed(GAP_TOLERANCE):
        status = Status.OPTIMAL if incumbent.optimal else Status.WITHIN_TOLERANCE
    return replace(
        Result.of_labels(graph, incumbent.labels, status, f"peer:{name}"),
        version="",
        bound=bound,
        iterations=trace[-1].iterations if trace else 0,
        compile_time=started - began,
        runtime=started - began + max(0.0, time.perf_counter() - started),
        trace=tuple(trace),
        seed=seed,
    )


def _binary_pairs(graph: FactorGraph, name: str) -> tuple[Floats, Ints, Floats]:
    """Unary potentials (n, 2), pairs (m, 2) and tables (m, 2, 2) of a binary pairwise model with finite potentials."""
    if not (np.all(graph.card == 2) and np.all(graph.arity == 2)):
        raise UnsupportedModel(f"{name} supports only binary pairwise models")
    if not (np.isfinite(graph.theta_v).all() and np.isfinite(graph.theta_t).all()):
        raise UnsupportedModel(f"{name} supports only finite potentials")
    tables = graph.theta_t[graph.table_ptr[graph.table_of][:, None] + np.arange(4)]
    if graph.weight is not None:
        tables = graph.weight[:, None] * tables
    return graph.theta_v.reshape(-1, 2), graph.scope.reshape(-1, 2), tables.reshape(-1, 2, 2)


# -- CP-SAT of OR-tools: a 0/1 variable per state and per configuration of a factor, costs scaled to integers ---------


def run_cpsat(graph: FactorGraph, seconds: float, seed: int) -> Iterator[Found | Ready]:
    """Solve once; the solutions are reported afterwards with their times."""
    from ortools.sat.python import cp_model

    n_configs = int(np.diff(graph.table_ptr)[graph.table_of].sum())
    if n_configs > 1_000_000:
        raise UnsupportedModel(f"cpsat supports at most 1000000 configurations, this model has {n_configs}")
    model = cp_model.CpModel()
    program = _CpsatModel(graph.expanded(), model)
    solver = cp_model.CpSolver()
    # Parallel strategies, also on fewer cores: a single one skips the neighbourhood searches and finds little.
    solver.parameters.num_workers = 8
    solver.parameters.random_seed = seed
    solver.parameters.max_time_in_seconds = max(0.01, seconds)
    seen: list[Found] = []
    yield Ready()
    began = time.perf_counter()

    class Watch(cp_model.CpSolverSolutionCallback):  # type: ignore[misc]
        def on_solution_callback(self) -> None:
            labels = program.labels(self.boolean_value)
            bound = program.upper(self.best_objective_bound)
            seen.append(Found(labels, bound, len(seen) + 1, time.perf_counter() - began))

    status = solver.solve(model, Watch())
    yield from seen
    done = status in (cp_model.OPTIMAL, cp_model.INFEASIBLE)
    bound = program.upper(solver.best_objective_bound) if status != cp_model.INFEASIBLE else None
    yield Found(bound=bound, iterations=len(seen), finished=done)


class _CpsatModel:
    """The CP-SAT model: one literal per state, and one per allowed configuration of a factor."""

    # A pair of binary variables needs only one literal: both are in their second state. The best state of every
    # variable on its own is given as a hint.

    def __init__(self, graph: FactorGraph, model: Any) -> None:
        self.graph = graph
        finite_v, finite_t = np.isfinite(graph.theta_v), np.isfinite(graph.theta_t)
        largest = max(np.abs(theta).max(initial=1e-300) for theta in (graph.theta_v[finite_v], graph.theta_t[finite_t]))
        self.scale = 2**24 / float(largest)  # larger integers slow the search down
        self.error = 0.5 * (graph.n_vars + 3 * graph.n_factors) / self.scale  # a pair of binary variables has 3 terms
        self.constant = graph.constant
        self.hint = graph.unary_labels.tolist()
        self.states = [[model.new_bool_var("") for _ in range(r)] for r in graph.card.tolist()]
        terms: list[tuple[Any, int]] = []
        for i, literals in enumerate(self.states):
            model.add_exactly_one(literals)
            for state, literal in enumerate(literals):
                model.add_hint(literal, state == self.hint[i])
            for literal, theta in zip(literals, graph.theta_v[graph.var_ptr[i] :].tolist(), strict=False):
                self._term(model, terms, literal, theta)
        for a in range(graph.n_factors):
            self._factor(model, terms, a)
        model.maximize(sum(literal * cost for literal, cost in terms))

    def _factor(self, model: Any, terms: list[tuple[Any, int]], a: int) -> None:
        table, scope = self.graph.table(a), self.graph.scope_of(a).tolist()
        if table.shape == (2, 2) and np.isfinite(table).all():
            # A pair of binary variables, given the literals of their second states.
            second = [self.states[i][1] for i in scope]
            base, coupling = float(table[0, 0]), float(table[1, 1] - table[1, 0] - table[0, 1] + table[0, 0])
            self.constant += base
            self._term(model, terms, second[0], float(table[1, 0]) - base)
            self._term(model, terms, second[1], float(table[0, 1]) - base)
            both = model.new_bool_var("")
            if coupling > 0:
                model.add_implication(both, second[0])
                model.add_implication(both, second[1])
            else:
                model.add_bool_or([second[0].Not(), second[1].Not(), both])
            self._term(model, terms, both, coupling)
            return
        chosen = {config: model.new_bool_var("") for config in np.ndindex(*table.shape) if np.isfinite(table[config])}
        model.add_exactly_one(chosen.values())
        for k, i in enumerate(scope):
            for state, literal in enumerate(self.states[i]):
                model.add(sum(var for config, var in chosen.items() if config[k] == state) == literal)
        for config, var in chosen.items():
            self._term(model, terms, var, float(table[config]))
            model.add_hint(var, config == tuple(self.hint[i] for i in scope))

    def _term(self, model: Any, terms: list[tuple[Any, int]], literal: Any, theta: float) -> None:
        if theta == -np.inf:
            model.add(literal == 0)
        else:
            terms.append((literal, round(theta * self.scale)))

    def labels(self, value: Any) -> Ints:
        return np.array([[bool(value(x)) for x in some].index(True) for some in self.states], dtype=np.int64)

    def upper(self, objective: float) -> float:
        """Upper bound in log potentials from one on the scaled objective."""
        return self.constant + objective / self.scale + self.error


# -- Simulated annealing of dwave-samplers: reads of growing length until the time is up ------------------------------


def run_dwave(graph: FactorGraph, seconds: float, seed: int) -> Iterator[Found | Ready]:
    """Anneal repeatedly; twice as slowly after every ten reads."""
    import dimod
    from dwave.samplers import SimulatedAnnealingSampler

    unary, edges, t = _binary_pairs(graph, "dwave")
    linear = unary[:, 0] - unary[:, 1]
    np.add.at(linear, edges[:, 0], t[:, 0, 0] - t[:, 1, 0])
    np.add.at(linear, edges[:, 1], t[:, 0, 0] - t[:, 0, 1])
    both = t[:, 1, 0] + t[:, 0, 1] - t[:, 0, 0] - t[:, 1, 1]
    quadratic = (edges[:, 0], edges[:, 1], both)
    bqm = dimod.BinaryQuadraticModel.from_numpy_vectors(linear, quadratic, 0.0, dimod.BINARY)
    sampler = SimulatedAnnealingSampler()
    yield Ready()
    end = time.perf_counter() + seconds
    sweeps, reads = 1000, 0
    while True:
        sample = sampler.sample(
            bqm, num_reads=1, num_sweeps=sweeps, seed=seed + reads, interrupt_function=lambda: time.perf_counter() > end
        )
        order = np.argsort(np.asarray(list(sample.variables)))
        reads += 1
        yield Found(sample.record.sample[0][order].astype(np.int64), iterations=reads)
        if reads % 10 == 0:
            sweeps *= 2


# -- Max-product belief propagation of PGMax, on JAX: damped, in rounds until the time is up --------------------------


PGMAX_ROUND = 20  # iterations


def run_pgmax(graph: FactorGraph, seconds: float, seed: int) -> Iterator[Found | Ready]:
    """Run rounds of some iterations each; the first one twice, once for JAX to compile it."""
    graph = graph.expanded()
    scopes = {frozenset(graph.scope_of(a).tolist()) for a in range(graph.n_factors)}
    if len(scopes) < graph.n_factors:
        raise UnsupportedModel("pgmax supports one factor per set of variables, this model has several")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # it uses deprecated parts of JAX
        advance, arrays = _pgmax_inferer(graph)
        advance(arrays)
    yield Ready()
    for iterations in range(PGMAX_ROUND, 1001, PGMAX_ROUND):  # the paper gives belief propagation 1000 iterations
        arrays, labels = advance(arrays)
        yield Found(labels, iterations=iterations, finished=iterations == 1000)


def _pgmax_inferer(graph: FactorGraph) -> tuple[Callable[[Any], tuple[Any, Ints]], Any]:
    jax = import_module("jax")  # comes with pgmax
    from pgmax import fgraph, fgroup, infer, vgroup

    groups: list[Any] = []
    place: list[tuple[int, int]] = [(0, 0)] * graph.n_vars
    members: list[Ints] = [np.flatnonzero(graph.card == card) for card in np.unique(graph.card)]
    for mine in members:
        for number, i in enumerate(mine.tolist()):
            place[i] = (len(groups), number)
        groups.append(vgroup.NDVarArray(num_states=int(graph.card[mine[0]]), shape=(len(mine),)))
    model = fgraph.FactorGraph(variable_groups=groups)
    # Substitute for -inf: far below everything finite.
    finite = np.concatenate([graph.theta_v, graph.theta_t])
    finite = finite[np.isfinite(finite)]
    low = float(finite.min(initial=0.0) - 10 * np.ptp(finite) - 10) if len(finite) else -10.0
    problem = Problem.compile(graph)
    made = []
    for batch in problem.batches:
        scopes = [[groups[place[i][0]][place[i][1]] for i in row] for row in batch.scope.tolist()]
        theta = graph.theta_t[batch.table_at[:, None] + np.arange(batch.n_configs)]
        tables = np.where(np.isfinite(theta), theta, low)
        made.append(fgroup.EnumFactorGroup(scopes, factor_configs=np.asarray(batch.config), log_potentials=tables))
    model.add_factors(made)
    belief = infer.build_inferer(model.bp_state, backend="bp")
    theta_v = np.where(np.isfinite(graph.theta_v), graph.theta_v, low)
    unary = [theta_v[graph.var_ptr[mine][:, None] + np.arange(graph.card[mine[0]])] for mine in members]
    # PGMax compiles nothing itself: without this, every round would be traced and compiled again.
    update = jax.jit(lambda arrays: belief.run(arrays, num_iters=PGMAX_ROUND, damping=0.5, temperature=0.0))

    def advance(arrays: Any) -> tuple[Any, Ints]:
        arrays = update(arrays)
        states = infer.decode_map_states(belief.get_beliefs(arrays))
        labels = np.zeros(graph.n_vars, dtype=np.int64)
        for group, mine in zip(groups, members, strict=True):
            labels[mine] = np.asarray(states[group])
        return arrays, labels

    return advance, belief.init(evidence_updates=dict(zip(groups, unary, strict=True)))


# -- pgmpy's MPLP with triplets, on pairwise models of a size that it can handle --------------------------------------


def run_pgmpy(graph: FactorGraph, seconds: float, seed: int) -> Iterator[Found | Ready]:
    """Run one query; it has no time limit, so a long one is killed."""
    if not np.all(graph.arity == 2) or graph.n_factors > 1000:  # it considers all pairs of edges first
        raise UnsupportedModel("pgmpy's MPLP supports pairwise models, here of at most 1000 pairs")
    if not (np.isfinite(graph.theta_v).all() and np.isfinite(graph.theta_t).all()):
        raise UnsupportedModel("pgmpy's MPLP supports only finite potentials")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from pgmpy.inference import Mplp

        solver = Mplp(_pgmpy_network(graph))
    yield Ready()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        answer = solver.map_query()
    labels = np.array([answer.get(f"x{i}", 0) for i in range(graph.n_vars)], dtype=np.int64)
    yield Found(labels, iterations=1, finished=True)


def _pgmpy_network(graph: FactorGraph) -> Any:
    """The model with additive, non-negative tables: the objective must be above 0 for it to keep an assignment."""
    from pgmpy.factors.discrete import DiscreteFactor
    from pgmpy.models import DiscreteMarkovNetwork

    from mapmrf.bridges.dimod import pair_tables

    network = DiscreteMarkovNetwork()
    network.add_nodes_from([f"x{i}" for i in range(graph.n_vars)])
    for i in range(graph.n_vars):
        block = graph.theta_v[graph.var_ptr[i] : graph.var_ptr[i + 1]]
        network.add_factors(DiscreteFactor([f"x{i}"], [len(block)], block - block.min()))
    for (i, j), table in pair_tables(graph).items():
        network.add_edge(f"x{i}", f"x{j}")
        network.add_factors(DiscreteFactor([f"x{i}", f"x{j}"], table.shape, table - table.min()))
    return network


# -- Roof duality by thinqpbo, and its improvement of labellings (QPBO-I) until the time is up ------------------------


def run_qpbo(graph: FactorGraph, seconds: float, seed: int) -> Iterator[Found | Ready]:
    """Find persistent labels and the roof bound first; then improve from there."""
    import thinqpbo

    unary, edges, tables = _binary_pairs(graph, "qpbo")
    energy = thinqpbo.QPBODouble(graph.n_vars, len(edges))
    energy.add_node(graph.n_vars)
    for i, (low, high) in enumerate((-unary).tolist()):
        energy.add_unary_term(i, low, high)
    for (i, j), table in zip(edges.tolist(), (-tables).reshape(-1, 4).tolist(), strict=True):
        energy.add_pairwise_term(i, j, *table)
    energy.merge_parallel_edges()
    yield Ready()
    energy.solve()
    energy.compute_weak_persistencies()
    bound = graph.constant - energy.compute_twice_lower_bound() / 2
    labels = _qpbo_labels(energy, graph.unary_labels)
    yield Found(labels, bound, iterations=1)
    for i, label in enumerate(labels.tolist()):
        energy.set_label(i, label)
    iterations = 1
    while True:
        energy.improve()
        iterations += 1
        yield Found(_qpbo_labels(energy, labels), iterations=iterations)


def _qpbo_labels(energy: Any, otherwise: Ints) -> Ints:
    found = np.array([energy.get_label(i) for i in range(len(otherwise))], dtype=np.int64)
    return np.where(found >= 0, found, otherwise)


# -- The exact solver toulbar2, through the method of that name -------------------------------------------------------


def run_toulbar2(graph: FactorGraph, seconds: float, seed: int) -> Iterator[Found | Ready]:
    """Solve once; the course of the run is that of the method's trace."""
    # It runs in a separate process, whose start and imports are subtracted: they are measured on a model of one pair.
    pair = FactorGraph.from_pairwise([[0, 1], [0, 0]], [[0, 1]], [[1, 0], [0, 1]])
    start_up = mapmrf.solve(pair, "toulbar2").runtime
    yield Ready(start_up)
    seen: list[Found] = []

    def watch(point: TracePoint, labels: Ints) -> None:
        better = not seen or seen[-1].labels is not labels
        if better or point.bound != seen[-1].bound:
            seen.append(Found(labels, point.bound, point.iterations, max(0.0, point.time - start_up)))

    result = mapmrf.solve(graph, "toulbar2", time_limit=seconds + start_up, seed=seed, callback=watch)
    yield from seen
    done = result.status.closes_gap or result.status is Status.INFEASIBLE
    at = min(seconds, max(0.0, result.runtime - start_up))
    yield Found(result.labels, result.bound, result.iterations, seconds=at, finished=done)


PEERS = {
    "cpsat": Peer("ortools", "ortools.sat.python", run_cpsat),
    "dwave": Peer("dwave-samplers", "dwave.samplers", run_dwave),
    "pgmax": Peer("pgmax", "pgmax", run_pgmax),
    "pgmpy": Peer("pgmpy", "pgmpy", run_pgmpy),
    "qpbo": Peer("thinqpbo", "thinqpbo", run_qpbo),
    "toulbar2": Peer("pytoulbar2", "pytoulbar2", run_toulbar2),
}
