"""Messages and max-marginals of Potts, linear and quadratic pairs in linear time.

The layout is that of `mapmrf.kernels.max_marginals`: both variables have `n` states, which are contiguous in `given`
and `out`.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from mapmrf.arrays import Floats
from mapmrf.compilation.jit import inlined
from mapmrf.kernels.max_marginals import FactorScratch
from mapmrf.kernels.pair_transforms import Envelope, PairForm, pair_form, transform
from mapmrf.model.structured_pairs import NO_FORM, PairForms


class StructuredPairs(NamedTuple):
    """The forms of a model's pairs, and scratch.

    Attributes
    ----------
    forms
        See `mapmrf.model.structured_pairs`.
    shifted : (largest number of states,)
        `given` of one variable, with the row or column part of a table added.
    envelope
        For quadratic forms.
    """

    forms: PairForms
    shifted: Floats
    envelope: Envelope

    @classmethod
    def allocate(cls, forms: PairForms, n_states: int) -> StructuredPairs:
        """Allocate scratch for variables of at most this many states."""
        return cls(forms, np.zeros(n_states), Envelope.allocate(n_states))


class WeightedForm(NamedTuple):
    """A form from the perspective of one of its two variables.

    Attributes
    ----------
    form
        The form, its weight included.
    weight, base
        The factor's weight, and the constant part of its table, weight included.
    near, far
        Where the parts of the table of this variable and of the other one start in `parts`; -1 if both are 0.
    """

    form: PairForm
    weight: float
    base: float
    near: int
    far: int


@inlined
def form_of(forms: PairForms, a: int) -> int:
    """Return the index of a factor's form, or NO_FORM."""
    return forms.of[a] if len(forms.of) > 0 else NO_FORM


@inlined
def weighted_form(forms: PairForms, f: int, weight: float, n: int, is_first: bool) -> WeightedForm:
    """Return form `f` times a weight, from the perspective of the first or second variable of the table."""
    row, column = forms.part_at[f], forms.part_at[f] + n
    if row < 0:
        row, column = -1, -1
    near, far = (row, column) if is_first else (column, row)
    return WeightedForm(pair_form(forms, f, weight), weight, weight * forms.base[f], near, far)


@inlined
def form_message(seen: WeightedForm, pairs: StructuredPairs, h: Floats, at: int, out: Floats, to: int, n: int) -> None:
    """Fill ``out[to : to + n]`` with the maxima over the other variable of the table plus ``h[at : at + n]``."""
    parts, shifted, weight = pairs.forms.parts, pairs.shifted, seen.weight
    if seen.near < 0:
        transform(seen.form, h, at, out, to, n, pairs.envelope)
        for s in range(n):
            out[to + s] += seen.base
        return
    for s in range(n):
        shifted[s] = h[at + s] + weight * parts[seen.far + s]
    transform(seen.form, shifted, 0, out, to, n, pairs.envelope)
    for s in range(n):
        out[to + s] += weight * parts[seen.near + s]


@inlined
def form_messages(pairs: StructuredPairs, f: int, weight: float, n: int, scratch: FactorScratch) -> None:
    """Fill `out` with both messages: the maxima of the table plus `given` of the other variable."""
    for side in range(2):
        seen = weighted_form(pairs.forms, f, weight, n, side == 0)
        form_message(seen, pairs, scratch.given, (1 - side) * n, scratch.out, side * n, n)


@inlined
def form_max_marginals(pairs: StructuredPairs, f: int, weight: float, n: int, scratch: FactorScratch) -> float:
    """Fill `out` with the max-marginals of the table plus `given` for both variables; return the largest entry."""
    given, out = scratch.given, scratch.out
    form_messages(pairs, f, weight, n, scratch)
    top = -np.inf
    for s in range(2 * n):
        out[s] += given[s]
    for s in range(n):
        top = max(top, out[s])
    return top


@inlined
def form_top(pairs: StructuredPairs, f: int, weight: float, n: int, scratch: FactorScratch) -> float:
    """Return the largest entry of the table plus `given`; overwrites the first half of `out`."""
    given, out = scratch.given, scratch.out
    form_message(weighted_form(pairs.forms, f, weight, n, True), pairs, given, n, out, 0, n)
    top = -np.inf
    for s in range(n):
        top = max(top, out[s] + given[s])
    return top
