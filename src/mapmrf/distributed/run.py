"""A run of LS-LP on a model in parts: its layout on this rank, its starting point, and its answer."""

from __future__ import annotations

import dataclasses
import json
import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any, NamedTuple, cast

import numpy as np

from mapmrf._version import __version__
from mapmrf.arrays import Floats, Ints, compact, ranges, segment_argmax
from mapmrf.distributed.engine import Halo, Local, PartedEngine, part_layout
from mapmrf.distributed.evaluation import PartedIncumbent, write_labels
from mapmrf.distributed.parts import Part, PartFolder, Ranks, first_factors, parts_of, together
from mapmrf.engines.admm.engine import Engine
from mapmrf.engines.admm.layout import harden, impossible
from mapmrf.engines.admm.lslp_run import LSLPOptions, LSLPRun
from mapmrf.engines.admm.measurement import Measurement
from mapmrf.engines.admm.penalty import interaction_scale, interaction_sum
from mapmrf.engines.admm.structs import BatchRow, FactorKind
from mapmrf.errors import GraphError, UnsupportedModel
from mapmrf.methods.lslp import LSLP
from mapmrf.methods.trws import TRWS
from mapmrf.model.graph import FactorGraph
from mapmrf.model.polytope import (
    Kind,
    KindFractions,
    Residuals,
    integral,
    kind_by_counts,
    kinds_of_variables,
    residuals,
)
from mapmrf.model.problem import Batch, Problem
from mapmrf.run.incumbent import relative_gap
from mapmrf.run.method import Method, Start
from mapmrf.run.result import Result, Status, TracePoint, plain
from mapmrf.run.solve import solve

BLOCK = 1 << 16  # random numbers drawn together


class PartedModel(NamedTuple):
    """The parts of this rank, and the sizes of the whole model."""

    ranks: Ranks
    parts: list[Part]
    n_vars: int
    n_factors: int
    n_configs: int

    @classmethod
    def read(cls, ranks: Ranks, folder: PartFolder) -> PartedModel:
        """Read the parts of this rank; an error in any of them is raised on all ranks."""
        counts = folder.counts
        mine = parts_of(ranks.rank, ranks.size, counts.n_parts)
        parts = together(ranks, lambda: list(folder.read(mine)))
        tables = [(part.graph.table_ptr, part.graph.table_of[: part.n_constrained]) for part in parts]  # counted here
        n_configs = sum(ranks.allgather(sum(int(np.diff(ptr)[of].sum()) for ptr, of in tables)))
        return cls(ranks, parts, counts.n_vars, counts.n_factors, n_configs)

    @property
    def slices(self) -> list[slice]:
        ends = np.cumsum([0, *(part.graph.n_vars for part in self.parts)]).tolist()
        return [slice(begin, end) for begin, end in pairwise(ends)]

    def unary_labels(self) -> Ints:
        """The best state of every variable on its own."""
        return np.concatenate([segment_argmax(part.graph.theta_v, part.graph.var_ptr) for part in self.parts])

    def pick(self, labels: Ints) -> Ints:
        """Select the labels of this rank's variables from those of all; raise GraphError unless they are legal."""
        if labels.shape != (self.n_vars,):
            raise GraphError(f"{labels.size} labels, expected one for each of the {self.n_vars} variables")
        return np.concatenate([part.graph.check_labels(labels[part.var]) for part in self.parts])


class PartedRun(LSLPRun):
    """The run of a model in parts: the same phases as on a whole model, with the same decisions on every rank.

    There is ADMM only, and no search beside it. `rested_labels` are the best labels at which a phase has converged.
    """

    def __init__(
        self,
        options: LSLPOptions,
        model: PartedModel,
        engine: PartedEngine | None,
        unit: float,
        seed: int,
        start: Start,
        gap_unit: float,
    ) -> None:
        super().__init__(options, cast(Engine | None, engine), unit, seed, start)  # it has what the phases use
        self.model, self._gap_unit, self._parted = model, gap_unit, engine
        self.rested_labels: Ints | None = None
        self.rested_value = -math.inf

    @property
    def may_believe(self) -> bool:
        return False

    def save_dual(self) -> None:
        """Do nothing: no rank has all multipliers."""

    @property
    def idle(self) -> bool:
        return self.model.n_factors == 0

    @property
    def n_configs(self) -> int:
        return self.model.n_configs

    @property
    def gap_unit(self) -> float:
        return self._gap_unit

    @property
    def parted(self) -> PartedEngine:
        assert self._parted is not None
        return self._parted

    def starting_point(self, first: bool, number: int) -> Floats:
        """The same starting point as on a whole model; only random labels are drawn differently."""
        found, start = [], self.options
        for part, engine, where in zip(self.model.parts, self.parted.engines, self.model.slices, strict=True):
            layout, problem, card = engine.layout, engine.problem, part.graph.card
            if first and self.initial.labels is not None:
                mu_v = integral(problem, self.initial.labels[where])[0]
            elif start.start_from == "onehot":
                drawn = (uniform_at([self.seed, number], part.var) * card).astype(np.int64)
                mu_v = integral(problem, drawn)[0]
            else:
                places = ranges(part.state_at, card)
                mu_v = -start.noise + 2.0 * start.noise * uniform_at([self.seed, number], places)
                mu_v += np.repeat(1.0 / card, card)
            found.append(layout.compress(mu_v))
        return np.concatenate(found)

    def keep_rested(self, found: Measurement) -> None:
        """Keep the labelling at which a phase has converged, if it is the best of these."""
        if self.rested_labels is None or found.value > self.rested_value:
            self.rested_labels, self.rested_value = compact(self.parted.labels).copy(), found.value


def uniform_at(seed: Sequence[int] | int, places: Ints, skip: int = 0) -> Floats:
    """Some numbers of the stream ``default_rng(seed).random()``, without drawing all of them."""
    out = np.empty(len(places))
    block = places // BLOCK
    if len(places) == 0:
        return out
    order = np.argsort(block, kind="stable") if np.any(np.diff(block) < 0) else np.arange(len(places))
    cuts = np.flatnonzero(np.diff(block[order])) + 1
    for some in np.split(order, cuts):
        generator = np.random.default_rng(seed)
        number = int(block[some[0]])
        generator.bit_generator.advance(skip + number * BLOCK)  # type: ignore[attr-defined]
        inside = places[some] - number * BLOCK
        out[some] = generator.random(int(inside.max()) + 1)[inside]
    return out


def start_run(method: LSLP, model: PartedModel, seed: int, start: Start, best: PartedIncumbent) -> PartedRun:
    ranks = model.ranks
    hard = together(ranks, lambda: [_hardened(method, part) for part in model.parts])
    if any(ranks.allgather(any(map(impossible, hard)))):
        return PartedRun(method, model, None, 1.0, seed, start, best.scale.unit)
    kind = method.epsilon == 0, method.sphere == "factors"
    layouts = [part_layout(part, each, *kind) for part, each in zip(model.parts, hard, strict=True)]
    engine = PartedEngine(ranks, model.parts, layouts)
    run = PartedRun(method, model, engine, _interaction(model, hard), seed, start, best.scale.unit)
    run.best_value = best.value
    run.begin()
    return run


def _hardened(method: LSLP, part: Part) -> Problem:
    problem = Problem.compile(part.graph)
    reason = method.supports(problem)
    if reason is not None:
        raise UnsupportedModel(f"{method.name} cannot solve this model: {reason}")
    return problem if impossible(problem) else harden(problem)


def _interaction(model: PartedModel, problems: Sequence[Problem]) -> float:
    """`interaction_scale` of the whole model: the mean over the factors that each part counts."""
    if len(problems) == model.ranks.size == 1:
        return interaction_scale(problems[0])
    mine = [_part_interaction(part, each) for part, each in zip(model.parts, problems, strict=True)]
    total = spread = 0.0
    n = 0
    for some in model.ranks.allgather(mine):
        for interaction, unary, count in some:
            total, spread, n = total + interaction, spread + unary, n + count
    if total > 0:
        return total / model.n_factors
    return spread / n if spread > 0 else 1.0


def _part_interaction(part: Part, problem: Problem) -> tuple[float, float, int]:
    """Sum of the interactions of the counted factors, and sum and number of the finite unary potentials."""
    graph, n = problem.graph, part.n_constrained
    states = graph.theta_v[: graph.var_ptr[part.n_own]]
    finite = np.abs(states[np.isfinite(states)])
    unary = float(finite.sum()), len(finite)
    if n == 0:
        return 0.0, *unary
    return interaction_sum(Problem.compile(first_factors(graph, n, np.zeros(len(graph.theta_v))))), *unary


def classify_parts(run: PartedRun, tolerance: float) -> tuple[Kind, KindFractions, Residuals]:
    """Kind of the iterates, and their distance from L_G; see `mapmrf.model.polytope.classify`."""
    mine = [_part_kinds(part, number, run, tolerance) for number, part in enumerate(run.model.parts)]
    found = [one for some in run.model.ranks.allgather(mine) for one in some]
    integer, uniform, several = (sum(one[0][k] for one in found) for k in range(3))
    worst = Residuals(*(max(getattr(one[1], name) for one in found) for name in Residuals.__dataclass_fields__))
    return kind_by_counts(run.model.n_vars, (integer, uniform, several), worst, tolerance)


def _part_kinds(part: Part, number: int, run: PartedRun, tolerance: float) -> tuple[tuple[int, int, int], Residuals]:
    """Own variables that are integer, that are uniform, and that have several states; and the part's residuals."""
    engine = run.parted.engines[number]
    problem = engine.problem
    mu_v = engine.variables()
    mu_v[part.graph.theta_v == -np.inf] = 0.0
    integer, uniform = kinds_of_variables(problem, mu_v, tolerance)
    own = slice(0, part.n_own)
    counts = int(integer[own].sum()), int(uniform[own].sum()), int(np.count_nonzero(part.graph.card[own] > 1))
    return counts, residuals(problem, mu_v, engine.factor_marginals)


# -- The result of a run on a model in parts --------------------------------------------------------------------------


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
    >>> import tempfile, mapmrf
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = mapmrf.distributed.partition(mapmrf.datasets.grid(5, 5, coupling=2.0, seed=1), folder, 2)
    ...     result = mapmrf.distributed.solve(folder)
    ...     result.write_labels(folder + "/labels")
    ...     labels = mapmrf.distributed.join_labels(folder + "/labels")
    >>> graph = mapmrf.datasets.grid(5, 5, coupling=2.0, seed=1)
    >>> graph.value(labels) == graph.value(result.gather()) == result.value == result.whole().value
    True
    >>> print(result.summary().splitlines()[0])
    model          25 variables, 40 factors, 2 parts on 1 rank
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
        """Write the labels, a file for every part; all ranks must call it."""
        model = self.model
        together(model.ranks, lambda: write_labels(folder, model.parts, self.labels, model.slices))

    def gather(self) -> Ints:
        """The labels of the whole model (n_vars,), on every rank; all ranks must call it."""
        model = self.model
        pairs = zip(model.parts, model.slices, strict=True)
        mine = [(part.var[: part.n_own], self.labels[where][: part.n_own]) for part, where in pairs]
        whole = np.zeros(model.n_vars, dtype=np.int64)
        for some in model.ranks.allgather(mine):
            for places, labels in some:
                whole[places] = labels
        return whole

    def whole(self) -> Result:
        """A `Result` with the labels of the whole model; all ranks must call it."""
        return self._as_result(self.gather())

    def _as_result(self, labels: Ints) -> Result:
        skipped = ("model", "labels", "n_violated")
        mine = {item.name: getattr(self, item.name) for item in dataclasses.fields(self) if item.name not in skipped}
        return Result(labels=labels, **mine)

    def summary(self) -> str:
        """Return a summary in a few lines."""
        model = self.model
        where = f"{self.model.parts[0].n_parts} parts on {model.ranks.size} rank{'' if model.ranks.size == 1 else 's'}"
        size = f"model          {model.n_vars} variables, {model.n_factors} factors, {where}"
        violated = [f"violated       {self.n_violated}"] if self.n_violated else []
        return "\n".join([size, *violated, self._as_result(np.zeros(0, dtype=np.int64)).summary(shown=0)])

    def to_json(self) -> str:
        """One JSON object without the labels."""
        data = json.loads(self._as_result(np.zeros(0, dtype=np.int64)).to_json())
        del data["labels"]
        counts = {"n_vars": self.model.n_vars, "n_factors": self.model.n_factors, "ranks": self.model.ranks.size}
        return json.dumps(data | counts | {"n_violated": plain(self.n_violated)})


# -- Improve labels part by part: each in turn improves its own variables, with those across the cut fixed ------------
# Parts that share a factor have different colours, and all parts of a colour are improved at once. So a gain of a part
# is a gain of the whole, and the value never decreases.


def polished(
    model: PartedModel, labels: Ints, method: Method, seconds: Callable[[], float | None], stop: Callable[[], bool]
) -> Ints:
    """Labels of the parts of this rank, improved until no part gains or `stop()`; all ranks call this."""
    # `seconds` is the remaining time; `stop` must return the same on all ranks.
    labels = labels.astype(np.int64)
    colours = colour_parts(model)
    # An exchange of labels: one number for every variable.
    pairs = zip(model.parts, model.slices, strict=True)
    exchange = Halo(model.ranks, [Local(part, where.start, np.arange(part.graph.n_vars + 1)) for part, where in pairs])
    for _ in range(10):  # rounds over all colours; fewer if no part gains
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
    mine = [part.neighbours.tolist() for part in model.parts]
    neighbours = [one for some in model.ranks.allgather(mine) for one in some]
    colours: list[int] = []
    for part, others in enumerate(neighbours):
        taken = {colours[other] for other in others if other < part}
        colours.append(next(colour for colour in range(len(neighbours)) if colour not in taken))
    return colours


# An upper bound by dual decomposition over the parts: each has its factors, and multipliers where the model is cut.
# With LS-LP's multipliers at the cut, the parts are separate models whose values add up to that of the whole for any
# labelling. So bounds on the parts add up to a bound on the whole. TRW-S computes them, and is tighter than LS-LP's own
# multipliers where these have not converged.


def bound_of_parts(model: PartedModel, engine: PartedEngine, iterations: int) -> float:
    """The bound at the current multipliers, by iterations of TRW-S in every part; all ranks call this."""
    engine.settle()
    method = TRWS(max_iterations=iterations)
    mine = []
    for part, each in zip(model.parts, engine.engines, strict=True):
        found = solve(part_model(part, each), method, gap_tolerance=-1.0, abs_gap_tolerance=-1.0)
        mine.append(np.inf if found.bound is None else found.bound)
    total = 0.0
    for some in model.ranks.allgather(mine):
        for bound in some:
            total += bound
    return total


def part_model(part: Part, engine: Engine) -> FactorGraph:
    """The factors that a part counts, with multipliers in place of those that it does not count."""
    # An own variable has its potential less the multipliers of factors that others count; a copy has the multipliers of
    # the factors that are counted here. Over all parts, that adds up to the potential of the variable.
    graph, n = part.graph, part.n_constrained
    problem = engine.problem
    theta_v = graph.theta_v.copy()
    copies = theta_v[graph.var_ptr[part.n_own] :]
    copies[copies > -np.inf] = 0.0  # what is forbidden is forbidden everywhere
    lam = engine.multipliers()
    for row, batch in zip(engine.layout.rows, problem.batches, strict=True):
        number = problem.order[batch.factors]
        for k in range(batch.arity):
            at_cut = np.flatnonzero(number >= part.n_inside)
            given = _multipliers(engine, batch, row, at_cut, k, lam)
            variable, counted = batch.scope[at_cut, k], number[at_cut] < n
            own = variable < part.n_own
            sign = np.where(own & ~counted, -1.0, np.where(~own & counted, 1.0, 0.0))
            places = graph.var_ptr[variable][:, None] + np.arange(batch.shape[k])
            np.add.at(theta_v, places, sign[:, None] * given)
    return first_factors(graph, n, theta_v, graph.constant)


def _multipliers(engine: Engine, batch: Batch, row: BatchRow, rows: Ints, k: int, lam: Floats) -> Floats:
    """Multipliers of the k-th variable of some factors of a batch, a column per state."""
    # Those of compact variables are differences, and compact tables have lost their linear parts to the variables.
    layout = engine.layout
    if row.kind == FactorKind.PAIR2_COMPACT:
        tables = batch.tables(layout.problem.graph.theta_t, slice(0, batch.n))[rows].reshape(-1, 2, 2)
        low, high = tables.take(0, axis=1 + k).sum(axis=1), tables.take(1, axis=1 + k).sum(axis=1)
        half = 0.5 * lam[row.q_at + k * batch.n + rows] - (high - low) / 4
        return np.stack([-half, half], axis=1)
    widths = layout.tables.shape[row.shape_at + batch.arity : row.shape_at + 2 * batch.arity]
    start = row.q_at + rows * row.q_width + int(widths[:k].sum())
    if widths[k] < batch.shape[k]:
        half = 0.5 * lam[start]
        return np.stack([-half, half], axis=1)
    return np.asarray(lam[start[:, None] + np.arange(batch.shape[k])])
