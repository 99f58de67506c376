"""BP: max-product loopy belief propagation on the factor graph."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from mapmrf.engines.messages.max_product import ForestWeights, MessagePassing
from mapmrf.model.problem import Problem


@dataclass(frozen=True)
class BP(MessagePassing):
    """Pass max-product messages until they stop changing, and read a labelling off the beliefs (ogm-BP).

    On a model without cycles, two sweeps give an optimal labelling and prove it. With cycles, messages need not
    converge; labels are decoded every few iterations, and the best are kept.

    Attributes
    ----------
    max_iterations
        Maximum number of iterations; in each, every factor sends one message to each of its variables.
    damping
        Weight of the old message in the new one, from 0 (none) to below 1.
    tol
        The run has converged when no message changes by more than this, relative to the mean range of the potentials.
    schedule
        ``parallel`` computes all messages from those of the previous iteration; ``sequential`` goes factor by factor in
        breadth-first order, alternately forward and backward.
    decode
        ``sequential`` decides one variable after another, each given those decided before; ``argmax`` takes the best
        state of every belief independently.

    Examples
    --------
    >>> import mapmrf
    >>> chain = mapmrf.datasets.grid(1, 20, coupling=2.0)
    >>> mapmrf.solve(chain, "bp").status.value  # there are no cycles
    'optimal'
    >>> mapmrf.solve(mapmrf.datasets.grid(6, 6, coupling=2.0), mapmrf.BP(damping=0.5)).bound is None
    True
    """

    name: ClassVar[str] = "bp"
    title: ClassVar[str] = "max-product loopy belief propagation (ogm-BP)"
    family: ClassVar[str] = "message passing"

    def weigh(self, problem: Problem, seed: int) -> ForestWeights:
        """Weight all factors by 1, as if there were no cycles; this gives no bound."""
        return ForestWeights(np.ones(problem.n_factors), np.zeros(problem.n_edges))
