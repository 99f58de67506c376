"""Pairwise models with any number of states, with one message per pair."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from mapmrf.arrays import Floats, Ints, frozen, offsets, ranges, short
from mapmrf.compilation.jit import bare, compiled, inlined
from mapmrf.engines.messages.sweeps import (
    MAX_TRANSPOSED,
    Chunks,
    PassFigures,
    PassMessages,
    PassStopping,
    SequentialPasses,
    run_iterations,
    run_worker,
)
from mapmrf.engines.messages.visit_order import PairLinks, VisitOrder, sort_links
from mapmrf.kernels.max_marginals import weight_of
from mapmrf.kernels.pair_transforms import Envelope, PairForm, form_of, pair_form, transform_potts, transform_quadratic
from mapmrf.model.problem import Problem
from mapmrf.model.structured_pairs import LINEAR, NO_FORM, POTTS, PairForms


class LabelPasses(SequentialPasses):
    layout = "labels"
    model: LabelModel
    messages: PassMessages

    def __init__(self, problem: Problem, order: VisitOrder, stopping: PassStopping) -> None:
        n_states = int(problem.graph.card.max(initial=1))
        kind: type[np.integer[Any]] = np.int16 if n_states < 2**15 else np.int32
        forms, work = problem.forms, 2 * problem.n_states  # the cost of an iteration, in table entries of `TablePasses`
        for batch in problem.batches:
            n_plain = int(np.count_nonzero(forms.of[batch.factors] == NO_FORM)) if len(forms.of) else batch.n
            work += n_plain * batch.n_configs // 2 + batch.n * (8 + 3 * sum(batch.shape))
        super().__init__(problem, order, stopping, work, kind)
        self.constant = problem.graph.constant
        self.model = label_model(problem, self.order)
        size = int(self.model.block[-1]) if len(self.model.block) else self.model.width * problem.n_factors
        self.messages = PassMessages(np.zeros(size), problem.graph.theta_v, self.labels, self.in_order)
        self.kernels = (iterate_labels, label_worker)
        self.scratches = [PairScratch.allocate(n_states) for _ in range(self.n_workers)]

    @property
    def n_messages(self) -> int:
        """For every pair, as many as its larger variable has states."""
        return len(self.messages.lam)

    def message_values(self) -> Floats:
        numbers = np.zeros_like(self.messages.lam)
        numbers[self._places()] = self.messages.lam
        return numbers

    def load_messages(self, numbers: Floats) -> None:
        self.messages.lam[:] = numbers[self._places()]

    def _places(self) -> Ints:
        """Return the permutation of the messages' entries to the order of the factors."""
        widths = [np.full(batch.n, max(batch.shape)) for batch in self.problem.batches]
        width = np.concatenate([np.zeros(0, dtype=np.int64), *widths])
        factor = self.model.links.factor >> 1
        return ranges(offsets(width)[factor], width[factor])

    def state_bounds(self) -> Floats:
        from mapmrf.engines.reduction.simplify import belief_bounds  # not loaded for a run of messages alone

        beliefs = np.empty(self.problem.n_states)
        label_beliefs(self.model, self.messages, self.scratches[0], beliefs)
        return belief_bounds(self.problem, beliefs, self.figures.bound)


def label_model(problem: Problem, order: VisitOrder) -> LabelModel:
    """Sort the pairs in visiting order; potentials are copied only to transpose tables, if that helps."""
    graph, forms, n, m = problem.graph, problem.forms, problem.n_vars, problem.n_factors
    links = PairLinks.allocate(n, m, max(n, 2 * m + 1, len(graph.theta_v)))
    sort_links(problem.scope, order.rank, order.rank, order.seq[:0], links)
    dtype, widths = links.ptr.dtype, sorted({max(batch.shape) for batch in problem.batches})
    block: Ints = np.zeros(0, dtype=np.int64)
    if len(widths) > 1:
        width = np.concatenate([np.full(batch.n, max(batch.shape)) for batch in problem.batches])
        block = offsets(width[links.factor // 2])
    turned: Floats = np.zeros(0)
    plain = len(forms.of) == 0 or bool(np.any(forms.of == NO_FORM) or np.any(forms.part_at >= 0))
    # Number of states from which tables are also stored transposed, so that both directions read them row by row
    if max(widths, default=0) >= 4 and plain and len(graph.theta_t) <= MAX_TRANSPOSED:
        turned = np.zeros_like(graph.theta_t)
        turn_tables(graph.table_of, graph.table_ptr, graph.card[graph.scope[1::2]], graph.theta_t, turned)
        turned = graph.theta_t if np.array_equal(turned, graph.theta_t) else turned
    return LabelModel(
        theta_at=graph.var_ptr[order.seq].astype(dtype),
        card=graph.card[order.seq].astype(dtype),
        omega=order.omega,
        links=links,
        width=widths[0] if len(widths) == 1 else 0,
        block=block,
        theta_t=graph.theta_t,
        table_at=frozen(short(problem.table_at)),
        weight=problem.weight,
        forms=forms,
        turned=frozen(turned),
    )


# -- Sequential tree-reweighted passes over pairs of variables with any number of states ------------------------------
# A pair holds one message: after a visit to one of its ends the message to the other end, which is visited next. Tables
# are finite, so messages are, too; states with a unary potential of -inf never have anything to give.


class LabelModel(NamedTuple):
    # theta_at, card: (n_vars,): where the block of each visited variable starts in `theta`, and its states
    theta_at: Ints
    card: Ints
    omega: Floats  # (n_vars,): share of its belief that a variable gives to each pair that comes next
    links: PairLinks  # the pairs, in both directions
    # width, block: room for every message, with the states of either end; if they differ, 0, and where they start
    width: int
    block: Ints
    # theta_t, table_at, weight, forms: as in the problem
    theta_t: Floats
    table_at: Ints
    weight: Floats
    forms: PairForms
    turned: Floats  # the tables transposed, each in its place; empty if there are none


@inlined
def block_of(model: LabelModel, e: Place) -> Place:
    return e * np.uintp(model.width) if model.width > 0 else np.uintp(model.block[e])


@inlined
def add_message(at: Place, d: Floats, belief: Floats, n: Place) -> None:
    for k in range(n):
        belief[k] += d[at + k]


@inlined
def choose_label(forward: bool, s: Place, model: LabelModel, labels: Ints, score: Floats) -> None:
    """Fix a label given those of the variables before."""
    # `score` has the unary potentials and the messages of the variables to come. Rewards for a label come last: all
    # else is known before the label of the variable visited last.
    links, n = model.links, np.uintp(model.card[s])
    begins = links.back_ptr if forward else links.ptr
    others = links.down if forward else links.up
    flip = np.uintp(0) if forward else ONE
    first, last = np.uintp(begins[s]), np.uintp(begins[s + ONE])
    for i in range(first, last):
        code = np.uintp(links.factor[links.id[i] if forward else i]) ^ flip
        if reward(code, model) <= 0.0:
            u = np.uintp(others[i])
            add_row(code, np.uintp(labels[u]), model, n, np.uintp(model.card[u]), score)
    top, own = largest(score, np.uintp(0), n), np.uintp(0)
    for k in range(n):
        back = n - k - ONE
        own = back if score[back] == top else own
    for i in range(first, last):
        more = reward(np.uintp(links.factor[links.id[i] if forward else i]) ^ flip, model)
        if more > 0.0:
            label = np.uintp(labels[np.uintp(others[i])])
            now = score[label] + more
            score[label] = now
            own = label if now > top or (now == top and label < own) else own
            top = now if now > top else top
    labels[s] = own


@bare
def add_values(forward: bool, begin: int, end: int, value: float, model: LabelModel, messages: PassMessages) -> float:
    """Add what the labels of some variables are worth, by themselves and together with those fixed before."""
    links, labels = model.links, messages.labels
    begins = links.back_ptr if forward else links.ptr
    others = links.down if forward else links.up
    flip = np.uintp(0) if forward else ONE
    for v in range(np.uintp(begin), np.uintp(end)):
        s = v if forward else np.uintp(begin) + np.uintp(end) - ONE - v
        own, n_own = np.uintp(labels[s]), np.uintp(model.card[s])
        value += messages.theta[np.uintp(model.theta_at[s]) + own]
        for i in range(np.uintp(begins[s]), np.uintp(begins[s + ONE])):
            code, u = np.uintp(links.factor[links.id[i] if forward else i]) ^ flip, np.uintp(others[i])
            value += entry(code, np.uintp(labels[u]), own, model, n_own, np.uintp(model.card[u]))
    return value


@bare
def visit_labels(
    forward: bool, decode: bool, begin: int, end: int, bound: float, model: LabelModel, messages: PassMessages,
    room: PairScratch,
) -> float:  # fmt: skip
    """Visit some variables one after another and fix their labels; return the bound with what they add to it."""
    # It is -inf if a variable has no possible state.
    links, d, belief, score = model.links, messages.lam, room.belief, room.score
    ptr, back_ptr, id = links.ptr, links.back_ptr, links.id
    flip = np.uintp(0) if forward else ONE
    for v in range(np.uintp(begin), np.uintp(end)):
        s = v if forward else np.uintp(begin) + np.uintp(end) - ONE - v
        n, at, omega = np.uintp(model.card[s]), np.uintp(model.theta_at[s]), model.omega[s]
        for k in range(n):
            belief[k] = messages.theta[at + k]
        low, high = np.uintp(ptr[s]), np.uintp(ptr[s + ONE])
        back_low, back_high = np.uintp(back_ptr[s]), np.uintp(back_ptr[s + ONE])
        first, last = (low, high) if forward else (back_low, back_high)
        for i in range(first, last):
            add_message(block_of(model, i if forward else np.uintp(id[i])), d, belief, n)
        if decode:
            for k in range(n):
                score[k] = belief[k]
            choose_label(forward, s, model, messages.labels, score)
        behind, ahead = (back_low, back_high) if forward else (low, high)
        for i in range(behind, ahead):
            add_message(block_of(model, np.uintp(id[i]) if forward else i), d, belief, n)
        best = largest(belief, np.uintp(0), n)
        if best == -np.inf:
            return -np.inf
        bound += best
        for i in range(first, last):
            e = i if forward else np.uintp(id[i])
            n_other = np.uintp(model.card[links.up[i] if forward else links.down[i]])
            code, to, block = np.uintp(links.factor[e]) ^ flip, np.uintp(len(belief)), block_of(model, e)
            for k in range(n):
                room.h[to + k] = omega * (belief[k] - best) - d[block + k]
            bound += pass_message(code, model, d, block, n, n_other, room)
    return bound


@inlined
def visit_chunk(
    forward: bool, decode: bool, c: int, model: LabelModel, messages: PassMessages, room: PairScratch, chunks: Chunks
) -> None:
    begin, end = chunks.begin[c], chunks.end[c]
    chunks.bound[c] = visit_labels(forward, decode, begin, end, chunks.bound[c], model, messages, room)
    if decode:
        chunks.value[c] = add_values(forward, begin, end, chunks.value[c], model, messages)


@compiled
def iterate_labels(*arguments: Any) -> tuple[int, int, PassFigures]:
    return run_iterations(visit_chunk, arguments)


@compiled
def label_worker(*arguments: Any) -> bool:
    return run_worker(visit_chunk, arguments)


@compiled
def label_beliefs(model: LabelModel, messages: PassMessages, room: PairScratch, beliefs: Floats) -> None:
    """Make an iteration, and keep the beliefs of every variable on the way back, laid out like `theta_v`."""
    # Visits are called in one place, as every call takes the compiler seconds.
    n = len(model.card)
    for visit in range(2 * n):
        forward = visit < n
        s = visit if forward else 2 * n - 1 - visit
        visit_labels(forward, False, s, s + 1, 0.0, model, messages, room)
        for k in range(model.card[s]):
            beliefs[model.theta_at[s] + k] = room.belief[k]


# -- Messages through one pair: in linear time where its table has a form, else through the table ---------------------


# An unsigned place in an array. Signed ones are checked for being negative, which takes a good part of the time.
Place = Any
ONE, TWO = np.uintp(1), np.uintp(2)


class PairScratch(NamedTuple):
    # belief, score: (n_states,): belief of a variable, and scores of its states
    belief: Floats
    score: Floats
    # (5 * n_states,): what is given to a pair, from `n_states` on, and from ``3 * n_states`` on room for as much; -inf
    # around them
    h: Floats
    envelope: Envelope

    @classmethod
    def allocate(cls, n_states: int) -> PairScratch:
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


@inlined
def pass_message(
    code: Place, model: LabelModel, d: Floats, at: Place, n_own: Place, n_other: Place, room: PairScratch
) -> float:
    """Turn what one end of a pair gives, in the middle of ``room.h``, into the message to the other, at ``d[at]``."""
    # `code` is twice the factor, plus 1 if its second variable gives. The largest entry of a message is 0; what was
    # taken off for that is returned.
    a, begin = code >> ONE, np.uintp(len(room.belief))
    weight, f = weight_of(model.weight, a), form_of(model.forms, a)
    if weight == 0.0:
        for k in range(n_other):
            d[at + k] = 0.0
        return largest(room.h, begin, n_own)
    if f == NO_FORM:
        return pass_table(code & ONE == ONE, model.table_at[a], weight, model, d, at, (n_own, n_other), room.h[begin:])
    forms, part = model.forms, model.forms.part_at[f]
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
    turn: bool, table: int, weight: float, model: LabelModel, d: Floats, at: Place, sizes: tuple[Place, Place],
    h: Floats,
) -> float:  # fmt: skip
    """The message through a table; `turn` if the second variable of the factor gives; `sizes` of this and the other."""
    theta, row = model.theta_t, np.uintp(table)
    n_own, n_other = sizes
    for j in range(n_other):
        d[at + j] = -np.inf
    if turn and len(model.turned) == 0:
        for k in range(n_own):
            given = h[k]
            for j in range(n_other):
                value = weight * theta[row + k + j * n_own] + given
                d[at + j] = value if value > d[at + j] else d[at + j]
        return level(d, at, n_other)
    if turn:
        theta = model.turned
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
    """Set what follows the last state to -inf: variables of more states may have left something there."""
    for k in range(begin, end):
        h[k] = -np.inf


@inlined
def reach_linear(form: PairForm, n: Place, room: PairScratch) -> Place:
    """Losses in proportion to the distance, as far as they stay below the limit; returns where in `h` the result is."""
    # Distances of 1 come first, then 2 more, then 4 more. In a pass up and another one down every state would wait for
    # the one before.
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
    # Largest distance for which a quadratic loss is passed shift by shift, which is quicker than an envelope
    if far > 48:
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


@inlined
def reward(code: Place, model: LabelModel) -> float:
    """Return the reward for equal labels of a pair that is Potts without row and column parts; else 0."""
    a, forms = code >> ONE, model.forms
    f = form_of(forms, a)
    if f == NO_FORM or forms.kind[f] != POTTS or forms.part_at[f] >= 0:
        return 0.0
    return float(weight_of(model.weight, a) * forms.slope[f])


@inlined
def add_row(code: Place, label: Place, model: LabelModel, n_own: Place, n_other: Place, score: Floats) -> None:
    """Add what a pair gives for every state of one end, with the other end's label fixed, up to a constant."""
    # `code` is twice the factor, plus 1 if the end with the label is the second variable of the factor.
    a = code >> ONE
    weight, f, theta, row = weight_of(model.weight, a), form_of(model.forms, a), model.theta_t, model.table_at[a]
    even = f != NO_FORM and model.forms.part_at[f] < 0  # then the table is symmetric
    if code & ONE == ONE and not even:
        if len(model.turned) == 0:
            at = np.uintp(row) + label
            for k in range(n_own):
                score[k] += weight * theta[at + k * n_other]
            return
        theta = model.turned
    at = np.uintp(row) + label * n_own
    for k in range(n_own):
        score[k] += weight * theta[at + k]


@inlined
def entry(code: Place, label: Place, own: Place, model: LabelModel, n_own: Place, n_other: Place) -> float:
    """The potential of a pair, as in `add_row`, with both ends fixed."""
    a = code >> ONE
    place = own * n_other + label if code & ONE == ONE else label * n_own + own
    return float(weight_of(model.weight, a) * model.theta_t[np.uintp(model.table_at[a]) + place])
