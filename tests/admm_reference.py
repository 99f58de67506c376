"""LS-LP written out once more, with matrices: slow, plain numpy, sharing no code with the package's kernels.

The heart is the code of the page on LS-LP: `simplex_qp` is its active set, and checks the answer against the optimality
conditions, so that what it returns is right whatever its path was. `DenseADMM` adds the options that the page leaves
out.
"""

from __future__ import annotations

import copy
import math
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from mapmrf.engines.admm.engine import Engine
from mapmrf.engines.admm.structs import FactorKind
from mapmrf.model.graph import FactorGraph
from mapmrf.model.problem import Problem
from strategies import Recipe


def ring(seed: int, n: int = 6, cards: tuple[int, int] = (2, 4)) -> Recipe:
    """A ring with a triple across it."""
    random = np.random.default_rng(seed)
    recipe = Recipe(random.integers(cards[0], cards[1] + 1, n).tolist())
    for i in range(n):
        recipe.add((i,), random.normal(size=recipe.card[i]))
        recipe.add((i, (i + 1) % n), random.normal(size=(recipe.card[i], recipe.card[(i + 1) % n])))
    recipe.add((0, 2, 4), random.normal(size=[recipe.card[i] for i in (0, 2, 4)]))
    return recipe


PAGE = Path(__file__).parents[1] / "docs" / "methods" / "lslp.md"


def page_code() -> dict[str, Any]:
    """The functions of "LS-LP in numpy", from the page itself."""
    (block,) = re.findall(r"```python\n(import numpy as np\n.*?def lslp\(.*?)```", PAGE.read_text(), flags=re.DOTALL)
    names: dict[str, Any] = {}
    exec(compile(block, str(PAGE), "exec"), names)
    return names


ON_PAGE = page_code()
marginal_matrix = ON_PAGE["marginal_matrix"]


def kkt_violation(
    m: np.ndarray, u: np.ndarray, theta: np.ndarray, rho: float, y: np.ndarray, ridge: float = 0.0, pull: float = 0.0
) -> float:
    """How far y is from the minimum of 1/2 |u - M y|^2 + ridge/2 |y|^2 - (theta + pull) . y at total mass rho.

    Prices must agree on the support and be no larger elsewhere; relative to the size of the numbers involved.
    """
    price = theta + pull + m.T @ (u - m @ y) - ridge * y
    tau = price[y > 0].max()
    size = max(1.0, rho, np.abs(u).max(), np.abs(theta[np.isfinite(theta)]).max())
    off = [abs(y.sum() - rho), -y.min(), np.ptp(price[y > 0]), price.max() - tau]
    return float(max(off)) / size


def simplex_qp(
    m: np.ndarray, u: np.ndarray, theta: np.ndarray, rho: float, ridge: float = 0.0, pull: float | np.ndarray = 0.0
) -> np.ndarray:
    """The minimiser that `kkt_violation` describes (one of them, where it is not unique)."""
    if ridge > 0.0:  # more rows for M
        n = m.shape[1]
        tall, long = np.concatenate([m, math.sqrt(ridge) * np.eye(n)]), np.concatenate([u, np.zeros(n)])
        y = ON_PAGE["simplex_qp"](tall, long, theta + pull, rho)
    else:
        y = ON_PAGE["simplex_qp"](m, u, theta + pull, rho)
    assert kkt_violation(m, u, theta, rho, y, ridge, pull) < 1e-10
    return y


@dataclass(frozen=True)
class Knobs:
    """The options of LS-LP that change its equations, by their names there; rho is absolute."""

    rho: float
    variant: str = "tied"
    epsilon: float = 0.0
    eta: float = 1.0
    rho_upper: float = math.inf
    update_every: int = 1
    sphere: str = "variables"
    sphere_weight: float = 1.0
    sphere_block: int = 0
    relaxation: float = 1.0
    freeze_after: int = 0


class DenseADMM:
    """The iterates of LS-LP. Everything per factor is a list in the order of the problem's factors."""

    def __init__(self, problem: Problem, knobs: Knobs, mu: np.ndarray) -> None:
        graph: FactorGraph = problem.graph
        self.knobs, self.rho, self.k = knobs, knobs.rho, 0
        self.card, self.ptr = graph.card, graph.var_ptr
        self.theta = graph.theta_v
        self.scopes = [graph.scope_of(a) for a in problem.order]
        self.tables = [graph.table(a).ravel() for a in problem.order]
        self.m = [marginal_matrix(tuple(graph.card[scope])) for scope in self.scopes]
        self.places = [np.concatenate([np.arange(self.ptr[i], self.ptr[i + 1]) for i in s]) for s in self.scopes]
        degree = np.zeros(graph.n_vars)
        for scope in self.scopes:
            degree[scope] += 1
        self.connected = degree > 0
        self.degree = np.repeat(degree, graph.card)
        self.mu = mu.copy()
        self.upsilon = mu.copy()
        self.lam_v = np.zeros(len(mu))
        self.lam = [np.zeros(len(m)) for m in self.m]
        self.mu_f = [np.full(m.shape[1], 1.0 / m.shape[1]) for m in self.m]
        self.s = [m @ mu_f for m, mu_f in zip(self.m, self.mu_f, strict=True)]
        self.lam_f = [np.zeros(m.shape[1]) for m in self.m]

    def step(self) -> None:
        """One iteration in the order of the paper."""
        knobs = self.knobs
        if knobs.sphere in ("variables", "affine"):
            self.update_upsilon()
        before = self.mu.copy()
        self.update_mu_f()
        relax = knobs.relaxation
        copies = [
            relax * s + (1 - relax) * self.c * before[places] for s, places in zip(self.s, self.places, strict=True)
        ]
        self.update_mu_v(copies)
        self.update_lam(copies)
        self.k += 1
        if self.k % knobs.update_every == 0:
            self.rho = min(knobs.eta * self.rho, max(knobs.rho_upper, self.rho))

    # -- scalars ------------------------------------------------------------------------------------------------------

    @property
    def c(self) -> float:
        return 1.0 + self.knobs.epsilon if self.knobs.variant == "tied" else 1.0

    @property
    def rho_v(self) -> float:
        return self.knobs.sphere_weight * self.rho

    @property
    def on(self) -> bool:
        return self.knobs.sphere in ("variables", "affine")

    def pull_of(self, lam: np.ndarray, rho: float) -> np.ndarray:
        """What a multiplier adds to the target of its copy."""
        epsilon = self.knobs.epsilon if self.knobs.variant == "free" else 0.0
        return (1.0 / rho - epsilon) * lam

    # -- updates ------------------------------------------------------------------------------------------------------

    def update_upsilon(self) -> None:
        self.upsilon = self.project_sphere(self.c * self.mu + self.pull_of(self.lam_v, self.rho_v))

    def project_sphere(self, a: np.ndarray) -> np.ndarray:
        """P_S, on each block of variables that has a sphere of its own."""
        out = a.copy()
        n = len(self.card)
        size = self.knobs.sphere_block or n
        for begin in range(0, n, size):
            mine = [i for i in range(begin, min(n, begin + size)) if self.connected[i]]
            if not mine:
                continue
            blocks = [np.arange(self.ptr[i], self.ptr[i + 1]) for i in mine]
            if self.knobs.sphere == "affine":
                rest = np.concatenate([a[block] - a[block].mean() for block in blocks])
                centre = np.concatenate([np.full(len(block), 1.0 / len(block)) for block in blocks])
                radius = math.sqrt(sum(1.0 - 1.0 / len(block) for block in blocks))
            else:
                rest = np.concatenate([a[block] - 0.5 for block in blocks])
                centre = np.full(len(rest), 0.5)
                radius = math.sqrt(len(rest)) / 2
            norm = float(np.linalg.norm(rest))
            if norm > 0:
                out[np.concatenate(blocks)] = centre + radius * rest / norm
        return out

    def update_mu_f(self) -> None:
        rho, c = self.rho, self.c
        ridge, pulls = 0.0, [np.zeros(m.shape[1]) for m in self.m]
        if self.knobs.sphere == "factors":
            ridge = self.knobs.sphere_weight
            self.upsilon_f = self.project_factors()
            pulls = [self.rho_v * u - lam for u, lam in zip(self.upsilon_f, self.lam_f, strict=True)]
        for a, m in enumerate(self.m):
            target = rho * (c * self.mu[self.places[a]] + self.pull_of(self.lam[a], rho))
            self.mu_f[a] = simplex_qp(m, target, self.tables[a], rho, ridge, pulls[a]) / rho
            self.s[a] = m @ self.mu_f[a]

    def project_factors(self) -> list[np.ndarray]:
        """The copy of mu_F on ||x - 1/2||^2 = n/4, one sphere for all factors."""
        points = [mu + lam / self.rho_v - 0.5 for mu, lam in zip(self.mu_f, self.lam_f, strict=True)]
        n = sum(len(point) for point in points)
        norm = math.sqrt(sum(float(point @ point) for point in points))
        return [0.5 + point * (math.sqrt(n) / 2 / norm) for point in points]

    def update_mu_v(self, copies: list[np.ndarray]) -> None:
        epsilon, c, rho, rho_v = self.knobs.epsilon, self.c, self.rho, self.rho_v
        total = np.zeros(len(self.mu))
        if self.knobs.variant == "tied":
            for places, s, lam in zip(self.places, copies, self.lam, strict=True):
                total[places] += rho * s - lam
            above = self.theta + c * total + (c * (rho_v * self.upsilon - self.lam_v) if self.on else 0.0)
            below = epsilon * (1 + self.on + self.degree) + c * c * (rho_v * self.on + rho * self.degree)
        else:
            kappa, kappa_v = rho / (1 + epsilon * rho), rho_v / (1 + epsilon * rho_v)
            for places, s, lam in zip(self.places, copies, self.lam, strict=True):
                total[places] += s - lam / rho
            above = self.theta + kappa * total + (kappa_v * (self.upsilon - self.lam_v / rho_v) if self.on else 0.0)
            below = epsilon + kappa_v * self.on + kappa * self.degree
        self.mu = np.where(self.degree > 0, above / np.where(self.degree > 0, below, 1.0), self.mu)

    def update_lam(self, copies: list[np.ndarray]) -> None:
        frozen = self.knobs.freeze_after and self.k >= self.knobs.freeze_after
        for a, (places, s) in enumerate(zip(self.places, copies, strict=True)):
            self.lam[a] = self.dual(self.lam[a], self.mu[places], s, self.rho)
        if self.on and not frozen:
            lam_v = self.dual(self.lam_v, self.mu, self.upsilon, self.rho_v)
            self.lam_v = np.where(self.degree > 0, lam_v, 0.0)
        if self.knobs.sphere == "factors" and not frozen:
            for a, upsilon in enumerate(self.upsilon_f):
                self.lam_f[a] = self.lam_f[a] + self.rho_v * (self.mu_f[a] - upsilon)

    def dual(self, lam: np.ndarray, mu: np.ndarray, copy: np.ndarray, rho: float) -> np.ndarray:
        if self.knobs.variant == "tied":
            return lam + rho * (self.c * mu - copy)
        return (lam + rho * (mu - copy)) / (1 + self.knobs.epsilon * rho)

    # -- figures ------------------------------------------------------------------------------------------------------

    def bound(self) -> float:
        """The dual function at the edges' multipliers, without the graph's constant."""
        rest = self.theta.copy()
        total = 0.0
        for m, table, places, lam in zip(self.m, self.tables, self.places, self.lam, strict=True):
            total += float((table + m.T @ lam).max())
            np.subtract.at(rest, places, lam)
        return total + float(np.maximum.reduceat(rest, self.ptr[:-1]).sum())

    def lagrangian(self) -> float:
        """The augmented Lagrangian where the iteration has ended, x-bar as its variant has it."""
        epsilon, free = self.knobs.epsilon, self.knobs.variant == "free"
        total = -float(self.theta @ self.mu) + epsilon / 2 * float(self.mu @ self.mu)
        rows = [(self.lam[a], self.mu[p], self.s[a], self.rho) for a, p in enumerate(self.places)]
        if self.on:
            rows.append((self.lam_v, self.mu, self.upsilon, self.rho_v))
        for table, mu_f in zip(self.tables, self.mu_f, strict=True):
            total -= float(table[mu_f > 0] @ mu_f[mu_f > 0])
        for lam, mu, s, rho in rows:
            bar = -lam if free else mu
            off = mu + epsilon * bar - s
            total += epsilon / 2 * float(bar @ bar) + float(lam @ off) + rho / 2 * float(off @ off)
        return total


def seen_by(engine: Engine, reference: DenseADMM) -> list[np.ndarray]:
    """mu_F as an engine shows it: compact 2x2 factors, which do not store it, show the next factor step's."""
    ahead = copy.deepcopy(reference)
    ahead.update_mu_f()
    kinds = np.repeat(engine.layout.batch["kind"], engine.layout.batch["n"])
    pairs = zip(kinds, reference.mu_f, ahead.mu_f, strict=True)
    return [after if kind == FactorKind.PAIR2_COMPACT else now for kind, now, after in pairs]


def compact_shift(engine: Engine, reference: DenseADMM) -> list[np.ndarray]:
    """What the compact layout moves from the tables into the unary potentials, as a shift of the edges' multipliers.

    Linear parts of the 2x2 tables without -inf, and the means of the unary potentials, a share for each edge.
    """
    if not engine.layout.compact:
        return [np.zeros(len(lam)) for lam in reference.lam]
    mean = np.add.reduceat(reference.theta, reference.ptr[:-1]) / reference.card
    degree = reference.degree[reference.ptr[:-1]]
    shift = []
    for scope, table in zip(reference.scopes, reference.tables, strict=True):
        mine = np.concatenate([np.full(reference.card[i], -mean[i] / degree[i]) for i in scope])
        if len(table) == 4 and len(scope) == 2 and np.isfinite(table).all():
            t00, t01, t10, t11 = table
            first, second = (t10 + t11 - t00 - t01) / 4, (t01 + t11 - t00 - t10) / 4
            mine = mine + np.array([-first, first, -second, second])
        shift.append(mine)
    return shift
