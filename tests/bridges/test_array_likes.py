"""Anything that hands over its numbers is an array: `__array__`, DLPack, torch, jax."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import mapmrf
from mapmrf import FactorGraph, GraphError
from mapmrf.bridges import inference_dispatch, loss_augmented

UNARY = [[0.0, 1.0, 0.5], [0.25, 0.0, 0.0]]
EDGES = [[1, 0]]
PAIRWISE = [[1.0, 0.0, -0.5], [0.0, 1.5, 0.0], [0.125, 0.0, 1.0]]


class Arrayed:
    """Has `__array__` and nothing else."""

    def __init__(self, values: Any) -> None:
        self._values = np.asarray(values)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return np.array(self._values, dtype=dtype)


class Packed:
    """Has the two methods of DLPack and nothing else."""

    def __init__(self, values: Any) -> None:
        self._values = np.asarray(values)

    def __dlpack__(self, **how: Any) -> Any:
        return self._values.__dlpack__(**how)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self._values.__dlpack_device__()


class Unwilling:
    """Refuses like a tensor of torch that requires a gradient."""

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        raise RuntimeError("Can't call numpy() on Tensor that requires grad.\nMore.")


def torch(values: Any) -> Any:
    return pytest.importorskip("torch").tensor(values)


def jax(values: Any) -> Any:
    return pytest.importorskip("jax.numpy").array(values)


every_kind = pytest.mark.parametrize("array", [np.array, Arrayed, Packed, torch, jax])


@every_kind
def test_all_constructors_take_it(array: Callable[[Any], Any]) -> None:
    expected = FactorGraph.from_pairwise(UNARY, EDGES, PAIRWISE)
    graphs = [
        FactorGraph.from_pairwise(array(UNARY), array(EDGES), array(PAIRWISE)),
        FactorGraph.from_pairwise(array(UNARY), array(EDGES), array([PAIRWISE])),
        FactorGraph.from_tables(array([3, 3]), [(0,), (1,), (1, 0)], [*map(array, UNARY), array(PAIRWISE)]),
        FactorGraph.from_energies(
            [3, 3], [(0,), (1,), (1, 0)], [array((-np.array(t)).tolist()) for t in (*UNARY, PAIRWISE)]
        ),
    ]
    for graph in graphs:
        assert graph.theta_v.tolist() == expected.theta_v.tolist()
        assert graph.theta_t.tolist() == expected.theta_t.tolist()
        assert graph.scope.tolist() == [1, 0]
        assert graph.value(array([1, 1])) == 2.5


@every_kind
def test_solving_takes_it(array: Callable[[Any], Any]) -> None:
    graph = FactorGraph.from_pairwise(UNARY, EDGES, PAIRWISE)
    assert mapmrf.solve(graph, "icm", initial=array([1, 1])).labels.tolist() == [1, 1]
    assert inference_dispatch(array(UNARY), array(PAIRWISE), array(EDGES)).tolist() == [1, 1]
    assert loss_augmented(graph, array([1, 1]), array([2.0, 3.0])).value(array([0, 1])) == graph.value([0, 1]) + 2


def test_a_table_given_for_many_factors_is_stored_once() -> None:
    table = Arrayed(PAIRWISE)
    assert FactorGraph.from_tables([3] * 3, [(0, 1), (1, 2)], [table, table]).n_tables == 1


def test_what_cannot_be_read_is_one_clear_line() -> None:
    with pytest.raises(GraphError) as caught:
        FactorGraph.from_pairwise(Unwilling(), EDGES, PAIRWISE)
    assert str(caught.value) == "unary is not an array of numbers (Can't call numpy() on Tensor that requires grad.)"
    with pytest.raises(GraphError, match="factor 0: the table is not an array of numbers"):
        FactorGraph.from_tables([3], [(0,)], [Unwilling()])
    with pytest.raises(GraphError, match=r"labels must be whole numbers \(Can't call"):
        FactorGraph.from_tables([3], [], []).value(Unwilling())
    with pytest.raises(GraphError, match=r"pairwise is not an array of numbers \(its dtype is complex128"):
        FactorGraph.from_pairwise(UNARY, EDGES, np.eye(3) * 1j)


def test_a_tensor_with_a_gradient_is_refused_and_named() -> None:
    tensor = torch(UNARY).requires_grad_()
    with pytest.raises(GraphError, match=r"unary is not an array of numbers .*detach"):
        FactorGraph.from_pairwise(tensor, EDGES, PAIRWISE)
    assert FactorGraph.from_pairwise(tensor.detach(), EDGES, PAIRWISE).n_vars == 2
