"""Constraints in a run of ADMM: counting factors instead of tables."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from mapmrf.arrays import Floats, Ints, frozen, offsets
from mapmrf.compilation.jit import bare
from mapmrf.engines.admm.layout import Layout
from mapmrf.engines.admm.penalty import Penalty, SphereKind, next_rho, target_weight
from mapmrf.engines.admm.structs import Iterates, SphereState, VariableArrays
from mapmrf.engines.admm.variable_steps import centres, distance2
from mapmrf.engines.constraint_factors.marginal_kernels import GroupScores, best_value
from mapmrf.engines.constraint_factors.model import CountingFactors, CountingModel
from mapmrf.engines.constraint_factors.projection_kernels import project
from mapmrf.engines.constraint_factors.rounding import LegalRounding
from mapmrf.model.graph import ROUND_OFF


class CountingSums(NamedTuple):
    """Contribution of counting factors to a measurement."""

    bound: float
    relaxed: float
    primal2: float
    primal_max: float
    integrality: float


NO_COUNTS = CountingSums(0.0, 0.0, 0.0, 0.0, 0.0)  # the sums over no factors


class CountingSteps:
    """The steps of an engine for constraints, in addition to those on tables."""

    def __init__(self, layout: Layout, model: CountingModel, penalty: Penalty, iterates: Iterates) -> None:
        self.model, self.penalty, self.iterates, self.layout = model, penalty, iterates, layout
        self.links = _links(layout, model)
        self.state = CountingState(
            scores=np.zeros(model.n_items),
            z=np.zeros(model.n_items),
            violation=np.zeros(model.n_factors),
            off=np.where(model.factors.complete, -np.inf, 0.0),
        )
        self.rounding = LegalRounding(layout.problem.graph, model)

    def update_mu_f(self) -> None:
        """Take the factor step."""
        update_counting(self.penalty, self.model.factors, self.links, self.iterates, self.state)

    def update_mu_v(self, sphere: SphereState) -> None:
        """Take the variable step of the whole model."""
        update_constrained_variables(self.penalty, sphere, self.layout.variables, self.links, self.iterates)

    def sphere_norms(self, sphere: SphereState) -> None:
        """Compute squared norms of the first projection's points."""
        constrained_norms(self.penalty, sphere, self.layout.variables, self.links, self.iterates)

    def multipliers(self, lam: Floats) -> None:
        """Write the multipliers of all items."""
        item_multipliers(self.penalty, self.links, self.iterates, lam)

    def measure(self, theta: Floats) -> CountingSums:
        """Compute sums over the factors, and subtract their multipliers from theta."""
        return measure_counting(self.penalty, self.model.factors, self.links, self.iterates, self.state, theta)

    def round(self, decoded: Ints, mu_v: Floats, labels: Ints) -> float:
        """Write the decoded labels, or rounded ones that satisfy all constraints; return their value."""
        graph = self.layout.problem.graph
        labels[:] = decoded
        value = graph.value(labels)
        if value == -np.inf:
            legal = self.rounding.round(mu_v)
            if legal is not None:
                labels[:] = legal
                value = graph.value(labels)
        return value

    def squared_change(self, before: Floats) -> float:
        """Return the sum of squared changes of all items since mu was `before`."""
        return squared_item_change(self.links, before, self.iterates.mu)

    def spread(self, lam: Floats, w: int, push: float) -> None:
        """Distribute a push on a number of mu over the multipliers of its items, in equal shares."""
        items = self.links.item[self.links.ptr[w] : self.links.ptr[w + 1]]
        sign = self.links.sign[items]
        lam[self.links.q_at + items] += np.where(sign == 0.0, 1.0, sign) * push / max(1, len(items))


def _links(layout: Layout, model: CountingModel) -> ItemLinks:
    """Link every item to its position in mu."""
    compact = layout.compact & (layout.problem.graph.card[model.var] == 2)
    at = layout.variables.var_at[model.var] + np.where(compact, 0, model.state)
    sign = np.where(compact, 2.0 * model.state - 1.0, 0.0)
    n = len(layout.variables.theta)
    ptr = offsets(np.bincount(at, minlength=n)).astype(np.int64)
    item = np.argsort(at, kind="stable")
    places: list[Ints] = [frozen(array.astype(np.int64)) for array in (at, ptr, item)]
    return ItemLinks(layout.q_size, places[0], frozen(sign), places[1], places[2])


# The steps of ADMM for models with counting factors: their factor step, and the variable step with their items. An item
# is coupled to one number of mu: to mu_i(k), or, if variable i is compact, to (1 + d) / 2 or (1 - d) / 2 with d =
# mu_i(1) - mu_i(0). Its copy z, multiplier and q = rho z - lam belong to the item itself, not to the difference.


class ItemLinks(NamedTuple):
    """Mapping between items and numbers of mu."""

    q_at: int  # Position of the first item in q
    # at, sign: (n_items,): The item's number of mu; 0 for mu itself, 1 and -1 for (1 + d) / 2 and (1 - d) / 2
    at: Ints
    sign: Floats
    # ptr, item: The items of every number of mu
    ptr: Ints
    item: Ints


class CountingState(NamedTuple):
    """State of counting factors: targets, copies, violations, and zero scores."""

    scores: Floats
    z: Floats
    violation: Floats
    off: Floats


@bare
def item_value(j: int, links: ItemLinks, mu: Floats) -> float:
    """Return the value of an item in mu."""
    here: float = mu[links.at[j]]
    return here if links.sign[j] == 0.0 else 0.5 + 0.5 * links.sign[j] * here


@bare
def item_multiplier(j: int, penalty: Penalty, links: ItemLinks, iterates: Iterates) -> float:
    """Return the multiplier of an item, by the last iteration's penalty."""
    p = penalty[0]
    lam: float = p.last_leak * (p.last_rho_c * item_value(j, links, iterates.mu) - iterates.q[links.q_at + j])
    return lam


@bare
def update_counting(
    penalty: Penalty, factors: CountingFactors, links: ItemLinks, iterates: Iterates, state: CountingState
) -> None:
    """Take the factor step: z = argmin over the hull of penalty v + rho/2 |t - z|^2, t = c mu + lam / rho."""
    p = penalty[0]
    rho, c, target_lam, relax = p.rho, p.c, p.target_lam, p.relaxation
    q, scores, z = iterates.q[links.q_at :], state.scores, state.z
    for f in range(len(factors.kind)):
        begin, end = factors.item_ptr[factors.group_ptr[f]], factors.item_ptr[factors.group_ptr[f + 1]]
        for j in range(begin, end):
            lam = item_multiplier(j, penalty, links, iterates)
            scores[j] = c * item_value(j, links, iterates.mu) + target_lam * lam
        state.violation[f] = project(f, factors, scores, factors.penalty[f] / rho, z)
        for j in range(begin, end):
            lam = item_multiplier(j, penalty, links, iterates)
            q[j] = rho * (relax * z[j] + (1.0 - relax) * c * item_value(j, links, iterates.mu)) - lam


@bare
def update_constrained_variables(
    penalty: Penalty, sphere: SphereState, variables: VariableArrays, links: ItemLinks, iterates: Iterates
) -> None:
    """Update mu_i and lam_i of all variables, as `update_variables`; items count like edges."""
    for chunk in range(len(sphere.norm2)):
        _counted_chunk(chunk, penalty, sphere, variables, links, iterates)


@bare
def _counted_chunk(
    chunk: int,
    penalty: Penalty,
    sphere: SphereState,
    variables: VariableArrays,
    links: ItemLinks,
    iterates: Iterates,
) -> None:
    """Update the variables of one chunk."""
    p = penalty[0]
    rho_v, c, leak_v, target_lam_v, q_weight_v = p.rho_v, p.c, p.leak_v, p.target_lam_v, p.q_weight_v
    q_weight, denominator, denominator_edge = p.q_weight, p.denominator, p.denominator_edge
    kind, frozen = p.sphere, p.k >= p.freeze_after
    next_lam = target_weight(penalty, p.sphere_weight * next_rho(penalty))
    mu, lam_v, q = iterates.mu, iterates.lam_v, iterates.q
    var_at, nbr_ptr, nbr_q, theta = variables.var_at, variables.nbr_ptr, variables.nbr_q, variables.theta
    begin, end = chunk * sphere.chunk_size, min((chunk + 1) * sphere.chunk_size, len(nbr_ptr) - 1)
    scale, total, off = sphere.scale[chunk], 0.0, 0.0
    for i in range(begin, end):
        at, width = var_at[i], var_at[i + 1] - var_at[i]
        edges = nbr_ptr[i + 1] - nbr_ptr[i]
        if edges == 0 and links.ptr[at] == links.ptr[at + width]:
            continue
        centre, shift = 0.0, 0.0
        if kind != SphereKind.OFF and width > 1:
            centre, shift = centres(kind, at, width, c, target_lam_v, mu, lam_v)
        for w in range(at, at + width):
            degree, pull = _pull_of_items(w, p.rho, links, q)
            for e in range(nbr_ptr[i], nbr_ptr[i + 1]):
                pull += q[nbr_q[e] + w - at]
            pull = theta[w] + q_weight * pull
            if edges == 0 and degree == 0.0:  # a forbidden state, which the variable's simplex excludes
                mu[w], lam_v[w] = 0.0, 0.0
                continue
            inverse = 1.0 / (denominator + denominator_edge * (edges + degree))
            if kind == SphereKind.OFF:
                mu[w] = pull * inverse
                continue
            upsilon = shift + scale * (c * mu[w] + target_lam_v * lam_v[w] - centre)
            q_v = rho_v * upsilon - lam_v[w]
            mu[w] = (pull + q_weight_v * q_v) * inverse
            if not frozen:
                lam_v[w] = leak_v * (rho_v * c * mu[w] - q_v)
            rest = c * mu[w] - upsilon
            off += rest * rest if width > 1 else 0.5 * rest * rest
        if kind != SphereKind.OFF:
            total += distance2(kind, at, width, c, next_lam, mu, lam_v)
    sphere.norm2[chunk], sphere.off2[chunk] = total, off


@bare
def _pull_of_items(w: int, rho: float, links: ItemLinks, q: Floats) -> tuple[float, float]:
    """Return the number of edges that the items of a number of mu count as, and the sum of their q."""
    degree, pull = 0.0, 0.0
    for place in range(links.ptr[w], links.ptr[w + 1]):
        j = links.item[place]
        here = q[links.q_at + j]
        if links.sign[j] == 0.0:
            degree += 1.0
            pull += here
        else:
            degree += 0.5
            pull += links.sign[j] * (here - 0.5 * rho)
    return degree, pull


@bare
def constrained_norms(
    penalty: Penalty, sphere: SphereState, variables: VariableArrays, links: ItemLinks, iterates: Iterates
) -> None:
    """Squared norms of the first projection's points, per chunk."""
    p = penalty[0]
    var_at, nbr_ptr = variables.var_at, variables.nbr_ptr
    sphere.norm2[:] = 0.0
    for i in range(len(var_at) - 1):
        at, width = var_at[i], var_at[i + 1] - var_at[i]
        if nbr_ptr[i + 1] > nbr_ptr[i] or links.ptr[at + width] > links.ptr[at]:
            sphere.norm2[i // sphere.chunk_size] += distance2(
                p.sphere, at, width, p.c, p.target_lam_v, iterates.mu, iterates.lam_v
            )


@bare
def item_multipliers(penalty: Penalty, links: ItemLinks, iterates: Iterates, lam: Floats) -> None:
    """Write the multipliers of all items at their positions in q, which may be the output itself."""
    for j in range(len(links.at)):
        lam[links.q_at + j] = item_multiplier(j, penalty, links, iterates)


@bare
def measure_counting(
    penalty: Penalty,
    factors: CountingFactors,
    links: ItemLinks,
    iterates: Iterates,
    state: CountingState,
    theta: Floats,
) -> CountingSums:
    """Compute sums over the counting factors; subtract their multipliers from theta, which the variables' sums use.

    This is compensated in `relaxed` of these sums.
    """
    bound = relaxed = primal2 = primal_max = integrality = size = 0.0
    c, scores = penalty[0].c, state.scores
    for j in range(len(links.at)):
        here, lam = item_value(j, links, iterates.mu), item_multiplier(j, penalty, links, iterates)
        scores[j] = lam
        size += abs(lam)
        if links.sign[j] == 0.0:
            theta[links.at[j]] -= lam
            relaxed += lam * here
        else:
            theta[links.at[j]] -= links.sign[j] * lam
            relaxed += lam * (here - 0.5)
            bound -= 0.5 * lam
        off = c * here - state.z[j]
        primal2 += off * off
        primal_max = max(primal_max, abs(off))
        integrality = max(integrality, min(abs(here), abs(1.0 - here)))
    values = GroupScores(scores, state.off)
    for f in range(len(factors.kind)):
        bound += best_value(f, factors, values)
        if state.violation[f] > 0.0:
            relaxed -= factors.penalty[f] * state.violation[f]
    return CountingSums(bound + ROUND_OFF * size, relaxed, primal2, primal_max, integrality)


@bare
def squared_item_change(links: ItemLinks, before: Floats, mu: Floats) -> float:
    """Return the sum of squared changes of all items."""
    total = 0.0
    for j in range(len(links.at)):
        change = item_value(j, links, mu) - item_value(j, links, before)
        total += change * change
    return total
