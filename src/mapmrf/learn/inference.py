"""Inference inside a training loop: a method by name, or relaxation and local search within milliseconds."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mapmrf.engines.elimination.numpy_elimination import small_order
from mapmrf.model.graph import FactorGraph
from mapmrf.run.method import Method
from mapmrf.run.registry import DEFAULT_METHOD, make_method
from mapmrf.run.result import Result
from mapmrf.run.solve import Initial, solve

QUICK = "quick"  # the name of `solve_quickly` among methods

Inference = str | tuple[str, Mapping[str, Any]] | Method
"""``"quick"``, the name of a method, a name and its options, or a method object."""

ITERATIONS, DEPTH = 15, 2  # iterations of TRW-S, and number of variables that are flipped together


def solve_quickly(
    graph: FactorGraph, *, initial: Initial = None, time_limit: float | None = None, seed: int = 0
) -> Result:
    """Find a good labelling in milliseconds, for loops that solve thousands of models.

    Tiny models are solved exactly, by elimination. All others get a few iterations of TRW-S, which end early if
    the optimum is proven, and then the best flips of single variables and pairs.

    Parameters
    ----------
    initial : (n_vars,) or Result
        A labelling or an earlier Result to start from; the messages of a Result are used as well if its model has the
        same structure.

    Examples
    --------
    >>> from mapmrf.datasets import potts_image
    >>> solve_quickly(potts_image(40, 40, labels=5).graph).status.value
    'optimal'
    """
    if small_order(graph) is not None:
        return solve(graph, DEFAULT_METHOD, initial=initial, time_limit=time_limit, seed=seed)
    from mapmrf.methods.flips import Flips
    from mapmrf.methods.trws import TRWS

    method, polish = TRWS(max_iterations=ITERATIONS), Flips(depth=DEPTH)
    return solve(graph, method, polish=polish, initial=initial, time_limit=time_limit, seed=seed)


def infer(
    graph: FactorGraph,
    inference: Inference = QUICK,
    *,
    initial: Initial = None,
    time_limit: float | None = None,
    seed: int = 0,
) -> Result:
    """Solve a model by `solve_quickly` or by a method.

    Examples
    --------
    >>> import mapmrf
    >>> graph = mapmrf.FactorGraph.from_pairwise([[0, 1], [0, 0]], [[0, 1]], [[1, 0], [0, 1]])
    >>> [infer(graph, each).value for each in ("quick", "exhaustive", ("icm", {"starts": 2}), mapmrf.TRWS())]
    [2.0, 2.0, 2.0, 2.0]
    """
    if inference == QUICK:
        return solve_quickly(graph, initial=initial, time_limit=time_limit, seed=seed)
    return solve(graph, method_of(inference), initial=initial, time_limit=time_limit, seed=seed)


def method_of(inference: Inference) -> Method:
    """Return the method of a name or a name with options; raise OptionError or UnknownName if there is none."""
    name, options = inference if isinstance(inference, tuple) else (inference, {})
    return make_method(name, dict(options))
