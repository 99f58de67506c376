"""Copies of variables across the cut: what is sent, to whom, and where it goes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from mapmrf.arrays import Floats, Ints, ranges
from mapmrf.distributed.parts import Part
from mapmrf.distributed.ranks import Ranks, parts_of, rank_of


class Local(NamedTuple):
    """A part on this rank: the offset of its entries in the arrays of the rank, and of its variables in its own.

    `at` are the offsets of its variables' blocks, own ones and halo; for labels these are 0, 1, 2, ...
    """

    part: Part
    begin: int
    at: Ints

    def places(self, variables: Ints) -> Ints:
        """Positions of the entries of some variables of the part in the arrays of the rank."""
        return self.begin + ranges(self.at[variables], self.at[variables + 1] - self.at[variables])


class Route(NamedTuple):
    """Exchange with one rank: positions in this rank's array, and buffers."""

    rank: int
    out: Ints
    into: Ints
    sent: Floats
    received: Floats


class Halo:
    """The exchange of copies: `start`, something else, `finish`.

    One message goes to every neighbouring rank; parts on the same rank copy directly. What is sent is the same, in the
    same order, whatever the number of ranks.
    """

    def __init__(self, ranks: Ranks, locals_: Sequence[Local]) -> None:
        self.ranks = ranks
        n_parts = locals_[0].part.n_parts
        mine = parts_of(ranks.rank, ranks.size, n_parts)
        home = rank_of(n_parts, ranks.size)
        by_number = {local.part.number: local for local in locals_}
        others = sorted({home[p] for local in locals_ for p in local.part.neighbours.tolist()} - {ranks.rank})
        self.routes = [_route(rank, parts_of(rank, ranks.size, n_parts), locals_) for rank in others]
        self._from, self._to = _inside(mine, by_number)
        self._requests: list[Any] = []

    @property
    def n_sent(self) -> int:
        return sum(len(route.out) for route in self.routes)

    def start(self, values: Floats) -> None:
        """Send the copies; until `finish`, `values` may be read, but own variables must not be changed."""
        values[self._to] = values[self._from]
        for route in self.routes:
            self._requests.append(self.ranks.receive(route.received, route.rank))
        for route in self.routes:
            np.take(values, route.out, out=route.sent)
            self._requests.append(self.ranks.send(route.sent, route.rank))

    def finish(self, values: Floats) -> None:
        """Wait for the copies and store them; do nothing if none are pending."""
        if not self._requests:
            return
        self.ranks.finish(self._requests)
        self._requests = []
        for route in self.routes:
            values[route.into] = route.received

    def exchange(self, values: Floats) -> None:
        self.start(values)
        self.finish(values)


def _route(rank: int, theirs: range, locals_: Sequence[Local]) -> Route:
    """Both sides go through the pairs of parts in one order: by the part that sends, then by the one that receives."""
    none = np.zeros(0, dtype=np.int64)
    out = [local.places(local.part.sent_to(other)) for local in locals_ for other in theirs]
    into = [local.places(local.part.copied_from(other)) for other in theirs for local in locals_]
    places_out, places_in = np.concatenate([none, *out]), np.concatenate([none, *into])
    return Route(rank, places_out, places_in, np.empty(len(places_out)), np.empty(len(places_in)))


def _inside(mine: range, by_number: dict[int, Local]) -> tuple[Ints, Ints]:
    """Sources and targets of copies between the parts of this rank."""
    source = target = np.zeros(0, dtype=np.int64)
    for sender in mine:
        for receiver in mine:
            if sender != receiver:
                one, other = by_number[sender], by_number[receiver]
                source = np.concatenate([source, one.places(one.part.sent_to(receiver))])
                target = np.concatenate([target, other.places(other.part.copied_from(sender))])
    return source, target
