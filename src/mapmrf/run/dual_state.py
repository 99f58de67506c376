"""DualState: the final dual point of a run, for a warm start on another model of the same structure."""

from __future__ import annotations

import zlib
from dataclasses import dataclass

import numpy as np

from mapmrf.arrays import Floats, Ints
from mapmrf.model.graph import FactorGraph
from mapmrf.model.problem import Problem

MOST_NUMBERS = 2_000_000
"""Largest dual state that is kept in a result, in numbers: 16 MB."""


@dataclass(frozen=True, eq=False)
class DualState:
    """Messages or multipliers of a run, in the layout of the method that computed them.

    A dual point gives a bound on any model with the same variables, states and scopes, whatever its potentials: a run
    may start from it after the potentials have changed.

    Attributes
    ----------
    layout
        Name of the layout: only a run with the same layout can use the numbers.
    values : (n_numbers,)
        The messages or multipliers.
    card, scope_ptr, scope : (n_vars,), (n_factors + 1,), (n_edges,)
        The structure they belong to: arrays of the `FactorGraph`.
    rho
        The penalty of ADMM in units of the model's interaction; 0 where there is none.
    mu_v : (sum of card,)
        The relaxed solution of ADMM that belongs to the multipliers, or None.

    Examples
    --------
    >>> import mapmrf
    >>> from mapmrf.datasets import grid
    >>> first = mapmrf.solve(grid(6, 6, coupling=2.0, seed=1), "mplp")
    >>> first.dual
    DualState(mplp: 240 numbers)
    >>> again = mapmrf.solve(grid(6, 6, coupling=2.0, seed=1), "mplp", initial=first)
    >>> again.iterations < first.iterations, abs(again.bound - first.bound) < 1e-3
    (True, True)
    """

    layout: str
    values: Floats
    card: Ints
    scope_ptr: Ints
    scope: Ints
    rho: float = 0.0
    mu_v: Floats | None = None

    @classmethod
    def of(
        cls, problem: Problem, layout: str, values: Floats, *, rho: float = 0.0, mu_v: Floats | None = None
    ) -> DualState | None:
        """The dual state of a run, from its values (n_numbers,) and mu_v (n_states,); None if too large to keep.

        Examples
        --------
        >>> import numpy as np
        >>> from mapmrf.datasets import grid
        >>> problem = Problem.compile(grid(3, 3))
        >>> DualState.of(problem, "mine", np.zeros(5))
        DualState(mine: 5 numbers)
        """
        if len(values) > MOST_NUMBERS:
            return None
        graph = problem.graph
        return cls(_full_name(problem, layout), values, graph.card, graph.scope_ptr, graph.scope, rho, mu_v)

    def __repr__(self) -> str:
        return f"DualState({self.layout.split(':')[0]}: {len(self.values)} numbers)"

    def fits(self, graph: FactorGraph) -> bool:
        """Return whether a model has the structure of this dual state.

        Examples
        --------
        >>> import mapmrf
        >>> from mapmrf.datasets import grid
        >>> dual = mapmrf.solve(grid(6, 6, coupling=2.0, seed=1), "mplp").dual
        >>> dual.fits(grid(6, 6, seed=2)), dual.fits(grid(6, 7, seed=1))
        (True, False)
        """
        mine, others = (self.card, self.scope_ptr, self.scope), (graph.card, graph.scope_ptr, graph.scope)
        return all(a is b or np.array_equal(a, b) for a, b in zip(mine, others, strict=True))

    def values_for(self, problem: Problem, layout: str, size: int) -> Floats | None:
        """The numbers, if a run on this problem uses the same layout; else None.

        Examples
        --------
        >>> import numpy as np
        >>> from mapmrf.datasets import grid
        >>> problem = Problem.compile(grid(3, 3))
        >>> state = DualState.of(problem, "mine", np.zeros(5))
        >>> state.values_for(problem, "mine", 5).tolist(), state.values_for(problem, "another", 5)
        ([0.0, 0.0, 0.0, 0.0, 0.0], None)
        """
        same = self.layout == _full_name(problem, layout) and len(self.values) == size
        return self.values if same and self.fits(problem.graph) else None


def _full_name(problem: Problem, layout: str) -> str:
    """A layout together with the problem's order of factors, which depends on forbidden configurations."""
    batches = ",".join(f"{'x'.join(map(str, batch.shape))}{'!' * batch.hard}" for batch in problem.batches)
    order = 0 if problem.sorted_by is None else zlib.crc32(np.ascontiguousarray(problem.sorted_by).tobytes())
    return f"{layout}:{batches}:{order:x}"
