"""Structured learning: inference with the interface of pystruct's `inference_dispatch`, and loss-augmented models."""

from __future__ import annotations

import dataclasses
import importlib
import warnings
from collections.abc import Hashable, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from mapmrf.errors import GraphError
from mapmrf.learn.features import state_losses
from mapmrf.learn.training import QUICK, Inference, infer
from mapmrf.model.builders import as_array, as_ints
from mapmrf.model.graph import FactorGraph, Names


def inference_dispatch(
    unary_potentials: ArrayLike,
    pairwise_potentials: ArrayLike,
    edges: ArrayLike,
    inference_method: Inference = QUICK,
    return_energy: bool = False,
    *,
    initial: ArrayLike | None = None,
    time_limit: float | None = None,
    seed: int = 0,
) -> Any:
    """Find the best labelling of a pairwise model, with the arguments of ``pystruct.inference.inference_dispatch``.

    Parameters
    ----------
    unary_potentials : (..., n_states)
        Log potentials of the variables, to be maximised; an image may keep its axes.
    pairwise_potentials : (n_states, n_states) or (n_edges, n_states, n_states)
        Log potentials of the pairs, rows for the first variable of an edge: one table for all, or one each.
    edges : (n_edges, 2)
        Pairs of variables, numbered as in ``unary_potentials`` with all axes but the last flattened.
    inference_method
        ``"quick"``, for training: `mapmrf.learn.training.solve_quickly`, milliseconds for a grid of 40 x 40 with 5
        states, exact on tiny models and wherever TRW-S is. Or the name of a method of this library, or a
        tuple of a name and its options, such as ``("lslp", {"starts": 2})``; ``"auto"`` is the default of `solve`,
        which is slower.
    initial : (...,)
        A labelling to start from, in the shape of ``unary_potentials`` without its last axis.

    Returns
    -------
    labels : (...,)
        A state for each variable, in the shape of ``unary_potentials`` without its last axis.
    energy
        Minus the log potential of the labels. Only with `return_energy`.

    Examples
    --------
    >>> inference_dispatch([[0.0, 1.0], [0.2, 0.0]], [[0.5, 0.0], [0.0, 0.5]], [[0, 1]], return_energy=True)
    (array([1, 1]), -1.5)
    """
    unary = as_array(unary_potentials, "unary_potentials")
    if unary.ndim < 2:
        raise GraphError(f"unary_potentials has shape {unary.shape}, expected (..., n_states)")
    graph = FactorGraph.from_pairwise(unary.reshape(-1, unary.shape[-1]), edges, pairwise_potentials)
    start = None if initial is None else as_ints(initial, "initial")
    if start is not None:
        if start.ndim != 1 and start.shape != unary.shape[:-1]:
            raise GraphError(f"initial has shape {start.shape}, expected {unary.shape[:-1]}")
        start = start.ravel()
    result = infer(graph, inference_method, initial=start, time_limit=time_limit, seed=seed)
    labels = result.labels.reshape(unary.shape[:-1])
    return (labels, -result.value) if return_energy else labels


def loss_augmented(
    graph: FactorGraph, truth: ArrayLike, loss: ArrayLike | Sequence[ArrayLike] | None = None
) -> FactorGraph:
    """Add a loss to a model: its MAP is the labelling that maximises log potential + loss(truth, labelling).

    That is the most violated constraint of a structured SVM with margin rescaling. The loss is a sum over variables, so
    the model keeps its factors and is as hard to solve as before.

    Parameters
    ----------
    truth : (n_vars,)
        The true labels.
    loss : (n_vars,), (n_vars, n_states) or n_vars arrays of (card,)
        By default, 1 for each wrong label (Hamming). One number per variable is the loss if its label is wrong. A row
        per variable has the loss of each state, including the true one.

    Examples
    --------
    >>> import mapmrf
    >>> graph = mapmrf.FactorGraph.from_pairwise([[0, 1], [0, 0]], [[0, 1]], [[1, 0], [0, 1]])
    >>> augmented = loss_augmented(graph, [1, 1])
    >>> augmented.value([1, 1]), augmented.value([0, 0])
    (2.0, 3.0)
    """
    labels = graph.check_labels(truth)
    theta_v = graph.theta_v + state_losses(graph, labels, loss)
    wrong = np.flatnonzero(np.isnan(theta_v) | (theta_v == np.inf))
    if len(wrong):
        i = int(np.searchsorted(graph.var_ptr, wrong[0], side="right")) - 1
        raise GraphError(f"loss of variable {i} is not finite, expected finite numbers or -inf")
    return dataclasses.replace(graph, theta_v=theta_v)


# -- Shared by the bridges: importing the other library, and its labels of variables and states as names --------------


def need(module: str) -> Any:
    """Import a module of another library, suppressing the warnings of its imports."""
    package = module.partition(".")[0]
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name != package:
            raise
        raise ImportError(f"this bridge needs {package}: pip install 'mapmrf[{package}]'") from None


def texts(labels: Sequence[Hashable], what: str) -> tuple[str, ...]:
    """Labels of any type as distinct strings: ``str``, or ``repr`` where that distinguishes 1 from "1"."""
    for text in (str, repr):
        found = tuple(text(label) for label in labels)
        if len(set(found)) == len(found):
            return found
    raise GraphError(f"two {what} are both written {_repeated(found)}, expected labels with different text")


def names_of(variables: Sequence[Hashable], states: Sequence[Sequence[Hashable]] | None) -> Names:
    named = texts(variables, "variables")
    if states is None:
        return Names(named)
    same: dict[tuple[Hashable, ...], tuple[str, ...]] = {}
    found = []
    for name, some in zip(named, states, strict=True):
        key = tuple((type(state), state) for state in some)  # (False, True) == (0, 1)
        if key not in same:
            same[key] = texts(some, f"states of variable {name!r}")
        found.append(same[key])
    return Names(named, tuple(found))


def place_of(label: object, labels: Sequence[Hashable]) -> int | None:
    """Place of a label; None if there is none. True and 1 are different labels, although they are equal."""
    same = (k for k, each in enumerate(labels) if each == label and _is_bool(each) == _is_bool(label))
    return next(same, None)


def _is_bool(label: object) -> bool:
    return isinstance(label, bool | np.bool_)


def labels_of(graph: FactorGraph) -> list[Hashable]:
    """Labels for the variables of a graph: their names, or their indices."""
    if graph.names is None:
        return list(range(graph.n_vars))
    if len(graph.names.place) < graph.n_vars:
        raise GraphError(f"two variables are both named {_repeated(graph.names.variables)}, expected different names")
    return list(graph.names.variables)


def states_of(graph: FactorGraph) -> list[list[Hashable]]:
    """Labels for the states of all variables: their names, or their indices."""
    if graph.names is None or graph.names.states is None:
        return [list(range(k)) for k in graph.card.tolist()]
    for name, some in zip(graph.names.variables, graph.names.states, strict=True):
        if len(set(some)) < len(some):
            raise GraphError(f"variable {name!r}: two states are both named {_repeated(some)}")
    return [list(some) for some in graph.names.states]


def _repeated(names: Sequence[str]) -> str:
    seen: set[str] = set()
    for name in names:
        if name in seen:
            return repr(name)
        seen.add(name)
    return ""
