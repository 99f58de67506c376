"""lp-Box ADMM on a pairwise model: conjugate gradients, and the iteration itself.

The model is a binary quadratic program over one-hot blocks x: maximise ``theta x + x'Qx / 2``, where Q contains every
table twice, as it is and transposed; see `box_form`.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from mapmrf.arrays import Bools, Floats, Ints
from mapmrf.compilation.jit import bare
from mapmrf.engines.admm.box_form import BoxForm, apply_system, dot, precondition
from mapmrf.kernels.max_marginals import weight_of

LARGER = 20.0
"""Maximum factor by which Q may enlarge a solution; with a diagonal of 1.2 times its curvature it is at most 6."""


class BoxIterates(NamedTuple):
    """x, its copies in the box and on the sphere, and the multipliers of both and of the one-hot constraints."""

    x: Floats
    y_box: Floats
    y_sphere: Floats
    z_box: Floats
    z_sphere: Floats
    z_mass: Floats


class BoxScratch(NamedTuple):
    """Scratch for the linear system: its right-hand side, vectors of conjugate gradients, and its diagonal.

    `diagonal` and `bend` have one number per variable: with `bend` on its diagonal, a matrix (almost) dominates Q.
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
"""A structured array of length one, of type `BOX`: kernels read and change ``box[0].rho_box``."""

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
curvature                      the multiple of `bend` to which the diagonal is raised
cg_tol, cg_limit, tol, value_tol  tolerance and limit of conjugate gradients, tolerances of the stopping rule
box_off, sphere_off, mass_off  residuals of the last iteration
best, cg_steps                 value of the best labels; total steps of conjugate gradients
shifted, at_rest               addition to the last diagonal; whether the stopping rule holds
"""


@bare
def solve_system(box: BoxRecord, form: BoxForm, x: Floats, scratch: BoxScratch) -> int:
    """Run conjugate gradients for `apply_system` x = goal from the current x; return the steps, -1 if indefinite.

    The system counts as indefinite if a direction has no positive curvature, or if x is far larger than without Q.
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
    """Solve for x, with the diagonal raised until the system is positive definite.

    On 0/1 points x^2 = x, so moving half of the addition to theta changes no labelling's value.
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
    """Update all multipliers by the residuals of their constraints, which are stored."""
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
    """Increase all penalties, up to their limit, every `update_every` iterations; ends the iteration."""
    p = box[0]
    p.k += 1
    if p.k % p.update_every == 0:
        p.rho_box = max(p.rho_box, min(p.growth * p.rho_box, p.rho_upper))
        p.rho_sphere = max(p.rho_sphere, min(p.growth * p.rho_sphere, p.rho_upper))
        p.rho_mass = max(p.rho_mass, min(p.growth * p.rho_mass, p.rho_upper))


@bare
def decode_box(var_ptr: Ints, x: Floats, allowed: Bools, labels: Ints) -> None:
    """Set labels to the argmax of x among the allowed states, ties to the smallest."""
    for i in range(len(var_ptr) - 1):
        best = -1
        for s in range(var_ptr[i], var_ptr[i + 1]):
            if allowed[s] and (best < 0 or x[s] > x[best]):
                best = s
        labels[i] = max(0, best - var_ptr[i])


@bare
def labels_value(form: BoxForm, theta: Floats, labels: Ints) -> float:
    """Return the value of a labelling in the quadratic program."""
    total = 0.0
    for i in range(len(form.var_ptr) - 1):
        total += theta[form.var_ptr[i] + labels[i]]
    var, strength, _, _ = form.pairs
    for f in range(len(strength)):
        total += strength[f] if labels[var[0, f]] == labels[var[1, f]] else -strength[f]
    var, _, size, table_at, weight, entries = form.tables
    for f in range(len(table_at)):
        place = table_at[f] + labels[var[0, f]] * size[1, f] + labels[var[1, f]]
        total += weight_of(weight, f) * entries[place]
    return total


@bare
def keep_labels(box: BoxRecord, value: float, labellings: Labellings) -> None:
    """Record the value of this iteration's labels; keep them if they are the best."""
    labels, best, history = labellings
    if len(history) > 0:
        history[box[0].k % len(history)] = value
    if value > box[0].best:
        box[0].best = value
        for i in range(len(best)):
            best[i] = labels[i]


@bare
def at_rest(box: BoxRecord, x: Floats, history: Floats) -> bool:
    """Evaluate the stopping rule: both copies agree with x, or the labellings' values have been constant for a while.

    The second counts only once the penalties alone dominate Q: before that, labels are constant for other reasons.
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
    """Run n iterations, or fewer if the method converges; return how many."""
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
