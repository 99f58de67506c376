"""Messages through one pair: in linear time where its table has a form, else through the table."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from mapmrf.arrays import Floats, Ints
from mapmrf.compilation.jit import compiled, inlined
from mapmrf.kernels.max_marginals import weight_of
from mapmrf.kernels.pair_transforms import Envelope, PairForm, pair_form, transform_potts, transform_quadratic
from mapmrf.model.structured_pairs import LINEAR, NO_FORM, POTTS, PairForms

Place = Any
"""An unsigned place in an array. Signed ones are checked for being negative, which takes a good part of the time."""
ONE, TWO = np.uintp(1), np.uintp(2)
SHIFTS = 48
"""Up to so many states a quadratic loss below its limit is passed shift by shift, which is quicker than an envelope."""


class PairTables(NamedTuple):
    """The tables of pairs."""

    # theta_t, table_at, weight: as in the problem
    theta_t: Floats
    table_at: Ints
    weight: Floats
    turned: Floats  # the tables transposed, each in its place; empty if there are none
    forms: PairForms  # as in the problem


class PairScratch(NamedTuple):
    """Working memory for a visit."""

    # belief, score: (n_states,): belief of a variable, and scores of its states
    belief: Floats
    score: Floats
    # (5 * n_states,): what is given to a pair, from `n_states` on, and from ``3 * n_states`` on room for as much; -inf
    # around them
    h: Floats
    envelope: Envelope

    @classmethod
    def allocate(cls, n_states: int) -> PairScratch:
        """Room for variables of at most so many states."""
        belief, score = np.zeros(n_states), np.zeros(n_states)
        return cls(belief, score, np.full(5 * n_states, -np.inf), Envelope.allocate(n_states))


@inlined
def largest(values: Floats, at: Place, n: Place) -> float:
    """The largest of some numbers, in four chains: a single one would wait for every comparison."""
    first: Any = values[at]
    a = b = c = d = first
    k, end = at, at + n
    two, three, four = np.uintp(2), np.uintp(3), np.uintp(4)
    while k + four <= end:
        a = values[k] if values[k] > a else a
        b = values[k + ONE] if values[k + ONE] > b else b
        c = values[k + two] if values[k + two] > c else c
        d = values[k + three] if values[k + three] > d else d
        k += four
    while k < end:
        a = values[k] if values[k] > a else a
        k += ONE
    a = b if b > a else a
    c = d if d > c else c
    return float(c if c > a else a)


@inlined
def level(d: Floats, at: Place, n: Place) -> float:
    """Take the largest entry of a message off all its entries; return it."""
    top = largest(d, at, n)
    for k in range(n):
        d[at + k] -= top
    return top


@inlined
def form_of(forms: PairForms, a: Place) -> int:
    """The form of a factor."""
    return int(forms.of[a]) if len(forms.of) > 0 else NO_FORM


@compiled
def turn_tables(table_of: Ints, table_ptr: Ints, n_second: Ints, theta_t: Floats, turned: Floats) -> None:
    """Transpose the tables of pairs, each in its place; `n_second` are the states of the factors' second variables."""
    seen = np.zeros(len(table_ptr) - 1, dtype=np.bool_)
    for a in range(len(table_of)):
        table = table_of[a]
        if seen[table]:
            continue
        seen[table] = True
        at, n = table_ptr[table], n_second[a]
        n_first = (table_ptr[table + 1] - at) // n
        for k in range(n_first):
            for j in range(n):
                turned[at + j * n_first + k] = theta_t[at + k * n + j]


# -- messages ---------------------------------------------------------------------------------------------------------


@inlined
def pass_message(
    code: Place, tables: PairTables, d: Floats, at: Place, n_own: Place, n_other: Place, room: PairScratch
) -> float:
    """Turn what one end of a pair gives, in the middle of ``room.h``, into the message to the other end, at ``d[at]``.

    `code` is twice the factor, plus 1 if its second variable gives. The largest entry of a message is 0; what was taken
    off for that is returned.
    """
    a, begin = code >> ONE, np.uintp(len(room.belief))
    weight, f = weight_of(tables.weight, a), form_of(tables.forms, a)
    if weight == 0.0:
        for k in range(n_other):
            d[at + k] = 0.0
        return largest(room.h, begin, n_own)
    if f == NO_FORM:
        return pass_table(
            code & ONE == ONE, tables.table_at[a], weight, tables, d, at, (n_own, n_other), room.h[begin:]
        )
    forms, part = tables.forms, tables.forms.part_at[f]
    form, base = pair_form(forms, f, weight), weight * forms.base[f]
    if part < 0:
        return float(base + pass_form(form, d, at, n_own, room))
    turned = code & ONE == ONE
    row = np.uintp(part)
    column = row + n_own
    own, other = (column, row) if turned else (row, column)
    for k in range(n_own):
        room.h[begin + k] += weight * forms.parts[own + k]
    top = pass_form(form, d, at, n_own, room)
    for k in range(n_own):
        d[at + k] += weight * forms.parts[other + k]
    return float(base + top + level(d, at, n_own))


@inlined
def pass_table(
    turn: bool, table: int, weight: float, tables: PairTables, d: Floats, at: Place, sizes: tuple[Place, Place],
    h: Floats,
) -> float:  # fmt: skip
    """The message through a table; `turn` if the second variable of the factor gives; `sizes` of this and the other."""
    theta, row = tables.theta_t, np.uintp(table)
    n_own, n_other = sizes
    for j in range(n_other):
        d[at + j] = -np.inf
    if turn and len(tables.turned) == 0:
        for k in range(n_own):
            given = h[k]
            for j in range(n_other):
                value = weight * theta[row + k + j * n_own] + given
                d[at + j] = value if value > d[at + j] else d[at + j]
        return level(d, at, n_other)
    if turn:
        theta = tables.turned
    for k in range(n_own - n_own % TWO, n_own):
        pass_rows(theta, row + k * n_other, row + k * n_other, weight, (h[k], h[k]), d, at, n_other)
    for half in range(n_own // TWO):
        above = row + TWO * half * n_other
        pass_rows(theta, above, above + n_other, weight, (h[TWO * half], h[TWO * half + ONE]), d, at, n_other)
    return level(d, at, n_other)


@inlined
def pass_rows(
    theta: Floats, one: Place, two: Place, weight: float, given: tuple[float, float], d: Floats, at: Place, n: Place
) -> None:
    """Raise a message to what two rows of a table give: half as many reads and writes as one after the other."""
    first, second = given
    if weight == 1.0:
        for j in range(n):
            value, other = theta[one + j] + first, theta[two + j] + second
            value = other if other > value else value
            d[at + j] = value if value > d[at + j] else d[at + j]
    else:
        for j in range(n):
            value, other = weight * theta[one + j] + first, weight * theta[two + j] + second
            value = other if other > value else value
            d[at + j] = value if value > d[at + j] else d[at + j]


@inlined
def pass_form(form: PairForm, d: Floats, at: Place, n: Place, room: PairScratch) -> float:
    """The message through a form of a table without row and column parts."""
    h, out = room.h, np.uintp(len(room.belief))
    if form.kind == POTTS and form.slope < 0.0:
        transform_potts(form.slope, h, len(room.belief), d, int(at), int(n))
        return level(d, at, n)
    top, least = largest(h, out, n), -form.limit
    if form.kind == LINEAR:
        out = reach_linear(form, n, room)
    elif form.kind != POTTS:
        out = reach_quadratic(form, n, room)
    for k in range(n):
        value = h[out + k] - top
        d[at + k] = value if value > least else least
    return top


@inlined
def clear_beyond(h: Floats, begin: Place, end: Place) -> None:
    """Let nothing come from beyond the last state: variables of more states may have left something there."""
    for k in range(begin, end):
        h[k] = -np.inf


@inlined
def reach_linear(form: PairForm, n: Place, room: PairScratch) -> Place:
    """Losses in proportion to the distance, as far as they stay below the limit; returns where in `h` the result is.

    Distances of 1 come first, then 2 more, then 4 more. In a pass up and another one down every state would wait for
    the one before.
    """
    h, begin = room.h, np.uintp(len(room.belief))
    other, far, done = np.uintp(3) * begin, n - ONE, np.uintp(0)
    if form.limit < form.slope * np.intp(far):
        far = np.uintp(np.ceil(form.limit / form.slope)) - ONE
    clear_beyond(h, begin + n, begin + n + far)
    clear_beyond(h, other + n, other + n + far)
    while done < far:
        by = min(done + ONE, far - done)
        loss, below, above = np.intp(by) * form.slope, begin - by, begin + by
        for k in range(n):
            value = h[below + k] if h[below + k] > h[above + k] else h[above + k]
            value -= loss
            h[other + k] = value if value > h[begin + k] else h[begin + k]
        begin, other = other, begin
        done += by
    return begin


@inlined
def reach_quadratic(form: PairForm, n: Place, room: PairScratch) -> Place:
    """Losses in proportion to the squared distance, as `reach_linear`; by an envelope if many are below the limit."""
    h, begin, slope = room.h, np.uintp(len(room.belief)), form.slope
    out, far = np.uintp(3) * begin, n - ONE
    if form.limit < slope * np.intp(far * far):
        far = np.uintp(np.ceil(np.sqrt(form.limit / slope))) - ONE
    if far > SHIFTS:
        transform_quadratic(form, h, int(begin), h, int(out), int(n), room.envelope)
        return out
    clear_beyond(h, begin + n, begin + n + far)
    for k in range(n):
        h[out + k] = h[begin + k]
    for by in range(ONE, far + ONE):
        loss, below, above = np.intp(by * by) * slope, begin - by, begin + by
        for k in range(n):
            value = h[below + k] if h[below + k] > h[above + k] else h[above + k]
            value -= loss
            h[out + k] = value if value > h[out + k] else h[out + k]
    return out


# -- labels -----------------------------------------------------------------------------------------------------------


@inlined
def reward(code: Place, tables: PairTables) -> float:
    """Return the reward for equal labels of a pair that is Potts without row and column parts; else 0."""
    a, forms = code >> ONE, tables.forms
    f = form_of(forms, a)
    if f == NO_FORM or forms.kind[f] != POTTS or forms.part_at[f] >= 0:
        return 0.0
    return float(weight_of(tables.weight, a) * forms.slope[f])


@inlined
def add_row(code: Place, label: Place, tables: PairTables, n_own: Place, n_other: Place, score: Floats) -> None:
    """Add what a pair gives for every state of one end, with the other end's label fixed, up to a constant.

    `code` is twice the factor, plus 1 if the end with the label is the second variable of the factor.
    """
    a = code >> ONE
    weight, f, theta, row = weight_of(tables.weight, a), form_of(tables.forms, a), tables.theta_t, tables.table_at[a]
    even = f != NO_FORM and tables.forms.part_at[f] < 0  # then the table is symmetric
    if code & ONE == ONE and not even:
        if len(tables.turned) == 0:
            at = np.uintp(row) + label
            for k in range(n_own):
                score[k] += weight * theta[at + k * n_other]
            return
        theta = tables.turned
    at = np.uintp(row) + label * n_own
    for k in range(n_own):
        score[k] += weight * theta[at + k]


@inlined
def entry(code: Place, label: Place, own: Place, tables: PairTables, n_own: Place, n_other: Place) -> float:
    """The potential of a pair, as in `add_row`, with both ends fixed."""
    a = code >> ONE
    place = own * n_other + label if code & ONE == ONE else label * n_own + own
    return float(weight_of(tables.weight, a) * tables.theta_t[np.uintp(tables.table_at[a]) + place])
