"""Third-party packages, each in its own process: some of them cannot be loaded together."""

from __future__ import annotations

import functools
import multiprocessing
from concurrent.futures import ProcessPoolExecutor

import mapmrf
from mapmrf.bench import peers


def solve_apart(name: str, graph: mapmrf.FactorGraph, seconds: float, seed: int) -> mapmrf.Result:
    """The answer of a peer for a model; see `mapmrf.bench.peers.solve_with`."""
    return _process(name).submit(peers.solve_with, name, graph, seconds, seed).result()


@functools.cache
def _process(name: str) -> ProcessPoolExecutor:
    """The process of a peer; it is kept, so that imports and compiled code are reused for all models."""
    return ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn"))
