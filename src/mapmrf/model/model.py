"""Model: variables, factors and constraints by name, from which the flat FactorGraph is made."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np
from numpy.typing import ArrayLike

from mapmrf.arrays import Floats
from mapmrf.errors import GraphError, OptionError, UnknownName, suggestion
from mapmrf.model.builders import as_array
from mapmrf.model.graph import FactorGraph, Names
from mapmrf.model.names import index_of, labels_of, locate_state, states_of

if TYPE_CHECKING:
    from mapmrf.constraints import Constraint
    from mapmrf.run.result import Result

Values = Literal["log", "cost", "potential"]


@dataclass(frozen=True, eq=False)
class Variable:
    """A variable of a `Model`. It stands for its index, so it can be used wherever a name or an index can.

    Examples
    --------
    >>> import mapmrf
    >>> rain = mapmrf.Model().variable("rain", ["no", "yes"])
    >>> rain
    Variable('rain', states=('no', 'yes'))
    >>> int(rain), rain.n_states
    (0, 2)
    """

    name: str
    states: tuple[str, ...]
    index: int

    @property
    def n_states(self) -> int:
        """Number of states."""
        return len(self.states)

    def __index__(self) -> int:
        return self.index

    __int__ = __index__

    def __repr__(self) -> str:
        return f"Variable({self.name!r}, states={self.states})"


VariableLike = Variable | str | int
State = str | int | bool


class Model:
    """A graphical model that is built by name.

    Parameters
    ----------
    name
        A name for the model, for display.
    values
        Meaning of the numbers in the tables of factors: ``"log"`` (natural-log potentials), ``"cost"`` (to be
        minimised; `inf` forbids) or ``"potential"`` (probabilities and other numbers of at least 0, to be multiplied).

    Examples
    --------
    >>> import mapmrf
    >>> model = mapmrf.Model("weather", values="potential")
    >>> rain = model.variable("rain", ["no", "yes"])
    >>> grass = model.variable("grass", ["dry", "wet"])
    >>> model.factor([rain], [0.8, 0.2])
    >>> model.factor([rain, grass], [[0.9, 0.1], [0.2, 0.8]])
    >>> model
    Model('weather': 2 variables, 2 factors)
    >>> result = model.solve(evidence={"grass": "wet"})
    >>> result["rain"], result.assignment
    ('yes', {'rain': 'yes', 'grass': 'wet'})
    """

    def __init__(self, name: str = "", *, values: Values = "log") -> None:
        if values not in get_args(Values):
            raise OptionError(f"values is {values!r}, expected one of {', '.join(get_args(Values))}")
        self.name, self.values = name, values
        self._variables: list[Variable] = []
        self._by_name: dict[str, Variable] = {}
        self._scopes: list[tuple[int, ...]] = []
        self._tables: list[Floats] = []
        self._constraints: list[Constraint] = []
        self._base = FactorGraph.from_tables([], [], [])  # what the model began as
        self._graph: FactorGraph | None = None

    def __repr__(self) -> str:
        n_constraints = self._base.n_constraints + len(self._constraints)
        counts = [(len(self._variables), "variable"), (self._base.n_factors + len(self._scopes), "factor")]
        counts += [(n_constraints, "constraint")] if n_constraints else []
        named = f"{self.name!r}: " if self.name else ""
        return f"Model({named}{', '.join(f'{n} {word}' + ('' if n == 1 else 's') for n, word in counts)})"

    def _repr_html_(self) -> str:
        from mapmrf.plots.display import graph_html

        return graph_html(self.graph(), f"Model {self.name}".strip())

    @property
    def variables(self) -> tuple[Variable, ...]:
        """The variables, in the order in which they were added."""
        return tuple(self._variables)

    # -- models of other kinds, which can be continued by name ---------------------------------------------------------

    @classmethod
    def from_graph(cls, graph: FactorGraph | str | os.PathLike[str], *, values: Values = "log") -> Model:
        """Begin with a `FactorGraph`, or a file of any known format; variables without names are called by their index.

        Examples
        --------
        >>> import mapmrf
        >>> model = mapmrf.Model.from_graph(mapmrf.FactorGraph.from_tables([2, 3], [(0, 1)], [[0, 1, 2, 3, 4, 5]]))
        >>> model.prefer("0", "0", 5.0)
        >>> model.solve().assignment
        {'0': '0', '1': '2'}
        """
        from mapmrf.run.solve import as_graph

        base, model = as_graph(graph), cls(values=values)
        for label, states in zip(labels_of(base), states_of(base), strict=True):
            model.variable(str(label), map(str, states))
        model._base = base
        return model

    @classmethod
    def from_qubo(cls, coefficients: Mapping[Any, float] | ArrayLike, *, offset: float = 0.0) -> Model:
        """A QUBO, to be minimised, as a dict or (n, n): see `mapmrf.bridges.from_qubo`. Further numbers are costs.

        Examples
        --------
        >>> import mapmrf
        >>> model = mapmrf.Model.from_qubo({("a", "a"): -1.0, ("b", "b"): -1.0, ("a", "b"): 3.0})
        >>> model.forbid(["a", "b"], [("0", "1")])
        >>> model.solve().assignment
        {'a': '1', 'b': '0'}
        """
        from mapmrf.bridges.dimod import from_qubo

        return cls.from_graph(from_qubo(coefficients, offset=offset), values="cost")

    @classmethod
    def from_dimod(cls, model: Any) -> Model:
        """A BQM, DQM, CQM or polynomial of dimod: see `mapmrf.bridges.from_cqm`. Further numbers are costs.

        Examples
        --------
        >>> import dimod, mapmrf
        >>> x, y = dimod.Binaries("xy")
        >>> cqm = dimod.ConstrainedQuadraticModel()
        >>> cqm.set_objective(-2 * x - y)
        >>> _ = cqm.add_constraint(x + y <= 1, label="one of them")
        >>> mapmrf.Model.from_dimod(cqm).solve().assignment
        {'x': '1', 'y': '0'}
        """
        from mapmrf.bridges.dimod import from_dimod

        return cls.from_graph(from_dimod(model), values="cost")

    @classmethod
    def from_networkx(
        cls,
        graph: Any,
        *,
        unary: str = "unary",
        pairwise: str = "pairwise",
        default: ArrayLike | None = None,
        weight: str | None = None,
    ) -> Model:
        """A variable per node, a factor per edge: `mapmrf.bridges.from_networkx`; `default` is (n_states, n_states).

        Examples
        --------
        >>> import networkx, mapmrf
        >>> model = mapmrf.Model.from_networkx(networkx.path_graph(3), default=[[0.0, 1.0], [1.0, 0.0]])
        >>> model.solve(evidence={"0": 1}).assignment
        {'0': '1', '1': '0', '2': '1'}
        """
        from mapmrf.bridges.networkx import from_networkx

        return cls.from_graph(from_networkx(graph, unary=unary, pairwise=pairwise, default=default, weight=weight))

    @classmethod
    def from_pandas(
        cls,
        frames: Any,
        *,
        value: str = "value",
        factor: str = "factor",
        values: Values = "log",
        default: float | None = None,
    ) -> Model:
        """A data frame of factors, with a row for each configuration: see `mapmrf.bridges.from_pandas`.

        Examples
        --------
        >>> import pandas, mapmrf
        >>> frame = pandas.DataFrame({"rain": ["no", "yes"], "value": [0.8, 0.2]})
        >>> mapmrf.Model.from_pandas(frame, values="potential").solve()["rain"]
        'no'
        """
        from mapmrf.bridges.frames import from_pandas

        return from_pandas(frames, value=value, factor=factor, values=values, default=default)

    @classmethod
    def from_pgmpy(cls, model: Any) -> Model:
        """A model of pgmpy: see `mapmrf.bridges.from_pgmpy`. Further numbers are potentials.

        Examples
        --------
        >>> class Factor:  # looks like a DiscreteFactor
        ...     variables, values, state_names = ["rain"], [0.8, 0.2], {"rain": ["no", "yes"]}
        >>> import mapmrf
        >>> mapmrf.Model.from_pgmpy([Factor()]).solve()["rain"]
        'no'
        """
        from mapmrf.bridges.pgmpy import from_pgmpy

        return cls.from_graph(from_pgmpy(model), values="potential")

    # -- building -----------------------------------------------------------------------------------------------------

    def variable(self, name: str, states: int | Iterable[str | bool] = 2) -> Variable:
        """Add a variable.

        Parameters
        ----------
        name
            Its name, which no other variable may have.
        states
            The names of its states, or their number; they are then called ``"0"``, ``"1"`` and so on.

        Examples
        --------
        >>> import mapmrf
        >>> model = mapmrf.Model()
        >>> model.variable("grass", 3).states
        ('0', '1', '2')
        """
        if not isinstance(name, str) or not name:
            raise GraphError(f"the name of a variable is {name!r}, expected text")
        if name in self._by_name:
            raise GraphError(f"there is a variable {name!r} already")
        variable = Variable(name, _state_names(name, states), len(self._variables))
        self._variables.append(variable)
        self._by_name[name] = variable
        self._graph = None
        return variable

    def factor(
        self,
        scope: VariableLike | Sequence[VariableLike],
        table: ArrayLike | Mapping[Any, float],
        *,
        default: float | None = None,
    ) -> None:
        """Add a factor.

        Parameters
        ----------
        scope
            Its variables, or a single one: names or `Variable` objects.
        table : (n_states, n_states, ...)
            An array with an axis for each variable, or a mapping from states (tuples of them for several variables) to
            numbers.
        default
            The number of configurations that a mapping does not list; without it, all of them must be listed.

        Examples
        --------
        >>> import mapmrf
        >>> model = mapmrf.Model(values="cost")
        >>> a, b = model.variable("a", ["low", "high"]), model.variable("b", ["low", "high"])
        >>> model.factor([a, b], {("low", "high"): 2.0, ("high", "low"): 1.0}, default=0.0)
        >>> model.factor("a", {"low": 0.5}, default=0.0)
        >>> model.value({"a": "low", "b": "high"})
        -2.5
        """
        variables, what = self._scope(scope)
        if isinstance(table, Mapping):
            numbers = self._listed(variables, table, default, what)
        elif default is not None:
            raise GraphError(f"{what}: a default is for tables that are mappings, found an array")
        else:
            numbers = as_array(table, what)
        shape = tuple(variable.n_states for variable in variables)
        if numbers.shape != shape:
            raise GraphError(f"{what}: the table has shape {numbers.shape}, expected {shape}")
        self._add(variables, _log_potentials(numbers, self.values, what))

    def forbid(
        self, scope: VariableLike | Sequence[VariableLike], configurations: Iterable[State | Sequence[State]]
    ) -> None:
        """Forbid configurations of some variables.

        Examples
        --------
        >>> import mapmrf
        >>> model = mapmrf.Model()
        >>> rain, grass = model.variable("rain", ["no", "yes"]), model.variable("grass", ["dry", "wet"])
        >>> model.forbid([rain, grass], [("yes", "dry")])
        >>> model.value({"rain": "yes", "grass": "dry"})
        -inf
        """
        variables, what = self._scope(scope)
        if isinstance(configurations, str) or not isinstance(configurations, Iterable):
            raise GraphError(f"{what}: forbidden is {configurations!r}, expected a list of configurations")
        table = np.zeros([variable.n_states for variable in variables])
        for configuration in configurations:
            table[self._place(variables, configuration, what)] = -np.inf
        self._add(variables, table)

    def prefer(self, variable: VariableLike, state: State, by: float) -> None:
        """Add `by` to the log potential of a state; where the numbers are costs, this is taken off its cost.

        Examples
        --------
        >>> import mapmrf
        >>> model = mapmrf.Model()
        >>> rain = model.variable("rain", ["no", "yes"])
        >>> model.prefer(rain, "yes", 0.3)
        >>> model.solve()["rain"]
        'yes'
        """
        variables, what = self._scope(variable)
        table = np.zeros(variables[0].n_states)
        table[self._place(variables, state, what)] = by
        self._add(variables, _log_potentials(table, "log", what))

    def add(self, *constraints: Constraint) -> None:
        """Add constraints made by the functions of `mapmrf.constraints`, with variables and states by name.

        Examples
        --------
        >>> import mapmrf
        >>> from mapmrf import constraints
        >>> model = mapmrf.Model()
        >>> for day in ("mon", "tue", "wed"):
        ...     model.prefer(model.variable(day, ["off", "on"]), "on", 1.0)
        >>> model.add(constraints.at_most_k([("mon", "on"), ("tue", "on"), ("wed", "on")], 2))
        >>> model.solve().value
        2.0
        """
        for each in itertools.chain.from_iterable(stated.indicators or () for stated in constraints):
            for variable in each if isinstance(each, tuple) else (each,):
                if isinstance(variable, Variable):
                    self[variable]  # which must be one of this model
        self.graph().with_constraints(constraints)  # an error is raised now, not when the model is solved
        self._constraints += constraints
        self._graph = None

    # -- questions ----------------------------------------------------------------------------------------------------

    def graph(self) -> FactorGraph:
        """The model as a `FactorGraph`, made once and then kept until the model changes.

        Examples
        --------
        >>> import mapmrf
        >>> model = mapmrf.Model()
        >>> rain = model.variable("rain", ["no", "yes"])
        >>> model.graph()
        FactorGraph(n_vars=1, n_factors=0, n_tables=0)
        """
        if self._graph is None:
            names = Names(tuple(self._by_name), tuple(variable.states for variable in self._variables))
            card = [variable.n_states for variable in self._variables[self._base.n_vars :]]
            graph = self._base.with_factors(self._scopes, self._tables, card=card, names=names)
            self._graph = graph.with_constraints(self._constraints) if self._constraints else graph
        return self._graph

    def value(self, assignment: Mapping[VariableLike, State] | ArrayLike) -> float:
        """Log potential of a labelling.

        Parameters
        ----------
        assignment : (n_vars,)
            A state for every variable: a mapping from variables to states, or an array of indices.

        Examples
        --------
        >>> import mapmrf
        >>> model = mapmrf.Model()
        >>> model.prefer(model.variable("rain", ["no", "yes"]), "yes", 0.3)
        >>> model.value({"rain": "yes"}), model.value([0])
        (0.3, 0.0)
        """
        return self.graph().value(assignment)

    def condition(self, evidence: Mapping[VariableLike, State]) -> FactorGraph:
        """The graph with observed variables fixed: `FactorGraph.condition`.

        Examples
        --------
        >>> import mapmrf
        >>> model = mapmrf.Model()
        >>> model.prefer(model.variable("rain", ["no", "yes"]), "yes", 1.0)
        >>> mapmrf.solve(model.condition({"rain": "no"}))["rain"]
        'no'
        """
        return self.graph().condition(evidence)

    def to_pandas(self) -> Any:
        """Return a `pandas.DataFrame` with a row per configuration of every factor, which `from_pandas` reads.

        Examples
        --------
        >>> import mapmrf
        >>> model = mapmrf.Model()
        >>> model.prefer(model.variable("rain", ["no", "yes"]), "yes", 1.5)
        >>> model.to_pandas()[["rain", "value"]].values.tolist()
        [['no', 0.0], ['yes', 1.5]]
        """
        return self.graph().to_pandas()

    def solve(self, method: Any = "auto", **options: Any) -> Result:
        """Find the most probable labelling: `mapmrf.solve` of the graph, with the same arguments.

        Examples
        --------
        >>> import mapmrf
        >>> model = mapmrf.Model()
        >>> model.prefer(model.variable("rain", ["no", "yes"]), "yes", 1.0)
        >>> result = model.solve("trws", margins=True)
        >>> result["rain"], result.certainty("rain")
        ('yes', 1.0)
        """
        from mapmrf.run.solve import solve

        return solve(self.graph(), method, **options)

    # -- names --------------------------------------------------------------------------------------------------------

    def __getitem__(self, name: VariableLike) -> Variable:
        if isinstance(name, str):
            if name not in self._by_name:
                raise UnknownName(f"no variable is named {name!r}{suggestion(name, self._by_name)}")
            return self._by_name[name]
        if isinstance(name, Variable) and self._by_name.get(name.name) is not name:
            raise GraphError(f"variable {name.name!r} belongs to another model")
        i = index_of(name)
        if i is None or not 0 <= i < len(self._variables):
            raise GraphError(f"{name!r} is not a variable of this model, expected a name or a variable")
        return self._variables[i]

    def _scope(self, scope: VariableLike | Sequence[VariableLike]) -> tuple[list[Variable], str]:
        """The variables of a scope, and how errors name it."""
        several = (scope,) if isinstance(scope, str | Variable) or not isinstance(scope, Iterable) else scope
        variables = [self[each] for each in several]
        what = f"factor of {', '.join(variable.name for variable in variables)}"
        if len({variable.index for variable in variables}) < len(variables):
            raise GraphError(f"{what}: a variable occurs twice")
        return variables, what

    def _place(self, variables: list[Variable], configuration: Any, what: str) -> tuple[int, ...]:
        """The indices of the states of a configuration; a single variable may come without a tuple."""
        states = configuration if isinstance(configuration, tuple | list) else (configuration,)
        if len(states) != len(variables):
            raise GraphError(f"{what}: {configuration!r} has {len(states)} states, expected {len(variables)}")
        names = Names(tuple(each.name for each in variables), tuple(each.states for each in variables))
        card = np.array([each.n_states for each in variables])
        return tuple(locate_state(names, card, k, state) for k, state in enumerate(states))

    def _listed(
        self, variables: list[Variable], table: Mapping[Any, float], default: float | None, what: str
    ) -> Floats:
        """A table from a mapping of configurations."""
        numbers = np.full([variable.n_states for variable in variables], np.nan if default is None else default)
        seen = set()
        for configuration, number in table.items():
            place = self._place(variables, configuration, what)
            if place in seen:
                raise GraphError(f"{what}: {configuration!r} is listed twice")
            seen.add(place)
            numbers[place] = as_array(number, f"{what}: the number of {configuration!r}")
        if default is None and len(seen) < numbers.size:
            every = itertools.product(*(range(variable.n_states) for variable in variables))
            place = next(place for place in every if place not in seen)
            states = tuple(variable.states[k] for variable, k in zip(variables, place, strict=True))
            raise GraphError(f"{what}: {', '.join(states)} is not listed, and there is no default")
        return numbers

    def _add(self, variables: list[Variable], table: Floats) -> None:
        self._scopes.append(tuple(variable.index for variable in variables))
        self._tables.append(table)
        self._graph = None


def _state_names(name: str, states: int | Iterable[str | bool]) -> tuple[str, ...]:
    number = index_of(states)
    if number is not None:
        if number < 1:
            raise GraphError(f"variable {name!r} has {number} states, expected at least 1")
        return tuple(map(str, range(number)))
    if isinstance(states, str) or not isinstance(states, Iterable):
        raise GraphError(f"variable {name!r}: the states are {states!r}, expected a number or a list of names")
    listed = list(states)
    wrong = next((state for state in listed if not isinstance(state, str | bool | np.bool_)), None)
    if wrong is not None:
        raise GraphError(f"variable {name!r}: {wrong!r} is no name of a state, expected text (an integer is an index)")
    found = tuple(map(str, listed))
    if not found:
        raise GraphError(f"variable {name!r} has no states, expected at least 1")
    if len(set(found)) < len(found):
        twice = next(state for k, state in enumerate(found) if state in found[:k])
        raise GraphError(f"variable {name!r}: two states are named {twice!r}")
    return found


def _log_potentials(numbers: Floats, values: str, what: str) -> Floats:
    """Convert numbers of any meaning; raise GraphError for the first that has none."""
    least, expected = -np.inf, "a finite number or -inf"
    if values == "cost":
        expected = "a finite number or inf"
    elif values == "potential":
        least, expected = 0.0, "a finite number of at least 0"
    legal = (-numbers if values == "cost" else numbers) < np.inf  # nan is not
    wrong = ~(legal & (numbers >= least))
    if wrong.any():
        place = np.argwhere(wrong)[0]
        entry = ", ".join(map(str, place.tolist()))
        raise GraphError(f"{what}: entry {entry} is {numbers[tuple(place)]}, expected {expected}")
    if values == "cost":
        return -numbers
    with np.errstate(divide="ignore"):
        return np.log(numbers) if values == "potential" else numbers
