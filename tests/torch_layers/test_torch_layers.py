"""Layers of PyTorch: outputs against inference, gradients against analysis and finite differences."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mapmrf import FactorGraph, GraphError, OptionError
from mapmrf.datasets import grid
from mapmrf.learn.features import potential_counts
from strategies import brute_force

torch = pytest.importorskip("torch", reason="PyTorch is an extra: pip install 'mapmrf[torch]'")
from mapmrf.torch import LayerSmoothing, MapLayer, PerturbedLoss  # noqa: E402

MODES = ("perturbed", "imle", "sparsemap", "local")
every_mode = pytest.mark.parametrize("mode", MODES)


def triangle() -> FactorGraph:
    """Three variables of two or three states, all pairs, some entry forbidden."""
    random = np.random.default_rng(0)
    card, scopes = [2, 3, 2], [(0, 1), (1, 2), (0, 2)]
    tables = [0.5 * random.normal(size=[card[i] for i in scope]) for scope in scopes]
    tables[0][0, 2] = -np.inf
    return FactorGraph.from_tables(card, scopes, tables)


def potentials(graph: FactorGraph, batch: int, seed: int = 1, tables: bool = True) -> Any:
    random = np.random.default_rng(seed)
    size = len(graph.theta_v) + len(graph.theta_t) * tables
    return torch.tensor(random.normal(size=(batch, size)), dtype=torch.float64, requires_grad=True)


def states(graph: FactorGraph) -> np.ndarray:
    """Counts of all labellings that are allowed."""
    allowed = [y for y in np.ndindex(*graph.card.tolist()) if graph.value(y) > -np.inf]
    return np.array([potential_counts(graph, np.array(y)) for y in allowed])


def differences(function: Any, theta: Any, h: float) -> np.ndarray:
    """Central finite differences of a function of one row of potentials."""
    row = theta.detach()
    steps = h * torch.eye(row.shape[1], dtype=row.dtype)
    return np.array([float(function(row + e) - function(row - e)) / (2 * h) for e in steps])


# -- what comes out ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["perturbed", "imle", "sparsemap"])
def test_without_noise_the_output_is_the_best_labelling(mode: Any) -> None:
    graph = triangle()
    theta = potentials(graph, 4)
    scale = 1000.0 if mode == "sparsemap" else 1.0
    found = MapLayer(graph, LayerSmoothing(mode, samples=2, sigma=1e-9))(scale * theta).detach().numpy()
    for row, mu in zip(theta.detach().numpy(), found, strict=True):
        counts = states(graph)
        assert mu == pytest.approx(counts[(counts @ row).argmax()], abs=1e-6)


@every_mode
def test_rows_without_tables_use_those_of_the_graph(mode: Any) -> None:
    graph = triangle()
    short = potentials(graph, 2, tables=False)
    theta_t = torch.tensor(np.where(np.isfinite(graph.theta_t), graph.theta_t, 0.0)).expand(2, -1)
    whole = torch.cat([short.detach(), theta_t], dim=1)
    smoothing = LayerSmoothing(mode, samples=1, sigma=1e-9)
    part, all_of_it = MapLayer(graph, smoothing)(short), MapLayer(graph, smoothing)(whole)
    assert part.shape == short.shape
    assert torch.allclose(part, all_of_it[:, : short.shape[1]], atol=1e-6)


@every_mode
def test_the_output_is_a_point_of_the_marginal_polytope(mode: Any) -> None:
    graph = triangle()
    mu = MapLayer(graph, mode)(potentials(graph, 3)).detach().numpy()
    begins = graph.var_ptr[:-1]
    assert np.add.reduceat(mu[:, : len(graph.theta_v)], begins, axis=1) == pytest.approx(np.ones((3, 3)))
    assert mu.min() >= -1e-9
    assert np.all(mu[:, len(graph.theta_v) + 2] == 0.0)  # the forbidden entry


def test_one_labelling_if_imle_has_one_sample() -> None:
    mu = MapLayer(triangle(), LayerSmoothing("imle", samples=1))(potentials(triangle(), 5))
    assert set(mu.unique().tolist()) == {0.0, 1.0}


@every_mode
def test_types_and_gradients_are_those_of_the_input(mode: Any) -> None:
    theta = potentials(triangle(), 2).detach().float().requires_grad_()
    mu = MapLayer(triangle(), mode)(theta)
    mu.square().sum().backward()
    assert mu.dtype == theta.grad.dtype == torch.float32
    assert theta.grad.shape == theta.shape


# -- gradients --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("tables", [True, False])
@pytest.mark.parametrize("mode", ["perturbed", "imle"])
def test_the_fenchel_young_loss_has_the_gradient_of_its_finite_differences(mode: Any, tables: bool) -> None:
    """The smoothed objective with common random numbers: piecewise linear, and the layer's output is its slope."""
    graph = triangle()
    layer = MapLayer(graph, LayerSmoothing(mode, samples=6, redraw=False))
    theta, truth, loss = potentials(graph, 1, 3, tables), torch.tensor([[1, 0, 1]]), PerturbedLoss(layer)
    loss(theta, truth).backward()
    assert theta.grad.numpy()[0] == pytest.approx(differences(lambda row: loss(row, truth), theta, 1e-6), abs=1e-4)
    expected = layer(theta).detach().numpy()[0] - potential_counts(graph, np.array([1, 0, 1]))[: theta.shape[1]]
    assert theta.grad.numpy()[0] == pytest.approx(expected)


def test_the_perturbed_jacobian_is_that_of_the_smoothed_optimiser() -> None:
    """Of one binary variable it is known: the share of state 1 is Phi((b - a) / (sigma sqrt 2))."""
    a, b, sigma = 0.3, 0.8, 0.7
    layer = MapLayer(FactorGraph.from_tables([2], [], []), LayerSmoothing("perturbed", samples=1500, sigma=sigma))
    theta = torch.tensor([[a, b]], dtype=torch.float64, requires_grad=True)
    mu = layer(theta)
    mu[0, 1].backward()
    scale = sigma * math.sqrt(2)
    share = 0.5 * (1 + math.erf((b - a) / scale / math.sqrt(2)))
    slope = math.exp(-(((b - a) / scale) ** 2) / 2) / (scale * math.sqrt(2 * math.pi))
    assert mu[0, 1].item() == pytest.approx(share, abs=0.03)
    assert theta.grad[0].tolist() == pytest.approx([-slope, slope], abs=0.08)


def test_the_perturbed_gradient_is_that_of_finite_differences_of_the_smoothed_objective() -> None:
    """``<c, mean of y>`` with the same noise for all points, so many samples that its steps are small."""
    graph = FactorGraph.from_pairwise(np.zeros((2, 2)), [[0, 1]], 0.8 * np.eye(2))
    random = np.random.default_rng(5)
    theta = torch.tensor(random.normal(size=(1, 4)), dtype=torch.float64, requires_grad=True)
    cost = torch.tensor(random.normal(size=4))
    layer = MapLayer(graph, LayerSmoothing("perturbed", samples=1500, redraw=False))
    (layer(theta)[0] @ cost).backward()

    def objective(row: Any) -> float:
        noise = layer.smoothing.noise((1, 4), 0)[:, 0]
        counts = states(graph)
        scores = (row.numpy()[0] + noise) @ counts[:, :4].T + counts[:, 4:] @ graph.theta_t
        return float((counts[scores.argmax(axis=1), :4] @ cost.numpy()).mean())

    assert theta.grad.numpy()[0] == pytest.approx(differences(objective, theta, 0.3), abs=0.12)


def test_imle_compares_with_the_potentials_moved_against_the_gradient() -> None:
    graph, cost = triangle(), torch.arange(7.0, dtype=torch.float64)
    smoothing = LayerSmoothing("imle", samples=5, strength=2.0, redraw=False)
    theta = potentials(graph, 2, tables=False)
    layer = MapLayer(graph, smoothing)
    mu = layer(theta)
    (mu @ cost).sum().backward()
    moved = MapLayer(graph, smoothing)(theta.detach() - 2.0 * cost)
    assert torch.allclose(theta.grad, (mu.detach() - moved) / 2.0)


def test_imle_comes_near_the_gradient_of_the_smoothed_objective() -> None:
    """Of one variable with Gumbel noise the mean is the softmax, whose Jacobian is known."""
    layer = MapLayer(FactorGraph.from_tables([3], [], []), LayerSmoothing("imle", samples=1200, strength=0.4))
    theta = torch.tensor([[0.2, -0.3, 0.5]], dtype=torch.float64, requires_grad=True)
    cost = torch.tensor([1.0, -1.0, 0.5], dtype=torch.float64)
    (layer(theta)[0] @ cost).backward()
    exact = theta.detach().clone().requires_grad_()
    (torch.softmax(exact, dim=1)[0] @ cost).backward()
    assert theta.grad[0].tolist() == pytest.approx(exact.grad[0].tolist(), abs=0.1)


@pytest.mark.parametrize("seed", range(6))
def test_sparsemap_solves_its_quadratic_program_and_has_its_gradient(seed: int) -> None:
    graph = triangle()
    n, counts = len(graph.theta_v), states(graph)
    theta, cost = potentials(graph, 1, seed), torch.tensor(np.random.default_rng(seed).normal(size=23))
    layer = MapLayer(graph, "sparsemap", "exhaustive")
    mu = layer(theta)
    point = mu.detach().numpy()[0]
    slope = theta.detach().numpy()[0].copy()
    slope[:n] -= point[:n]
    assert (counts @ slope).max() - point @ slope < 1e-5  # no labelling is better along the gradient
    (mu[0] @ cost).backward()
    assert theta.grad.numpy()[0] == pytest.approx(differences(lambda row: layer(row)[0] @ cost, theta, 1e-5), abs=1e-3)


@pytest.mark.parametrize("seed", range(3))
def test_on_trees_the_local_polytope_gives_the_same_point_and_gradient(seed: int) -> None:
    random = np.random.default_rng(seed)
    graph = FactorGraph.from_tables(
        [2, 3, 2], [(0, 1), (1, 2)], [random.normal(size=(2, 3)), random.normal(size=(3, 2))]
    )
    theta, cost = potentials(graph, 1, seed, tables=False), torch.tensor(random.normal(size=7))
    found = []
    for mode in ("sparsemap", "local"):
        theta.grad = None
        mu = MapLayer(graph, mode)(theta)
        (mu[0] @ cost).backward()
        found.append((mu[0].tolist(), theta.grad[0].tolist()))
    assert found[0][0] == pytest.approx(found[1][0], abs=1e-4)
    assert found[0][1] == pytest.approx(found[1][1], abs=1e-2)


def test_without_factors_sparsemap_projects_onto_simplices() -> None:
    theta = torch.tensor([[0.9, 0.4, -1.0, 3.0, 0.0]], dtype=torch.float64)
    mu = MapLayer(FactorGraph.from_tables([3, 2], [], []), "sparsemap")(theta)
    assert mu[0].tolist() == pytest.approx([0.75, 0.25, 0.0, 1.0, 0.0], abs=1e-6)


# -- calls ------------------------------------------------------------------------------------------------------------


def test_the_noise_is_new_in_each_call_but_the_same_for_the_same_seed() -> None:
    graph, theta = triangle(), potentials(triangle(), 1).detach() * 0.1
    one, other = (MapLayer(graph, LayerSmoothing(samples=5)) for _ in range(2))
    first, second = one(theta), one(theta)
    assert not torch.equal(first, second)
    assert torch.equal(first, other(theta)) and torch.equal(second, other(theta))
    fixed = MapLayer(graph, LayerSmoothing(samples=5, redraw=False))
    assert torch.equal(fixed(theta), fixed(theta))


def test_each_row_starts_from_the_messages_of_the_last_call() -> None:
    graph = grid(8, 8, coupling=2.0, seed=0)
    layer = MapLayer(graph, LayerSmoothing("imle", samples=1, sigma=1e-9), ("trws", {"max_iterations": 10}))
    theta = torch.tensor(np.stack([graph.theta_v, -graph.theta_v]))
    layer(theta)
    first = [layer.solver.known[row].bound for row in range(2)]
    layer(theta)
    second = [layer.solver.known[row].bound for row in range(2)]
    assert all(after < before for before, after in zip(first, second, strict=True))


@every_mode
def test_threads_change_nothing(mode: Any) -> None:
    graph, theta = triangle(), potentials(triangle(), 4).detach()
    assert torch.equal(MapLayer(graph, mode, jobs=3)(theta), MapLayer(graph, mode)(theta))


def test_a_network_learns_unary_potentials_through_the_layer() -> None:
    """Two features of each variable, of which one says the label: the loss on top of the layer finds it."""
    random = np.random.default_rng(0)
    graph = FactorGraph.from_pairwise(np.zeros((6, 2)), [[i, i + 1] for i in range(5)], 0.5 * np.eye(2))
    truth = random.integers(0, 2, (16, 1)).repeat(6, axis=1)
    seen = np.stack([2.0 * truth - 1 + random.normal(size=truth.shape), random.normal(size=truth.shape)], axis=2)
    features, target = torch.tensor(seen, dtype=torch.float32), torch.tensor(np.eye(2)[truth], dtype=torch.float32)
    torch.manual_seed(0)
    linear, layer = torch.nn.Linear(2, 2), MapLayer(graph, LayerSmoothing(samples=3))
    optimiser = torch.optim.Adam(linear.parameters(), lr=0.1)

    def loss() -> Any:
        return (layer(linear(features).reshape(16, 12)).reshape(16, 6, 2) - target).square().mean()

    before = loss().item()
    for _ in range(12):
        optimiser.zero_grad()
        loss().backward()
        optimiser.step()
    assert loss().item() < 0.5 * before


@pytest.mark.parametrize(
    ("call", "error", "said"),
    [
        (lambda: LayerSmoothing("magic"), OptionError, "mode is 'magic', expected one of perturbed, imle"),  # type: ignore[arg-type]
        (lambda: LayerSmoothing(samples=0), OptionError, "samples is 0"),
        (lambda: LayerSmoothing(sigma=0.0), OptionError, "sigma is 0.0"),
        (lambda: MapLayer(triangle(), jobs=0), OptionError, "jobs is 0"),
        (lambda: PerturbedLoss(MapLayer(triangle(), "sparsemap")), OptionError, "expected one with noise"),
        (lambda: MapLayer(triangle())(torch.zeros(7)), GraphError, r"theta has shape \(7,\)"),
        (lambda: MapLayer(triangle())(torch.zeros(1, 8)), GraphError, "a row has 8 potentials, expected 7, or 23"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_refused(call: Any, error: Any, said: str) -> None:
    with pytest.raises(error, match=said):
        call()


def test_the_truth_is_brute_force() -> None:
    """The enumeration of these tests agrees with that of the others."""
    graph = triangle()
    whole = np.concatenate([graph.theta_v, np.where(np.isfinite(graph.theta_t), graph.theta_t, 0.0)])
    assert (states(graph) @ whole).max() == pytest.approx(brute_force(graph)[0])


def test_the_example_of_the_documentation_runs() -> None:
    page = (Path(__file__).parents[2] / "docs" / "how-to" / "learning.md").read_text(encoding="utf-8")
    (code,) = re.findall(r'^```python title="train_layer.py"\n(.*?)^```$', page, re.MULTILINE | re.DOTALL)
    exec(compile(code, "learning.md", "exec"), {"__name__": "__main__"})
