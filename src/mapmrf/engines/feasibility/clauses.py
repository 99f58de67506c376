"""The hard constraints of a model as clauses over atoms "variable i has state k"."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from mapmrf.arrays import Ints, offsets, ranges
from mapmrf.engines.feasibility.clause_kernels import Int32s
from mapmrf.engines.feasibility.cover_kernels import CoverRoom, TableShape, cover_tables
from mapmrf.model.problem import Batch, Problem

CHUNK_LITERALS = 1 << 19
"""Room for literals when tables are converted to clauses."""


@dataclass(frozen=True, eq=False)
class Atoms:
    """Mapping from states of variables to literals.

    Attributes
    ----------
    literal_of : (n_states,)
        The literal of every variable's state; state 0 of a binary variable is the negation of state 1.
    first, n_atoms
        The first atom of every variable, and the number of atoms.
    block_begin, block_end : (n_atoms,)
        The atoms of the same variable; an empty range if the variable is binary.
    """

    literal_of: Ints
    first: Ints
    n_atoms: int
    block_begin: Int32s
    block_end: Int32s

    @classmethod
    def of(cls, problem: Problem) -> Atoms:
        """Create one atom per binary variable, and one per state of any other."""
        card, var_ptr = problem.graph.card, problem.graph.var_ptr
        n_atoms = np.where(card == 2, 1, card)
        first = offsets(n_atoms)
        state = np.arange(problem.n_states) - np.repeat(var_ptr[:-1], card)
        binary = np.repeat(card == 2, card)
        literal_of = 2 * np.repeat(first[:-1], card).astype(np.int64) + np.where(binary, 1 - state, 2 * state)
        begin, end = first[:-1].copy(), first[1:].copy()
        end[card == 2] = begin[card == 2]
        return cls(
            literal_of=literal_of,
            first=first,
            n_atoms=int(first[-1]),
            block_begin=np.repeat(begin, n_atoms).astype(np.int32),
            block_end=np.repeat(end, n_atoms).astype(np.int32),
        )


@dataclass(frozen=True, eq=False)
class HardClauses:
    """Clauses, each a disjunction of literals.

    Attributes
    ----------
    literals, ptr
        The literals of all clauses, and their offsets.
    """

    literals: Ints
    ptr: Ints

    @property
    def lengths(self) -> Ints:
        """Length of each clause."""
        return np.diff(self.ptr)

    def of_length(self, n: int) -> Ints:
        """Return the clauses of this length, (n_clauses, n)."""
        places = self.ptr[:-1][self.lengths == n]
        return np.asarray(self.literals[places[:, None] + np.arange(n)])

    def longer_than(self, n: int) -> HardClauses:
        """Return the clauses of more than `n` literals."""
        lengths = self.lengths
        chosen = lengths > n
        return HardClauses(self.literals[ranges(self.ptr[:-1][chosen], lengths[chosen])], offsets(lengths[chosen]))

    @classmethod
    def joined(cls, parts: list[HardClauses]) -> HardClauses:
        """Concatenate clauses."""
        if not parts:
            return cls(np.zeros(0, dtype=np.int64), np.zeros(1, dtype=np.int64))
        return cls(
            np.concatenate([part.literals for part in parts]),
            offsets(np.concatenate([part.lengths for part in parts])),
        )


def variable_clauses(problem: Problem, atoms: Atoms) -> HardClauses:
    """Return clauses that every non-binary variable has a state, and that none has a forbidden one."""
    card, var_ptr = problem.graph.card, problem.graph.var_ptr
    several = np.flatnonzero(card != 2)
    some = atoms.literal_of[ranges(var_ptr[several], card[several])]
    out = atoms.literal_of[~problem.feasible_v] ^ 1
    lengths = np.concatenate([card[several], np.ones(len(out), dtype=np.int64)])
    return HardClauses(np.concatenate([some, out]), offsets(lengths))


def factor_clauses(problem: Problem, atoms: Atoms) -> Iterator[HardClauses]:
    """Yield the clauses of all hard factors, in chunks."""
    for batch in problem.batches:
        if batch.hard:
            yield from _batch_clauses(problem, atoms, batch)


def _batch_clauses(problem: Problem, atoms: Atoms, batch: Batch) -> Iterator[HardClauses]:
    """Yield the clauses of factors of one shape; shared tables are converted once."""
    theta_t = problem.graph.theta_t
    table_at, table_of = np.unique(batch.table_at, return_inverse=True)
    by_table = np.argsort(table_of, kind="stable")
    begins = offsets(np.bincount(table_of, minlength=len(table_at)))
    longest = batch.arity + max(batch.shape)
    step = max(1, CHUNK_LITERALS // (batch.n_configs * longest))
    for begin in range(0, len(table_at), step):
        some = np.ascontiguousarray(table_at[begin : begin + step], dtype=np.int64)
        forbidden = int(np.isneginf(theta_t[some[:, None] + np.arange(batch.n_configs)]).sum())
        room = _new_room(batch, len(some), forbidden, longest)
        cover_tables(theta_t, some, _table_shape(batch), room)
        factors = by_table[begins[begin] : begins[begin + len(some)]]
        for at in range(0, len(factors), CHUNK_LITERALS):
            mine = factors[at : at + CHUNK_LITERALS]
            yield _instances(problem, atoms, batch.scope[mine], table_of[mine] - begin, room)


def _new_room(batch: Batch, n_tables: int, forbidden: int, longest: int) -> CoverRoom:
    return CoverRoom(
        covered=np.zeros(batch.n_configs, dtype=bool),
        literals=np.zeros(forbidden * longest, dtype=np.int32),
        ptr=np.zeros(forbidden + 1, dtype=np.int64),
        table_ptr=np.zeros(n_tables + 1, dtype=np.int64),
    )


def _table_shape(batch: Batch) -> TableShape:
    card = np.array(batch.shape, dtype=np.int64)
    stride = np.concatenate([np.cumprod(card[:0:-1])[::-1], [1]]).astype(np.int64)
    first = (np.cumsum(card) - card).astype(np.int64)
    chosen, digit = np.zeros((2, batch.arity), dtype=np.int64)
    return TableShape(card, stride, first, chosen, np.zeros(batch.arity, dtype=bool), digit)


def _instances(problem: Problem, atoms: Atoms, scope: Ints, table_of: Ints, room: CoverRoom) -> HardClauses:
    """Instantiate the clauses of tables for their factors."""
    card, var_ptr = problem.graph.card, problem.graph.var_ptr
    counts = np.diff(room.table_ptr)[table_of]
    clause = ranges(room.table_ptr[table_of], counts)
    lengths = np.diff(room.ptr[: room.table_ptr[-1] + 1])[clause]
    found = room.literals[ranges(room.ptr[clause], lengths)]
    shape = card[scope[0]]
    position = np.repeat(np.arange(scope.shape[1]), shape)
    state = ranges(np.zeros(scope.shape[1]), shape)
    factor = np.repeat(np.repeat(np.arange(len(scope)), counts), lengths)
    variable = scope[factor, position[found >> 1]]
    return HardClauses(atoms.literal_of[var_ptr[variable] + state[found >> 1]] ^ (found & 1), offsets(lengths))
