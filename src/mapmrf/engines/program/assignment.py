"""The linear assignment problem: distinct columns for all rows, with maximum sum."""

from __future__ import annotations

import numpy as np

from mapmrf.arrays import Floats, Ints

FEW_ROWS = 100
"""Number of rows up to which this is faster than importing scipy.optimize."""


def best_assignment(gains: Floats) -> Ints | None:
    """Return the column of every row, (n_rows,), in an optimal assignment; None if none has a finite sum."""
    if gains.shape[0] > gains.shape[1]:
        return None
    if gains.shape[0] <= FEW_ROWS:
        return _augment(-gains)
    from scipy.optimize import linear_sum_assignment

    try:
        return np.asarray(linear_sum_assignment(gains, maximize=True)[1])
    except ValueError:  # infeasible
        return None


def _augment(cost: Floats) -> Ints | None:
    """Solve by shortest augmenting paths, one row after another, with row and column duals (Jonker and Volgenant)."""
    n_rows, n_columns = cost.shape
    row_price, column_price = np.zeros(n_rows), np.zeros(n_columns)
    row_of = np.full(n_columns, -1)
    column_of = np.full(n_rows, -1)
    for first in range(n_rows):
        distance, before = np.full(n_columns, np.inf), np.full(n_columns, -1)
        done = np.zeros(n_columns, dtype=bool)
        row, so_far = first, 0.0
        while True:
            reach = so_far + cost[row] - row_price[row] - column_price
            better = ~done & (reach < distance)
            distance[better], before[better] = reach[better], row
            column = int(np.argmin(np.where(done, np.inf, distance)))
            so_far = float(distance[column])
            if done[column] or so_far == np.inf:
                return None
            done[column] = True
            if row_of[column] < 0:
                break
            row = int(row_of[column])
        seen = row_of[done & (row_of >= 0)]
        row_price[first] += so_far
        row_price[seen] += so_far - distance[column_of[seen]]
        column_price[done] -= so_far - distance[done]
        while column >= 0:
            row = int(before[column])
            row_of[column], column, column_of[row] = row, int(column_of[row]), column
            if row == first:
                break
    return column_of
