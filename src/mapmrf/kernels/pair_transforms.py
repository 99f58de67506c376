"""Messages through structured pairs in linear time: ``out[l] = max_k (h[k] - g(|k - l|))``.

The forms of ``g`` are those of `mapmrf.model.structured_pairs`; all of them are symmetric, so one transform serves both
directions. Row and column parts are left to the caller. Entries of `h` are finite or -inf.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from mapmrf.arrays import Floats, Ints
from mapmrf.compilation.jit import inlined
from mapmrf.model.structured_pairs import LINEAR, NO_FORM, POTTS, PairForms


class PairForm(NamedTuple):
    kind: int
    slope: float
    limit: float


class Envelope(NamedTuple):
    """Scratch for quadratic forms: parabolas of the upper envelope, and where each begins (K + 1,)."""

    peak: Ints
    begin: Floats

    @classmethod
    def allocate(cls, n_states: int) -> Envelope:
        return cls(np.zeros(n_states, dtype=np.int64), np.zeros(n_states + 1))


@inlined
def pair_form(forms: PairForms, f: int, weight: float) -> PairForm:
    return PairForm(forms.kind[f], weight * forms.slope[f], weight * forms.limit[f])


@inlined
def transform(form: PairForm, h: Floats, at: int, out: Floats, to: int, n: int, envelope: Envelope) -> float:
    """Fill ``out[to : to + n]`` with the transform of ``h[at : at + n]``; return its largest entry."""
    if form.kind == POTTS:
        return transform_potts(form.slope, h, at, out, to, n)
    if form.kind == LINEAR:
        return transform_linear(form, h, at, out, to, n)
    return transform_quadratic(form, h, at, out, to, n, envelope)


@inlined
def transform_potts(slope: float, h: Floats, at: int, out: Floats, to: int, n: int) -> float:
    """Transform for a Potts form: a loss, or a reward if the slope is negative, wherever two labels differ."""
    top, best, second = -np.inf, 0, -np.inf
    if slope >= 0.0:
        for k in range(n):
            top = max(top, h[at + k])
        floor = top - slope
        for k in range(n):
            out[to + k] = max(h[at + k], floor)
        return top
    for k in range(n):
        if h[at + k] > top:
            top, best, second = h[at + k], k, top
        elif h[at + k] > second:
            second = h[at + k]
    for k in range(n):
        out[to + k] = max(h[at + k], (second if k == best else top) - slope)
    return top


@inlined
def transform_linear(form: PairForm, h: Floats, at: int, out: Floats, to: int, n: int) -> float:
    """Transform for a linear form: a forward pass, a backward pass, and truncation."""
    top, last = -np.inf, -np.inf
    for k in range(n):
        top = max(top, h[at + k])
        last = max(h[at + k], last - form.slope)
        out[to + k] = last
    floor, last = top - form.limit, -np.inf
    for k in range(n - 1, -1, -1):
        last = max(out[to + k], last - form.slope)
        out[to + k] = max(last, floor)
    return top


@inlined
def transform_quadratic(form: PairForm, h: Floats, at: int, out: Floats, to: int, n: int, envelope: Envelope) -> float:
    """Transform for a quadratic form: the upper envelope of parabolas, and truncation."""
    top = -np.inf
    for k in range(n):
        top = max(top, h[at + k])
    last, floor = raise_envelope(form.slope, h, at, n, envelope), top - form.limit
    peak, begin, p = envelope.peak, envelope.begin, 0
    for k in range(n):
        while p < last and begin[p + 1] <= k:
            p += 1
        value = -np.inf if last < 0 else h[at + peak[p]] - form.slope * (k - peak[p]) ** 2
        out[to + k] = max(value, floor)
    return top


@inlined
def raise_envelope(slope: float, h: Floats, at: int, n: int, envelope: Envelope) -> int:
    """Compute the upper envelope of the parabolas ``h[k] - slope (x - k)**2``; return the index of the last one."""
    peak, begin, last = envelope.peak, envelope.begin, -1
    for k in range(n):
        if h[at + k] == -np.inf:
            continue
        x = -np.inf
        while last >= 0:
            j = peak[last]
            # From here on parabola k is above parabola j.
            x = ((h[at + j] - h[at + k]) / slope + (k * k - j * j)) / (2.0 * (k - j)) if slope > 0.0 else np.inf
            if slope == 0.0 and h[at + k] > h[at + j]:
                x = -np.inf
            if x > begin[last]:
                break
            last -= 1
        if last >= 0 and x == np.inf:
            continue
        last += 1
        peak[last] = k
        begin[last] = -np.inf if last == 0 else x
    return last


@inlined
def trace_transform(form: PairForm, h: Floats, at: int, out: Floats, origin: Ints, n: int, envelope: Envelope) -> None:
    """Fill ``out[:n]`` with the transform, and ``origin[:n]`` with a maximising state `k` of each entry."""
    best, second = 0, -1
    for k in range(1, n):
        if h[at + k] > h[at + best]:
            best, second = k, best
        elif second < 0 or h[at + k] > h[at + second]:
            second = k
    if form.kind == POTTS:
        for k in range(n):
            other = second if k == best and form.slope < 0.0 else best
            far = h[at + other] - form.slope if other >= 0 and other != k else -np.inf
            origin[k] = other if far > h[at + k] else k
            out[k] = max(h[at + k], far)
        return
    slope = form.slope
    if form.kind == LINEAR:
        last, of = -np.inf, 0
        for k in range(n):
            last -= slope
            if h[at + k] >= last:
                last, of = h[at + k], k
            out[k], origin[k] = last, of
        last = -np.inf
        for k in range(n - 1, -1, -1):
            last -= slope
            if out[k] >= last:
                last, of = out[k], origin[k]
            out[k], origin[k] = last, of
    else:
        last_peak, p = raise_envelope(slope, h, at, n, envelope), 0
        for k in range(n):
            while p < last_peak and envelope.begin[p + 1] <= k:
                p += 1
            of = k if last_peak < 0 else envelope.peak[p]
            out[k] = h[at + of] - slope * (k - of) ** 2
            origin[k] = of
    floor = h[at + best] - form.limit
    for k in range(n):
        if floor > out[k]:
            out[k], origin[k] = floor, best


# -- Messages of Potts, linear and quadratic pairs, with all parts of their tables -----------------------------------


class StructuredPairs(NamedTuple):
    """The forms of a model's pairs, and scratch."""

    forms: PairForms  # see `mapmrf.model.structured_pairs`
    # (largest number of states,) `given` of one variable, with the row or column part of a table added
    shifted: Floats
    envelope: Envelope  # for quadratic forms

    @classmethod
    def allocate(cls, forms: PairForms, n_states: int) -> StructuredPairs:
        return cls(forms, np.zeros(n_states), Envelope.allocate(n_states))


@inlined
def form_of(forms: PairForms, a: int) -> int:
    return forms.of[a] if len(forms.of) > 0 else NO_FORM


@inlined
def form_message(
    pairs: StructuredPairs, f: int, weight: float, is_first: bool, h: Floats, at: int, out: Floats, to: int, n: int
) -> None:
    """Fill ``out[to : to + n]`` with the maxima over the other variable of table `f` plus ``h[at : at + n]``.

    They are for the first variable of the table or the second; the table has a weight.
    """
    forms, shifted, row = pairs.forms, pairs.shifted, pairs.forms.part_at[f]
    form = pair_form(forms, f, weight)
    if row < 0:
        transform(form, h, at, out, to, n, pairs.envelope)
        base = weight * forms.base[f]
        for s in range(n):
            out[to + s] += base
        return
    near, far = (row, row + n) if is_first else (row + n, row)
    for s in range(n):
        shifted[s] = h[at + s] + weight * forms.parts[far + s]
    transform(form, shifted, 0, out, to, n, pairs.envelope)
    for s in range(n):
        out[to + s] += weight * forms.parts[near + s]
