"""Sequential reweighted message passing on tables of any shape: layout in visiting order, and the passes."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from mapmrf.arrays import Floats, Ints, frozen, offsets
from mapmrf.compilation.jit import bare, compiled, inlined
from mapmrf.engines.messages.sweeps import (
    LIMIT,
    MAX_TRANSPOSED,
    Chunks,
    PassFigures,
    PassMessages,
    PassStopping,
    SequentialPasses,
    begin_pass,
    chunk_at,
    end_pass,
    run_worker,
)
from mapmrf.engines.messages.visit_order import FIRST, LAST, VisitOrder, edge_roles
from mapmrf.kernels.max_marginals import weight_of
from mapmrf.model.problem import Problem


class TablePasses(SequentialPasses):
    layout = "edges"
    model: SrmpModel
    messages: PassMessages

    def __init__(self, problem: Problem, order: VisitOrder, stopping: PassStopping) -> None:
        entries = sum(batch.n * (10 + batch.n_configs * 3 * (batch.arity - 1)) for batch in problem.batches)
        super().__init__(problem, order, stopping, entries + problem.n_states, np.int64)
        self.constant = problem.graph.constant
        largest = max((batch.n_configs for batch in problem.batches if batch.arity > 2), default=0)
        self.model = lay_out(problem, self.order, with_tables=largest > 0)
        theta, lam = problem.graph.theta_v.copy(), np.zeros(problem.n_edge_states)
        self.messages = PassMessages(lam, theta, self.labels, self.in_order)
        n_states = int(problem.graph.card.max(initial=1))
        self.kernels = (iterate, srmp_worker)
        self.scratches = [SrmpScratch.allocate(n_states, largest + 1) for _ in range(self.n_workers)]

    @property
    def n_messages(self) -> int:
        return len(self.messages.lam)

    def message_values(self) -> Floats:
        """Return the multipliers; those of impossible states, which the next run finds again, are 0."""
        return np.where(np.isfinite(self.messages.lam), self.messages.lam, 0.0)

    def load_messages(self, numbers: Floats) -> None:
        self.messages.lam[:] = numbers

    def state_bounds(self) -> Floats:
        from mapmrf.engines.reduction.simplify import dual_bounds  # not loaded for a run of messages alone

        bounds = dual_bounds(self.problem, self.message_values())
        bounds[self.messages.theta == -np.inf] = -np.inf
        return bounds


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
    )


def _records(fields: tuple[str, ...], n: int, dtype: np.dtype[np.integer]) -> Records:
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
        if batch.arity != 2:
            mine["other"] = problem.scope_ptr[batch.factors][:, None]
            mine["step_other"] = batch.arity
            mine["step_own"] = np.arange(batch.arity)
            continue
        edge_at = problem.edge_ptr[batch.edges].reshape(batch.n, 2)
        for own, other in ((0, 1), (1, 0)):
            mine["n_other"][:, own] = batch.shape[other]
            mine["other"][:, own] = edge_at[:, other]
            mine["other_turn"][:, own] = order.rank[batch.scope[:, other]]
        mine["step_other"][:, 1], mine["step_own"][:, 1] = batch.shape[1], 1
        # States from which a pair's table is also stored transposed, so that both directions read it row by row
        if max(batch.shape) < 4 or len(problem.graph.theta_t) > MAX_TRANSPOSED:
            mine["step_other"][:, 0], mine["step_own"][:, 0] = 1, batch.shape[1]
            continue
        mine["step_other"][:, 0], mine["step_own"][:, 0] = batch.shape[0], 1
        starts, of = np.unique(batch.table_at, return_inverse=True)
        block = problem.graph.theta_t[starts[:, None] + np.arange(batch.n_configs)].reshape(-1, *batch.shape)
        turned = block.transpose(0, 2, 1)
        if batch.shape[0] != batch.shape[1] or not np.array_equal(block, turned):
            mine["table"][:, 0] = batch.n_configs * of + sum(map(len, tables))
            tables.append(np.ravel(turned))
    return links, tables[0] if len(tables) == 1 else np.concatenate(tables)


# -- Sequential reweighted message passing on tables of any shape and arity -------------------------------------------
# Variables are visited one after another, forward and backward. `lam` holds the multipliers of the rows mu_i = M_ia
# mu_a, laid out like `lam_e`: the factors' tables are ``theta_a + sum_i lam_ia`` and the variables' ``theta_i -
# sum_a lam_ia``. A visit *collects* from factors: `lam` is set such that all max-marginals of the factor at this
# variable are equal, which moves the factor's information into the variable. It then *distributes*: each of the
# factors that come next gets the share `omega` of the sum. An impossible state has lam = -inf in all its factors,
# every other a finite one.

Records = Any  # an array of records with named fields: `np.recarray`
Record = Any  # one of them
# A visit: where the variable's block of `theta` starts, its states, and its links.
VISIT_FIELDS = ("theta_at", "n_own", "begin", "end")
# A variable in a factor: where its block of `lam` and the factor's table start, and its role. Of a pair also: the
# states of the other variable, where the other's block of `lam` starts, what a state of the other and of this variable
# add to the place in the table, and the other's turn. Any other factor has n_other = 0; `other` is its first edge,
# `step_other` its arity, and `step_own` the variable's place in its scope.
LINK_FIELDS = ("lam", "table", "n_other", "other", "step_other", "step_own", "role", "other_turn")


class SrmpModel(NamedTuple):
    visits: Records  # (n_vars,): records of `VISIT_FIELDS`, in the order of the visits
    links: Records  # (n_edges,): records of `LINK_FIELDS`, in the same order
    # (n_edges,): what the tables of links are multiplied by, in the same order; empty if all weights are 1
    weight: Floats
    tables: Floats  # the potentials that links point into
    edge_ptr: Ints | None  # that of the problem; None if all factors are pairs, for which less is compiled then
    turn: Ints  # (n_edges,): place of the edge's variable in the order
    # (n_vars,): share of its belief that a variable gives to each factor that comes next, in the order of the visits
    omega: Floats


class SrmpScratch(NamedTuple):
    """Working memory: per state of a variable, and per joint state of the other variables of a factor."""

    belief: Floats
    score: Floats
    known: Floats
    work: Floats
    sums: Floats
    places: Ints

    @classmethod
    def allocate(cls, n_states: int, n_joint: int) -> SrmpScratch:
        belief, score, known, work = np.zeros((4, n_states))
        return cls(belief, score, known, work, np.zeros(n_joint), np.zeros(n_joint, dtype=np.int64))


@inlined
def joint_sums(begin: int, end: int, edge_ptr: Ints, lam: Floats, sums: Floats, at: int) -> int:
    """Put the sums of multipliers of all joint states of some edges into `sums` from `at` on; return their number."""
    sums[at] = 0.0
    n = 1
    for e in range(begin, end):
        first = edge_ptr[e]
        size = edge_ptr[e + 1] - first
        # From the end, so that nothing is overwritten before it is read.
        for c in range(n - 1, -1, -1):
            base = sums[at + c]
            for s in range(size):
                sums[at + c * size + s] = base + lam[first + s]
        n *= size
    return n


@inlined
def collect(row: int, model: SrmpModel, edge_ptr: Ints | None, lam: Floats, n_own: int, scratch: SrmpScratch) -> None:
    """Fill `work` with a factor's best entry for every state of this variable, the others' multipliers included."""
    # A model of pairs alone gives None as `edge_ptr`.
    link, weight = model.links[row], weight_of(model.weight, row)
    if link.n_other > 0:
        collect_pair(link, weight, model.tables, lam, scratch.work, n_own)
        return
    if edge_ptr is None:  # known when the kernel is compiled: models of pairs need not wait for what follows
        return
    tables, out, sums, first = model.tables, scratch.work, scratch.sums, link.other
    own = first + link.step_own
    n_outer = joint_sums(first, own, edge_ptr, lam, sums, 0)
    n_inner = joint_sums(own + 1, first + link.step_other, edge_ptr, lam, sums, n_outer)
    for s in range(n_own):
        out[s] = -np.inf
    at, n, begin = np.uintp(link.table), np.uintp(n_inner), np.uintp(n_outer)
    for o in range(n_outer):
        outer = sums[o]
        for s in range(n_own):
            best = out[s]
            if weight == 1.0:
                for i in range(n):
                    value = tables[at + i] + (outer + sums[begin + i])
                    best = value if value > best else best
            else:
                for i in range(n):
                    value = weight * tables[at + i] + (outer + sums[begin + i])
                    best = value if value > best else best
            at += n
            out[s] = best


@inlined
def collect_pair(link: Record, weight: float, tables: Floats, lam: Floats, out: Floats, n_own: int) -> None:
    # Unsigned places need no check for negative ones, which would keep the inner loop from being vectorised.
    row, step, n = np.uintp(link.table), np.uintp(link.step_other), np.uintp(n_own)
    begin, step_own = np.uintp(link.other), np.uintp(link.step_own)
    for k in range(n):
        out[k] = -np.inf
    if link.step_own == 1 and weight == 1.0:
        for j in range(np.uintp(link.n_other)):
            given = lam[begin + j]
            for k in range(n):
                value = tables[row + k] + given
                out[k] = value if value > out[k] else out[k]
            row += step
    else:
        for j in range(np.uintp(link.n_other)):
            given = lam[begin + j]
            for k in range(n):
                value = weight * tables[row + k * step_own] + given
                out[k] = value if value > out[k] else out[k]
            row += step


@inlined
def collect_fixed(
    forward: bool, row: int, model: SrmpModel, edge_ptr: Ints | None, messages: PassMessages, n_own: int,
    scratch: SrmpScratch,
) -> None:  # fmt: skip
    """Fill `work` with the best entries for every state of this variable, given the labels that are fixed already."""
    link, weight = model.links[row], weight_of(model.weight, row)
    if link.n_other > 0:
        at = link.table + link.step_other * messages.labels[link.other_turn]
        for k in range(n_own):
            scratch.work[k] = weight * model.tables[at + k * link.step_own]
        return
    if edge_ptr is None:
        return
    turn, lam, sums, places = model.turn, messages.lam, scratch.sums, scratch.places
    at, first = link.table, link.other
    own = turn[first + link.step_own]
    step_own, step, n = 0, 1, 1
    places[0] = 0
    sums[0] = 0.0
    for e in range(first + link.step_other - 1, first - 1, -1):
        size = edge_ptr[e + 1] - edge_ptr[e]
        if turn[e] == own:
            step_own = step
        elif (turn[e] < own) == forward:
            at += step * messages.labels[turn[e]]
        else:  # all joint states of the variables to come
            for c in range(n):
                for s in range(size - 1, -1, -1):
                    places[s * n + c] = places[c] + s * step
                    sums[s * n + c] = sums[c] + lam[edge_ptr[e] + s]
            n *= size
        step *= size
    for s in range(n_own):
        best = -np.inf
        for c in range(n):
            best = max(best, weight * model.tables[at + s * step_own + places[c]] + sums[c])
        scratch.work[s] = best


@inlined
def choose(
    forward: bool, visit: Record, model: SrmpModel, messages: PassMessages, scratch: SrmpScratch
) -> tuple[int, float]:
    """Fix a variable's label given those of the variables before it; return it, and what is known of its value."""
    begins, ends = (FIRST, LAST) if forward else (LAST, FIRST)
    score, known, work = scratch.score, scratch.known, scratch.work
    n_own = visit.n_own
    for k in range(n_own):
        known[k] = messages.theta[visit.theta_at + k]
        score[k] = 0.0
    for row in range(visit.begin, visit.end):
        link = model.links[row]
        if link.role == begins:
            for k in range(n_own):
                score[k] -= messages.lam[link.lam + k]
            continue
        collect_fixed(forward, row, model, model.edge_ptr, messages, n_own, scratch)
        to = known if link.role == ends else score
        for k in range(n_own):
            to[k] += work[k]
    best = 0
    for k in range(1, n_own):
        # An impossible state has -inf in `known` and perhaps not a number in `score`.
        if known[k] > -np.inf and (known[best] == -np.inf or known[k] + score[k] > known[best] + score[best]):
            best = k
    return best, known[best]


@bare
def sweep(
    forward: bool, decode: bool, span: tuple[int, int], model: SrmpModel, messages: PassMessages,
    scratch: SrmpScratch,
) -> tuple[float, float]:  # fmt: skip
    """Visit some variables; return what they add to the bound of a backward pass, and to the labelling's value."""
    # The bound is -inf when a variable has no possible state left.
    visits, links, theta, lam = model.visits, model.links, messages.theta, messages.lam
    belief, work, (first, last) = scratch.belief, scratch.work, span
    bound, value = 0.0, 0.0
    skip, end = (FIRST, LAST) if forward else (LAST, FIRST)
    for v in range(last - first):
        p = first + v if forward else last - 1 - v
        visit = visits[p]
        theta_at, n_own = visit.theta_at, visit.n_own
        if decode:
            label, known = choose(forward, visit, model, messages, scratch)
            messages.labels[p] = label
            value += known
        for k in range(n_own):
            belief[k] = theta[theta_at + k]
        for row in range(visit.begin, visit.end):
            link = links[row]
            mine = link.lam
            if link.role == skip:
                for k in range(n_own):
                    belief[k] -= lam[mine + k]
                continue
            collect(row, model, model.edge_ptr, lam, n_own, scratch)
            top = work[0]
            for k in range(1, n_own):
                top = max(top, work[k])
            if top == -np.inf:
                for k in range(n_own):
                    theta[theta_at + k] = -np.inf  # the next sweep must find it too
                return -np.inf, -np.inf
            if link.role == FIRST:
                bound += top
            for k in range(n_own):
                belief[k] += work[k] - top
                lam[mine + k] = top - work[k]
        best = drop_impossible(visit, links, messages, belief)
        if best == -np.inf:
            return -np.inf, -np.inf
        bound += best
        distribute(visit, links, end, model.omega[p], best, lam, belief)
    return bound, value


@inlined
def drop_impossible(visit: Record, links: Records, messages: PassMessages, belief: Floats) -> float:
    """Take impossible states out of a variable and its factors; return the largest belief, -inf if none is left."""
    theta = messages.theta
    best = -np.inf
    n_dead = 0
    for k in range(visit.n_own):
        at = visit.theta_at + k
        if theta[at] == -np.inf or belief[k] == -np.inf:
            theta[at] = -np.inf
            belief[k] = -np.inf
            n_dead += 1
        best = max(best, belief[k])
    if n_dead > 0:
        for k in range(visit.n_own):
            if belief[k] == -np.inf:
                for row in range(visit.begin, visit.end):
                    messages.lam[links[row].lam + k] = -np.inf
    return best


@inlined
def distribute(visit: Record, links: Records, end: int, omega: float, best: float, lam: Floats, belief: Floats) -> None:
    """Give every factor that comes next its share of a belief: those in which the variable's role is not `end`."""
    for row in range(visit.begin, visit.end):
        if links[row].role != end:
            mine = links[row].lam
            for k in range(visit.n_own):
                lam[mine + k] += omega * (belief[k] - best)


@inlined
def visit_tables(
    forward: bool, decode: bool, c: int, model: SrmpModel, messages: PassMessages, scratch: SrmpScratch, chunks: Chunks
) -> None:
    span = (chunks.begin[c], chunks.end[c])
    chunks.bound[c], chunks.value[c] = sweep(forward, decode, span, model, messages, scratch)


@compiled
def iterate(
    begin: int, end: int, decode_every: int, start: float, constant: float, stopping: PassStopping,
    figures: PassFigures, model: SrmpModel, messages: PassMessages, scratch: SrmpScratch, chunks: Chunks,
) -> tuple[int, int, PassFigures]:  # fmt: skip
    """Run iterations until a limit, a closed gap or rest; return how many, why they ended, and the figures."""
    # The loop of `run_iterations`, written out: through it, and with the scratch of pairs, iterations on triples of
    # binary variables that decode took 1.07 to 1.34 times as long in three comparisons.
    for n in range(begin, end):
        decode = n % decode_every == 0
        for half in range(2):
            forward = half == 0
            begin_pass(forward, chunks, start)
            for place in range(len(chunks.bound)):
                c = chunk_at(forward, place, chunks)
                visits = (chunks.begin[c], chunks.end[c])
                chunks.bound[c], chunks.value[c] = sweep(forward, decode, visits, model, messages, scratch)
            why, figures = end_pass(forward, decode, constant, figures, stopping, chunks, messages)
        if why != LIMIT:
            return n + 1 - begin, why, figures
    return end - begin, LIMIT, figures


@compiled
def srmp_worker(*arguments: Any) -> bool:
    return run_worker(visit_tables, arguments)
