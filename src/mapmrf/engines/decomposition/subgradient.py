"""Subgradient descent for dual decomposition: the state of a run, and its reports."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from mapmrf.arrays import Floats, Ints, offsets, ranges, segment_argmax, segment_max
from mapmrf.engines.decomposition.subgradient_kernels import (
    DESCENT_FIGURES,
    Averages,
    DescentState,
    FactorCache,
    StepOptions,
    Subproblems,
    descend_factors,
    descend_forests,
)
from mapmrf.engines.decomposition.tree_kernels import (
    Chosen,
    Copies,
    CopyGraph,
    Legs,
    TreeScratch,
    number_copies,
    orient,
)
from mapmrf.kernels.forests import grow_forest
from mapmrf.kernels.pair_transforms import StructuredPairs
from mapmrf.model.polytope import FactorMarginals, integral
from mapmrf.model.problem import Batch, Problem
from mapmrf.run.dual_state import MOST_NUMBERS, DualState
from mapmrf.run.method import Answer, Progress
from mapmrf.run.result import Status

STEP_WORK = 1_500_000  # maximum number of table entries, states and copies processed per step: some 20 ms
ROUND_OFF = 1e-12  # tolerance for ties between choices of a subproblem, in units of the typical size of a potential

MOST_CONFIGS = 30_000_000
"""Maximum number of configurations for which the factors' choices are averaged; beyond, the last choices are used."""

MOST_SHARED = 4_000_000
"""The same if factors share tables, unless the tables themselves have as many entries: images stay small."""

SAMPLE = 1_000_000  # table entries sampled to estimate the typical size of a potential if factors have weights


@dataclass(frozen=True)
class DescentOptions:
    """Options of a descent: step rule and length, stopping rule, and decoding rules, used in turn."""

    rule: int
    step_size: float
    patience: int
    tolerance: float
    ways: tuple[int, ...]
    decay: float = 0.0
    exponent: float = 1.0
    most_configs: int = MOST_CONFIGS

    def most_sums(self, problem: Problem) -> int:
        """Maximum number of configurations for which the factors' choices are averaged."""
        return min(self.most_configs, max(MOST_SHARED, len(problem.graph.theta_t)))

    def step_options(self, unit: float) -> StepOptions:
        """The step rule for the kernels, in units of the typical size of a potential."""
        return StepOptions(self.rule, self.decay, self.exponent, self.patience, self.tolerance, unit, ROUND_OFF * unit)


class SubgradientDescent:
    """A run of subgradient descent."""

    def __init__(
        self, problem: Problem, parts: Decomposition, options: DescentOptions, initial: Ints | None = None
    ) -> None:
        """Distribute the unary potentials evenly over the copies; an initial labelling is the first incumbent."""
        self.parts = parts  # the decomposition; `subproblems` are the same with their potentials
        averaging = problem.n_configs <= options.most_sums(problem)
        self.subproblems = parts.subproblems(problem, averaging)
        self.state = _first_state(problem, parts, options, averaging)  # the state of the kernels
        self.scratch = _scratch(problem, parts)  # scratch for forests, or the cache of single factors
        work = problem.n_configs + problem.n_states + 4 * len(parts.copies.at)
        self.chunk = max(1, STEP_WORK // max(1, work))  # maximum number of rounds per step
        if initial is not None:
            self.state.best[:] = initial
            self.figures.value = problem.graph.value(initial)

    @property
    def layout(self) -> str:
        """Layout of the copies' potentials, for `DualState`."""
        return f"copies in {'forests' if self.parts.n_forests else 'factors'}"

    def resume(self, problem: Problem, given: DualState) -> None:
        """Move potential between the copies as in an earlier run."""
        moved = given.values_for(problem, self.layout, len(self.state.theta_c))
        if moved is not None:
            places, n = _copied_states(problem, self.parts), problem.n_states
            mean = np.bincount(places, moved, n) / np.maximum(1, np.bincount(places, None, n))
            self.state.theta_c[:] += moved - mean[places]  # the sum stays exactly zero, in spite of round-off

    def moved(self, problem: Problem) -> DualState | None:
        """Return the potentials of the copies relative to even shares, for a warm start."""
        theta_c = self.state.theta_c
        if len(theta_c) > MOST_NUMBERS or self.rounds == 0:
            return None
        even = _even_shares(problem, self.parts)
        lost = np.where(np.isfinite(even), theta_c, 0.0) - np.where(np.isfinite(even), even, 0.0)
        return DualState.of(problem, self.layout, lost)

    @property
    def figures(self) -> Any:
        """The run's scalars, a record of type `DESCENT_FIGURES`."""
        return self.state.figures[0]

    @property
    def rounds(self) -> int:
        """Rounds so far."""
        return int(self.figures.rounds)

    @property
    def labels(self) -> Ints:
        """The best labelling so far, or the majority's if none had a finite value."""
        found = self.state.best if self.figures.value > -np.inf else self.state.labels
        return np.array(found, dtype=np.int64)

    def advance(self, max_rounds: int) -> bool:
        """Run some rounds; return whether the run has ended."""
        n_rounds = min(self.chunk, max_rounds - self.rounds)
        if isinstance(self.scratch, FactorCache):
            return descend_factors(self.subproblems, self.state, self.scratch, n_rounds)
        return descend_forests(self.subproblems, self.state, self.scratch, np.zeros(0, dtype=bool), n_rounds)

    def step(self, max_iterations: int) -> Progress:
        """Run some rounds and report."""
        ended = self.advance(max_iterations)
        bound, value = float(self.figures.bound), float(self.figures.value)
        if bound == -np.inf:
            return Progress(self.rounds, bound=bound, finished=Status.INFEASIBLE)
        return Progress(
            self.rounds,
            labels=self.labels,
            value=value if value > -np.inf else None,
            bound=bound,
            finished=Status.CONVERGED if ended else None,
            extra={"primal": math.sqrt(self.figures.norm / max(1, len(self.parts.copies.at)))},
        )

    def answer(self, problem: Problem, *, last: bool = False) -> Answer:
        """Return the best labelling and the relaxed solution: its vertex if it is optimal, otherwise the averages.

        With `last`, the choices of the last round replace the averages.
        """
        labels, bound = self.labels, float(self.figures.bound)
        subproblems = self.parts.n_forests or problem.n_factors
        details = {"subproblems": float(subproblems), "step_length": float(self.figures.length)}
        if self.rounds == 0 or bound == -np.inf:
            return Answer(labels=labels, bound=bound, details=details)
        if self.figures.closed:
            mu_v, mu_f = integral(problem, labels)
        else:
            last = last or len(self.state.averages.f) < problem.n_configs
            mu_v, mu_f = self._last(problem) if last else self._averages(problem)
        return Answer(labels, mu_v, mu_f, bound, details)

    def _averages(self, problem: Problem) -> tuple[Floats, FactorMarginals]:
        """Return the choices averaged over this window of rounds and the last."""
        sums, total = self.state.averages, float(self.figures.weight + self.figures.old_weight)
        mu_v = (sums.v + sums.old_v) / total

        def mu_f(batch: Batch, rows: slice) -> Floats:
            size = batch.n_configs
            part = slice(batch.configs.start + rows.start * size, batch.configs.start + rows.stop * size)
            block: Floats = (sums.f[part] + sums.old_f[part]) / total
            return block.reshape(-1, size)

        return self._with_loners(problem, mu_v), mu_f

    def _last(self, problem: Problem) -> tuple[Floats, FactorMarginals]:
        """Return the choices of the last round: the mean over every variable's copies, and every factor's entry."""
        choices = self.state.choices
        n_copies = np.diff(self.parts.copies.ptr)
        owner = np.repeat(np.arange(problem.n_vars), n_copies)
        mu_v = np.zeros(problem.n_states)
        np.add.at(mu_v, problem.graph.var_ptr[owner] + choices.label_c, 1.0 / n_copies[owner])
        chosen = np.empty(problem.n_factors, dtype=np.int64)
        chosen[self.parts.visit] = choices.config

        def mu_f(batch: Batch, rows: slice) -> Floats:
            block = np.zeros((rows.stop - rows.start, batch.n_configs))
            block[np.arange(len(block)), chosen[batch.factors][rows]] = 1.0
            return block

        return self._with_loners(problem, mu_v), mu_f

    def _with_loners(self, problem: Problem, mu_v: Floats) -> Floats:
        """Set variables without factors to their best state."""
        alone = problem.degree == 0
        mu_v[(problem.graph.var_ptr[:-1] + self.state.labels)[alone]] = 1.0
        return mu_v


def _first_state(problem: Problem, parts: Decomposition, options: DescentOptions, averaging: bool) -> DescentState:
    """Return the state before the first round."""
    graph, n_copies = problem.graph, int(parts.copies.ptr[-1])
    n_sums = problem.n_configs if averaging else 0
    votes, seen = np.zeros((2, int(graph.card.max(initial=1))), dtype=np.int64)
    labels = segment_argmax(graph.theta_v, graph.var_ptr)
    figures = np.zeros(1, dtype=DESCENT_FIGURES).view(np.recarray)
    figures.step, figures.bound, figures.value = options.step_size, np.inf, -np.inf
    return DescentState(
        theta_c=_even_shares(problem, parts),
        choices=Chosen(np.zeros(n_copies, dtype=np.int32), np.zeros(problem.n_factors, dtype=np.int32)),
        averages=Averages(np.zeros(problem.n_states), np.zeros(n_sums), np.zeros(problem.n_states), np.zeros(n_sums)),
        labels=labels,
        candidate=labels.copy(),
        best=labels.copy(),
        votes=votes,
        seen=seen,
        ways=np.array(options.ways, dtype=np.int64),
        options=options.step_options(unit_of(problem)),
        figures=figures,
    )


def _copied_states(problem: Problem, parts: Decomposition) -> Ints:
    """Return the indices in ``theta_v`` of the states of all copies."""
    owner = np.repeat(np.arange(problem.n_vars), np.diff(parts.copies.ptr))
    return ranges(problem.graph.var_ptr[owner], parts.copies.card)


def _even_shares(problem: Problem, parts: Decomposition) -> Floats:
    """Distribute the unary potentials evenly over the copies."""
    n_copies = np.diff(parts.copies.ptr)
    each = np.repeat(np.repeat(n_copies, n_copies), parts.copies.card)
    return np.asarray(problem.graph.theta_v[_copied_states(problem, parts)] / each)


def _scratch(problem: Problem, parts: Decomposition) -> TreeScratch | FactorCache:
    """Allocate the kernel's scratch."""
    state = np.zeros(int(np.diff(problem.scope_ptr).max(initial=1)), dtype=np.int64)
    widest = int(problem.graph.card.max(initial=1))
    pairs = StructuredPairs.allocate(problem.quick_forms, widest)
    if parts.n_forests:
        return TreeScratch(np.zeros(int(parts.copies.card.sum())), np.zeros(widest), state, pairs)
    stale, top_f = np.ones(problem.n_factors, dtype=bool), np.zeros(problem.n_factors)
    return FactorCache(stale, top_f, state, np.zeros(widest), pairs)


def unit_of(problem: Problem) -> float:
    """Return the typical size of a potential: the median loss of states and configurations against their best.

    If there are many factors with weights, a sample of them is used.
    """
    graph = problem.graph
    theta_t, table_ptr, table_of = graph.theta_t, graph.table_ptr, graph.table_of
    step = 1
    if graph.weight is not None:
        step = 1 + problem.n_configs // SAMPLE
        sizes = np.diff(table_ptr)[table_of[::step]]
        theta_t = theta_t[ranges(table_ptr[table_of[::step]], sizes)] * np.repeat(graph.weight[::step], sizes)
        table_ptr, table_of = offsets(sizes), np.arange(len(sizes))
    lost = np.concatenate([_losses(graph.theta_v, graph.var_ptr), _losses(theta_t, table_ptr)])
    used = step * np.bincount(table_of, minlength=len(table_ptr) - 1)
    weight = np.concatenate([np.ones(len(graph.theta_v)), np.repeat(used, np.diff(table_ptr))])
    counts = (lost > 0) & np.isfinite(lost)
    lost, weight = lost[counts], weight[counts]
    if len(lost) == 0:
        return 1.0
    order = np.argsort(lost)
    total = np.cumsum(weight[order])
    return float(lost[order[np.searchsorted(total, 0.5 * total[-1])]])


def _losses(theta: Floats, ptr: Ints) -> Floats:
    best = segment_max(theta, ptr)
    return np.asarray(np.repeat(np.where(best > -np.inf, best, 0.0), np.diff(ptr)) - theta)


# -- Decomposition of a model into forests or single factors, with copies of the variables that they share ------------


@dataclass(frozen=True)
class Decomposition:
    """Acyclic subgraphs of a factor graph, or its single factors, and their copies of variables."""

    # copies, legs: the layout used by the kernels
    copies: Copies
    legs: Legs
    visit: Ints  # (n_factors,): the factors in the order of `legs`
    roots: Ints  # copies at the roots of all trees; none for single factors
    n_forests: int  # number of forests; 0 for single factors

    @classmethod
    def into_factors(cls, problem: Problem) -> Decomposition:
        """Create a subproblem per factor, with a copy of a variable on each edge."""
        copy_of = _zeros(problem.n_edges)
        copy_of[problem.nbr] = np.arange(problem.n_edges)
        copies = _copies(problem, problem.nbr_ptr, problem.edge_factor[problem.nbr].astype(np.int64))
        visit = np.arange(problem.n_factors)
        legs = _legs(problem, visit, np.arange(problem.n_edges), copies, copy_of)
        return cls(copies, legs, visit, _zeros(0), 0)

    @classmethod
    def into_trees(cls, problem: Problem) -> Decomposition:
        """Create successive maximal forests until every factor is in one."""
        factor_of = problem.edge_factor
        forest_of, n_forests = _pick_forests(problem)
        copy_ptr, copy_of = _zeros(problem.n_vars + 1), _zeros(problem.n_edges)
        last_copy = _zeros(n_forests) - 1
        number_copies(problem.nbr_ptr, problem.nbr, factor_of, forest_of, last_copy, copy_ptr, copy_of)
        n_copies = int(copy_ptr[-1])
        forest = _zeros(n_copies)
        forest[copy_of] = forest_of[factor_of]
        edge_ptr = offsets(np.bincount(copy_of, minlength=n_copies)).astype(np.int64)
        graph = CopyGraph(factor_of, copy_of, edge_ptr, np.argsort(copy_of, kind="stable"))
        visit, leg_edge, roots = _zeros(problem.n_factors), _zeros(problem.n_edges), _zeros(n_copies)
        n_roots = orient(problem.scope_ptr, graph, visit, leg_edge, roots)
        copies = _copies(problem, copy_ptr, forest)
        return cls(copies, _legs(problem, visit, leg_edge, copies, copy_of), visit, roots[:n_roots], n_forests)

    def subproblems(self, problem: Problem, averaging: bool = True) -> Subproblems:
        """Return the subproblems with their potentials, for the kernels.

        `averaging` enables averages of the factors' choices.
        """
        graph = problem.graph
        config_at = problem.config_ptr[:-1][self.visit].astype(np.int64) if averaging else _zeros(0)
        best = segment_max(graph.theta_v, graph.var_ptr)
        return Subproblems(
            theta_v=graph.theta_v,
            theta_t=graph.theta_t,
            var_ptr=graph.var_ptr.astype(np.int64),
            constant=graph.constant,
            alone=graph.constant + float(best[problem.degree == 0].sum()),
            copies=self.copies,
            legs=self.legs,
            roots=self.roots,
            n_forests=max(1, self.n_forests),
            config_at=config_at,
        )


def _zeros(n: int) -> Ints:
    return np.zeros(n, dtype=np.int64)


def _pick_forests(problem: Problem) -> tuple[Ints, int]:
    """Assign factors to successive maximal forests; return the forest of every factor and the number of forests."""
    forest_of, left, n_forests = _zeros(problem.n_factors), np.arange(problem.n_factors), 0
    root, taken = _zeros(problem.n_vars), np.zeros(problem.n_factors, dtype=bool)
    while len(left):
        grow_forest(left, problem.scope_ptr, problem.scope, root, taken)
        forest_of[left[taken[left]]] = n_forests
        left = left[~taken[left]]
        n_forests += 1
    return forest_of, n_forests


def _copies(problem: Problem, ptr: Ints, forest: Ints) -> Copies:
    """Build the copies of every variable from their offsets and forests."""
    card = np.repeat(problem.graph.card, np.diff(ptr)).astype(np.int32)
    return Copies(ptr.astype(np.int64), offsets(card)[:-1].astype(np.int64), forest.astype(np.int32), card)


def _legs(problem: Problem, visit: Ints, leg_edge: Ints, copies: Copies, copy_of: Ints) -> Legs:
    """Build the legs of the factors in visiting order."""
    copy, forms = copy_of[leg_edge], problem.quick_forms.of
    return Legs(
        ptr=offsets(np.diff(problem.scope_ptr)[visit]).astype(np.int64),
        table_at=problem.table_at[visit].astype(np.int64),
        weight=problem.weight[visit] if len(problem.weight) else np.zeros(0),
        form=forms[visit] if len(forms) else np.zeros(0, dtype=np.int32),
        at=copies.at[copy],
        copy=copy.astype(np.int32),
        var=problem.scope[leg_edge].astype(np.int32),
        card=copies.card[copy],
        stride=problem.edge_stride[leg_edge].astype(np.int32),
    )
