"""What the sequential methods share: the order of the variables, the weights, and the factors by variable."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from mapmrf.arrays import Bools, Floats, Ints, offsets
from mapmrf.engines.messages import srmp_kernels as srmp
from mapmrf.engines.messages.order_kernels import breadth_first, peel
from mapmrf.problem import Batch, Problem

Order = Literal["given", "trees_last", "breadth_first"]

WIDE = 4
"""From this many states on a pair's table is also kept transposed, so that both directions read it row by row."""
MAX_TRANSPOSED = 1 << 22
"""Table entries above which no transposed copies are made."""


@dataclass(frozen=True)
class Visits:
    """The order in which variables are visited, and how a belief is shared.

    Attributes
    ----------
    seq, rank : (n_vars,)
        The variables in order, and the place of each variable in it.
    omega, keep : (n_vars,)
        Share of its belief that a variable gives to each factor that comes next, and what it keeps for itself in a
        backward pass; in the order of the visits.
    role : (n_edges,)
        Whether the edge's variable is the first, the last or another one of its factor.
    """

    seq: Ints
    rank: Ints
    omega: Floats
    keep: Floats
    role: Ints

    @classmethod
    def build(cls, problem: Problem, order: Order) -> Visits:
        """Put the variables of a problem in order and weigh them.

        A belief is shared by n_between + max(n_first, n_last) factors: Kolmogorov's weights. Variables that hang on
        trees, put last, give all they have towards the core; factors that hang on a variable do not count.
        """
        seq, peeled, hanging = _order(problem, order)
        rank = np.empty_like(seq)
        rank[seq] = np.arange(problem.n_vars)
        role = _roles(problem, rank)
        last = np.bincount(problem.scope[role == srmp.LAST], minlength=problem.n_vars)
        first = np.bincount(problem.scope[role == srmp.FIRST], minlength=problem.n_vars)
        n_back = problem.degree - first
        if hanging.any():
            loose = (role == srmp.FIRST) & np.repeat(hanging, np.diff(problem.scope_ptr))
            first -= np.bincount(problem.scope[loose], minlength=problem.n_vars)
        n_shares = np.where(peeled, 1, np.maximum(1, n_back - last + np.maximum(first, last)))
        return cls(seq, rank, (1.0 / n_shares)[seq], ((n_shares - n_back) / n_shares)[seq], role)


def _order(problem: Problem, order: Order) -> tuple[Ints, Bools, Bools]:
    """The variables in order, which of them hang on trees, and which factors hang on a variable."""
    seq = np.arange(problem.n_vars)
    peeled = np.zeros(problem.n_vars, dtype=bool)
    hanging = np.zeros(problem.n_factors, dtype=bool)
    if order == "given" or (order == "trees_last" and not np.any(problem.degree == 1)):
        return seq, peeled, hanging
    owner = problem.edge_factor
    arrays = problem.scope_ptr, problem.scope, problem.nbr_ptr, owner[problem.nbr]
    removed = np.empty(problem.n_vars, dtype=np.int64)
    n_removed = peel(*arrays, removed, peeled, hanging)
    if order == "breadth_first":
        breadth_first(*arrays, seq)
    core = seq[~peeled[seq]]
    return np.concatenate([core, removed[:n_removed][::-1]]), peeled, hanging


def _roles(problem: Problem, rank: Ints) -> Ints:
    """Role of every edge's variable in its factor."""
    role = np.full(problem.n_edges, srmp.BETWEEN, dtype=np.int8)
    for batch in problem.batches:
        places = rank[batch.scope]
        mine = role[batch.edges].reshape(batch.n, batch.arity)
        if batch.arity == 2:
            mine[:, 0] = np.where(places[:, 0] < places[:, 1], srmp.FIRST, srmp.LAST)
            mine[:, 1] = srmp.FIRST + srmp.LAST - mine[:, 0]
            continue
        rows = np.arange(batch.n)
        mine[rows, places.argmin(axis=1)] = srmp.FIRST
        mine[rows, places.argmax(axis=1)] = srmp.LAST
    return role


def link(problem: Problem, visits: Visits) -> tuple[Ints, Ints, Floats]:
    """The tables `visits` and `links` of `kernels.srmp`, and the potentials that they point into."""
    largest = max(problem.n_edge_states, 2 * len(problem.graph.theta_t))
    dtype = np.int32 if largest < 2**31 else np.int64
    links = np.zeros((problem.n_edges, srmp.N_COLUMNS), dtype=dtype)
    links[:, srmp.LAM] = problem.edge_ptr[:-1]
    links[:, srmp.ROLE] = visits.role
    tables = [problem.graph.theta_t]
    for batch in problem.batches:
        mine = links[batch.edges].reshape(batch.n, batch.arity, -1)
        mine[:, :, srmp.TABLE] = batch.table_at[:, None]
        if batch.arity == 2:
            extra = _link_pairs(problem, visits, batch, mine)
            if extra is not None:
                mine[:, 0, srmp.TABLE] += sum(map(len, tables))
                tables.append(extra)
        else:
            mine[:, :, srmp.OTHER] = problem.scope_ptr[batch.factors][:, None]
            mine[:, :, srmp.STEP_OTHER] = batch.arity
            mine[:, :, srmp.STEP_OWN] = np.arange(batch.arity)
    order = np.argsort(visits.rank[problem.scope], kind="stable")
    ptr = offsets(problem.degree[visits.seq])
    graph = problem.graph
    rows = np.stack([graph.var_ptr[visits.seq], graph.card[visits.seq], ptr[:-1], ptr[1:]], axis=1)
    return rows.astype(dtype), links[order], tables[0] if len(tables) == 1 else np.concatenate(tables)


def _link_pairs(problem: Problem, visits: Visits, batch: Batch, links: Ints) -> Floats | None:
    """Fill in the columns of pairs; return transposed tables where they help, in which the first variable's point."""
    edge_at = problem.edge_ptr[batch.edges].reshape(batch.n, 2)
    for own, other in ((0, 1), (1, 0)):
        links[:, own, srmp.N_OTHER] = batch.shape[other]
        links[:, own, srmp.OTHER] = edge_at[:, other]
        links[:, own, srmp.OTHER_TURN] = visits.rank[batch.scope[:, other]]
    links[:, 1, srmp.STEP_OTHER], links[:, 1, srmp.STEP_OWN] = batch.shape[1], 1
    if max(batch.shape) < WIDE or len(problem.graph.theta_t) > MAX_TRANSPOSED:
        links[:, 0, srmp.STEP_OTHER], links[:, 0, srmp.STEP_OWN] = 1, batch.shape[1]
        return None
    links[:, 0, srmp.STEP_OTHER], links[:, 0, srmp.STEP_OWN] = batch.shape[0], 1
    starts, of = np.unique(batch.table_at, return_inverse=True)
    block = problem.graph.theta_t[starts[:, None] + np.arange(batch.n_configs)].reshape(-1, *batch.shape)
    turned = block.transpose(0, 2, 1)
    if batch.shape[0] == batch.shape[1] and np.array_equal(block, turned):
        return None
    links[:, 0, srmp.TABLE] = batch.n_configs * of
    return np.ravel(turned)


@dataclass
class Passes:
    """Sequential reweighted message passing on a problem: the arrays of `kernels.srmp`, and a way to iterate."""

    problem: Problem
    seq: Ints
    par: Floats
    model: tuple[Ints, Ints, Floats, Ints | None, Ints]
    theta: Floats
    omega: Floats
    lam: Floats
    labels: Ints
    in_order: Ints
    scratch: Floats
    places: Ints

    @classmethod
    def build(cls, problem: Problem, visits: Visits, par: Floats) -> Passes:
        """Allocate everything that the kernel works on."""
        graph = problem.graph
        rows, links, tables = link(problem, visits)
        widest = int(graph.card.max(initial=1))
        largest = max((batch.n_configs for batch in problem.batches if batch.arity > 2), default=0)
        return cls(
            problem=problem,
            seq=visits.seq,
            par=par,
            model=(rows, links, tables, problem.edge_ptr if largest else None, visits.rank[problem.scope]),
            theta=graph.theta_v.copy(),
            omega=visits.omega,
            lam=np.zeros(problem.n_edge_states),
            labels=np.zeros(problem.n_vars, dtype=np.int64),
            in_order=np.zeros(problem.n_vars, dtype=np.int64),
            scratch=np.zeros(4 * widest + largest + 1),
            places=np.zeros(largest + 1, dtype=np.int64),
        )

    @property
    def work(self) -> int:
        """Table entries that an iteration looks at, roughly."""
        entries = sum(batch.n * (10 + batch.n_configs * 3 * (batch.arity - 1)) for batch in self.problem.batches)
        return entries + self.problem.n_states

    @property
    def best(self) -> Ints:
        """The best labelling so far."""
        best = np.empty(len(self.seq), dtype=np.int64)
        best[self.seq] = self.in_order
        return best

    def iterate(self, n_iterations: int, done: int, decode_every: int) -> tuple[int, int]:
        """Run iterations in the kernel; return how many and why it ended."""
        messages = self.theta, self.omega, self.lam, self.labels, self.in_order, self.scratch, self.places
        n, why = srmp.iterate(n_iterations, done, decode_every, self.par, *self.model, *messages)
        return n, why
