"""The state that MPLP and MPLP-C share: messages on a list of factors, and the best labelling decoded from them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np

from mapmrf.arrays import Floats, Ints, offsets, ranges, short
from mapmrf.engines.messages.mplp_kernels import bound_of, decode, pass_trees, passes_factors, passes_pairs2, peel
from mapmrf.engines.moves.ascent import Ascent
from mapmrf.engines.moves.crossover import Crossover
from mapmrf.method import Start
from mapmrf.problem import Problem

Order = Literal["variables", "model", "random"]
Schedule = Literal["alternate", "forward"]

STEP_ENTRIES = 3_000_000
"""Table entries that one step goes through, at most: some 20 ms."""
ROUND_OFF = 1e-13
"""A fall of the bound by less than this part of it is no fall."""


@dataclass
class Dual:
    """A reparametrisation: factors with their tables, and the messages from them to their variables.

    Attributes
    ----------
    theta, table_at
        The tables, and where each factor's starts; factors share tables as in the model.
    scope_ptr, scope, state_at, card_e, edge_ptr
        Edges of every factor; per edge its variable, the start of the variable's block in `belief`, the number of its
        states, and the start of its block in `lam`.
    nbr_ptr, nbr, factor_of
        Edges of every variable, and the factor of every edge.
    lam, belief
        The messages, and theta_i plus all messages to i.
    visit
        The factors of the cyclic part in the order of a pass.
    decide
        The variables in the order of decoding.
    quick
        Whether all factors are 2x2 tables and nothing is -inf.
    """

    var_ptr: Ints
    theta: Floats
    table_at: Ints
    scope_ptr: Ints
    scope: Ints
    state_at: Ints
    card_e: Ints
    edge_ptr: Ints
    nbr_ptr: Ints
    nbr: Ints
    factor_of: Ints
    lam: Floats
    belief: Floats
    visit: Ints
    decide: Ints
    n_core: int
    constant: float
    quick: bool
    order: Order
    alternate: bool
    work: Floats
    iwork: Ints

    @classmethod
    def build(cls, problem: Problem, order: Order, schedule: Schedule, seed: int) -> Dual:
        """All messages zero, but those of hanging trees, which have told their roots all they know."""
        graph = problem.graph
        arity = np.diff(problem.scope_ptr)
        peeled, toward, core = _peel(problem)
        decide, n_core = _decide(problem, core, peeled, toward)
        widest = int(np.diff(problem.edge_ptr[problem.scope_ptr]).max(initial=1))
        binary = all(batch.shape == (2, 2) and not batch.hard for batch in problem.batches)
        dual = cls(
            var_ptr=short(graph.var_ptr).copy(),
            theta=graph.theta_t.copy(),
            table_at=short(problem.table_at).copy(),
            scope_ptr=short(problem.scope_ptr).copy(),
            scope=short(problem.scope).copy(),
            state_at=short(graph.var_ptr[problem.scope]),
            card_e=short(graph.card[problem.scope]),
            edge_ptr=short(problem.edge_ptr).copy(),
            nbr_ptr=short(problem.nbr_ptr).copy(),
            nbr=short(problem.nbr).copy(),
            factor_of=short(problem.edge_factor),
            lam=np.zeros(problem.n_edge_states),
            belief=graph.theta_v.copy(),
            visit=short(_visit(problem, core, order, seed)),
            decide=short(decide),
            n_core=n_core,
            constant=graph.constant,
            quick=binary and bool(problem.feasible_v.all()),
            order=order,
            alternate=schedule == "alternate",
            work=np.zeros((2, max(widest, int(graph.card.max(initial=1))))),
            iwork=np.zeros((2, int(arity.max(initial=2))), dtype=np.int64),
        )
        dual.pass_trees(short(peeled), short(toward))
        return dual

    @property
    def n_factors(self) -> int:
        """Number of factors."""
        return len(self.table_at)

    @property
    def n_vars(self) -> int:
        """Number of variables."""
        return len(self.var_ptr) - 1

    def pass_trees(self, peeled: Ints, toward: Ints) -> None:
        """Let the hanging trees speak, from the leaves to the roots."""
        if len(peeled):
            pass_trees(
                peeled, toward, self.theta, self.table_at, self.scope_ptr, self.state_at, self.card_e, self.edge_ptr,
                self.lam, self.belief, self.work, self.iwork,
            )  # fmt: skip

    def passes(self, begin: int, end: int) -> None:
        """Do the iterations from `begin` to `end`: a pass over the cyclic part each."""
        if self.quick:
            passes_pairs2(
                begin, end, self.alternate, self.visit, self.theta, self.table_at, self.state_at, self.lam, self.belief
            )
        else:
            passes_factors(
                begin, end, self.alternate, self.visit, self.theta, self.table_at, self.scope_ptr, self.state_at,
                self.card_e, self.edge_ptr, self.lam, self.belief, self.work, self.iwork,
            )  # fmt: skip

    def bound(self) -> float:
        """The dual's value, evaluated from scratch: an upper bound whatever the messages are."""
        return self.constant + bound_of(
            self.var_ptr, self.theta, self.table_at, self.scope_ptr, self.state_at, self.card_e, self.edge_ptr,
            self.lam, self.belief, self.work, self.iwork,
        )  # fmt: skip

    def decode(self, backward: bool) -> Ints:
        """Decide the variables one after another, each given those before it; hanging trees last."""
        core = self.decide[: self.n_core]
        decide = np.concatenate([core[::-1], self.decide[self.n_core :]]) if backward else self.decide
        labels = np.full(self.n_vars, -1, dtype=np.int64)
        decode(
            decide, self.var_ptr, self.theta, self.table_at, self.scope_ptr, self.scope, self.card_e, self.state_at,
            self.edge_ptr, self.nbr_ptr, self.nbr, self.factor_of, self.lam, self.belief, labels, self.work[0],
            self.iwork,
        )  # fmt: skip
        return labels

    def sizes(self, factors: Ints) -> Ints:
        """Number of configurations of some factors."""
        if self.n_factors == 0:
            return np.zeros(0, dtype=np.int64)
        return np.multiply.reduceat(self.card_e, self.scope_ptr[:-1], dtype=np.int64)[factors]

    def add_visits(self, added: Ints) -> None:
        """Visit more factors, at the end of a pass or where they belong."""
        visit = np.concatenate([self.visit, added])
        if self.order == "variables":
            last = np.maximum.reduceat(self.scope, self.scope_ptr[:-1])[visit]
            first = np.minimum.reduceat(self.scope, self.scope_ptr[:-1])[visit]
            visit = visit[np.lexsort((first, last))]
        self.visit = short(visit)


def _peel(problem: Problem) -> tuple[Ints, Ints, Ints]:
    """Factors of hanging trees from the leaves on, the root's place in the scope of each, and all other factors."""
    n = problem.n_factors
    live = np.zeros(n, dtype=np.int64)
    peeled, toward = np.zeros(n, dtype=np.int64), np.zeros(n, dtype=np.int64)
    owner = np.repeat(np.arange(n), np.diff(problem.scope_ptr))
    degree = np.zeros(problem.n_vars, dtype=np.int64)
    count = peel(
        problem.scope_ptr, problem.scope, problem.nbr_ptr, problem.nbr, owner, degree, live, peeled, toward
    )  # fmt: skip
    return peeled[:count], toward[:count], np.flatnonzero(live >= 0)


def _decide(problem: Problem, core: Ints, peeled: Ints, toward: Ints) -> tuple[Ints, int]:
    """The order of decoding, and how many variables of the cyclic part are at its front.

    Variables of hanging trees come last, from the roots outwards: each factor's root stands before its other variables.
    """
    scope_ptr = problem.scope_ptr
    arity = np.diff(scope_ptr)
    inner = np.zeros(problem.n_vars, dtype=bool)
    inner[problem.scope[ranges(scope_ptr[core], arity[core])]] = True
    inner[problem.degree == 0] = True
    front = np.flatnonzero(inner)
    outward, root = peeled[::-1], toward[::-1]
    edges = ranges(scope_ptr[outward], arity[outward])
    is_root = edges == np.repeat(scope_ptr[outward] + root, arity[outward])
    owner = np.repeat(np.arange(len(outward)), arity[outward])
    behind = problem.scope[edges[np.lexsort((~is_root, owner))]]
    order = np.concatenate([front, behind]).astype(np.int64)
    _, first = np.unique(order, return_index=True)
    return order[np.sort(first)], len(front)


def _visit(problem: Problem, core: Ints, order: Order, seed: int) -> Ints:
    """The factors of the cyclic part in the order of a pass."""
    if order == "random":
        return np.random.default_rng(seed).permutation(core)
    if order == "model" or len(core) == 0:
        return core[np.argsort(problem.order[core])]
    last = np.maximum.reduceat(problem.scope, problem.scope_ptr[:-1])
    first = np.minimum.reduceat(problem.scope, problem.scope_ptr[:-1])
    return core[np.lexsort((first[core], last[core]))]


class Primal:
    """The best labelling so far: every candidate is climbed from, and crossed with the best."""

    def __init__(self, problem: Problem, start: Start) -> None:
        self.problem = problem
        self.ascent = Ascent(problem)
        self.crossover = Crossover(problem, tol=0.0)
        self.labels = start.first_labels(problem.graph)
        self.value = problem.graph.value(self.labels) if start.labels is not None else -math.inf
        self.fresh = start.labels is None

    def offer(self, labels: Ints) -> None:
        """Climb from a labelling and let the best one take over whatever is better in it."""
        climbed = self.climb(labels)
        if self.fresh:
            self.labels, self.fresh = climbed, False
        else:
            self.cross(climbed)
            self.labels = self.climb(self.labels)
        self.value = self.problem.graph.value(self.labels)

    def climb(self, labels: Ints) -> Ints:
        """Coordinate ascent over single variables."""
        self.ascent.restart(labels)
        self.ascent.run(1 << 60)
        return self.ascent.labels.copy()

    def cross(self, other: Ints) -> None:
        """Take over every independent group of variables in which another labelling is better."""
        self.crossover.fuse(self.labels, other)


@dataclass
class Run:
    """A run: the messages, the best labelling, and when to look next.

    Attributes
    ----------
    next_look, looked_at, looks
        Iteration of the next and of the last look, and how many there were.
    work
        Table entries that one iteration goes through, 0 as long as nobody has counted.
    """

    dual: Dual
    primal: Primal
    iterations: int = 0
    next_look: int = 1
    looked_at: int = 0
    looks: int = 0
    bound: float = math.inf
    work: int = 0

    @property
    def gap(self) -> float:
        """Bound minus value."""
        return self.bound - self.primal.value

    @property
    def trivial(self) -> bool:
        """Whether there is nothing to iterate on: no cycle, or nothing feasible."""
        return len(self.dual.visit) == 0 or self.bound == -math.inf

    def work_per_pass(self) -> int:
        """Table entries that one iteration goes through."""
        return int(self.dual.sizes(self.dual.visit).sum())

    def passes(self, end: int) -> None:
        """Do the iterations up to `end`."""
        self.dual.passes(self.iterations, end)

    def evaluate(self) -> float:
        """The dual's value."""
        return self.dual.bound()

    def advance(self, max_iterations: int) -> bool:
        """Pass messages for some milliseconds; return whether it is time to look."""
        if self.work == 0:
            self.work = max(1, self.work_per_pass())
        until = min(self.next_look, max_iterations)
        end = min(until, self.iterations + max(1, STEP_ENTRIES // self.work))
        self.passes(end)
        self.iterations = end
        return end == until

    def look(self, every: int) -> float:
        """Evaluate the bound and decode; return by how much the bound fell per iteration, inf at first."""
        before, passed = self.bound, self.iterations - self.looked_at
        self.bound = min(before, self.evaluate())
        self.primal.offer(self.dual.decode(backward=self.looks % 2 == 1))
        self.looks += 1
        self.looked_at = self.iterations
        self.next_look = self.iterations + min(every, 4 * self.iterations)
        return (before - self.bound) / passed if self.looks > 1 else math.inf

    def has_converged(self, fall: float, tol: float) -> bool:
        """Whether an iteration closes less than `tol` of the gap, or nothing but round-off moves."""
        return fall <= max(tol * self.gap, ROUND_OFF * abs(self.bound)) if self.gap < math.inf else fall == 0.0


def edges_by_variable(scope: Ints, n_vars: int) -> tuple[Ints, Ints]:
    """Offsets and edges of every variable."""
    return offsets(np.bincount(scope, minlength=n_vars)), short(np.argsort(scope, kind="stable"))
