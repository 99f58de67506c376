"""FactorGraph: a discrete graphical model as a few flat, read-only arrays. It knows no solver."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from numpy.typing import ArrayLike

from mapmrf.arrays import (
    Floats,
    Ints,
    block_sizes,
    compact,
    finite_range,
    frozen,
    largest_size,
    offsets,
    ranges,
    same_content,
    segment_argmax,
    size_chunks,
    strides,
)
from mapmrf.errors import GraphError
from mapmrf.model.builders import (
    MOST,
    FactorLists,
    as_array,
    as_ints,
    check_labels,
    check_shapes,
    check_sums,
    expand,
    fold,
    fold_pairs,
    joined,
    list_tables,
    negate_tables,
    slice_tables,
)
from mapmrf.model.names import Names as Names
from mapmrf.model.names import NamesLike, checked_names, locate_state, locate_variable

if TYPE_CHECKING:
    from mapmrf.constraints import Constraint, Constraints
    from mapmrf.model.summary import Granularity

FEW = 1000  # variables, factors or edges up to which the arrays that every value needs are kept

VALUE_CHUNK = 1 << 17  # factors evaluated together: keeps the intermediate arrays in the cache
ROUND_OFF = 4 * sys.float_info.epsilon  # relative error that sums and differences of potentials are allowed
EXACT = 1e-12
"""A bound that exceeds a value by at most this fraction of all magnitudes' sum meets it: the rest is round-off."""


@dataclass(frozen=True, eq=False)
class FactorGraph:
    """A factor graph with natural-log potentials, to be maximised; `-inf` forbids a configuration.

    Build one with `from_tables`, `from_energies`, `from_pairwise` or `mapmrf.read`; the bare constructor expects
    arrays in the layout below and checks only that every table has one shape. Two graphs are equal if they have the
    same variables, names, constraints and factors, in the same order, however the tables are stored.

    Attributes
    ----------
    card : (n_vars,)
        Number of states of every variable.
    theta_v : (sum of card,)
        Unary log potentials, a block of ``card[i]`` per variable.
    scope_ptr : (n_factors + 1,)
        The variables of factor `a` are ``scope[scope_ptr[a]:scope_ptr[a + 1]]``; every factor has two or more.
    scope : (n_edges,)
        A place in `scope` is an edge of the factor graph.
    table_of : (n_factors,)
        The table that a factor uses; many factors of the same shape may share one.
    weight : (n_factors,) or None
        The potentials of factor `a` are ``weight[a]`` times those of its table; None if all weights are 1. A factor
        whose table holds `-inf` has a positive weight, all others a finite one.
    table_ptr : (n_tables + 1,)
        Offsets of the tables in `theta_t`.
    theta_t : (sum of table sizes,)
        The tables, last variable of the scope fastest.
    constant : float
        Sum of all factors without variables.
    names : Names or None
        Names, where the source of the model had them. Wherever they are given, a list of names of the variables or a
        mapping from these to the names of their states will do.
    constraints : Constraints or None
        Constraints on the labels in addition to the tables, see `with_constraints`.

    Examples
    --------
    >>> import mapmrf
    >>> graph = mapmrf.FactorGraph.from_tables([2, 3], [(0,), (0, 1)], [[0.0, 1.0], [[0, 0, 2], [1, 0, 0]]])
    >>> graph
    FactorGraph(n_vars=2, n_factors=1, n_tables=1)
    >>> graph.card.tolist(), graph.theta_v.tolist(), graph.theta_t.tolist()
    ([2, 3], [0.0, 1.0, 0.0, 0.0, 0.0], [0.0, 0.0, 2.0, 1.0, 0.0, 0.0])
    """

    card: Ints
    theta_v: Floats
    scope_ptr: Ints
    scope: Ints
    table_of: Ints
    table_ptr: Ints
    theta_t: Floats
    constant: float = 0.0
    names: Names | None = field(default=None)
    weight: Floats | None = field(default=None)
    constraints: Constraints | None = field(default=None)

    def __post_init__(self) -> None:
        for array in (self.card, self.theta_v, self.scope_ptr, self.scope, self.table_of, self.table_ptr, self.theta_t):
            frozen(array)
        if self.weight is not None:
            frozen(self.weight)
        check_shapes(self.card, self.scope_ptr, self.scope, self.table_of, self.n_tables)
        if self.names is not None and not isinstance(self.names, Names):
            object.__setattr__(self, "names", checked_names(self.names, self.card))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, FactorGraph) or self is other:
            return self is other or NotImplemented
        others = ("card", "theta_v", "scope_ptr", "scope", "constant", "names", "constraints")
        return all(same_content(getattr(self, k), getattr(other, k)) for k in others) and self._same_tables(other)

    def _same_tables(self, other: FactorGraph) -> bool:
        used = [self.table_of, other.table_of, *(w for w in (self.weight, other.weight) if w is not None)]
        _, first = np.unique(np.stack(used), axis=1, return_index=True)
        some = [first[begin : begin + 1024] for begin in range(0, len(first), 1024)]
        return all(np.array_equal(self._potentials(each), other._potentials(each)) for each in some)

    def _potentials(self, factors: Ints) -> Floats:
        """The potentials of some factors, one table after another."""
        begin, end = self.table_ptr[self.table_of[factors]], self.table_ptr[self.table_of[factors] + 1]
        theta = self.theta_t[ranges(begin, end - begin)]
        return theta if self.weight is None else theta * np.repeat(self.weight[factors], end - begin)

    def __hash__(self) -> int:
        return hash((self.n_vars, self.n_factors, self.constant, *self.theta_v[:32].tolist()))

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Unpickle; arrays come back writable, so make them read-only again."""
        self.__dict__.update(state)
        self.__post_init__()

    def to_pandas(self) -> Any:
        """Return a `pandas.DataFrame` with a row per configuration of every factor, which `Model.from_pandas` reads.

        Examples
        --------
        >>> import mapmrf
        >>> graph = mapmrf.FactorGraph.from_tables([2], [(0,)], [[0.0, 1.5]], names={"rain": ["no", "yes"]})
        >>> graph.to_pandas()[["rain", "value"]].values.tolist()
        [['no', 0.0], ['yes', 1.5]]
        """
        from mapmrf.bridges.frames import to_pandas

        return to_pandas(self)

    def __repr__(self) -> str:
        constraints = f", n_constraints={self.n_constraints}" if self.n_constraints else ""
        return f"FactorGraph(n_vars={self.n_vars}, n_factors={self.n_factors}, n_tables={self.n_tables}{constraints})"

    def _repr_html_(self) -> str:
        from mapmrf.plots.display import graph_html

        return graph_html(self)

    def __rich__(self) -> Any:
        from mapmrf.plots.display import graph_rich

        return graph_rich(self)

    @property
    def n_vars(self) -> int:
        """Number of variables."""
        return len(self.card)

    @property
    def n_factors(self) -> int:
        """Number of factors on two or more variables."""
        return len(self.table_of)

    @property
    def n_edges(self) -> int:
        """Number of (variable, factor) pairs."""
        return len(self.scope)

    @property
    def n_tables(self) -> int:
        """Number of distinct stored tables."""
        return len(self.table_ptr) - 1

    @property
    def n_constraints(self) -> int:
        """Number of constraints in addition to the tables."""
        return 0 if self.constraints is None else len(self.constraints)

    @cached_property
    def var_ptr(self) -> Ints:
        """Offsets of the variables' blocks in `theta_v`."""
        return frozen(offsets(self.card))

    @property
    def arity(self) -> Ints:
        """Number of variables of every factor."""
        return np.diff(self.scope_ptr)

    @property
    def unary_labels(self) -> Ints:
        """The best state of every variable on its own, (n_vars,)."""
        return frozen(self._unary_labels.astype(np.int64))

    @cached_property
    def _unary_labels(self) -> Ints:
        """In the smallest integer type, since they are kept."""
        return frozen(compact(segment_argmax(self.theta_v, self.var_ptr)))

    @cached_property
    def stride(self) -> Ints:
        """Stride of every edge's variable in its factor's table, (n_edges,)."""
        return frozen(strides(self.card[self.scope], self.scope_ptr))

    @cached_property
    def _table_at(self) -> Ints:
        """Where the factors' tables start in `theta_t`, (n_factors,); kept for models with few factors only."""
        return self.table_ptr[self.table_of]

    @cached_property
    def unit(self) -> float:
        """The smallest denominator of a relative gap: 1, or the range of the potentials where that is smaller."""
        spread = finite_range(self.theta_v) + self._largest_weight * finite_range(self.theta_t) + self._penalties
        return min(1.0, spread) if spread > 0 else 1.0

    @cached_property
    def _largest_weight(self) -> float:
        return 1.0 if self.weight is None else largest_size(self.weight)

    @cached_property
    def _penalties(self) -> float:
        return 0.0 if self.constraints is None else self.constraints.size

    @cached_property
    def _crude_round_off(self) -> float:
        """A quick upper bound on ``ROUND_OFF * size``."""
        largest = max(largest_size(self.theta_v), self._largest_weight * largest_size(self.theta_t))
        return ROUND_OFF * (largest * (self.n_vars + self.n_factors) + self._penalties)

    @cached_property
    def size(self) -> float:
        """Sum of the largest magnitudes of a finite potential over all variables, factors and constraints."""
        unary = sum(float(sizes.sum()) for sizes in size_chunks(self.theta_v, self.var_ptr))
        return unary + float(block_sizes(self.theta_t, self.table_ptr) @ self.uses) + self._penalties

    @property
    def allowance(self) -> float:
        """Difference between a bound and a value that may be round-off in sums of the potentials."""
        return EXACT * (self.size + self._constant_size)

    @property
    def _constant_size(self) -> float:
        return abs(self.constant) if np.isfinite(self.constant) else 0.0

    @cached_property
    def granularity(self) -> Granularity:
        """The step of the values of all labellings; not known for large models."""
        from mapmrf.model.summary import Granularity

        return Granularity.of_graph(self)

    def check_sums(self) -> None:
        """Raise GraphError if the potentials are too large to be added up."""
        with np.errstate(over="ignore"):
            crude = self._crude_round_off / ROUND_OFF
            check_sums(crude if crude <= MOST else self.size, self.constant)

    @property
    def uses(self) -> Floats:
        """Total magnitude of the weights with which every table is used, (n_tables,)."""
        uses = np.zeros(self.n_tables)
        step = max(VALUE_CHUNK, self.n_tables)  # numpy makes copies
        for begin in range(0, self.n_factors, step):
            some = slice(begin, begin + step)
            sizes = None if self.weight is None else np.abs(self.weight[some])
            uses += np.bincount(self.table_of[some], weights=sizes, minlength=self.n_tables)
        return uses

    def round_off(self, least: float) -> float:
        """Bound on the floating-point error in sums of the potentials; 0 if it is at most `least`."""
        constant = ROUND_OFF * self._constant_size
        if self._crude_round_off + constant <= least:
            return 0.0
        error = ROUND_OFF * self.size + constant
        return error if error > least else 0.0

    # -- constructors -------------------------------------------------------------------------------------------

    @classmethod
    def from_tables(
        cls,
        card: ArrayLike,
        scopes: Iterable[Sequence[int]],
        tables: Iterable[ArrayLike],
        *,
        weight: ArrayLike | None = None,
        names: NamesLike | None = None,
    ) -> FactorGraph:
        """Build a graph from one scope and one table of log potentials per factor.

        Parameters
        ----------
        card : (n_vars,)
            Number of states of every variable.
        scopes
            The variables of every factor; unary and empty scopes are allowed and folded.
        tables
            One array per factor, of shape ``card[scope]``, or flat with the last variable fastest. The same object
            given for several factors is stored once.
        weight : (n_factors,)
            Multiplier of every table; 1 if not given.
        names
            Names of variables and states, if any.

        Examples
        --------
        >>> import mapmrf
        >>> graph = mapmrf.FactorGraph.from_tables([2, 2], [(0,), (0, 1)], [[0.0, 1.0], [[0.5, 0.0], [0.0, 0.5]]])
        >>> graph.value([1, 1])
        1.5
        """
        return cls._folded(fold(list_tables(card, scopes, tables, weight)), names)

    @classmethod
    def from_arrays(
        cls,
        card: ArrayLike,
        scope_ptr: ArrayLike,
        scope: ArrayLike,
        table_of: ArrayLike,
        table_ptr: ArrayLike,
        theta_t: ArrayLike,
        *,
        weight: ArrayLike | None = None,
        names: NamesLike | None = None,
        copy: bool = True,
    ) -> FactorGraph:
        """Build a graph from flat arrays in the layout of the attributes, with factors of any arity; checks everything.

        Arity-0 factors go into `constant`, unary factors into `theta_v`.

        Parameters
        ----------
        card : (n_vars,)
            Number of states of every variable.
        scope_ptr : (n_factors + 1,)
            Where the variables of every factor begin in `scope`.
        scope : (sum of arities,)
            The variables of all factors, one factor after another.
        table_of : (n_factors,)
            The table of every factor.
        table_ptr : (n_tables + 1,)
            Where every table begins in `theta_t`.
        theta_t : (sum of table sizes,)
            Log potentials of all tables, last variable of the scope fastest.
        weight : (n_factors,)
            Multiplier of every factor's table; 1 if not given.
        names
            Names of variables and states, if any.
        copy
            Whether to copy `theta_t`; False uses the array itself and makes it read-only.

        Examples
        --------
        >>> import numpy as np, mapmrf
        >>> graph = mapmrf.FactorGraph.from_arrays(
        ...     card=[2, 2, 2],
        ...     scope_ptr=np.array([0, 2, 4]),
        ...     scope=np.array([0, 1, 1, 2]),
        ...     table_of=np.array([0, 0]),  # both pairs have the same table
        ...     table_ptr=np.array([0, 4]),
        ...     theta_t=np.array([1.0, 0.0, 0.0, 1.0]),
        ... )
        >>> graph.n_factors, graph.n_tables, graph.value([1, 1, 1])
        (2, 1, 2.0)
        """
        given = FactorLists(
            as_ints(card, "card"),
            as_ints(scope_ptr, "scope_ptr"),
            as_ints(scope, "scope"),
            as_ints(table_of, "table_of"),
            as_ints(table_ptr, "table_ptr"),
            as_array(theta_t, "theta_t") if copy else np.asarray(theta_t, dtype=np.float64),
            None if weight is None else as_array(weight, "weight"),
        )
        for name, array in given._asdict().items():
            if isinstance(array, np.ndarray) and array.ndim != 1:
                raise GraphError(f"{name} has shape {array.shape}, expected one axis")
        return cls._folded(fold(given), names)

    @classmethod
    def _folded(cls, lists: FactorLists, names: NamesLike | None) -> FactorGraph:
        return cls(**lists._asdict(), names=checked_names(names, lists.card))

    @classmethod
    def from_energies(
        cls,
        card: ArrayLike,
        scopes: Iterable[Sequence[int]],
        energies: Iterable[ArrayLike],
        *,
        names: NamesLike | None = None,
    ) -> FactorGraph:
        """Like `from_tables`, from energies (costs) to be minimised: log potential = -energy, `inf` forbids.

        Parameters
        ----------
        card : (n_vars,)
            Number of states of every variable.
        scopes
            The variables of every factor.
        energies
            One array per factor, of shape ``card[scope]``, or flat with the last variable fastest.
        names
            Names of variables and states, if any.

        Examples
        --------
        >>> import mapmrf
        >>> graph = mapmrf.FactorGraph.from_energies([2, 2], [(0,), (0, 1)], [[3.0, 0.0], [[0, 1], [2, float("inf")]]])
        >>> graph.value([1, 0]), graph.value([1, 1])
        (-2.0, -inf)
        """
        return cls.from_tables(card, scopes, negate_tables(energies), names=names)

    @classmethod
    def from_pairwise(
        cls,
        unary: ArrayLike,
        edges: ArrayLike,
        pairwise: ArrayLike,
        *,
        weight: ArrayLike | None = None,
        names: NamesLike | None = None,
    ) -> FactorGraph:
        """Build a pairwise model in which all variables have the same states.

        Parameters
        ----------
        unary : (n_vars, n_states)
            Log potentials of the single variables.
        edges : (n_edges, 2)
            Pairs of variables.
        pairwise : (n_states, n_states) or (n_edges, n_states, n_states)
            Log potentials of the pairs: one table shared by all, or one each.
        weight : (n_edges,)
            Multiplier of every pair's table; 1 if not given.

        Examples
        --------
        >>> import mapmrf
        >>> graph = mapmrf.FactorGraph.from_pairwise([[0, 1], [0, 0]], [[0, 1]], [[1, 0], [0, 1]])
        >>> graph.value([1, 1])
        2.0
        >>> graph = mapmrf.FactorGraph.from_pairwise([[0, 1], [0, 0]], [[0, 1]], [[1, 0], [0, 1]], weight=[0.5])
        >>> graph.value([1, 1])
        1.5
        """
        return cls._folded(fold_pairs(unary, edges, pairwise, weight), names)

    # -- questions ----------------------------------------------------------------------------------------------

    def table(self, a: int) -> Floats:
        """Log potentials of factor `a`, with an axis for each variable of its scope."""
        t = self.table_of[a]
        table = self.theta_t[self.table_ptr[t] : self.table_ptr[t + 1]].reshape(self.card[self.scope_of(a)])
        return table if self.weight is None else self.weight[a] * table

    def scope_of(self, a: int) -> Ints:
        """Variables of factor `a`."""
        return self.scope[self.scope_ptr[a] : self.scope_ptr[a + 1]]

    def value(self, labels: ArrayLike | Mapping[Any, Any]) -> float:
        """Log potential of a labelling: the sum over all factors, minus the penalties of constraints it violates.

        Parameters
        ----------
        labels : (n_vars,)
            A state for every variable: an array of indices, or a mapping from variables to states by index or name.

        Raises
        ------
        GraphError
            If a label is missing or out of range.

        Examples
        --------
        >>> import mapmrf
        >>> graph = mapmrf.FactorGraph.from_pairwise([[0, 1], [0, 0]], [[0, 1]], [[1, 0], [0, 1]])
        >>> graph.value([1, 1])
        2.0
        >>> graph.value([1, 2])
        Traceback (most recent call last):
            ...
        mapmrf.errors.GraphError: label of variable 1 is 2, expected 0 to 1
        """
        labels = self.check_labels(labels)
        total, unary = self.constant, self.theta_v[self.var_ptr[:-1] + labels]
        if self.n_vars <= FEW and 0 < self.n_factors <= FEW and len(self.scope) <= FEW:
            inside = np.add.reduceat(labels[self.scope] * self.stride, self.scope_ptr[:-1])
            terms = self.theta_t[self._table_at + inside]
            terms = terms if self.weight is None else terms * self.weight
            total += float(np.add.reduce(unary))
            total += float(np.add.reduce(terms))
            return total if self.constraints is None else total + self.constraints.value(labels)
        for begin in range(0, self.n_vars, VALUE_CHUNK):
            total += float(unary[begin : begin + VALUE_CHUNK].sum())
        for begin in range(0, self.n_factors, VALUE_CHUNK):
            end = min(begin + VALUE_CHUNK, self.n_factors)
            edges = slice(self.scope_ptr[begin], self.scope_ptr[end])
            ptr = self.scope_ptr[begin : end + 1] - self.scope_ptr[begin]
            places = self.table_ptr[self.table_of[begin:end]]
            _add_places(places, self.scope[edges], ptr, labels, self.card)
            terms = self.theta_t[places]
            if self.weight is not None:
                terms *= self.weight[begin:end]
            total += float(terms.sum())
        return total if self.constraints is None else total + self.constraints.value(labels)

    def check_labels(self, labels: ArrayLike | Mapping[Any, Any]) -> Ints:
        """Return the labels, (n_vars,), as integers; raise GraphError unless every variable has a legal one."""
        return check_labels(labels, self.card, self.names)

    def condition(self, evidence: Mapping[Any, Any]) -> FactorGraph:
        """Fix observed variables; they stay in the model, and in the labels, with a single allowed state.

        Parameters
        ----------
        evidence
            Variable (index or name) -> state (index or name). Integers are indices, strings are names; True and False
            are the states that are called so, in upper or lower case, never the numbers 1 and 0.

        Raises
        ------
        UnknownName
            If no variable or state has this name.
        GraphError
            If an index is out of range.

        Examples
        --------
        >>> import mapmrf
        >>> names = mapmrf.Names(("Rain", "Grass"), (("no", "yes"), ("dry", "wet")))
        >>> graph = mapmrf.FactorGraph.from_pairwise([[0, 1], [0, 0]], [[0, 1]], [[1, 0], [0, 1]], names=names)
        >>> graph.condition({1: 0}).value([1, 0])
        1.0
        >>> graph.condition({"Grass": "dry"}).value([1, 0])
        1.0
        """
        if not isinstance(evidence, Mapping):
            raise GraphError(f"the evidence is {evidence!r}, expected a mapping from variables to states")
        observed = np.full(self.n_vars, -1, dtype=np.int64)
        for variable, state in evidence.items():
            i, k = self.locate(variable, state)
            observed[i] = k
        lists = fold(slice_tables(self._lists(), observed))
        assert lists.theta_v is not None
        theta_v = self.theta_v + lists.theta_v
        fixed = np.flatnonzero(observed >= 0)
        allowed = self.var_ptr[fixed] + observed[fixed]
        value = theta_v[allowed]
        theta_v[ranges(self.var_ptr[fixed], self.card[fixed])] = -np.inf
        theta_v[allowed] = value
        constraints, constant = self.constraints, self.constant + lists.constant
        if constraints is not None:
            from mapmrf.constraints.statements import condition

            constraints, decided = condition(constraints, observed, self.card)
            constant += decided
        smaller = self._folded(lists._replace(theta_v=theta_v, constant=constant), self.names)
        smaller = smaller if constraints is None else replace(smaller, constraints=constraints)
        whole, before = self.origin or (self, observed)
        smaller.__dict__["_origin"] = whole, np.where(before >= 0, before, observed)
        return smaller

    @property
    def origin(self) -> tuple[FactorGraph, Ints] | None:
        """The model before `condition` fixed variables, and their observed states, (n_vars,), -1 for all others."""
        return cast("tuple[FactorGraph, Ints] | None", self.__dict__.get("_origin"))

    def with_constraints(self, constraints: Iterable[Constraint]) -> FactorGraph:
        """Return the model with further constraints.

        Parameters
        ----------
        constraints
            Constraints made by the functions of `mapmrf.constraints`.

        Raises
        ------
        GraphError
            If a variable or state does not exist, or occurs twice in a constraint.
        UnknownName
            If a name does not exist.

        Examples
        --------
        >>> import mapmrf
        >>> from mapmrf import constraints
        >>> graph = mapmrf.FactorGraph.from_pairwise([[0, 1], [0, 1]], [[0, 1]], [[1, 0], [0, 1]])
        >>> one = graph.with_constraints([constraints.exactly_one([0, 1])])
        >>> one.value([1, 0]), one.value([1, 1])
        (1.0, -inf)
        """
        from mapmrf.constraints.flat import Constraints  # a model without them skips the import
        from mapmrf.constraints.statements import attach

        further = attach(constraints, self.names, self.card)
        parts = [part for part in (self.constraints, further) if part is not None]
        return replace(self, constraints=Constraints.join(parts))

    def with_factors(
        self,
        scopes: Iterable[Sequence[int]],
        tables: Iterable[ArrayLike],
        *,
        card: Sequence[int] = (),
        names: NamesLike | None = None,
    ) -> FactorGraph:
        """Return the model with further factors and variables.

        Parameters
        ----------
        scopes
            The variables of every further factor.
        tables : (card, card, ...)
            Log potentials of every further factor, as in `from_tables`.
        card
            Numbers of states of the further variables, whose indices follow those of the others.
        names
            Names of all variables; by default they stay as they are if there are no further variables.

        Examples
        --------
        >>> import mapmrf
        >>> graph = mapmrf.FactorGraph.from_tables([2, 2], [(0,)], [[0.0, 1.0]])
        >>> graph.with_factors([(0, 1), (1, 2)], [[[1, 0], [0, 1]]] * 2, card=[2]).value([1, 1, 1])
        3.0
        """
        whole = fold(list_tables(np.concatenate([self.card, card]) if len(card) else self.card, scopes, tables))
        graph = self._folded(joined(self._lists(), whole), names if names is not None or len(card) else self.names)
        return graph if self.constraints is None else replace(graph, constraints=self.constraints)

    def expanded(self) -> FactorGraph:
        """Return the model without weights: a table for every distinct pair of weight and table.

        For formats and programs without weights. A model without weights is returned unchanged.
        """
        if self.weight is None:
            return self
        lists = expand(self._lists())
        return replace(self, table_of=lists.table_of, table_ptr=lists.table_ptr, theta_t=lists.theta_t, weight=None)

    def _lists(self) -> FactorLists:
        factors = (self.card, self.scope_ptr, self.scope, self.table_of, self.table_ptr, self.theta_t, self.weight)
        return FactorLists(*factors, self.theta_v, self.constant)

    def locate(self, variable: int | str, state: int | str | bool) -> tuple[int, int]:
        """Indices of a variable and its state, given by index or by name."""
        i = locate_variable(self.names, self.card, variable)
        return i, locate_state(self.names, self.card, i, state)


def _add_places(places: Ints, scope: Ints, ptr: Ints, labels: Ints, card: Ints) -> None:
    """Add the position of every factor's configuration in its table to `places`."""
    arity = np.diff(ptr)
    if len(arity) and np.all(arity == arity[0]):
        columns = scope.reshape(len(arity), -1).T
        inside = labels[columns[0]]
        for column in columns[1:]:
            inside *= card[column]
            inside += labels[column]
        places += inside
    else:
        places += np.add.reduceat(labels[scope] * strides(card[scope], ptr), ptr[:-1])
