"""l2-Box: a pairwise model as a binary quadratic program, by lp-Box ADMM with p = 2 (Wu, Ghanem, PAMI 2019)."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from mapmrf.arrays import Bools, Floats, Ints, segment_argmax
from mapmrf.engines.admm import box_kernels as B
from mapmrf.engines.admm.layout import interaction_scale
from mapmrf.method import Answer, Method, Progress, Start
from mapmrf.options import check_above, check_at_least, check_choice
from mapmrf.polytope import integral
from mapmrf.problem import Batch, Problem
from mapmrf.result import Status

STEP_WORK = 12_000_000
"""Table entries that one step may touch: some tens of milliseconds."""
PRODUCTS = 8
"""Products with the quadratic form that an iteration takes, roughly."""
POWER_STEPS, POWER_WORK = 100, 200_000_000
"""Steps of the power method for the form's largest eigenvalue, fewer where they would touch more entries than this."""
CHUNK = 1 << 18
"""Table entries that are laid out together: bounds the memory on the way."""


@dataclass(frozen=True)
class L2Box(Method):
    """Maximise a quadratic form over one-hot vectors, written as the box [0, 1] intersected with a sphere.

    An iteration projects onto the box and onto the sphere, solves a linear system for x and moves the multipliers of
    both copies and of the one-hot constraints; all penalties grow. Labels are the largest entries of every variable's
    block, and the best labelling counts. It gives no bound and takes models of unary and pairwise factors only.

    Attributes
    ----------
    max_iterations
        Iterations of ADMM.
    rho, rho_unit
        First penalty of the box and its unit: ``"relative"`` to the model's mean interaction, or ``"absolute"``.
    sphere_weight, mass_weight
        Penalties of the sphere and of the one-hot constraints relative to that of the box.
    growth, update_every, rho_upper
        Factor on all penalties every `update_every` iterations, and the limit that none grows beyond, in the unit.
    warm_rho
        Factor on the first penalties when the run starts from a given labelling, so that it is not forgotten.
    curvature
        The diagonal of the system is topped up to this multiple of what the quadratic form's own curvature needs. Half
        of what is added is given to the linear term, since x^2 = x at 0 and 1. Below 1 the system may be indefinite:
        it is raised where conjugate gradients find that.
    cg_tol, cg_limit
        Conjugate gradients stop at this relative residual, or after this many steps.
    noise
        Size of the seeded noise around uniform marginals where x begins.
    forbidden
        Forbidden (-inf) entries stand this many times the model's spread below the lowest finite entry beside them.
    tol, history, value_tol
        The run has converged when both copies are within `tol` of x, relative to its norm; or when the standard
        deviation of the last `history` labellings' values is at most `value_tol`, in units of the interaction, and
        the penalties outweigh the form's curvature. The second rule is off with a history of 0.

    Examples
    --------
    >>> import mapmrf
    >>> from mapmrf.datasets import grid
    >>> graph = grid(6, 6, coupling=2.0, seed=1)
    >>> mapmrf.solve(graph, "l2box").value > mapmrf.solve(graph, "icm").value
    True
    """

    name: ClassVar[str] = "l2box"
    title: ClassVar[str] = "binary quadratic program by ADMM over box and sphere (l2-Box)"

    max_iterations: int = 500
    rho: float = 0.3
    rho_unit: str = "relative"
    sphere_weight: float = 1.0
    mass_weight: float = 1.0
    growth: float = 1.03
    update_every: int = 3
    rho_upper: float = 1000.0
    warm_rho: float = 20.0
    curvature: float = 1.2
    cg_tol: float = 1e-3
    cg_limit: int = 100
    noise: float = 1e-3
    forbidden: float = 2.0
    tol: float = 1e-4
    history: int = 20
    value_tol: float = 1e-6

    def __post_init__(self) -> None:
        check_choice(self, "rho_unit", ("relative", "absolute"))
        check_above(self, 0, "rho", "sphere_weight", "mass_weight", "rho_upper", "warm_rho", "cg_tol", "forbidden")
        check_at_least(self, 0, "curvature", "noise", "tol", "history", "value_tol")
        check_at_least(self, 1, "max_iterations", "growth", "update_every", "cg_limit")

    def supports(self, problem: Problem) -> str | None:
        """Pairwise models."""
        widest = max((batch.arity for batch in problem.batches), default=0)
        if widest > 2:
            return f"it takes factors of at most two variables, this model has one of {widest}"
        return None

    def start(self, problem: Problem, seed: int, initial: Start) -> _State:
        """Write the quadratic program down and put x where the user wants it, or near uniform marginals."""
        program = _Program.build(problem, self.forbidden)
        random = np.random.default_rng(seed)
        graph, n = problem.graph, problem.n_states
        x = np.repeat(1.0 / graph.card, graph.card) + random.uniform(-self.noise, self.noise, n)
        if initial.mu_v is not None:
            x = initial.mu_v.copy()
        elif initial.labels is not None:
            x = integral(problem, initial.labels)[0]
        state = _State(
            program=program,
            x=x,
            par=self._parameters(program.unit, warm=initial.labels is not None),
            work=np.zeros((B.WORK_ROWS, n)),
            work_v=np.zeros((B.WORK_V_ROWS, problem.n_vars)),
            labels=np.zeros(problem.n_vars, dtype=np.int64),
            best=np.zeros(problem.n_vars, dtype=np.int64),
            history=np.zeros(self.history),
        )
        state.work_v[B.BEND] = program.bend(random.normal(size=n))
        return state

    def _parameters(self, unit: float, warm: bool) -> Floats:
        """The scalars of the kernels, in units of the interaction."""
        scale = (1.0 if self.rho_unit == "relative" else 1.0 / unit) * (self.warm_rho if warm else 1.0)
        par = np.zeros(B.PAR_SIZE)
        par[B.RHO_BOX] = self.rho * scale
        par[B.RHO_SPHERE] = self.rho * self.sphere_weight * scale
        par[B.RHO_MASS] = self.rho * self.mass_weight * scale
        par[B.GROWTH], par[B.UPDATE_EVERY] = self.growth, self.update_every
        par[B.RHO_UPPER] = self.rho_upper if self.rho_unit == "relative" else self.rho_upper / unit
        par[B.CURVATURE], par[B.CG_TOL], par[B.CG_LIMIT] = self.curvature, self.cg_tol, self.cg_limit
        par[B.TOL], par[B.VALUE_TOL], par[B.BEST] = self.tol, self.value_tol, -math.inf
        return par

    def step(self, problem: Problem, state: _State) -> Progress:
        """Some iterations in one call."""
        if problem.n_factors == 0:  # separate variables
            labels = segment_argmax(problem.graph.theta_v, problem.graph.var_ptr)
            return Progress(0, labels=labels, finished=Status.CONVERGED)
        program, par = state.program, state.par
        cost = PRODUCTS * problem.n_configs + 10 * problem.n_states
        n = min(max(1, STEP_WORK // cost), self.max_iterations - state.iterations)
        before = par[B.BEST]
        state.iterations += B.iterate(
            n, state.iterations, par, program.var_ptr, program.pairs, program.tables, program.theta, program.allowed,
            state.x, state.work, state.work_v, state.labels, state.best, state.history,
        )  # fmt: skip
        found = par[B.BEST] > before
        return Progress(
            iterations=state.iterations,
            labels=state.best.copy() if found else None,
            value=program.constant + program.unit * float(par[B.BEST]) if found and not program.hard else None,
            finished=Status.CONVERGED if par[B.AT_REST] else None,
            extra={
                "primal": float(par[B.BOX_OFF]),
                "sphere": float(par[B.SPHERE_OFF]),
                "rho": float(par[B.RHO_BOX]) * program.unit,
            },
        )

    def answer(self, problem: Problem, state: _State) -> Answer:
        """Where x stands; it says nothing about the factors' marginals."""
        par = state.par
        details = {
            "rho": float(par[B.RHO_BOX]) * state.program.unit,
            "rho_unit": state.program.unit,
            "box": float(par[B.BOX_OFF]),
            "sphere": float(par[B.SPHERE_OFF]),
            "mass": float(par[B.MASS_OFF]),
            "curvature": float(par[B.CURVATURE]),
            "cg_steps": float(par[B.CG_STEPS]),
        }
        return Answer(mu_v=state.x.copy(), details=details)


@dataclass(eq=False)
class _State:
    """A run: x, its copies and multipliers (`work`), and the labellings."""

    program: _Program
    x: Floats
    par: Floats
    work: Floats
    work_v: Floats
    labels: Ints
    best: Ints
    history: Floats
    iterations: int = 0


@dataclass(frozen=True, eq=False)
class _Program:
    """The quadratic program in units of the interaction, as `mapmrf.engines.admm.box_kernels` wants it.

    Tables are centred: their row and column means are in `theta`, which changes nothing for one-hot vectors and leaves
    the quadratic form no more curvature than the interactions have. Equal tables are stored once.
    """

    unit: float
    constant: float
    hard: bool
    var_ptr: Ints
    theta: Floats
    allowed: Bools
    pairs: tuple[Any, ...]
    tables: tuple[Any, ...]
    reach: Floats

    @classmethod
    def build(cls, problem: Problem, forbidden: float) -> _Program:
        """Write the program down."""
        soft = _softened(problem, forbidden)
        unit = interaction_scale(soft)
        parts = _Parts(soft, unit)
        for batch in soft.batches:
            parts.add(batch)
        graph = problem.graph
        allowed = problem.feasible_v & np.repeat(problem.degree > 0, graph.card)
        alone = np.flatnonzero(problem.degree == 0)
        best = segment_argmax(graph.theta_v, graph.var_ptr)[alone]
        allowed[graph.var_ptr[alone] + best] = True
        return cls(
            unit=unit,
            constant=graph.constant,
            hard=soft is not problem,
            var_ptr=graph.var_ptr.astype(np.int64),
            theta=parts.theta,
            allowed=allowed,
            pairs=parts.pairs(),
            tables=parts.tables(),
            reach=parts.reach,
        )

    def bend(self, v: Floats) -> Floats:
        """Diagonal that outweighs the quadratic form, nearly: square roots of the variables' reach, scaled to fit."""
        shape = np.sqrt(self.reach)
        entries = 4 * self.pairs[2].size + int((self.tables[2][0] * self.tables[2][1]).sum())
        steps = int(np.clip(POWER_WORK // max(1, entries), POWER_STEPS // 5, POWER_STEPS))
        size = B.largest_curvature(steps, self.var_ptr, shape, self.pairs, self.tables, v, np.empty_like(v))
        return np.asarray(shape * size)


def _softened(problem: Problem, forbidden: float) -> Problem:
    """The problem with every -inf replaced by a finite fine; itself where there is none."""
    graph = problem.graph
    if np.isfinite(graph.theta_v).all() and np.isfinite(graph.theta_t).all():
        return problem
    unary, tables = _finite_ends(graph.theta_v, graph.var_ptr), _finite_ends(graph.theta_t, graph.table_ptr)
    spreads = np.concatenate([unary[1] - unary[0], tables[1] - tables[0]])
    fine = forbidden * (float(spreads.max(initial=0.0)) or 1.0)
    theta_v = np.where(problem.feasible_v, graph.theta_v, np.repeat(unary[0], graph.card) - fine)
    low = np.repeat(tables[0], np.diff(graph.table_ptr))
    theta_t = np.where(np.isfinite(graph.theta_t), graph.theta_t, low - fine)
    return replace(problem, graph=replace(graph, theta_v=theta_v, theta_t=theta_t))


def _finite_ends(values: Floats, ptr: Ints) -> tuple[Floats, Floats]:
    """Lowest and highest finite entry of every block, 0 where it has none."""
    if len(ptr) == 1:
        return np.zeros(0), np.zeros(0)
    finite = np.isfinite(values)
    low = np.minimum.reduceat(np.where(finite, values, np.inf), ptr[:-1])
    high = np.maximum.reduceat(np.where(finite, values, -np.inf), ptr[:-1])
    some = np.isfinite(low)
    return np.where(some, low, 0.0), np.where(some, high, 0.0)


class _Parts:
    """The arrays of a program while they are put together, batch by batch."""

    def __init__(self, problem: Problem, unit: float) -> None:
        self.problem, self.unit = problem, unit
        self.theta = problem.graph.theta_v / unit
        self.reach = np.zeros(problem.n_vars)
        self.pair_scope: list[Ints] = []
        self.strength: list[Floats] = []
        self.scope: list[Ints] = []
        self.table_at: list[Ints] = []
        self.entries: list[Floats] = []
        self.n_entries = 0

    def add(self, batch: Batch) -> None:
        """Centre a batch's tables, each distinct one once, and give their linear parts to theta."""
        starts, which = np.unique(batch.table_at, return_inverse=True)
        n_distinct, n_configs = len(starts), batch.n_configs
        centred = np.empty((n_distinct, *batch.shape))
        rows, cols = np.empty((n_distinct, batch.shape[0])), np.empty((n_distinct, batch.shape[1]))
        size = np.empty(n_distinct)
        chunk = max(1, CHUNK // n_configs)
        for begin in range(0, n_distinct, chunk):
            part = slice(begin, min(begin + chunk, n_distinct))
            places = starts[part, None] + np.arange(n_configs)
            tables = self.problem.graph.theta_t[places].reshape(-1, *batch.shape) / self.unit
            rows[part], cols[part] = tables.mean(axis=2), tables.mean(axis=1)
            cols[part] -= rows[part].mean(axis=1, keepdims=True)
            centred[part] = tables - rows[part][:, :, None] - cols[part][:, None, :]
            size[part] = np.sqrt((centred[part] ** 2).sum(axis=(1, 2)))
        for k, linear in enumerate((rows, cols)):
            self.reach += np.bincount(batch.scope[:, k], size[which], self.problem.n_vars)
            for s in range(batch.shape[k]):
                self.theta += np.bincount(batch.var_at[:, k] + s, linear[which, s], len(self.theta))
        if batch.shape == (2, 2):
            self.pair_scope.append(batch.scope)
            self.strength.append(centred[which, 0, 0])
            return
        self.scope.append(batch.scope)
        self.table_at.append(self.n_entries + which * n_configs)
        self.entries.append(centred.ravel())
        self.n_entries += centred.size

    def _sides(self, scopes: list[Ints]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Variables of all factors, (2, n), and where their blocks start."""
        var = np.concatenate([np.zeros((0, 2), dtype=np.int64), *scopes]).T.astype(np.int64, order="C")
        return var, self.problem.graph.var_ptr.astype(np.int64)[var]

    def pairs(self) -> tuple[Any, ...]:
        """Factors of two binary variables."""
        return *self._sides(self.pair_scope), np.concatenate([np.zeros(0), *self.strength])

    def tables(self) -> tuple[Any, ...]:
        """All other factors."""
        var, at = self._sides(self.scope)
        table_at = np.concatenate([np.zeros(0, dtype=np.int64), *self.table_at]).astype(np.int64)
        size = np.asarray(self.problem.graph.card, dtype=np.int64)[var]
        return var, at, size, table_at, np.concatenate([np.zeros(0), *self.entries])
