"""Max-marginals agree with numpy on tables of every shape."""

from __future__ import annotations

import numpy as np
import pytest

from mapmrf.kernels.jit import compiled
from mapmrf.kernels.max_marginals import max_marginals, table_max_marginals


@compiled
def any_shape(theta_t, card_e, given, out, general):
    state, start = np.zeros(8, dtype=np.int64), np.zeros(8, dtype=np.int64)
    arity = len(card_e)
    if general:
        return table_max_marginals(theta_t, 2, arity, 0, card_e, given, 3, out, state, start)
    return max_marginals(theta_t, 2, arity, 0, card_e, given, 3, out, state, start)


@pytest.mark.parametrize("shape", [(3,), (2, 2), (4, 1), (2, 5), (2, 3, 2), (1, 1, 1), (2, 3, 1, 2)])
@pytest.mark.parametrize("hard", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("general", [False, True])
def test_max_marginals_are_those_of_numpy(shape: tuple[int, ...], hard: float, general: bool) -> None:
    random = np.random.default_rng(sum(shape))
    table = random.normal(size=shape)
    table[random.random(shape) < hard] = -np.inf
    given = random.normal(size=3 + sum(shape))
    given[3] = -np.inf if hard == 0.5 else given[3]
    total = table.copy()
    place = 3
    for k, size in enumerate(shape):
        total += given[place : place + size].reshape([-1 if j == k else 1 for j in range(len(shape))])
        place += size
    expected = [total.max(axis=tuple(j for j in range(len(shape)) if j != k)) for k in range(len(shape))]
    out = np.full(len(given), 7.0)
    theta_t = np.concatenate([[0.0, 0.0], table.ravel()])
    top = any_shape(theta_t, np.array(shape, dtype=np.int64), given, out, general)
    assert out[:3].tolist() == [7.0] * 3
    np.testing.assert_allclose(out[3:], np.concatenate(expected), rtol=1e-13)
    assert top == pytest.approx(total.max(), rel=1e-13)
