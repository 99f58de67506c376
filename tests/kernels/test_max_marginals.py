"""Max-marginals agree with numpy on tables of every shape."""

from __future__ import annotations

import numpy as np
import pytest

from mapmrf.kernels.max_marginals import FactorScratch, max_marginals, table_max_marginals, table_top
from plain_python import plain


@pytest.mark.parametrize("shape", [(3,), (2, 2), (4, 1), (2, 5), (2, 3, 2), (1, 1, 1), (2, 3, 1, 2)])
@pytest.mark.parametrize("hard", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("general", [False, True])
@pytest.mark.parametrize("weight", [1.0, 0.7])
def test_max_marginals_are_those_of_numpy(shape: tuple[int, ...], hard: float, general: bool, weight: float) -> None:
    random = np.random.default_rng(sum(shape))
    table = random.normal(size=shape)
    table[random.random(shape) < hard] = -np.inf
    given = random.normal(size=sum(shape))
    given[0] = -np.inf if hard == 0.5 else given[0]
    total = weight * table
    place = 0
    for k, size in enumerate(shape):
        total += given[place : place + size].reshape([-1 if j == k else 1 for j in range(len(shape))])
        place += size
    expected = [total.max(axis=tuple(j for j in range(len(shape)) if j != k)) for k in range(len(shape))]
    scratch = FactorScratch.allocate(sum(shape) + 3, len(shape))
    scratch.given[: sum(shape)] = given
    scratch.out[:] = 7.0
    theta_t = np.concatenate([[0.0, 0.0], table.ravel()])
    arguments = (theta_t, 2, np.array((9, *shape)), 1, len(shape), weight, scratch)
    top = plain(table_max_marginals if general else max_marginals)(*arguments)
    assert scratch.out[sum(shape) :].tolist() == [7.0] * 3
    np.testing.assert_allclose(scratch.out[: sum(shape)], np.concatenate(expected), rtol=1e-13)
    assert top == pytest.approx(total.max(), rel=1e-13)
    assert plain(table_top)(*arguments) == pytest.approx(total.max(), rel=1e-13)
