"""Data structures of the ADMM kernels: batches of factors, the fixed arrays of a model, and those of a run.

Variables are stored in consecutive blocks. A binary variable may be *compact*: one number, mu(1) - mu(0), instead of
two.
"""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from mapmrf.arrays import Bools, Floats, Ints
from mapmrf.engines.admm.penalty import Penalty
from mapmrf.model.structured_pairs import PairForms

SAME = 1 << 11
"""Length of the array of strengths if all couplings are equal: the number of factors a kernel processes at a time."""


class FactorKind(IntEnum):
    """The kind of a factor, which decides how its subproblem is solved."""

    PAIR2_COMPACT = 0
    PAIR2 = 1
    TRIPLE2 = 2
    FOREST = 3
    DENSE = 4
    RIDGE = 5


Batches = NDArray[np.record]  # a structured array of the type `BATCH`


class BatchRow(NamedTuple):
    """A batch of factors of equal shape, or a task on it: its factors begin:end.

    kind
        A `FactorKind`.
    n, arity, n_configs
        Number of factors; variables and configurations of each.
    n_states
        Total number of states of a factor's variables.
    q_at, q_width
        Offset of its blocks in q, and the length of each.
    factor_at, edge_at
        Index of its first factor, and of its first edge.
    slot_at, slot_width
        Offset of its supports, and the room for each.
    shape_at, config_at
        Offsets of its description in `TableArrays.shape` and `TableArrays.config`.
    pull_at
        Offset of its configurations in `TableArrays.pull`.
    """

    kind: int
    n: int
    begin: int
    end: int
    arity: int
    q_at: int
    q_width: int
    factor_at: int
    edge_at: int
    slot_at: int
    slot_width: int
    shape_at: int
    config_at: int
    n_configs: int
    n_states: int
    pull_at: int


BATCH = np.dtype((np.record, [(name, np.int64) for name in BatchRow._fields]))
"""A `BatchRow` as kernels read it; Python reads the fields of a tuple ten times faster."""


class Share(NamedTuple):
    """The part's own share of a problem; the rest are copies of what belongs to other parts.

    n_vars
        Number of own variables, which come first.
    inside, owned
        For every batch, the number of factors without variables of another part, and of those that this part counts,
        which come first.
    """

    n_vars: int
    inside: tuple[int, ...]
    owned: tuple[int, ...]


class VariableArrays(NamedTuple):
    """The variables of a model: blocks of mu, unary potentials, and positions in q of the blocks of their edges."""

    var_at: Ints
    nbr_ptr: Ints
    nbr_q: NDArray[np.uint32]
    theta: Floats


class PairArrays(NamedTuple):
    """2x2 factors of compact variables: positions of their variables in mu, and their couplings.

    The tables are ``J * [[1, -1], [-1, 1]]`` with J = unit * strength; a batch has all first variables, then all second
    ones.

    shared
        Whether all factors have the same coupling; `strength` is then as long as the longest task.
    """

    edge_mu: NDArray[np.uint32]
    strength: Floats
    unit: float
    shared: bool


class TableArrays(NamedTuple):
    """All other factors, and their state in a run, which is empty in a `Layout`.

    edge_mu
        Positions of their variables in mu.
    theta, table_at, weight
        Tables and weights.
    shape, config
        For every batch the sizes of its variables, the widths of their blocks in mu, and the offsets of a factor's
        states; the states of every configuration, if the kind of the batch needs them.
    forms
        Which pairwise tables are maximised in linear time.
    s
        The copies M_ia mu_a of 2x2 factors, laid out like q. All others recover them from the support.
    slots, x, n_slots
        mu_a as its support, masses that sum to 1, and the support's size: the starting point of the factor's next step.
    pull
        Addition of a sphere on the factors to the potential of every configuration; empty without.
    """

    edge_mu: NDArray[np.uint32]
    theta: Floats
    table_at: Ints
    weight: Floats
    shape: Ints
    config: Ints
    forms: PairForms
    s: Floats
    slots: NDArray[np.int32]
    x: Floats
    n_slots: NDArray[np.int32]
    pull: Floats


class ItemArrays(NamedTuple):
    """The items of constraints and their numbers of mu.

    An item is coupled to one number of mu: to mu_i(k), or, if variable i is compact, to (1 + d) / 2 or (1 - d) / 2 with
    d = mu_i(1) - mu_i(0). Its copy z, multiplier and q = rho z - lam belong to the item itself, not to the difference.

    q_at
        Position of the first item in q.
    at, sign
        The item's number of mu; 0 for mu itself, 1 and -1 for (1 + d) / 2 and (1 - d) / 2.
    ptr, item
        The items of every number of mu.
    """

    q_at: int
    at: Ints
    sign: Floats
    ptr: Ints
    item: Ints


class FactorPlace(NamedTuple):
    """One factor: its first edge, its block of q, and sizes and widths of its variables."""

    e_at: int
    at: int
    sizes: Ints
    widths: Ints


class Iterates(NamedTuple):
    """The iterates of ADMM: mu_v, the sphere's multipliers lam_i, q = rho s - lam with s = M_ia mu_a per edge, and rho.

    The multipliers of the edges are not stored: after the variable step they are ``lam = leak (rho c mu - q)``, so that
    one array serves for both copies and multipliers. Neither is upsilon, which the variable step computes when needed.
    """

    mu: Floats
    lam_v: Floats
    q: Floats
    penalty: Penalty


class SphereState(NamedTuple):
    """The projection onto the sphere, in chunks of variables: upsilon = centre + scale (a - centre).

    chunk_size, blocks
        Variables per chunk, and whether each chunk has a separate sphere.
    target2, norm2
        Contribution of the chunk's variables to the squared radius, and squared distance of their points from the
        centre.
    scale
        The factor of the projection.
    off2
        Squared residual ``|c mu - upsilon|^2`` of the last iteration.
    """

    chunk_size: int
    blocks: bool
    target2: Floats
    norm2: Floats
    scale: Floats
    off2: Floats


class Scratch(NamedTuple):
    """Scratch for one thread's factor steps: rows of numbers and of integers, and a matrix for the dense step."""

    numbers: Floats
    integers: Ints
    square: Floats


class Rounding(NamedTuple):
    """The rounded labelling, and the arrays for rounding: states, allowed states, and variables of all edges."""

    card: Ints
    var_ptr: Ints
    allowed: Bools
    edge_var: NDArray[np.uint32]
    labels: Ints
