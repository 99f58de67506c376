"""The factor sub-problem of LS-LP and AD3, solved exactly by active sets.

For one factor with scope i_1 ... i_m the sub-problem is, in scaled masses y = rho mu_a,

    minimise  1/2 sum_k || u_k - M_k y ||^2 - theta . y   over  y >= 0, sum(y) = rho,

with u_k = rho t_k the scaled targets. Its optimality condition is that the *price*

    theta(t) + sum_k (u_k - M_k y)(t_k)

is the same number tau on the support of y and nowhere larger. A configuration of -inf is never priced, so it never
enters. All three solvers keep a support whose columns of M are independent, take the minimiser on that support, walk
back to feasibility where it leaves the simplex, and let the best-priced configuration enter.
"""

from __future__ import annotations

import numpy as np

from mapmrf.kernels.jit import bare, inlined

TOLERANCE = 1e-12
"""A configuration enters when its price beats tau by this much, relative to the size of the numbers at hand."""


@inlined
def pair2_step(t1, t2, strength):
    """Closed form for a 2x2 table without linear parts, in differences m = mu(1) - mu(0).

    Maximises ``-|J| |s1 - sign(J) s2| - r/2 ((t1 - s1)^2 + (t2 - s2)^2)`` over the square, ``strength = J / r`` and
    ``r = rho / 2``: the proximal step of a total variation of two points, then a clip.
    """
    size = abs(strength)
    sign = np.copysign(1.0, strength)  # a select here would keep the callers' loops from vectorising
    turned = sign * t2
    shift = min(max(0.5 * (t1 - turned), -size), size)
    s1 = min(max(t1 - shift, -1.0), 1.0)
    s2 = sign * min(max(turned + shift, -1.0), 1.0)
    return s1, s2


# -- K1 x K2 tables: the support is a forest ------------------------------------------------------------------------
#
# Rows and columns of the table are the nodes of a bipartite graph (columns numbered after the rows), the support its
# edges. Columns of M are independent exactly when these edges form a forest. The support is stored in an order of
# stripping leaves: a slot packs its row, its column and a side that names the end which is a leaf once the slots before
# it are gone. Taking slots away keeps the order valid.

LEAF_IS_ROW, LEAF_IS_COLUMN = 0, 1
MAX_STATES = 1 << 15
"""States per variable that a packed slot can hold."""


@inlined
def pack(row, col, side):
    """A slot of the forest's support."""
    return (row << 16) | (col << 1) | side


@inlined
def slot_row(slot):
    """Row of a slot."""
    return slot >> 16


@inlined
def slot_col(slot):
    """Column of a slot."""
    return (slot & 0xFFFF) >> 1


@inlined
def _ends(slot, k1):
    """Leaf and parent of a slot as nodes."""
    row, col = slot >> 16, k1 + ((slot & 0xFFFF) >> 1)
    if slot & 1:
        return col, row
    return row, col


@bare
def forest_qp(u, theta, theta_at, k1, k2, rho, slots, y, n, work, iwork):
    """Solve the sub-problem of a K1 x K2 table; returns the new size of the support and tau.

    u : scaled targets, rows then columns. slots, y : support and its masses, in and out (n of them on entry; 0 starts
    cold). work : (6, k1 + k2) scratch; on return ``work[0]`` holds the prices u - M y. iwork : (4, k1 + k2) scratch.
    """
    table = theta[theta_at : theta_at + k1 * k2].reshape(k1, k2)
    return forest_solve(
        u, table, rho, slots, y, 0, n, work[0], work[1], work[2], work[3], work[4], work[5], iwork[0], iwork[1],
        iwork[2], iwork[3],
    )  # fmt: skip


@inlined
def forest_solve(
    u, table, rho, slots, y, at, n, price, pot, mass, row_sum, col_sum, goal, tree, n_rows, n_cols, root
):  # fmt: skip
    """Solve the sub-problem with the support at slots[at:], y[at:].

    The scratch arrays come one by one: in the hot loop, taking rows of one array costs more than the work on them.
    """
    k1, k2 = table.shape
    if n == 0:
        n = _forest_seed(u, table, rho, slots, y, at)
    tau = 0.0
    for _ in range(20 * (k1 + k2) + 20):
        tau = _forest_minimise(
            u, table, rho, slots, at, n, price, pot, mass, row_sum, col_sum, goal, tree, n_rows, n_cols, root
        )
        blocked = retreat(y, at, goal, n)
        if blocked >= 0:
            n = drop(slots, y, at, n, blocked)
            continue
        row, col = _forest_price(price, table, pot, tau + TOLERANCE * (abs(tau) + rho))
        if row < 0:
            break
        n = _forest_enter(row, col, k1, k2, slots, y, at, n, pot, tree, n_rows, n_cols)
    return n, tau


@bare
def _forest_seed(u, table, rho, slots, y, at):
    """Start from the vertex of the best price."""
    k1, k2 = table.shape
    best = -np.inf
    for r in range(k1):
        for c in range(k2):
            value = table[r, c] + u[r] + u[k1 + c]
            if value > best:
                best = value
                slots[at] = pack(r, c, LEAF_IS_ROW)
    y[at] = rho
    return 1


@inlined
def _forest_minimise(u, table, rho, slots, at, n, price, pot, mass, row_sum, col_sum, goal, tree, n_rows, n_cols, root):
    """Minimiser on the support: masses into `goal`, prices of all nodes into `price`; returns tau.

    In a tree the prices are A_r = z + a_r on rows and B_c = tau - z + b_c on columns, with a and b fixed by the tree's
    edges; equal mass of rows and columns gives z, the total mass rho gives tau.
    """
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
        pot[leaf] = -table[slot_row(slots[e]), slot_col(slots[e])] - pot[parent]
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
def retreat(y, at, goal, n):
    """Move y towards the goal as far as it stays non-negative; returns the slot that blocks, or -1 at the goal."""
    step, blocked = 1.0, -1
    for e in range(n):
        if goal[e] < 0.0:
            ratio = y[at + e] / (y[at + e] - goal[e])
            if blocked < 0 or ratio < step:
                step, blocked = ratio, e
    for e in range(n):
        y[at + e] += step * (goal[e] - y[at + e])
    if blocked >= 0:
        y[at + blocked] = 0.0
    return blocked


@inlined
def drop(slots, y, at, n, gone):
    """Take a slot out, keeping the order of the others."""
    for e in range(at + gone, at + n - 1):
        slots[e] = slots[e + 1]
        y[e] = y[e + 1]
    return n - 1


@inlined
def _forest_price(price, table, cols, limit):
    """Row and column of the largest price above the limit, or -1. Counting first keeps the common case vectorised."""
    k1, k2 = table.shape
    for c in range(k2):
        cols[c] = price[k1 + c]
    row, col, best = -1, -1, limit
    for r in range(k1):
        rest = best - price[r]
        above = 0
        for c in range(k2):
            above += table[r, c] + cols[c] > rest
        if above:
            for c in range(k2):
                if table[r, c] + cols[c] + price[r] > best:
                    best = table[r, c] + cols[c] + price[r]
                    row, col = r, c
    return row, col


@bare
def _forest_enter(row, col, k1, k2, slots, y, at, n, scratch, tree, parent_slot, order):
    """Add a configuration; where it closes a cycle, push mass round the cycle until another one leaves."""
    mass = 0.0
    if tree[row] >= 0 and tree[row] == tree[k1 + col]:
        mass, gone = _push_cycle(row, k1 + col, k1, k2, slots, y, at, n, scratch, parent_slot)
        n = drop(slots, y, at, n, gone)
    elif tree[row] < 0 or tree[k1 + col] < 0:
        side = LEAF_IS_ROW if tree[row] < 0 else LEAF_IS_COLUMN
        for e in range(at + n, at, -1):  # a new node is a leaf that nothing hangs from: it can go first
            slots[e] = slots[e - 1]
            y[e] = y[e - 1]
        slots[at] = pack(row, col, side)
        y[at] = 0.0
        return n + 1
    slots[at + n] = pack(row, col, LEAF_IS_ROW)
    y[at + n] = mass
    _forest_order(k1, k2, slots, y, at, n + 1, scratch, tree, parent_slot, order)
    return n + 1


@bare
def _push_cycle(row, col, k1, k2, slots, y, at, n, sign, parent_slot):
    """Push the entering edge's mass round its cycle; returns that mass and the slot that became empty.

    Both ends climb towards the root, the one with the earlier slot first, until they meet; along the way the slots
    lose and gain mass in turn, beginning with a loss at each end.
    """
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
def _forest_order(k1, k2, slots, y, at, n, masses, degree, knot, order):
    """Sort the slots into an order of stripping leaves, in linear time.

    A node knows its degree and the exclusive-or of its slots, which is its only slot when the degree is one.
    """
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


# -- any table: a dense active set ----------------------------------------------------------------------------------


@bare
def dense_qp(u, state_at, config, theta, theta_at, rho, ridge, pull, slots, y, n, work, square):
    """Solve the sub-problem of any table; returns the new size of the support and tau.

    u : scaled targets, the states of each variable from ``state_at[k]`` on. config : (n_configs, arity). ridge, pull :
    adds ``ridge/2 ||y||^2 - pull . y`` (a sphere on the factors; 0 and an empty array without). slots, y : support and
    masses, in and out. work : (6, max(states, support + 1)) scratch, prices in ``work[0]`` on return. square :
    (support, support) scratch.
    """
    n_configs = config.shape[0]
    price = work[0]
    if n == 0:
        n = _dense_seed(u, state_at, config, theta, theta_at, pull, rho, slots, y)
    tau = 0.0
    for _ in range(20 * len(u) + 4 * n_configs + 20):
        _gram(config, slots, n, ridge, square)
        _factorise(square, n)
        tau = _dense_minimise(u, state_at, config, theta, theta_at, rho, pull, slots, n, work, square)
        blocked = retreat(y, 0, work[5], n)
        if blocked >= 0:
            n = drop(slots, y, 0, n, blocked)
            continue
        _dense_prices(u, state_at, config, slots, y, n, price)
        tol = TOLERANCE * (abs(tau) + rho)
        entering = _dense_price(price, state_at, config, theta, theta_at, ridge, pull, slots, n, tau + tol)
        if entering < 0:
            break
        n = _dense_enter(entering, config, ridge, slots, y, n, work, square)
    return n, tau


@bare
def _linear(t, u, state_at, config, theta, theta_at, pull):
    """Linear coefficient of configuration t: theta + sum of targets (+ pull)."""
    value = theta[theta_at + t]
    for k in range(config.shape[1]):
        value += u[state_at[k] + config[t, k]]
    if len(pull):
        value += pull[t]
    return value


@bare
def _dense_seed(u, state_at, config, theta, theta_at, pull, rho, slots, y):
    """Start from the vertex of the best price."""
    best = -np.inf
    for t in range(config.shape[0]):
        value = _linear(t, u, state_at, config, theta, theta_at, pull)
        if value > best:
            best = value
            slots[0] = t
    y[0] = rho
    return 1


@bare
def _agreement(config, s, t):
    """Number of variables that have the same state in two configurations: an entry of M^T M."""
    same = 0
    for k in range(config.shape[1]):
        same += config[s, k] == config[t, k]
    return same


@bare
def _gram(config, slots, n, ridge, square):
    """Gram matrix of the support, lower triangle."""
    for a in range(n):
        for b in range(a):
            square[a, b] = _agreement(config, slots[a], slots[b])
        square[a, a] = config.shape[1] + ridge


@bare
def _factorise(square, n):
    """Cholesky factor in place, lower triangle."""
    for a in range(n):
        for b in range(a + 1):
            value = square[a, b]
            for k in range(b):
                value -= square[a, k] * square[b, k]
            square[a, b] = np.sqrt(max(value, 1e-300)) if a == b else value / square[b, b]


@bare
def _solve(square, n, x):
    """Solve with the Cholesky factor in place."""
    for a in range(n):
        value = x[a]
        for k in range(a):
            value -= square[a, k] * x[k]
        x[a] = value / square[a, a]
    for a in range(n - 1, -1, -1):
        value = x[a]
        for k in range(a + 1, n):
            value -= square[k, a] * x[k]
        x[a] = value / square[a, a]


@bare
def _dense_minimise(u, state_at, config, theta, theta_at, rho, pull, slots, n, work, square):
    """Minimiser on the support into work[5], from G y = linear - tau and sum(y) = rho; returns tau."""
    gain, ones, masses = work[1], work[2], work[5]
    for e in range(n):
        gain[e] = _linear(slots[e], u, state_at, config, theta, theta_at, pull)
        ones[e] = 1.0
    _solve(square, n, gain)
    _solve(square, n, ones)
    above, below = -rho, 0.0
    for e in range(n):
        above += gain[e]
        below += ones[e]
    tau = above / below
    for e in range(n):
        masses[e] = gain[e] - tau * ones[e]
    return tau


@bare
def _dense_prices(u, state_at, config, slots, y, n, price):
    """Prices u - M y of all states of all variables."""
    for v in range(len(u)):
        price[v] = u[v]
    for e in range(n):
        for k in range(config.shape[1]):
            price[state_at[k] + config[slots[e], k]] -= y[e]


@bare
def _dense_price(price, state_at, config, theta, theta_at, ridge, pull, slots, n, limit):
    """Configuration outside the support of the largest price above the limit, or -1."""
    entering, best = -1, limit
    for t in range(config.shape[0]):
        value = _linear(t, price, state_at, config, theta, theta_at, pull)
        if value > best:
            inside = False
            for e in range(n):
                inside |= slots[e] == t
            if not inside:
                entering, best = t, value
    return entering


@bare
def _dense_enter(entering, config, ridge, slots, y, n, work, square):
    """Add a configuration; where its column depends on the support's, push along the null direction first."""
    along = work[1]
    for e in range(n):
        along[e] = _agreement(config, slots[e], entering)
        work[2, e] = along[e]
    _solve(square, n, along)
    rest = config.shape[1] + ridge
    for e in range(n):
        rest -= along[e] * work[2, e]
    mass = 0.0
    if rest < 1e-9:
        gone = -1
        for e in range(n):
            if along[e] > 1e-9 and (gone < 0 or y[e] < mass * along[e]):
                mass, gone = y[e] / along[e], e
        for e in range(n):
            y[e] = max(0.0, y[e] - mass * along[e])
        n = drop(slots, y, 0, n, gone)
    slots[n] = entering
    y[n] = mass
    return n + 1
