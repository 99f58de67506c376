"""Forests of factors: cutting a factor graph into acyclic parts, and exact max-product on all of them at once.

A forest holds its own copy of every variable that it touches. A *visit* is one factor, met on the way from the roots
to the leaves; its *legs* are the copies of its variables, the one nearest the root first.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from mapmrf.kernels.jit import bare, inlined


class Legs(NamedTuple):
    """Factors in the order of their visits, and where they find their variables.

    Attributes
    ----------
    ptr : (n_visits + 1,)
        Offsets of the visits' legs.
    table_at : (n_visits,)
        Where the factor's table starts in `theta_t`.
    at, copy, var, card, stride : (n_legs,)
        Where the copy's states start in `theta_c`, its number, its variable, the number of its states, and the stride
        of the variable in the table.
    """

    ptr: Any
    table_at: Any
    at: Any
    copy: Any
    var: Any
    card: Any
    stride: Any


# -- cutting ----------------------------------------------------------------------------------------------------------


@inlined
def _head(joined, i):
    while joined[i] != i:
        joined[i] = joined[joined[i]]
        i = joined[i]
    return i


@bare
def pick_forests(scope_ptr, scope, left, joined, forest_of):
    """Number every factor's forest, each forest maximal among the factors that are left; return how many there are.

    A factor fits if all its variables are in different parts of the forest so far. `left` lists all factors at first;
    `joined` is scratch, one entry per variable.
    """
    n_left = len(left)
    n_forests = 0
    while n_left > 0:
        for i in range(len(joined)):
            joined[i] = i
        n_kept = 0
        for place in range(n_left):
            a = left[place]
            begin, end = scope_ptr[a], scope_ptr[a + 1]
            fits = True
            for e in range(begin, end):
                head = _head(joined, scope[e])
                for other in range(begin, e):
                    if _head(joined, scope[other]) == head:
                        fits = False
            if fits:
                head = _head(joined, scope[begin])
                for e in range(begin + 1, end):
                    joined[_head(joined, scope[e])] = head
                forest_of[a] = n_forests
            else:
                left[n_kept] = a
                n_kept += 1
        n_left = n_kept
        n_forests += 1
    return n_forests


@bare
def number_copies(nbr_ptr, nbr, factor_of, forest_of, copy_in, copy_ptr, copy_of):
    """One copy of a variable for each forest that touches it, numbered by variable; fills the copy of every edge.

    `copy_in` is scratch, one entry per forest, at first all -1: the last copy made in it.
    """
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


@bare
def orient(scope_ptr, factor_of, copy_of, edge_ptr, edges, reached, met, stack, visit, leg_edge, roots):
    """Walk all forests from their roots; return the number of roots.

    `edges` lists the edges of every copy, offsets `edge_ptr`. Fills `visit` with the factors in the order in which
    they are met, `leg_edge` with their edges, the one nearest the root first, and `roots` with copies. Scratch: whether
    a copy is reached and a factor met, at first all false, and a stack of copies.
    """
    n_roots = n_visits = n_legs = 0
    for root in range(len(reached)):
        if reached[root]:
            continue
        reached[root] = True
        roots[n_roots] = root
        n_roots += 1
        stack[0] = root
        height = 1
        while height > 0:
            height -= 1
            for place in range(edge_ptr[stack[height]], edge_ptr[stack[height] + 1]):
                met_at = edges[place]
                a = factor_of[met_at]
                if met[a]:
                    continue
                met[a] = True
                visit[n_visits] = a
                n_visits += 1
                leg_edge[n_legs] = met_at
                n_legs += 1
                for e in range(scope_ptr[a], scope_ptr[a + 1]):
                    if e != met_at:
                        leg_edge[n_legs] = e
                        n_legs += 1
            height = _push(stack, height, scope_ptr, factor_of, copy_of, edges, edge_ptr, reached)
    return n_roots


@inlined
def _push(stack, height, scope_ptr, factor_of, copy_of, edges, edge_ptr, reached):
    """Put the copies beyond the factors of the copy at `height` on the stack, in its place; return the new height."""
    top = stack[height]
    for place in range(edge_ptr[top], edge_ptr[top + 1]):
        a = factor_of[edges[place]]
        for e in range(scope_ptr[a], scope_ptr[a + 1]):
            if not reached[copy_of[e]]:
                reached[copy_of[e]] = True
                stack[height] = copy_of[e]
                height += 1
    return height


# -- max-product ------------------------------------------------------------------------------------------------------


@inlined
def _binary_pair_up(theta_t, legs, v, first, belief):
    """Message of a 2x2 factor towards the root, added to the belief without its maximum, which is returned."""
    at, to, source = legs.table_at[v], legs.at[first], legs.at[first + 1]
    up, down = legs.stride[first], legs.stride[first + 1]
    low, high = belief[source], belief[source + 1]
    m0 = max(theta_t[at] + low, theta_t[at + down] + high)
    m1 = max(theta_t[at + up] + low, theta_t[at + up + down] + high)
    top = max(m0, m1)
    if top > -np.inf:
        belief[to] += m0 - top
        belief[to + 1] += m1 - top
    return top


@inlined
def _pair_up(theta_t, legs, v, first, belief, message):
    at, source = legs.table_at[v], legs.at[first + 1]
    stride, width = legs.stride[first + 1], legs.card[first + 1]
    top = -np.inf
    for p in range(legs.card[first]):
        row = at + p * legs.stride[first]
        best = -np.inf
        for s in range(width):
            best = max(best, theta_t[row + s * stride] + belief[source + s])
        message[p] = best
        top = max(top, best)
    return top


@inlined
def next_state(legs, begin, end, state, place):
    """Move on to the next joint state of the legs from `begin` on; return its place in the table, -1 after the last."""
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
def sum_of(legs, begin, end, state, values):
    """Sum of the values of the legs' copies at a joint state."""
    total = 0.0
    for leg in range(begin, end):
        total += values[legs.at[leg] + state[leg - begin]]
    return total


@inlined
def _table_up(theta_t, legs, v, first, belief, message, state):
    end, n_states, stride = legs.ptr[v + 1], legs.card[first], legs.stride[first]
    for p in range(n_states):
        message[p] = -np.inf
    for leg in range(first + 1, end):
        state[leg - first - 1] = 0
    place = 0
    while place >= 0:
        below = sum_of(legs, first + 1, end, state, belief)
        row = legs.table_at[v] + place
        for p in range(n_states):
            message[p] = max(message[p], theta_t[row + p * stride] + below)
        place = next_state(legs, first + 1, end, state, place)
    top = -np.inf
    for p in range(n_states):
        top = max(top, message[p])
    return top


@inlined
def _best_state(values, begin, n_states, slack):
    best = 0
    for s in range(1, n_states):
        if values[begin + s] > values[begin + best] + slack:
            best = s
    return best


@inlined
def _pair_down(theta_t, legs, v, first, belief, label_c, slack):
    """Label the far copy of a pair, given the near one; return the place in the table."""
    near = label_c[legs.copy[first]] * legs.stride[first]
    row, source, stride = legs.table_at[v] + near, legs.at[first + 1], legs.stride[first + 1]
    top, best = theta_t[row] + belief[source], 0
    for s in range(1, legs.card[first + 1]):
        value = theta_t[row + s * stride] + belief[source + s]
        if value > top + slack:
            top, best = value, s
    label_c[legs.copy[first + 1]] = best
    return near + best * stride


@inlined
def _table_down(theta_t, legs, v, first, belief, label_c, state, slack):
    end = legs.ptr[v + 1]
    near = label_c[legs.copy[first]] * legs.stride[first]
    for leg in range(first + 1, end):
        state[leg - first - 1] = 0
        label_c[legs.copy[leg]] = 0
    top, best = -np.inf, 0
    place = 0
    while place >= 0:
        value = theta_t[legs.table_at[v] + near + place] + sum_of(legs, first + 1, end, state, belief)
        if value > top + slack:
            top, best = value, place
            for leg in range(first + 1, end):
                label_c[legs.copy[leg]] = state[leg - first - 1]
        place = next_state(legs, first + 1, end, state, place)
    return near + best


@bare
def solve_forests(theta_t, theta_c, legs, roots, copy_at, copy_card, belief, message, state, label_c, config, slack):
    """Label all copies so that every forest has its maximum; return the sum of the maxima.

    From the leaves to the roots, `belief` gathers a copy's potentials and the messages from below, each without its
    maximum, so that large forests lose no digits. From the roots to the leaves the maxima are looked up again. `config`
    receives the entry of its table that every visited factor takes. Of states that differ by `slack` or less, the first
    is taken: round-off decides nothing. Nothing is labelled if the sum is -inf.
    """
    for place in range(len(theta_c)):
        belief[place] = theta_c[place]
    total = 0.0
    for v in range(len(legs.table_at) - 1, -1, -1):
        first = legs.ptr[v]
        arity = legs.ptr[v + 1] - first
        if arity == 2 and legs.card[first] == 2 and legs.card[first + 1] == 2:
            total += _binary_pair_up(theta_t, legs, v, first, belief)
            continue
        if arity == 2:
            top = _pair_up(theta_t, legs, v, first, belief, message)
        else:
            top = _table_up(theta_t, legs, v, first, belief, message, state)
        total += top
        if top > -np.inf:
            for p in range(legs.card[first]):
                belief[legs.at[first] + p] += message[p] - top
    for place in range(len(roots)):
        root = roots[place]
        label_c[root] = _best_state(belief, copy_at[root], copy_card[root], slack)
        top = -np.inf
        for s in range(copy_card[root]):
            top = max(top, belief[copy_at[root] + s])
        total += top
    if total == -np.inf:
        return total
    for v in range(len(legs.table_at)):
        first = legs.ptr[v]
        if legs.ptr[v + 1] - first == 2:
            config[v] = _pair_down(theta_t, legs, v, first, belief, label_c, slack)
        else:
            config[v] = _table_down(theta_t, legs, v, first, belief, label_c, state, slack)
    return total
