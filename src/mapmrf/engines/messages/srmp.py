"""Sequential reweighted message passing on tables of any shape: layout in visiting order, and the passes."""

from __future__ import annotations

import numpy as np

from mapmrf.arrays import Floats, frozen, offsets
from mapmrf.engines.messages.parallel_sweep import Crew
from mapmrf.engines.messages.srmp_kernels import (
    LINK_FIELDS,
    VISIT_FIELDS,
    Records,
    SrmpMessages,
    SrmpModel,
    SrmpScratch,
    help_srmp,
    iterate,
)
from mapmrf.engines.messages.sweeps import SequentialPasses
from mapmrf.engines.messages.sweeps_kernels import PassFigures, PassSpan, PassStopping
from mapmrf.engines.messages.visit_order import VisitOrder, edge_roles
from mapmrf.engines.reduction.simplify import dual_bounds
from mapmrf.model.problem import Batch, Problem

WIDE = 4
"""Number of states from which a pair's table is also stored transposed, so that both directions read it row by row."""
MAX_TRANSPOSED = 1 << 22  # number of table entries above which no transposed copies are made


class TablePasses(SequentialPasses):
    """Passes over factors of any shape, by the kernels of `srmp_kernels`."""

    layout = "edges"

    def __init__(self, problem: Problem, order: VisitOrder, stopping: PassStopping) -> None:
        entries = sum(batch.n * (10 + batch.n_configs * 3 * (batch.arity - 1)) for batch in problem.batches)
        super().__init__(problem, order, stopping, entries + problem.n_states, np.int64)
        self.constant, self.start = problem.graph.constant, 0.0
        self.problem = problem
        largest = max((batch.n_configs for batch in problem.batches if batch.arity > 2), default=0)
        self.model = lay_out(problem, self.order, with_tables=largest > 0)
        theta, lam = problem.graph.theta_v.copy(), np.zeros(problem.n_edge_states)
        self.messages = SrmpMessages(theta, lam, self.labels, self.in_order)
        n_states = int(problem.graph.card.max(initial=1))
        self.scratches = [SrmpScratch.allocate(n_states, largest + 1) for _ in range(self.n_workers)]

    @property
    def scratch(self) -> SrmpScratch:
        """Allocate scratch for one thread."""
        return self.scratches[0]

    def run(self, span: PassSpan) -> tuple[int, int, PassFigures]:
        """Run iterations in the kernel, single-threaded."""
        return iterate(span, self.stopping, self.figures, self.model, self.messages, self.scratch, self.board)

    @property
    def n_numbers(self) -> int:
        """One for every state of every edge."""
        return len(self.messages.lam)

    def numbers(self) -> Floats:
        """Return the multipliers; those of impossible states, which the next run finds again, are 0."""
        return np.where(np.isfinite(self.messages.lam), self.messages.lam, 0.0)

    def resume(self, numbers: Floats) -> None:
        """Set the multipliers to what `numbers` returned."""
        self.messages.lam[:] = numbers

    def state_bounds(self) -> Floats:
        """Compute upper bounds on the labellings with each state by the multipliers; -inf for impossible states."""
        lam = np.where(np.isfinite(self.messages.lam), self.messages.lam, 0.0)
        bounds = dual_bounds(self.problem, lam)
        bounds[self.messages.theta == -np.inf] = -np.inf
        return bounds

    def help(self, forward: bool, decode: bool, crew: Crew, w: int) -> bool:
        """Make the visits of worker `w` in the kernel; False if it has to wait for others."""
        scratch = self.scratches[w]
        return help_srmp(forward, decode, self.model, self.messages, scratch, crew.shares, self.board, w)


def lay_out(problem: Problem, order: VisitOrder, with_tables: bool) -> SrmpModel:
    """Build visits and links of a problem; `with_tables` if some factor has more than two variables."""
    graph = problem.graph
    links, tables = _links(problem, order)
    by_visit = np.argsort(order.rank[problem.scope], kind="stable")
    ptr = offsets(problem.degree[order.seq])
    visits = _records(VISIT_FIELDS, problem.n_vars, links[LINK_FIELDS[0]].dtype)
    visits["theta_at"], visits["n_own"] = graph.var_ptr[order.seq], graph.card[order.seq]
    visits["begin"], visits["end"] = ptr[:-1], ptr[1:]
    return SrmpModel(
        visits=visits,
        links=links[by_visit],
        weight=frozen(problem.weight[problem.edge_factor[by_visit]]) if len(problem.weight) else problem.weight,
        tables=frozen(tables),
        edge_ptr=problem.edge_ptr if with_tables else None,
        turn=order.rank[problem.scope],
        omega=order.omega,
        constant=graph.constant,
    )


def _records(fields: tuple[str, ...], n: int, dtype: np.dtype[np.integer]) -> Records:
    """Return zero records of integers."""
    return np.zeros(n, dtype=np.dtype([(field, dtype) for field in fields], align=True)).view(np.recarray)


def _links(problem: Problem, order: VisitOrder) -> tuple[Records, Floats]:
    """Build a link for every edge, and the potentials that they point into."""
    largest = max(problem.n_edge_states, 2 * len(problem.graph.theta_t))
    links = _records(LINK_FIELDS, problem.n_edges, np.dtype(np.int32 if largest < 2**31 else np.int64))
    links["lam"] = problem.edge_ptr[:-1]
    links["role"] = edge_roles(problem, order.rank)
    tables = [problem.graph.theta_t]
    for batch in problem.batches:
        mine = links[batch.edges].reshape(batch.n, batch.arity)
        mine["table"] = batch.table_at[:, None]
        if batch.arity == 2:
            extra = _link_pairs(problem, order, batch, mine)
            if extra is not None:
                mine["table"][:, 0] += sum(map(len, tables))
                tables.append(extra)
        else:
            mine["other"] = problem.scope_ptr[batch.factors][:, None]
            mine["step_other"] = batch.arity
            mine["step_own"] = np.arange(batch.arity)
    return links, tables[0] if len(tables) == 1 else np.concatenate(tables)


def _link_pairs(problem: Problem, order: VisitOrder, batch: Batch, links: Records) -> Floats | None:
    """Fill in the fields of pairs; return transposed tables if useful, which links of the first variable point into."""
    edge_at = problem.edge_ptr[batch.edges].reshape(batch.n, 2)
    for own, other in ((0, 1), (1, 0)):
        links["n_other"][:, own] = batch.shape[other]
        links["other"][:, own] = edge_at[:, other]
        links["other_turn"][:, own] = order.rank[batch.scope[:, other]]
    links["step_other"][:, 1], links["step_own"][:, 1] = batch.shape[1], 1
    if max(batch.shape) < WIDE or len(problem.graph.theta_t) > MAX_TRANSPOSED:
        links["step_other"][:, 0], links["step_own"][:, 0] = 1, batch.shape[1]
        return None
    links["step_other"][:, 0], links["step_own"][:, 0] = batch.shape[0], 1
    starts, of = np.unique(batch.table_at, return_inverse=True)
    block = problem.graph.theta_t[starts[:, None] + np.arange(batch.n_configs)].reshape(-1, *batch.shape)
    turned = block.transpose(0, 2, 1)
    if batch.shape[0] == batch.shape[1] and np.array_equal(block, turned):
        return None
    links["table"][:, 0] = batch.n_configs * of
    return np.ravel(turned)
