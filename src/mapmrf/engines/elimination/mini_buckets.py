"""Mini-bucket elimination with moment matching: messages that bound every subproblem of a bucket tree."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from mapmrf.arrays import Bools, Floats, Ints, segment_max
from mapmrf.compilation.jit import bare, compiled, inlined
from mapmrf.engines.elimination.elimination import (
    BLOCK,
    MARGINAL,
    NOWHERE,
    PLAIN,
    BucketTree,
    FoldedSum,
    Functions,
    FunctionTables,
    complete,
    fold,
    function_tables,
    inverse,
    row_major,
)
from mapmrf.model.problem import Problem
from mapmrf.run import pace


def find_partition(
    tree: BucketTree, given: Functions, max_vars: int, max_log: float, max_entries: float = math.inf
) -> BucketPartition | None:
    """Partition all buckets with messages of limited size; None if they exceed `max_entries` in total."""
    fits, partition = partition_buckets(tree.card, given.ptr, given.var, max_vars, float(max_log), float(max_entries))
    return partition if fits else None


def largest_partition(tree: BucketTree, given: Functions, max_entries: float) -> BucketPartition:
    """Return the partition with the largest tables whose messages have at most `max_entries` in total."""
    low, best = max(1, int(math.log2(max(2.0, max_entries / max(1, tree.n)))) - 1), None
    while best is None and low > 0:
        best = find_partition(tree, given, tree.n, low, max_entries)
        low -= best is None
    # no table has 2^60 entries
    while best is not None and low < 60:
        bigger = find_partition(tree, given, tree.n, low + 1, max_entries)
        if bigger is None:
            break
        best, low = bigger, low + 1
    smallest = best if best is not None else find_partition(tree, given, 0, 0.0)
    assert smallest is not None
    return smallest


class MiniBuckets:
    """The messages of all mini-buckets, computed in steps."""

    def __init__(self, tree: BucketTree, given: Functions, partition: BucketPartition) -> None:
        self.tree, self.given, self.partition = tree, given, partition
        strides, sizes = row_major(tree.card, partition.fn_ptr[given.n :], partition.fn_var)
        starts = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
        messages = np.diff(partition.fn_ptr[given.n :]), partition.fn_var[len(given.var) :], strides, starts[:-1]
        target = partition.bucket_of[given.n :]
        self.tables = function_tables(tree.card, given, *messages, target, np.empty(int(starts[-1])))
        counts = np.diff(partition.mini_ptr)
        largest = np.maximum.reduceat(sizes, partition.mini_ptr[:-1]) if tree.n else np.zeros(0)
        room = (largest * tree.card[::-1] * counts)[counts > 1].max(initial=1)
        self._shift = np.empty(int(room))
        self._inner = np.empty((1 + int(np.diff(partition.member_ptr).max(initial=0)), BLOCK), dtype=np.int32)
        self._cursor = 0, False, 0, 0  # see `build`

    @property
    def n_done(self) -> int:
        return self._cursor[0]

    @property
    def finished(self) -> bool:
        return self.n_done == self.tree.n

    @property
    def split(self) -> Bools:
        """Mask of the positions whose bucket has several mini-buckets, so that their messages are not exact."""
        return np.asarray(np.diff(self.partition.mini_ptr)[::-1] > 1)

    @property
    def largest_scope(self) -> int:
        """Number of variables of the largest message: the effective i-bound."""
        return int(np.diff(self.tables.ptr[self.given.n :]).max(initial=0))

    def advance(self, additions: int, max_done: int) -> None:
        """Do about this many additions of table entries, at least a block, until `max_done` buckets are complete."""
        until = min(self.tree.n, max_done)
        self._cursor = build(self._cursor, additions, until, self.tables, self.partition, self._shift, self._inner)

    def bound(self) -> float:
        """Upper bound on the sum of all given functions, once finished."""
        constants = np.flatnonzero(self.partition.bucket_of[self.given.n :] < 0)
        return float(self.tables.arena[self.tables.at[self.given.n + constants]].sum())

    def complete(self, labels: Ints, fixed: Bools) -> None:
        complete(0, self.tree.n, self.tables, fixed, labels)


# -- Mini-buckets: a partition of the functions of every bucket, and their messages with matched max-marginals --------


class BucketPartition(NamedTuple):
    """The mini-buckets of all buckets, the last position first; the message of `m` is the function ``n_given + m``."""

    fn_ptr: Ints
    fn_var: Ints  # scopes of given functions and messages
    mini_ptr: Ints  # the mini-buckets of position `p` are those from ``mini_ptr[n - 1 - p]`` on
    member_ptr: Ints
    member: Ints  # the functions of every mini-bucket
    bucket_of: Ints  # the bucket that a function belongs to; -1 for a constant


@inlined
def unite(scopes: Ints, r: int, n_a: int, scope_b: Ints, begin_b: int, end_b: int, out: Ints) -> int:
    """Write the union of two ascending scopes, one of them row `r` of `scopes`, to `out`; return its length."""
    i, j, n = 0, begin_b, 0
    while i < n_a or j < end_b:
        if j >= end_b or (i < n_a and scopes[r, i] < scope_b[j]):
            out[n] = scopes[r, i]
            i += 1
        else:
            out[n] = scope_b[j]
            if i < n_a and scopes[r, i] == scope_b[j]:
                i += 1
            j += 1
        n += 1
    return n


@compiled
def enlarged(array: Ints, room: int) -> Ints:
    """The array if it has enough room, else a copy with twice the room that is needed."""
    if len(array) >= room:
        return array
    bigger = np.empty(2 * room, np.int64)
    for at in range(len(array)):
        bigger[at] = array[at]
    return bigger


@compiled
def by_scope(first: int, after: Ints, fn_ptr: Ints) -> tuple[Ints, int]:
    """The functions of a linked list, the largest scopes first, among equals the smallest number; the largest scope."""
    n_mine, longest = 0, 0
    f = first
    while f >= 0:
        n_mine += 1
        longest = max(longest, fn_ptr[f + 1] - fn_ptr[f])
        f = after[f]
    listed, mine = np.empty(n_mine, np.int64), np.empty(n_mine, np.int64)
    f = first
    for k in range(n_mine):  # the list has the smallest number last
        listed[n_mine - 1 - k] = f
        f = after[f]
    n_sorted = 0
    for length in range(longest, 0, -1):
        for k in range(n_mine):
            if fn_ptr[listed[k] + 1] - fn_ptr[listed[k]] == length:
                mine[n_sorted] = listed[k]
                n_sorted += 1
    return mine, longest


@compiled
def partition_bucket(
    mine: Ints, longest: int, fn_ptr: Ints, fn_var: Ints, log_card: Floats, max_vars: int, max_log: float
) -> tuple[int, Ints, Ints, Ints]:
    """Put functions, one after another, into mini-buckets: their number, which is whose, their scopes and lengths.

    A function joins a mini-bucket that need not grow, else the first with room, else a new one.
    """
    n_mine = len(mine)
    room = 2 + max(longest, min(max_vars, int(min(max_log, 1e6))))
    scopes, lengths = np.empty((n_mine, room), np.int64), np.zeros(n_mine, np.int64)
    spare, of = np.empty(2 * room, np.int64), np.empty(n_mine, np.int64)
    n_mini = 0
    for k in range(n_mine):
        begin, end = fn_ptr[mine[k]], fn_ptr[mine[k] + 1]
        r = n_mini
        for s in range(n_mini):
            n, size = unite(scopes, s, lengths[s], fn_var, begin, end, spare), 0.0
            if n == lengths[s]:
                r = s
                break
            for d in range(n):
                size += log_card[spare[d]]
            if r == n_mini and n - 1 <= max_vars and size - log_card[fn_var[end - 1]] <= max_log:
                r = s
        n_mini = max(n_mini, r + 1)
        lengths[r] = unite(scopes, r, lengths[r], fn_var, begin, end, spare)
        for d in range(lengths[r]):
            scopes[r, d] = spare[d]
        of[k] = r
    return n_mini, of, scopes, lengths


@compiled
def partition_buckets(
    card: Ints, given_ptr: Ints, given_var: Ints, max_vars: int, max_log: float, max_entries: float
) -> tuple[bool, BucketPartition]:
    """Partition every bucket, the last position first, into mini-buckets whose messages keep to the limits.

    A message has at most `max_vars` variables and 2^max_log entries (unless a single function has more). Returns
    whether all messages have at most `max_entries` together; if not, the partition is not complete.
    """
    n, n_given = len(card), len(given_ptr) - 1
    log_card = np.log2(card.astype(np.float64))
    fn_ptr, fn_var = enlarged(given_ptr, n_given + 1), enlarged(given_var, len(given_var))
    bucket_of: Ints = np.empty(n_given, np.int64)
    after: Ints = np.empty(n_given, np.int64)
    head = np.full(n, -1, np.int64)
    for f in range(n_given):
        p = given_var[given_ptr[f + 1] - 1]
        bucket_of[f] = p
        after[f], head[p] = head[p], f
    n_fn, n_var, n_member, entries = n_given, len(given_var), 0, 0.0
    mini_ptr = np.zeros(n + 1, np.int64)
    member_ptr: Ints = np.zeros(n_given, np.int64)
    member: Ints = np.zeros(n_given, np.int64)
    for t in range(n):
        mine, longest = by_scope(head[n - 1 - t], after, fn_ptr)
        n_mini, of, scopes, lengths = partition_bucket(mine, longest, fn_ptr, fn_var, log_card, max_vars, max_log)
        fn_ptr, member_ptr = enlarged(fn_ptr, n_fn + n_mini + 1), enlarged(member_ptr, n_fn + n_mini + 1)
        bucket_of, after = enlarged(bucket_of, n_fn + n_mini), enlarged(after, n_fn + n_mini)
        member = enlarged(member, n_member + len(mine))
        for r in range(n_mini):
            for k in range(len(mine)):
                if of[k] == r:
                    member[n_member] = mine[k]
                    n_member += 1
            member_ptr[n_fn - n_given + 1] = n_member
            length = lengths[r] - 1  # the last variable is the one that is eliminated
            fn_var = enlarged(fn_var, n_var + length)
            size = 0.0
            for d in range(length):
                fn_var[n_var + d] = scopes[r, d]
                size += log_card[scopes[r, d]]
            n_var += length
            fn_ptr[n_fn + 1] = n_var
            entries += 2.0 ** min(size, 1000.0)
            bucket_of[n_fn] = -1
            if length > 0:
                q = scopes[r, length - 1]
                bucket_of[n_fn] = q
                after[n_fn], head[q] = head[q], n_fn
            n_fn += 1
        mini_ptr[t + 1] = n_fn - n_given
        if entries > max_entries:
            return False, BucketPartition(fn_ptr, fn_var, mini_ptr, member_ptr, member, bucket_of)
    n_mini = n_fn - n_given
    return True, BucketPartition(
        fn_ptr[: n_fn + 1], fn_var[:n_var], mini_ptr, member_ptr[: n_mini + 1], member[:n_member], bucket_of[:n_fn]
    )


@bare
def common_scope(first: int, last: int, fns: FunctionTables, x: int, scope: Ints) -> int:
    """Write the variables that mini-buckets `first` to `last` share, ascending, `x` at the end; return how many."""
    ptr, var, n_given = fns.ptr, fns.var, fns.n_given
    begin, n = ptr[n_given + first], ptr[n_given + first + 1] - ptr[n_given + first]
    for d in range(n):
        scope[d] = var[begin + d]
    for m in range(first + 1, last):
        at, end, left = ptr[n_given + m], ptr[n_given + m + 1], 0
        for d in range(n):
            while at < end and var[at] < scope[d]:
                at += 1
            if at < end and var[at] == scope[d]:
                scope[left] = scope[d]
                left += 1
        n = left
    scope[n] = x
    return int(n + 1)


@bare
def match(shift: Floats, n_minis: int, size: int) -> None:
    """Turn max-marginals into what each mini-bucket gains so that all have their mean; -inf in one is -inf in all."""
    for s in range(size):
        mean, possible = 0.0, True
        for r in range(n_minis):
            mean += shift[r * size + s] / n_minis
            possible = possible and shift[r * size + s] > -np.inf
        for r in range(n_minis):
            shift[r * size + s] = mean - shift[r * size + s] if possible else -np.inf


@compiled
def build(
    cursor: tuple[int, bool, int, int], budget: int, until: int, fns: FunctionTables, partition: BucketPartition,
    shift: Floats, inner: Ints,
) -> tuple[int, bool, int, int]:  # fmt: skip
    """Compute messages, bucket after bucket, up to bucket `until` or until some `budget` of additions is spent.

    A bucket with several mini-buckets first gets their max-marginals on the variables that all of them have, then the
    messages of the matched mini-buckets. The cursor is where to continue: the bucket (n - 1 - position), whether the
    max-marginals of its mini-buckets have been matched, the mini-bucket, and the block of its table.
    """
    card, mini_ptr, member_ptr = fns.card, partition.mini_ptr, partition.member_ptr
    n = len(card)
    no_choice, scope = np.zeros(1, np.uint8), np.empty(n + 1, np.int64)
    t, matched, mini, block = cursor
    while t < until and budget > 0:
        x = n - 1 - t
        n_minis = mini_ptr[t + 1] - mini_ptr[t]
        n_scope, size = 0, 1
        matched = matched or n_minis == 1
        if n_minis > 1:
            n_scope = common_scope(mini_ptr[t], mini_ptr[t + 1], fns, x, scope)
            for d in range(n_scope):
                size *= card[scope[d]]
            if not matched and mini == 0 and block == 0:
                shift[: size * n_minis] = -np.inf
        m = mini_ptr[t] + mini
        mine = partition.member[member_ptr[m] : member_ptr[m + 1]]
        message = fns.n_given + m
        dims = fns.var[fns.ptr[message] : fns.ptr[message + 1]]
        entries = card[x]
        for v in dims:
            entries *= card[v]
        cost = BLOCK * card[x] * (len(mine) + 1)
        n_blocks = 1 + budget // cost
        mode = PLAIN if matched else MARGINAL
        own = scope[:n_scope]
        terms = FoldedSum(mine, dims, x, own, shift, mini * size, fns.at[message], no_choice, NOWHERE)
        block = fold(mode, fns, terms, block, n_blocks, inner)
        budget -= min(n_blocks * cost, entries * (len(mine) + 1) + 100)
        if block >= 0:
            continue
        mini, block = mini + 1, 0
        if mini == n_minis and not matched:
            match(shift, n_minis, size)
            matched, mini = True, 0
        elif mini == n_minis:
            t, matched, mini = t + 1, False, 0
    return t, matched, mini, block


# -- Cost shifting between variables and factors: a reparametrisation with a smaller bound ----------------------------


class CostShifting:
    """Sequential cost shifting: reparametrises a problem to lower its bound, the sum of all maxima."""

    def __init__(self, problem: Problem, order: Ints) -> None:
        graph = problem.graph
        self.problem = problem
        self.theta_v = graph.theta_v.copy()
        self.theta_f = problem.theta_f.copy()
        self.table_ptr = problem.config_ptr.astype(np.int64)
        self.labels = np.zeros(problem.n_vars, dtype=np.int64)  # best states by max-marginals in the last pass
        self._model = ShiftedModel(
            graph.card, graph.var_ptr, problem.nbr_ptr, problem.edge_factor[problem.nbr],
            problem.edge_stride[problem.nbr], problem.scope_ptr, problem.scope, self.table_ptr,
        )  # fmt: skip
        self._gathered = np.zeros(int(graph.card.max(initial=1)))
        self._order, self._rank, self._back = order, inverse(order), False

    def sweep(self) -> Iterator[None]:
        """Shift costs along the order and back, in steps of some table entries."""
        for order, rank in ((self._order, self._rank), (self._order[::-1].copy(), -self._rank)):
            for some in np.split(order, self._ends(order)):
                shift_costs(some, rank, self._model, self.theta_v, self.theta_f, self._gathered, self.labels)
                yield

    def _ends(self, order: Ints) -> Ints:
        """Return the ends of the steps along an order, except for the last."""
        sizes = np.diff(self.table_ptr)[self._model.factor_of]
        total = np.concatenate([[0], np.cumsum(sizes)])
        work = np.cumsum((total[self._model.nbr_ptr[1:]] - total[self._model.nbr_ptr[:-1]])[order])
        return np.flatnonzero(np.diff(work // pace.BUCKETS)) + 1

    def collect(self) -> None:
        """Move the max-marginals of all factors to their variables, in either order alternately."""
        self._back = not self._back
        order = self._order[::-1].copy() if self._back else self._order
        collect_marginals(order, self._model, self.theta_v, self.theta_f, self._gathered)

    def bound(self) -> float:
        """The sum of the largest entries of all potentials."""
        total = self.problem.graph.constant
        for values, ptr in ((self.theta_v, self.problem.graph.var_ptr), (self.theta_f, self.table_ptr)):
            total += float(segment_max(values, ptr).sum())
        return total


class ShiftedModel(NamedTuple):
    """The structure of a model whose factors have a table each."""

    card: Ints  # number of states of every variable
    var_ptr: Ints  # where its unary potentials start
    nbr_ptr: Ints
    factor_of: Ints  # the factors of every variable
    stride_of: Ints  # the strides of the variable in their tables
    scope_ptr: Ints
    scope: Ints  # the variables of every factor
    table_ptr: Ints  # where the factors' tables start


@inlined
def take_marginals(i: int, e: int, model: ShiftedModel, theta_v: Floats, theta_f: Floats, gathered: Floats) -> None:
    """Move the max-marginals of a factor at its edge `e` into the unary potentials of variable `i`."""
    at_v, n_k, stride = model.var_ptr[i], model.card[i], model.stride_of[e]
    first, last = model.table_ptr[model.factor_of[e]], model.table_ptr[model.factor_of[e] + 1]
    for k in range(n_k):
        gathered[k] = -np.inf
    for t in range(first, last):
        k = (t - first) // stride % n_k
        gathered[k] = max(gathered[k], theta_f[t])
    for k in range(n_k):
        theta_v[at_v + k] += gathered[k]
        if gathered[k] == -np.inf:
            gathered[k] = 0.0
    for t in range(first, last):
        theta_f[t] -= gathered[(t - first) // stride % n_k]


@inlined
def rank_range(a: int, rank: Ints, model: ShiftedModel) -> tuple[int, int]:
    least = rank[model.scope[model.scope_ptr[a]]]
    most = least
    for at in range(model.scope_ptr[a] + 1, model.scope_ptr[a + 1]):
        least, most = min(least, rank[model.scope[at]]), max(most, rank[model.scope[at]])
    return least, most


@compiled
def shift_costs(
    order: Ints, rank: Ints, model: ShiftedModel, theta_v: Floats, theta_f: Floats, gathered: Floats, labels: Ints
) -> None:
    """Run one sequential pass of cost shifting between variables and factors, in place.

    Each variable takes the max-marginals of all its factors and gives an equal share to those that have a variable
    later in the order. The bound sum_i max theta_i + sum_a max theta_a does not rise in a forward and backward pass.
    `labels` receives the best state of every variable when it holds all the max-marginals.
    """
    factor_of, table_ptr = model.factor_of, model.table_ptr
    for i in order:
        at_v, n_k = model.var_ptr[i], model.card[i]
        n_in, n_out = 0, 0
        for e in range(model.nbr_ptr[i], model.nbr_ptr[i + 1]):
            least, most = rank_range(factor_of[e], rank, model)
            n_in += least < rank[i]
            n_out += most > rank[i]
            take_marginals(i, e, model, theta_v, theta_f, gathered)
        labels[i] = 0
        for k in range(1, n_k):
            if theta_v[at_v + k] > theta_v[at_v + labels[i]]:
                labels[i] = k
        if n_out == 0:
            continue
        share = 1.0 / max(n_in, n_out)
        for k in range(n_k):
            gathered[k] = share * theta_v[at_v + k]
            if gathered[k] > -np.inf:
                theta_v[at_v + k] -= n_out * gathered[k]
        for e in range(model.nbr_ptr[i], model.nbr_ptr[i + 1]):
            a, stride = factor_of[e], model.stride_of[e]
            if rank_range(a, rank, model)[1] > rank[i]:
                for t in range(table_ptr[a], table_ptr[a + 1]):
                    theta_f[t] += gathered[(t - table_ptr[a]) // stride % n_k]


@compiled
def collect_marginals(order: Ints, model: ShiftedModel, theta_v: Floats, theta_f: Floats, gathered: Floats) -> None:
    """Move the max-marginals of its factors to every variable, one after another; the bound does not rise."""
    for i in order:
        for e in range(model.nbr_ptr[i], model.nbr_ptr[i + 1]):
            take_marginals(i, e, model, theta_v, theta_f, gathered)
