"""l2-Box: a pairwise model as a binary quadratic program, by lp-Box ADMM with p = 2 (Wu, Ghanem, PAMI 2019)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import numpy as np

from mapmrf.arrays import segment_argmax
from mapmrf.engines.admm.box import BOX, BoxArrays, BoxProgram, BoxRecord, iterate_box
from mapmrf.model.polytope import integral
from mapmrf.model.problem import Problem
from mapmrf.run import pace
from mapmrf.run.method import (
    Answer,
    Method,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    Progress,
    Range,
    Start,
)
from mapmrf.run.result import Status


@dataclass(frozen=True)
class L2Box(Method):
    """Maximise a quadratic form over one-hot vectors, written as the box [0, 1] intersected with a sphere.

    Each iteration projects onto the box and onto the sphere, solves a linear system for x, and updates the multipliers
    of both copies and of the one-hot constraints; all penalties grow. Labels are the largest entry of every variable's
    block, and the best labelling is kept. It gives no bound and supports unary and pairwise factors only.

    Attributes
    ----------
    max_iterations
        Maximum number of ADMM iterations.
    rho, rho_unit
        Initial penalty of the box and its unit: ``"relative"`` to the model's mean interaction, or ``"absolute"``.
    sphere_weight, mass_weight
        Penalties of the sphere and of the one-hot constraints, relative to that of the box.
    growth, update_every, rho_upper
        Growth factor of all penalties every `update_every` iterations, and their upper limit, in the same unit.
    warm_rho
        Factor on the initial penalties when warm-started from a labelling, so that it is not lost.
    curvature
        The diagonal of the system is raised to this multiple of what the curvature of the quadratic form requires. Half
        of the addition is compensated in the linear term, since x^2 = x at 0 and 1. Below 1, the system may be
        indefinite; the diagonal is raised further if conjugate gradients detect this.
    cg_tol, cg_limit
        Relative residual at which conjugate gradients stop, and their maximum number of steps.
    noise
        Amplitude of the seeded noise added to the uniform marginals at the start.
    forbidden
        Forbidden (-inf) entries are set this many times the model's spread below the lowest finite one of their table.
    tol, history, value_tol
        The run has converged when both copies are within `tol` of x, relative to its norm; or when the standard
        deviation of the values of the last `history` labellings is at most `value_tol`, in units of the interaction,
        and the penalties outweigh the curvature of the form. A history of 0 disables the second rule.

    Examples
    --------
    >>> import mapmrf
    >>> graph = mapmrf.datasets.grid(6, 6, coupling=2.0, seed=1)
    >>> mapmrf.solve(graph, "l2box").value > mapmrf.solve(graph, "icm").value
    True
    """

    name: ClassVar[str] = "l2box"
    title: ClassVar[str] = "binary quadratic program by ADMM over box and sphere (l2-Box)"
    family: ClassVar[str] = "ADMM"

    max_iterations: PositiveInt = 500
    rho: PositiveFloat = 0.3
    rho_unit: Literal["relative", "absolute"] = "relative"
    sphere_weight: PositiveFloat = 1.0
    mass_weight: PositiveFloat = 1.0
    growth: Annotated[float, Range(1)] = 1.03
    update_every: PositiveInt = 3
    rho_upper: PositiveFloat = 1000.0
    warm_rho: PositiveFloat = 20.0
    curvature: NonNegativeFloat = 1.2
    cg_tol: PositiveFloat = 1e-3
    cg_limit: PositiveInt = 100
    noise: NonNegativeFloat = 1e-3
    forbidden: PositiveFloat = 2.0
    tol: NonNegativeFloat = 1e-4
    history: NonNegativeInt = 20
    value_tol: NonNegativeFloat = 1e-6

    def supports(self, problem: Problem) -> str | None:
        widest = max((batch.arity for batch in problem.batches), default=0)
        if widest > 2:
            return f"it takes factors of at most two variables, this model has one of {widest}"
        return None

    def start(self, problem: Problem, seed: int, initial: Start) -> L2BoxRun:
        """Build the quadratic program; x starts from the warm start, or near uniform marginals."""
        program = BoxProgram.build(problem, self.forbidden)
        random = np.random.default_rng(seed)
        graph, n, n_vars = problem.graph, problem.n_states, problem.n_vars
        x = np.repeat(1.0 / graph.card, graph.card) + random.uniform(-self.noise, self.noise, n)
        if initial.mu_v is not None:
            x = initial.mu_v.copy()
        elif initial.labels is not None:
            x = integral(problem, initial.labels)[0]
        bend = program.bend(random.normal(size=n))
        # the scalars of the kernels, in units of the interaction
        per_unit = 1.0 if self.rho_unit == "relative" else 1.0 / program.unit
        scale = per_unit * (1.0 if initial.labels is None else self.warm_rho)
        box: BoxRecord = np.zeros(1, dtype=BOX)
        p = box[0]
        p.rho_box, p.rho_sphere = self.rho * scale, self.rho * self.sphere_weight * scale
        p.rho_mass = self.rho * self.mass_weight * scale
        p.rho_upper = self.rho_upper if self.rho_unit == "relative" else self.rho_upper / program.unit
        for name in ("growth", "update_every", "curvature", "cg_tol", "cg_limit", "tol", "value_tol"):
            box[name] = getattr(self, name)
        p.best = -math.inf
        labels, values = np.zeros((2, n_vars), dtype=np.int64), np.zeros(self.history)
        arrays = [x, *np.zeros((8, n)), *np.zeros((2, n_vars)), bend, *labels, values]
        return L2BoxRun(program, box, BoxArrays(*arrays))

    def step(self, problem: Problem, state: L2BoxRun) -> Progress:
        if problem.n_factors == 0:  # independent variables
            labels = segment_argmax(problem.graph.theta_v, problem.graph.var_ptr)
            return Progress(0, labels=labels, finished=Status.CONVERGED)
        program, now = state.program, state.box[0]
        cost = 8 * problem.n_configs + 10 * problem.n_states  # some eight products with the quadratic form
        n = min(max(1, pace.BOX_ADMM // cost), self.max_iterations - state.iterations)
        before = float(now.best)
        state.iterations += iterate_box(n, state.box, program.form, state.arrays)
        found, rho = now.best > before, float(now.rho_box) * program.unit
        return Progress(
            iterations=state.iterations,
            labels=state.arrays.best.copy() if found else None,
            value=program.constant + program.unit * float(now.best) if found and not program.hard else None,
            finished=Status.CONVERGED if now.at_rest else None,
            extra={"primal": float(now.box_off), "sphere": float(now.sphere_off), "rho": rho},
        )

    def answer(self, problem: Problem, state: L2BoxRun) -> Answer:
        """The current x; there are no factor marginals."""
        now = state.box[0]
        details = {
            "rho": float(now.rho_box) * state.program.unit,
            "rho_unit": state.program.unit,
            "box": float(now.box_off),
            "sphere": float(now.sphere_off),
            "mass": float(now.mass_off),
            "curvature": float(now.curvature),
            "cg_steps": float(now.cg_steps),
        }
        return Answer(mu_v=state.arrays.x.copy(), details=details)


@dataclass(eq=False)
class L2BoxRun:
    program: BoxProgram
    box: BoxRecord
    arrays: BoxArrays
    iterations: int = 0
