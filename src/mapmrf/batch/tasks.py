"""One model of a batch: what to solve, how, and what to return when that fails."""

from __future__ import annotations

import dataclasses
import logging
import os
import pickle
import re
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from mapmrf.arrays import Ints, segment_argmax
from mapmrf.errors import MapMRFError, OptionError
from mapmrf.formats import read
from mapmrf.formats.evidence import read_evidence
from mapmrf.formats.files import AnyPath
from mapmrf.model.graph import FactorGraph
from mapmrf.run.method import Method
from mapmrf.run.result import Result, Status, TracePoint
from mapmrf.run.solve import as_graph, solve

log = logging.getLogger("mapmrf")

Model = FactorGraph | AnyPath
Outcome = Result | MapMRFError
Observed = Mapping[int | str, int | str]
Evidence = AnyPath | Observed | MapMRFError | None
Stopped = Callable[[], bool]


class NotSolved(MapMRFError):
    """Returned in place of a result if the batch was interrupted before the model's turn."""


@dataclass(frozen=True, eq=False)
class ModelTask:
    """A model of a batch and how to solve it.

    Attributes
    ----------
    model
        The model, packed or not, or the file to read it from.
    method, seed, options
        How to solve it; the options are those of `solve`, not of the method, and `max_bytes` of `read`.
    evidence
        The observations, or the error that was found in them.
    """

    model: Model | PackedModel
    method: Method
    seed: int
    options: Mapping[str, Any]
    evidence: Evidence = None

    def run(self, stopped: Stopped) -> Outcome:
        """Solve the model; errors are returned, not raised, so that the rest of the batch continues."""
        try:
            if stopped():
                return self.unsolved()
            return self._solve(self._graph(), stopped)
        except MapMRFError as error:
            return self._named(error)
        except MemoryError:
            return self._named(MapMRFError("not enough memory for this model"))
        except Exception as error:
            log.debug("a model of a batch failed", exc_info=True)
            outcome = self._named(MapMRFError(f"{type(error).__name__}: {' '.join(str(error).split())}"))
            outcome.__cause__ = error
            return outcome

    def unsolved(self) -> Outcome:
        """The outcome without any work: the best state of every variable on its own, if the model is in memory."""
        graph = self.model.unpack() if isinstance(self.model, PackedModel) else self.model
        if not isinstance(graph, FactorGraph) or self.evidence is not None:
            return self._named(NotSolved("not solved: interrupted before its turn"))
        labels = segment_argmax(graph.theta_v, graph.var_ptr)
        return replace(Result.of_labels(graph, labels, Status.INTERRUPTED, self.method.name), seed=self.seed)

    def lost(self, error: Exception) -> Outcome:
        """The outcome of a task that could not be sent to a worker, or whose worker died."""
        if isinstance(error, pickle.PicklingError):
            reason = " ".join(str(error.__cause__ or error).split()).strip("'\" ")
            return OptionError(f"a model, method, callback or option cannot be sent to a process: {reason}")
        code = re.search(r"[A-Z]+\(-?\d+\)", str(error))  # joblib gives it at the end of several sentences
        how = f" with {code[0]}" if code else ""
        return self._named(MapMRFError(f"the process that solved this model died{how}; did it run out of memory?"))

    def _graph(self) -> FactorGraph:
        if isinstance(self.evidence, MapMRFError):
            raise self.evidence
        model = self.model.unpack() if isinstance(self.model, PackedModel) else self.model
        if not isinstance(model, FactorGraph | str | os.PathLike):
            return as_graph(model)  # which says what to call
        if not isinstance(model, FactorGraph):
            return read(model, evidence=self.evidence, max_bytes=self.options.get("max_bytes"))
        if self.evidence is None:
            return model
        return model.condition(_observed(self.evidence, model))

    def _solve(self, graph: FactorGraph, stopped: Stopped) -> Result:
        options = dict(self.options)
        user = options.pop("callback", None)
        options.pop("max_bytes", None)

        def callback(point: TracePoint, labels: Ints) -> bool:
            return stopped() or bool(user is not None and user(point, labels))

        result = solve(graph, self.method, seed=self.seed, callback=callback, **options)
        return replace(result, dual=None)  # thousands of results may be kept or sent

    def _named(self, error: MapMRFError) -> MapMRFError:
        """The error, prefixed by the file unless it already names it."""
        if not isinstance(self.model, str | os.PathLike) or os.fspath(self.model) in str(error):
            return error
        return type(error)(f"{os.fspath(self.model)}: {error}")


def _observed(evidence: AnyPath | Observed, graph: FactorGraph) -> Observed:
    """Observations as given, or the first sample of an evidence file."""
    return evidence if isinstance(evidence, Mapping) else cast(Observed, read_evidence(evidence, graph)[0])


# -- models on their way to another process ---------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class PackedModel:
    """A model as one array of bytes, which joblib shares between processes once for all tasks that use it."""

    key: str
    data: NDArray[np.uint8]

    @classmethod
    def pack(cls, graph: FactorGraph) -> PackedModel:
        """Pack a model without its cached arrays, which are cheap to recompute."""
        data = pickle.dumps(dataclasses.replace(graph), protocol=5)
        return cls(uuid.uuid4().hex, np.frombuffer(data, dtype=np.uint8))

    def unpack(self) -> FactorGraph:
        """Unpack the model; the last one is cached, since the next row of evidence needs it again.

        Its arrays are made read-only again: those of a pickle are not, and kernels would be recompiled for them.
        """
        graph = _UNPACKED.get(self.key)
        if graph is None:
            graph = dataclasses.replace(cast(FactorGraph, pickle.loads(self.data.tobytes())))
            _UNPACKED.clear()
            _UNPACKED[self.key] = graph
        return graph


_UNPACKED: dict[str, FactorGraph] = {}
"""The last model unpacked by this process."""


class ModelPacker:
    """Packs the models of tasks, each once where consecutive tasks share it."""

    def __init__(self) -> None:
        self._last: FactorGraph | None = None
        self._packed: PackedModel | None = None

    def __call__(self, task: ModelTask) -> ModelTask:
        """Return the task with its model packed; file names are left as they are."""
        if not isinstance(task.model, FactorGraph):
            return task
        if task.model is not self._last or self._packed is None:
            self._last, self._packed = task.model, PackedModel.pack(task.model)
        return dataclasses.replace(task, model=self._packed)
