"""Warm starts of ADMM: multipliers of one run as the starting point of another on a model of the same structure."""

from __future__ import annotations

import numpy as np

from mapmrf.engines.admm.engine import Engine
from mapmrf.run.dual_state import MOST_NUMBERS, DualState


def save_multipliers(engine: Engine, unit: float) -> DualState | None:
    """Return multipliers, mu and the penalty in units of the interaction; None if they are too large to be kept."""
    if len(engine.q) > MOST_NUMBERS:
        return None
    rho = engine.rho / unit
    return DualState.of(engine.problem, _layout(engine), engine.multipliers(), rho=rho, mu_v=engine.variables())


def load_multipliers(engine: Engine, given: DualState, rho: float) -> bool:
    """Start from what `save_multipliers` returned, at this penalty; return False and do nothing if it does not fit."""
    lam = given.values_for(engine.problem, _layout(engine), len(engine.q))
    if lam is None or given.mu_v is None or len(given.mu_v) != engine.problem.n_states:
        return False
    mu_v = np.where(engine.problem.feasible_v, given.mu_v, 0.0)
    engine.resume(engine.layout.compress(mu_v), lam, rho)
    return True


def _layout(engine: Engine) -> str:
    """Name the layout of q: its states and their order."""
    kinds = " ".join(str(row.kind) for row in engine.layout.rows)
    return f"admm {'compact' if engine.layout.compact else 'full'} {kinds}"
