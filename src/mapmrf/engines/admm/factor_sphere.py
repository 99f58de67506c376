"""A sphere on the factors instead of the variables, as in the published code of the paper's authors."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from mapmrf.arrays import Floats
from mapmrf.model.polytope import dense

if TYPE_CHECKING:
    from mapmrf.engines.admm.engine import Engine


class FactorSphere:
    """A copy upsilon of mu_F on the sphere ||x - 1/2||^2 = n/4 and its multiplier: `sphere="factors"`.

    The factor step sees it as a ridge of weight `sphere_weight` and a pull on every configuration. In a part of a
    larger model, norms are those of the factors that it counts, and the sphere is that of all parts: see `project`.
    """

    def __init__(self, engine: Engine) -> None:
        n = engine.problem.n_configs
        size = np.diff(engine.problem.config_ptr)
        self.counted = _counted_configs(engine)
        self.radius2 = sum(part.stop - part.start for part in self.counted) / 4
        self.lam = np.zeros(n)
        self.upsilon = np.full(n, 0.5)
        self.off2 = 0.0
        engine.factors.n_slots[:] = 0
        self.mu_f: Floats = np.repeat(1.0 / size, size)

    def _point(self, engine: Engine) -> Floats:
        """Return the point to be projected, relative to the centre of the sphere."""
        rho = float(engine.penalty[0].rho * engine.penalty[0].sphere_weight)
        return self.mu_f + self.lam / rho - 0.5

    def at_centre(self, engine: Engine) -> bool:
        """Return whether the point to project is the centre, where the projection is undefined."""
        return not self._point(engine).any()

    def update_upsilon(self, engine: Engine) -> None:
        """Project: upsilon = P_S(mu_F + lam / rho), and compute its pull."""
        norm = float(np.linalg.norm(self._point(engine)))
        self.project(engine, math.sqrt(self.radius2) / norm if norm > 0 else 1.0)

    def norm2(self, engine: Engine) -> float:
        """Return the squared distance from the centre of the point to be projected, over the counted factors."""
        return self._square(self._point(engine))

    def _square(self, values: Floats) -> float:
        return sum(float(values[part] @ values[part]) for part in self.counted)

    def project(self, engine: Engine, scale: float) -> None:
        """Project by a given scale."""
        self.upsilon = 0.5 + self._point(engine) * scale
        engine.factors.pull[:] = engine.penalty[0].rho * engine.penalty[0].sphere_weight * self.upsilon - self.lam

    def update_lam(self, engine: Engine) -> None:
        """Update the multiplier: lam += rho (mu_F - upsilon)."""
        self.mu_f = dense(engine.problem, engine.factor_marginals)
        rest = self.mu_f - self.upsilon
        self.off2 = self._square(rest)
        if engine.penalty[0].k < engine.penalty[0].freeze_after:
            self.lam += engine.last_rho * engine.penalty[0].sphere_weight * rest


def _counted_configs(engine: Engine) -> list[slice]:
    """Return the slices of mu_F for the factors that an engine counts: all, except in a part of a larger model."""
    problem, counts = engine.problem, engine.layout.share.owned
    if sum(counts) == problem.n_factors:
        return [slice(0, problem.n_configs)]
    pairs = zip(problem.batches, counts, strict=True)
    return [slice(batch.configs.start, batch.configs.start + n * batch.n_configs) for batch, n in pairs]
