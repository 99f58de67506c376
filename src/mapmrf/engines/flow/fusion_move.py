"""The best combination of two labellings, by a minimum cut or roof duality."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from mapmrf.arrays import Floats, Ints, frozen
from mapmrf.compilation.jit import bare, inlined
from mapmrf.engines.flow.cut_model import DIFFERENT, EITHER, BinaryPairs, RoofDual, Table, favours, packed, split
from mapmrf.engines.flow.maximum_flow import MAX_ARCS, NO_LIMIT, MaximumFlow, Network, add_capacity, wire
from mapmrf.kernels.max_marginals import weight_of
from mapmrf.model.problem import Problem
from mapmrf.run.pool import Workers


class FusionMove:
    """Fusion of labellings of one pairwise problem: every variable keeps its state or takes that of another labelling.

    If all pairs are submodular in these two states, the result is the best of all combinations, by a minimum cut.
    Otherwise roof duality fixes the states of some variables, and undecided ones keep theirs. The value never
    decreases. One network is reused for all moves.
    """

    def __init__(self, problem: Problem) -> None:
        graph = self.graph = problem.graph
        self.model = MovePairs(
            packed(graph.card), packed(graph.var_ptr), graph.theta_v,
            packed(problem.scope), packed(problem.table_at), problem.weight, graph.theta_t,
        )  # fmt: skip
        self.flow = MaximumFlow(wire(problem.n_vars, problem.scope), np.zeros(problem.n_vars))
        self.hard = not (np.isfinite(graph.theta_v).all() and np.isfinite(graph.theta_t).all())
        self.roof: RoofDual | None = None
        self.move = TwoLabellings(np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64), -math.inf)
        self.cost = 0.0

    def fuse(self, labels: Ints, other: Ints) -> float:
        """Take the states of another labelling where that is best, in place; return the gain."""
        self.begin(labels, other)
        self.run()
        return self.end(labels)

    def begin(self, labels: Ints, other: Ints, feasible: bool = False) -> None:
        """Set up the network of a move; the labels, possibly known to be feasible, must not change until it ends."""
        feasible = feasible or self.is_feasible(labels)
        # while the labelling is infeasible, -inf is a potential too low for others to compensate
        self.move = TwoLabellings(labels, other, -math.inf if feasible else -2.0 * self.graph.size - 1.0)
        self.flow.network.residual[:] = 0.0
        self.cost, n_apart = lay_out_move(self.model, self.move, self.flow.network, self.flow.excess)
        self.roof = RoofDual(self.active_pairs()) if n_apart else None
        self.flow.begin()

    def is_feasible(self, labels: Ints) -> bool:
        return not self.hard or self.graph.value(labels) > -math.inf

    def active_pairs(self) -> BinaryPairs:
        self.number = np.empty(len(self.move.old), dtype=np.int32)
        n, m = list_active(self.model, self.move, self.number)
        binary = BinaryPairs(
            np.empty(2 * m, dtype=np.int32), np.arange(0, 4 * m, 4, dtype=np.int32), np.empty(4 * m),
            np.zeros(0), np.full(n, 2), np.empty((n, 2)),
        )  # fmt: skip
        gather_active(self.model, self.move, self.number, binary)
        for array in binary:
            frozen(array)
        return binary

    def run(self, max_work: int = NO_LIMIT) -> bool:
        """Augment the flow for at most this much work; return whether the move has ended."""
        return (self.flow if self.roof is None else self.roof.flow).run(max_work)

    @property
    def work(self) -> int:
        return int((self.flow if self.roof is None else self.roof.flow).trees.cursor.work)

    def end(self, labels: Ints) -> float:
        """Apply the result of the move if it is a gain; return the gain."""
        if self.roof is None:
            gain, cost, taken = self.cost - self.flow.value, self.cost, self.flow.on_sink_side
        else:  # undecided variables keep their states; those outside have the last number
            taken, cost = np.append(self.roof.states == 1, False)[self.number], abs(self.roof.constant)
            mixed = TwoLabellings(labels, np.where(taken, self.move.new, labels), self.move.floor)
            gain = float(gain_of(self.model, mixed))
        if not gain > 1e-12 * cost:  # minimum gain of a move relative to the costs in its cut; less counts as round-off
            return 0.0
        np.copyto(labels, self.move.new, where=taken)
        return gain


def why_no_fusion(problem: Problem) -> str | None:
    large = np.flatnonzero(problem.graph.arity != 2)
    if len(large):
        return f"factor {large[0]} has {problem.graph.arity[large[0]]} variables, expected 2"
    if 4 * problem.n_factors > MAX_ARCS:
        return f"it has {problem.n_factors} factors, more than {MAX_ARCS // 4}"
    return None


# Fusion of two labellings as a binary model: every variable keeps its old state (0) or takes the new one (1).

OUTSIDE = -1
NO_MARK = -1


class MovePairs(NamedTuple):
    card: Ints  # this and the next two as in `FactorGraph`
    var_ptr: Ints
    theta_v: Floats
    scope: Ints  # (2 n_factors,): the variables of every pair
    table_at: Ints  # (n_factors,): where its table starts in `theta_t`
    weight: Floats  # (n_factors,): empty if all weights are 1
    theta_t: Floats


class TwoLabellings(NamedTuple):
    """The old and the new state of every variable; potentials below `floor` are raised to it."""

    old: Ints
    new: Ints
    floor: float


@inlined
def unary_loss(model: MovePairs, move: TwoLabellings, i: int) -> float:
    at = model.var_ptr[i]
    loss: float = max(move.floor, model.theta_v[at + move.old[i]]) - max(move.floor, model.theta_v[at + move.new[i]])
    return loss


@inlined
def move_table(model: MovePairs, move: TwoLabellings, a: int) -> Table:
    """Return the four entries of a pair: both old, second new, first new, both new."""
    i, j, floor = model.scope[2 * a], model.scope[2 * a + 1], move.floor
    theta_t, weight, r = model.theta_t, weight_of(model.weight, a), np.int64(model.card[j])
    row0, row1 = model.table_at[a] + r * move.old[i], model.table_at[a] + r * move.new[i]
    t00, t01 = weight * theta_t[row0 + move.old[j]], weight * theta_t[row0 + move.new[j]]
    t10, t11 = weight * theta_t[row1 + move.old[j]], weight * theta_t[row1 + move.new[j]]
    return max(floor, t00), max(floor, t01), max(floor, t10), max(floor, t11)


@inlined
def pair_losses(table: Table) -> tuple[float, float, float, float]:
    """Return the loss of either variable's new state, and the arc capacities; all old states must be possible."""
    t00, t01, t10, t11 = table
    if max(t10, t11) == -np.inf:  # the first must stay
        return np.inf, t00 - t01, 0.0, 0.0
    if max(t01, t11) == -np.inf:  # the second must stay
        return t00 - t10, np.inf, 0.0, 0.0
    more_i, more_j, forward, backward = split(table)
    return -more_i, -more_j, forward, backward


@bare
def lay_out_move(model: MovePairs, move: TwoLabellings, network: Network, excess: Floats) -> tuple[float, int]:
    """Set capacities, initially zero, for a move from a feasible labelling.

    Returns the cost of the cut that keeps all old states, and the number of pairs that are not submodular; if there are
    any, the capacities are meaningless.
    """
    old, new = move.old, move.new
    for i in range(len(old)):
        excess[i] = unary_loss(model, move, i) if old[i] != new[i] else 0.0
    guess = n_apart = 0
    for a in range(len(model.table_at)):
        i, j = model.scope[2 * a], model.scope[2 * a + 1]
        if old[i] == new[i] and old[j] == new[j]:
            continue
        table = move_table(model, move, a)
        if old[i] == new[i]:
            excess[j] += table[0] - table[1]
        elif old[j] == new[j]:
            excess[i] += table[0] - table[2]
        else:
            wish = favours(table)
            n_apart += wish == DIFFERENT
            loss_i, loss_j, forward, backward = pair_losses(table)
            excess[i] += loss_i
            excess[j] += loss_j
            if wish != EITHER:
                guess = add_capacity(network, a, guess, forward, backward)
    none = 0.0
    for i in range(len(old)):
        none += max(-excess[i], 0.0)
    return none, n_apart


@bare
def list_active(model: MovePairs, move: TwoLabellings, number: Ints) -> tuple[int, int]:
    """Number the variables whose states differ, others are OUTSIDE; return their number, and that of their pairs."""
    n = n_pairs = 0
    for i in range(len(number)):
        number[i] = OUTSIDE
        if move.old[i] != move.new[i]:
            number[i] = n
            n += 1
    for a in range(len(model.table_at)):
        n_pairs += number[model.scope[2 * a]] != OUTSIDE and number[model.scope[2 * a + 1]] != OUTSIDE
    return n, n_pairs


@bare
def gather_active(model: MovePairs, move: TwoLabellings, number: Ints, binary: BinaryPairs) -> None:
    """Build the binary model of the variables whose states differ: unary potentials, pairs, and a table for each."""
    for i in range(len(number)):
        if number[i] != OUTSIDE:
            at = model.var_ptr[i]
            binary.theta_v[number[i], 0] = max(move.floor, model.theta_v[at + move.old[i]])
            binary.theta_v[number[i], 1] = max(move.floor, model.theta_v[at + move.new[i]])
    b = 0
    for a in range(len(model.table_at)):
        i, j = number[model.scope[2 * a]], number[model.scope[2 * a + 1]]
        if i == OUTSIDE and j == OUTSIDE:
            continue
        t00, t01, t10, t11 = move_table(model, move, a)
        if i == OUTSIDE:
            binary.theta_v[j, 0] += t00
            binary.theta_v[j, 1] += t01
        elif j == OUTSIDE:
            binary.theta_v[i, 0] += t00
            binary.theta_v[i, 1] += t10
        else:
            binary.scope[2 * b], binary.scope[2 * b + 1] = i, j
            at = binary.table_at[b]
            binary.theta_t[at], binary.theta_t[at + 1] = t00, t01
            binary.theta_t[at + 2], binary.theta_t[at + 3] = t10, t11
            b += 1


@bare
def gain_of(model: MovePairs, move: TwoLabellings) -> float:
    gain = 0.0
    for i in range(len(move.old)):
        if move.old[i] != move.new[i]:
            gain -= unary_loss(model, move, i)
    for a in range(len(model.table_at)):
        i, j = model.scope[2 * a], model.scope[2 * a + 1]
        if move.old[i] != move.new[i] or move.old[j] != move.new[j]:
            table = move_table(model, move, a)
            gain += table[3] - table[0]
    return gain


@bare
def propose_expansion(model: MovePairs, labels: Ints, alpha: int, marks: Ints, new: Ints) -> int:
    """Set the new states for an expansion of `alpha`, where it exists; return how many variables would change.

    `marks` is the label that a variable marks as used in its state 1, or NO_MARK; empty if there are no such variables.
    The mark of `alpha` is set, and all others may be cleared.
    """
    n = 0
    for i in range(len(labels)):
        new[i] = alpha if alpha < model.card[i] else labels[i]
        if len(marks) > 0 and marks[i] != NO_MARK:
            new[i] = 1 if marks[i] == alpha else 0
        elif new[i] != labels[i]:
            n += 1
    return n


@bare
def find_marks(scope: Ints, marked: Ints, marks: Ints) -> int:
    """Find binary variables that mark a label as used; return how many there are.

    Such a variable does nothing but forbid one label to others while it is in state 0. `marked` holds for every pair
    the label that its second variable could mark, or NO_MARK; `marks` receives the label of every variable, or NO_MARK.
    """
    undecided = NO_MARK - 1
    for i in range(len(marks)):
        marks[i] = undecided
    for a in range(len(marked)):
        i, j = scope[2 * a], scope[2 * a + 1]
        marks[i] = NO_MARK
        if marks[j] == undecided:
            marks[j] = marked[a]
        elif marks[j] != marked[a]:
            marks[j] = NO_MARK
    n = 0
    for i in range(len(marks)):
        if marks[i] == undecided:
            marks[i] = NO_MARK
        n += marks[i] != NO_MARK
    return n


@bare
def propose_swap(model: MovePairs, labels: Ints, alpha: int, beta: int, new: Ints) -> int:
    """Set the new states for a swap of two labels; return how many variables have one and could take the other."""
    n = 0
    for i in range(len(labels)):
        new[i] = labels[i]
        if labels[i] == alpha and beta < model.card[i]:
            new[i] = beta
        elif labels[i] == beta and alpha < model.card[i]:
            new[i] = alpha
        n += new[i] != labels[i]
    return n


# -- Expansions and swaps of labels, repeated until none helps --------------------------------------------------------


# Multiples of this order the labels so that any few consecutive ones lie far apart in the range. Where losses grow with
# the distance of labels, ascending order takes more moves and ends in worse optima.


class MoveTrial:
    """One move, set up and computed in pieces; its changes are applied when it is accepted."""

    def __init__(self, problem: Problem, marks: Ints) -> None:
        self.fusion, self.marks = FusionMove(problem), marks
        self._new = np.empty(problem.n_vars, dtype=np.int64)
        self._feasible = False
        # Cost of setting up a move per pair, in arcs visited by a flow
        self._set_up = problem.n_vars + 8 * problem.n_factors
        self.reset()

    def reset(self) -> None:
        self.work: list[int] = []
        self.ended = self._moves = False

    def advance(self, labels: Ints, move: tuple[int, int], max_work: int) -> None:
        """Set up the move if it is new, and compute a piece of it; the labels must not change until it ends."""
        if self.ended:
            return
        if not self.work:
            alpha, beta = move
            if alpha == beta:
                n = propose_expansion(self.fusion.model, labels, alpha, self.marks, self._new)
            else:
                n = propose_swap(self.fusion.model, labels, alpha, beta, self._new)
            self._moves, self.ended = n > 0, n == 0  # a move without variables ends at once
            self.work.append(self._set_up if n > 0 else len(labels))
            if n > 0:
                self._feasible = self._feasible or self.fusion.is_feasible(labels)  # moves keep them feasible
                self.fusion.begin(labels, self._new, self._feasible)
        if self._moves:
            before = self.fusion.work
            self.ended = self.fusion.run(max_work)
            self.work.append(self.fusion.work - before)

    def accept(self, labels: Ints) -> float:
        """Apply the changes if they are a gain; return the gain."""
        return self.fusion.end(labels) if self._moves else 0.0


LARGE = 20_000  # pairs from which labels without distances do not take turns in sequence, either


class LabelMoves:
    """A labelling that is improved by expansions or swaps.

    With several threads, the next moves are computed alongside the current one. If it brings no gain, their results
    stand as if they had been computed one after another; otherwise they are discarded. Late in a run, few moves bring a
    gain.
    """

    def __init__(self, problem: Problem, labels: Ints, swap: bool = False) -> None:
        every = range(int(problem.graph.card.max(initial=0)))
        # a guess whether losses grow with the distance of labels, from the first pair: label 0 against 1 and the last
        first = problem.graph.table(0)[0] if problem.n_factors else np.zeros(0)
        has_distances = len(first) > 2 and first[1] != first[-1]
        attracts = len(first) > 0 and first[0] > first[-1]
        order: Iterable[int] = every
        if has_distances or (problem.n_factors >= LARGE and attracts):
            # Next labels far from the last: on noisy images, better labellings after fewer moves than in sequence.
            order = sorted(every, key=lambda k: k * (math.sqrt(5) - 1) / 2 % 1.0)
        self.moves = list(itertools.combinations(every, 2)) if swap else [(alpha, alpha) for alpha in order]
        self.problem = problem
        self.labels = np.array(labels, dtype=np.int64)
        self.marks = label_marks(problem)
        if len(self.marks):  # exactly the labels in use are marked
            marking = self.marks != NO_MARK
            self.labels[marking] = np.isin(self.marks[marking], self.labels[~marking])
        self._trials = [MoveTrial(problem, self.marks)]  # of the current move and of those that follow
        self._read = 0  # pieces of the current move already counted
        self._workers: Workers | None = None
        self._calm = 0  # moves since the last gain
        self.tried = self.helped = 0
        self.gain = 0.0

    @property
    def at_rest(self) -> bool:
        return self._calm >= len(self.moves)

    def run(self, max_work: int, max_moves: int = 2**62) -> None:
        """Make moves for about this much work, in arcs visited, and at most `max_moves`.

        Work is counted as if moves ran one after another, regardless of threads.
        """
        last, spent = self.tried + max_moves, 0
        while spent < max_work and self.tried < last and not self.at_rest:
            trial = self._trials[0]
            if self._read == len(trial.work):
                self._advance(max_work)
            spent += sum(trial.work[self._read : self._read + 1])
            self._read += 1
            if trial.ended and self._read == len(trial.work):
                self._end(trial.accept(self.labels))

    def _advance(self, max_work: int) -> None:
        """Compute a piece of the current move, and alongside it of those that may follow."""
        n = min(self.problem.threads, len(self.moves) - self._calm) if self._calm > 0 else 1
        if n > 1 and self._workers is None:
            self._workers = Workers(self.problem.threads)
        while len(self._trials) < n:
            self._trials.append(MoveTrial(self.problem, self.marks))
        moves = [self.moves[(self.tried + k) % len(self.moves)] for k in range(n)]
        if self._workers is None or n == 1:
            self._trials[0].advance(self.labels, moves[0], max_work)
            return
        calls = [(trial, self.labels, move, max_work) for trial, move in zip(self._trials, moves, strict=False)]
        self._workers.run(MoveTrial.advance, calls)

    def _end(self, gain: float) -> None:
        self.tried += 1
        self._calm = 0 if gain > 0.0 else self._calm + 1
        self.helped += gain > 0.0
        self.gain += gain
        for trial in self._trials if gain > 0.0 else self._trials[:1]:
            trial.reset()
        self._trials.append(self._trials.pop(0))
        self._read = 0

    def close(self) -> None:
        if self._workers is not None:
            self._workers.close()


def label_marks(problem: Problem) -> Ints:
    """Return the label that every variable marks as used, NO_MARK for others, (n_vars,); empty if no variable does.

    Label costs are modelled by such variables: state 1 has a cost, and in state 0 no other variable may have the label.
    Expansions that kept them fixed could neither introduce a label nor remove one (Delong et al., 2012).
    """
    graph, none = problem.graph, np.zeros(0, dtype=np.int32)
    of_table = np.full(graph.n_tables, NO_MARK, dtype=np.int32)
    for batch in problem.batches:
        if batch.hard and batch.arity == 2 and batch.shape[1] == 2:
            for at in np.unique(batch.table_at).tolist():
                table = graph.theta_t[at : at + batch.n_configs].reshape(batch.shape)
                out = np.flatnonzero(np.isneginf(table[:, 0]))
                if len(out) == 1 and np.isneginf(table).sum() == 1:
                    of_table[np.searchsorted(graph.table_ptr, at)] = out[0]
    if np.all(of_table == NO_MARK):
        return none
    marked, marks = of_table[graph.table_of[problem.order]], np.zeros(problem.n_vars, dtype=np.int32)
    return marks if find_marks(packed(problem.scope), marked, marks) else none
