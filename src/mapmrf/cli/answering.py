"""`mapmrf solve` with other questions: the m best labellings, and the best labels of some variables only."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from mapmrf.cli.output import report
from mapmrf.cli.program import INFEASIBLE, INTERRUPTED, complain, read_model
from mapmrf.errors import OptionError

if TYPE_CHECKING:
    from mapmrf.questions.best import BestLabellings
    from mapmrf.run.method import Method
    from mapmrf.run.result import Result, Status


@dataclass(frozen=True)
class Question:
    """The options of `solve` that ask for more than one labelling, or for some variables only."""

    best: int | None = None
    distance: int | None = None
    query: str | None = None

    @property
    def asked(self) -> bool:
        """Whether any of them is given."""
        return self.best is not None or self.distance is not None or self.query is not None

    def check(self, unused: dict[str, object]) -> None:
        """Reject options that cannot be combined."""
        if self.distance is not None and self.best is None:
            raise OptionError("--distance needs --best M")
        if self.best is not None and self.query is not None:
            raise OptionError("found --best and --query, expected one of them")
        name = "--best" if self.best is not None else "--query"
        for option, value in unused.items():
            if value is not None:
                raise OptionError(f"{option} cannot be combined with {name}")


@dataclass(frozen=True)
class QuestionRun:
    """A run on one model: how to solve it, what to write and what to print."""

    method: Method
    limits: dict[str, Any]
    output: str | None
    as_json: bool
    quiet: bool

    def run(self, question: Question, model: str, evidence: str | None) -> int:
        """Answer the question; return the exit code."""
        if question.best is not None:
            return self.best(question.best, question.distance, model, evidence)
        assert question.query is not None
        return self.query(question.query, model, evidence)

    def best(self, m: int, distance: int | None, model: str, evidence: str | None) -> int:
        """Find, write and print the m best labellings."""
        from mapmrf.questions.best import solve_best

        found = solve_best(read_model(model, evidence), m, self.method, diverse=distance, **self.limits)
        try:
            if self.output is not None:
                write_best(found, self.output)
        finally:
            self.say(found.to_json() if self.as_json else found.summary())
        return _exit_code(found.status)

    def query(self, text: str, model: str, evidence: str | None) -> int:
        """Find, write and print the best labels of some variables, with the others summed out."""
        from mapmrf.questions.marginal_map import marginal_map, query_indices

        graph = read_model(model, evidence)
        asked = query_indices(graph, parse_query(text, None if graph.names is None else graph.names.place))
        result = marginal_map(graph, asked, self.method, **self.limits)
        try:
            if self.output is not None:
                write_query(result, asked, self.output)
        finally:
            self.say(result.to_json() if self.as_json else report(result))
        return _exit_code(result.status)

    def say(self, text: str) -> None:
        """Print an answer."""
        if self.as_json or not self.quiet:
            click.echo(text)


def parse_query(text: str, place: dict[str, int] | None) -> list[int | str]:
    """Parse names or indices of variables, separated by commas; a number that is also a name is read as the name.

    Examples
    --------
    >>> parse_query("Rain, 3", {"Rain": 0})
    ['Rain', 3]
    """
    parts = [part.strip() for part in text.split(",")]
    if not all(parts):
        raise OptionError(f"--query: found {text!r}, expected names or indices of variables, separated by commas")
    return [int(part) if part.isdecimal() and part not in (place or {}) else part for part in parts]


def write_best(found: BestLabellings, path: str) -> None:
    """Write labellings: a list of results to *.json, otherwise a solution file with a line for each."""
    from mapmrf.formats.files import write_bytes
    from mapmrf.formats.solution import write_solutions

    if path.endswith(".json"):
        write_bytes(path, (found.to_json() + "\n").encode())
    elif len(found) == 0:
        complain(f"{path} not written: {found.status.meaning}")
    else:
        write_solutions(path, [result.labels for result in found])


def write_query(result: Result, asked: list[int], path: str) -> None:
    """Write the answer to a query: the result to *.json, otherwise a solution file (MMAP)."""
    from mapmrf.formats.files import write_bytes
    from mapmrf.formats.solution import write_query_solution
    from mapmrf.run.result import Status

    if path.endswith(".json"):
        write_bytes(path, (result.to_json() + "\n").encode())
    elif result.status is Status.INFEASIBLE:
        complain(f"{path} not written: {result.status.meaning}")
    else:
        write_query_solution(path, asked, result.labels)


def _exit_code(status: Status) -> int:
    return {"infeasible": INFEASIBLE, "interrupted": INTERRUPTED}.get(status.value, 0)
