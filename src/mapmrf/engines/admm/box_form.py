"""Products with the quadratic form of a pairwise model, and with the linear system of l2-Box.

The form Q contains every table twice, as it is and transposed. It is never assembled: a product loops over the factors.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from mapmrf.arrays import Floats, Ints
from mapmrf.compilation.jit import bare, inlined
from mapmrf.kernels.max_marginals import weight_of

NARROW = 8
"""Number of columns from which a row of a table is worth vectorising."""


class BinaryTerms(NamedTuple):
    """Factors of two binary variables, with centred tables ``strength * [[1, -1], [-1, 1]]``.

    var : (2, n), the two variables of every factor.
    difference, push : scratch, a number per variable: its x(1) - x(0), and the sum from its neighbours.
    """

    var: Ints
    strength: Floats
    difference: Floats
    push: Floats


class TableTerms(NamedTuple):
    """All other factors: their variables, offsets in x, numbers of states, weights, and centred tables."""

    var: Ints
    at: Ints
    size: Ints
    table_at: Ints
    weight: Floats
    theta: Floats


class BoxForm(NamedTuple):
    """Q, and the offsets of the blocks of x."""

    var_ptr: Ints
    pairs: BinaryTerms
    tables: TableTerms


@bare
def product(form: BoxForm, x: Floats, out: Floats) -> None:
    """Write Q x into `out`."""
    _binary_product(form, x, out)
    _, at, size, table_at, weight, theta = form.tables
    for f in range(len(table_at)):
        i, j, cols, by = at[0, f], at[1, f], size[1, f], weight_of(weight, f)
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
    var, strength, difference, push = form.pairs
    var_ptr = form.var_ptr
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
