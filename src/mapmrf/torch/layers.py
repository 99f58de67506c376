"""PyTorch modules: a MAP layer with a gradient, and the Fenchel-Young loss of the perturbed optimiser."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple, get_args

import numpy as np

from mapmrf.arrays import Floats, Ints
from mapmrf.engines.admm.quadratic import solve_quadratic, table_sums
from mapmrf.errors import GraphError, OptionError
from mapmrf.learn.features import potential_counts
from mapmrf.learn.training import QUICK, Inference, infer
from mapmrf.model.graph import FactorGraph
from mapmrf.model.problem import Problem
from mapmrf.run.method import DualState
from mapmrf.run.result import Result

try:
    import torch
except ModuleNotFoundError:
    raise ImportError("mapmrf.torch needs PyTorch: pip install 'mapmrf[torch]' ('.[torch]' in a checkout)") from None


class MapLayer(torch.nn.Module):
    """MAP layer: potentials in, a labelling out, with a gradient.

    The input is rows of potentials, (batch, n_states) for unary ones only, or (batch, n_states + n_entries) with those
    of all tables after them. The output has the same shape: the number of times that the labelling uses each potential;
    the unary part is its labels, one-hot, or a mean of such. Each row starts from the labels and messages of the last
    call.

    Parameters
    ----------
    graph
        The structure that all models share; its tables are used for rows without their own.
    smoothing
        ``"perturbed"``, ``"imle"``, ``"sparsemap"``, ``"local"``, or a `LayerSmoothing` with options.
    inference
        How models are solved: ``"quick"``, a method, a name with options, or a method object.

    Examples
    --------
    >>> import mapmrf
    >>> graph = mapmrf.FactorGraph.from_pairwise(np.zeros((2, 2)), [[0, 1]], np.eye(2))
    >>> layer = MapLayer(graph, "sparsemap")
    >>> theta = torch.tensor([[0.2, 0.0, 0.0, 0.1]], requires_grad=True)
    >>> mu = layer(theta)
    >>> mu.sum().item(), bool(mu[0, 0] > mu[0, 1])
    (2.0, True)
    >>> mu[0, 0].backward()
    >>> bool(theta.grad[0, 0] > 0)
    True
    """

    def __init__(
        self,
        graph: FactorGraph,
        smoothing: LayerSmoothing | Mode = "perturbed",
        inference: Inference = QUICK,
        jobs: int = 1,
    ) -> None:
        super().__init__()
        if jobs < 1:
            raise OptionError(f"jobs is {jobs}, expected at least 1")
        self.smoothing = smoothing if isinstance(smoothing, LayerSmoothing) else LayerSmoothing(smoothing)
        self.solver = StructureSolver(graph, inference, self.smoothing.seed, jobs)
        self.local = LocalSparseMAP(self.solver)
        self.calls = 0

    def forward(self, theta: Any) -> Any:
        """Counts of the potentials, in the shape of `theta`: (batch, n_states) or (batch, n_states + n_entries).

        Examples
        --------
        >>> import mapmrf
        >>> layer = MapLayer(mapmrf.FactorGraph.from_tables([2, 2], [(0, 1)], [[1, 0, 0, 1]]), "sparsemap")
        >>> layer.forward(torch.tensor([[0.0, 3.0, 0.0, 3.0], [3.0, 0.0, 3.0, 0.0]])).tolist()
        [[0.0, 1.0, 0.0, 1.0], [1.0, 0.0, 1.0, 0.0]]
        """
        check_rows(theta)
        self.calls += 1
        return FUNCTIONS[self.smoothing.mode].apply(theta, self)

    def _noise(self, theta: Any) -> Floats:
        """The noise of the current call: (samples, batch, n_potentials)."""
        return self.smoothing.noise(tuple(theta.shape), self.calls)

    def _maximisers(self, theta: Floats, noise: Floats) -> Floats:
        """Counts of the best labellings of perturbed models: (samples, batch, n_potentials)."""
        return np.array([self.solver.solve(theta + self.smoothing.sigma * each) for each in noise])


def check_rows(theta: Any) -> None:
    """Raise GraphError unless potentials are rows."""
    if theta.ndim != 2:
        raise GraphError(f"theta has shape {tuple(theta.shape)}, expected (batch, n_potentials)")


class PerturbedLoss(torch.nn.Module):
    """The Fenchel-Young loss of a perturbed `MapLayer`: convex, and its gradient is the layer's output minus the truth.

    ``F(theta) - <theta, truth>``, where F is the mean maximum of the perturbed models. For learning potentials from
    true labels, this is better than a loss on top of the layer: the gradient needs no Jacobian.

    Parameters
    ----------
    layer
        A layer with smoothing ``"perturbed"`` or ``"imle"``: its structure, noise and inference are used.

    Examples
    --------
    >>> import mapmrf
    >>> graph = mapmrf.FactorGraph.from_pairwise(np.zeros((2, 2)), [[0, 1]], np.eye(2))
    >>> loss = PerturbedLoss(MapLayer(graph))
    >>> theta = torch.zeros(1, 4, requires_grad=True)
    >>> loss(theta, torch.tensor([[1, 1]])).backward()
    >>> theta.grad[0, 0] > 0, theta.grad[0, 1] < 0  # state 1 must become better
    (tensor(True), tensor(True))
    """

    def __init__(self, layer: MapLayer) -> None:
        super().__init__()
        if layer.smoothing.mode not in ("perturbed", "imle"):
            raise OptionError(f"the layer's smoothing is {layer.smoothing.mode!r}, expected one with noise")
        self.layer = layer

    def forward(self, theta: Any, truth: Any) -> Any:
        """The mean loss over the batch; `truth` are the true labels, (batch, n_vars).

        Examples
        --------
        >>> import mapmrf
        >>> graph = mapmrf.FactorGraph.from_tables([2, 2], [(0, 1)], [[1, 0, 0, 1]])
        >>> loss, theta = PerturbedLoss(MapLayer(graph)), torch.tensor([[0.0, 9.0, 0.0, 9.0]])
        >>> bool(loss.forward(theta, torch.tensor([[1, 1]])) < loss.forward(theta, torch.tensor([[0, 0]])))
        True
        """
        check_rows(theta)
        self.layer.calls += 1
        return _FenchelYoung.apply(theta, truth, self.layer)


# -- gradients --------------------------------------------------------------------------------------------------------


def _numbers(tensor: Any) -> Floats:
    return np.asarray(tensor.detach().cpu().numpy(), dtype=np.float64)


def _like(tensor: Any, values: Floats) -> Any:
    return torch.as_tensor(values, dtype=tensor.dtype, device=tensor.device)


class _Perturbed(torch.autograd.Function):
    """The mean of maximisers; with Gaussian noise its Jacobian is the mean of ``y (noise)^T / sigma``."""

    @staticmethod
    def forward(ctx: Any, theta: Any, layer: MapLayer) -> Any:
        noise = layer._noise(theta)
        found = layer._maximisers(_numbers(theta), noise)
        ctx.layer, ctx.noise, ctx.found = layer, noise, found
        return _like(theta, found.mean(axis=0))

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> tuple[Any, None]:
        away = ctx.found - ctx.found.mean(axis=0)  # less variance, and a bias of 1 / samples, which the factor removes
        along = np.einsum("sbp,bp->sb", away, _numbers(gradients[0]))
        n = len(ctx.noise)
        pulled = np.einsum("sb,sbp->bp", along, ctx.noise) / (max(1, n - 1) * ctx.layer.smoothing.sigma)
        return _like(gradients[0], pulled), None


class _ImplicitMLE(torch.autograd.Function):
    """The mean of maximisers; backward, its change if the potentials move against the gradient."""

    @staticmethod
    def forward(ctx: Any, theta: Any, layer: MapLayer) -> Any:
        noise, numbers = layer._noise(theta), _numbers(theta)
        found = layer._maximisers(numbers, noise).mean(axis=0)
        ctx.layer, ctx.noise, ctx.theta, ctx.found = layer, noise, numbers, found
        return _like(theta, found)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> tuple[Any, None]:
        moved = ctx.theta - ctx.layer.smoothing.strength * _numbers(gradients[0])
        target = ctx.layer._maximisers(moved, ctx.noise).mean(axis=0)
        return _like(gradients[0], (ctx.found - target) / ctx.layer.smoothing.strength), None


class _SparseMAP(torch.autograd.Function):
    """The solution of the quadratic program, and its Jacobian with the labellings that it combines fixed."""

    @staticmethod
    def forward(ctx: Any, theta: Any, layer: MapLayer) -> Any:
        points = [sparse_map(layer.solver, row, b) for b, row in enumerate(_numbers(theta))]
        ctx.points, ctx.n_states = points, len(layer.solver.graph.theta_v)
        return _like(theta, np.array([point.mu for point in points]).reshape(theta.shape))

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> tuple[Any, None]:
        points: list[SparsePoint] = ctx.points
        given = _numbers(gradients[0])
        pulled = [point.pull(row, ctx.n_states) for point, row in zip(points, given, strict=True)]
        return _like(gradients[0], np.array(pulled).reshape(given.shape)), None


class _LocalSparseMAP(torch.autograd.Function):
    """The quadratic program over the local polytope; its Jacobian is symmetric, so a difference along the gradient."""

    @staticmethod
    def forward(ctx: Any, theta: Any, layer: MapLayer) -> Any:
        ctx.layer, ctx.theta = layer, _numbers(theta)
        points = [layer.local.point(row, b) for b, row in enumerate(ctx.theta)]
        return _like(theta, np.array(points).reshape(theta.shape))

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> tuple[Any, None]:
        rows = zip(ctx.theta, _numbers(gradients[0]), strict=True)
        pulled = [ctx.layer.local.along(row, direction, b) for b, (row, direction) in enumerate(rows)]
        return _like(gradients[0], np.array(pulled).reshape(ctx.theta.shape)), None


class _FenchelYoung(torch.autograd.Function):
    """The mean maximum of perturbed models minus the truth's value."""

    @staticmethod
    def forward(ctx: Any, theta: Any, truth: Any, layer: MapLayer) -> Any:
        given, solver = theta.shape[1], layer.solver
        noise, numbers = layer._noise(theta), solver.whole(_numbers(theta))
        noise = np.pad(noise, ((0, 0), (0, 0), (0, numbers.shape[1] - given)))  # no gradient for the graph's own tables
        if tuple(truth.shape) != (len(theta), solver.graph.n_vars):
            expected = (len(theta), solver.graph.n_vars)
            raise GraphError(f"truth has shape {tuple(truth.shape)}, expected {expected} = (batch, n_vars)")
        labels = [solver.graph.check_labels(row) for row in truth.detach().cpu().numpy()]
        counts = np.array([solver.counts(row, numbers.shape[1]) for row in labels])
        found = layer._maximisers(numbers, noise)
        maxima = ((numbers + layer.smoothing.sigma * noise) * found).sum(axis=2).mean(axis=0)
        ctx.gradient = (found.mean(axis=0) - counts)[:, :given] / len(numbers)
        ctx.theta = theta
        return _like(theta, np.asarray((maxima - (numbers * counts).sum(axis=1)).mean()))

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> tuple[Any, None, None]:
        return _like(ctx.theta, ctx.gradient) * gradients[0], None, None


FUNCTIONS: dict[str, Any] = {
    "perturbed": _Perturbed,
    "imle": _ImplicitMLE,
    "sparsemap": _SparseMAP,
    "local": _LocalSparseMAP,
}

# -- SparseMAP over the local polytope: a quadratic program by ADMM, and its Jacobian along a direction ---------------


STEP = 1e-3  # largest change of a potential along a direction


class LocalSparseMAP:
    """The point of the local polytope that maximises ``<theta, mu> - |mu_v|^2 / 2``, for rows of potentials."""

    def __init__(self, solver: StructureSolver) -> None:
        self.solver = solver
        self.known: dict[int, DualState | None] = {}  # multipliers of the last call for each row of a batch

    def point(self, theta: Floats, row: int) -> Floats:
        """The point, as counts of the potentials that are given: (n_potentials,)."""
        problem = Problem.compile(self.solver.model(theta))
        found = solve_quadratic(problem, self.known.get(row))
        self.known[row] = found.dual
        return np.concatenate([found.mu_v, table_sums(problem, found.mu_f)])[: len(theta)]

    def along(self, theta: Floats, direction: Floats, row: int) -> Floats:
        """The Jacobian times a direction, which is the direction times the Jacobian: it is symmetric.

        The point is a piecewise linear function of the potentials, so a central difference is exact within a piece.
        """
        size = float(np.abs(direction).max(initial=0.0))
        if size == 0.0:
            return np.zeros_like(direction)
        h = STEP / size
        up, down = (self.point(theta + sign * h * direction, row) for sign in (1.0, -1.0))
        return np.asarray((up - down) / (2.0 * h))


# SparseMAP: a quadratic program over the marginal polytope, solved by few labellings (Niculae et al., ICML 2018).


RIDGE = 1e-12  # regularisation of the squared lengths of labellings, so that linear systems have a solution

GONE = 1e-12  # shares up to this are dropped


class SparsePoint(NamedTuple):
    """A convex combination of labellings."""

    mu: Floats  # (n_potentials,): counts of the potentials that were given, averaged
    corners: Floats  # (n_labellings, n_potentials): counts of each labelling, including those of tables
    share: Floats  # (n_labellings,): share of each labelling

    def pull(self, gradient: Floats, n_states: int) -> Floats:
        """The gradient in theta of a loss whose gradient in mu is given: (n_potentials,).

        With the labellings fixed, their shares are an affine function of the scores ``corners @ theta``.
        """
        corners = self.corners[:, : len(gradient)]
        gram = _gram(corners, n_states)
        inverse = np.linalg.inv(gram)
        sums = inverse.sum(axis=1)
        of_scores = inverse - np.outer(sums, sums) / sums.sum()
        return np.asarray(corners.T @ (of_scores @ (corners @ gradient)))


def sparse_map(
    solver: StructureSolver, theta: Floats, row: int = 0, *, steps: int = 100, tol: float = 1e-6
) -> SparsePoint:
    """Maximise ``<theta, mu> - |mu_v|^2 / 2`` over the convex hull of all labellings; the square is of the unary part.

    An active-set method: each step adds the best labelling for the gradient, found by MAP inference, and solves for the
    shares. The point is exact if inference is.
    """
    n = len(solver.graph.theta_v)
    rows, given = np.array([row]), len(theta)
    theta = solver.whole(theta[None])[0]
    corners = solver.solve(theta[None], rows)
    share = np.ones(1)
    for _ in range(steps):
        mu = share @ corners
        slope = theta.copy()
        slope[:n] -= mu[:n]
        best = solver.solve(slope[None], rows)[0]
        if (best - mu) @ slope <= tol or np.any(np.all(corners == best, axis=1)):
            break
        corners, share = _best_shares(np.vstack([corners, best]), np.append(share, 0.0), theta, n)
    return SparsePoint((share @ corners)[:given], corners, share)


def _gram(corners: Floats, n_states: int) -> Floats:
    """Inner products of the unary parts of labellings."""
    unary = corners[:, :n_states]
    return np.asarray(unary @ unary.T + RIDGE * np.eye(len(corners)))


def _best_shares(corners: Floats, share: Floats, theta: Floats, n_states: int) -> tuple[Floats, Floats]:
    """The shares p that maximise ``scores . p - p . gram . p / 2``; labellings that get none are dropped."""
    while True:
        both = np.linalg.solve(_gram(corners, n_states), np.stack([corners @ theta, np.ones(len(corners))], axis=1))
        price = (both[:, 0].sum() - 1.0) / both[:, 1].sum()
        best = np.asarray(both[:, 0] - price * both[:, 1])  # they sum to 1, and may have any sign
        if best.min() >= 0:
            return corners, best
        falling = best < share
        ratio = np.where(falling, share / np.where(falling, share - best, 1.0), np.inf)
        share = share + min(1.0, float(ratio.min())) * (best - share)
        share[int(ratio.argmin())] = 0.0  # it is, up to round-off
        keep = share > GONE
        corners, share = corners[keep], share[keep] / share[keep].sum()


# -- How a MAP layer gets a gradient ----------------------------------------------------------------------------------


Mode = Literal["perturbed", "imle", "sparsemap", "local"]


@dataclass(frozen=True)
class LayerSmoothing:
    """The differentiable output of a MAP layer in place of a labelling, and the way to compute its gradient.

    Attributes
    ----------
    mode
        ``"perturbed"``: the mean over models with Gaussian noise, whose Jacobian is estimated from the same models
        (Berthet et al., 2020). ``"imle"``: the mean over models with Gumbel noise, a labelling if `samples` is 1; the
        gradient is the difference to the models whose potentials were moved against the incoming gradient (Niepert et
        al., 2021). ``"sparsemap"``: the solution of a quadratic program over the convex hull of the labellings, with
        its own Jacobian (Niculae et al., 2018); nothing is random. ``"local"``: the same program over the local
        polytope, by ADMM, without inference (LP-SparseMAP; Niculae and Martins, 2020).
    samples, sigma
        Number of perturbed models, and the scale of the noise.
    strength
        How far ``"imle"`` moves the potentials against the gradient.
    redraw
        Whether the noise is redrawn in each call, or the same in all.

    Examples
    --------
    >>> LayerSmoothing("imle", samples=2).noise((1, 3), call=0).shape
    (2, 1, 3)
    """

    mode: Mode = "perturbed"
    samples: int = 8
    sigma: float = 1.0
    strength: float = 1.0
    seed: int = 0
    redraw: bool = True

    def __post_init__(self) -> None:
        if self.mode not in get_args(Mode):
            raise OptionError(f"mode is {self.mode!r}, expected one of {', '.join(get_args(Mode))}")
        if self.samples < 1:
            raise OptionError(f"samples is {self.samples}, expected at least 1")
        if not (self.sigma > 0 and self.strength > 0):
            raise OptionError(f"sigma is {self.sigma} and strength {self.strength}, expected numbers above 0")

    def noise(self, shape: tuple[int, ...], call: int) -> Floats:
        """The noise of a call: (samples, *shape).

        Examples
        --------
        >>> fixed = LayerSmoothing(redraw=False)
        >>> bool((fixed.noise((1, 2), call=1) == fixed.noise((1, 2), call=2)).all())
        True
        """
        random = np.random.default_rng([self.seed, call if self.redraw else 0])
        size = (self.samples, *shape)
        drawn = random.normal(size=size) if self.mode == "perturbed" else random.gumbel(-np.euler_gamma, size=size)
        return np.asarray(drawn)


# -- Many models of one structure: potentials as rows of an array, answers as counts of the potentials used -----------


class StructureSolver:
    """MAP inference on models that differ from a graph only in their potentials.

    A row of potentials is ``theta_v``, or ``theta_v`` and ``theta_t``, one after the other. Forbidden entries of the
    graph stay forbidden. The last result of each row of a batch is kept: the next call starts from its labels and
    messages.
    """

    def __init__(self, graph: FactorGraph, inference: Inference = "quick", seed: int = 0, jobs: int = 1) -> None:
        # graph: the structure, and the tables for rows without tables
        self.graph, self.inference, self.seed, self.jobs = graph, inference, seed, jobs
        self.known: dict[int, Result] = {}  # the last result of each row of a batch

    def model(self, theta: Floats) -> FactorGraph:
        graph = self.graph
        n, m = len(graph.theta_v), len(graph.theta_t)
        if theta.shape not in ((n,), (n + m,)):
            raise GraphError(f"a row has {theta.size} potentials, expected {n}, or {n + m} with those of the tables")
        theta_v = np.where(np.isneginf(graph.theta_v), -np.inf, theta[:n])
        if len(theta) == n:
            return replace(graph, theta_v=theta_v)
        return replace(graph, theta_v=theta_v, theta_t=np.where(np.isneginf(graph.theta_t), -np.inf, theta[n:]))

    def whole(self, theta: Floats) -> Floats:
        """Rows with all potentials: tables of the graph where rows have none; forbidden entries are not used, and 0."""
        n, m = len(self.graph.theta_v), len(self.graph.theta_t)
        if theta.shape[1] != n:
            return theta
        tables = np.where(np.isneginf(self.graph.theta_t), 0.0, self.graph.theta_t)
        return np.concatenate([theta, np.broadcast_to(tables, (len(theta), m))], axis=1)

    def counts(self, labels: Ints, size: int) -> Floats:
        """Number of times that labels use each of the first `size` potentials."""
        return potential_counts(self.graph, labels)[:size]

    def solve(self, theta: Floats, rows: Ints | None = None) -> Floats:
        """Counts of the best labellings of models, one per row of `theta`; `rows` are their indices in the batch."""
        places = list(range(len(theta))) if rows is None else rows.tolist()
        before = [self.known.get(place) for place in places]

        def one(k: int) -> Result:
            return infer(self.model(theta[k]), self.inference, initial=before[k], seed=self.seed)

        if self.jobs > 1:
            with ThreadPoolExecutor(self.jobs) as pool:
                results = list(pool.map(one, range(len(theta))))
        else:
            results = [one(k) for k in range(len(theta))]
        self.known.update(zip(places, results, strict=True))
        return np.array([self.counts(result.labels, theta.shape[1]) for result in results]).reshape(theta.shape)
