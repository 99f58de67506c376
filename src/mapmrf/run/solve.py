"""The function `solve`, with its arguments and their checks."""

from __future__ import annotations

import inspect
import math
import os
import sys
import time
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from typing import Any

from numpy.typing import ArrayLike

from mapmrf.compilation import stoppable
from mapmrf.errors import GraphError, OptionError
from mapmrf.model.graph import FactorGraph
from mapmrf.model.memory import KERNELS, MemoryBudget, byte_count, model_bytes
from mapmrf.run.clock import REPORTING, CallAbandoned, Clock
from mapmrf.run.loop import Callback, GapTolerance, ModelForms, Run
from mapmrf.run.method import Method, Start, check_number
from mapmrf.run.registry import DEFAULT_METHOD, make_method
from mapmrf.run.result import Result

Evidence = Mapping[Any, Any] | str | os.PathLike[str] | None
Initial = ArrayLike | Mapping[Any, Any] | Result | None

EVERY = 300.0  # seconds between checkpoints


def solve(
    graph: FactorGraph | str | os.PathLike[str],
    method: str | Method = DEFAULT_METHOD,
    *,
    time_limit: float | None = None,
    seed: int = 0,
    threads: int | None = 1,
    memory_limit: float | str | None = None,
    evidence: Evidence = None,
    initial: Initial = None,
    callback: Callback | None = None,
    progress: bool = False,
    gap_tolerance: float | None = None,
    abs_gap_tolerance: float = 0.0,
    polish: str | Method | None = None,
    margins: bool = False,
    checkpoint: str | os.PathLike[str] | None = None,
    every: float = EVERY,
    resume: bool = False,
    certificate: bool = False,
    **options: Any,
) -> Result:
    """Find a labelling of high log potential.

    Parameters
    ----------
    graph
        The model, or a file to read it from.
    method
        Name of a method, or a method object such as ``LSLP(rho=0.1)``.
    time_limit
        Wall-clock time limit in seconds, after which the best labelling so far is returned.
    seed
        Random seed; the same input and seed give the same answer.
    threads
        Number of threads a method may use, None for all available cores; the answer does not depend on it.
    memory_limit
        Memory for program, model and run together, in bytes or as a string such as ``"2G"``. A method whose estimate is
        higher is refused, `auto` skips phases that do not fit, and a run that exceeds the limit ends with its best
        labelling. The default is the memory of the machine; ``math.inf`` for no limit.
    evidence
        Observed variables: a mapping from variables to states, by index or name, or an evidence file. They stay in the
        labels.
    initial : (n_vars,) or Result
        A labelling, as an array or a mapping, or an earlier Result to start from. If the model of the Result has the
        same structure (variables, states and scopes; potentials may differ), the same method also continues from its
        messages.
    callback
        Called with every TracePoint and the best labels so far; a true return value ends the run. While kernels are
        compiled, it is called about ten times per second with the last point and the current time.
    progress
        Show a progress bar on standard error, if that is a terminal.
    gap_tolerance
        Relative gap at which the run ends, with status ``within_tolerance`` unless the gap is closed exactly. With the
        default of 1e-6, a run that gets there continues for a while in order to close the gap exactly.
    abs_gap_tolerance
        The same for ``bound - value``. A negative tolerance is never met.
    polish
        A method that improves the labelling at the end, such as ``"blocks"``, ``"chains"`` or ``Flips(depth=3)``. It
        starts from the best labelling and has the remaining time; its iterations are added to the total.
    margins
        Whether to compute how certain each label is, in the remaining time: see `Result.margins`, `max_marginals`.
    checkpoint, every
        Folder in which to save the state of the run, every `every` seconds and when it is cut short.
    resume
        Resume from the checkpoint, if there is one: `lslp` and `trws` continue to bit for bit the same answer, other
        methods start from the best labelling and bound.
    certificate
        Whether to find a dual point that proves a bound, in the remaining time: see `Result.certificate`,
        `certify` and `verify`.
    **options
        Options of the method by name.

    Examples
    --------
    >>> import mapmrf
    >>> graph = mapmrf.FactorGraph.from_pairwise([[0, 1], [0, 0]], [[0, 1]], [[1, 0], [0, 1]])
    >>> result = mapmrf.solve(graph)
    >>> result.labels.tolist(), result.value, result.status.value
    ([1, 1], 2.0, 'optimal')
    """
    began = time.perf_counter()  # loading a method counts too
    chosen = make_method(method, options, also=_ARGUMENTS)
    threads = usable_cores() if threads is None else threads
    check_limits(time_limit, threads, seed)
    check_resume(checkpoint, resume)
    for name, wanted in (("margins", margins), ("certificate", certificate), ("progress", progress)):
        check_number(name, wanted, bool)
    if callback is not None and not callable(callback):
        raise OptionError(f"callback is {callback!r}, expected a function of a TracePoint and the labels")
    graph = as_graph(graph, memory_limit, evidence=evidence)
    polisher = None if polish is None else make_method(polish, {})
    limit = byte_count(memory_limit)
    forms = ModelForms(graph, threads, MemoryBudget.of(limit, model_bytes(graph)))
    most = math.inf if limit is None else forms.memory.left + KERNELS  # which are loaded during the run
    clock, tolerance = Clock(began, time_limit, most), GapTolerance.of(gap_tolerance, abs_gap_tolerance)
    run = Run(chosen, seed, tolerance, clock, [] if callback is None else [callback])
    run.polisher = polisher
    start = _start_from(graph, initial)
    if checkpoint is not None:
        from mapmrf.run.state import SavedRun, origin_of

        run.saving = SavedRun(checkpoint, every, origin_of(chosen, seed, threads, graph), resume)
        clock.saves = True
    with ExitStack() as stack:
        stack.enter_context(clock.supervising(graph))
        run.load(forms)
        stack.enter_context(clock.compiling)
        if progress and sys.stderr.isatty():
            from mapmrf.run.progress import ProgressBar

            bar = stack.enter_context(ProgressBar(chosen.name, chosen.max_iterations, time_limit))
            run.listeners.append(bar.update)
            clock.compiling.on_begin = bar.compiling
        stack.enter_context(stoppable(clock.watch))
        result = run.solve(forms, start)
        if margins:
            from mapmrf.questions.max_marginals import with_margins

            with suppress(CallAbandoned):
                result = clock.attempt(REPORTING, with_margins, result, graph, clock.deadline, threads)
        if certificate:
            from mapmrf.certificates.make import with_certificate

            with suppress(CallAbandoned):
                result = clock.attempt(REPORTING, with_certificate, result, graph, clock.deadline, threads)
        return result


_ARGUMENTS = tuple(name for name, kind in inspect.signature(solve).parameters.items() if kind.kind is kind.KEYWORD_ONLY)
"""Arguments of `solve`, as suggestions for misspelt options."""


def as_graph(model: object, memory_limit: float | str | None = None, *, evidence: Evidence = None) -> FactorGraph:
    """Return a model, reading it if it is a file; for anything else raise a GraphError that says what to call."""
    if evidence is not None:
        from mapmrf.formats.evidence import observed

        return observed(as_graph(model, memory_limit), evidence)
    if isinstance(model, FactorGraph):
        return model
    if callable(made := getattr(model, "graph", None)) and isinstance(graph := made(), FactorGraph):
        return graph  # of a Model
    if isinstance(model, str | os.PathLike):
        from mapmrf.formats import read

        return read(model, memory_limit=memory_limit)
    name = type(model).__name__
    found = f"an {name}" if name[0] in "aeiou" else f"a {name}"
    raise GraphError(f"the model is {found}, expected a Model, a FactorGraph or a file: see {_constructor_for(model)}")


def _constructor_for(model: object) -> str:
    module = type(model).__module__.split(".")[0]
    if module in ("networkx", "pgmpy", "dimod", "pandas"):
        return f"mapmrf.Model.from_{module}"
    if isinstance(model, Mapping):
        return "mapmrf.Model.from_qubo"
    if hasattr(model, "shape"):
        return "FactorGraph.from_pairwise for arrays of potentials, mapmrf.images.grid_model for an image"
    if isinstance(model, list | tuple) and all(isinstance(one, FactorGraph) for one in model):
        return "solve_many for several models"
    return "FactorGraph.from_tables"


def usable_cores() -> int:
    """Number of cores that this process may use, by its affinity where the system supports that."""
    affinity = getattr(os, "sched_getaffinity", None)
    return len(affinity(0)) if affinity is not None else os.cpu_count() or 1


def check_limits(time_limit: float | None, threads: int | None, seed: int) -> None:
    if time_limit is not None:
        check_number("time_limit", time_limit)
    if threads is not None:
        check_number("threads", threads, int)
    check_number("seed", seed, int)
    if time_limit is not None and not time_limit >= 0:
        raise OptionError(f"time_limit is {time_limit}, expected a number of seconds of at least 0")
    if threads is not None and threads < 1:
        raise OptionError(f"threads is {threads}, expected at least 1")
    if seed < 0:
        raise OptionError(f"seed is {seed}, expected a whole number of at least 0")


def check_resume(checkpoint: str | os.PathLike[str] | None, resume: bool) -> None:
    if resume and checkpoint is None:
        raise OptionError("resume needs a checkpoint: the folder in which the earlier run was saved")


def _start_from(graph: FactorGraph, initial: Initial) -> Start:
    if initial is None:
        return Start()
    if isinstance(initial, Result):
        mu_v = initial.mu_v if initial.mu_v is not None and initial.mu_v.shape == graph.theta_v.shape else None
        return Start(graph.check_labels(initial.labels), mu_v, initial.dual)
    return Start(graph.check_labels(initial))
