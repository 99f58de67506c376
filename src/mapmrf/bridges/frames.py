"""pandas: models as tables with a row for each configuration of a factor, and back."""

from __future__ import annotations

import itertools
from collections.abc import Hashable, Iterator
from typing import Any

import numpy as np

from mapmrf.arrays import Floats
from mapmrf.constraints.as_tables import refuse_constraints
from mapmrf.errors import GraphError, needed
from mapmrf.model.graph import FactorGraph
from mapmrf.model.model import Model, Values
from mapmrf.model.names import index_of, labels_of, states_of


def from_pandas(
    frames: Any,
    *,
    value: str = "value",
    factor: str = "factor",
    values: Values = "log",
    default: float | None = None,
) -> Model:
    """Build a model from a data frame of factors: a column for each variable, and a row for each configuration.

    A row belongs to the factor on the variables whose cells are not missing, so a frame can hold factors of any kind;
    a row without any is a constant. The states of a variable are those that occur, in this order if they are text, or
    the categories of a categorical column.

    Parameters
    ----------
    frames
        A `pandas.DataFrame`, or several in a list.
    value
        Column with the numbers.
    factor
        Column that tells apart factors on the same variables, if there is one.
    values
        Meaning of the numbers, as in `Model`.
    default
        The number of configurations without a row; without it, all of them must be listed.

    Examples
    --------
    >>> import pandas
    >>> rain = pandas.DataFrame({"rain": ["no", "yes"], "value": [0.8, 0.2]})
    >>> grass = pandas.DataFrame(
    ...     {"rain": ["no", "no", "yes", "yes"], "grass": ["dry", "wet"] * 2, "value": [0.9, 0.1, 0.2, 0.8]}
    ... )
    >>> model = from_pandas(pandas.concat([rain, grass]), values="potential")
    >>> model.solve(evidence={"grass": "wet"})["rain"]
    'yes'
    """
    model = Model(values=values)
    read = [list(_factors(frame, value, factor)) for frame in _listed(frames)]
    states: dict[str, dict[Any, None]] = {}
    for frame in _listed(frames):
        for name in _variables(frame, value, factor):
            column = frame[name]
            categories = getattr(column.dtype, "categories", column.dropna())
            states.setdefault(str(name), {}).update(dict.fromkeys(map(_plain, categories)))
    for name, found in states.items():
        numbers = all(index_of(state) is not None for state in found)
        model.variable(name, [str(state) for state in (sorted(found) if numbers else found)])
    for scope, rows in itertools.chain.from_iterable(read):
        table: dict[tuple[str, ...], float] = {}
        for *configuration, number in rows:
            key = tuple(str(_plain(state)) for state in configuration)
            if key in table:
                raise GraphError(f"factor of {', '.join(scope) or 'no variable'}: {', '.join(key)} is listed twice")
            table[key] = number
        model.factor(scope, table, default=default)
    return model


def _listed(frames: Any) -> list[Any]:
    listed = list(frames) if isinstance(frames, list | tuple) else [frames]
    for frame in listed:
        if not hasattr(frame, "groupby") or not hasattr(frame, "columns"):
            raise GraphError(f"found a {type(frame).__name__}, expected a data frame or a list of them")
    return listed


def _variables(frame: Any, value: str, factor: str) -> list[Hashable]:
    if value not in frame.columns:
        raise GraphError(f"the data frame has no column {value!r}, expected one with the numbers")
    return [name for name in frame.columns if name not in (value, factor)]


def _factors(frame: Any, value: str, factor: str) -> Iterator[tuple[list[str], list[tuple[Any, ...]]]]:
    """Scope and rows of every factor: those with the same cells filled, and the same entry of the column `factor`."""
    variables = _variables(frame, value, factor)
    filled = frame[variables].notna().to_numpy()
    own = frame[factor].tolist() if factor in frame.columns else [None] * len(frame)
    groups: dict[Any, list[int]] = {}
    for n, (cells, name) in enumerate(zip(map(tuple, filled.tolist()), own, strict=True)):
        groups.setdefault((cells, name), []).append(n)
    for (cells, _), places in groups.items():
        scope = [name for name, there in zip(variables, cells, strict=True) if there]
        rows = frame.iloc[places][[*scope, value]].itertuples(index=False, name=None)
        yield [str(name) for name in scope], list(rows)


def _plain(state: Any) -> Any:
    """A state as it was before missing cells made its column one of floats."""
    return int(state) if isinstance(state, float) and state.is_integer() else state


def to_pandas(graph: FactorGraph) -> Any:
    """Turn a factor graph into the data frame that `from_pandas` reads, with log potentials and a column `factor`.

    Examples
    --------
    >>> import mapmrf
    >>> tables = [[0.0, 1.0], [[1.0, 0.0], [0.0, 2.0]]]
    >>> frame = to_pandas(mapmrf.FactorGraph.from_tables([2, 2], [(0,), (0, 1)], tables, names=["a", "b"]))
    >>> frame["value"].tolist(), from_pandas(frame).solve().assignment
    ([0.0, 1.0, 1.0, 0.0, 0.0, 2.0], {'a': '1', 'b': '1'})
    """
    refuse_constraints(graph, "a data frame")
    pandas = needed("pandas", "frames")
    names, states = [str(label) for label in labels_of(graph)], states_of(graph)
    taken = {"factor", "value"}.intersection(names)
    if taken:
        raise GraphError(f"a variable is named {min(taken)!r}, which is another column of the data frame")
    free = np.bincount(graph.scope, minlength=graph.n_vars) == 0
    tables: list[tuple[list[int], Floats]] = [([], np.array(graph.constant))] if graph.constant else []
    unary = np.split(graph.theta_v, graph.var_ptr[1:-1])
    tables += [([i], unary[i]) for i in range(graph.n_vars) if free[i] or unary[i].any()]
    tables += [(graph.scope_of(a).tolist(), graph.table(a)) for a in range(graph.n_factors)]
    rows = []
    for number, (scope, table) in enumerate(tables):
        for place in np.ndindex(table.shape):
            cells = {names[i]: str(states[i][k]) for i, k in zip(scope, place, strict=True)}
            rows.append({"factor": number, **cells, "value": float(table[place])})
    return pandas.DataFrame(rows, columns=["factor", *names, "value"])
