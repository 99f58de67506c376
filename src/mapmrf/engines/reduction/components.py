"""Connected components, and the exact solution of those that are cheap to eliminate."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import pairwise

import numpy as np

from mapmrf.arrays import Floats, Ints, offsets, ranges, short
from mapmrf.compilation.jit import compiled, inlined
from mapmrf.engines.elimination.elimination import BucketTree, Elimination, Functions
from mapmrf.engines.elimination.orders import Order, PrimalGraph, min_fill_order
from mapmrf.engines.reduction.reduction import LabelMap
from mapmrf.engines.reduction.simplify import Simplified
from mapmrf.model.graph import FactorGraph
from mapmrf.model.problem import Problem

MOST_ENTRIES = 2.0**20  # table entries of all eliminations together: some tens of milliseconds

ONE_BY_ONE = 256
"""Maximum number of components tried individually, which limits the overhead on models of very many components."""


def components(problem: Problem) -> Ints:
    """Return the number of every variable's connected component, (n_vars,), ordered by first variable."""
    component = np.empty(problem.n_vars, dtype=np.int64)
    find_components(problem.scope_ptr, problem.scope, component)
    return component


def split(problem: Problem) -> list[tuple[Problem, Ints]]:
    """Return the connected components as separate models with their variables; the first one has the constant."""
    component = components(problem)
    n = int(component.max(initial=-1)) + 1
    if n <= 1:
        return [(problem, np.arange(problem.n_vars))]
    members = [np.flatnonzero(component == number) for number in range(n)]
    constants = [problem.graph.constant] + [0.0] * (n - 1)
    return [(_restricted(problem, kept, constant), kept) for kept, constant in zip(members, constants, strict=True)]


def solve_small(small: Simplified, entries: float = MOST_ENTRIES, one_by_one: int = ONE_BY_ONE) -> Simplified:
    """Solve components by bucket elimination, with at most `entries` table entries in total.

    They are removed from the model: their optimum is added to the constant, and `lift` restores their labels. The
    `one_by_one` largest components are tried individually, all smaller ones together.
    """
    problem = small.problem
    if not small.feasible or problem.n_vars == 0:
        return small
    part, variables, order = _affordable(problem, entries, one_by_one)
    if len(variables) == 0:
        return small
    tree = BucketTree.build(PrimalGraph.of(part), part.graph.card, order)
    elimination = Elimination(tree, Functions.of_model(part, tree))
    while not elimination.finished:
        elimination.advance(2**40, tree.n)
    if elimination.value == -math.inf:
        return replace(small, feasible=False)
    labels = np.zeros(problem.n_vars, dtype=np.int64)
    labels[variables] = elimination.labels()
    left = np.ones(problem.n_vars, dtype=np.bool_)
    left[variables] = False
    kept = np.flatnonzero(left)
    rest = _restricted(problem, kept, problem.graph.constant + elimination.value)
    counts = replace(small.counts, variables_solved=small.counts.variables_solved + len(variables))
    maps = (*small.maps, LabelMap.keeping(problem, kept, labels))
    return replace(small, problem=rest, maps=maps, counts=counts)


def _affordable(problem: Problem, entries: float, one_by_one: int) -> tuple[Problem, Ints, Order]:
    """Return the components that fit, as a separate model with its variables and elimination order."""
    variables, ends = _candidates(problem, entries)
    part = problem if len(ends) == 1 and len(variables) == problem.n_vars else _restricted(problem, variables)
    graph = PrimalGraph.of(part)
    orders, chosen = [], []
    # the largest components separately, all others together; no variable has a neighbour in another piece
    for begin, end in pairwise([0, *ends[max(0, len(ends) - one_by_one - 1) :].tolist()]):
        edges = slice(int(graph.ptr[begin]), int(graph.ptr[end]))
        piece = PrimalGraph(graph.ptr[begin : end + 1] - graph.ptr[begin], graph.nbr[edges] - np.int32(begin))
        order = min_fill_order(piece, part.graph.card[begin:end], np.zeros(piece.n), entries)
        if order.n_known == end - begin:
            entries -= order.entries
            orders.append(order)
            chosen.append(variables[begin:end])
    total = _joined(orders)
    if total.n_known < len(variables):
        variables = np.concatenate([np.zeros(0, dtype=np.int64), *chosen])
        part = _restricted(problem, variables)
    return part, variables, total


def _candidates(problem: Problem, entries: float) -> tuple[Ints, Ints]:
    """Return the variables of components that may fit, smallest components first, and the end of each component."""
    component = components(problem)
    states = np.bincount(component, weights=problem.graph.card)
    size = states[component]
    variables = np.lexsort((component, size))
    fits = _least_entries(problem, component) <= entries
    # every table also has the states of a neighbour
    variables = variables[(2.0 * size[variables] <= entries) & fits[component[variables]]]
    return variables, np.flatnonzero(np.diff(component[variables], append=-1)) + 1


def _least_entries(problem: Problem, component: Ints) -> Floats:
    """Return a lower bound on the total entries of the elimination tables, for every component.

    Every factor joins a variable with one that is eliminated later. The tables are smallest in total if all of them
    have the same number of such variables.
    """
    n_vars = np.bincount(component)
    n_pairs = np.bincount(component[problem.scope[problem.scope_ptr[:-1]]], minlength=len(n_vars))
    smallest = float(problem.graph.card.min(initial=2))
    return np.asarray(n_vars * smallest ** np.minimum(500.0, n_pairs / np.maximum(1, n_vars)))


def _joined(orders: list[Order]) -> Order:
    starts = np.cumsum([0, *(order.n_known for order in orders)]).tolist()
    places = [np.zeros(0, dtype=np.int64), *(start + order.order for start, order in zip(starts, orders, strict=False))]
    width, total = max((order.width for order in orders), default=0), sum(order.entries for order in orders)
    return Order(np.concatenate(places), starts[-1], width, total)


def _restricted(problem: Problem, variables: Ints, constant: float = 0.0) -> Problem:
    graph = problem.graph
    number = np.full(graph.n_vars, -1, dtype=np.int64)
    number[variables] = np.arange(len(variables))
    factors = np.flatnonzero(number[graph.scope[graph.scope_ptr[:-1]]] >= 0)
    arity = graph.arity[factors]
    used = np.zeros(graph.n_tables, dtype=np.bool_)
    used[graph.table_of[factors]] = True
    tables = np.flatnonzero(used)
    sizes = np.diff(graph.table_ptr)[tables]
    restricted = FactorGraph(
        card=graph.card[variables],
        theta_v=graph.theta_v[ranges(graph.var_ptr[variables], graph.card[variables])],
        scope_ptr=offsets(arity),
        scope=short(number[graph.scope[ranges(graph.scope_ptr[factors], arity)]]),
        table_of=short((np.cumsum(used) - 1)[graph.table_of[factors]]),
        table_ptr=offsets(sizes),
        theta_t=graph.theta_t[ranges(graph.table_ptr[tables], sizes)],
        constant=constant,
        weight=None if graph.weight is None else graph.weight[factors],
    )
    return Problem.compile(restricted, problem.threads, problem.memory)


# -- Connected components of a factor graph ---------------------------------------------------------------------------
# Not scipy.sparse.csgraph: on a million variables it takes eight times as long, and its import alone takes a
# quarter of a second, compared to the milliseconds in which `auto` solves small models.


@inlined
def root_of(parent: Ints, i: int) -> int:
    """Return the root of `i`, halving the path to it."""
    while parent[i] != i:
        parent[i] = parent[parent[i]]
        i = parent[i]
    return i


@compiled
def find_components(scope_ptr: Ints, scope: Ints, component: Ints) -> int:
    """Number the components by their first variables; return their number."""
    parent = component
    for i in range(len(parent)):
        parent[i] = i
    for a in range(len(scope_ptr) - 1):
        one = root_of(parent, scope[scope_ptr[a]])
        for e in range(scope_ptr[a] + 1, scope_ptr[a + 1]):
            two = root_of(parent, scope[e])
            one, two = min(one, two), max(one, two)  # the root of a component is its first variable
            parent[two] = one
    n = 0
    for i in range(len(parent)):  # entries before i are already numbered, as -1 - number
        if parent[i] == i:
            parent[i] = -1 - n
            n += 1
        else:
            parent[i] = parent[parent[i]]
    for i in range(len(parent)):
        component[i] = -1 - parent[i]
    return n
