"""A binary pairwise model as a minimum cut."""

from __future__ import annotations

import math
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import numpy as np

from mapmrf.arrays import Bools, Floats, Ints, frozen, short
from mapmrf.compilation.jit import bare, inlined
from mapmrf.engines.flow.maximum_flow import (
    FREE,
    MAX_ARCS,
    NO_LIMIT,
    PAUSED,
    MaximumFlow,
    Network,
    SearchTrees,
    add_capacity,
    add_compensated,
    change_terminals,
    send_flow,
    sparse_network,
    wire,
)
from mapmrf.kernels.heaps_and_forests import root_of
from mapmrf.kernels.max_marginals import weight_of
from mapmrf.model.problem import Problem


class CutModel:
    """A model whose pairs are submodular, possibly after flipping variables, and the flow that solves it.

    A variable on the source's side of the cut has state 0, or 1 if it is flipped.
    """

    def __init__(self, problem: Problem) -> None:
        pairs, parts = binary_pairs(problem), table_parts(problem)
        # If nothing is feasible, a variable with a single state may be on the wrong side of the cut.
        self._most = None if problem.only_binary else problem.graph.card - 1
        self.flip = flips_of(problem)[0]  # (n_vars,): 1 for variables whose states are swapped
        network, excess = wire(problem.n_vars, problem.scope), np.empty(problem.n_vars)
        if parts is not None and all_favour_equal(pairs, parts):
            best = float(lay_out_plain(pairs, parts, network, excess))
        else:
            unary = np.empty((problem.n_vars, 2))
            lay_out_cut(pairs, self.flip, unary, network)
            best = float(set_excess(unary, excess))
        self.constant = problem.graph.constant + best  # the optimum is this minus the maximum flow
        self.flow = MaximumFlow(network, excess)

    @property
    def bound(self) -> float:
        """Upper bound on all labellings; at the end it equals the optimum, up to round-off."""
        return self.constant - self.flow.value if self.constant > -math.inf else -math.inf

    @property
    def labels(self) -> Ints:
        """The labelling given by the cut, optimal at the end."""
        labels = np.asarray(self.flow.on_sink_side ^ (self.flip == 1), dtype=np.int64)
        return labels if self._most is None else np.minimum(labels, self._most)


def why_not_binary_pairs(problem: Problem) -> str | None:
    graph = problem.graph
    if np.any(graph.card > 2):
        i = int(np.argmax(graph.card > 2))
        return f"variable {i} has {graph.card[i]} states, expected at most 2"
    large = np.flatnonzero(graph.arity != 2)
    if len(large):
        return f"factor {large[0]} has {graph.arity[large[0]]} variables, expected 2"
    return None


def why_no_cut(problem: Problem) -> str | None:
    graph, reason = problem.graph, why_not_binary_pairs(problem)
    if reason is not None:
        return reason
    if 2 * graph.n_factors > MAX_ARCS:
        return f"it has {graph.n_factors} factors, more than {MAX_ARCS // 2}"
    _, a = flips_of(problem)
    if a == NONE:
        return None
    i, j = problem.scope[2 * a : 2 * a + 2].tolist()
    return f"factor {problem.order[a]} on variables {i} and {j} is not submodular, whichever variables are flipped"


def binary_pairs(problem: Problem) -> BinaryPairs:
    graph = problem.graph
    if problem.only_binary:
        theta_v = graph.theta_v.reshape(-1, 2)
    else:
        theta_v = np.full((problem.n_vars, 2), -np.inf)
        theta_v[np.arange(2) < graph.card[:, None]] = graph.theta_v
        frozen(theta_v)
    return BinaryPairs(
        packed(problem.scope), packed(problem.table_at), graph.theta_t, problem.weight, graph.card, theta_v
    )


def table_parts(problem: Problem) -> TableParts | None:
    """Return the parts of all tables, if all variables have two states and nothing is forbidden."""
    graph = problem.graph
    if not (problem.only_binary and np.isfinite(graph.theta_v.min(initial=0.0)) and np.isfinite(graph.theta_t).all()):
        return None
    t00, one_i, one_j, coupling = np.empty((4, graph.n_tables))
    split_tables(graph.theta_t, (t00, one_i, one_j, coupling))
    return t00, one_i, one_j, coupling


def packed(values: Ints) -> Ints:
    """Return a read-only array, in 32 bits where values fit, so that kernels need only one specialisation."""
    return frozen(np.ascontiguousarray(short(values)))


_flips: WeakKeyDictionary[Problem, tuple[Ints, int]] = WeakKeyDictionary()


def flips_of(problem: Problem) -> tuple[Ints, int]:
    """Return which variables to flip (1 for those), and a pair that is still not submodular, or NONE.

    The result is cached with the problem: it decides both whether it is supported and how it is solved.
    """
    if problem not in _flips:
        pairs, parts = binary_pairs(problem), table_parts(problem)
        flip, spoils = np.zeros(problem.n_vars, dtype=np.int32), NONE
        if parts is None or not all_favour_equal(pairs, parts):
            spoils = int(find_flips(pairs, np.zeros_like(flip), flip))
        _flips[problem] = frozen(flip), spoils
    return _flips[problem]


# Arcs for pairs that favour equal states and forbid nothing: tables are split once, and weights scale the parts.


# Tables ``t00 + one_i x_i + one_j x_j - coupling |x_i - x_j|`` of two states each: these parts, (n_tables,) each
TableParts = tuple[Floats, Floats, Floats, Floats]


@bare
def split_tables(theta_t: Floats, parts: TableParts) -> None:
    """Split all tables; couplings within round-off become 0."""
    constant, one_i, one_j, coupling = parts
    for t in range(len(constant)):
        t00, t01, t10, t11 = theta_t[4 * t], theta_t[4 * t + 1], theta_t[4 * t + 2], theta_t[4 * t + 3]
        both, apart = (t11 - t00) / 2.0, (t10 - t01) / 2.0
        constant[t], one_i[t], one_j[t] = t00, both + apart, both - apart
        coupling[t] = ((t00 - t01) + (t11 - t10)) / 2.0
        if favours((t00, t01, t10, t11)) == EITHER:
            coupling[t] = 0.0


@bare
def all_favour_equal(pairs: BinaryPairs, parts: TableParts) -> bool:
    coupling, table_at, least = parts[3], pairs.table_at, 0.0
    for a in range(len(table_at)):
        least = min(least, coupling[table_at[a] // 4] * weight_of(pairs.weight, a))
    return least == 0.0


@bare
def lay_out_plain(pairs: BinaryPairs, parts: TableParts, network: Network, excess: Floats) -> float:
    """Set capacities, and as `excess` the loss of state 1 against 0; return the value of a cut of cost 0."""
    theta_v, scope, table_at = pairs.theta_v, pairs.scope, pairs.table_at
    t00, one_i, one_j, coupling = parts
    total = lost = 0.0
    for i in range(len(excess)):
        excess[i] = theta_v[i, 0] - theta_v[i, 1]
        total, lost = add_compensated(total, lost, theta_v[i, 0])
    guess = 0
    for a in range(len(table_at)):
        t, weight = table_at[a] // 4, weight_of(pairs.weight, a)
        if t00[t] != 0.0:
            total, lost = add_compensated(total, lost, weight * t00[t])
        excess[scope[2 * a]] -= weight * one_i[t]
        excess[scope[2 * a + 1]] -= weight * one_j[t]
        capacity = weight * coupling[t]
        if capacity > 0.0:
            guess = add_capacity(network, a, guess, capacity, capacity)
    for i in range(len(excess)):
        if excess[i] < 0.0:
            total, lost = add_compensated(total, lost, -excess[i])
    return total + lost


# -- Pairs of binary variables as arcs of a network, after flips that make all of them submodular ---------------------
# A pair is submodular if ``t00 + t11 >= t01 + t10``: it favours equal states. A pair that favours different states
# becomes submodular when the states of one of its variables are swapped. A state that does not exist, or that is
# forbidden by its unary potential, is forbidden in every table.

EITHER, EQUAL, DIFFERENT = 0, 1, -1  # the states that a pair favours
NONE = -1
Table = tuple[float, float, float, float]


class BinaryPairs(NamedTuple):
    scope: Ints  # (2 n_factors,): the variables of every pair
    table_at: Ints  # (n_factors,): where its table starts in `theta_t`
    theta_t: Floats  # the tables
    weight: Floats  # (n_factors,): weights of the tables; empty if all weights are 1
    card: Ints  # (n_vars,): number of states
    theta_v: Floats  # (n_vars, 2): unary potentials, -inf for a state that does not exist


@inlined
def table_of_pair(pairs: BinaryPairs, a: int) -> Table:
    """Return the four entries t00, t01, t10, t11 of a pair, -inf where a state is forbidden."""
    i, j, at = pairs.scope[2 * a], pairs.scope[2 * a + 1], pairs.table_at[a]
    theta_t, theta_v, r, weight = pairs.theta_t, pairs.theta_v, pairs.card[j], weight_of(pairs.weight, a)
    t00 = weight * theta_t[at]
    t01 = weight * theta_t[at + 1] if r == 2 else -np.inf
    t10 = weight * theta_t[at + r] if pairs.card[i] == 2 else -np.inf
    t11 = weight * theta_t[at + 3] if pairs.card[i] == 2 and r == 2 else -np.inf
    if theta_v[i, 0] == -np.inf:
        t00 = t01 = -np.inf
    if theta_v[i, 1] == -np.inf:
        t10 = t11 = -np.inf
    if theta_v[j, 0] == -np.inf:
        t00 = t10 = -np.inf
    if theta_v[j, 1] == -np.inf:
        t01 = t11 = -np.inf
    return t00, t01, t10, t11


@inlined
def favours(table: Table) -> int:
    """Return whether a pair favours EQUAL or DIFFERENT states, or EITHER if it is a sum of unary potentials."""
    t00, t01, t10, t11 = table
    if is_unary(table):
        return EITHER
    if min(t00, t11) == -np.inf:
        return DIFFERENT
    if min(t01, t10) == -np.inf:
        return EQUAL
    coupling = (t00 - t01) + (t11 - t10)
    # Couplings below four units of round-off of the table's entries count as none
    if abs(coupling) <= 8.881784197001252e-16 * (abs(t00) + abs(t01) + abs(t10) + abs(t11)):
        return EITHER
    return EQUAL if coupling > 0.0 else DIFFERENT


@bare
def find_flips(pairs: BinaryPairs, parent: Ints, flip: Ints) -> int:
    """Set `flip` to 1 where that makes all pairs submodular; return a pair that stays otherwise, or NONE."""
    n_pairs, n_different = len(pairs.table_at), 0
    for i in range(len(flip)):
        flip[i] = 0
        parent[i] = i
    for a in range(n_pairs):
        n_different += favours(table_of_pair(pairs, a)) == DIFFERENT
    for a in range(n_pairs if n_different > 0 else 0):
        wish = favours(table_of_pair(pairs, a))
        if wish == EITHER:
            continue
        odd = 1 if wish == DIFFERENT else 0
        u, odd1 = root_of(pairs.scope[2 * a], parent, flip)
        v, odd2 = root_of(pairs.scope[2 * a + 1], parent, flip)
        if u != v:
            parent[u] = v
            flip[u] = odd1 ^ odd2 ^ odd
        elif odd1 ^ odd2 != odd:
            return a
    for i in range(len(flip)):
        parent[i], flip[i] = root_of(i, parent, flip)
    return NONE


@inlined
def flipped(table: Table, flip_i: int, flip_j: int) -> Table:
    t00, t01, t10, t11 = table
    if flip_i:
        t00, t01, t10, t11 = t10, t11, t00, t01
    if flip_j:
        t00, t01, t10, t11 = t01, t00, t11, t10
    return t00, t01, t10, t11


@inlined
def add_unaries(unary: Floats, i: int, j: int, table: Table) -> None:
    """Add a pair that reduces to unary potentials because a variable has one state left."""
    t00, t01, t10, t11 = table
    if max(t00, t01) == -np.inf:
        unary[i, 0] = -np.inf
        unary[j, 0] += t10
        unary[j, 1] += t11
    elif max(t10, t11) == -np.inf:
        unary[i, 1] = -np.inf
        unary[j, 0] += t00
        unary[j, 1] += t01
    elif max(t00, t10) == -np.inf:
        unary[j, 0] = -np.inf
        unary[i, 0] += t01
        unary[i, 1] += t11
    else:
        unary[j, 1] = -np.inf
        unary[i, 0] += t00
        unary[i, 1] += t10


@inlined
def split(table: Table) -> tuple[float, float, float, float]:
    """Split a table into unary terms of state 1 for both variables, and arc capacities: the costs of 01 and 10."""
    t00, t01, t10, t11 = table
    if t01 == -np.inf and t10 == -np.inf:
        half = (t11 - t00) / 2.0
        return half, half, np.inf, np.inf
    if t01 == -np.inf:
        return t10 - t00, t11 - t10, np.inf, 0.0
    if t10 == -np.inf:
        return t11 - t01, t01 - t00, 0.0, np.inf
    both, apart = (t11 - t00) / 2.0, (t10 - t01) / 2.0
    coupling = max(0.0, ((t00 - t01) + (t11 - t10)) / 2.0)
    return both + apart, both - apart, coupling, coupling


@inlined
def is_unary(table: Table) -> bool:
    """Return whether a variable of a pair has only one state left."""
    t00, t01, t10, t11 = table
    return max(t00, t01) == -np.inf or max(t10, t11) == -np.inf or max(t00, t10) == -np.inf or max(t01, t11) == -np.inf


@bare
def lay_out_cut(pairs: BinaryPairs, flip: Ints, unary: Floats, network: Network) -> None:
    """Turn pairs into capacities and unary potentials (n_vars, 2) of the flipped variables."""
    for i in range(len(flip)):
        unary[i, flip[i]] = pairs.theta_v[i, 0]
        unary[i, 1 - flip[i]] = pairs.theta_v[i, 1]
    guess = 0
    for a in range(len(pairs.table_at)):
        i, j = pairs.scope[2 * a], pairs.scope[2 * a + 1]
        given = table_of_pair(pairs, a)
        table = flipped(given, flip[i], flip[j])
        if is_unary(table):
            add_unaries(unary, i, j, table)
            continue
        half, (more_i, more_j, forward, backward) = table[0] / 2.0, split(table)
        unary[i, 0] += half
        unary[j, 0] += half
        unary[i, 1] += half + more_i
        unary[j, 1] += half + more_j
        if favours(given) != EITHER:
            guess = add_capacity(network, a, guess, forward, backward)


@bare
def set_excess(unary: Floats, excess: Floats) -> float:
    """Set the loss of state 1 against state 0 as terminal capacities; return the sum of the best unary potentials."""
    total = lost = 0.0
    for i in range(len(excess)):
        best = max(unary[i, 0], unary[i, 1])
        if best == -np.inf:
            return -np.inf
        excess[i] = unary[i, 0] - unary[i, 1]
        total, lost = add_compensated(total, lost, best)
    return total + lost


# -- Roof duality: a bound for any binary pairwise model, and persistent states ---------------------------------------


class RoofDual:
    """A binary model as a flow network with two nodes per variable."""

    def __init__(self, pairs: BinaryPairs, constant: float = 0.0) -> None:
        n = self.n_vars = len(pairs.theta_v)
        scope = np.empty(4 * len(pairs.table_at), dtype=np.int32)
        join_complements(pairs, scope)
        network = sparse_network(2 * n, scope)
        unary, excess = pairs.theta_v.copy(), np.zeros(2 * n)
        lay_out_roof(pairs, unary, network)
        self.constant = constant + float(set_excess(unary, excess[:n]))  # the upper bound is this minus half the flow
        excess[n:] = -excess[:n]
        self.flow = MaximumFlow(network, excess)

    @property
    def bound(self) -> float:
        return self.constant - self.flow.value / 2 if self.constant > -math.inf else -math.inf

    @property
    def states(self) -> Ints:
        """After a maximum flow, the persistent states of variables, or UNDECIDED, (n_vars,).

        No labelling gets worse when all decided variables take these states, those on which variable and complement
        agree. The nodes that can reach the sink are the mirror image of those reachable from the source.
        """
        if self.bound == -math.inf:
            return np.full(self.n_vars, UNDECIDED, dtype=np.int64)
        one, zero = self.flow.on_sink_side.reshape(2, -1)
        return np.where(one == zero, UNDECIDED, one.astype(np.int64))


def why_no_roof(problem: Problem) -> str | None:
    reason = why_not_binary_pairs(problem)
    if reason is None and 4 * problem.n_factors > MAX_ARCS:
        return f"it has {problem.n_factors} factors, more than {MAX_ARCS // 4}"
    return reason


def relax(problem: Problem) -> CutModel | RoofDual:
    """Return the flow of a binary pairwise model: a minimum cut if flips make it submodular, else the roof dual."""
    if flips_of(problem)[1] == NONE:
        return CutModel(problem)
    return RoofDual(binary_pairs(problem), problem.graph.constant)


def persistent_states(problem: Problem) -> tuple[Ints, float]:
    """Compute persistent states of variables, UNDECIDED (-1) for others, and an upper bound by roof duality.

    If flips make the model submodular, all variables are fixed at the optimum. In an infeasible model none are, and the
    bound is -inf.
    """
    model = relax(problem)
    model.flow.run(NO_LIMIT)
    if model.bound == -math.inf:
        return np.full(problem.n_vars, UNDECIDED), -math.inf
    return model.labels if isinstance(model, CutModel) else model.states, model.bound


def excluded_by_roof(problem: Problem) -> Bools:
    """Return the states that are not needed for optimality, (n_states,), by roof duality; none if infeasible."""
    states, _ = persistent_states(problem)
    excluded: Bools = np.zeros(problem.n_states, dtype=bool)
    decided = np.flatnonzero(states != UNDECIDED)
    excluded[2 * decided + 1 - states[decided]] = True
    return excluded


# Node `i` stands for variable `i`, node ``n + i`` for its complement: on the source's side a variable has state 0, its
# complement state 1. A pair that favours equal states joins `i` with `j` and the complements with each other; one that
# favours different states joins each variable with the complement of the other. Every pair thus becomes submodular, but
# variable and complement may disagree.

UNDECIDED = -1  # takes the place of a state where roof duality does not fix the variable


@bare
def join_complements(pairs: BinaryPairs, scope: Ints) -> None:
    """List the nodes of two arcs for every pair, (4 n_pairs,): the pair itself, and its mirror image."""
    n = len(pairs.theta_v)
    for a in range(len(pairs.table_at)):
        i, j = pairs.scope[2 * a], pairs.scope[2 * a + 1]
        apart = favours(table_of_pair(pairs, a)) == DIFFERENT
        scope[4 * a] = i
        scope[4 * a + 1] = n + j if apart else j
        scope[4 * a + 2] = j if apart else n + j
        scope[4 * a + 3] = n + i


@bare
def lay_out_roof(pairs: BinaryPairs, unary: Floats, network: Network) -> None:
    """Turn pairs into capacities, and add their unary parts to the unary potentials (n_vars, 2)."""
    for a in range(len(pairs.table_at)):
        i, j = pairs.scope[2 * a], pairs.scope[2 * a + 1]
        table = table_of_pair(pairs, a)
        if is_unary(table):
            add_unaries(unary, i, j, table)
            continue
        wish = favours(table)
        one = 0 if wish == DIFFERENT else 1  # the state of j that corresponds to 1 in the complement
        table = flipped(table, 0, 1 - one)
        half, (more_i, more_j, forward, backward) = table[0] / 2.0, split(table)
        unary[i, 0] += half
        unary[i, 1] += half + more_i
        unary[j, 1 - one] += half
        unary[j, one] += half + more_j
        if wish != EITHER:
            add_capacity(network, 2 * a, 0, forward, backward)
            add_capacity(network, 2 * a + 1, 0, forward, backward)


@inlined
def can_reach_sink(trees: SearchTrees, i: int) -> bool:
    reaches: bool = trees.in_sink[i] and trees.parent[i] != FREE
    return reaches


@bare
def hold_in_turn(
    network: Network, trees: SearchTrees, labels: Ints, order: Ints, begin: int, max_work: int,
    hold: tuple[Ints, Floats, Floats],
) -> int:  # fmt: skip
    """Fix variables at their states, one after another, and augment the flow each time, which may decide others.

    Variables that are decided when their turn comes are skipped. Returns the position reached in `order` for the work;
    an unfinished flow is completed first. `hold` is scratch: two nodes, and what is added to their capacities.
    """
    n, end, (nodes, source, sink) = len(labels), trees.cursor.work + max_work, hold
    if send_flow(network, trees, max_work, NO_LIMIT) == PAUSED:
        return begin
    for k in range(begin, len(order)):
        i = order[k]
        if can_reach_sink(trees, i) != can_reach_sink(trees, n + i):
            continue
        nodes[labels[i]], nodes[1 - labels[i]] = i, n + i  # the first is tied to the source
        source[0] = sink[1] = np.inf
        change_terminals(network, trees, nodes, source, sink)
        if send_flow(network, trees, max(1, end - trees.cursor.work), NO_LIMIT) == PAUSED:
            return k + 1
    return len(order)


# -- Improvement of labellings by roof duality (QPBO-I; Rother, Kolmogorov, Lempitsky and Szummer, 2007) --------------


class Improvement:
    """Rounds in which undecided variables are fixed at their states in random order until all others are decided.

    Decisions of roof duality while some variables are fixed at the states of a labelling never make that labelling
    worse. So the labelling at the end of a round is at least as good as the one at its start, up to round-off.
    """

    def __init__(self, roof: RoofDual, random: np.random.Generator) -> None:
        self.roof, self.random = roof, random
        self.undecided = np.flatnonzero(roof.states == UNDECIDED)
        trees = roof.flow.trees
        arrays: list[Any] = [roof.flow.network.residual, *trees[:-1]]
        self._kept = [(array, array.copy()) for array in arrays]
        self._cursor = {name: getattr(trees.cursor, name) for name in trees.cursor.dtype.names}  # type: ignore[attr-defined]
        self._hold = np.zeros(2, dtype=np.int64), np.zeros(2), np.zeros(2)
        self.order = np.zeros(0, dtype=np.int64)
        self.at = 0

    def begin(self, labels: Ints) -> None:
        """Start a round from a labelling in which all decided variables have their states."""
        for array, kept in self._kept:
            array[:] = kept
        for name, value in self._cursor.items():
            setattr(self.roof.flow.trees.cursor, name, value)
        self.labels = np.array(labels, dtype=np.int64)
        self.order, self.at = self.random.permutation(self.undecided), 0

    def run(self, max_work: int) -> bool:
        """Continue for about this much work; return whether the round has ended."""
        flow = self.roof.flow
        self.at = hold_in_turn(flow.network, flow.trees, self.labels, self.order, self.at, max_work, self._hold)
        return self.at == len(self.order)

    def improved(self) -> Ints:
        states = self.roof.states
        return np.asarray(np.where(states == UNDECIDED, self.labels, states))
