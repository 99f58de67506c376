"""lp-Box ADMM on a pairwise model, for l2-Box: the model as a binary quadratic program, and the kernels."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from mapmrf.arrays import Bools, Floats, Ints, segment_argmax, segment_ends
from mapmrf.compilation.jit import bare, inlined
from mapmrf.engines.admm.penalty import interaction_scale
from mapmrf.kernels.max_marginals import weight_of
from mapmrf.model.problem import Batch, Problem
from mapmrf.run.clock import check_awaited

CHUNK = 1 << 18  # table entries processed at a time, which limits temporary memory


@dataclass(frozen=True, eq=False)
class BoxProgram:
    """Maximise ``theta x + x'Qx / 2`` over one-hot blocks x, in units of the interaction.

    Tables are centred: their row and column means are moved to theta, which changes nothing for one-hot vectors and
    leaves the quadratic form no more curvature than the interactions have. Equal tables are stored once.
    """

    unit: float
    constant: float
    hard: bool
    form: BoxForm
    reach: Floats  # (n_vars,): sums of the norms of a variable's centred tables

    @classmethod
    def build(cls, problem: Problem, forbidden: float) -> BoxProgram:
        soft = softened(problem, forbidden)
        graph, unit = problem.graph, interaction_scale(soft)
        allowed = problem.feasible_v & np.repeat(problem.degree > 0, graph.card)
        alone = np.flatnonzero(problem.degree == 0)
        allowed[graph.var_ptr[alone] + segment_argmax(graph.theta_v, graph.var_ptr)[alone]] = True
        theta, reach = soft.graph.theta_v / unit, np.zeros(problem.n_vars)
        no_scopes: Ints = np.zeros((0, 2), dtype=np.int64)
        pair_scopes, scopes, table_at, n_entries = [no_scopes], [no_scopes], [no_scopes[:, 0]], 0
        strengths, weights, entries = [np.zeros(0)], [np.zeros(0)], [np.zeros(0)]
        for batch in soft.batches:
            which, centred, means, size = centred_tables(batch, soft.graph.theta_t, unit)
            weight: Floats | float = batch.weight if len(batch.weight) else 1.0
            for k, linear in enumerate(means):
                reach += np.bincount(batch.scope[:, k], np.abs(weight) * size[which], problem.n_vars)
                for s in range(batch.shape[k]):
                    theta += np.bincount(batch.var_at[:, k] + s, weight * linear[which, s], len(theta))
            if batch.shape == (2, 2):
                pair_scopes.append(batch.scope)
                strengths.append(weight * centred[which, 0, 0])
            else:
                scopes.append(batch.scope)
                weights.append(batch.weight)
                table_at.append(n_entries + which * batch.n_configs)
                entries.append(centred.ravel())
                n_entries += centred.size
        var_ptr = graph.var_ptr.astype(np.int64)
        pair_var, var = (np.concatenate(some).T.astype(np.int64, order="C") for some in (pair_scopes, scopes))
        n_push = problem.n_vars if pair_var.size else 0
        form = BoxForm(
            var_ptr=var_ptr,
            theta=theta,
            allowed=allowed,
            pair_var=pair_var,
            strength=np.concatenate(strengths),
            difference=np.zeros(n_push),
            push=np.zeros(n_push),
            var=var,
            at=var_ptr[var],
            size=np.asarray(graph.card, dtype=np.int64)[var],
            table_at=np.concatenate(table_at).astype(np.int64),
            weight=np.concatenate(weights),
            entries=np.concatenate(entries),
        )
        return cls(unit, graph.constant, soft is not problem, form, reach)

    def bend(self, v: Floats) -> Floats:
        """Return a diagonal that (almost) dominates the quadratic form: scaled square roots of the variables' reach."""
        shape, size = np.sqrt(self.reach), self.form.size
        entries = 4 * self.form.strength.size + int((size[0] * size[1]).sum())
        steps = int(np.clip(200_000_000 // max(1, entries), 20, 100))  # power iterations
        each = max(1, 20_000_000 // max(1, entries))  # per kernel call, of some hundredths of a second
        found, room = 0.0, np.empty_like(v)
        for done in range(0, steps, each):  # v carries over to the next call
            check_awaited()
            found = largest_curvature(min(each, steps - done), self.form, shape, v, room)
        return np.asarray(shape * found)


def softened(problem: Problem, forbidden: float) -> Problem:
    """Replace every -inf by a finite penalty; return the problem itself if there is none.

    Weights are multiplied out first, as the penalty must not depend on them.
    """
    if np.isfinite(problem.graph.theta_v).all() and np.isfinite(problem.graph.theta_t).all():
        return problem
    if len(problem.weight):
        problem = Problem.compile(problem.graph.expanded(), problem.threads)
    graph = problem.graph
    unary, tables = segment_ends(graph.theta_v, graph.var_ptr), segment_ends(graph.theta_t, graph.table_ptr)
    spreads = np.concatenate([unary[1] - unary[0], tables[1] - tables[0]])
    fine = forbidden * (float(spreads.max(initial=0.0)) or 1.0)
    theta_v = np.where(problem.feasible_v, graph.theta_v, np.repeat(unary[0], graph.card) - fine)
    low = np.repeat(tables[0], np.diff(graph.table_ptr))
    theta_t = np.where(np.isfinite(graph.theta_t), graph.theta_t, low - fine)
    return replace(problem, graph=replace(graph, theta_v=theta_v, theta_t=theta_t))


def centred_tables(batch: Batch, theta_t: Floats, unit: float) -> tuple[Ints, Floats, tuple[Floats, Floats], Floats]:
    """Return the table of every factor, the distinct tables without row and column means, these means, and norms."""
    starts, which = np.unique(batch.table_at, return_inverse=True)
    n, n_configs = len(starts), batch.n_configs
    centred = np.empty((n, *batch.shape))
    rows, cols, size = np.empty((n, batch.shape[0])), np.empty((n, batch.shape[1])), np.empty(n)
    chunk = max(1, CHUNK // n_configs)
    for begin in range(0, n, chunk):
        part = slice(begin, min(begin + chunk, n))
        tables = theta_t[starts[part, None] + np.arange(n_configs)].reshape(-1, *batch.shape) / unit
        rows[part], cols[part] = tables.mean(axis=2), tables.mean(axis=1)
        cols[part] -= rows[part].mean(axis=1, keepdims=True)
        centred[part] = tables - rows[part][:, :, None] - cols[part][:, None, :]
        size[part] = np.sqrt((centred[part] ** 2).sum(axis=(1, 2)))
    return which, centred, (rows, cols), size


# -- lp-Box ADMM: the iteration, and conjugate gradients for its linear system ----------------------------------------

LARGER = 20.0
"""Maximum factor by which Q may enlarge a solution; with a diagonal of 1.2 times its curvature it is at most 6."""


class BoxForm(NamedTuple):
    """The program for the kernels. Q contains every table twice, as it is and transposed; it is never assembled.

    var_ptr, theta, allowed
        Offsets of the blocks of x; the linear term, and the states that labels may have.
    pair_var, strength
        Factors of two binary variables, (2, n), with centred tables ``strength * [[1, -1], [-1, 1]]``.
    difference, push
        Scratch for these, a number per variable: its x(1) - x(0), and the sum from its neighbours.
    var, at, size, table_at, weight
        All other factors: their variables, offsets in x and numbers of states, (2, n); tables and weights.
    entries
        The centred tables.
    """

    var_ptr: Ints
    theta: Floats
    allowed: Bools
    pair_var: Ints
    strength: Floats
    difference: Floats
    push: Floats
    var: Ints
    at: Ints
    size: Ints
    table_at: Ints
    weight: Floats
    entries: Floats


class BoxArrays(NamedTuple):
    """The arrays of a run; those from z_mass to best have a number per variable.

    x, y_box, y_sphere
        The iterate, and its copies in the box and on the sphere.
    z_box, z_sphere, z_mass
        Multipliers of both, and of the one-hot constraints.
    goal, rest, along, image
        Right-hand side of the linear system, and vectors of conjugate gradients.
    diagonal, bend
        The diagonal of the system, and the one that (almost) dominates Q.
    labels, best, history
        The labels of x, the best ones so far, and the values of the last ones.
    """

    x: Floats
    y_box: Floats
    y_sphere: Floats
    z_box: Floats
    z_sphere: Floats
    goal: Floats
    rest: Floats
    along: Floats
    image: Floats
    z_mass: Floats
    diagonal: Floats
    bend: Floats
    labels: Ints
    best: Ints
    history: Floats


BoxRecord = NDArray[np.record]
"""A structured array of length one, of type `BOX`: kernels read and change ``box[0].rho_box``."""

BOX = np.dtype(
    (
        np.record,
        [(name, np.int64) for name in ("k", "update_every", "cg_limit", "cg_steps")]
        + [(name, np.float64) for name in ("rho_box", "rho_sphere", "rho_mass", "growth", "rho_upper", "curvature")]
        + [(name, np.float64) for name in ("cg_tol", "tol", "value_tol", "box_off", "sphere_off", "mass_off", "best")]
        + [("shifted", np.float64), ("at_rest", np.bool_)],
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
def solve_system(box: BoxRecord, form: BoxForm, arrays: BoxArrays) -> int:
    """Run conjugate gradients for `apply_system` x = goal from the current x; return the steps, -1 if indefinite.

    The system counts as indefinite if a direction has no positive curvature, or if x is far larger than without Q.
    """
    rho_mass, tol, limit, var_ptr = box[0].rho_mass, box[0].cg_tol, box[0].cg_limit, form.var_ptr
    x, goal, rest, along, image = arrays.x, arrays.goal, arrays.rest, arrays.along, arrays.image
    diagonal = arrays.diagonal
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
def update_copies(box: BoxRecord, arrays: BoxArrays) -> None:
    """Update the copies: y1 on the box [0, 1], y2 on the sphere of radius sqrt(n) / 2 around 1/2."""
    x, y_box, y_sphere, z_box, z_sphere = arrays.x, arrays.y_box, arrays.y_sphere, arrays.z_box, arrays.z_sphere
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
def update_x(box: BoxRecord, form: BoxForm, arrays: BoxArrays) -> None:
    """Solve for x, with the diagonal raised until the system is positive definite.

    On 0/1 points x^2 = x, so moving half of the addition to theta changes no labelling's value.
    """
    x, y_box, y_sphere, z_box, z_sphere = arrays.x, arrays.y_box, arrays.y_sphere, arrays.z_box, arrays.z_sphere
    goal, diagonal, bend, var_ptr, theta = arrays.goal, arrays.diagonal, arrays.bend, form.var_ptr, form.theta
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
                goal[s] = theta[s] + 0.5 * shift + pull + rho_mass - arrays.z_mass[i]
        box[0].shifted = shifted
        steps = solve_system(box, form, arrays)
        if steps >= 0:
            box[0].cg_steps += steps
            return
        box[0].curvature = 1.5 * max(box[0].curvature, 0.5)
        for s in range(len(x)):
            x[s] = y_box[s]


@bare
def update_multipliers(box: BoxRecord, var_ptr: Ints, arrays: BoxArrays) -> None:
    """Update all multipliers by the residuals of their constraints, which are stored."""
    x, y_box, y_sphere, z_box, z_sphere = arrays.x, arrays.y_box, arrays.y_sphere, arrays.z_box, arrays.z_sphere
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
        arrays.z_mass[i] += rho_mass * mass
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
def decode_box(form: BoxForm, x: Floats, labels: Ints) -> None:
    """Set labels to the argmax of x among the allowed states, ties to the smallest."""
    var_ptr, allowed = form.var_ptr, form.allowed
    for i in range(len(var_ptr) - 1):
        best = -1
        for s in range(var_ptr[i], var_ptr[i + 1]):
            if allowed[s] and (best < 0 or x[s] > x[best]):
                best = s
        labels[i] = max(0, best - var_ptr[i])


@bare
def labels_value(form: BoxForm, labels: Ints) -> float:
    total, strength = 0.0, form.strength
    for i in range(len(form.var_ptr) - 1):
        total += form.theta[form.var_ptr[i] + labels[i]]
    for f in range(len(strength)):
        same = labels[form.pair_var[0, f]] == labels[form.pair_var[1, f]]
        total += strength[f] if same else -strength[f]
    for f in range(len(form.table_at)):
        place = form.table_at[f] + labels[form.var[0, f]] * form.size[1, f] + labels[form.var[1, f]]
        total += weight_of(form.weight, f) * form.entries[place]
    return total


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
def iterate_box(n: int, box: BoxRecord, form: BoxForm, arrays: BoxArrays) -> int:
    """Run n iterations, or fewer if the method converges; return how many."""
    labels, best, history = arrays.labels, arrays.best, arrays.history
    for done in range(n):
        update_copies(box, arrays)
        update_x(box, form, arrays)
        update_multipliers(box, form.var_ptr, arrays)
        decode_box(form, arrays.x, labels)
        value = labels_value(form, labels)
        if len(history) > 0:
            history[box[0].k % len(history)] = value
        if value > box[0].best:
            box[0].best = value
            for i in range(len(best)):
                best[i] = labels[i]
        update_penalties(box)
        box[0].at_rest = at_rest(box, arrays.x, history)
        if box[0].at_rest:
            return done + 1
    return n


# -- Products with Q, and with the linear system ----------------------------------------------------------------------

NARROW = 8  # number of columns from which a row of a table is worth vectorising


@bare
def product(form: BoxForm, x: Floats, out: Floats) -> None:
    """Write Q x into `out`."""
    _binary_product(form, x, out)
    size, table_at, theta = form.size, form.table_at, form.entries
    for f in range(len(table_at)):
        i, j, cols, by = form.at[0, f], form.at[1, f], size[1, f], weight_of(form.weight, f)
        if cols == 3:
            _three_columns(theta, table_at[f], size[0, f], by, x, out, (i, j))
            continue
        for s in range(size[0, f]):
            row, mass = table_at[f] + s * cols, by * x[i + s]
            if cols < NARROW:
                out[i + s] += by * _narrow_row(theta, row, cols, mass, x, out, j)
                continue
            out[i + s] += by * row_product(theta, row, cols, x, j)
            for t in range(cols):
                out[j + t] += theta[row + t] * mass


@inlined
def _three_columns(
    theta: Floats, row: int, rows: int, by: float, x: Floats, out: Floats, places: tuple[int, int]
) -> None:
    """Compute both products of a table with three columns, whose sums stay in registers."""
    i, j = places
    x0, x1, x2 = x[j], x[j + 1], x[j + 2]
    out0, out1, out2 = out[j], out[j + 1], out[j + 2]
    for s in range(rows):
        t0, t1, t2, mass = theta[row], theta[row + 1], theta[row + 2], by * x[i + s]
        out[i + s] += by * (t0 * x0 + t1 * x1 + t2 * x2)
        out0 += t0 * mass
        out1 += t1 * mass
        out2 += t2 * mass
        row += 3
    out[j], out[j + 1], out[j + 2] = out0, out1, out2


@inlined
def _narrow_row(theta: Floats, row: int, cols: int, mass: float, x: Floats, out: Floats, at: int) -> float:
    """Compute both products of a row of less than eight entries in one loop, which is not vectorised."""
    s0 = s1 = s2 = s3 = 0.0
    begin = 0
    if cols >= 4:
        s0 = theta[row] * x[at]
        s1 = theta[row + 1] * x[at + 1]
        s2 = theta[row + 2] * x[at + 2]
        s3 = theta[row + 3] * x[at + 3]
        out[at] += theta[row] * mass
        out[at + 1] += theta[row + 1] * mass
        out[at + 2] += theta[row + 2] * mass
        out[at + 3] += theta[row + 3] * mass
        begin = 4
    for t in range(begin, cols):
        s0 += theta[row + t] * x[at + t]
        out[at + t] += theta[row + t] * mass
    return (s0 + s1) + (s2 + s3)


@inlined
def _binary_product(form: BoxForm, x: Floats, out: Floats) -> None:
    """Write the contribution of the binary factors to `out`: the same for both states of a variable, up to the sign."""
    var, strength, difference, push, var_ptr = form.pair_var, form.strength, form.difference, form.push, form.var_ptr
    if len(strength) == 0:
        for s in range(len(x)):
            out[s] = 0.0
        return
    for i in range(len(push)):
        push[i] = 0.0
        difference[i] = x[var_ptr[i + 1] - 1] - x[var_ptr[i]]
    for f in range(len(strength)):
        i, j = var[0, f], var[1, f]
        push[i] += strength[f] * difference[j]
        push[j] += strength[f] * difference[i]
    for i in range(len(push)):
        for s in range(var_ptr[i] + 1, var_ptr[i + 1]):
            out[s] = push[i]
        out[var_ptr[i]] = 0.0 - push[i]


@inlined
def row_product(theta: Floats, row: int, cols: int, x: Floats, at: int) -> float:
    """Return the inner product of a row of a table and a block of x, with four accumulators."""
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
    """Return the inner product with four accumulators: a fixed order without a dependency chain."""
    return row_product(a, 0, len(a), b, 0)


@bare
def largest_curvature(n: int, form: BoxForm, bend: Floats, v: Floats, w: Floats) -> float:
    """Estimate the spectral radius of B^-1/2 Q B^-1/2, B = diag(bend), from below by n power iterations from v."""
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
        first, last = var_ptr[i], var_ptr[i + 1]
        if last - first == 2:  # no loops
            mass = x[first] + x[first + 1]
            out[first] = diagonal[i] * x[first] + rho_mass * mass - out[first]
            out[first + 1] = diagonal[i] * x[first + 1] + rho_mass * mass - out[first + 1]
            continue
        mass = 0.0
        for s in range(first, last):
            mass += x[s]
        for s in range(first, last):
            out[s] = diagonal[i] * x[s] + rho_mass * mass - out[s]


@bare
def precondition(diagonal: Floats, rho_mass: float, var_ptr: Ints, rest: Floats, out: Floats) -> None:
    """Write (D + rho_mass C'C)^-1 rest into `out`: block Jacobi with every variable's block solved exactly."""
    for i in range(len(var_ptr) - 1):
        first, last = var_ptr[i], var_ptr[i + 1]
        if last - first == 2:
            taken = rho_mass * (rest[first] + rest[first + 1]) / (diagonal[i] + rho_mass * 2)
            out[first] = (rest[first] - taken) / diagonal[i]
            out[first + 1] = (rest[first + 1] - taken) / diagonal[i]
            continue
        mass = 0.0
        for s in range(first, last):
            mass += rest[s]
        taken = rho_mass * mass / (diagonal[i] + rho_mass * (last - first))
        for s in range(first, last):
            out[s] = (rest[s] - taken) / diagonal[i]
