"""Forests of factors: copies of their variables, traversals from the roots, and exact max-product on all of them.

A forest has its own copy of every variable that it contains. A *visit* is one factor, reached on the way from the roots
to the leaves; its *legs* are the copies of its variables, the one closest to the root first.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from mapmrf.arrays import Bools, Floats, Ints, offsets, segment_max
from mapmrf.compilation.jit import bare, compiled, inlined
from mapmrf.kernels.heaps_and_forests import grow_forest
from mapmrf.kernels.max_marginals import weight_of
from mapmrf.kernels.pair_transforms import StructuredPairs, form_message
from mapmrf.model.problem import Problem
from mapmrf.model.structured_pairs import NO_FORM


@dataclass(frozen=True)
class Decomposition:
    """Acyclic subgraphs of a factor graph, or its single factors, and their copies of variables."""

    # copies, legs: the layout used by the kernels
    copies: Copies
    legs: Legs
    visit: Ints  # (n_factors,): the factors in the order of `legs`
    roots: Ints  # copies at the roots of all trees; none for single factors
    n_forests: int  # number of forests; 0 for single factors

    @classmethod
    def into_factors(cls, problem: Problem) -> Decomposition:
        """Create a subproblem per factor, with a copy of a variable on each edge."""
        copy_of = _zeros(problem.n_edges)
        copy_of[problem.nbr] = np.arange(problem.n_edges)
        copies = _copies(problem, problem.nbr_ptr, problem.edge_factor[problem.nbr].astype(np.int64))
        visit = np.arange(problem.n_factors)
        legs = _legs(problem, visit, np.arange(problem.n_edges), copies, copy_of)
        return cls(copies, legs, visit, _zeros(0), 0)

    @classmethod
    def into_trees(cls, problem: Problem) -> Decomposition:
        """Create successive maximal forests until every factor is in one."""
        factor_of = problem.edge_factor
        forest_of, left, n_forests = _zeros(problem.n_factors), np.arange(problem.n_factors), 0
        root, taken = _zeros(problem.n_vars), np.zeros(problem.n_factors, dtype=bool)
        while len(left):
            grow_forest(left, problem.scope_ptr, problem.scope, root, taken)
            forest_of[left[taken[left]]] = n_forests
            left = left[~taken[left]]
            n_forests += 1
        copy_ptr, copy_of = _zeros(problem.n_vars + 1), _zeros(problem.n_edges)
        last_copy = _zeros(n_forests) - 1
        number_copies(problem.nbr_ptr, problem.nbr, factor_of, forest_of, last_copy, copy_ptr, copy_of)
        n_copies = int(copy_ptr[-1])
        forest = _zeros(n_copies)
        forest[copy_of] = forest_of[factor_of]
        edge_ptr = offsets(np.bincount(copy_of, minlength=n_copies)).astype(np.int64)
        visit, leg_edge, roots = _zeros(problem.n_factors), _zeros(problem.n_edges), _zeros(n_copies)
        by_copy = np.argsort(copy_of, kind="stable")
        n_roots = orient(problem.scope_ptr, factor_of, copy_of, edge_ptr, by_copy, visit, leg_edge, roots)
        copies = _copies(problem, copy_ptr, forest)
        return cls(copies, _legs(problem, visit, leg_edge, copies, copy_of), visit, roots[:n_roots], n_forests)

    def subproblems(self, problem: Problem, averaging: bool = True) -> Subproblems:
        """Return the subproblems with their potentials; `averaging`: the factors' choices will be averaged."""
        graph = problem.graph
        config_at = problem.config_ptr[:-1][self.visit].astype(np.int64) if averaging else _zeros(0)
        best = segment_max(graph.theta_v, graph.var_ptr)
        return Subproblems(
            theta_v=graph.theta_v,
            theta_t=graph.theta_t,
            var_ptr=graph.var_ptr.astype(np.int64),
            constant=graph.constant,
            alone=graph.constant + float(best[problem.degree == 0].sum()),
            copies=self.copies,
            legs=self.legs,
            n_forests=max(1, self.n_forests),
            config_at=config_at,
        )


def _zeros(n: int) -> Ints:
    return np.zeros(n, dtype=np.int64)


def _copies(problem: Problem, ptr: Ints, forest: Ints) -> Copies:
    card = np.repeat(problem.graph.card, np.diff(ptr)).astype(np.int32)
    return Copies(ptr.astype(np.int64), offsets(card)[:-1].astype(np.int64), forest.astype(np.int32), card)


def _legs(problem: Problem, visit: Ints, leg_edge: Ints, copies: Copies, copy_of: Ints) -> Legs:
    copy, forms = copy_of[leg_edge], problem.quick_forms.of
    return Legs(
        ptr=offsets(np.diff(problem.scope_ptr)[visit]).astype(np.int64),
        table_at=problem.table_at[visit].astype(np.int64),
        weight=problem.weight[visit] if len(problem.weight) else np.zeros(0),
        form=forms[visit] if len(forms) else np.zeros(0, dtype=np.int32),
        at=copies.at[copy],
        copy=copy.astype(np.int32),
        var=problem.scope[leg_edge].astype(np.int32),
        card=copies.card[copy],
        stride=problem.edge_stride[leg_edge].astype(np.int32),
    )


class Copies(NamedTuple):
    ptr: Ints  # (n_vars + 1,): the copies of variable `i` are ``ptr[i]`` to ``ptr[i + 1]``
    # at, forest: (n_copies,): where the copy's states start in `theta_c`, and its forest
    at: Ints
    forest: Ints
    card: Ints  # (n_copies,): its number of states


class Legs(NamedTuple):
    """Factors in visiting order, and the positions of their variables."""

    ptr: Ints  # (n_visits + 1,): offsets of the visits' legs
    table_at: Ints  # (n_visits,): where the factor's table starts in `theta_t`
    # weight, form: (n_visits,): weight of the table, and the index of its form or NO_FORM; empty if all weights are 1,
    # and if no table has a form
    weight: Floats
    form: Ints
    # at, copy, var, card, stride: (n_legs,): where the copy's states start in `theta_c`, its number, its variable, its
    # number of states, and the stride of the variable in the table
    at: Ints
    copy: Ints
    var: Ints
    card: Ints
    stride: Ints


FIGURES = np.dtype(
    [
        ("rule", np.int64),  # step rule, and the decay of its steps if they diminish
        ("decay", np.float64),
        ("exponent", np.float64),
        ("patience", np.int64),  # rounds without progress before the other rules halve their steps
        ("tolerance", np.float64),  # relative gap at which to stop
        ("unit", np.float64),  # typical size of a potential
        ("slack", np.float64),  # choices of a subproblem that differ by less tie
        ("rounds", np.int64),  # rounds done
        ("dual", np.float64),  # dual value: last, first and best
        ("first", np.float64),
        ("bound", np.float64),
        ("value", np.float64),  # of the incumbent
        ("closed", np.bool_),  # whether the relative gap is within the tolerance
        ("norm", np.float64),  # squared norm of the subgradient
        ("step", np.float64),  # factor on the step length, and the last step length
        ("length", np.float64),
        ("delta", np.float64),  # targeted progress, the bound it is measured from, and rounds without it
        ("reference", np.float64),
        ("stalled", np.int64),
        ("weight", np.float64),  # weights of this window of rounds and of the last, and the first round of the next
        ("old_weight", np.float64),
        ("window", np.int64),
    ],
    align=True,
)
"""The scalars of a descent, in a record that the kernels change."""


class DescentState(NamedTuple):
    """The arrays of a descent.

    theta_c
        Potentials of the copies' states.
    label_c, config
        Choices of the subproblems: the state of every copy, and the table entry of every factor, in visiting order.
    sum_v, sum_f, old_v, old_f
        Weighted sums of these, in this window of rounds and in the last; those of factors are empty if too large.
    labels, candidate, best
        The majority's labelling, the last one evaluated, and the incumbent.
    ways
        Decoding rules, used in turn.
    figures
        A record of type `FIGURES`.
    votes, seen
        Scratch for voting.
    belief, message, states, pairs
        Scratch: beliefs of the copies' states, empty for single factors; for each state of one variable, the best of a
        factor's others; a configuration of a factor; the forms of pairs.
    stale, top_f
        Whether a factor's potentials have changed since its last choice, and its maximum then; empty for forests.
    """

    theta_c: Floats
    label_c: Ints
    config: Ints
    sum_v: Floats
    sum_f: Floats
    old_v: Floats
    old_f: Floats
    labels: Ints
    candidate: Ints
    best: Ints
    ways: Ints
    figures: Any
    votes: Ints
    seen: Ints
    belief: Floats
    message: Floats
    states: Ints
    pairs: StructuredPairs
    stale: Bools
    top_f: Floats

    @classmethod
    def allocate(
        cls, problem: Problem, parts: Decomposition, theta_c: Floats, labels: Ints, ways: tuple[int, ...], n_sums: int
    ) -> DescentState:
        widest = int(problem.graph.card.max(initial=1))
        votes, seen = np.zeros((2, widest), dtype=np.int64)
        n_cached = 0 if parts.n_forests else problem.n_factors
        return cls(
            theta_c=theta_c,
            label_c=np.zeros(len(parts.copies.at), dtype=np.int32),
            config=np.zeros(problem.n_factors, dtype=np.int32),
            sum_v=np.zeros(problem.n_states),
            sum_f=np.zeros(n_sums),
            old_v=np.zeros(problem.n_states),
            old_f=np.zeros(n_sums),
            labels=labels,
            candidate=labels.copy(),
            best=labels.copy(),
            ways=np.array(ways, dtype=np.int64),
            figures=np.zeros(1, dtype=FIGURES).view(np.recarray),
            votes=votes,
            seen=seen,
            belief=np.zeros(len(theta_c) if parts.n_forests else 0),
            message=np.zeros(widest),
            states=_zeros(int(np.diff(problem.scope_ptr).max(initial=1))),
            pairs=StructuredPairs.allocate(problem.quick_forms, widest),
            stale=np.ones(n_cached, dtype=bool),
            top_f=np.zeros(n_cached),
        )


@bare
def number_copies(
    nbr_ptr: Ints, nbr: Ints, factor_of: Ints, forest_of: Ints, copy_in: Ints, copy_ptr: Ints, copy_of: Ints
) -> None:
    """Create one copy of a variable per forest that contains it, numbered by variable; fills the copy of every edge."""
    # `copy_in` is scratch, one entry per forest, initially -1: the last copy created in it.
    n_copies = 0
    for i in range(len(nbr_ptr) - 1):
        copy_ptr[i] = n_copies
        for place in range(nbr_ptr[i], nbr_ptr[i + 1]):
            e = nbr[place]
            forest = forest_of[factor_of[e]]
            if copy_in[forest] < copy_ptr[i]:
                copy_in[forest] = n_copies
                n_copies += 1
            copy_of[e] = copy_in[forest]
    copy_ptr[len(nbr_ptr) - 1] = n_copies


@compiled
def orient(
    scope_ptr: Ints, factor_of: Ints, copy_of: Ints, ptr: Ints, edge: Ints, visit: Ints, leg_edge: Ints, roots: Ints
) -> int:
    """Traverse all forests from their roots; return the number of roots."""
    # Edges belong to factors and copies; those of copy c are ``edge[ptr[c]:ptr[c + 1]]``. Fills `visit` with the
    # factors in the order of traversal, `leg_edge` with their edges, the one closest to the root first, and `roots`.
    n_copies = len(roots)
    reached, met = np.zeros(n_copies, dtype=np.bool_), np.zeros(len(visit), dtype=np.bool_)
    stack = np.empty(n_copies, dtype=np.int64)
    n_roots = n_visits = n_legs = 0
    for root in range(n_copies):
        if reached[root]:
            continue
        reached[root] = True
        roots[n_roots] = root
        n_roots += 1
        stack[0] = root
        height = 1
        while height > 0:
            height -= 1
            top = stack[height]
            for place in range(ptr[top], ptr[top + 1]):
                a = factor_of[edge[place]]
                if met[a]:
                    continue
                met[a] = True
                visit[n_visits] = a
                n_visits += 1
                leg_edge[n_legs] = edge[place]
                n_legs += 1
                for e in range(scope_ptr[a], scope_ptr[a + 1]):
                    if e != edge[place]:
                        leg_edge[n_legs] = e
                        n_legs += 1
            for place in range(ptr[top], ptr[top + 1]):
                a = factor_of[edge[place]]
                for e in range(scope_ptr[a], scope_ptr[a + 1]):
                    if not reached[copy_of[e]]:
                        reached[copy_of[e]] = True
                        stack[height] = copy_of[e]
                        height += 1
    return n_roots


@inlined
def _binary_pair_up(theta_t: Floats, legs: Legs, v: int, first: int, weight: float, belief: Floats) -> float:
    """Add the normalised message of a 2x2 factor towards the root to the belief; return its maximum."""
    at, to, source = legs.table_at[v], legs.at[first], legs.at[first + 1]
    up, down = legs.stride[first], legs.stride[first + 1]
    low, high = belief[source], belief[source + 1]
    m0 = max(weight * theta_t[at] + low, weight * theta_t[at + down] + high)
    m1 = max(weight * theta_t[at + up] + low, weight * theta_t[at + up + down] + high)
    top = max(m0, m1)
    if top > -np.inf:
        belief[to] += m0 - top
        belief[to + 1] += m1 - top
    return float(top)


@inlined
def leg_form(legs: Legs, v: int) -> int:
    """Return the index of a visit's form, or NO_FORM."""
    return legs.form[v] if len(legs.form) > 0 else NO_FORM


@inlined
def form_up(form: int, legs: Legs, v: int, h: Floats, out: Floats, pairs: StructuredPairs) -> None:
    """Fill `out` with the maxima over the far leg of a structured pair plus `h`, for each state of the near leg."""
    first = legs.ptr[v]
    n, is_first = legs.card[first], legs.stride[first] > 1
    form_message(pairs, form, weight_of(legs.weight, v), is_first, h, legs.at[first + 1], out, 0, n)


@inlined
def _pair_up(theta_t: Floats, legs: Legs, v: int, first: int, weight: float, scratch: DescentState) -> float:
    """Compute the message of a pair towards the root; return its maximum."""
    belief, message = scratch.belief, scratch.message
    at, source = legs.table_at[v], legs.at[first + 1]
    stride, width = legs.stride[first + 1], legs.card[first + 1]
    top = -np.inf
    for p in range(legs.card[first]):
        row = at + p * legs.stride[first]
        best = -np.inf
        for s in range(width):
            best = max(best, weight * theta_t[row + s * stride] + belief[source + s])
        message[p] = best
        top = max(top, best)
    return top


@inlined
def _message_up(theta_t: Floats, legs: Legs, v: int, first: int, scratch: DescentState) -> float:
    """Compute the message of a factor towards the root by the fastest kernel; return its maximum."""
    weight, form = weight_of(legs.weight, v), leg_form(legs, v)
    if form >= 0:
        form_up(form, legs, v, scratch.belief, scratch.message, scratch.pairs)
        top = -np.inf
        for p in range(legs.card[first]):
            top = max(top, scratch.message[p])
        return top
    if legs.ptr[v + 1] - first > 2:
        return _table_up(theta_t, legs, v, first, scratch)
    if legs.ptr[v + 1] - first == 1:
        top = -np.inf
        for p in range(legs.card[first]):
            scratch.message[p] = weight * theta_t[legs.table_at[v] + p * legs.stride[first]]
            top = max(top, scratch.message[p])
        return top
    return _pair_up(theta_t, legs, v, first, weight, scratch)


@inlined
def next_state(legs: Legs, begin: int, end: int, state: Ints, place: int) -> int:
    """Advance to the next configuration of the legs from `begin` on; return its table entry, -1 after the last."""
    for leg in range(end - 1, begin - 1, -1):
        k = leg - begin
        state[k] += 1
        place += legs.stride[leg]
        if state[k] < legs.card[leg]:
            return place
        place -= state[k] * legs.stride[leg]
        state[k] = 0
    return -1


@inlined
def sum_of(legs: Legs, begin: int, end: int, state: Ints, values: Floats) -> float:
    total = 0.0
    for leg in range(begin, end):
        total += values[legs.at[leg] + state[leg - begin]]
    return total


@inlined
def _table_up(theta_t: Floats, legs: Legs, v: int, first: int, scratch: DescentState) -> float:
    """Compute the message of a factor of any arity towards the root; return its maximum."""
    belief, message, state = scratch.belief, scratch.message, scratch.states
    weight = weight_of(legs.weight, v)
    last, n_states, stride = legs.ptr[v + 1] - 1, legs.card[first], legs.stride[first]
    source, step = legs.at[last], legs.stride[last]
    for p in range(n_states):
        message[p] = -np.inf
    for leg in range(first + 1, last):
        state[leg - first - 1] = 0
    place = 0
    while place >= 0:  # over all legs but the last, whose states are contiguous
        between = sum_of(legs, first + 1, last, state, belief)
        row = legs.table_at[v] + place
        for s in range(legs.card[last]):
            below = between + belief[source + s]
            for p in range(n_states):
                message[p] = max(message[p], weight * theta_t[row + p * stride] + below)
            row += step
        place = next_state(legs, first + 1, last, state, place)
    top = -np.inf
    for p in range(n_states):
        top = max(top, message[p])
    return top


@inlined
def _pair_down(
    theta_t: Floats, legs: Legs, v: int, first: int, weight: float, belief: Floats, label_c: Ints, slack: float
) -> int:
    """Label the far copy of a pair, given the near one; return the table entry."""
    near = label_c[legs.copy[first]] * legs.stride[first]
    row, source, stride = legs.table_at[v] + near, legs.at[first + 1], legs.stride[first + 1]
    top, best = weight * theta_t[row] + belief[source], 0
    for s in range(1, legs.card[first + 1]):
        value = weight * theta_t[row + s * stride] + belief[source + s]
        if value > top + slack:
            top, best = value, s
    label_c[legs.copy[first + 1]] = best
    return int(near + best * stride)


@inlined
def _table_down(theta_t: Floats, legs: Legs, v: int, first: int, scratch: DescentState, slack: float) -> int:
    """Label the far copies of a factor of any arity, given the near one; return the table entry."""
    belief, label_c, state, weight = scratch.belief, scratch.label_c, scratch.states, weight_of(legs.weight, v)
    last = legs.ptr[v + 1] - 1
    source, step = legs.at[last], legs.stride[last]
    near = label_c[legs.copy[first]] * legs.stride[first]
    for leg in range(first + 1, last + 1):
        state[leg - first - 1] = 0
        label_c[legs.copy[leg]] = 0
    top, best = -np.inf, 0
    place = 0
    while place >= 0:
        between = sum_of(legs, first + 1, last, state, belief)
        row = legs.table_at[v] + near + place
        for s in range(legs.card[last]):
            value = weight * theta_t[row + s * step] + (between + belief[source + s])
            if value > top + slack:
                top, best = value, place + s * step
                for leg in range(first + 1, last):
                    label_c[legs.copy[leg]] = state[leg - first - 1]
                label_c[legs.copy[last]] = s
        place = next_state(legs, first + 1, last, state, place)
    return int(near + best)


@bare
def solve_forests(parts: Subproblems, roots: Ints, state: DescentState) -> float:
    """Label all copies such that every forest attains its maximum; return the sum of the maxima."""
    # From the leaves to the roots, `belief` accumulates a copy's potentials and the messages from below, each
    # normalised to maximum 0, so that large forests lose no digits. From the roots to the leaves, the maximisers are
    # found again. Among states within `slack` of each other, the first is taken, so that round-off decides nothing.
    # Nothing is labelled if the sum is -inf.
    theta_t, theta_c, copies, legs, slack = (
        parts.theta_t,
        state.theta_c,
        parts.copies,
        parts.legs,
        state.figures[0].slack,
    )
    belief, message, label_c, config = state.belief, state.message, state.label_c, state.config
    for place in range(len(theta_c)):
        belief[place] = theta_c[place]
    total = 0.0
    for v in range(len(legs.table_at) - 1, -1, -1):
        first = legs.ptr[v]
        arity = legs.ptr[v + 1] - first
        if arity == 2 and legs.card[first] == 2 and legs.card[first + 1] == 2:
            total += _binary_pair_up(theta_t, legs, v, first, weight_of(legs.weight, v), belief)
            continue
        top = _message_up(theta_t, legs, v, first, state)
        total += top
        if top > -np.inf:
            for p in range(legs.card[first]):
                belief[legs.at[first] + p] += message[p] - top
    for place in range(len(roots)):
        root = roots[place]
        begin, best, top = copies.at[root], 0, -np.inf
        for s in range(copies.card[root]):
            top = max(top, belief[begin + s])
            if belief[begin + s] > belief[begin + best] + slack:
                best = s
        label_c[root] = best
        total += top
    if total == -np.inf:
        return total
    for v in range(len(legs.table_at)):
        first = legs.ptr[v]
        if legs.ptr[v + 1] - first == 2:
            config[v] = _pair_down(theta_t, legs, v, first, weight_of(legs.weight, v), belief, label_c, slack)
        elif legs.ptr[v + 1] - first > 2:
            config[v] = _table_down(theta_t, legs, v, first, state, slack)
        else:
            config[v] = label_c[legs.copy[first]] * legs.stride[first]
    return total


class Subproblems(NamedTuple):
    # theta_v, theta_t, var_ptr, constant: as in the graph
    theta_v: Floats
    theta_t: Floats
    var_ptr: Ints
    constant: float
    alone: float  # the constant plus the maxima of the variables without factors
    # copies, legs, n_forests: the subproblems; single factors count as one forest
    copies: Copies
    legs: Legs
    n_forests: int
    # (n_factors,): offsets of the factors' blocks in `mu_f`, in visiting order; empty if nothing is averaged there
    config_at: Ints


@inlined
def _best_row(theta_t: Floats, theta_c: Floats, legs: Legs, a: int, weight: float, slack: float) -> tuple[float, int]:
    """Return the maximum of a pairwise table, and its row."""
    begin = legs.ptr[a]
    at, first, second = legs.table_at[a], legs.at[begin], legs.at[begin + 1]
    n_second = legs.card[begin + 1]
    top, best, chosen = -np.inf, 0, -np.inf
    for s1 in range(legs.card[begin]):
        row = at + s1 * n_second
        inner = -np.inf
        for s2 in range(n_second):
            inner = max(inner, weight * theta_t[row + s2] + theta_c[second + s2])
        value = theta_c[first + s1] + inner
        top = max(top, value)
        if value > chosen + slack:
            chosen, best = value, s1
    return top, best


@inlined
def _best_pair(
    theta_t: Floats, theta_c: Floats, legs: Legs, a: int, inner: Floats, pairs: StructuredPairs, slack: float
) -> tuple[float, int]:
    weight, begin = weight_of(legs.weight, a), legs.ptr[a]
    first, second, n_second = legs.at[begin], legs.at[begin + 1], legs.card[begin + 1]
    top, best, chosen = -np.inf, 0, -np.inf
    if leg_form(legs, a) >= 0:
        form_up(leg_form(legs, a), legs, a, theta_c, inner, pairs)
        for s1 in range(legs.card[begin]):
            value = theta_c[first + s1] + inner[s1]
            top = max(top, value)
            if value > chosen + slack:
                chosen, best = value, s1
    else:
        top, best = _best_row(theta_t, theta_c, legs, a, weight, slack)
    row = legs.table_at[a] + best * n_second
    last, chosen = 0, weight * theta_t[row] + theta_c[second]
    for s2 in range(1, n_second):
        value = weight * theta_t[row + s2] + theta_c[second + s2]
        if value > chosen + slack:
            chosen, last = value, s2
    return top, best * n_second + last


@inlined
def _best_table(
    theta_t: Floats, theta_c: Floats, legs: Legs, a: int, label_c: Ints, state: Ints, slack: float
) -> tuple[float, int]:
    """Return the maximum of a table of any arity and its best entry, row by row; also labels the copies."""
    begin, last, weight = legs.ptr[a], legs.ptr[a + 1] - 1, weight_of(legs.weight, a)
    table_at, last_at, n_last, stride = legs.table_at[a], legs.at[last], legs.card[last], legs.stride[last]
    for leg in range(begin, last):
        state[leg - begin] = 0
    top, best, chosen = -np.inf, 0, -np.inf
    row = 0
    while row >= 0:
        others = sum_of(legs, begin, last, state, theta_c)
        for s in range(n_last):
            place = row + s * stride
            value = weight * theta_t[table_at + place] + (others + theta_c[last_at + s])
            top = max(top, value)
            if value > chosen + slack:
                chosen, best = value, place
        row = next_state(legs, begin, last, state, row)
    for leg in range(begin, last + 1):
        label_c[legs.copy[leg]] = best // legs.stride[leg] % legs.card[leg]
    return top, best


@bare
def solve_factors(parts: Subproblems, state: DescentState) -> float:
    """Choose the best entry of every factor whose potentials have changed; return the sum of the maxima."""
    # Among entries within `slack` of each other, the first is chosen, so that round-off decides nothing.
    theta_t, theta_c, legs, slack = parts.theta_t, state.theta_c, parts.legs, state.figures[0].slack
    stale, top_f, label_c = state.stale, state.top_f, state.label_c
    total = 0.0
    for a in range(len(stale)):
        if stale[a]:
            stale[a] = False
            first = legs.ptr[a]
            if legs.ptr[a + 1] - first == 2:
                n_second = legs.card[first + 1]
                if legs.card[first] == 2 and n_second == 2:
                    at, one, two = legs.table_at[a], legs.at[first], legs.at[first + 1]
                    weight = weight_of(legs.weight, a)
                    low, high = theta_c[two], theta_c[two + 1]
                    v0, v1 = weight * theta_t[at] + low, weight * theta_t[at + 1] + high
                    v2, v3 = weight * theta_t[at + 2] + low, weight * theta_t[at + 3] + high
                    top0, top1 = theta_c[one] + max(v0, v1), theta_c[one + 1] + max(v2, v3)
                    s0, s1 = (1 if v1 > v0 + slack else 0), (3 if v3 > v2 + slack else 2)
                    top, t = max(top0, top1), (s1 if top1 > top0 + slack else s0)
                else:
                    top, t = _best_pair(theta_t, theta_c, legs, a, state.message, state.pairs, slack)
                label_c[legs.copy[first]] = t // n_second
                label_c[legs.copy[first + 1]] = t % n_second
            else:
                top, t = _best_table(theta_t, theta_c, legs, a, label_c, state.states, slack)
            top_f[a] = top
            state.config[a] = t
        total += top_f[a]
    return total
