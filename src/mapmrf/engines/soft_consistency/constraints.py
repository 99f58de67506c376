"""The constraints of a problem as constraints of its cost network."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from mapmrf.arrays import Floats, Ints, offsets
from mapmrf.compilation.records import blanks
from mapmrf.constraints.flat import EVERY_STATE, ConstraintKind, Constraints
from mapmrf.engines.program.toulbar2_process import WholeCosts
from mapmrf.engines.soft_consistency.network_kernels import (
    HARD,
    ConstraintNetwork,
    ConstraintRecord,
    ConstraintRoom,
    LinkRecord,
)
from mapmrf.model.problem import Problem

LARGEST_SUM = 1 << 31  # sums of weights are integers up to this; others are scaled to it
LARGEST_COST = 1 << 60  # maximum of a price times a sum

MOST_ASSIGNED = 1_000_000
"""Maximum number of variables squared times states for which ALL_DIFFERENT has prices: a millisecond."""


class ConstraintLayout(NamedTuple):
    """Constraints, the offsets of the variables in `of_variable`, and the number of cells used by the constraints."""

    network: ConstraintNetwork
    constraint_ptr: Ints
    n_cells: int


class ConstraintBuilder:
    """Builds the constraints of a problem, with cells from `first_cell` on."""

    def __init__(self, problem: Problem, costs: WholeCosts, first_cell: int) -> None:
        self.problem, self.costs, self.first_cell = problem, costs, first_cell
        self.card = problem.graph.card
        self.records: list[tuple[float, ...]] = []
        self.variables: list[int] = []
        self.at: list[int] = []
        self.gains: list[Ints] = []
        self.weights: list[Floats] = []
        self.owners: list[int] = []
        self.n_gains = self.n_cells = 0
        constraints = problem.graph.constraints
        for c in range(0 if constraints is None else len(constraints)):
            self.add(c)

    @property
    def constraints(self) -> Constraints:
        assert self.problem.graph.constraints is not None
        return self.problem.graph.constraints

    def add(self, c: int) -> None:
        """Add a constraint, unless violating it costs nothing."""
        constraints, penalty = self.constraints, self.costs.penalties[c]
        if penalty == 0:
            return
        kind, begin = ConstraintKind(constraints.kind[c]), len(self.variables)
        weights = self.link_weights(c)
        sums = sum(float(np.abs(weight).max()) for weight in weights.values())
        scale = 1.0 if constraints.whole[c] and sums <= LARGEST_SUM else LARGEST_SUM / max(sums, 1e-300)
        for i, weight in weights.items():
            self.link(i, weight, np.rint(weight * scale).astype(np.int64))
        cost = HARD if np.isinf(penalty) else int(penalty)
        slack = 0 if scale == 1.0 else len(weights) + 2
        least, most = self.limits(c, scale, slack // 2)
        lowest, highest, n_prices = 0, 0, 0
        if kind == ConstraintKind.LINEAR:
            n_prices = 1
            lowest, highest = self.price_limits(begin, (least, most), cost)
        elif kind == ConstraintKind.ALL_DIFFERENT and cost == HARD:
            n_states = int(self.card[list(weights)].max())
            n_prices = n_states if len(weights) ** 2 * n_states <= MOST_ASSIGNED else 0
        self.records.append(
            (kind, begin, len(self.variables), least, most, slack, constraints.least[c], constraints.most[c],
             cost, lowest, highest, self.first_cell + self.n_cells, n_prices)
        )  # fmt: skip
        self.n_cells += 1 + n_prices

    def link_weights(self, c: int) -> dict[int, Floats]:
        """Return the contribution of every state to the sum; the output of OR adds 2, and its variable comes last."""
        constraints, mine = self.constraints, self.constraints.span(c)
        output = int(constraints.ptr[c + 1]) - 1 if constraints.kind[c] == ConstraintKind.OR else -1
        found: dict[int, Floats] = {}
        for at in range(mine.start, mine.stop):
            i, k = int(constraints.var[at]), int(constraints.state[at])
            weight = found.setdefault(i, np.zeros(self.card[i]))
            if k != EVERY_STATE:
                weight[k] = 2.0 if at == output else constraints.weight[at]
        if output >= 0:
            last = int(constraints.var[output])
            found[last] = found.pop(last)
        return found

    def link(self, i: int, weight: Floats, gain: Ints) -> None:
        self.variables.append(i)
        self.at.append(self.n_gains)
        self.gains.append(gain)
        self.weights.append(weight)
        self.owners.append(len(self.records))
        self.n_gains += len(gain)

    def limits(self, c: int, scale: float, slack: int) -> tuple[int, int]:
        """Return the limits on the sum of gains, wide enough for every labelling that satisfies the constraint."""
        far = 2 * LARGEST_SUM
        least, most = float(self.constraints.least[c]), float(self.constraints.most[c])
        if self.constraints.kind[c] != ConstraintKind.LINEAR:
            return int(self.constraints.lower[c]) if np.isfinite(self.constraints.lower[c]) else 0, far
        low = max(-far, int(np.floor(max(-far, least * scale))) - slack)
        return low, min(far, int(np.ceil(min(far, most * scale))) + slack)

    def price_limits(self, begin: int, limits: tuple[int, int], penalty: int) -> tuple[int, int]:
        """Return the minimum and maximum price: no excess times its price may exceed the cost of a violation."""
        low = sum(int(gain.min()) for gain in self.gains[begin:])
        high = sum(int(gain.max()) for gain in self.gains[begin:])
        below, above = limits[0] - low, high - limits[1]
        size = max(abs(low) + abs(high), abs(limits[0]) * (below > 0), abs(limits[1]) * (above > 0), 1)
        most = LARGEST_COST // (4 * size)
        lowest = -min(most, penalty // below) if below > 0 else 0
        return lowest, min(most, penalty // above) if above > 0 else 0

    def layout(self) -> ConstraintLayout:
        n, n_constraints = self.problem.n_vars, len(self.records)
        records, links = blanks(ConstraintRecord, n_constraints), blanks(LinkRecord, len(self.variables))
        for at, name in enumerate(ConstraintRecord.__annotations__):
            if name != "reasons":
                records[name] = [record[at] for record in self.records]
        links.variable, links.gains = self.variables, self.at
        variables = np.array(self.variables, dtype=np.int64)
        states = 1 + int(self.card.max(initial=0))
        room = ConstraintRoom(
            *(np.zeros(n_constraints, dtype=np.int64) for _ in range(2)),
            *(np.zeros(states, dtype=np.int64) for _ in range(5)),
        )
        network = ConstraintNetwork(
            records=records,
            links=links,
            gains=np.concatenate([np.zeros(0, dtype=np.int64), *self.gains]),
            weights=np.concatenate([np.zeros(0), *self.weights]),
            of_variable=np.array(self.owners, dtype=np.int64)[np.argsort(variables, kind="stable")],
            room=room,
        )
        return ConstraintLayout(network, offsets(np.bincount(variables, minlength=n)), self.n_cells)
