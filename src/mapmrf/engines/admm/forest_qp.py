"""The factor subproblem of K1 x K2 tables: an active set whose support is a forest. See `factor_qp` for the notation.

Rows and columns of the table are the nodes of a bipartite graph (columns numbered after the rows), the support its
edges. Columns of M are independent exactly if these edges form a forest, and in a tree the equality-constrained problem
is solved by traversing its edges. The support is stored in a leaf-stripping order: a slot packs its row, its column and
a side that names the end that is a leaf once the slots before it are removed. Removing slots keeps the order valid.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from mapmrf.arrays import Floats, Ints
from mapmrf.compilation.jit import bare, inlined
from mapmrf.engines.admm.factor_qp import TOLERANCE, Support, drop, retreat
from mapmrf.kernels.pair_transforms import Envelope, PairForm, pair_form, trace_transform, transform
from mapmrf.model.structured_pairs import NO_FORM, QUADRATIC, PairForms

LEAF_IS_ROW, LEAF_IS_COLUMN = 0, 1
MAX_STATES = 1 << 15  # maximum number of states per variable that a packed slot can hold


STEP_STATES, BOUND_STATES = 24, 12
"""Numbers of states from which a transform is faster than the table: in the vectorised factor step; in the bound."""
ENVELOPE = 4  # factor on these numbers for a quadratic form, as every parabola of its envelope takes two divisions


class PairTable(NamedTuple):
    """One K1 x K2 factor: its table, its weight, and the index of its form (NO_FORM for none)."""

    table: Floats
    weight: float
    form: int


@inlined
def pack(row: int, col: int, side: int) -> int:
    """Pack a slot of the forest's support."""
    return (row << 16) | (col << 1) | side


@inlined
def slot_row(slot: int) -> int:
    """Return the row of a slot."""
    return slot >> 16


@inlined
def slot_col(slot: int) -> int:
    """Return the column of a slot."""
    return (slot & 0xFFFF) >> 1


@inlined
def _ends(slot: int, k1: int) -> tuple[int, int]:
    """Return leaf and parent of a slot as nodes."""
    row, col = slot >> 16, k1 + ((slot & 0xFFFF) >> 1)
    if slot & 1:
        return col, row
    return row, col


class ForestScratch(NamedTuple):
    """Scratch for one subproblem, each array with an entry per row and column.

    It holds separate arrays: in the hot loop, taking rows of one array costs more than the work on them.

    price, pot, mass
        Of every node: u - M y, its constant within its tree, the mass that is left to hand out.
    goal
        Masses of the minimiser on the support.
    tree, root, row_sum, col_sum, n_rows, n_cols
        The tree of every node; of every tree its root, and sums and counts of its rows and columns.
    """

    price: Floats
    pot: Floats
    mass: Floats
    goal: Floats
    row_sum: Floats
    col_sum: Floats
    tree: Ints
    root: Ints
    n_rows: Ints
    n_cols: Ints


class ForestWalk(NamedTuple):
    """Arrays for a traversal of the forest: scratch that is free while a configuration enters.

    It is small because these functions are not inlined, and a call passes every array.
    """

    mass: Floats
    tree: Ints
    parent_slot: Ints
    order: Ints


@inlined
def forest_scratch(numbers: Floats, integers: Ints) -> ForestScratch:
    """Create scratch for subproblems in six rows of numbers and four of integers."""
    return ForestScratch(
        numbers[0], numbers[1], numbers[2], numbers[3], numbers[4], numbers[5],
        integers[0], integers[1], integers[2], integers[3],
    )  # fmt: skip


@inlined
def forest_qp(
    u: Floats, factor: PairTable, forms: PairForms | None, rho: float, support: Support, n: int, scratch: ForestScratch
) -> int:
    """Solve the subproblem of a K1 x K2 table; return the new size of the support.

    u : scaled targets, rows then columns. support : in and out, n slots on entry; 0 for a cold start. forms : None if
    no table has one, which gives a smaller kernel.
    """
    k1, k2 = factor.table.shape
    walk = ForestWalk(scratch.pot, scratch.tree, scratch.n_rows, scratch.n_cols)
    if n == 0:
        n = _forest_seed(u, factor, forms, rho, support, scratch.price)
    for _ in range(20 * (k1 + k2) + 20):
        tau = _forest_minimise(u, factor, rho, support, n, scratch)
        blocked = retreat(support, scratch.goal, n)
        if blocked >= 0:
            n = drop(support, n, blocked)
            continue
        row, col = _forest_price(factor, forms, tau + TOLERANCE * (abs(tau) + rho), scratch)
        if row < 0:
            break
        n = _forest_enter(row, col, k1, k2, support, n, walk)
    return n


@bare
def _forest_seed(
    u: Floats, factor: PairTable, forms: PairForms | None, rho: float, support: Support, price: Floats
) -> int:
    """Start from the vertex with the best price, or on the diagonal if a structured pair favours that."""
    if forms is not None:  # noqa: SIM102 (numba leaves out what None rules out only where it is all of the condition)
        if factor.form >= 0 and factor.weight * forms.slope[factor.form] > 0.0:
            return _diagonal_seed(u, factor, rho, support, price)
    table, weight = factor.table, factor.weight
    k1, k2 = table.shape
    support.y[support.at] = rho
    best = -np.inf
    for r in range(k1):
        for c in range(k2):
            value = weight * table[r, c] + u[r] + u[k1 + c]
            if value > best:
                best = value
                support.slots[support.at] = pack(r, c, LEAF_IS_ROW)
    return 1


@bare
def _diagonal_seed(u: Floats, factor: PairTable, rho: float, support: Support, price: Floats) -> int:
    """Start from the minimiser among the masses of equal states: (price - tau) / 2 where that is positive.

    Starting with all states, those below tau are removed until there are none: the projection onto a simplex. From a
    single vertex, the active set would take a step for every state with mass.
    """
    slots, y, at, k = support.slots, support.y, support.at, len(factor.table)
    n = k
    for e in range(k):
        price[e] = factor.weight * factor.table[e, e] + u[e] + u[k + e]
        slots[at + e] = e
    while True:
        total = -2.0 * rho
        for e in range(n):
            total += price[slots[at + e]]
        tau, before, n = total / n, n, 0
        for e in range(before):
            if price[slots[at + e]] > tau:
                slots[at + n] = slots[at + e]
                n += 1
        if n == before:
            break
    for e in range(at, at + n):
        y[e] = 0.5 * (price[slots[e]] - tau)
        slots[e] = pack(slots[e], slots[e], LEAF_IS_ROW)
    return n


@inlined
def _forest_minimise(
    u: Floats, factor: PairTable, rho: float, support: Support, n: int, scratch: ForestScratch
) -> float:
    """Compute the minimiser on the support: masses in `goal`, prices of all nodes in `price`; return tau.

    In a tree the prices are A_r = z + a_r on rows and B_c = tau - z + b_c on columns, with a and b fixed by the tree's
    edges; equal mass of rows and columns determines z, the total mass rho determines tau.
    """
    slots, at = support.slots, support.at
    price, pot, mass, goal = scratch.price, scratch.pot, scratch.mass, scratch.goal
    tree, root, row_sum, col_sum = scratch.tree, scratch.root, scratch.row_sum, scratch.col_sum
    n_rows, n_cols = scratch.n_rows, scratch.n_cols
    table, weight = factor.table, factor.weight
    k1, k2 = table.shape
    for v in range(k1 + k2):
        price[v] = u[v]
    for v in range(k1 + k2):
        tree[v] = -1
    n_trees = 0
    # From the roots to the leaves: a tree's number, its nodes' constants and its sums.
    for e in range(at + n - 1, at - 1, -1):
        leaf, parent = _ends(slots[e], k1)
        if tree[parent] < 0:
            tree[parent] = n_trees
            pot[parent] = 0.0
            root[n_trees] = parent
            is_row = parent < k1
            row_sum[n_trees] = u[parent] if is_row else 0.0
            col_sum[n_trees] = 0.0 if is_row else u[parent]
            n_rows[n_trees] = 1 if is_row else 0
            n_cols[n_trees] = 0 if is_row else 1
            n_trees += 1
        t = tree[parent]
        tree[leaf] = t
        pot[leaf] = -weight * table[slot_row(slots[e]), slot_col(slots[e])] - pot[parent]
        if leaf < k1:
            row_sum[t] += u[leaf] - pot[leaf]
            n_rows[t] += 1
        else:
            col_sum[t] += u[leaf] - pot[leaf]
            n_cols[t] += 1
    above, below = -rho, 0.0
    for t in range(n_trees):
        share = 1.0 / (n_rows[t] + n_cols[t])
        above += (n_cols[t] * row_sum[t] + n_rows[t] * col_sum[t]) * share
        below += n_rows[t] * n_cols[t] * share
    tau = above / below
    for t in range(n_trees):
        row_sum[t] = (row_sum[t] - col_sum[t] + n_cols[t] * tau) / (n_rows[t] + n_cols[t])
        v = root[t]
        price[v] = (row_sum[t] if v < k1 else tau - row_sum[t]) + pot[v]
        mass[v] = u[v] - price[v]
    for e in range(at, at + n):
        leaf, _ = _ends(slots[e], k1)
        z = row_sum[tree[leaf]]
        price[leaf] = (z if leaf < k1 else tau - z) + pot[leaf]
        mass[leaf] = u[leaf] - price[leaf]
    for e in range(n):
        leaf, parent = _ends(slots[at + e], k1)
        goal[e] = mass[leaf]
        mass[parent] -= mass[leaf]
    return tau


@inlined
def _forest_price(factor: PairTable, forms: PairForms | None, limit: float, scratch: ForestScratch) -> tuple[int, int]:
    """Return row and column of the largest price above the limit, or -1."""
    if forms is not None:  # noqa: SIM102 (as above)
        if pays(factor, forms, STEP_STATES):
            return entering_by_form(scratch.price, factor, forms, limit, scratch)
    return _table_price(scratch.price, factor, limit, scratch.pot)


@inlined
def _table_price(price: Floats, factor: PairTable, limit: float, cols: Floats) -> tuple[int, int]:
    """`_forest_price` by a scan of the whole table. Counting first keeps the common case vectorised."""
    table, weight = factor.table, factor.weight
    k1, k2 = table.shape
    for c in range(k2):
        cols[c] = price[k1 + c]
    row, col, best = -1, -1, limit
    for r in range(k1):
        rest = best - price[r]
        above = 0
        for c in range(k2):
            above += weight * table[r, c] + cols[c] > rest
        if above:
            for c in range(k2):
                if weight * table[r, c] + cols[c] + price[r] > best:
                    best = weight * table[r, c] + cols[c] + price[r]
                    row, col = r, c
    return row, col


@bare
def _forest_enter(row: int, col: int, k1: int, k2: int, support: Support, n: int, walk: ForestWalk) -> int:
    """Add a configuration; if it closes a cycle, push mass around the cycle until another one leaves."""
    slots, y, at = support.slots, support.y, support.at
    tree = walk.tree
    mass = 0.0
    if tree[row] >= 0 and tree[row] == tree[k1 + col]:
        mass, gone = _push_cycle(row, k1 + col, k1, k2, support, n, walk)
        n = drop(support, n, gone)
    elif tree[row] < 0 or tree[k1 + col] < 0:
        side = LEAF_IS_ROW if tree[row] < 0 else LEAF_IS_COLUMN
        for e in range(at + n, at, -1):  # a new node is a leaf without children: it can go first
            slots[e] = slots[e - 1]
            y[e] = y[e - 1]
        slots[at] = pack(row, col, side)
        y[at] = 0.0
        return n + 1
    slots[at + n] = pack(row, col, LEAF_IS_ROW)
    y[at + n] = mass
    _forest_order(k1, k2, support, n + 1, walk)
    return n + 1


@bare
def _push_cycle(row: int, col: int, k1: int, k2: int, support: Support, n: int, walk: ForestWalk) -> tuple[float, int]:
    """Push the entering edge's mass around its cycle; return that mass and the slot that became empty.

    Both ends climb towards the root, the one with the earlier slot first, until they meet; along the way the slots lose
    and gain mass alternately, beginning with a loss at each end.
    """
    slots, y, at = support.slots, support.y, support.at
    sign, parent_slot = walk.mass, walk.parent_slot
    for v in range(k1 + k2):
        parent_slot[v] = n
    for e in range(n):
        leaf, _ = _ends(slots[at + e], k1)
        parent_slot[leaf] = e
        sign[e] = 0.0
    sign_row, sign_col = -1.0, -1.0
    while row != col:
        e_row, e_col = parent_slot[row], parent_slot[col]
        if e_row < e_col:
            sign[e_row] = sign_row
            sign_row = -sign_row
            _, row = _ends(slots[at + e_row], k1)
        else:
            sign[e_col] = sign_col
            sign_col = -sign_col
            _, col = _ends(slots[at + e_col], k1)
    mass, gone = np.inf, -1
    for e in range(n):
        if sign[e] < 0.0 and y[at + e] < mass:
            mass, gone = y[at + e], e
    for e in range(n):
        y[at + e] += sign[e] * mass
    return mass, gone


@bare
def _forest_order(k1: int, k2: int, support: Support, n: int, walk: ForestWalk) -> None:
    """Sort the slots into a leaf-stripping order, in linear time.

    A node stores its degree and the exclusive-or of its slots, which is its only slot when the degree is one.
    """
    slots, y, at = support.slots, support.y, support.at
    masses, degree, knot, order = walk.mass, walk.tree, walk.parent_slot, walk.order
    for v in range(k1 + k2):
        degree[v] = 0
        knot[v] = 0
    for e in range(n):
        row, col = slot_row(slots[at + e]), k1 + slot_col(slots[at + e])
        degree[row] += 1
        degree[col] += 1
        knot[row] ^= e
        knot[col] ^= e
    done = 0
    for v in range(k1 + k2):
        leaf = v
        while degree[leaf] == 1:
            e = knot[leaf]
            row, col = slot_row(slots[at + e]), slot_col(slots[at + e])
            is_row = leaf == row
            other = k1 + col if is_row else row
            order[done] = pack(row, col, LEAF_IS_ROW if is_row else LEAF_IS_COLUMN)
            masses[done] = y[at + e]
            done += 1
            degree[leaf] = 0
            degree[other] -= 1
            knot[other] ^= e
            if other > v:
                break
            leaf = other
    for e in range(n):
        slots[at + e] = order[e]
        y[at + e] = masses[e]


# -- The largest price ``w T + a + b`` of a structured pair, in linear time: Potts, (truncated) linear or quadratic ---
# With T = base + row + column - g, row and column parts are added to the prices a of the rows and b of the columns, and
# the transform of `mapmrf.kernels.pair_transforms` maximises over the rows for every column. Of the forest's scratch,
# `mass` takes the prices of the rows, `pot` their transform, `root` its maximising rows, and `n_rows` and `col_sum` the
# envelope, which are all free then.


@inlined
def form_of(forms: PairForms | None, a: int) -> int:
    """Return the index of a factor's form, NO_FORM for none."""
    if forms is None:
        return NO_FORM
    form: int = forms.of[a]
    return form


@inlined
def pays(factor: PairTable, forms: PairForms, n_states: int) -> bool:
    """Return whether the factor has a form, and enough states for it to be faster than the table."""
    if factor.form < 0:
        return False
    return len(factor.table) >= (ENVELOPE * n_states if forms.kind[factor.form] == QUADRATIC else n_states)


@inlined
def _load(price: Floats, factor: PairTable, forms: PairForms, room: ForestScratch) -> PairForm:
    """Load the prices of the rows plus the table's row part into `room.mass`; return the form."""
    k = len(factor.table)
    at = forms.part_at[factor.form]
    for r in range(k):
        room.mass[r] = price[r]
    if at >= 0:
        for r in range(k):
            room.mass[r] += factor.weight * forms.parts[at + r]
    return pair_form(forms, factor.form, factor.weight)


@inlined
def largest_of_form(price: Floats, factor: PairTable, forms: PairForms, room: ForestScratch) -> float:
    """Return the largest price; `price` has the rows, then the columns."""
    k, weight = len(factor.table), factor.weight
    form = _load(price, factor, forms, room)
    transform(form, room.mass, 0, room.pot, 0, k, Envelope(room.n_rows, room.col_sum))
    at, best = forms.part_at[factor.form], -np.inf
    if at >= 0:
        for c in range(k):
            room.pot[c] += weight * forms.parts[at + k + c]
    for c in range(k):
        best = max(best, room.pot[c] + price[k + c])
    largest: float = best + weight * forms.base[factor.form]
    return largest


@bare
def best_of_form(price: Floats, factor: PairTable, forms: PairForms, room: ForestScratch) -> tuple[int, int]:
    """Return row and column of the largest price."""
    k, weight = len(factor.table), factor.weight
    form = _load(price, factor, forms, room)
    trace_transform(form, room.mass, 0, room.pot, room.root, k, Envelope(room.n_rows, room.col_sum))
    at, best, col = forms.part_at[factor.form], -np.inf, 0
    for c in range(k):
        value = room.pot[c] + price[k + c] + (weight * forms.parts[at + k + c] if at >= 0 else 0.0)
        if value > best:
            best, col = value, c
    return room.root[col], col


@bare
def entering_by_form(
    price: Floats, factor: PairTable, forms: PairForms, limit: float, room: ForestScratch
) -> tuple[int, int]:
    """Return row and column of the largest price if it is above a limit, else -1; the table has the last word.

    Otherwise round-off between the two could repeatedly bring in a configuration that is already in the support.
    """
    quadratic = forms.kind[factor.form] == QUADRATIC  # its envelope, once computed, also gives the maximiser
    if not quadratic and largest_of_form(price, factor, forms, room) <= limit:
        return -1, -1
    row, col = best_of_form(price, factor, forms, room)
    above = factor.weight * factor.table[row, col] + price[row] + price[len(factor.table) + col] > limit
    return (row, col) if above else (-1, -1)
