"""The largest price ``w T + a + b`` of a structured pair, in linear time: Potts, (truncated) linear or quadratic.

With T = base + row + column - g, row and column parts are added to the prices a of the rows and b of the columns, and
the transform of `mapmrf.kernels.pair_transforms` maximises over the rows for every column.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from mapmrf.arrays import Floats, Ints
from mapmrf.compilation.jit import bare, inlined
from mapmrf.kernels.pair_transforms import Envelope, PairForm, pair_form, trace_transform, transform
from mapmrf.model.structured_pairs import NO_FORM, QUADRATIC, PairForms

STEP_STATES, BOUND_STATES = 24, 12
"""Numbers of states from which a transform is faster than the table: in the vectorised factor step; in the bound."""
ENVELOPE = 4  # factor on these numbers for a quadratic form, as every parabola of its envelope takes two divisions


class PairTable(NamedTuple):
    """One K1 x K2 factor: its table, its weight, and the index of its form (NO_FORM for none)."""

    table: Floats
    weight: float
    form: int


class FormScratch(NamedTuple):
    """Scratch for one pair: prices of the rows, their transform, its maximising rows, and the envelope's arrays."""

    rows: Floats
    out: Floats
    origin: Ints
    peak: Ints
    begin: Floats


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
def _load(price: Floats, factor: PairTable, forms: PairForms, room: FormScratch) -> PairForm:
    """Load the prices of the rows plus the table's row part into `room.rows`; return the form."""
    k = len(factor.table)
    at = forms.part_at[factor.form]
    for r in range(k):
        room.rows[r] = price[r]
    if at >= 0:
        for r in range(k):
            room.rows[r] += factor.weight * forms.parts[at + r]
    return pair_form(forms, factor.form, factor.weight)


@inlined
def largest_of_form(price: Floats, factor: PairTable, forms: PairForms, room: FormScratch) -> float:
    """Return the largest price; `price` has the rows, then the columns."""
    k, weight = len(factor.table), factor.weight
    form = _load(price, factor, forms, room)
    transform(form, room.rows, 0, room.out, 0, k, Envelope(room.peak, room.begin))
    at, best = forms.part_at[factor.form], -np.inf
    if at >= 0:
        for c in range(k):
            room.out[c] += weight * forms.parts[at + k + c]
    for c in range(k):
        best = max(best, room.out[c] + price[k + c])
    largest: float = best + weight * forms.base[factor.form]
    return largest


@bare
def best_of_form(price: Floats, factor: PairTable, forms: PairForms, room: FormScratch) -> tuple[int, int]:
    """Return row and column of the largest price."""
    k, weight = len(factor.table), factor.weight
    form = _load(price, factor, forms, room)
    trace_transform(form, room.rows, 0, room.out, room.origin, k, Envelope(room.peak, room.begin))
    at, best, col = forms.part_at[factor.form], -np.inf, 0
    for c in range(k):
        value = room.out[c] + price[k + c] + (weight * forms.parts[at + k + c] if at >= 0 else 0.0)
        if value > best:
            best, col = value, c
    return room.origin[col], col


@bare
def entering_by_form(
    price: Floats, factor: PairTable, forms: PairForms, limit: float, room: FormScratch
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
