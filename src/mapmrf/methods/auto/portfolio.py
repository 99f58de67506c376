"""The phases of `auto` after the relaxation: simplify, eliminate, then search and prove in turn."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Generator, Iterator
from typing import TYPE_CHECKING

import numpy as np

from mapmrf.arrays import Bools, Ints
from mapmrf.engines.elimination.elimination import BucketTree, Elimination, Functions
from mapmrf.engines.elimination.orders import Order, PrimalGraph, fill_orders
from mapmrf.engines.flow.cut_model import UNDECIDED, persistent_states, why_no_roof
from mapmrf.engines.moves.annealing import AnnealingReads
from mapmrf.engines.moves.blocks import BlockMoves
from mapmrf.engines.moves.chains import ChainSearch, FlipSearch
from mapmrf.engines.moves.crossover import Crossover
from mapmrf.engines.moves.kicks import SearchKicks, largest_kick
from mapmrf.engines.program.binary_program import is_compact
from mapmrf.engines.reduction.simplify import Simplified, excluded_states, simplify_in_steps, solve_small
from mapmrf.methods.auto.feasibility import FeasibilityPhase
from mapmrf.methods.auto.provers import Provers, dense_searchers, is_dense
from mapmrf.methods.auto.relax import EarlyTrial, Scout, Scouts
from mapmrf.methods.auto.scheduler import Race
from mapmrf.methods.auto.settings import SETTINGS
from mapmrf.methods.auto.state import Phase, SharedState, Steps
from mapmrf.model.problem import Problem
from mapmrf.run import pace
from mapmrf.run.method import Method, Progress, Start, running
from mapmrf.run.result import Status

if TYPE_CHECKING:
    from mapmrf.methods.auto import Auto


class Portfolio:
    """All phases after the relaxation, on the simplified model."""

    # reduced, problem: the simplification, and the simplified model
    reduced: Simplified
    problem: Problem
    search: PoolSearch  # the pool of labellings of the simplified model
    race: Race  # the turns of searchers and provers

    def __init__(
        self, options: Auto, shared: SharedState, seed: int, feasibility: FeasibilityPhase | None = None,
        scouts: Scouts | None = None, trial: EarlyTrial | None = None,
    ) -> None:  # fmt: skip
        # shared: incumbent and bound of the original model
        self.options, self.shared, self.seed = options, shared, seed
        self.feasibility = FeasibilityPhase(shared, seed) if feasibility is None else feasibility
        self.scouts = Scouts(shared, seed) if scouts is None else scouts
        self.trial = trial

    def run(self) -> Iterator[Progress]:
        """Run all phases; the loop ends the run once the gap is closed."""
        yield from self.reduce()
        yield from self.eliminate()
        shared, options = self.shared, self.options
        if not shared.has_room_for(("blocks",), self.problem):
            yield shared.report("search", Status.CONVERGED)
            return
        wide = shared.incumbent.gap > SETTINGS.wide_gap
        annealed = wide and is_compact(self.problem) and shared.has_room_for(("annealing",), self.problem)
        if annealed:  # chains have their turns in the race, and on dense models belief propagation, too
            if not is_dense(self.problem):
                yield from self.scouts.beliefs.turn()
        elif wide:  # the relaxation says little about good labellings: search before anything is proven
            yield from self.scouts.run()
        self.search = PoolSearch(self.problem, self.seed, options.width, options.pool)
        n_passes = 0 if annealed else SETTINGS.first_passes
        for _ in self.search.add(self.reduced.project(shared.incumbent.labels), n_passes):
            yield shared.step("blocks")
        yield self.searched("blocks")
        if wide and not annealed and shared.has_room_for(("chains",), shared.problem):
            best = shared.incumbent.labels
            found = [labels for labels in self.scouts.found if not np.array_equal(labels, best)]
            starts = [self.reduced.project(labels) for labels in found]
            for _ in self.search.follow_chains(starts):
                yield self.searched("chains")
        kicks = self.search.kicks(wide) if shared.has_room_for(("chains", "flips"), self.problem) else []
        kickers = [Phase(self.kick(make), SETTINGS.search_turn) for make in kicks]
        others = [Phase(self.start(not wide), SETTINGS.search_turn), Phase(self.restart(), SETTINGS.search_turn)]
        if wide:
            left = (scout for scout in (self.scouts.beliefs, self.scouts.chains) if not scout.over)
            others += [Phase(self.scout(scout), SETTINGS.search_turn) for scout in left]
        searchers = [*kickers, *others]
        if is_dense(self.problem) and shared.has_room_for(("tabu",), self.problem):
            searchers = dense_searchers(self, searchers)
        provers = Provers(self).phases() if options.prove else []
        provers = [phase for phase in provers if not shared.is_refuted(phase.name)]
        if annealed:
            turn, weight = SETTINGS.anneal_turn, SETTINGS.anneal_weight
            searchers.insert(0, Phase(self.anneal(), turn, weight, first=turn, least=self.least_of_annealing))
            for phase in provers:
                if phase.name == "branch":
                    phase.skipped = SETTINGS.branch_waits
                elif phase.name == "sdp" and self.problem.n_vars > SETTINGS.sdp_small:
                    phase.skipped = SETTINGS.sdp_waits
        if wide and any(phase.name == "wcsp" for phase in provers):  # its first turn is long and may be the last one
            searchers = [*others, *kickers]
            for phase, first in zip(others, (SETTINGS.starts_first, SETTINGS.search_turn, 0, 0), strict=False):
                phase.first, phase.skipped = first, 1
            for phase in provers:
                if phase.name == "cuts":  # a first relaxation of seconds, which such a gap makes useless
                    phase.skipped = SETTINGS.program_waits
        if self.feasibility.is_needed:
            searchers.insert(0, Phase(self.feasibility.run(), SETTINGS.feasible_turn))
        self.race = Race(self, searchers, provers)
        yield from self.race.run()

    def close(self) -> None:
        if "race" in vars(self):
            self.race.close()
        self.scouts.close()

    def reduce(self) -> Iterator[Progress]:
        shared = self.shared
        self.reduced = Simplified(shared.problem, ())
        simplify = self.options.simplify and not shared.is_refuted("simplify")
        excluded = self.excluded() if simplify else np.zeros(0, dtype=bool)
        few = len(excluded) - np.count_nonzero(excluded) <= SETTINGS.simplify_states + shared.problem.n_vars
        worthwhile = bool(few) and shared.has_room_for(("branch",), shared.problem)  # `branch` starts with the same
        shared.release("branch")
        if simplify and worthwhile:
            self.reduced = yield from self.simplified(excluded)
        if simplify and worthwhile and self.reduced.feasible:
            self.reduced = solve_small(self.reduced)
        if not self.reduced.feasible:
            yield shared.prove("simplify", -math.inf)
        self.problem = self.reduced.problem
        shared.details |= {"variables": float(self.problem.n_vars), **self.reduced.counts.details()}
        shared.incumbent.offer(self.reduced.lift(self.reduced.project(shared.incumbent.labels)))
        if self.problem.n_vars == 0:
            yield shared.prove("simplify", shared.incumbent.value)
        yield shared.step("simplify")

    def simplified(self, excluded: Bools) -> Generator[Progress, None, Simplified]:
        steps = simplify_in_steps(self.shared.problem, excluded)
        while True:
            try:
                next(steps)
            except StopIteration as end:
                simplified: Simplified = end.value
                return simplified
            yield self.shared.report("simplify")

    def excluded(self) -> Bools:
        """States that no optimal labelling needs, (n_states,), by the relaxation's bound or by roof duality."""
        shared, problem = self.shared, self.shared.problem
        excluded: Bools = np.zeros(problem.n_states, dtype=bool)
        if shared.state_bounds is not None and shared.incumbent.value > -math.inf:
            excluded |= excluded_states(problem, shared.state_bounds, shared.incumbent.value)
        roof_fits = self.options.flow and problem.only_binary and why_no_roof(problem) is None
        roof_fits = roof_fits and not shared.is_refuted("qpbo")
        if roof_fits and shared.has_room_for(("qpbo",), problem):
            states, bound = persistent_states(problem)
            shared.incumbent.tighten(bound, "qpbo")
            decided = np.flatnonzero(states != UNDECIDED)
            excluded[2 * decided + 1 - states[decided]] = True
            shared.details["variables_by_roof_duality"] = float(len(decided))
            shared.release("qpbo")
        shared.state_bounds = None
        if not shared.is_refuted("feasible"):
            excluded |= self.feasibility.excluded()
        return excluded

    def eliminate(self) -> Iterator[Progress]:
        if self.problem.n_vars > SETTINGS.narrow_variables or self.options.elimination_entries == 0:
            return
        if self.shared.is_refuted("eliminate"):
            return
        shared, model = self.shared, self.problem.graph
        graph = PrimalGraph.of(self.problem)
        order: Order | None = None
        most_entries = self.options.elimination_entries
        # A graph of width w has at most w edges per variable.
        if len(graph.nbr) / 2 * math.log2(model.card.min()) > graph.n * math.log2(most_entries):
            return
        for found in fill_orders(graph, model.card, self.seed, SETTINGS.narrow_orders, most_entries):
            order = found if found.better_than(order) else order
            yield shared.step("eliminate")
        if order is None or order.n_known < graph.n:
            return
        tree = BucketTree.build(graph, model.card, order)
        if Elimination.bytes_needed(tree) > self.options.memory * 2**20:
            return
        shared.details["width"] = float(order.width)
        elimination = Elimination(tree, Functions.of_model(self.problem, tree))
        while not elimination.finished:
            elimination.advance(pace.ADDITIONS, tree.n)
            if not elimination.finished:
                yield shared.step("eliminate")
        if elimination.value > -math.inf:
            shared.incumbent.offer(self.reduced.lift(elimination.labels()))
        yield shared.prove("eliminate", elimination.value + model.constant)

    def scout(self, scout: Scout) -> Steps:
        for step in scout.steps:
            self.search.learn(self.reduced.project(self.shared.incumbent.labels))
            yield step

    def start(self, beliefs: bool) -> Steps:
        """Starting points for the pool, from belief propagation too if that is still to come."""
        from mapmrf.methods.bp import BP
        from mapmrf.methods.lslp import LSLP  # another phase may end the run before

        if beliefs:
            yield from self.follow(BP(max_iterations=SETTINGS.bp_iterations))
        n_starts, lp_phase = self.options.starts, self.shared.incumbent.gap <= SETTINGS.wide_gap
        limit = SETTINGS.start_iterations * (n_starts + lp_phase)
        yield from self.follow(LSLP(starts=n_starts, lp_phase=lp_phase, beliefs=0, climb=False, max_iterations=limit))

    def follow(self, method: Method) -> Steps:
        """Run a method to its end, and add its labellings to the pool."""
        if self.shared.admits(method, self.problem):
            for step in self.search.follow(method):
                self.shared.incumbent.tighten(step.bound, step.phase)
                yield self.searched(step.phase)

    def restart(self) -> Steps:
        while True:
            self.search.restart_regions()
            yield self.searched("restarts")

    def kick(self, make: Callable[[], SearchKicks]) -> Steps:
        for _ in self.search.kick(make()):
            yield self.searched("kicks")

    def anneal(self) -> Steps:
        """Anneal without end; the pool takes over the better parts of every read."""
        for found in AnnealingReads(self.problem, self.seed).run(lambda: self.search.best):
            for labels in found:
                self.search.learn(labels)
            yield self.searched("annealing")

    def least_of_annealing(self) -> float:
        """Least weight: a long read, which helps only at its end, keeps its turns while the gap is wide."""
        return SETTINGS.anneal_least if self.shared.incumbent.gap > SETTINGS.wide_gap else SETTINGS.weight_least

    def searched(self, phase: str) -> Progress:
        self.offer_pool()
        return self.shared.step(phase)

    def offer_pool(self) -> None:
        if self.search.value > self.shared.incumbent.value:
            self.shared.incumbent.offer(self.reduced.lift(self.search.best))


# The search of `auto`: starting points from several methods, exact blocks, crossover, and restarts of regions.


class PoolSearch:
    """A pool of labellings of one problem that is improved step by step."""

    def __init__(self, problem: Problem, seed: int, width: float, pool: int) -> None:
        self.problem, self.seed, self.width, self.size = problem, seed, width, pool
        self.moves, self.crossover = BlockMoves(problem, seed), Crossover(problem)
        # pool, values: the labellings and their values
        self.pool: list[Ints] = []
        self.values: list[float] = []
        self._n_steps = 0

    @property
    def best(self) -> Ints:
        return self.pool[int(np.argmax(self.values))]

    @property
    def value(self) -> float:
        return max(self.values)

    def add(self, labels: Ints, n_passes: int = SETTINGS.first_passes) -> Iterator[None]:
        """Improve a starting point by exact blocks and add it to the pool."""
        # The pool's best labelling takes over its better parts. While the pool has room, the labelling itself joins it;
        # later it replaces the worst one if it is better. Yields after every block, so that large models can be
        # interrupted.
        labels = np.array(labels, dtype=np.int64)
        for _ in range(n_passes):
            for block in self._blocks():
                self.moves.optimise(labels, SETTINGS.first_width, block)
                yield
        value = self.problem.graph.value(labels)
        if self.pool:
            self.learn(labels)
        if len(self.pool) < self.size:
            self.pool.append(labels)
            self.values.append(value)
        elif value > min(self.values):
            worst = int(np.argmin(self.values))
            self.pool[worst], self.values[worst] = labels, value

    def _blocks(self) -> Iterator[Ints]:
        """All variables in random order; on large models, batches of layers around a random variable."""
        n = self.problem.n_vars
        if n <= SETTINGS.block_variables:
            yield self.moves.random.permutation(n)
            return
        layers = self.moves.neighbourhood(n)
        rest = np.setdiff1d(np.arange(n), layers)  # other connected components
        for part in (layers, rest):
            for at in range(0, len(part), SETTINGS.block_variables):
                yield self.moves.random.permutation(part[at : at + SETTINGS.block_variables])

    def learn(self, labels: Ints) -> None:
        """Let the best labelling of the pool take over the better parts of one found by another method."""
        if self.problem.graph.value(labels) > -math.inf:
            self.fuse(int(np.argmax(self.values)), labels)

    def fuse(self, place: int, other: Ints, region: Ints | None = None) -> None:
        """Let a labelling of the pool take over the better parts of another one."""
        self.crossover.fuse(self.pool[place], other, region)
        self.values[place] = self.problem.graph.value(self.pool[place])

    def follow_chains(self, others: list[Ints]) -> Iterator[None]:
        """Improve the best labelling by chains of flips, until none helps; then others, which join the pool."""
        chains = ChainSearch(self.problem, SETTINGS.chain_length, 1, self.seed)
        for k, labels in enumerate([self.best, *others]):
            chains.restart(labels)
            while not chains.at_rest:
                chains.run(SETTINGS.kick_entries)
                self.learn(chains.labels())
                yield
            if k > 0:
                yield from self.add(chains.labels())

    def follow(self, method: Method) -> Iterator[Progress]:
        """Run a method to its end; each of its phases gives a starting point."""
        labels, phase, bound, reported, over = None, "", math.inf, 0, False
        with running(method, self.problem, self.seed, Start()) as state:
            while not over:
                step = method.step(self.problem, state)
                done = step.iterations
                over = step.finished is not None or done >= method.max_iterations
                if labels is not None and (over or step.phase != phase):
                    for _ in self.add(labels):
                        yield Progress(done, phase="blocks")
                if step.labels is not None:
                    labels = step.labels.copy()
                    if step.value is not None and step.value > self.value:  # known to others at once
                        self.learn(labels)
                phase = step.phase
                bound = bound if step.bound is None else min(bound, step.bound)
                if over or (done - reported) * self.problem.n_configs >= SETTINGS.step_configs:
                    reported = done
                    yield Progress(done, bound=bound if bound < math.inf else None, phase=method.name)

    def restart_regions(self) -> None:
        """Restart some regions of one labelling, and keep the improvements."""
        self._n_steps += 1
        place = self._n_steps % len(self.pool)
        now = self.pool[place]
        trial = now.copy()
        end = self.moves.work + pace.POOL_SEARCH
        while self.moves.work < end:
            self.moves.work += SETTINGS.region_entries
            region = self._disturbed_region(trial)
            self.crossover.fuse(now, trial, region)
            trial[region] = now[region]
        self.values[place] = self.problem.graph.value(now)
        if self._n_steps % SETTINGS.mix_every == 0:
            first = int(np.argmax(self.values))
            for labels in self.pool:
                self.fuse(first, labels)

    def _disturbed_region(self, trial: Ints) -> Ints:
        """Perturb the centre of a random region, re-optimise the region, and return it."""
        moves, random, card = self.moves, self.moves.random, self.problem.graph.card
        size = int(np.exp(random.uniform(np.log(SETTINGS.region_least), np.log(SETTINGS.region_most))))
        region = moves.neighbourhood(min(size, self.problem.n_vars))
        if random.random() < 0.5:  # randomise the centre
            middle = region[: max(4, len(region) // 4)]
            trial[middle] = random.integers(0, card[middle])
        else:  # force the centre into other states, and let the rest adapt to it first
            middle = region[: int(random.integers(1, 20))]
            trial[middle] = (trial[middle] + random.integers(1, np.maximum(card[middle], 2))) % card[middle]
            moves.optimise(trial, self.width, random.permutation(region[len(middle) :]))
        for _ in range(2):
            moves.optimise(trial, self.width, random.permutation(region))
        return region

    def kicks(self, wide: bool) -> list[Callable[[], SearchKicks]]:
        """Return constructors of kicks that suit the model and the gap that is left, called when first used."""
        # Chains repair more than flips of pairs, but their cost grows with the number of states: either may be better.
        problem, seed = self.problem, self.seed

        def by_chains() -> SearchKicks:
            chains = ChainSearch(problem, SETTINGS.chain_length, 1, seed)
            return SearchKicks(problem, chains, largest_kick(problem.n_vars), seed)

        def by_flips() -> SearchKicks:
            return SearchKicks(problem, FlipSearch(problem, SETTINGS.flip_depth), SETTINGS.flip_kick, seed)

        # With many states, a table holds few variables, which makes exact blocks narrow.
        if SETTINGS.few_per_table * float(np.log2(problem.graph.card).mean()) > self.width:
            return [by_flips, by_chains]
        return [by_chains] if wide or self.problem.n_vars >= SETTINGS.kick_variables else []

    def kick(self, kicks: SearchKicks) -> Iterator[None]:
        """Kick small regions and repair them, without end, on a separate labelling."""
        # Its improvements go to the best labelling of the pool. Once it falls behind and stops improving, it restarts
        # from there.
        kicks.restart(self.best)
        known, n_idle = -math.inf, 0
        while True:
            if n_idle >= SETTINGS.kick_idle and known < self.value:
                kicks.restart(self.best)
                n_idle = 0
            kicks.run(SETTINGS.kick_entries, sys.maxsize, 0.0)
            labels = kicks.labels()
            value = self.problem.graph.value(labels)
            n_idle = 0 if value > known else n_idle + 1
            if value > known:
                self.learn(labels)
            known = value
            yield
