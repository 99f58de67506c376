"""A sphere on the factors instead of the variables, as in the published code of the paper's authors."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from mapmrf.arrays import Floats
from mapmrf.engines.admm import penalty as K
from mapmrf.polytope import dense

if TYPE_CHECKING:
    from mapmrf.engines.admm.engine import Engine


class FactorSphere:
    """A copy of mu_F on the sphere ||x - 1/2||^2 = n/4 and its multiplier: `sphere="factors"`.

    The factor step sees it as a ridge of weight `sphere_weight` and a pull on every configuration.
    """

    def __init__(self, engine: Engine, freeze_after: int) -> None:
        n = engine.problem.n_configs
        self.radius = math.sqrt(n) / 2
        self.lam = np.zeros(n)
        self.upsilon = np.full(n, 0.5)
        self.freeze_after = freeze_after or 2**62
        self.off2 = 0.0
        engine.count[:] = 0
        self._project(engine, np.repeat(1.0 / np.diff(engine.problem.config_ptr), np.diff(engine.problem.config_ptr)))

    def _project(self, engine: Engine, mu_f: Floats) -> None:
        rho = engine.par[K.RHO] * engine.par[K.WEIGHT]
        a = mu_f + self.lam / rho - 0.5
        norm = float(np.linalg.norm(a))
        self.at_centre = norm == 0.0
        self.upsilon = 0.5 + a * (self.radius / norm if norm > 0 else 1.0)
        engine.pull[:] = rho * self.upsilon - self.lam

    def update(self, engine: Engine) -> None:
        """Close an iteration: multiplier first, then the next projection, both with their own rho."""
        mu_f = dense(engine.problem, engine.factor_marginals)
        rest = mu_f - self.upsilon
        self.off2 = float(rest @ rest)
        if engine.k <= self.freeze_after:
            self.lam += engine.par[K.LAST_RC] / engine.par[K.C] * engine.par[K.WEIGHT] * rest
        self._project(engine, mu_f)
