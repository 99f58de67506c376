"""Saving and restoring the changing state of an ADMM run."""

from __future__ import annotations

from typing import Any

import numpy as np

from mapmrf.engines.admm.engine import Engine
from mapmrf.engines.admm.sphere_run import SpherePhase, SphereRun
from mapmrf.errors import FormatError
from mapmrf.run.dual_state import Array, put_back

RUN_FIGURES = ("unit", "phase_began", "iterations", "calm", "gaps", "best_value", "best_bound", "best_before")
ENGINE_ARRAYS = ("mu", "lam_v", "q")
FACTOR_ARRAYS = ("s", "slots", "x", "n_slots")
SPHERE_ARRAYS = ("target2", "norm2", "scale", "off2")


def engine_state(engine: Engine) -> dict[str, Array]:
    """Return all arrays that an engine changes during a run."""
    arrays: dict[str, Array] = {name: getattr(engine, name) for name in ENGINE_ARRAYS}
    arrays |= {name: getattr(engine.factors, name) for name in FACTOR_ARRAYS}
    arrays |= {f"sphere_{name}": getattr(engine.sphere, name) for name in SPHERE_ARRAYS}
    if engine.factor_sphere is not None:
        sphere = engine.factor_sphere
        arrays |= {"pull": engine.factors.pull, "factor_lam": sphere.lam, "factor_upsilon": sphere.upsilon}
        arrays |= {"factor_mu": sphere.mu_f, "factor_off2": np.array([sphere.off2])}
    return arrays | {"labels": engine.labels, "penalty": engine.penalty.view(np.uint8)}


def restore_engine(engine: Engine, block: int, arrays: dict[str, Array]) -> None:
    """Restore the arrays of an engine; they must belong to the same model and options."""
    if not 0 <= block <= len(engine.labels):
        raise FormatError(f"the checkpoint has spheres on {block} variables each, expected 0 to {len(engine.labels)}")
    engine.set_blocks(block)
    put_back(engine.penalty.view(np.uint8), arrays, "penalty")
    engine.has_sphere = bool(engine.penalty[0].sphere)
    if "factor_lam" in arrays:
        engine.begin_factor_sphere()
        assert engine.factor_sphere is not None
        engine.factor_sphere.off2 = float(arrays["factor_off2"][0])
    for name, array in engine_state(engine).items():
        put_back(array, arrays, name)


def run_state(run: SphereRun) -> dict[str, Any]:
    """Return the position of a run in its phases."""
    figures = {name: getattr(run, name) for name in RUN_FIGURES}
    return figures | {"phase": list(run.phase), "waiting": [list(phase) for phase in run.waiting]}


def restore_run(run: SphereRun, figures: dict[str, Any]) -> None:
    """Restore the position of a run in its phases."""
    for name in RUN_FIGURES:
        known = list if name == "gaps" else int | float
        if not isinstance(figures[name], known):
            raise FormatError(f"the checkpoint's {name}: found {figures[name]!r}, expected another kind of value")
        setattr(run, name, figures[name])
    run.phase = SpherePhase(*figures["phase"])
    run.waiting = [SpherePhase(*phase) for phase in figures["waiting"]]
