"""PyTorch modules: a MAP layer with a gradient, and the Fenchel-Young loss of the perturbed optimiser."""

from __future__ import annotations

from typing import Any

import numpy as np

from mapmrf.arrays import Floats
from mapmrf.errors import GraphError, OptionError
from mapmrf.learn.inference import QUICK, Inference
from mapmrf.model.graph import FactorGraph
from mapmrf.torch.local_polytope import LocalSparseMAP
from mapmrf.torch.models import StructureSolver
from mapmrf.torch.smoothing import LayerSmoothing, Mode
from mapmrf.torch.sparse_map import SparsePoint, sparse_map

try:
    import torch
except ModuleNotFoundError:
    raise ImportError("mapmrf.torch needs PyTorch: pip install 'mapmrf[torch]'") from None


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
    jobs
        Number of models solved in parallel, in threads.

    Examples
    --------
    >>> import numpy as np, torch, mapmrf
    >>> from mapmrf.torch import MapLayer
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
        >>> import torch, mapmrf
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
    >>> import numpy as np, torch, mapmrf
    >>> from mapmrf.torch import MapLayer, PerturbedLoss
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
        >>> import torch, mapmrf
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
