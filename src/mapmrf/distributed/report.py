"""The result of a run on a model in parts."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from mapmrf._version import __version__
from mapmrf.arrays import Ints
from mapmrf.distributed.errors import together
from mapmrf.distributed.labels import write_labels
from mapmrf.distributed.run import PartedModel
from mapmrf.model.polytope import Kind, KindFractions, Residuals
from mapmrf.run.gap import relative_gap
from mapmrf.run.result import Result, Status, TracePoint, plain


@dataclass(frozen=True, eq=False)
class PartedResult:
    """The result of a run on a model in parts: figures of the whole model, and the labels of this rank's parts.

    Attributes
    ----------
    model
        The parts of this rank.
    labels : (n_labels,)
        The labels of their variables, including copies, concatenated; see `write_labels` and `gather`.
    value, bound, relaxed_value, status, kind, kind_fractions, residuals, iterations, runtime, trace, details
        As in `Result`, for the whole model; the same on all ranks except for times.
    method, options, seed, version, unit
        As in `Result`.
    n_violated
        Factors and variables whose potential is -inf under the labels.

    Examples
    --------
    >>> import tempfile
    >>> import mapmrf
    >>> from mapmrf.datasets import grid
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = mapmrf.distributed.partition(grid(5, 5, coupling=2.0, seed=1), folder, 2)
    ...     result = mapmrf.distributed.solve(folder)
    >>> result.value == grid(5, 5, coupling=2.0, seed=1).value(result.gather())
    True
    """

    model: PartedModel
    labels: Ints
    value: float
    bound: float | None
    status: Status
    method: str
    relaxed_value: float | None = None
    kind: Kind | None = None
    kind_fractions: KindFractions | None = None
    residuals: Residuals | None = None
    iterations: int = 0
    runtime: float = 0.0
    trace: tuple[TracePoint, ...] = ()
    options: Mapping[str, Any] = field(default_factory=dict)
    seed: int = 0
    version: str = __version__
    unit: float = 1.0
    n_violated: int = 0
    details: Mapping[str, float] = field(default_factory=dict)

    @property
    def gap(self) -> float | None:
        """Relative gap between bound and value, None without a bound."""
        return relative_gap(self.value, self.bound, self.unit)

    def write_labels(self, folder: str | os.PathLike[str]) -> None:
        """Write the labels, a file for every part; all ranks must call it.

        Examples
        --------
        >>> import tempfile
        >>> import mapmrf
        >>> from mapmrf.datasets import grid
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     _ = mapmrf.distributed.partition(grid(4, 4, seed=1), folder, 2)
        ...     result = mapmrf.distributed.solve(folder)
        ...     result.write_labels(folder + "/labels")
        ...     labels = mapmrf.distributed.join_labels(folder + "/labels")
        >>> labels.tolist() == result.gather().tolist()
        True
        """
        model = self.model
        together(model.ranks, lambda: write_labels(folder, model.parts, self.labels, model.slices))

    def gather(self) -> Ints:
        """The labels of the whole model (n_vars,), on every rank; all ranks must call it.

        Examples
        --------
        >>> import tempfile
        >>> import mapmrf
        >>> from mapmrf.datasets import grid
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     _ = mapmrf.distributed.partition(grid(4, 4, seed=1), folder, 2)
        ...     result = mapmrf.distributed.solve(folder)
        >>> len(result.gather())
        16
        """
        model = self.model
        pairs = zip(model.parts, model.slices, strict=True)
        mine = [(part.var[: part.n_own], self.labels[where][: part.n_own]) for part, where in pairs]
        whole = np.zeros(model.n_vars, dtype=np.int64)
        for some in model.ranks.allgather(mine):
            for places, labels in some:
                whole[places] = labels
        return whole

    def whole(self) -> Result:
        """A `Result` with the labels of the whole model; all ranks must call it.

        Examples
        --------
        >>> import tempfile
        >>> import mapmrf
        >>> from mapmrf.datasets import grid
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     _ = mapmrf.distributed.partition(grid(4, 4, seed=1), folder, 2)
        ...     result = mapmrf.distributed.solve(folder)
        >>> result.whole().value == result.value
        True
        """
        return self._as_result(self.gather())

    def _as_result(self, labels: Ints) -> Result:
        skipped = ("model", "labels", "n_violated")
        mine = {item.name: getattr(self, item.name) for item in dataclasses.fields(self) if item.name not in skipped}
        return Result(labels=labels, **mine)

    def summary(self) -> str:
        """Return a summary in a few lines.

        Examples
        --------
        >>> import tempfile
        >>> import mapmrf
        >>> from mapmrf.datasets import grid
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     _ = mapmrf.distributed.partition(grid(4, 4, seed=1), folder, 2)
        ...     result = mapmrf.distributed.solve(folder)
        >>> print(result.summary().splitlines()[0])
        model          16 variables, 24 factors, 2 parts on 1 rank
        """
        model = self.model
        where = f"{self.model.parts[0].n_parts} parts on {model.ranks.size} rank{'' if model.ranks.size == 1 else 's'}"
        size = f"model          {model.n_vars} variables, {model.n_factors} factors, {where}"
        violated = [f"violated       {self.n_violated}"] if self.n_violated else []
        return "\n".join([size, *violated, self._as_result(np.zeros(0, dtype=np.int64)).summary(shown=0)])

    def to_json(self) -> str:
        """One JSON object without the labels.

        Examples
        --------
        >>> import tempfile
        >>> import mapmrf
        >>> from mapmrf.datasets import grid
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     _ = mapmrf.distributed.partition(grid(4, 4, seed=1), folder, 2)
        ...     result = mapmrf.distributed.solve(folder)
        >>> json.loads(result.to_json())["n_vars"]
        16
        """
        data = json.loads(self._as_result(np.zeros(0, dtype=np.int64)).to_json())
        del data["labels"]
        counts = {"n_vars": self.model.n_vars, "n_factors": self.model.n_factors, "ranks": self.model.ranks.size}
        return json.dumps(data | counts | {"n_violated": plain(self.n_violated)})
