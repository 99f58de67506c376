"""Integer programs, ``.mps`` and ``.lp``, written by HiGHS for other solvers; they are not read.

The column ``x3_1`` is 1 if variable 3 has state 1; further columns are for factors and constraints. The objective is
the log potential, which is maximised; a variable without factors and constraints takes its best state in its constant.
"""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from mapmrf.errors import FormatError, UnsupportedModel
from mapmrf.formats.files import charge, names_lost, plain_name, write_bytes
from mapmrf.formats.tables import check_values
from mapmrf.model.graph import FactorGraph

if TYPE_CHECKING:
    from mapmrf.engines.program.binary_program import Compact
    from mapmrf.engines.program.local_polytope import LocalPolytope
    from mapmrf.engines.program.program import Program
    from mapmrf.model.problem import Problem

SUFFIXES = (".mps", ".lp")
CONSTRAINTS = True
WRITE_ONLY = True

losses = names_lost


def read(path: Path, *, values: str | None = None) -> FactorGraph:
    raise FormatError(f"{path}: found an integer program, which is written, but not read, expected a model")


def write(graph: FactorGraph, path: Path, *, values: str | None = None) -> None:
    """Write the program that the method `cuts` starts from, with automata as tables."""
    from mapmrf.constraints.as_tables import rewrite
    from mapmrf.engines.program.solvers import integer_program
    from mapmrf.model.problem import Problem

    check_values(path, values, ("log",), "log potentials")
    n_vars = graph.n_vars
    graph.check_sums()
    if not np.isfinite(graph.constant):
        raise FormatError(f"{path}: the constant is -inf, expected a finite number")
    charge(path, 100.0 * (len(graph.theta_v) + float(np.diff(graph.table_ptr)[graph.table_of].sum())), "its program")
    if graph.constraints is not None and graph.constraints.by_automaton.any():
        try:
            graph = rewrite(graph, some=graph.constraints.by_automaton).graph
        except UnsupportedModel as error:
            raise FormatError(f"{path}: automata are written as tables: {error}") from None
    program, named = _program(Problem.compile(graph), n_vars)
    # The costs in the unit of the model, not in that of the solvers.
    plain = replace(program, cost=program.cost * program.scale, scale=1.0)
    highs = integer_program(plain, 0, {})
    highs.changeObjectiveOffset(program.offset)
    for column in range(len(program.cost)):
        highs.passColName(column, named.get(column, f"y{column}"))
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, f"model{Path(plain_name(path)).suffix}")
        highs.writeModel(str(file))
        write_bytes(path, file.read_bytes())


def _program(problem: Problem, n_vars: int) -> tuple[Program, dict[int, str]]:
    """The program, and the names of the columns of states of the first variables, which are those of the model."""
    from mapmrf.engines.program.binary_program import Compact, is_compact
    from mapmrf.engines.program.local_polytope import ConstrainedPolytope, LocalPolytope

    base: LocalPolytope | Compact
    if problem.graph.constraints is not None and (problem.graph.constraints.penalty > 0).any():
        whole = ConstrainedPolytope.build(problem)
        base, program, first = whole.base, whole.program, whole.n_extra
    else:
        base = Compact.build(problem) if is_compact(problem) else LocalPolytope.build(problem)
        program, first = base.program, 0
    if isinstance(base, Compact):
        return program, {first + i: f"x{i}_1" for i in range(n_vars)}
    entries = base.entries[: base.program.n_integer]
    owner = np.searchsorted(problem.graph.var_ptr, entries, side="right") - 1
    states = zip(owner.tolist(), (entries - problem.graph.var_ptr[owner]).tolist(), strict=True)
    return program, {first + column: f"x{i}_{k}" for column, (i, k) in enumerate(states) if i < n_vars}
