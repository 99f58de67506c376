"""A `dimod.Sampler` that solves, for programs written for D-Wave's samplers."""

# The base classes have types only where dimod is installed.
# mypy: disallow-subclassing-any=False, disallow-untyped-calls=False

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from mapmrf._version import __version__
from mapmrf.arrays import Ints
from mapmrf.bridges.dimod import from_bqm, from_cqm, from_dqm, from_polynomial, variables_of
from mapmrf.errors import GraphError, OptionError, needed
from mapmrf.model.graph import FactorGraph
from mapmrf.run.method import Method
from mapmrf.run.registry import DEFAULT_METHOD, make_method
from mapmrf.run.result import Result, Status, relative_gap
from mapmrf.run.solve import solve

if TYPE_CHECKING:
    from dimod.core.polysampler import PolySampler
    from dimod.core.sampler import Sampler
    from dimod.sampleset import SampleSet
else:
    _dimod = needed("dimod")
    PolySampler, Sampler, SampleSet = _dimod.PolySampler, _dimod.Sampler, _dimod.SampleSet

PARAMETERS = ("num_reads", "seed", "time_limit", "threads", "initial_state")


class MapMRFSampler(Sampler, PolySampler):
    """Minimise energies with the methods of this library, behind the interface of dimod's samplers.

    This does not sample a distribution: every read is the best solution that the method finds; ``num_reads`` is the
    number of runs, each with another seed. `sample`, `sample_ising`, `sample_qubo`, `sample_dqm`, `sample_cqm`,
    `sample_poly`, `sample_hising` and `sample_hubo` return a SampleSet, whose ``info`` has

    - ``bound``: lower bound on the energy (None if the method has none),
    - ``gap``: the relative gap between the best energy and the bound, and ``status``: ``"optimal"`` is a proof,
    - ``method``, ``runtime`` (seconds), ``seeds`` (one per read) and ``version``.

    Parameters
    ----------
    method
        Name of a method, or a method object with its options such as ``mapmrf.LSLP(rho=0.1)``.

    Examples
    --------
    >>> sampler = MapMRFSampler()
    >>> found = sampler.sample_qubo({("a", "a"): -1, ("b", "b"): -1, ("a", "b"): 3})
    >>> float(found.first.energy), found.info["status"]
    (-1.0, 'optimal')
    """

    def __init__(self, method: str | Method = DEFAULT_METHOD) -> None:
        self._method = make_method(method, {})

    @property
    def parameters(self) -> dict[str, Any]:
        """Keywords of the sample methods: num_reads, seed, time_limit, threads, initial_state."""
        return {name: [] for name in PARAMETERS}

    @property
    def properties(self) -> dict[str, Any]:
        """Description of this sampler."""
        method = type(self._method)
        return {
            "description": f"mapmrf {__version__}: {method.title}",
            "method": method.name,
            "gives_bound": method.gives_bound,
            "exact": method.exact,
        }

    def sample(self, bqm: Any, **parameters: Any) -> Any:
        """Minimise a BinaryQuadraticModel.

        Parameters
        ----------
        bqm
            The model; the samples have its vartype.
        **parameters
            ``num_reads``: number of runs, each with its own seed (default 1). ``seed``: seed of the first run (default
            0). ``time_limit``: seconds for each run. ``threads``: default 1. ``initial_state``: variable -> value, a
            labelling to start from. Others are ignored with a warning, as dimod requires.

        Examples
        --------
        >>> import dimod
        >>> bqm = dimod.BinaryQuadraticModel({"a": 1.0}, {("a", "b"): -2.0}, 0.0, "SPIN")
        >>> found = MapMRFSampler().sample(bqm)
        >>> float(found.first.energy), int(found.first.sample["b"])
        (-3.0, -1)
        """
        return self._sampled(from_bqm(bqm), list(bqm.variables), parameters, bqm, bqm.vartype)

    def sample_dqm(self, dqm: Any, **parameters: Any) -> Any:
        """Minimise a DiscreteQuadraticModel; the parameters are those of `sample`.

        Examples
        --------
        >>> import dimod
        >>> dqm = dimod.DiscreteQuadraticModel()
        >>> _ = dqm.add_variable(3, label="colour")
        >>> dqm.set_linear("colour", [0.0, -1.0, 2.0])
        >>> int(MapMRFSampler().sample_dqm(dqm).first.sample["colour"])
        1
        """
        return self._sampled(from_dqm(dqm), list(dqm.variables), parameters, dqm, "DISCRETE")

    def sample_cqm(self, cqm: Any, **parameters: Any) -> Any:
        """Minimise a ConstrainedQuadraticModel; the parameters are those of `sample`.

        The samples say whether they are feasible; the status ``infeasible`` is a proof that there is no feasible one.

        Examples
        --------
        >>> import dimod
        >>> i, j = dimod.Integer("i", upper_bound=4), dimod.Integer("j", upper_bound=4)
        >>> cqm = dimod.ConstrainedQuadraticModel()
        >>> cqm.set_objective(-i * j)
        >>> _ = cqm.add_constraint(2 * i + j <= 6, label="budget")
        >>> found = MapMRFSampler().sample_cqm(cqm).first
        >>> float(found.energy), bool(found.is_feasible)
        (-4.0, True)
        """
        return self._sampled(from_cqm(cqm), list(cqm.variables), parameters, cqm, "INTEGER")

    def sample_poly(self, polynomial: Any, **parameters: Any) -> Any:
        """Minimise a BinaryPolynomial; the parameters are those of `sample`.

        Examples
        --------
        >>> import dimod
        >>> polynomial = dimod.BinaryPolynomial({"a": 1.0, "abc": -2.0}, "BINARY")
        >>> float(MapMRFSampler("exhaustive").sample_poly(polynomial).first.energy)
        -1.0
        """
        labels = variables_of(polynomial)
        return self._sampled(from_polynomial(polynomial), labels, parameters, polynomial, polynomial.vartype)

    def _sampled(
        self, graph: FactorGraph, labels: list[Any], parameters: Mapping[str, Any], model: Any, vartype: Any
    ) -> Any:
        """The samples of `num_reads` runs with their energies, which dimod recomputes from the model."""
        values = _values_of(graph, labels, vartype)
        results = self._runs(graph, labels, values, parameters)
        rows = [[values[i][k] for i, k in enumerate(result.labels[: len(labels)].tolist())] for result in results]
        samples, info = np.array(rows, dtype=np.int64).reshape(len(results), len(labels)), _info(results)
        if vartype == "INTEGER" and labels:
            return SampleSet.from_samples_cqm((samples, labels), model, info=info)
        return SampleSet.from_samples((samples, labels), vartype, model.energies((samples, labels)), info=info)

    def _runs(
        self, graph: FactorGraph, labels: list[Any], values: list[list[int]], parameters: Mapping[str, Any]
    ) -> list[Result]:
        known = self.remove_unknown_kwargs(**parameters)
        # Callers of D-Wave's samplers pass None for parameters that are not set.
        given = {key: value for key, value in known.items() if value is not None}
        state = given.pop("initial_state", None)
        initial = None if state is None else _labels(state, labels, values)
        num_reads, seed = given.pop("num_reads", 1), given.pop("seed", 0)
        if num_reads < 1:
            raise OptionError(f"num_reads is {num_reads}, expected at least 1")
        results: list[Result] = []
        for read in range(num_reads):
            results.append(solve(graph, self._method, seed=seed + read, initial=initial, **given))
            if results[-1].status is Status.INTERRUPTED:
                break
        return results


def _values_of(graph: FactorGraph, labels: list[Any], vartype: Any) -> list[list[int]]:
    """What dimod calls the states of each variable: the cases of a discrete one are numbers there, too."""
    if vartype == "DISCRETE":
        return [list(range(k)) for k in graph.card.tolist()]
    assert graph.names is not None and graph.names.states is not None
    return [[int(state) for state in some] for some in graph.names.states[: len(labels)]]


def _labels(state: Mapping[Any, Any], labels: list[Any], values: list[list[int]]) -> Ints:
    found = []
    for label, some in zip(labels, values, strict=True):
        if label not in state:
            raise GraphError(f"initial_state has no value for variable {label!r}")
        binary = len(some) < 3
        if state[label] not in some or (isinstance(state[label], bool) and not binary):
            expected = " or ".join(map(str, some)) if binary else f"a whole number from {some[0]} to {some[-1]}"
            raise GraphError(f"initial_state of {label!r} is {state[label]}, expected {expected}")
        found.append(some.index(int(state[label])))
    return np.array(found, dtype=np.int64)


def _info(results: list[Result]) -> dict[str, Any]:
    """The summary of all runs: the best bound applies to each of them."""
    best = max(results, key=lambda result: result.value)
    bound = min((result.bound for result in results if result.bound is not None), default=None)
    proven = [result.status for result in results if result.status.closes_gap]
    return {
        "bound": None if bound is None else -bound,
        "gap": relative_gap(best.value, bound, best.unit),
        "status": (Status.OPTIMAL if Status.OPTIMAL in proven else proven[0] if proven else best.status).value,
        "method": best.method,
        "runtime": math.fsum(result.runtime for result in results),
        "seeds": [result.seed for result in results],
        "version": __version__,
    }
