"""lp-Box ADMM on a pairwise model: products with its quadratic form, conjugate gradients, and the iteration itself.

The model is a binary quadratic program over one-hot blocks x: maximise ``theta x + x'Qx / 2``, where Q holds every
table twice, as it is and transposed. Nothing is assembled: a product with Q is a loop over the factors.

pairs   factors of two binary variables, `(var, at, strength)`: their centred tables are strength [[1, -1], [-1, 1]].
tables  all other factors, `(var, at, size, table_at, theta)`.
var, at, size   (2, n): the two variables of every factor, where their blocks start in x, and how long these are.
bend    one number per variable: with these on its diagonal, a matrix outweighs Q, nearly.
"""

from __future__ import annotations

import numpy as np

from mapmrf.kernels.jit import compiled, inlined

# Entries of `par`: penalties of box, sphere and mass; their growth, its limit and its period; the multiple of `bend`
# that the diagonal is topped up to; conjugate gradients' tolerance and limit; tolerances of the stopping rule.
(
    RHO_BOX, RHO_SPHERE, RHO_MASS, GROWTH, RHO_UPPER, UPDATE_EVERY, CURVATURE, CG_TOL, CG_LIMIT, TOL, VALUE_TOL,
    # What the last iteration left.
    BOX_OFF, SPHERE_OFF, MASS_OFF, VALUE, BEST, CG_STEPS, SHIFTED, AT_REST,
) = range(19)  # fmt: skip
PAR_SIZE = 19
# Rows of `work`, each as long as x.
Y_BOX, Y_SPHERE, Z_BOX, Z_SPHERE, GOAL, REST, ALONG, IMAGE = range(8)
WORK_ROWS = 8
# Rows of `work_v`, each with a number per variable.
Z_MASS, DIAGONAL, BEND = range(3)
WORK_V_ROWS = 3
LARGER = 20.0
"""How much Q may enlarge a solution; with a diagonal of 1.2 times its curvature it is 6 at most."""


@compiled
def product(pairs, tables, x, out):
    """Write Q x into `out`."""
    for s in range(len(x)):
        out[s] = 0.0
    _, at, strength = pairs
    for f in range(len(strength)):
        i, j = at[0, f], at[1, f]
        to_i = strength[f] * (x[j + 1] - x[j])
        to_j = strength[f] * (x[i + 1] - x[i])
        out[i] -= to_i
        out[i + 1] += to_i
        out[j] -= to_j
        out[j + 1] += to_j
    _, at, size, table_at, theta = tables
    for f in range(len(table_at)):
        i, j, cols = at[0, f], at[1, f], size[1, f]
        for s in range(size[0, f]):
            row = table_at[f] + s * cols
            out[i + s] += _row_product(theta, row, cols, x, j)
            for t in range(cols):
                out[j + t] += theta[row + t] * x[i + s]


@inlined
def _row_product(theta, row, cols, x, at):
    """Inner product of a row of a table and a block of x, in four strands."""
    s0 = s1 = s2 = s3 = 0.0
    whole = cols - cols % 4
    for t in range(0, whole, 4):
        s0 += theta[row + t] * x[at + t]
        s1 += theta[row + t + 1] * x[at + t + 1]
        s2 += theta[row + t + 2] * x[at + t + 2]
        s3 += theta[row + t + 3] * x[at + t + 3]
    for t in range(whole, cols):
        s0 += theta[row + t] * x[at + t]
    return (s0 + s1) + (s2 + s3)


@compiled
def dot(a, b):
    """Inner product in four strands: a fixed order that does not wait for every addition."""
    return _row_product(a, 0, len(a), b, 0)


@compiled
def largest_curvature(n, var_ptr, bend, pairs, tables, v, w):
    """Largest eigenvalue in size of B^-1/2 Q B^-1/2, B = diag(bend), from below: n steps of the power method from v."""
    size = 0.0
    for _ in range(n):
        norm = np.sqrt(dot(v, v))
        if norm == 0.0:
            return 0.0
        _scale(var_ptr, bend, 1.0 / norm, v)
        product(pairs, tables, v, w)
        _scale(var_ptr, bend, 1.0, w)
        size = np.sqrt(dot(w, w))
        for s in range(len(v)):
            v[s] = w[s]
    return size


@compiled
def _scale(var_ptr, bend, factor, v):
    """Multiply v by the factor and by B^-1/2; variables without interaction have no curvature."""
    for i in range(len(var_ptr) - 1):
        by = factor / np.sqrt(bend[i]) if bend[i] > 0.0 else 0.0
        for s in range(var_ptr[i], var_ptr[i + 1]):
            v[s] *= by


@compiled
def apply_system(diagonal, rho_mass, var_ptr, pairs, tables, x, out):
    """Write (D + rho_mass C'C - Q) x into `out`, where C sums over the states of every variable."""
    product(pairs, tables, x, out)
    for i in range(len(var_ptr) - 1):
        mass = 0.0
        for s in range(var_ptr[i], var_ptr[i + 1]):
            mass += x[s]
        for s in range(var_ptr[i], var_ptr[i + 1]):
            out[s] = diagonal[i] * x[s] + rho_mass * mass - out[s]


@compiled
def precondition(diagonal, rho_mass, var_ptr, rest, out):
    """Write (D + rho_mass C'C)^-1 rest into `out`: every variable's block of the system, solved exactly."""
    for i in range(len(var_ptr) - 1):
        mass = 0.0
        for s in range(var_ptr[i], var_ptr[i + 1]):
            mass += rest[s]
        taken = rho_mass * mass / (diagonal[i] + rho_mass * (var_ptr[i + 1] - var_ptr[i]))
        for s in range(var_ptr[i], var_ptr[i + 1]):
            out[s] = (rest[s] - taken) / diagonal[i]


@compiled
def solve_system(diagonal, rho_mass, tol, limit, var_ptr, pairs, tables, goal, x, rest, along, image):
    """Conjugate gradients for `apply_system` x = goal from where x is; returns the steps, -1 if Q outweighs the rest.

    It does, or nearly so, where a direction has no positive curvature, and where x is far larger than without Q.
    """
    apply_system(diagonal, rho_mass, var_ptr, pairs, tables, x, rest)
    for s in range(len(x)):
        rest[s] = goal[s] - rest[s]
    enough = tol * tol * dot(goal, goal)
    precondition(diagonal, rho_mass, var_ptr, goal, along)
    most = LARGER * LARGER * dot(goal, along)
    precondition(diagonal, rho_mass, var_ptr, rest, along)
    now = dot(rest, along)
    steps = 0
    while steps < limit and dot(rest, rest) > enough:
        apply_system(diagonal, rho_mass, var_ptr, pairs, tables, along, image)
        curvature = dot(along, image)
        if curvature <= 0.0:
            return -1
        length = now / curvature
        for s in range(len(x)):
            x[s] += length * along[s]
            rest[s] -= length * image[s]
        precondition(diagonal, rho_mass, var_ptr, rest, image)
        after = dot(rest, image)
        turn = after / now
        now = after
        for s in range(len(x)):
            along[s] = image[s] + turn * along[s]
        steps += 1
    size = 0.0
    for i in range(len(var_ptr) - 1):
        for s in range(var_ptr[i], var_ptr[i + 1]):
            size += diagonal[i] * x[s] * x[s]
    return -1 if size > most else steps


@compiled
def project(par, x, work):
    """Update the copies: y1 on the box [0, 1], y2 on the sphere of radius sqrt(n) / 2 around 1/2."""
    n = len(x)
    norm2 = 0.0
    for s in range(n):
        work[Y_BOX, s] = min(max(x[s] + work[Z_BOX, s] / par[RHO_BOX], 0.0), 1.0)
        out = x[s] + work[Z_SPHERE, s] / par[RHO_SPHERE] - 0.5
        work[Y_SPHERE, s] = out
        norm2 += out * out
    grow = np.sqrt(0.25 * n / norm2) if norm2 > 0.0 else 1.0
    for s in range(n):
        work[Y_SPHERE, s] = 0.5 + grow * work[Y_SPHERE, s]


@compiled
def update_x(par, var_ptr, pairs, tables, theta, x, work, work_v):
    """Solve for x, with the diagonal topped up to what makes the system positive definite.

    On 0/1 points x^2 = x, so half of what is added to the diagonal, given to theta, changes no labelling's value.
    """
    penalty = par[RHO_BOX] + par[RHO_SPHERE]
    while True:
        par[SHIFTED] = 0.0
        for i in range(len(var_ptr) - 1):
            shift = max(0.0, par[CURVATURE] * work_v[BEND, i] - penalty)
            par[SHIFTED] += shift
            work_v[DIAGONAL, i] = penalty + shift
            for s in range(var_ptr[i], var_ptr[i + 1]):
                pull = par[RHO_BOX] * work[Y_BOX, s] - work[Z_BOX, s]
                pull += par[RHO_SPHERE] * work[Y_SPHERE, s] - work[Z_SPHERE, s]
                work[GOAL, s] = theta[s] + 0.5 * shift + pull + par[RHO_MASS] - work_v[Z_MASS, i]
        steps = solve_system(
            work_v[DIAGONAL], par[RHO_MASS], par[CG_TOL], int(par[CG_LIMIT]), var_ptr, pairs, tables, work[GOAL], x,
            work[REST], work[ALONG], work[IMAGE],
        )  # fmt: skip
        if steps >= 0:
            par[CG_STEPS] += steps
            return
        par[CURVATURE] = 1.5 * max(par[CURVATURE], 0.5)
        for s in range(len(x)):
            x[s] = work[Y_BOX, s]


@compiled
def move_multipliers(par, var_ptr, x, work, work_v):
    """Move all multipliers along what their constraints are off by; leaves the residuals in `par`."""
    box = sphere = mass_off = 0.0
    for i in range(len(var_ptr) - 1):
        mass = -1.0
        for s in range(var_ptr[i], var_ptr[i + 1]):
            mass += x[s]
            off = x[s] - work[Y_BOX, s]
            work[Z_BOX, s] += par[RHO_BOX] * off
            box += off * off
            off = x[s] - work[Y_SPHERE, s]
            work[Z_SPHERE, s] += par[RHO_SPHERE] * off
            sphere += off * off
        work_v[Z_MASS, i] += par[RHO_MASS] * mass
        mass_off += mass * mass
    par[BOX_OFF], par[SPHERE_OFF], par[MASS_OFF] = np.sqrt(box), np.sqrt(sphere), np.sqrt(mass_off)


@compiled
def decode(var_ptr, x, allowed, labels):
    """Labels = argmax of x among the allowed states, ties to the smallest."""
    for i in range(len(var_ptr) - 1):
        best = -1
        for s in range(var_ptr[i], var_ptr[i + 1]):
            if allowed[s] and (best < 0 or x[s] > x[best]):
                best = s
        labels[i] = max(0, best - var_ptr[i])


@compiled
def labels_value(var_ptr, pairs, tables, theta, labels):
    """What the quadratic program says a labelling is worth."""
    total = 0.0
    for i in range(len(var_ptr) - 1):
        total += theta[var_ptr[i] + labels[i]]
    var, _, strength = pairs
    for f in range(len(strength)):
        total += strength[f] if labels[var[0, f]] == labels[var[1, f]] else -strength[f]
    var, _, size, table_at, entries = tables
    for f in range(len(table_at)):
        total += entries[table_at[f] + labels[var[0, f]] * size[1, f] + labels[var[1, f]]]
    return total


@compiled
def at_rest(par, k, x, history):
    """The stopping rule: both copies agree with x, or the labellings' values have been the same for a while.

    The second counts only when the penalties alone outweigh Q: as long as they do not, labels rest for other reasons.
    """
    if max(par[BOX_OFF], par[SPHERE_OFF]) <= par[TOL] * np.sqrt(dot(x, x)):
        return True
    if len(history) == 0 or k + 1 < len(history) or par[SHIFTED] > 0.0:
        return False
    mean = square = 0.0
    for value in history:
        mean += value / len(history)
    for value in history:
        square += (value - mean) * (value - mean) / len(history)
    return np.sqrt(square) <= par[VALUE_TOL]


@compiled
def iterate(n, k0, par, var_ptr, pairs, tables, theta, allowed, x, work, work_v, labels, best, history):
    """Run n iterations from number k0 on, or fewer if the method comes to rest; returns how many.

    Keeps the best labelling in `best` and the values of the last ones in `history`.
    """
    for k in range(k0, k0 + n):
        project(par, x, work)
        update_x(par, var_ptr, pairs, tables, theta, x, work, work_v)
        move_multipliers(par, var_ptr, x, work, work_v)
        decode(var_ptr, x, allowed, labels)
        par[VALUE] = labels_value(var_ptr, pairs, tables, theta, labels)
        if len(history) > 0:
            history[k % len(history)] = par[VALUE]
        if par[VALUE] > par[BEST]:
            par[BEST] = par[VALUE]
            for i in range(len(best)):
                best[i] = labels[i]
        if (k + 1) % int(par[UPDATE_EVERY]) == 0:
            for entry in (RHO_BOX, RHO_SPHERE, RHO_MASS):
                par[entry] = max(par[entry], min(par[GROWTH] * par[entry], par[RHO_UPPER]))
        if at_rest(par, k, x, history):
            par[AT_REST] = 1.0
            return k + 1 - k0
    return n
