"""Block moves: exact joint optimisation of many variables given the labels of all others."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from mapmrf.arrays import Floats, Ints
from mapmrf.compilation.jit import bare, compiled, inlined
from mapmrf.engines.elimination.orders import PrimalGraph, append, ball
from mapmrf.engines.moves.flip_state import MoveModel, lay_out
from mapmrf.kernels.max_marginals import weight_of
from mapmrf.kernels.random_numbers import Bits, next_bits
from mapmrf.model.problem import Problem

PER_VARIABLE = 2000  # cost of planning per variable of a block pass, in table entries


class BlockMoves:
    """Block moves on the labellings of one problem; every move keeps or raises the value."""

    def __init__(self, problem: Problem, seed: int, graph: PrimalGraph | None = None) -> None:
        n = problem.n_vars
        self.problem = problem
        self.random = np.random.default_rng(seed)  # source of all randomness
        self.graph = PrimalGraph.of(problem) if graph is None else graph
        # total number of variables over all balls so far, with repetitions; a small ball counts as 16 variables
        self.work = self.effort = 0  # approximate number of table entries read so far
        self.ball_size = 32.0  # maximum number of variables of the next balls
        self._model = lay_out(problem)
        self._bits = np.floor(PER_BIT * np.log2(problem.graph.card)).astype(np.int64)
        self._local = np.full(n, -1, dtype=np.int32)
        self._scratch = np.full(n, -1, dtype=np.int32), np.zeros(n, dtype=np.int64)
        self._bit_state = np.array([0x9E3779B97F4A7C15 ^ (2 * seed + 1)], dtype=np.uint64)

    def optimise(self, labels: Ints, width: float, region: Ints | None = None) -> int:
        """Optimise a large part of a region (all variables if None) exactly, with tables of up to ``2**width`` entries.

        Changes the labels in place; returns how many changed.
        """
        if region is None:
            region = self.random.permutation(self.problem.n_vars)
        return self._solve(self._plan(region, width), labels)

    def optimise_ball(self, labels: Ints) -> int:
        """Optimise a ball around a random variable exactly, in place; return how many labels changed."""
        # Balls grow as long as all their variables can be optimised at once. Ties in the elimination order are resolved
        # from the centre outwards.
        largest = int(self.ball_size)
        size = int(self.random.integers(max(2, largest // 2), largest + 2))
        region = self.neighbourhood(size)
        self.effort += max(len(region), 16)  # minimum number of variables counted per ball, for the overhead of a move
        # Base-2 logarithm of the largest table of a ball: a move takes some milliseconds
        block = self._plan(region, 18.0)
        if len(block.order) < len(region):
            self.ball_size = max(2.0, 0.8 * self.ball_size)
        else:
            self.ball_size = min(1.05 * self.ball_size + 0.1, float(self.problem.n_vars))
        return self._solve(block, labels)

    def _plan(self, region: Ints, width: float) -> Block:
        return plan_block(
            self.graph.ptr, self.graph.nbr, self._bits, region, int(PER_BIT * width), self._local, self._bit_state
        )

    def _solve(self, block: Block, labels: Ints) -> int:
        # table entries of the elimination, counted once per function that is read
        below = np.concatenate([[0], np.cumsum(self._bits[block.scope[: block.scope_ptr[-1]]])])
        sizes = np.exp2((self._bits[block.order] + np.diff(below[block.scope_ptr])) / PER_BIT)
        self.work += int(sizes @ (self.problem.degree[block.order] + 1.0)) + PER_VARIABLE * len(block.order)
        return int(solve_block(self._model, block, labels, *self._scratch))

    def neighbourhood(self, size: int, centre: int | None = None) -> Ints:
        """Return up to `size` variables nearest to `centre`, by default a random one, nearest first."""
        if centre is None:
            centre = int(self.random.integers(self.problem.n_vars))
        return np.asarray(ball(self.graph.ptr, self.graph.nbr, centre, size))


# -- Exact optimisation over large low-width parts of a model, with all other variables fixed -------------------------
# Variables are eliminated one after another, cheapest first. If even the cheapest would create too large a table, the
# most expensive variable is frozen at its current label. The rest is solved by dynamic programming, so a pass never
# lowers the value. Graphs are in CSR form: the neighbours of `v` are ``nbr[ptr[v]:ptr[v + 1]]``.

BUCKETS = 512  # number of distinct weights; a weight is the logarithm of a table size, in steps of `PER_BIT`

PER_BIT = 8


class Block(NamedTuple):
    """The variables that a pass optimises; all others are frozen."""

    order: Ints  # the variables in the order of their elimination
    # scope_ptr, scope: the neighbours of each at that time
    scope_ptr: Ints
    scope: Ints


class RegionGraph(NamedTuple):
    """The variables of a region: their neighbours, and lists by the table that eliminating each would make."""

    # start, length, room: where the neighbours of each begin in a common pool, and the length up to which they may grow
    start: Ints
    length: Ints
    room: Ints
    # bits, table: weight of a variable, and of its table: its own and those of its neighbours together
    bits: Ints
    table: Ints
    weight: Ints  # weight by which it is listed: that of its table, up to the last bucket
    # head, after, before: the first of every list; who comes after and before each variable (-1: nobody)
    head: Ints
    after: Ints
    before: Ints


@bare
def unlink(lists: RegionGraph, v: int) -> None:
    after, before = lists.after, lists.before
    if before[v] >= 0:
        after[before[v]] = after[v]
    else:
        lists.head[lists.weight[v]] = after[v]
    if after[v] >= 0:
        before[after[v]] = before[v]


@bare
def link(lists: RegionGraph, v: int) -> None:
    """Put `v` in front of the list of its weight."""
    weight = min(lists.table[v], BUCKETS - 1)
    first = lists.head[weight]
    lists.after[v] = first
    lists.before[v] = -1
    if first >= 0:
        lists.before[first] = v
    lists.head[weight] = v
    lists.weight[v] = weight


@compiled
def region_graph(ptr: Ints, nbr: Ints, bits: Ints, region: Ints, local: Ints) -> tuple[RegionGraph, Ints, int]:
    """Neighbours within a region, in numbers of the region, with room to grow: the graph, its pool, and its end."""
    n, most = len(region), 0
    for i in range(n):
        local[region[i]] = i
        most += 2 * (ptr[region[i] + 1] - ptr[region[i]]) + 4
    graph = RegionGraph(
        np.empty(n, np.int64), np.empty(n, np.int64), np.empty(n, np.int64), np.empty(n, np.int64),
        np.zeros(n, np.int64), np.zeros(n, np.int32), np.full(BUCKETS, -1, np.int32), np.empty(n, np.int32),
        np.empty(n, np.int32),
    )  # fmt: skip
    pool = np.empty(2 * most + 16, np.int32)
    free = 0
    for i in range(n):
        graph.bits[i] = graph.table[i] = bits[region[i]]
        graph.start[i] = end = free
        for at in range(ptr[region[i]], ptr[region[i] + 1]):
            j = local[nbr[at]]
            if j >= 0:
                pool[end] = j
                end += 1
                graph.table[i] += bits[region[j]]
        graph.length[i] = end - free
        graph.room[i] = 2 * graph.length[i] + 4
        free += graph.room[i]
    for i in range(n - 1, -1, -1):  # of equal weights, the first of the region comes first
        local[region[i]] = -1
        link(graph, i)
    return graph, pool, free


@compiled
def join_all(
    scope: Ints, begin: int, end: int, graph: RegionGraph, pool: Ints, free: int, mark: Ints
) -> tuple[Ints, int]:
    """Make the variables ``scope[begin:end]`` neighbours of one another; returns the pool and its end."""
    # `mark` holds places in `scope`, plus one, of earlier calls or 0.
    for i in range(begin, end):
        a = scope[i]
        for at in range(graph.start[a], graph.start[a] + graph.length[a]):
            mark[pool[at]] = i + 1
        for j in range(i + 1, end):
            b = scope[j]
            if mark[b] != i + 1:
                pool, free = append(a, b, pool, graph.start, graph.length, graph.room, free)
                pool, free = append(b, a, pool, graph.start, graph.length, graph.room, free)
                graph.table[a] += graph.bits[b]
                graph.table[b] += graph.bits[a]
    return pool, free


@compiled
def plan_block(ptr: Ints, nbr: Ints, bits: Ints, region: Ints, limit: int, local: Ints, random: Bits) -> Block:
    """Choose the variables of a region to eliminate, their order and their neighbours; all others are frozen."""
    # `bits` is the weight of each variable, `limit` that of the largest table; earlier in the region goes before
    # equals. `local` is scratch of -1, left so.
    n = len(region)
    graph, pool, free = region_graph(ptr, nbr, bits, region, local)
    mark = np.zeros(n, np.int64)
    low, n_done = 0, 0
    order = np.empty(n, np.int32)
    scope_ptr = np.zeros(n + 1, np.int64)
    scope: Ints = np.empty(8 * n + 64, np.int32)
    for _ in range(n):
        while graph.head[low] < 0:
            low += 1
        freeze = low > limit
        if freeze:  # a variable with the heaviest table, one of the first two
            high = BUCKETS - 1
            while graph.head[high] < 0:
                high -= 1
            v = graph.head[high]
            if next_bits(random) & np.uint64(1) and graph.after[v] >= 0:
                v = graph.after[v]
        else:
            v = graph.head[low]
        unlink(graph, v)
        first, last = graph.start[v], graph.start[v] + graph.length[v]
        for h in range(first, last):  # drop it from the lists of its neighbours
            a = pool[h]
            graph.length[a] -= 1
            at = graph.start[a]
            while pool[at] != v:
                at += 1
            pool[at] = pool[graph.start[a] + graph.length[a]]
            graph.table[a] -= graph.bits[v]
        if not freeze:
            begin, end = scope_ptr[n_done], scope_ptr[n_done] + graph.length[v]
            if end > len(scope):
                bigger = np.empty(2 * end, np.int32)
                for at in range(begin):
                    bigger[at] = scope[at]
                scope = bigger
            for k in range(graph.length[v]):
                scope[begin + k] = pool[first + k]
            order[n_done] = region[v]
            n_done += 1
            scope_ptr[n_done] = end
            pool, free = join_all(scope, begin, end, graph, pool, free, mark)
        for at in range(first, last):
            a = pool[at]
            if min(graph.table[a], BUCKETS - 1) != graph.weight[a]:
                unlink(graph, a)
                link(graph, a)
            low = min(low, graph.weight[a])
    for at in range(scope_ptr[n_done]):
        scope[at] = region[scope[at]]
    return Block(order[:n_done], scope_ptr[: n_done + 1], scope)


class BlockTables(NamedTuple):
    """Tables of the eliminated variables, for all states of their scopes, and sums of the variable at hand."""

    at_ptr: Ints  # where the table of each starts
    # best, choice: the best sum and the best state
    best: Floats
    choice: Ints
    total: Floats  # sums for all states of a variable and of its scope
    offset: Ints  # offsets of a function in all states of the scope
    place: Ints  # by variable of the model: its place in the order, -1 if frozen
    step: Ints  # by variable of the model: its stride in the function at hand, 0 if not in it


@bare
def state_offsets(offset: Ints, scope: Ints, begin: int, end: int, card: Ints, step: Ints) -> tuple[int, int]:
    """Offsets of a function in all states of ``scope[begin:end]``, the last variable fastest."""
    # Last variables that the function does not have are left out where there are many states of them: each offset
    # stands for a run of states. Returns the number of offsets, and the length of the runs.
    last, run = end, 1
    while last > begin and step[scope[last - 1]] == 0:
        last -= 1
        run *= card[scope[last]]
    # Minimum length of runs of states that get the same value for which they are summed without individual offsets
    if run < 8:
        last, run = end, 1
    offset[0] = 0
    size = 1
    for at in range(last - 1, begin - 1, -1):
        u = scope[at]
        shift = step[u]
        for k in range(1, card[u]):
            for j in range(size):
                offset[k * size + j] = offset[j] + k * shift
        size *= card[u]
    return size, run


@bare
def add_function(
    tables: BlockTables, function: Floats, weight: float, base: int, stride: int, n_states: int, runs: tuple[int, int]
) -> None:
    """Add a weight times a function to the sums of a variable and its scope; `runs` as by `state_offsets`."""
    total, offset, row = tables.total, tables.offset, np.uintp(0)
    size, run, one = np.uintp(runs[0]), np.uintp(runs[1]), np.uintp(1)
    for k in range(n_states):
        first = base + k * stride
        if run == one:
            for j in range(size):
                total[row + j] += weight * function[np.uintp(first + offset[j])]
            row += size
        else:
            for j in range(size):
                value = weight * function[np.uintp(first + offset[j])]
                for i in range(run):
                    total[row + i] += value
                row += run


@inlined
def trim(block: Block, card: Ints, place: Ints, at_ptr: Ints) -> int:
    """Leave those out of the scopes who were frozen later, sort the rest by elimination, and size the tables."""
    # Returns the largest number of sums that one elimination needs.
    scope_ptr, scope = block.scope_ptr, block.scope
    largest, kept = 1, 0
    begin = 0
    for at in range(len(block.order)):
        end = scope_ptr[at + 1]
        scope_ptr[at] = kept
        size = 1
        for k in range(begin, end):
            u = scope[k]
            if place[u] >= 0:
                scope[kept] = u
                kept += 1
                size *= card[u]
        for i in range(scope_ptr[at] + 1, kept):  # sort by place
            u = scope[i]
            j = i - 1
            while j >= scope_ptr[at] and place[scope[j]] > place[u]:
                scope[j + 1] = scope[j]
                j -= 1
            scope[j + 1] = u
        at_ptr[at + 1] = at_ptr[at] + size
        largest = max(largest, size * card[block.order[at]])
        begin = end
    scope_ptr[len(block.order)] = kept
    return largest


@inlined
def add_factor(model: MoveModel, block: Block, labels: Ints, tables: BlockTables, at: int, a: int) -> None:
    """Add a factor to the sums of a variable, if that is the first of the factor's variables to be eliminated."""
    place, step = tables.place, tables.step
    base: int = model.table_at[a]
    least = at
    for p in range(model.scope_ptr[a], model.scope_ptr[a + 1]):
        u = model.scope[p]
        if place[u] < 0:
            base += model.scope_stride[p] * labels[u]
        else:
            least = min(least, place[u])
            step[u] = model.scope_stride[p]
    if least == at:
        runs = state_offsets(tables.offset, block.scope, block.scope_ptr[at], block.scope_ptr[at + 1], model.card, step)
        weight, v = weight_of(model.weight, a), block.order[at]
        add_function(tables, model.theta_t, weight, base, step[v], model.card[v], runs)
    for p in range(model.scope_ptr[a], model.scope_ptr[a + 1]):
        step[model.scope[p]] = 0


@inlined
def add_message(card: Ints, block: Block, tables: BlockTables, at: int, child: int) -> None:
    """Add the message of an eliminated variable to the sums of the next one."""
    scope, begin, end = block.scope, block.scope_ptr[child], block.scope_ptr[child + 1]
    v, step = block.order[at], tables.step
    stride = 1
    for k in range(end - 1, begin - 1, -1):
        step[scope[k]] = stride
        stride *= card[scope[k]]
    runs = state_offsets(tables.offset, scope, block.scope_ptr[at], block.scope_ptr[at + 1], card, step)
    add_function(tables, tables.best, 1.0, tables.at_ptr[child], step[v], card[v], runs)
    for k in range(begin, end):
        step[scope[k]] = 0


@inlined
def maximise(tables: BlockTables, at: int, n_states: int, label: int) -> None:
    """Find the best state of a variable for every state of its scope; the current label wins ties."""
    best, choice, total = tables.best, tables.choice, tables.total
    begin = tables.at_ptr[at]
    size = tables.at_ptr[at + 1] - begin
    for j in range(size):
        best[begin + j] = total[label * size + j]
        choice[begin + j] = label
    for k in range(n_states):
        row = k * size
        for j in range(size):
            value = total[row + j]
            if value > best[begin + j]:
                best[begin + j] = value
                choice[begin + j] = k


@compiled
def solve_block(model: MoveModel, block: Block, labels: Ints, place: Ints, step: Ints) -> int:
    """Solve exactly for the variables that `plan_block` left free, and write the labels; return how many changed."""
    # The scopes of the block are trimmed. `place` is -1 and `step` 0 before and after.
    order, scope_ptr, scope, card = block.order, block.scope_ptr, block.scope, model.card
    n = len(order)
    for at in range(n):
        place[order[at]] = at
    at_ptr = np.zeros(n + 1, np.int64)
    largest = trim(block, card, place, at_ptr)
    tables = BlockTables(
        at_ptr, np.empty(at_ptr[n]), np.empty(at_ptr[n], np.uint16), np.empty(largest), np.empty(largest, np.int64),
        place, step,
    )  # fmt: skip
    first, following = np.full(n, -1, np.int32), np.full(n, -1, np.int32)
    for at in range(n):
        v = order[at]
        size = at_ptr[at + 1] - at_ptr[at]
        for k in range(card[v]):
            theta = model.theta_v[model.var_ptr[v] + k]
            for j in range(size):
                tables.total[k * size + j] = theta
        for e in range(model.nbr_ptr[v], model.nbr_ptr[v + 1]):
            add_factor(model, block, labels, tables, at, model.factor_of[e])
        child = first[at]
        while child >= 0:
            add_message(card, block, tables, at, child)
            child = following[child]
        maximise(tables, at, card[v], labels[v])
        if scope_ptr[at + 1] > scope_ptr[at]:
            parent = place[scope[scope_ptr[at]]]
            following[at] = first[parent]
            first[parent] = at
    changed = 0
    for at in range(n - 1, -1, -1):  # the last eliminated is known first
        place[order[at]] = -1
        j = 0
        for k in range(scope_ptr[at], scope_ptr[at + 1]):
            j = j * card[scope[k]] + labels[scope[k]]
        new = tables.choice[at_ptr[at] + j]
        if new != labels[order[at]]:
            labels[order[at]] = new
            changed += 1
    return changed
