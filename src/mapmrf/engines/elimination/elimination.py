"""Exact maximisation by bucket elimination."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from mapmrf.arrays import Bools, Floats, Ints, offsets, ranges
from mapmrf.compilation.jit import bare, compiled, inlined
from mapmrf.engines.elimination.orders import Order, PrimalGraph, contexts, preorder, segment_sums
from mapmrf.model.problem import Problem


class Elimination:
    """Exact maximisation by bucket elimination, in steps.

    A message is discarded once it has been used; the maximising states of every bucket are kept for each entry.
    """

    def __init__(self, tree: BucketTree, given: Functions) -> None:
        n = tree.n
        self.tree = tree
        stride, sizes = row_major(tree.card, tree.context_ptr, tree.context)
        messages = np.diff(tree.context_ptr), tree.context, stride, np.zeros(n, dtype=np.int64)
        self._tables = function_tables(tree.card, given, *messages, tree.parent, np.empty(int(tree.peak) + 1))
        self._choice_at = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
        self._choice = np.zeros(int(self._choice_at[-1]), dtype=label_type(tree.card))
        self._inner = np.empty((2 + int(np.diff(self._tables.bucket_ptr).max(initial=0)), BLOCK), dtype=np.int32)
        self._position, self._block, self._height = n - 1, 0, 0  # the bucket to continue with; see `eliminate`
        self.value = 0.0  # sum of the roots that are eliminated

    @staticmethod
    def bytes_needed(tree: BucketTree) -> float:
        """Return the memory of simultaneously live messages and of the choices."""
        return 8 * tree.peak + label_type(tree.card).itemsize * tree.entries

    @property
    def n_done(self) -> int:
        return self.tree.n - 1 - self._position

    @property
    def finished(self) -> bool:
        return self._position < 0

    def advance(self, additions: int, max_done: int) -> None:
        """Do about this many additions of table entries, at least a block, until `max_done` buckets are eliminated."""
        self._position, self._block, self._height, more = eliminate(
            self._position, self._block, self._height, additions, max(0, self.tree.n - max_done), self._tables,
            self._choice_at, self._choice, self._inner,
        )  # fmt: skip
        self.value += more

    def labels(self) -> Ints:
        labels = np.zeros(self.tree.n, dtype=np.int64)
        self.complete(0, self.tree.n, labels)
        return self.tree.by_variable(labels)

    def complete(self, begin: int, end: int, labels: Ints) -> None:
        """Set the labels (n,) of positions `begin` to `end` to the best given those before, once finished."""
        substitute(begin, end, self._tables, self._choice_at, self._choice, labels)

    def score(self, labels: Ints, at: Ints, out: Floats) -> None:
        """Write the next bucket's scores for labellings, (n_labellings, n), to `out`; its columns are at ``at[p]``."""
        score_labellings(self._position, self._position + 1, self._tables, labels, at, out)


def function_tables(
    card: Ints, given: Functions, lengths: Ints, var: Ints, stride: Ints, at: Ints, bucket: Ints, arena: Floats
) -> FunctionTables:
    """Append messages to the given functions: the lengths of their scopes, these, and their buckets (-1: none)."""
    bucket_of = np.concatenate([given.bucket, bucket])
    member = np.flatnonzero(bucket_of >= 0)
    member = member[np.argsort(bucket_of[member], kind="stable")]
    return FunctionTables(
        card=card,
        ptr=np.concatenate([given.ptr, given.ptr[-1] + np.cumsum(lengths)]).astype(np.int64),
        var=np.concatenate([given.var, var]).astype(np.int64),
        stride=np.concatenate([given.stride, stride]).astype(np.int64),
        at=np.concatenate([given.at, at]).astype(np.int64),
        n_given=given.n,
        theta=given.theta,
        arena=arena,
        bucket_ptr=offsets(np.bincount(bucket_of[member], minlength=len(card))).astype(np.int64),
        member=member,
    )


def label_type(card: Ints) -> np.dtype[np.unsignedinteger]:
    """Return the smallest type that holds a state of every variable."""
    return np.dtype(np.uint8 if int(card.max(initial=1)) <= 256 else np.uint16)


# -- The step shared by all elimination, adding tables and maximising over one variable; and bucket elimination -------

BLOCK = 1024  # entries of a result that are computed together, so that they stay in cache
PLAIN, WITH_CHOICE, MARGINAL = 0, 1, 2
"""Output of `fold`: maxima; maxima and maximising states; or max-marginals on the matched variables."""
NOWHERE: Any = np.int64(0)
"""The start of a table that is not used: not a plain 0, for which numba would compile functions twice."""


class FunctionTables(NamedTuple):
    """Functions over the positions of a bucket tree: the given ones first, then messages."""

    card: Ints  # (n,): number of states at every position
    ptr: Ints
    var: Ints  # function `f` has the variables ``var[ptr[f]:ptr[f + 1]]``, ascending
    stride: Ints  # their strides in its table
    at: Ints  # where the table of function `f` starts in `theta` (f < n_given) or in `arena`
    n_given: int
    theta: Floats  # the tables of given functions
    arena: Floats  # the tables of messages
    bucket_ptr: Ints
    member: Ints  # the functions in the bucket of position `p` are ``member[bucket_ptr[p]:bucket_ptr[p + 1]]``


class FoldedSum(NamedTuple):
    """A sum of functions to be maximised over one variable, and where the message goes."""

    members: Ints
    dims: Ints  # the variables left
    x: int  # the variable that is maximised over
    scope: Ints  # variables of a matched table, `x` last; without variables there is none
    table: Floats  # the matched table: it is added to the sum, or receives its max-marginals
    table_at: int  # where it starts in `table`
    at: int  # where the message starts in the arena
    choice: Ints
    choice_at: int  # where its maximising states start in `choice`


class FoldLayout(NamedTuple):
    """Places of the members' tables while a sum is folded, block after block; the matched table has the last row."""

    stride: Ints  # (n_rows, n_dims + 1): strides along the variables left and, last, along the eliminated one
    base: Ints  # (n_rows,): where the block begins in every table, with the eliminated variable in state 0
    digit: Ints  # (n_dims,): the configuration at which the block begins
    inner: Ints  # (n_rows, BLOCK): places of the block's entries in every table, relative to the first
    flat: Bools  # (n_rows,): whether a table does not change within a block


@bare
def lay_out(fns: FunctionTables, terms: FoldedSum, layout: FoldLayout) -> None:
    members, dims, scope, stride, base = terms.members, terms.dims, terms.scope, layout.stride, layout.base
    n_dims, n_members = len(dims), len(members)
    for r in range(n_members):
        f = members[r]
        base[r] = fns.at[f]
        d = 0
        for at in range(fns.ptr[f], fns.ptr[f + 1]):
            while d < n_dims and dims[d] != fns.var[at]:
                d += 1
            stride[r, d] = fns.stride[at]
    base[n_members] = terms.table_at
    step, d = 1, n_dims
    for m in range(len(scope) - 1, -1, -1):
        if m < len(scope) - 1:
            d -= 1
            while dims[d] != scope[m]:
                d -= 1
        stride[n_members, d] = step
        step *= fns.card[scope[m]]


@bare
def tabulate_inner(card: Ints, dims: Ints, cut: int, width: int, layout: FoldLayout) -> None:
    """Fill in the places within a block, which runs over `dims` from `cut` on, and which tables do not change in it."""
    stride, digit, inner, flat = layout.stride, layout.digit, layout.inner, layout.flat
    n_dims, n_rows = len(dims), len(layout.base)
    for j in range(width):
        for r in range(n_rows):
            at = 0
            for d in range(cut, n_dims):
                at += stride[r, d] * digit[d]
            inner[r, j] = at
            flat[r] = flat[r] and at == 0
        for d in range(n_dims - 1, cut - 1, -1):
            digit[d] += 1
            if digit[d] < card[dims[d]]:
                break
            digit[d] = 0


@inlined
def add_tables(
    k: int, fns: FunctionTables, members: Ints, layout: FoldLayout, shift: Floats, with_shift: bool, total: Floats
) -> None:
    """The sum of all members over a block of entries, with the eliminated variable in state `k`."""
    stride, base, inner, theta, arena = layout.stride, layout.base, layout.inner, fns.theta, fns.arena
    n_members, n_given, width, x_at = len(members), fns.n_given, len(total), stride.shape[1] - 1
    constant = 0.0
    for r in range(n_members):
        if layout.flat[r]:
            at = base[r] + k * stride[r, x_at]
            constant += theta[at] if members[r] < n_given else arena[at]
    for j in range(width):
        total[j] = constant
    if with_shift:
        at = base[n_members] + k * stride[n_members, x_at]
        for j in range(width):
            total[j] += shift[at + inner[n_members, j]]
    for r in range(n_members):
        if layout.flat[r]:
            continue
        at = base[r] + k * stride[r, x_at]
        if members[r] < n_given:
            for j in range(width):
                total[j] += theta[at + inner[r, j]]
        else:
            for j in range(width):
                total[j] += arena[at + inner[r, j]]


@inlined
def raise_best(k: int, total: Floats, best: Floats, choice: Ints, choice_at: int, with_choice: bool) -> None:
    """Take the sums of state `k` into the maxima; of equal states the first is the choice."""
    width = len(total)
    if k == 0:
        for j in range(width):
            best[j] = total[j]
        if with_choice:
            for j in range(width):
                choice[choice_at + j] = 0
    elif with_choice:
        for j in range(width):
            if total[j] > best[j]:
                best[j] = total[j]
                choice[choice_at + j] = k
    else:
        for j in range(width):
            best[j] = max(best[j], total[j])


@compiled
def fold(mode: int, fns: FunctionTables, terms: FoldedSum, begin: int, max_blocks: int, inner: Ints) -> int:
    """Maximise a sum of functions over variable `x`: out(dims) = max_x sum_f f(dims, x), some blocks of it.

    The matched table is added as well; in the mode MARGINAL it receives the max-marginals instead. Starts with block
    `begin` and does at most `max_blocks`; returns the next block, or -1 after the last. `inner` is scratch: a row of
    BLOCK places for every member, and one more.
    """
    card, dims, arena, shift = fns.card, terms.dims, fns.arena, terms.table
    n_dims, last = len(dims), len(terms.members)
    layout = FoldLayout(
        np.zeros((last + 1, n_dims + 1), np.int64), np.empty(last + 1, np.int64), np.zeros(n_dims, np.int64), inner,
        np.ones(last + 1, np.bool_),
    )  # fmt: skip
    lay_out(fns, terms, layout)
    cut, width, n_blocks = n_dims, 1, 1
    while cut > 0 and width * card[dims[cut - 1]] <= BLOCK:
        cut -= 1
        width *= card[dims[cut]]
    for d in range(cut):
        n_blocks *= card[dims[d]]
    tabulate_inner(card, dims, cut, width, layout)
    rest = begin  # the bases move from the first block to this one
    for d in range(cut - 1, -1, -1):
        layout.digit[d] = rest % card[dims[d]]
        rest //= card[dims[d]]
        for r in range(last + 1):
            layout.base[r] += layout.digit[d] * layout.stride[r, d]
    end = min(n_blocks, begin + max_blocks)
    total, best = np.empty(width), np.empty(width)
    with_shift = mode != MARGINAL and len(terms.scope) > 0
    for block in range(begin, end):
        for k in range(card[terms.x]):
            add_tables(k, fns, terms.members, layout, shift, with_shift, total)
            if mode == MARGINAL:
                at = layout.base[last] + k * layout.stride[last, n_dims]
                for j in range(width):
                    shift[at + inner[last, j]] = max(shift[at + inner[last, j]], total[j])
            else:
                choice_at = terms.choice_at + block * width
                raise_best(k, total, best, terms.choice, choice_at, mode == WITH_CHOICE)
        if mode != MARGINAL:
            for j in range(width):
                arena[terms.at + block * width + j] = best[j]
        for d in range(cut - 1, -1, -1):  # the next block: the last of the outer variables fastest
            layout.digit[d] += 1
            for r in range(last + 1):
                layout.base[r] += layout.stride[r, d]
            if layout.digit[d] < card[dims[d]]:
                break
            for r in range(last + 1):
                layout.base[r] -= layout.digit[d] * layout.stride[r, d]
            layout.digit[d] = 0
    return end if end < n_blocks else -1


@compiled
def eliminate(
    p: int, block: int, top: int, budget: int, until: int, fns: FunctionTables, choice_at: Ints | None,
    choice: Ints | None, inner: Ints,
) -> tuple[int, int, int, float]:  # fmt: skip
    """Eliminate buckets, the last position first, down to `until`, or until some `budget` of additions is spent.

    The message of position `p` is the function ``n_given + p``. Starts with a block of it; returns the next position
    and block. With choices, the best states of position `p` are written from ``choice_at[p]`` on, and the messages yet
    to be used are a stack in the arena: its height follows, and the sum of the roots that were eliminated. Without
    choices, every message is kept at its own place.
    """
    card, no_scope, no_table, total = fns.card, np.zeros(0, np.int64), np.zeros(1), 0.0
    no_choice = np.zeros(1, np.uint8)
    while p >= until and budget > 0:
        mine = fns.member[fns.bucket_ptr[p] : fns.bucket_ptr[p + 1]]
        message = fns.n_given + p
        dims = fns.var[fns.ptr[message] : fns.ptr[message + 1]]
        cost = BLOCK * card[p] * len(mine)
        n_blocks = 1 + budget // cost
        if choice is None or choice_at is None:
            terms = FoldedSum(mine, dims, p, no_scope, no_table, NOWHERE, fns.at[message], no_choice, NOWHERE)
            block = fold(PLAIN, fns, terms, block, n_blocks, inner)
            size = fns.at[message + 1] - fns.at[message]
        else:
            terms = FoldedSum(mine, dims, p, no_scope, no_table, NOWHERE, top, choice, choice_at[p])
            block = fold(WITH_CHOICE, fns, terms, block, n_blocks, inner)
            size = choice_at[p + 1] - choice_at[p]
        budget -= min(n_blocks * cost, size * card[p] * len(mine) + 100)
        if block >= 0:
            continue
        if choice is None:
            p, block = p - 1, 0
            continue
        if len(dims) == 0:
            total += fns.arena[top]
            size = 0
        low = top  # the finished message moves down to the place of the messages that it replaces
        for m in range(len(mine)):
            if mine[m] >= fns.n_given:
                low = min(low, fns.at[mine[m]])
        if low < top:
            for j in range(size):
                fns.arena[low + j] = fns.arena[top + j]
        fns.at[message] = low
        top = low + size
        p, block = p - 1, 0
    return p, block, top, total


@inlined
def score_bucket(p: int, fns: FunctionTables, labels: Ints, score: Floats) -> None:
    """The sum of the functions of a bucket for every state of its variable, the others as labelled."""
    for k in range(fns.card[p]):
        score[k] = 0.0
    for m in range(fns.bucket_ptr[p], fns.bucket_ptr[p + 1]):
        f = fns.member[m]
        at, step = fns.at[f], 0
        for d in range(fns.ptr[f], fns.ptr[f + 1]):
            if fns.var[d] == p:
                step = fns.stride[d]
            else:
                at += fns.stride[d] * labels[fns.var[d]]
        if f < fns.n_given:
            for k in range(fns.card[p]):
                score[k] += fns.theta[at + k * step]
        else:
            for k in range(fns.card[p]):
                score[k] += fns.arena[at + k * step]


@compiled
def score_labellings(begin: int, end: int, fns: FunctionTables, labels: Ints, at: Ints, score: Floats) -> None:
    """The scores of some buckets for several labellings (n_labellings, n), into their columns from ``at[p]`` on."""
    for row in range(len(labels)):
        for p in range(begin, end):
            score_bucket(p, fns, labels[row], score[row, at[p] : at[p + 1]])


@inlined
def best_state(p: int, fns: FunctionTables, labels: Ints) -> int:
    """The state of position `p` with the largest sum of its bucket, given the labels before it; `labels[p]` changes."""
    ptr, var, stride, at_f = fns.ptr, fns.var, fns.stride, fns.at
    best, best_value = 0, -np.inf
    for k in range(fns.card[p]):
        labels[p] = k
        value = 0.0
        for m in range(fns.bucket_ptr[p], fns.bucket_ptr[p + 1]):
            f = fns.member[m]
            at = at_f[f]
            for d in range(ptr[f], ptr[f + 1]):
                at += stride[d] * labels[var[d]]
            value += fns.theta[at] if f < fns.n_given else fns.arena[at]
        if value > best_value:
            best, best_value = k, value
    return best


@compiled
def complete(begin: int, end: int, fns: FunctionTables, fixed: Bools | None, labels: Ints) -> None:
    """Give every position, except those that are fixed, its best state, given those before it."""
    for p in range(begin, end):
        if fixed is None or not fixed[p]:
            labels[p] = best_state(p, fns, labels)


@compiled
def substitute(begin: int, end: int, fns: FunctionTables, choice_at: Ints, choice: Ints, out: Ints) -> None:
    for p in range(begin, end):
        at = choice_at[p]
        for d in range(fns.ptr[fns.n_given + p], fns.ptr[fns.n_given + p + 1]):
            at += fns.stride[d] * out[fns.var[d]]
        out[p] = choice[at]


# -- Bucket trees: the variables of an elimination order, numbered by position, roots first ---------------------------


@dataclass(frozen=True, eq=False)
class BucketTree:
    """The variables numbered by position in a tree of buckets: roots first, every subtree a range of positions.

    Buckets are eliminated from the last position to the first. Variables below are given by position.
    """

    var_of: Ints  # (n,): the variable at every position
    card: Ints  # (n,): number of states at every position
    parent: Ints  # (n,): the position of the parent, -1 for a root
    end: Ints  # (n,): the end of the subtree's range
    context_ptr: Ints
    context: Ints  # the ancestors that the subtree of a position depends on, ascending; empty if `known` is false
    known: Ints  # (n,): whether the context is known
    peak: float  # upper bound on the total entries of simultaneously live messages in exact elimination
    entries: float  # total entries of all messages of exact elimination

    @property
    def n(self) -> int:
        return len(self.var_of)

    @classmethod
    def build(cls, graph: PrimalGraph, card: Ints, order: Order) -> BucketTree:
        n = graph.n
        _, ptr, context, parent = contexts(graph.ptr, graph.nbr, order.order, order.n_known, 2**62)
        log_size = np.zeros(n)
        log_size[order.order] = segment_sums(np.log2(card.astype(np.float64))[context], ptr)
        size = np.exp2(np.minimum(log_size, 1000.0)) if order.n_known == n else np.full(n, math.inf)
        size[(parent < 0) & (log_size == 0)] = 1.0
        var_of, peak = preorder(order.order, parent, size if order.n_known == n else np.ones(n))
        position, rank = inverse(var_of), inverse(order.order)
        by_rank = rank[var_of]
        lengths = np.diff(ptr)[by_rank]
        context = position[context[ranges(ptr[by_rank], lengths)]]
        context = context[np.lexsort((context, np.repeat(np.arange(n), lengths)))]
        up = np.where(parent[var_of] >= 0, position[parent[var_of]], -1)
        return cls(
            var_of=var_of,
            card=card[var_of].astype(np.int64),
            parent=up,
            end=subtree_ends(up),
            context_ptr=offsets(lengths),
            context=context,
            known=by_rank < order.n_known,
            peak=peak if order.n_known == n else math.inf,
            entries=float(size.sum()),
        )

    def by_variable(self, labels: Ints) -> Ints:
        result = np.empty_like(labels)
        result[self.var_of] = labels
        return result


def inverse(permutation: Ints) -> Ints:
    result = np.empty(len(permutation), dtype=np.int64)
    result[permutation] = np.arange(len(permutation))
    return result


def subtree_ends(parent: Ints) -> Ints:
    """Return the end of every subtree's range: the next position that is not below it."""
    n = len(parent)
    end = np.arange(1, n + 1)
    for p in range(n - 1, -1, -1):
        if parent[p] >= 0:
            end[parent[p]] = max(end[parent[p]], end[p])
    return end


def row_major(card: Ints, ptr: Ints, var: Ints) -> tuple[Ints, Ints]:
    """Return strides of tables over the given scopes, last variable fastest, and their sizes (0: 2^62 or more)."""
    first, lengths = int(ptr[0]), np.diff(ptr)
    stride = np.ones(int(ptr[-1]) - first, dtype=np.int64)
    sizes = np.ones(len(lengths), dtype=np.int64)
    for back in range(1, int(lengths.max(initial=0)) + 1):
        of = np.flatnonzero(lengths >= back)
        at = ptr[1:][of] - back
        stride[at - first] = sizes[of]
        times = card[var[at]]
        sizes[of] = np.where(sizes[of] <= 2**62 // times, sizes[of] * times, 0)
    return stride, sizes


# -- Tables over the positions of a bucket tree -----------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Functions:
    """Tables over positions of a bucket tree: first the unary potentials, by position, then the factors."""

    ptr: Ints
    var: Ints  # the variables of every function, ascending
    stride: Ints  # their strides in its table
    at: Ints  # where the tables start in `theta`
    theta: Floats

    @property
    def n(self) -> int:
        return len(self.at)

    @property
    def bucket(self) -> Ints:
        """The bucket of every function: its last position, which is the first to be eliminated."""
        return self.var[self.ptr[1:] - 1]

    @classmethod
    def of_model(cls, problem: Problem, tree: BucketTree) -> Functions:
        """Return the potentials of a problem; a table for every distinct pair of a weight and a table."""
        graph = problem.graph.expanded()
        table_at = problem.table_at if graph is problem.graph else graph.table_ptr[graph.table_of[problem.order]]
        return cls.of(problem, tree, graph.theta_v, graph.theta_t, table_at)

    @classmethod
    def of(cls, problem: Problem, tree: BucketTree, theta_v: Floats, tables: Floats, table_at: Ints) -> Functions:
        """Use other potentials on the scopes of a problem; the table of factor `a` starts at ``table_at[a]``."""
        n, ptr = tree.n, problem.scope_ptr.astype(np.int64)
        places = inverse(tree.var_of)[problem.scope]
        by = np.lexsort((places, np.repeat(np.arange(len(table_at)), np.diff(ptr))))
        unary_at = problem.graph.var_ptr[:-1][tree.var_of]
        return cls(
            ptr=np.concatenate([np.arange(n), n + ptr]),
            var=np.concatenate([np.arange(n), places[by]]),
            stride=np.concatenate([np.ones(n, dtype=np.int64), problem.edge_stride[by]]),
            at=np.concatenate([unary_at, len(theta_v) + table_at.astype(np.int64)]).astype(np.int64),
            theta=np.concatenate([theta_v, tables]),
        )
