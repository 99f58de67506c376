"""lp-Box ADMM on a pairwise model: products with its quadratic form, conjugate gradients, and the iteration itself.

The model is a binary quadratic program over one-hot blocks x: maximise ``theta x + x'Qx / 2``, where Q holds every
table twice, as it is and transposed. Nothing is assembled: a product with Q is a loop over the factors.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from mapmrf.arrays import Bools, Floats, Ints
from mapmrf.kernels.factor_tables import weight_of
from mapmrf.kernels.jit import bare, inlined

LARGER = 20.0
"""How much Q may enlarge a solution; with a diagonal of 1.2 times its curvature it is 6 at most."""


class BinaryTerms(NamedTuple):
    """Factors of two binary variables, with centred tables ``strength * [[1, -1], [-1, 1]]``.

    var, at : (2, n), the two variables of every factor, and where their blocks start in x.
    """

    var: Ints
    at: Ints
    strength: Floats


class TableTerms(NamedTuple):
    """All other factors: variables and blocks as in `BinaryTerms`, sizes of the blocks, weights, and centred tables."""

    var: Ints
    at: Ints
    size: Ints
    table_at: Ints
    weight: Floats
    theta: Floats


class BoxForm(NamedTuple):
    """Q, and where the blocks of x lie."""

    var_ptr: Ints
    pairs: BinaryTerms
    tables: TableTerms


class BoxIterates(NamedTuple):
    """x, its copies in the box and on the sphere, and the multipliers of both and of the one-hot constraints."""

    x: Floats
    y_box: Floats
    y_sphere: Floats
    z_box: Floats
    z_sphere: Floats
    z_mass: Floats


class BoxScratch(NamedTuple):
    """Room for the linear system: its right-hand side, vectors of conjugate gradients, and its diagonal.

    `diagonal` has one number per variable, as has `bend`: with these on its diagonal, a matrix outweighs Q, nearly.
    """

    goal: Floats
    rest: Floats
    along: Floats
    image: Floats
    diagonal: Floats
    bend: Floats


class Labellings(NamedTuple):
    """The labels of x, the best ones so far, and the values of the last ones."""

    labels: Ints
    best: Ints
    history: Floats


BoxRecord = NDArray[np.record]
"""A structured array of length one, of the type `BOX`: kernels read and change ``box[0].rho_box``."""

BOX = np.dtype(
    (
        np.record,
        [
            ("k", np.int64),
            ("rho_box", np.float64),
            ("rho_sphere", np.float64),
            ("rho_mass", np.float64),
            ("growth", np.float64),
            ("rho_upper", np.float64),
            ("update_every", np.int64),
            ("curvature", np.float64),
            ("cg_tol", np.float64),
            ("cg_limit", np.int64),
            ("tol", np.float64),
            ("value_tol", np.float64),
            ("box_off", np.float64),
            ("sphere_off", np.float64),
            ("mass_off", np.float64),
            ("best", np.float64),
            ("cg_steps", np.int64),
            ("shifted", np.float64),
            ("at_rest", np.bool_),
        ],
    )
)
"""The scalars of a run.

k                              number of the iteration
rho_box, rho_sphere, rho_mass  penalties of box, sphere and one-hot constraints
growth, rho_upper, update_every   their growth, its limit and its period
curvature                      the multiple of `bend` that the diagonal is topped up to
cg_tol, cg_limit, tol, value_tol  tolerance and limit of conjugate gradients, tolerances of the stopping rule
box_off, sphere_off, mass_off  residuals of the last iteration
best, cg_steps                 value of the best labels; steps of conjugate gradients, in all
shifted, at_rest               what was added to the last diagonal; whether the stopping rule holds
"""


@bare
def product(form: BoxForm, x: Floats, out: Floats) -> None:
    """Write Q x into `out`."""
    for s in range(len(x)):
        out[s] = 0.0
    _, at, strength = form.pairs
    for f in range(len(strength)):
        i, j = at[0, f], at[1, f]
        to_i = strength[f] * (x[j + 1] - x[j])
        to_j = strength[f] * (x[i + 1] - x[i])
        out[i] -= to_i
        out[i + 1] += to_i
        out[j] -= to_j
        out[j + 1] += to_j
    _, at, size, table_at, weight, theta = form.tables
    for f in range(len(table_at)):
        i, j, cols, by = at[0, f], at[1, f], size[1, f], weight_of(weight, f)
        for s in range(size[0, f]):
            row, mass = table_at[f] + s * cols, by * x[i + s]
            out[i + s] += by * _row_product(theta, row, cols, x, j)
            for t in range(cols):
                out[j + t] += theta[row + t] * mass


@inlined
def _row_product(theta: Floats, row: int, cols: int, x: Floats, at: int) -> float:
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


@bare
def dot(a: Floats, b: Floats) -> float:
    """Inner product in four strands: a fixed order that does not wait for every addition."""
    return _row_product(a, 0, len(a), b, 0)


@bare
def largest_curvature(n: int, form: BoxForm, bend: Floats, v: Floats, w: Floats) -> float:
    """Largest eigenvalue in size of B^-1/2 Q B^-1/2, B = diag(bend), from below: n steps of the power method from v."""
    size = 0.0
    for _ in range(n):
        norm = np.sqrt(dot(v, v))
        if norm == 0.0:
            return 0.0
        _scale(form.var_ptr, bend, 1.0 / norm, v)
        product(form, v, w)
        _scale(form.var_ptr, bend, 1.0, w)
        size = np.sqrt(dot(w, w))
        for s in range(len(v)):
            v[s] = w[s]
    return size


@bare
def _scale(var_ptr: Ints, bend: Floats, factor: float, v: Floats) -> None:
    """Multiply v by the factor and by B^-1/2; variables without interaction have no curvature."""
    for i in range(len(var_ptr) - 1):
        by = factor / np.sqrt(bend[i]) if bend[i] > 0.0 else 0.0
        for s in range(var_ptr[i], var_ptr[i + 1]):
            v[s] *= by


@bare
def apply_system(diagonal: Floats, rho_mass: float, form: BoxForm, x: Floats, out: Floats) -> None:
    """Write (D + rho_mass C'C - Q) x into `out`, where C sums over the states of every variable."""
    var_ptr = form.var_ptr
    product(form, x, out)
    for i in range(len(var_ptr) - 1):
        mass = 0.0
        for s in range(var_ptr[i], var_ptr[i + 1]):
            mass += x[s]
        for s in range(var_ptr[i], var_ptr[i + 1]):
            out[s] = diagonal[i] * x[s] + rho_mass * mass - out[s]


@bare
def precondition(diagonal: Floats, rho_mass: float, var_ptr: Ints, rest: Floats, out: Floats) -> None:
    """Write (D + rho_mass C'C)^-1 rest into `out`: every variable's block of the system, solved exactly."""
    for i in range(len(var_ptr) - 1):
        mass = 0.0
        for s in range(var_ptr[i], var_ptr[i + 1]):
            mass += rest[s]
        taken = rho_mass * mass / (diagonal[i] + rho_mass * (var_ptr[i + 1] - var_ptr[i]))
        for s in range(var_ptr[i], var_ptr[i + 1]):
            out[s] = (rest[s] - taken) / diagonal[i]


@bare
def solve_system(box: BoxRecord, form: BoxForm, x: Floats, scratch: BoxScratch) -> int:
    """Conjugate gradients for `apply_system` x = goal from where x is; returns the steps, -1 if Q outweighs the rest.

    It does, or nearly so, where a direction has no positive curvature, and where x is far larger than without Q.
    """
    rho_mass, tol, limit, var_ptr = box[0].rho_mass, box[0].cg_tol, box[0].cg_limit, form.var_ptr
    goal, rest, along, image, diagonal, _ = scratch
    apply_system(diagonal, rho_mass, form, x, rest)
    for s in range(len(x)):
        rest[s] = goal[s] - rest[s]
    enough = tol * tol * dot(goal, goal)
    precondition(diagonal, rho_mass, var_ptr, goal, along)
    most = LARGER * LARGER * dot(goal, along)
    precondition(diagonal, rho_mass, var_ptr, rest, along)
    now = dot(rest, along)
    steps = 0
    while steps < limit and dot(rest, rest) > enough:
        apply_system(diagonal, rho_mass, form, along, image)
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


@bare
def update_copies(box: BoxRecord, iterates: BoxIterates) -> None:
    """Update the copies: y1 on the box [0, 1], y2 on the sphere of radius sqrt(n) / 2 around 1/2."""
    x, y_box, y_sphere, z_box, z_sphere, _ = iterates
    rho_box, rho_sphere = box[0].rho_box, box[0].rho_sphere
    n = len(x)
    norm2 = 0.0
    for s in range(n):
        y_box[s] = min(max(x[s] + z_box[s] / rho_box, 0.0), 1.0)
        out = x[s] + z_sphere[s] / rho_sphere - 0.5
        y_sphere[s] = out
        norm2 += out * out
    grow = np.sqrt(0.25 * n / norm2) if norm2 > 0.0 else 1.0
    for s in range(n):
        y_sphere[s] = 0.5 + grow * y_sphere[s]


@bare
def update_x(box: BoxRecord, form: BoxForm, theta: Floats, iterates: BoxIterates, scratch: BoxScratch) -> None:
    """Solve for x, with the diagonal topped up to what makes the system positive definite.

    On 0/1 points x^2 = x, so half of what is added to the diagonal, given to theta, changes no labelling's value.
    """
    x, y_box, y_sphere, z_box, z_sphere, z_mass = iterates
    goal, diagonal, bend, var_ptr = scratch.goal, scratch.diagonal, scratch.bend, form.var_ptr
    rho_box, rho_sphere, rho_mass = box[0].rho_box, box[0].rho_sphere, box[0].rho_mass
    penalty = rho_box + rho_sphere
    while True:
        shifted = 0.0
        for i in range(len(var_ptr) - 1):
            shift = max(0.0, box[0].curvature * bend[i] - penalty)
            shifted += shift
            diagonal[i] = penalty + shift
            for s in range(var_ptr[i], var_ptr[i + 1]):
                pull = rho_box * y_box[s] - z_box[s]
                pull += rho_sphere * y_sphere[s] - z_sphere[s]
                goal[s] = theta[s] + 0.5 * shift + pull + rho_mass - z_mass[i]
        box[0].shifted = shifted
        steps = solve_system(box, form, x, scratch)
        if steps >= 0:
            box[0].cg_steps += steps
            return
        box[0].curvature = 1.5 * max(box[0].curvature, 0.5)
        for s in range(len(x)):
            x[s] = y_box[s]


@bare
def update_multipliers(box: BoxRecord, var_ptr: Ints, iterates: BoxIterates) -> None:
    """Move all multipliers along what their constraints are off by; leaves the residuals."""
    x, y_box, y_sphere, z_box, z_sphere, z_mass = iterates
    rho_box, rho_sphere, rho_mass = box[0].rho_box, box[0].rho_sphere, box[0].rho_mass
    box2 = sphere2 = mass2 = 0.0
    for i in range(len(var_ptr) - 1):
        mass = -1.0
        for s in range(var_ptr[i], var_ptr[i + 1]):
            mass += x[s]
            off = x[s] - y_box[s]
            z_box[s] += rho_box * off
            box2 += off * off
            off = x[s] - y_sphere[s]
            z_sphere[s] += rho_sphere * off
            sphere2 += off * off
        z_mass[i] += rho_mass * mass
        mass2 += mass * mass
    box[0].box_off, box[0].sphere_off, box[0].mass_off = np.sqrt(box2), np.sqrt(sphere2), np.sqrt(mass2)


@bare
def update_penalties(box: BoxRecord) -> None:
    """Let all penalties grow, up to their limit, every `update_every` iterations; closes the iteration."""
    p = box[0]
    p.k += 1
    if p.k % p.update_every == 0:
        p.rho_box = max(p.rho_box, min(p.growth * p.rho_box, p.rho_upper))
        p.rho_sphere = max(p.rho_sphere, min(p.growth * p.rho_sphere, p.rho_upper))
        p.rho_mass = max(p.rho_mass, min(p.growth * p.rho_mass, p.rho_upper))


@bare
def decode_box(var_ptr: Ints, x: Floats, allowed: Bools, labels: Ints) -> None:
    """Labels = argmax of x among the allowed states, ties to the smallest."""
    for i in range(len(var_ptr) - 1):
        best = -1
        for s in range(var_ptr[i], var_ptr[i + 1]):
            if allowed[s] and (best < 0 or x[s] > x[best]):
                best = s
        labels[i] = max(0, best - var_ptr[i])


@bare
def labels_value(form: BoxForm, theta: Floats, labels: Ints) -> float:
    """What the quadratic program says a labelling is worth."""
    total = 0.0
    for i in range(len(form.var_ptr) - 1):
        total += theta[form.var_ptr[i] + labels[i]]
    var, _, strength = form.pairs
    for f in range(len(strength)):
        total += strength[f] if labels[var[0, f]] == labels[var[1, f]] else -strength[f]
    var, _, size, table_at, weight, entries = form.tables
    for f in range(len(table_at)):
        place = table_at[f] + labels[var[0, f]] * size[1, f] + labels[var[1, f]]
        total += weight_of(weight, f) * entries[place]
    return total


@bare
def keep_labels(box: BoxRecord, value: float, labellings: Labellings) -> None:
    """Note the value of this iteration's labels; keep them if they are the best."""
    labels, best, history = labellings
    if len(history) > 0:
        history[box[0].k % len(history)] = value
    if value > box[0].best:
        box[0].best = value
        for i in range(len(best)):
            best[i] = labels[i]


@bare
def at_rest(box: BoxRecord, x: Floats, history: Floats) -> bool:
    """The stopping rule: both copies agree with x, or the labellings' values have been the same for a while.

    The second counts only when the penalties alone outweigh Q: as long as they do not, labels rest for other reasons.
    """
    p = box[0]
    if max(p.box_off, p.sphere_off) <= p.tol * np.sqrt(dot(x, x)):
        return True
    if len(history) == 0 or p.k < len(history) or p.shifted > 0.0:
        return False
    mean = square = 0.0
    for value in history:
        mean += value / len(history)
    for value in history:
        square += (value - mean) * (value - mean) / len(history)
    return bool(np.sqrt(square) <= p.value_tol)


@bare
def iterate_box(
    n: int,
    box: BoxRecord,
    form: BoxForm,
    theta: Floats,
    allowed: Bools,
    iterates: BoxIterates,
    scratch: BoxScratch,
    labellings: Labellings,
) -> int:
    """Run n iterations, or fewer if the method converges; returns how many."""
    for done in range(n):
        update_copies(box, iterates)
        update_x(box, form, theta, iterates, scratch)
        update_multipliers(box, form.var_ptr, iterates)
        decode_box(form.var_ptr, iterates.x, allowed, labellings.labels)
        keep_labels(box, labels_value(form, theta, labellings.labels), labellings)
        update_penalties(box)
        box[0].at_rest = at_rest(box, iterates.x, labellings.history)
        if box[0].at_rest:
            return done + 1
    return n
