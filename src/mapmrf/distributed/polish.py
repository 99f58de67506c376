"""Improve labels part by part: each in turn improves its own variables, with those across the cut fixed.

Parts that share a factor have different colours, and all parts of a colour are improved at once. So a gain of a part is
a gain of the whole, and the value never decreases.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from mapmrf.arrays import Ints, ranges
from mapmrf.distributed.halo import Halo, Local
from mapmrf.distributed.parts import Part
from mapmrf.distributed.run import PartedModel
from mapmrf.model.graph import FactorGraph
from mapmrf.run.method import Method
from mapmrf.run.solve import solve

ROUNDS = 10  # maximum number of rounds over all colours; it ends earlier if no part gains


def polished(
    model: PartedModel, labels: Ints, method: Method, seconds: Callable[[], float | None], stop: Callable[[], bool]
) -> Ints:
    """Labels of the parts of this rank, improved until no part gains or `stop()`; all ranks call this.

    `seconds` is the remaining time; `stop` must return the same on all ranks.
    """
    labels = labels.astype(np.int64)
    colours = colour_parts(model)
    exchange = _label_halo(model)
    for _ in range(ROUNDS):
        gained = False
        for colour in range(max(colours) + 1):
            for part, where in zip(model.parts, model.slices, strict=True):
                if colours[part.number] == colour:
                    gained |= _improve(part, labels[where], method, seconds())
            values = labels.astype(np.float64)
            exchange.exchange(values)
            labels[:] = values
            if stop():
                return labels
        if not any(model.ranks.allgather(gained)):
            break
    return labels


def _improve(part: Part, labels: Ints, method: Method, seconds: float | None) -> bool:
    """Improve the own variables of a part in place; return whether that gained anything."""
    graph = with_fixed_halo(part, labels)
    found = solve(graph, method, initial=labels, time_limit=seconds)
    if not found.value > graph.value(labels):
        return False
    labels[: part.n_own] = found.labels[: part.n_own]
    return True


def with_fixed_halo(part: Part, labels: Ints) -> FactorGraph:
    """The part as a model in which the variables of the halo are fixed to their labels."""
    graph, own = part.graph, part.n_own
    theta_v = graph.theta_v.copy()
    at = graph.var_ptr[own:-1]
    theta_v[ranges(at, graph.card[own:])] = -np.inf
    theta_v[at + labels[own:]] = 0.0
    return replace(graph, theta_v=theta_v, constant=0.0)


def colour_parts(model: PartedModel) -> list[int]:
    """A colour for every part, different from its neighbours'."""
    mine = [part.neighbours.tolist() for part in model.parts]
    neighbours = [one for some in model.ranks.allgather(mine) for one in some]
    colours: list[int] = []
    for part, others in enumerate(neighbours):
        taken = {colours[other] for other in others if other < part}
        colours.append(next(colour for colour in range(len(neighbours)) if colour not in taken))
    return colours


def _label_halo(model: PartedModel) -> Halo:
    """An exchange of labels: one number for every variable."""
    pairs = zip(model.parts, model.slices, strict=True)
    return Halo(model.ranks, [Local(part, where.start, np.arange(part.graph.n_vars + 1)) for part, where in pairs])
