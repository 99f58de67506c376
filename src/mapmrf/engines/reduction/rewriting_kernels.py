"""Construction of the reduced model, and lifting of labellings."""

from __future__ import annotations

from mapmrf.arrays import Bools, Floats, Ints
from mapmrf.compilation.jit import compiled
from mapmrf.engines.reduction.reducible_kernels import EliminationLog, ReducibleModel


@compiled
def measure(model: ReducibleModel, table_at: Ints, size: Ints, changed: Bools) -> None:
    """For every factor, compute its number of entries, 0 if it is removed, and whether its table has changed."""
    for a in range(len(model.arity)):
        begin, n = model.scope_ptr[a], model.arity[a]
        changed[a] = n != model.scope_ptr[a + 1] - begin or model.table_at[a] != table_at[a]
        size[a] = 1 if n > 0 else 0
        for e in range(begin, begin + n):
            i = model.scope[e]
            size[a] *= model.n_alive[i]
            changed[a] = changed[a] or model.n_alive[i] < model.var_ptr[i + 1] - model.var_ptr[i]


@compiled
def write_tables(model: ReducibleModel, factors: Ints, ptr: Ints, digit: Ints, out: Floats) -> None:
    """Copy the tables of some factors without the removed states."""
    for q in range(len(factors)):
        a = factors[q]
        table, place = (
            (model.theta_t, model.table_at[a]) if model.table_at[a] >= 0 else (model.pool, ~model.table_at[a])
        )
        begin, n = model.scope_ptr[a], model.arity[a]
        for d in range(n):
            digit[d] = 0
            place += model.stride[begin + d] * model.alive[model.var_ptr[model.scope[begin + d]]]
        for at in range(ptr[q], ptr[q + 1]):
            out[at] = table[place]
            d = n - 1
            while d >= 0:
                i, stride = model.scope[begin + d], model.stride[begin + d]
                first = model.var_ptr[i]
                place -= stride * model.alive[first + digit[d]]
                digit[d] += 1
                over = digit[d] == model.n_alive[i]
                if over:
                    digit[d] = 0
                place += stride * model.alive[first + digit[d]]
                if not over:
                    break
                d -= 1


@compiled
def share_equal(ptr: Ints, bits: Ints, slot: Ints, of: Ints, first: Ints) -> int:
    """Find equal blocks of `bits`: block `q` equals the distinct block ``of[q]``, which is block ``first[of[q]]``.

    `slot`, filled with -1, is a hash table; its length is a power of 2 above the number of blocks. Returns the number
    of distinct blocks.
    """
    n_distinct = 0
    for q in range(len(ptr) - 1):
        begin, n = ptr[q], ptr[q + 1] - ptr[q]
        code = n
        for at in range(begin, begin + n):
            code = (code ^ bits[at]) * 0x5851F42D4C957F2D
            code ^= (code >> 29) & 0x7FFFFFFFF
        at = code & (len(slot) - 1)
        while True:
            t = slot[at]
            if t < 0:
                slot[at], first[n_distinct], of[q] = n_distinct, q, n_distinct
                n_distinct += 1
                break
            other = ptr[first[t]]
            equal = ptr[first[t] + 1] - other == n
            k = 0
            while equal and k < n:
                equal = bits[begin + k] == bits[other + k]
                k += 1
            if equal:
                of[q] = t
                break
            at = (at + 1) & (len(slot) - 1)
    return n_distinct


@compiled
def find_places(model: ReducibleModel, place: Ints) -> None:
    """For every state of a remaining variable, find the index of its replacement among the remaining states."""
    for i in range(len(model.n_alive)):
        first = model.var_ptr[i]
        for s in range(first, model.var_ptr[i + 1]):
            place[s] = -1
        for k in range(model.n_alive[i]):
            place[first + model.alive[first + k]] = k
        for s in range(first, model.var_ptr[i + 1]):
            at = s
            while place[at] < 0 and model.stand_in[at] >= 0:
                at = first + model.stand_in[at]
            place[s] = max(0, place[at])


@compiled
def replay(log: EliminationLog, labels: Ints) -> None:
    """Set the eliminated variables, in reverse order, to their best states."""
    for t in range(len(log.var) - 1, -1, -1):
        place = log.at[t]
        for d in range(log.ptr[t], log.ptr[t + 1]):
            place += log.stride[d] * labels[log.scope[d]]
        labels[log.var[t]] = log.choice[place]
