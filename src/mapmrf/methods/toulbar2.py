"""toulbar2: an exact solver for weighted constraint networks, in a separate process."""

from __future__ import annotations

import dataclasses
import importlib.util
import logging
import math
import re
import sys
from dataclasses import dataclass
from typing import ClassVar, Literal

from mapmrf.arrays import Ints
from mapmrf.engines.program.toulbar2_process import Toulbar2Message, Toulbar2Process, WholeCosts, packed
from mapmrf.errors import MapMRFError, OptionError
from mapmrf.model.problem import Problem
from mapmrf.run.method import Answer, Method, NonNegativeInt, PositiveInt, Progress, Start
from mapmrf.run.result import Status

log = logging.getLogger("mapmrf")

POLL = 0.05  # seconds that a step waits for a message before it returns to the loop
ELIMINATED_ENTRIES = 256  # maximum number of table entries created by eliminating variables before the search


@dataclass(frozen=True)
class Toulbar2(Method):
    """Solve exactly by toulbar2: branch and bound with soft local consistencies.

    Attributes
    ----------
    max_iterations
        Maximum number of backtracks.
    search
        ``hbfs``: hybrid best-first search; ``dfs``: depth-first branch and bound, which needs the least memory;
        ``vns``: variable neighbourhood search, for good labellings of models that are too hard to prove.
    vac
        Depth of the search tree up to which virtual arc consistency is enforced: 0 for never, 1 for preprocessing only.
    eliminate
        Maximum degree of the variables that are eliminated before the search; by default as large as keeps the new
        tables within 256 entries (8 for binary models), but at least 2. If toulbar2 crashes, it is restarted from the
        best labelling so far with half of this.
    settings
        Further toulbar2 options under its own names, such as ``"DEE=0, lastConflict=0"``; they take precedence.

    Examples
    --------
    >>> import mapmrf
    >>> result = mapmrf.solve(mapmrf.datasets.grid(6, 6, coupling=2.0, seed=1), "toulbar2")
    >>> round(result.value, 6), result.status.value
    (55.647253, 'optimal')
    """

    name: ClassVar[str] = "toulbar2"
    title: ClassVar[str] = "branch and bound with soft local consistencies (toulbar2, optional)"
    family: ClassVar[str] = "exact"
    gives_bound: ClassVar[bool] = True
    exact: ClassVar[bool] = True
    exact_on_trees: ClassVar[bool] = True
    # the run ends with its own proof, as the loop's tolerance may be too wide for small potentials
    stops_at_gap = False

    max_iterations: PositiveInt = sys.maxsize
    search: Literal["hbfs", "dfs", "vns"] = "hbfs"
    vac: NonNegativeInt = 0
    eliminate: NonNegativeInt | None = None
    settings: str = ""

    def __post_init__(self) -> None:
        super().__post_init__()
        _parsed(self.settings)

    def supports(self, problem: Problem) -> str | None:
        if importlib.util.find_spec("pytoulbar2") is None:
            return "needs the optional extra: pip install 'mapmrf[exact]' ('.[exact]' in a checkout)"
        return None

    def start(self, problem: Problem, seed: int, initial: Start) -> Toulbar2Run:
        """Convert the potentials to integer costs and start the process on them."""
        costs = WholeCosts.of(problem)
        if costs.offset == -math.inf or problem.n_vars == 0:
            return Toulbar2Run(costs)
        degree = self.eliminate
        if degree is None:
            degree = max(2, int(math.log(ELIMINATED_ENTRIES, max(2, problem.graph.card.max()))))
        run = Toulbar2Run(costs, degree=degree, seed=seed, initial=initial.labels)
        self._begin(problem, run)
        return run

    def step(self, problem: Problem, state: Toulbar2Run) -> Progress:
        if state.process is None:  # no variables, or a table without an allowed entry
            finished = Status.OPTIMAL if state.costs.offset > -math.inf else Status.INFEASIBLE
            return Progress(0, bound=state.costs.offset, finished=finished)
        message = state.process.next_message(POLL) or Toulbar2Message()
        if message.failure is not None and not state.ready:
            raise MapMRFError(f"toulbar2 did not start: {message.failure}")
        if message.failure is not None and self._begin_again(problem, state, message.failure):
            return Progress(state.backtracks, bound=state.bound)
        state.read(message)
        return Progress(state.backtracks, labels=message.labels, bound=state.bound, finished=state.finished)

    def answer(self, problem: Problem, state: Toulbar2Run) -> Answer:
        latest = dataclasses.replace(state)
        for message in () if state.process is None else state.process.unread():
            latest.read(message)
        details = {"cost_unit": 1 / state.costs.scale, "cost_error": state.costs.error}
        return Answer(labels=latest.labels, bound=latest.bound, details=details)

    def close(self, problem: Problem, state: Toulbar2Run) -> None:
        if state.process is not None:
            state.process.close()

    def _begin(self, problem: Problem, state: Toulbar2Run) -> None:
        """Start the process, with the value of the best known labelling as upper bound on the cost."""
        limit = min(self.max_iterations, 2**62) - 1
        options: dict[str, float] = {"backtrackLimit": limit, "elimDegree_preprocessing": state.degree}
        if self.search == "dfs":
            options["hbfs"] = 0
        if self.search == "vns":
            options |= {"searchMethod": 2, "vnsNeighborVarHeur": 3, "vnsInitSol": -4, "lds": 4, "restart": 10000}
        options |= _parsed(self.settings)
        network = state.costs.network(problem)
        network |= {"settings": options, "vac": self.vac, "seed": state.seed % 2**31, "path": sys.path}
        known = state.initial if state.labels is None else state.labels
        network["upper"] = None
        if known is not None and problem.graph.value(known) > -math.inf:
            network["upper"] = state.costs.cost(problem, known) + 1.0
        state.process = Toulbar2Process(packed(network))

    def _begin_again(self, problem: Problem, state: Toulbar2Run, failure: str) -> bool:
        """Restart after a crash, with fewer variables eliminated; False if it was no crash, or the last attempt."""
        if state.degree == 0 or not re.match(r"exit status -", failure):
            log.warning("toulbar2 failed: %s", failure)
            return False
        state.degree //= 2
        log.warning(
            "toulbar2 failed: %s; restarting with variables of at most %d neighbours eliminated",
            failure, state.degree,
        )  # fmt: skip
        assert state.process is not None
        state.process.close()
        self._begin(problem, state)
        return True


def _parsed(settings: str) -> dict[str, float]:
    """Parse options given as ``name=number, name=number``."""
    found: dict[str, float] = {}
    for text in filter(None, (part.strip() for part in settings.split(","))):
        match = re.fullmatch(r"([A-Za-z_]\w*)\s*=\s*([-+\w.]+)", text)
        try:
            if match is None:
                raise ValueError
            number = float(match[2])
        except ValueError:
            raise OptionError(f"toulbar2: settings has {text!r}, expected name=number") from None
        found[match[1]] = int(number) if number.is_integer() else number
    return found


@dataclass
class Toulbar2Run:
    """A run: the process and the best results that it has reported."""

    costs: WholeCosts  # the integer costs that the process works on
    process: Toulbar2Process | None = None  # None if there is nothing to solve
    # labels, lower, backtracks: the best labelling, the best lower bound on the cost, and backtracks so far
    labels: Ints | None = None
    lower: int = 0
    backtracks: int = 0
    ready: bool = False  # whether the search has started
    finished: Status | None = None  # status at the end of the search, or None
    # degree, seed: maximum degree of the variables that are eliminated before the search, and the seed
    degree: int = 0
    seed: int = 0
    initial: Ints | None = None

    @property
    def bound(self) -> float:
        return -math.inf if self.finished is Status.INFEASIBLE else self.costs.bound(self.lower)

    def read(self, message: Toulbar2Message) -> None:
        self.ready |= message.ready
        self.lower = max(self.lower, message.lower)
        self.backtracks = max(self.backtracks, message.backtracks)
        if message.labels is not None:
            self.labels = message.labels
        self.finished = self.finished or message.finished
