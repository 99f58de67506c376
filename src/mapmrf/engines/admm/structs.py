"""What kernels of ADMM work on, by name: batches of factors, the fixed arrays of a model, and those of a run.

Variables lie block after block. A binary variable may be *compact*: one number, mu(1) - mu(0), instead of two.
"""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from mapmrf.arrays import Bools, Floats, Ints
from mapmrf.pair_forms import PairForms


class FactorKind(IntEnum):
    """How the sub-problem of a factor is solved."""

    PAIR2_COMPACT = 0
    PAIR2 = 1
    TRIPLE2 = 2
    FOREST = 3
    DENSE = 4
    RIDGE = 5


Batches = NDArray[np.record]
"""A structured array of the type `BATCH`."""


class BatchRow(NamedTuple):
    """A batch of equal factors, or a piece of work on it: its factors begin:end.

    kind
        A `FactorKind`.
    n, arity, n_configs
        Its factors; variables and configurations of each.
    n_states
        States of a factor's variables, in all.
    q_at, q_width
        Where its blocks of q start, and how long each is.
    factor_at, edge_at
        Number of its first factor, and of its first edge.
    slot_at, slot_width
        Where its supports start, and the room for each.
    shape_at, config_at
        Where `TableArrays.shape` and `TableArrays.config` describe it.
    pull_at
        Where `FactorState.pull` has its configurations.
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
    """What of a problem is a part's own; the rest are copies of what belongs to other parts.

    n_vars
        Its own variables: the first ones.
    inside, owned
        Of every batch, how many factors have no variable of another part, and how many this part counts: the first
        ones.
    """

    n_vars: int
    inside: tuple[int, ...]
    owned: tuple[int, ...]


class VariableArrays(NamedTuple):
    """The variables of a model: blocks of mu, unary potentials, and where q has the blocks of their edges."""

    var_at: Ints
    nbr_ptr: Ints
    nbr_q: NDArray[np.uint32]
    theta: Floats


class PairArrays(NamedTuple):
    """2x2 factors of compact variables: where mu has their variables, and their couplings.

    The tables are ``J * [[1, -1], [-1, 1]]`` with J = unit * strength; a batch has all first variables, then all second
    ones.

    shared
        Whether all factors have the same coupling: `strength` is then as long as the longest piece of work.
    """

    edge_mu: NDArray[np.uint32]
    strength: Floats
    unit: float
    shared: bool


class TableArrays(NamedTuple):
    """All other factors: where mu has their variables, their tables and weights, and the shapes of their batches.

    `shape` holds for every batch the sizes of its variables, the widths of their blocks in mu, and where a factor's
    states begin; `config` the states of every configuration, where the kind of the batch needs them. `forms` says which
    tables of pairs are maximised in linear time.
    """

    edge_mu: NDArray[np.uint32]
    theta: Floats
    table_at: Ints
    weight: Floats
    shape: Ints
    config: Ints
    forms: PairForms


class FactorPlace(NamedTuple):
    """One factor: its first edge, its block of q, and sizes and widths of its variables."""

    e_at: int
    at: int
    sizes: Ints
    widths: Ints


class Iterates(NamedTuple):
    """The iterates of ADMM: mu_v, the sphere's multipliers lam_i, and q = rho s - lam with s = M_ia mu_a, per edge.

    The multipliers of the edges are not stored: after the variable step they are ``lam = leak (rho c mu - q)``, so that
    one array serves for both copies and multipliers. Nor is upsilon, which the variable step forms where it needs it.
    """

    mu: Floats
    lam_v: Floats
    q: Floats


class FactorState(NamedTuple):
    """What a run keeps of each factor.

    s
        The copies M_ia mu_a of 2x2 factors that are not compact, laid out like q and written only when asked for. All
        others find them again: from the support, or by another step.
    slots, x, n_slots
        mu_a as its support, masses that sum to 1, and the support's size: where the factor's next step begins.
    pull
        What a sphere on the factors adds to the potential of every configuration; empty without.
    """

    s: Floats
    slots: NDArray[np.int32]
    x: Floats
    n_slots: NDArray[np.int32]
    pull: Floats


class SphereState(NamedTuple):
    """The projection onto the sphere, in chunks of variables: upsilon = centre + scale (a - centre).

    chunk_size, blocks
        Variables per chunk, and whether each chunk has a sphere of its own.
    target2, norm2
        Squared radius that the chunk's variables bring, and squared distance of their points from the centre.
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
    """Room for one thread's factor steps: rows of numbers and of integers, and a matrix for the dense step."""

    numbers: Floats
    integers: Ints
    square: Floats


class Rounding(NamedTuple):
    """The labelling that mu is rounded to, and what that takes: states, which are allowed, variables of all edges."""

    card: Ints
    var_ptr: Ints
    allowed: Bools
    edge_var: NDArray[np.uint32]
    labels: Ints
