"""The ADMM engine on a factor graph: the state of a run, and the loop of the paper's Algorithm 1."""

from __future__ import annotations

import numpy as np

from mapmrf.arrays import Floats, Ints, ranges, segment_argmax
from mapmrf.engines.admm import penalty as penalties
from mapmrf.engines.admm.factor_steps import FactorSphere
from mapmrf.engines.admm.layout import Layout, isolated
from mapmrf.engines.admm.measurement import Measurement, decode, pair_marginals
from mapmrf.engines.admm.penalty import PenaltyOptions, SphereKind, new_penalty, set_rho
from mapmrf.engines.admm.steps import ConstrainedSteps, IndexedSteps
from mapmrf.engines.admm.structs import FactorKind, Iterates, Rounding, SphereState
from mapmrf.engines.admm.tiled import TiledSteps
from mapmrf.engines.admm.variable_steps import sphere_norms, update_upsilon
from mapmrf.errors import FormatError
from mapmrf.model.polytope import FactorMarginals, dense
from mapmrf.model.problem import Batch, Problem
from mapmrf.run.method import MOST_NUMBERS, Array, DualState, put_back
from mapmrf.run.pool import Workers

PARALLEL_FROM = 100_000  # number of factors from which threads pay off


class Engine:
    """A run of ADMM.

    `configure` sets the options of a phase, `begin` or `resume` its starting point; then `run` and `measure` are called
    as often as needed. The arrays are those of `mapmrf.engines.admm.structs`; `steps` has the kernels for the layout.
    """

    steps: IndexedSteps | TiledSteps

    def __init__(self, layout: Layout, options: PenaltyOptions | None = None, sphere_block: int = 0) -> None:
        self.layout, self.problem = layout, layout.problem
        problem, n_numbers = layout.problem, len(layout.variables.theta)
        self.mu, self.lam_v = np.zeros(n_numbers), np.zeros(n_numbers)
        self.q = np.zeros(layout.q_size + layout.n_items)
        self.penalty = new_penalty(PenaltyOptions())
        keeps_copies = bool(np.any(layout.batch["kind"] == FactorKind.PAIR2))
        self.tables = layout.tables._replace(
            s=np.zeros(layout.q_size if keeps_copies else 0),
            slots=np.zeros(layout.slot_size, dtype=np.int32),
            x=np.zeros(layout.slot_size),
            n_slots=np.zeros(problem.n_factors if layout.slot_size else 0, dtype=np.int32),
        )
        self.factor_sphere: FactorSphere | None = None
        graph = problem.graph
        self.labels: Ints = np.zeros(problem.n_vars, dtype=np.int64)
        decoded = self.labels if layout.counting is None else self.labels.copy()
        rounding = Rounding(graph.card, graph.var_ptr, problem.feasible_v, layout.edge_var, decoded)
        self.workers = Workers(problem.threads if problem.n_factors >= PARALLEL_FROM else 1)
        kind = TiledSteps if layout.runs is not None else IndexedSteps if layout.counting is None else ConstrainedSteps
        iterates = Iterates(self.mu, self.lam_v, self.q, self.penalty)
        self.steps = kind(layout, self.workers, iterates, self.tables, rounding)
        self.configure(options or PenaltyOptions())
        self.set_blocks(sphere_block)

    def close(self) -> None:
        self.workers.close()

    def adopt(self, mu: Floats, labels: Ints, boundary: Ints) -> None:
        """Store mu and labels in these arrays, which the parts of a model share; some variables have copies there."""
        self.mu, self.labels, steps = mu, labels, self.steps
        steps.iterates, steps.boundary = steps.iterates._replace(mu=mu), boundary
        steps.rounding = steps.rounding._replace(labels=labels)
        steps.plan(self.sphere)

    @property
    def idle(self) -> bool:
        """Whether there is nothing to iterate on: no factors and no constraints."""
        return self.problem.n_factors == 0 and self.layout.counting is None

    # -- the start of a phase -----------------------------------------------------------------------------------------

    def configure(self, options: PenaltyOptions) -> None:
        """Set the options of a phase; the multipliers are kept, as they are read with the last iteration's penalty."""
        fresh = new_penalty(options)
        fresh[["last_leak", "last_rho_c"]] = self.penalty[["last_leak", "last_rho_c"]]
        self.penalty[:] = fresh
        self.has_sphere = options.sphere != SphereKind.OFF

    def set_blocks(self, size: int) -> None:
        """Use a separate sphere for every `size` variables from the next `begin` on; 0 for one sphere over all."""
        self.block = size = min(size, len(self.labels))
        chunk_size = size or self.steps.chunk_size
        n_chunks = -(-self.layout.share.n_vars // chunk_size)
        zeros, ones = np.zeros((3, n_chunks)), np.ones(n_chunks)
        self.sphere = SphereState(chunk_size, size > 0, zeros[0], zeros[1], ones, zeros[2])
        self.steps.plan(self.sphere)

    def begin(self, mu: Floats, rho: float, *, multipliers: bool = False) -> None:
        """Start from mu (in the layout of theta); all lam are 0, or kept if `multipliers`."""
        if multipliers:
            self.steps.write_multipliers(self.q)
        else:
            self.q[:] = 0.0
        self._restart(mu, rho)

    def resume(self, mu: Floats, lam: Floats, rho: float) -> None:
        """Start from mu and from multipliers as returned by `multipliers`."""
        self.q[:] = lam
        self._restart(mu, rho)

    def _restart(self, mu: Floats, rho: float) -> None:
        """Start from mu and from the multipliers that q holds."""
        set_rho(self.penalty, rho)
        self.mu[:] = mu
        self._settle_isolated()
        self.penalty[0].last_leak, self.penalty[0].last_rho_c = 1.0, rho * self.penalty[0].c
        self.steps.write_multipliers(self.q)  # q = rho c mu - lam is read as lam = rho c mu - q
        self.lam_v[:] = 0.0
        if self.has_sphere:
            self.sphere.target2[:] = self._targets()
            layout = self.layout
            sphere_norms(self.sphere, layout.own_variables, layout.items, self.steps.iterates)

    def _targets(self) -> Floats:
        """Return the contribution of each chunk's variables to the squared radius of the sphere."""
        card, size = self.problem.graph.card, self.sphere.chunk_size
        share = card / 4.0 if self.penalty[0].sphere == SphereKind.VARIABLES else 1.0 - 1.0 / card
        share = np.where(self.layout.width == 1, 0.5, share)
        share[isolated(self.problem)] = 0.0
        share = share[: self.layout.share.n_vars]
        return np.array([float(share[begin : begin + size].sum()) for begin in range(0, len(share), size)])

    def _settle_isolated(self) -> None:
        """Set variables without factors to their best state for good."""
        alone = isolated(self.problem)
        if len(alone) == 0:
            return
        graph, var_at = self.problem.graph, self.layout.variables.var_at
        best = segment_argmax(graph.theta_v, graph.var_ptr)[alone]
        width = self.layout.width[alone]
        self.mu[ranges(var_at[alone], width)] = 0.0
        wide = (width > 1) | (graph.card[alone] == 1)
        self.mu[var_at[alone[wide]] + best[wide]] = 1.0
        self.mu[var_at[alone[~wide]]] = 2.0 * best[~wide] - 1.0

    def begin_factor_sphere(self) -> None:
        """Put the sphere on the factors, as in the authors' published code."""
        self.tables = self.steps.tables = self.tables._replace(pull=np.zeros(self.problem.n_configs))
        self.factor_sphere = FactorSphere(self)
        self.steps.plan(self.sphere)

    # -- the penalty --------------------------------------------------------------------------------------------------

    @property
    def rho(self) -> float:
        """The penalty of the next iteration."""
        return float(self.penalty[0].rho)

    @property
    def last_rho(self) -> float:
        """The penalty of the last iteration."""
        return float(self.penalty[0].last_rho_c / self.penalty[0].c)

    def change_rho(self, rho: float) -> None:
        """Continue with another penalty; the multipliers are unchanged, as q is read with the last iteration's."""
        set_rho(self.penalty, rho)

    @property
    def at_centre(self) -> bool:
        """Whether the point to project is at the centre of a sphere, where the projection is undefined."""
        if self.factor_sphere is not None:
            return self.factor_sphere.at_centre(self)
        norm2, target2 = self.sphere.norm2, self.sphere.target2
        if self.sphere.blocks:
            return bool(np.any((norm2 == 0.0) & (target2 > 0.0)))
        return bool(norm2.sum() == 0.0)

    # -- iterations ---------------------------------------------------------------------------------------------------

    def run(self, n: int) -> None:
        """Run n iterations of the paper's Algorithm 1.

        A kernel may perform more than one update where that saves a pass over memory: upsilon and lam_i are formed and
        updated in the variable step, and lam_ia is not stored at all. Models of binary pairs run the same loop in one
        call.
        """
        if self.steps.iterate(n):
            return
        for _ in range(n):
            self.update_upsilon()
            self.update_mu_f()
            self.update_mu_v()
            self.update_lam()
            self.update_rho()

    def update_upsilon(self) -> None:
        """Algorithm 1, upsilon = P_S(c mu_v + lam_v / rho): the projection's scale; the variable step applies it."""
        if self.has_sphere:
            update_upsilon(self.sphere.norm2, self.sphere.target2, self.sphere.scale, self.sphere.blocks)
        elif self.factor_sphere is not None:
            self.factor_sphere.update_upsilon(self)

    def update_mu_f(self) -> None:
        """Algorithm 1, mu_a = argmin over the simplex of -theta_a . mu_a + rho/2 sum_i |t_ia - M_ia mu_a|^2.

        The targets are t_ia = c mu_i + lam_ia / rho.
        """
        self.steps.update_mu_f()

    def update_mu_v(self) -> None:
        """Algorithm 1, mu_i = [theta_i + c (rho upsilon_i - lam_i + sum_a (rho M_ia mu_a - lam_ia))] / denominator.

        The denominator is epsilon (d_i + 2) + c^2 rho (d_i + 1). The same pass updates the sphere's multiplier,
        lam_i += rho (c mu_i - upsilon_i).
        """
        self.steps.update_mu_v()

    def update_lam(self) -> None:
        """Algorithm 1, lam_ia += rho (c mu_i - M_ia mu_a): implicit, since lam_ia = rho c mu_i - q is read off q."""
        penalties.update_lam(self.penalty)
        if self.factor_sphere is not None:
            self.factor_sphere.update_lam(self)

    def update_rho(self) -> None:
        """Algorithm 1, rho = min(eta rho, rho_upper)."""
        penalties.update_rho(self.penalty)

    # -- measurement --------------------------------------------------------------------------------------------------

    def measure(self) -> Measurement:
        """Decode labels, and sum up bound, value, relaxed value and residuals."""
        changed = decode(self.layout.share.n_vars, self.layout.variables.var_at, self.mu, self.steps.rounding)
        bound, value, relaxed, primal2, primal_max, integrality = self.steps.measure(self.labels).tolist()
        sphere2 = float(self.sphere.off2.sum()) if self.factor_sphere is None else self.factor_sphere.off2
        return Measurement(bound, value, relaxed, primal2, primal_max, sphere2, integrality, int(changed))

    def inspect(self) -> Measurement:
        """Measure without storing new labels: `changed` of the next measurement is not affected."""
        before, decoded = self.labels.copy(), self.steps.rounding.labels.copy()
        found = self.measure()
        self.labels[:], self.steps.rounding.labels[:] = before, decoded
        return found

    # -- the relaxed solution -----------------------------------------------------------------------------------------

    def variables(self) -> Floats:
        """Return mu_v in the problem's layout."""
        return self.layout.expand(self.mu)

    def multipliers(self) -> Floats:
        """Return the multipliers of every edge, in the layout of q."""
        lam = np.empty_like(self.q)
        self.steps.write_multipliers(lam)
        return lam

    def factor_marginals(self, batch: Batch, rows: slice) -> Floats:
        """Return mu_a of some rows of a batch, from the supports and closed forms of the last kept iteration."""
        row = self.layout.row_of(batch)
        if row.kind in (FactorKind.PAIR2_COMPACT, FactorKind.PAIR2):
            return self._pair_marginals(batch, rows)
        block = slice(row.slot_at, row.slot_at + batch.n * row.slot_width)
        slots = self.tables.slots[block].reshape(batch.n, row.slot_width)[rows]
        if row.kind == FactorKind.FOREST:
            slots = (slots >> 16) * batch.shape[1] + ((slots & 0xFFFF) >> 1)
        used = np.arange(row.slot_width) < self.tables.n_slots[batch.factors][rows, None]
        factor, slot = np.nonzero(used)
        out = np.zeros((len(slots), batch.n_configs))
        out[factor, slots[factor, slot]] = self.tables.x[block].reshape(batch.n, row.slot_width)[rows][factor, slot]
        return out

    def _pair_marginals(self, batch: Batch, rows: slice) -> Floats:
        """Return mu_a of 2x2 factors from its marginals; compact ones take those of the next step at mu."""
        row, n = self.layout.row_of(batch), batch.n
        if row.kind == FactorKind.PAIR2_COMPACT:
            layout, found = self.layout, np.empty((2, rows.stop - rows.start))
            at = np.ascontiguousarray(layout.variables.var_at[batch.scope[rows].T], dtype=np.int64)
            places, coupling = layout.pair_places(batch, rows), layout.couplings(batch, rows)
            pair_marginals(places, at, coupling, self.steps.iterates, found)
            p1, p2 = 0.5 + 0.5 * found
        else:
            p1, p2 = self.tables.s[row.q_at : row.q_at + 4 * n].reshape(n, 4)[rows, 1::2].T
        t00, t01, t10, t11 = batch.tables(self.problem.graph.theta_t, rows).T
        attract = t00 + t11 - t01 - t10 >= 0
        both = np.where(attract, np.minimum(p1, p2), np.maximum(0.0, p1 + p2 - 1.0))
        return np.stack([1.0 - p1 - p2 + both, p2 - both, p1 - both, both], axis=1)

    def marginals_of(self, problem: Problem) -> FactorMarginals:
        """Return mu_f in the order of the given problem: hardening may have reordered the factors."""
        if self.problem is problem:
            return self.factor_marginals
        place = np.empty(problem.n_factors, dtype=np.int64)
        place[self.problem.order] = np.arange(problem.n_factors)
        same = place[problem.order]
        mine = ranges(self.problem.config_ptr[same], np.diff(problem.config_ptr))
        return dense(self.problem, self.factor_marginals)[mine]

    # -- saved state --------------------------------------------------------------------------------------------------

    def state(self) -> dict[str, Array]:
        """Return all arrays that change during a run."""
        arrays: dict[str, Array] = {name: getattr(self, name) for name in ("mu", "lam_v", "q")}
        arrays |= {name: getattr(self.tables, name) for name in ("s", "slots", "x", "n_slots")}
        arrays |= {f"sphere_{name}": getattr(self.sphere, name) for name in ("target2", "norm2", "scale", "off2")}
        if self.factor_sphere is not None:
            sphere = self.factor_sphere
            arrays |= {"pull": self.tables.pull, "factor_lam": sphere.lam, "factor_upsilon": sphere.upsilon}
            arrays |= {"factor_mu": sphere.mu_f, "factor_off2": np.array([sphere.off2])}
        return arrays | {"labels": self.labels, "penalty": self.penalty.view(np.uint8)}

    def restore(self, block: int, arrays: dict[str, Array]) -> None:
        """Restore the arrays of `state`, of the same model and options, with spheres on blocks of this size."""
        if not 0 <= block <= len(self.labels):
            raise FormatError(f"the checkpoint has spheres on {block} variables each, expected 0 to {len(self.labels)}")
        self.set_blocks(block)
        put_back(self.penalty.view(np.uint8), arrays, "penalty")
        self.has_sphere = bool(self.penalty[0].sphere)
        if "factor_lam" in arrays:
            self.begin_factor_sphere()
            assert self.factor_sphere is not None
            self.factor_sphere.off2 = float(arrays["factor_off2"][0])
        for name, array in self.state().items():
            put_back(array, arrays, name)

    @property
    def _q_layout(self) -> str:
        """The layout of q, for `DualState`: its states and their order."""
        kinds = " ".join(str(row.kind) for row in self.layout.rows)
        return f"admm {'compact' if self.layout.compact else 'full'} {kinds}"

    def save_dual(self, unit: float) -> DualState | None:
        """Return multipliers, mu and rho in this unit for a warm start; None if they are too large to be kept."""
        if len(self.q) > MOST_NUMBERS:
            return None
        lam, rho = self.multipliers(), self.rho / unit
        return DualState.of(self.problem, self._q_layout, lam, rho=rho, mu_v=self.variables())

    def load_dual(self, given: DualState, rho: float) -> bool:
        """Start from what `save_dual` returned, at this penalty; return False and do nothing if it does not fit."""
        lam = given.values_for(self.problem, self._q_layout, len(self.q))
        if lam is None or given.mu_v is None or len(given.mu_v) != self.problem.n_states:
            return False
        mu_v = np.where(self.problem.feasible_v, given.mu_v, 0.0)
        self.resume(self.layout.compress(mu_v), lam, rho)
        return True
