"""Shared by the one-call functions: their answer, the options of a solve, and the start of models with label costs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from mapmrf.arrays import Bools, Floats, Ints
from mapmrf.images.grids import to_image
from mapmrf.model.graph import FactorGraph
from mapmrf.run.method import Method
from mapmrf.run.result import Result
from mapmrf.run.solve import solve

TIME_LIMIT = 30.0  # default time limit of a one-call function, in seconds
GAP_TOLERANCE = 1e-4  # default relative gap at which it ends


@dataclass(frozen=True, eq=False)
class LabelledImage:
    """The answer of `segment`, `denoise` and `stereo`; as an array it is its `image`.

    Attributes
    ----------
    image : (H, W)
        The values of the labels: the marks of `segment`, the grey levels of `denoise`, the disparities of `stereo`.
    labels : (H, W)
        The labels, from 0 on; -1 outside the mask.
    result : Result
        The full result of `solve`: value, bound, gap, status, and so on.

    Examples
    --------
    >>> from mapmrf import images
    >>> answer = images.segment([[0.0, 0.1, 0.9, 1.0]], [[7, -1, -1, 9]])
    >>> answer.image.tolist(), answer.labels.tolist(), answer.result.labels.tolist()
    ([[7, 7, 9, 9]], [[0, 0, 1, 1]], [0, 0, 1, 1])
    >>> np.asarray(answer).shape
    (1, 4)
    """

    image: NDArray[Any]
    labels: Ints
    result: Result

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        """The image, so that the answer can be passed to functions of arrays."""
        return np.array(self.image, dtype=dtype) if copy else np.asarray(self.image, dtype=dtype)


class SolveOptions(NamedTuple):
    """Options of `solve` that the one-call functions pass on."""

    method: str | Method
    time_limit: float | None
    gap_tolerance: float
    threads: int | None
    seed: int
    progress: bool

    def run(self, graph: FactorGraph, initial: Ints | None = None) -> Result:
        return solve(
            graph,
            self.method,
            time_limit=self.time_limit,
            seed=self.seed,
            threads=self.threads,
            initial=initial,
            progress=self.progress,
            gap_tolerance=self.gap_tolerance,
        )

    def image(
        self, graph: FactorGraph, shape: tuple[int, ...], mask: Bools | None, looks: NDArray[Any]
    ) -> LabelledImage:
        """Solve a model of pixels and show each label as one of `looks`, the last of which means no label."""
        result = self.run(graph)
        labels = to_image(result, shape, mask=mask)
        return LabelledImage(looks[labels], labels, result)

    def with_prices(self, build: Callable[[Floats | None], FactorGraph], prices: Floats) -> Result:
        """Solve a model with label costs, from a labelling of the model without them.

        That labelling gets half of the time; then labels are given up, the most profitable first, as long as that pays.
        Moves of single pixels alone would rarely give up a label.
        """
        half = None if self.time_limit is None else self.time_limit / 2
        plain = self._replace(time_limit=half).run(build(None))
        graph = build(prices)
        start = give_up_labels(graph, plain.labels, len(prices))
        return self._replace(time_limit=half).run(graph, start)


def give_up_labels(graph: FactorGraph, pixels: Ints, n_labels: int) -> Ints:
    """Extend a labelling of the pixels to a model with label costs: labels are given up while that improves it.

    Pixels of a label that is given up get their best label among the others in use.
    """
    unary = graph.theta_v[: len(pixels) * n_labels].reshape(-1, n_labels)
    best = _with_use(pixels, n_labels)
    value, improved = graph.value(best), True
    while improved:
        improved = False
        used = np.unique(best[: len(pixels)])
        for k in used.tolist() if len(used) > 1 else []:
            others = used[used != k]
            mine = best[: len(pixels)] == k
            changed = best[: len(pixels)].copy()
            changed[mine] = others[unary[mine][:, others].argmax(axis=1)]
            candidate = _with_use(changed, n_labels)
            if (found := graph.value(candidate)) > value:
                chosen, value, improved = candidate, found, True
        if improved:
            best = chosen
    return best


def _with_use(pixels: Ints, n_labels: int) -> Ints:
    """Labels of the pixels, and for every label whether any pixel has it."""
    return np.concatenate([pixels, np.bincount(pixels, minlength=n_labels) > 0])
