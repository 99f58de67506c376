"""Marginal MAP: the best labels of some variables, with all others summed out."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import numpy as np

from mapmrf.constraints.as_tables import without_constraints
from mapmrf.engines.elimination.numpy_elimination import MEMORY, sum_out
from mapmrf.errors import OptionError
from mapmrf.model.graph import FactorGraph
from mapmrf.model.names import Names, locate_variable
from mapmrf.run.method import Method, check_number
from mapmrf.run.registry import DEFAULT_METHOD, make_method
from mapmrf.run.result import Result
from mapmrf.run.solve import Evidence, as_graph, check_limits, solve


def marginal_map(
    graph: FactorGraph | str | os.PathLike[str],
    variables: Iterable[int | str],
    method: str | Method = DEFAULT_METHOD,
    *,
    evidence: Evidence = None,
    memory: float = MEMORY,
    time_limit: float | None = None,
    seed: int = 0,
    threads: int | None = 1,
    **options: Any,
) -> Result:
    """Find the best labels of some variables when all other variables are summed out.

    The log potential of these labels is ``log(sum of exp(value))`` over the labels of all others. Summing is exact, by
    elimination; the method solves the remaining model, and the status says whether the answer is proven.

    Parameters
    ----------
    graph
        The model, or a file to read it from.
    variables
        The variables to maximise over, by index or name.
    method
        The method that solves the model of these variables.
    evidence
        Observed variables, as for `solve`.
    memory
        Memory for the tables of the sums, in megabytes.
    time_limit, seed, threads
        As for `solve`; summing itself is not cut short.
    **options
        Options of the method by name.

    Returns
    -------
    Result
        Labels of these variables, in the order given; value and bound are logarithms of sums.

    Raises
    ------
    UnsupportedModel
        If the tables of the sums need more memory; the message says how much, and gives the induced width.

    Examples
    --------
    >>> import numpy as np, mapmrf
    >>> graph = mapmrf.FactorGraph.from_tables([2, 3], [(0, 1)], [np.log([[0.3, 0.01, 0.01], [0.25, 0.22, 0.21]])])
    >>> mapmrf.solve(graph).labels.tolist()
    [0, 0]
    >>> result = mapmrf.marginal_map(graph, [0])
    >>> result.labels.tolist(), round(float(np.exp(result.value)), 6)
    ([1], 0.68)
    """
    began = time.perf_counter()
    chosen = make_method(method, options, also=("evidence", "memory", "time_limit", "seed", "threads"))
    check_limits(time_limit, threads, seed)
    check_number("memory", memory)
    given = as_graph(graph, evidence=evidence)
    asked, model = query_indices(given, variables), without_constraints(given)
    others = sorted(set(range(model.n_vars)) - set(asked))
    rest, kept = sum_out(model, others, memory * 2**20) if others else (model, list(range(model.n_vars)))
    left = None if time_limit is None else max(0.0, time_limit - (time.perf_counter() - began))
    result = solve(rest, chosen, time_limit=left, seed=seed, threads=threads)
    place, names = np.searchsorted(kept, asked), given.names
    if names is not None:
        states = None if names.states is None else tuple(names.states[i] for i in asked)
        names = Names(tuple(names.variables[i] for i in asked), states)
    return replace(
        result,
        labels=result.labels[place],
        names=names,
        mu_v=None,
        runtime=time.perf_counter() - began,
        details={**result.details, "summed": float(given.n_vars - len(asked))},
    )


def log_partition(
    graph: FactorGraph | str | os.PathLike[str], *, evidence: Evidence = None, memory: float = MEMORY
) -> float:
    """Return the logarithm of the sum of ``exp(value)`` over all labellings, exactly: the partition function.

    For a Bayesian network it is the logarithm of the probability of the evidence.

    Parameters
    ----------
    graph
        The model, or a file to read it from.
    evidence
        Observed variables, as for `solve`.
    memory
        Memory for the tables of the sums, in megabytes.

    Raises
    ------
    UnsupportedModel
        If the tables of the sums need more memory; the message says how much, and gives the induced width.

    Examples
    --------
    >>> import math, mapmrf
    >>> graph = mapmrf.FactorGraph.from_tables([2, 2], [(0, 1)], [[[math.log(2), 0.0], [0.0, math.log(4)]]])
    >>> round(math.exp(mapmrf.log_partition(graph)), 6)
    8.0
    """
    check_number("memory", memory)
    model = without_constraints(as_graph(graph, evidence=evidence))
    return sum_out(model, list(range(model.n_vars)), memory * 2**20)[0].constant if model.n_vars else model.constant


def query_indices(graph: FactorGraph, variables: Iterable[int | str]) -> list[int]:
    if isinstance(variables, str) or not isinstance(variables, Iterable):
        raise OptionError(f"variables is {variables!r}, expected a list of indices or names")
    asked: list[int] = []
    for variable in variables:
        if isinstance(variable, int | np.integer) and not 0 <= variable < graph.n_vars:
            raise OptionError(f"variable {variable} is asked for, expected 0 to {graph.n_vars - 1}")
        i = locate_variable(graph.names, graph.card, variable)
        if i in asked:
            raise OptionError(f"variable {variable!r} is asked for twice")
        asked.append(i)
    return asked
