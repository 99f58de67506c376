"""Dual decomposition: subproblems with copies of the variables that they share, and subgradient descent on them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from mapmrf.arrays import Floats, Ints, offsets, ranges, segment_argmax
from mapmrf.engines.decomposition import subgradient_kernels as kernels
from mapmrf.engines.decomposition.subgradient_kernels import Copies, Model, Run
from mapmrf.engines.decomposition.tree_kernels import Legs, number_copies, orient, pick_forests
from mapmrf.method import Answer, Progress
from mapmrf.polytope import FactorMarginals, integral
from mapmrf.problem import Batch, Problem
from mapmrf.result import Status

STEP_WORK = 1_500_000
"""Table entries, states and copies that one step looks at, at most: some 20 ms."""

ROUND_OFF = 1e-12
"""Difference that counts as none between two choices of a subproblem, in units of the typical size of a potential."""

MOST_CONFIGS = 30_000_000
"""Configurations up to which the factors' choices are averaged; beyond, the last choices stand for the average."""


@dataclass(frozen=True)
class Decomposition:
    """Acyclic parts of a factor graph, or its single factors, and the copies of variables that they have.

    Attributes
    ----------
    copies, legs
        As the kernels see them.
    visit : (n_factors,)
        The factors in the order of `legs`.
    roots
        Copies at the roots of all trees; none for single factors.
    n_forests
        Number of forests; 0 for single factors.
    """

    copies: Copies
    legs: Legs
    visit: Ints
    roots: Ints
    n_forests: int

    @classmethod
    def into_factors(cls, problem: Problem) -> Decomposition:
        """A subproblem for each factor, with a copy of a variable on each of its edges."""
        factor_of = problem.edge_factor
        copy_of = _zeros(problem.n_edges)
        copy_of[problem.nbr] = np.arange(problem.n_edges)
        copies = _copies(problem, problem.nbr_ptr, factor_of[problem.nbr])
        visit = np.arange(problem.n_factors)
        legs = _legs(problem, visit, np.arange(problem.n_edges), copies, copy_of)
        return cls(copies, legs, visit, _zeros(0), 0)

    @classmethod
    def into_trees(cls, problem: Problem) -> Decomposition:
        """Forests that are maximal one after another, until every factor is in one."""
        n_factors, n_edges, n_vars = problem.n_factors, problem.n_edges, problem.n_vars
        scope_ptr, scope = problem.scope_ptr.astype(np.int64), problem.scope.astype(np.int64)
        factor_of = np.repeat(np.arange(n_factors), np.diff(scope_ptr))
        forest_of, copy_ptr, copy_of = _zeros(n_factors), _zeros(n_vars + 1), _zeros(n_edges)
        n_forests = int(pick_forests(scope_ptr, scope, np.arange(n_factors), _zeros(n_vars), forest_of))
        nbr_ptr, nbr = problem.nbr_ptr.astype(np.int64), problem.nbr.astype(np.int64)
        number_copies(nbr_ptr, nbr, factor_of, forest_of, _zeros(n_forests) - 1, copy_ptr, copy_of)
        n_copies = int(copy_ptr[-1])
        forest = _zeros(n_copies)
        forest[copy_of] = forest_of[factor_of]
        edge_ptr = offsets(np.bincount(copy_of, minlength=n_copies)).astype(np.int64)
        edges = np.argsort(copy_of, kind="stable")
        reached, met = np.zeros(n_copies, dtype=bool), np.zeros(n_factors, dtype=bool)
        visit, leg_edge, roots = _zeros(n_factors), _zeros(n_edges), _zeros(n_copies)
        walk = (factor_of, copy_of, edge_ptr, edges, reached, met, _zeros(n_copies), visit, leg_edge, roots)
        n_roots = int(orient(scope_ptr, *walk))
        copies = _copies(problem, copy_ptr, forest)
        return cls(copies, _legs(problem, visit, leg_edge, copies, copy_of), visit, roots[:n_roots], n_forests)


def _zeros(n: int) -> Ints:
    return np.zeros(n, dtype=np.int64)


def _copies(problem: Problem, ptr: Ints, forest: Ints) -> Copies:
    card = np.repeat(problem.graph.card, np.diff(ptr)).astype(np.int32)
    return Copies(ptr.astype(np.int64), offsets(card)[:-1].astype(np.int64), forest.astype(np.int32), card)


def _legs(problem: Problem, visit: Ints, leg_edge: Ints, copies: Copies, copy_of: Ints) -> Legs:
    arity = np.diff(problem.scope_ptr)
    stride = problem.edge_stride
    copy = copy_of[leg_edge]
    return Legs(
        ptr=offsets(arity[visit]).astype(np.int64),
        table_at=problem.table_at[visit].astype(np.int64),
        at=copies.at[copy],
        copy=copy.astype(np.int32),
        var=problem.scope[leg_edge].astype(np.int32),
        card=copies.card[copy],
        stride=stride[leg_edge].astype(np.int32),
    )


@dataclass(frozen=True)
class Settings:
    """Options of a descent: rule and length of the steps, when to stop, and ways to a labelling, taken in turn."""

    rule: int
    step_size: float
    patience: int
    tolerance: float
    ways: tuple[int, ...]
    decay: float = 0.0
    exponent: float = 1.0


@dataclass
class Descent:
    """A run of subgradient descent.

    Attributes
    ----------
    config_at
        Where the factors' blocks start in `mu_f`, in the order of their visits.
    scratch
        What the kernel of the parts needs besides: working arrays.
    chunk
        Rounds that a step takes, at most.
    """

    parts: Decomposition
    model: Model
    run: Run
    config_at: Ints
    scratch: tuple[Any, ...]
    chunk: int

    @classmethod
    def build(cls, problem: Problem, parted: Decomposition, settings: Settings, initial: Ints | None) -> Descent:
        """Spread the unary potentials evenly over the copies; a labelling given counts as the best one met."""
        work = problem.n_configs + problem.n_states + 4 * len(parted.copies.at)
        run = _run(problem, parted, settings)
        if initial is not None:
            run.best[:] = initial
            run.figures[kernels.VALUE] = problem.graph.value(initial)
        return cls(
            parts=parted,
            model=_model(problem),
            run=run,
            config_at=problem.config_ptr[:-1][parted.visit].astype(np.int64),
            scratch=_scratch(problem, parted),
            chunk=max(1, STEP_WORK // max(1, work)),
        )

    def advance(self, max_rounds: int) -> bool:
        """Do some rounds; return whether the run is at its end."""
        n_rounds = min(self.chunk, max_rounds - self.rounds)
        parts = self.parts
        common = (self.config_at, self.run, self.scratch, n_rounds)
        if parts.n_forests:
            return bool(kernels.descend_forests(self.model, parts.copies, parts.legs, parts.roots, *common))
        return bool(kernels.descend_factors(self.model, parts.copies, parts.legs, *common))

    @property
    def rounds(self) -> int:
        """Rounds done."""
        return int(self.run.figures[kernels.ROUND])

    def figure(self, place: int) -> float:
        """An entry of the kernels' figures."""
        return float(self.run.figures[place])

    def step(self, max_iterations: int) -> Progress:
        """Some rounds, and what came of them."""
        ended = self.advance(max_iterations)
        bound, value = self.figure(kernels.BOUND), self.figure(kernels.VALUE)
        if bound == -np.inf:
            return Progress(self.rounds, bound=bound, finished=Status.INFEASIBLE)
        return Progress(
            self.rounds,
            labels=self.labels,
            value=value if value > -np.inf else None,
            bound=bound,
            finished=Status.CONVERGED if ended else None,
            extra={"primal": math.sqrt(self.figure(kernels.NORM) / max(1, len(self.run.label_c)))},
        )

    @property
    def labels(self) -> Ints:
        """The best labelling met, or the majority's if none had a finite value."""
        found = self.run.best if self.figure(kernels.VALUE) > -np.inf else self.run.labels
        return np.array(found, dtype=np.int64)

    @property
    def closed(self) -> bool:
        """Whether the best labelling is proven to be optimal, within the tolerance of the run."""
        bound, value = self.figure(kernels.BOUND), self.figure(kernels.VALUE)
        return value > -np.inf and bound - value <= self.figure(kernels.TOLERANCE) * max(1.0, abs(value))

    def answer(self, problem: Problem, *, last: bool = False) -> Answer:
        """The best labelling and the relaxed solution: its vertex if it is optimal, or else the averages.

        With `last`, the choices of the last round stand in for the averages over many.
        """
        bound = self.figure(kernels.BOUND)
        subproblems = self.parts.n_forests or problem.n_factors
        details = {"subproblems": float(subproblems), "step_length": self.figure(kernels.LENGTH)}
        if self.rounds == 0 or bound == -np.inf:
            return Answer(labels=self.labels, bound=bound, details=details)
        if self.closed:
            mu_v, mu_f = integral(problem, self.labels)
        else:
            last = last or len(self.run.sum_f) < problem.n_configs
            mu_v, mu_f = self._last(problem) if last else self._averages(problem)
        return Answer(self.labels, mu_v, mu_f, bound, details)

    def _averages(self, problem: Problem) -> tuple[Floats, FactorMarginals]:
        """Averages of the choices over this window of rounds and the last."""
        run, total = self.run, self.figure(kernels.WEIGHT) + self.figure(kernels.OLD_WEIGHT)
        mu_v = (run.sum_v + run.old_v) / total

        def mu_f(batch: Batch, rows: slice) -> Floats:
            size = batch.n_configs
            part = slice(batch.configs.start + rows.start * size, batch.configs.start + rows.stop * size)
            block: Floats = (run.sum_f[part] + run.old_f[part]) / total
            return block.reshape(-1, size)

        return self._with_loners(problem, mu_v), mu_f

    def _last(self, problem: Problem) -> tuple[Floats, FactorMarginals]:
        """The choices of the last round: the copies' average of every variable, the entry that every factor took."""
        graph, copies = problem.graph, self.parts.copies
        n_copies = np.diff(copies.ptr)
        owner = np.repeat(np.arange(problem.n_vars), n_copies)
        places = graph.var_ptr[owner] + self.run.label_c
        mu_v = np.zeros(problem.n_states)
        np.add.at(mu_v, places, 1.0 / n_copies[owner])
        chosen = np.empty(problem.n_factors, dtype=np.int64)
        chosen[self.parts.visit] = self.run.config

        def mu_f(batch: Batch, rows: slice) -> Floats:
            block = np.zeros((rows.stop - rows.start, batch.n_configs))
            block[np.arange(len(block)), chosen[batch.factors][rows]] = 1.0
            return block

        return self._with_loners(problem, mu_v), mu_f

    def _with_loners(self, problem: Problem, mu_v: Floats) -> Floats:
        """Variables without factors take their best state."""
        alone = problem.degree == 0
        mu_v[(problem.graph.var_ptr[:-1] + self.run.labels)[alone]] = 1.0
        return mu_v


def _model(problem: Problem) -> Model:
    graph = problem.graph
    best = np.maximum.reduceat(graph.theta_v, graph.var_ptr[:-1]) if problem.n_vars else np.zeros(0)
    alone = graph.constant + float(best[problem.degree == 0].sum())
    return Model(graph.theta_v, graph.theta_t, graph.var_ptr.astype(np.int64), graph.constant, alone)


def _run(problem: Problem, parted: Decomposition, settings: Settings) -> Run:
    graph, copies = problem.graph, parted.copies
    n_copies = np.diff(copies.ptr)
    owner = np.repeat(np.arange(problem.n_vars), n_copies)
    places = ranges(graph.var_ptr[owner], copies.card)
    n_sums = problem.n_configs if problem.n_configs <= MOST_CONFIGS else 0
    widest = int(graph.card.max(initial=1))
    labels = segment_argmax(graph.theta_v, graph.var_ptr)
    return Run(
        theta_c=graph.theta_v[places] / np.repeat(n_copies[owner], copies.card),
        label_c=np.zeros(len(owner), dtype=np.int32),
        config=np.zeros(problem.n_factors, dtype=np.int32),
        labels=labels,
        candidate=labels.copy(),
        best=labels.copy(),
        sum_v=np.zeros(problem.n_states),
        sum_f=np.zeros(n_sums),
        old_v=np.zeros(problem.n_states),
        old_f=np.zeros(n_sums),
        votes=np.zeros(widest, dtype=np.int64),
        seen=np.zeros(widest, dtype=np.int64),
        ways=np.array(settings.ways, dtype=np.int64),
        figures=_figures(problem, settings),
    )


def _scratch(problem: Problem, parted: Decomposition) -> tuple[Any, ...]:
    arity = int(np.diff(problem.scope_ptr).max(initial=1))
    state = np.zeros(arity, dtype=np.int64)
    if parted.n_forests:
        n_states = int(parted.copies.card.sum())
        widest = int(problem.graph.card.max(initial=1))
        return np.zeros(n_states), np.zeros(widest), state, np.zeros(0, dtype=bool), parted.n_forests
    return np.ones(problem.n_factors, dtype=bool), np.zeros(problem.n_factors), state


def _figures(problem: Problem, settings: Settings) -> Floats:
    figures = np.zeros(kernels.N_FIGURES)
    figures[kernels.RULE], figures[kernels.STEP] = settings.rule, settings.step_size
    figures[kernels.DECAY], figures[kernels.EXPONENT] = settings.decay, settings.exponent
    figures[kernels.PATIENCE], figures[kernels.TOLERANCE] = settings.patience, settings.tolerance
    figures[kernels.UNIT] = unit_of(problem)
    figures[kernels.SLACK] = ROUND_OFF * figures[kernels.UNIT]
    figures[kernels.BOUND], figures[kernels.VALUE] = np.inf, -np.inf
    return figures


def unit_of(problem: Problem) -> float:
    """The size of a potential: the median of what states and configurations lose to the best of their block."""
    graph = problem.graph
    lost = np.concatenate([_losses(graph.theta_v, graph.var_ptr), _losses(graph.theta_t, graph.table_ptr)])
    used = np.bincount(graph.table_of, minlength=graph.n_tables)
    weight = np.concatenate([np.ones(len(graph.theta_v)), np.repeat(used, np.diff(graph.table_ptr))])
    counts = (lost > 0) & np.isfinite(lost)
    lost, weight = lost[counts], weight[counts]
    if len(lost) == 0:
        return 1.0
    order = np.argsort(lost)
    total = np.cumsum(weight[order])
    return float(lost[order[np.searchsorted(total, 0.5 * total[-1])]])


def _losses(theta: Floats, ptr: Ints) -> Floats:
    if len(theta) == 0:
        return np.zeros(0)
    best = np.maximum.reduceat(theta, ptr[:-1])
    return np.asarray(np.repeat(np.where(best > -np.inf, best, 0.0), np.diff(ptr)) - theta)
