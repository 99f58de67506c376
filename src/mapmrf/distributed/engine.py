"""ADMM on the parts of a rank: the iterations of `mapmrf.engines.admm.engine`, with copies and sums across ranks.

Copies of variables are exchanged while the factors inside the parts are updated, or on lattices the variables without
copies. All sums run over the parts in order, so results do not depend on which rank has which part.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from mapmrf.arrays import Floats, Ints, ranges
from mapmrf.distributed.parts import Part, Ranks, parts_of, rank_of
from mapmrf.engines.admm.engine import Engine
from mapmrf.engines.admm.layout import Layout
from mapmrf.engines.admm.measurement import Measurement
from mapmrf.engines.admm.penalty import PenaltyOptions
from mapmrf.engines.admm.structs import Share
from mapmrf.model.problem import Problem

SUMMED = ("bound", "value", "relaxed", "primal2", "sphere2", "changed")

LARGEST = ("primal_max", "integrality")


class PartedEngine:
    """A run of ADMM on the parts that this rank has, as LS-LP drives it: see `Engine`."""

    def __init__(self, ranks: Ranks, parts: Sequence[Part], layouts: Sequence[Layout]) -> None:
        self.ranks, self.parts = ranks, parts
        self.engines = [Engine(layout) for layout in layouts]  # one for every part of this rank
        locals_, begin = [], 0
        for part, engine in zip(parts, self.engines, strict=True):
            locals_.append(Local(part, begin, engine.layout.variables.var_at))
            begin += len(engine.mu)
        # mu, labels: concatenated over all its parts, including copies; the engines' arrays are slices of them
        self.mu: Floats = np.zeros(begin)
        self.labels: Ints = np.zeros(sum(len(engine.labels) for engine in self.engines), np.int64)
        at = 0
        for local, engine in zip(locals_, self.engines, strict=True):
            n = len(engine.labels)
            copied = np.unique(local.part.send) if local.part.n_parts > 1 else np.zeros(0, dtype=np.int64)
            engine.adopt(self.mu[local.begin : local.begin + len(engine.mu)], self.labels[at : at + n], copied)
            at += n
        self.halo = Halo(ranks, locals_)
        n_parts = parts[0].n_parts
        most = max(len(parts_of(rank, ranks.size, n_parts)) for rank in range(ranks.size))
        self._mine, self._everyones = np.zeros((most, 2)), np.zeros((ranks.size, most, 2))
        self._counts = [len(parts_of(rank, ranks.size, n_parts)) for rank in range(ranks.size)]
        self._summing: list[object] = []
        self.at_centre = False

    def close(self) -> None:
        for engine in self.engines:
            engine.close()

    # -- the start of a phase -----------------------------------------------------------------------------------------

    def configure(self, options: PenaltyOptions) -> None:
        for engine in self.engines:
            engine.configure(options)

    def set_blocks(self, size: int) -> None:
        """Put a separate sphere on every `size` variables of a part; 0 for one sphere over all."""
        for engine in self.engines:
            engine.set_blocks(size)

    def begin(self, mu: Floats, rho: float, *, multipliers: bool = False) -> None:
        """Start from mu, copies included; without `multipliers` all lam are 0, else they are kept."""
        self.settle()
        at = 0
        for engine in self.engines:
            n = len(engine.mu)
            engine.begin(mu[at : at + n], rho, multipliers=multipliers)
            at += n
        self.start_sums()

    def begin_factor_sphere(self) -> None:
        for engine in self.engines:
            engine.begin_factor_sphere()

    @property
    def rho(self) -> float:
        return self.engines[0].rho

    @property
    def last_rho(self) -> float:
        return self.engines[0].last_rho

    # -- iterations ---------------------------------------------------------------------------------------------------

    def run(self, n: int) -> None:
        """Do n iterations; copies and sums of the last one are still pending at the end."""
        if self.parts[0].n_parts == 1:  # the whole model, perhaps in the fastest layout
            self.engines[0].run(n)
            return
        for _ in range(n):
            self._project_factors()
            for engine in self.engines:
                engine.steps.update_inside()
            self.halo.finish(self.mu)
            for engine in self.engines:
                engine.steps.update_cut()
            self.update_upsilon()
            for engine in self.engines:
                engine.steps.update_boundary()
            self.halo.start(self.mu)
            for engine in self.engines:
                engine.steps.update_interior()
            self.start_sums()
            for engine in self.engines:
                engine.update_lam()
                engine.update_rho()

    def _project_factors(self) -> None:
        """Project onto the sphere of all factors, where there is one: before the factor step, which it pulls."""
        spheres = [engine.factor_sphere for engine in self.engines]
        mine = [
            (sphere.norm2(engine), sphere.radius2)
            for sphere, engine in zip(spheres, self.engines, strict=True)
            if sphere is not None
        ]
        if not mine:
            return
        total = radius2 = 0.0
        for some in self.ranks.allgather(mine):
            for norm2, target2 in some:
                total, radius2 = total + norm2, radius2 + target2
        scale = float(np.sqrt(radius2 / total)) if total > 0.0 else 1.0
        for sphere, engine in zip(spheres, self.engines, strict=True):
            if sphere is not None:
                sphere.project(engine, scale)

    def settle(self) -> None:
        self.halo.finish(self.mu)
        self._finish_sums()

    def start_sums(self) -> None:
        """Start summing the norm that the next projection needs; spheres of blocks do not need other parts."""
        self._finish_sums()
        if not self.engines[0].has_sphere or self.engines[0].sphere.blocks:
            return
        for number, engine in enumerate(self.engines):
            self._mine[number] = _total(engine.sphere.norm2), _total(engine.sphere.target2)
        self._summing = [self.ranks.gather_sums(self._mine, self._everyones)]

    def _finish_sums(self) -> None:
        if self._summing:
            self.ranks.finish(self._summing)
            self._summing = []

    def update_upsilon(self) -> None:
        """The scale of the projection: one for all parts, or one for every block."""
        if not self.engines[0].has_sphere:
            return
        if self.engines[0].sphere.blocks:
            for engine in self.engines:
                engine.update_upsilon()
            return
        # Squared norm and squared radius over all parts, in their order.
        self._finish_sums()
        total = target = 0.0
        for row, count in zip(self._everyones.reshape(self.ranks.size, -1, 2), self._counts, strict=True):
            for norm2, target2 in row[:count].tolist():
                total, target = total + norm2, target + target2
        scale = float(np.sqrt(target / total)) if total > 0.0 else 1.0
        for engine in self.engines:
            engine.sphere.scale[:] = scale

    # -- what the iterates say ----------------------------------------------------------------------------------------

    def measure(self) -> Measurement:
        """Decode labels, and sum up bound, value, relaxed value and residuals over all parts of all ranks."""
        self.settle()
        mine = [(engine.measure(), engine.at_centre) for engine in self.engines]
        found = [one for some in self.ranks.allgather(mine) for one in some]
        self.at_centre = any(centre for _, centre in found)
        if not self.engines[0].sphere.blocks:
            self.at_centre = all(centre for _, centre in found)
        sums = {name: sum(getattr(one, name) for one, _ in found) for name in SUMMED}
        return Measurement(**sums, **{name: max(getattr(one, name) for one, _ in found) for name in LARGEST})

    def inspect(self) -> Measurement:
        """Measure without decoding new labels."""
        before = self.labels.copy()
        found = self.measure()
        self.labels[:] = before
        return found


def _total(values: Floats) -> float:
    """A sum in the order of the chunks, as in the kernel of a single process."""
    total = 0.0
    for value in values.tolist():
        total += value
    return total


def part_layout(part: Part, problem: Problem, compact: bool, ridge: bool = False) -> Layout:
    """Lay out a part: the factors inside and counted here, and the edges of its variables as in the whole model."""
    # `problem` is the part's graph, perhaps hardened.
    if part.n_parts == 1:
        return Layout.build(problem, compact, ridge)
    inside, counted = (
        tuple(int(np.count_nonzero(problem.order[batch.factors] < n)) for batch in problem.batches)
        for n in (part.n_inside, part.n_constrained)
    )
    layout = Layout.build(problem, compact, ridge, share=Share(part.n_own, inside, counted))
    if layout.runs is None:
        # Sort the edges of variables at the cut by batch and by the factor's number in the whole model, in place.
        # So every variable sums its edges in the same order, however the model is cut.
        nbr_q = layout.variables.nbr_q
        at_cut = np.zeros(problem.n_vars, dtype=bool)
        at_cut[part.send] = True
        edges = np.flatnonzero(at_cut[problem.scope])
        edges = edges[np.argsort(problem.scope[edges], kind="stable")]  # as `nbr_q` has them, variable by variable
        of = problem.scope[edges]
        own, counts = np.unique(of, return_counts=True)
        places = ranges(problem.nbr_ptr[own], counts)
        factor = np.searchsorted(problem.scope_ptr, edges, side="right") - 1
        batch = np.searchsorted([each.factors.stop for each in problem.batches], factor, side="right")
        order = np.lexsort((part.factor[problem.order[factor]], batch, of))
        nbr_q[places] = nbr_q[places[order]]
    return layout


# -- Copies of variables across the cut: what is sent, to whom, and where it goes -------------------------------------


class Local(NamedTuple):
    """A part on this rank: the offset of its entries in the arrays of the rank, and of its variables in its own."""

    # `at` are the offsets of its variables' blocks, own ones and halo; for labels these are 0, 1, 2, ...

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
    """The exchange of copies: `start`, something else, `finish`."""

    # One message goes to every neighbouring rank; parts on the same rank copy directly. What is sent is the same, in
    # the same order, whatever the number of ranks.

    def __init__(self, ranks: Ranks, locals_: Sequence[Local]) -> None:
        self.ranks = ranks
        n_parts = locals_[0].part.n_parts
        mine = parts_of(ranks.rank, ranks.size, n_parts)
        home = rank_of(n_parts, ranks.size)
        by_number = {local.part.number: local for local in locals_}
        others = sorted({home[p] for local in locals_ for p in local.part.neighbours.tolist()} - {ranks.rank})
        self.routes = [_route(rank, parts_of(rank, ranks.size, n_parts), locals_) for rank in others]
        # Sources and targets of copies between the parts of this rank.
        source = target = np.zeros(0, dtype=np.int64)
        for sender in mine:
            for receiver in mine:
                if sender != receiver:
                    one, other = by_number[sender], by_number[receiver]
                    source = np.concatenate([source, one.places(one.part.sent_to(receiver))])
                    target = np.concatenate([target, other.places(other.part.copied_from(sender))])
        self._from, self._to = source, target
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
