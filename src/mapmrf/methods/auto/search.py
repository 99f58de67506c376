"""The search of `auto`: starting points from several methods, exact blocks, crossover, and restarts of regions."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterator

import numpy as np

from mapmrf.arrays import Ints
from mapmrf.engines.moves.blocks import BlockMoves
from mapmrf.engines.moves.chains import ChainSearch
from mapmrf.engines.moves.crossover import Crossover
from mapmrf.engines.moves.flips import FlipSearch
from mapmrf.engines.moves.kicks import ChainKicks, FlipKicks, SearchKicks
from mapmrf.methods.bp import BP
from mapmrf.methods.lslp import LSLP
from mapmrf.model.problem import Problem
from mapmrf.run.method import Method, Progress, Start, running

Admission = Callable[[Method, Problem], bool]
"""Predicate: whether a method may run on a problem."""

FIRST_WIDTH, FIRST_PASSES = 9.0, 3
"""Block passes over every starting point, with tables of at most 512 entries, which is quick."""

SMALLEST, LARGEST = 60, 400
"""Size of a restarted region, drawn uniformly on a logarithmic scale."""

STEP_ENTRIES = 20_000_000
"""Table entries processed by the restarts of one step: some 20 ms."""

REGION_ENTRIES = 100_000
"""Fixed cost of restarting a region, in table entries."""

BLOCK_VARIABLES = 20_000
"""Maximum number of variables per block pass on a starting point: some 50 ms."""

KICK_ENTRIES, VAIN_KICKS = 4_000_000, 50
"""Table entries per step of kicks, some 20 ms; and steps without improvement before restarting from the best
labelling."""

FLIP_KICK, FLIP_DEPTH = 12, 2
"""Maximum number of variables of a kick, and of the sets that are flipped to repair it."""

CHAIN_KICK, CHAIN_LENGTH = 100, 20
"""Maximum number of variables of a kick, and of the chains that repair it."""

MANY_VARIABLES = 2000
"""Number of variables from which kicks, which are quick, are worthwhile."""

FEW = 4
"""Number of variables per table that counts as few."""

STEP_CONFIGS = 2_000_000
"""Table entries processed per step of another method: a few milliseconds."""

BP_ITERATIONS = 200
"""Iterations of belief propagation, which finds its best labellings early."""

START_ITERATIONS = 1000
"""Average number of iterations per LS-LP start."""

MIX_EVERY = 50
"""Steps between crossings of the whole pool into its best labelling."""


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
        """The best labelling of the pool."""
        return self.pool[int(np.argmax(self.values))]

    @property
    def value(self) -> float:
        """Value of the best labelling."""
        return max(self.values)

    @property
    def holds_few(self) -> bool:
        """Whether variables have so many states that a table holds few of them, which makes exact blocks narrow."""
        return FEW * float(np.log2(self.problem.graph.card).mean()) > self.width

    def add(self, labels: Ints) -> Iterator[None]:
        """Improve a starting point by exact blocks and add it to the pool.

        The pool's best labelling takes over its better parts. While the pool has room, the labelling itself joins it;
        later it replaces the worst one if it is better. Yields after every block, so that large models can be
        interrupted.
        """
        labels = np.array(labels, dtype=np.int64)
        for _ in range(FIRST_PASSES):
            for block in self._blocks():
                self.moves.optimise(labels, FIRST_WIDTH, block)
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
        if n <= BLOCK_VARIABLES:
            yield self.moves.random.permutation(n)
            return
        layers = self.moves.neighbourhood(n)
        rest = np.setdiff1d(np.arange(n), layers)  # other connected components
        for part in (layers, rest):
            for at in range(0, len(part), BLOCK_VARIABLES):
                yield self.moves.random.permutation(part[at : at + BLOCK_VARIABLES])

    def learn(self, labels: Ints) -> None:
        """Let the best labelling of the pool take over the better parts of one found by another method."""
        if self.problem.graph.value(labels) > -math.inf:
            self.fuse(int(np.argmax(self.values)), labels)

    def fuse(self, place: int, other: Ints, region: Ints | None = None) -> None:
        """Let a labelling of the pool take over the better parts of another one."""
        self.crossover.fuse(self.pool[place], other, region)
        self.values[place] = self.problem.graph.value(self.pool[place])

    # -- starting points ----------------------------------------------------------------------------------------------

    def believe(self, admits: Admission) -> Iterator[Progress]:
        """Add the labelling of belief propagation; yields after each of its steps."""
        method = BP(max_iterations=BP_ITERATIONS)
        if admits(method, self.problem):
            yield from self._follow(method)

    def relax(self, n_starts: int, lp_phase: bool, admits: Admission) -> Iterator[Progress]:
        """Add the labellings of the LS-LP starts; yields after each of their steps."""
        limit = START_ITERATIONS * (n_starts + lp_phase)
        method = LSLP(starts=n_starts, lp_phase=lp_phase, beliefs=0, climb=False, max_iterations=limit)
        if admits(method, self.problem):
            yield from self._follow(method)

    def follow_chains(self) -> Iterator[None]:
        """Improve the best labelling by chains of flips, until none helps."""
        chains = ChainSearch(self.problem, CHAIN_LENGTH, 1, self.seed)
        chains.restart(self.best)
        while not chains.at_rest:
            chains.run(KICK_ENTRIES)
            self.learn(chains.labels())
            yield

    def _follow(self, method: Method) -> Iterator[Progress]:
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
                if over or (done - reported) * self.problem.n_configs >= STEP_CONFIGS:
                    reported = done
                    yield Progress(done, bound=bound if bound < math.inf else None, phase=method.name)

    # -- restarts -----------------------------------------------------------------------------------------------------

    def restart_regions(self) -> None:
        """Restart some regions of one labelling, and keep the improvements."""
        self._n_steps += 1
        place = self._n_steps % len(self.pool)
        now = self.pool[place]
        trial = now.copy()
        end = self.moves.work + STEP_ENTRIES
        while self.moves.work < end:
            self.moves.work += REGION_ENTRIES
            region = self._disturbed_region(trial)
            self.crossover.fuse(now, trial, region)
            trial[region] = now[region]
        self.values[place] = self.problem.graph.value(now)
        if self._n_steps % MIX_EVERY == 0:
            first = int(np.argmax(self.values))
            for labels in self.pool:
                self.fuse(first, labels)

    def _disturbed_region(self, trial: Ints) -> Ints:
        """Perturb the centre of a random region, re-optimise the region, and return it."""
        moves, random, card = self.moves, self.moves.random, self.problem.graph.card
        size = int(np.exp(random.uniform(np.log(SMALLEST), np.log(LARGEST))))
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
        """Return constructors of kicks that suit the model and the gap that is left, called when first used.

        Chains repair more than flips of pairs, but their cost grows with the number of states: either may be better.
        """
        problem, seed = self.problem, self.seed

        def by_chains() -> SearchKicks:
            return ChainKicks(problem, ChainSearch(problem, CHAIN_LENGTH, 1, seed), CHAIN_KICK, seed)

        def by_flips() -> SearchKicks:
            return FlipKicks(problem, FlipSearch(problem, FLIP_DEPTH), FLIP_KICK, seed)

        if self.holds_few:
            return [by_flips, by_chains]
        return [by_chains] if wide or self.problem.n_vars >= MANY_VARIABLES else []

    def kick(self, kicks: SearchKicks) -> Iterator[None]:
        """Kick small regions and repair them, without end, on a separate labelling.

        Its improvements go to the best labelling of the pool. Once it falls behind and stops improving, it restarts
        from there.
        """
        kicks.restart(self.best)
        known, n_vain = -math.inf, 0
        while True:
            if n_vain >= VAIN_KICKS and known < self.value:
                kicks.restart(self.best)
                n_vain = 0
            kicks.run(KICK_ENTRIES, sys.maxsize, 0.0)
            labels = kicks.labels()
            value = self.problem.graph.value(labels)
            n_vain = 0 if value > known else n_vain + 1
            if value > known:
                self.learn(labels)
            known = value
            yield
