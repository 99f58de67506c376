"""BP, TRBP, TRW-S, ADSal, MPLP and MPLP-C: what each promises beyond the contract and the tables of bounds."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import mapmrf
from benchmark_models import benchmark, references
from mapmrf import FactorGraph, Method, Status
from mapmrf.datasets import grid
from mapmrf.engines.messages.max_product import ForestWeights, Tour
from mapmrf.engines.messages.mplp import Dual
from mapmrf.engines.messages.srmp import TablePasses
from mapmrf.engines.messages.sweeps import SequentialPasses
from mapmrf.engines.messages.trws_binary import SpinPasses
from mapmrf.engines.messages.trws_pairwise import LabelPasses
from mapmrf.methods.bp import BP
from mapmrf.methods.mplp import MPLP
from mapmrf.methods.mplp_c import MPLPC
from mapmrf.methods.trbp import degree_weights, forest_weights, parent_shares, uniform_weights
from mapmrf.methods.trws import TRWS
from mapmrf.model.polytope import Kind
from mapmrf.model.problem import Problem
from mapmrf.run.method import Progress, Start
from pairwise_models import attractive, chain_edges, random_grid, triangle
from strategies import (
    Recipe,
    brute_force,
    hard_recipes,
    plant,
    random_recipe,
    random_tree,
    recipes,
    soft_recipes,
    tree_recipes,
)


@pytest.mark.parametrize(
    ("method", "graph", "loose", "tight"),
    [
        ("adsal", grid(10, 10, coupling=2.0, seed=2), 1e-2, 1e-7),
        *(("bp", attractive(8, states, coupling=0.3, seed=2), 1e-2, 1e-10) for states in (2, 3)),
        ("mplp", grid(10, 10, coupling=2.0, seed=1), 1e-2, 1e-9),
        ("trws", grid(20, 20, coupling=2.0, seed=3), 1e-3, 1e-12),
    ],
)
def test_a_looser_tolerance_stops_earlier(method: str, graph: FactorGraph, loose: float, tight: float) -> None:
    rough, fine = (mapmrf.solve(graph, method, tol=tol) for tol in (loose, tight))
    assert rough.iterations < fine.iterations
    assert rough.status is fine.status is Status.CONVERGED
    if rough.bound is not None and fine.bound is not None:
        assert fine.bound <= rough.bound
    else:
        assert fine.details["change"] < rough.details["change"]


@pytest.mark.parametrize(
    ("method", "options", "measured"),
    [
        ("adsal", {"presolve_iterations": 1, "inner_iterations": 4, "max_iterations": 6}, [1, 5, 6]),
        ("mplp", {"decode_every": 1, "max_iterations": 4, "tol": 0.0}, [1, 2, 3, 4]),
        ("mplp", {"decode_every": 20, "max_iterations": 40, "tol": 0.0}, [1, 5, 25, 40]),
    ],
)
def test_labels_are_decoded_as_often_as_asked(method: str, options: dict[str, Any], measured: list[int]) -> None:
    result = mapmrf.solve(grid(10, 10, coupling=2.0, seed=1), method, **options)
    assert [point.iterations for point in result.trace] == measured


def alone(method: Method, graph: FactorGraph) -> Progress:
    """How the method itself ends, without the library's search for feasible labellings."""
    problem = Problem.compile(graph)
    state = method.start(problem, 0, Start())
    while (progress := method.step(problem, state)).finished is None:
        pass
    return progress


# -- belief propagation -----------------------------------------------------------------------------------------------


def last_labels(graph: FactorGraph, **options: Any) -> np.ndarray:
    """Decoded from the last messages, without the best of earlier measurements and without repair."""
    problem, method = Problem.compile(graph), BP(**options)
    state = method.start(problem, 0, Start())
    while True:
        progress = method.step(problem, state)
        if progress.finished is not None or progress.iterations >= method.max_iterations:
            break
    return state.measure()[0]


@given(seed=st.integers(0, 2**32 - 1), hard=st.sampled_from([0.0, 0.4]))
def test_ties_on_a_tree_are_broken_consistently(seed: int, hard: float) -> None:
    """Tables of few whole numbers have many optimal labellings, which the best states of single beliefs would mix."""
    recipe = random_tree(seed, 8, hard=hard)
    recipe.tables = [np.where(np.isfinite(table), np.round(table / 2), table) for table in recipe.tables]
    plant(recipe, seed)
    recipe.tables = [np.where(np.isfinite(table), np.round(table), table) for table in recipe.tables]
    graph = recipe.graph()
    assert graph.value(last_labels(graph)) == brute_force(graph)[0]


def test_a_chain_far_longer_than_the_iteration_limit_is_solved() -> None:
    """The only evidence is at the far end."""
    n = 5000
    unary = np.zeros((n, 2))
    unary[-1, 1] = 0.5
    result = mapmrf.solve(FactorGraph.from_pairwise(unary, chain_edges(n), np.eye(2)), "bp")
    assert result.labels.tolist() == [1] * n
    assert (result.status, result.iterations) == (Status.OPTIMAL, 2)


@pytest.mark.parametrize("states", [2, 3])
@pytest.mark.parametrize("decode", ["sequential", "argmax"])
def test_schedules_and_damping_lead_to_the_same_fixed_point(states: int, decode: str) -> None:
    graph = attractive(8, states, coupling=0.3, seed=1)
    results = [
        mapmrf.solve(graph, "bp", schedule=schedule, damping=damping, decode=decode)
        for schedule in ("parallel", "sequential")
        for damping in (0.0, 0.5)
    ]
    assert {result.status for result in results} == {Status.CONVERGED}
    assert {tuple(result.labels) for result in results} == {tuple(results[0].labels)}
    assert results[0].value == pytest.approx(mapmrf.solve(graph, "lp").value)
    assert len({result.iterations for result in results}) > 1  # they are not one and the same run


def test_a_frustrated_model_gives_the_best_of_all_measurements_and_gains_from_decoding_in_order() -> None:
    """Undamped messages go round in circles: the last labelling is not the best."""
    graph = grid(15, 15, coupling=5.0, seed=3)
    options = {"damping": 0.0, "decode": "argmax"}
    result = mapmrf.solve(graph, "bp", **options)
    candidates = [point.candidate for point in result.trace if point.candidate is not None]
    assert result.status is Status.ITERATION_LIMIT
    assert result.value == max(candidates)
    assert candidates == sorted(candidates)
    assert result.value > graph.value(last_labels(graph, **options))
    in_order, single = (mapmrf.solve(graph, "bp", decode=decode) for decode in ("sequential", "argmax"))
    assert in_order.value > single.value


@pytest.mark.data
def test_the_papers_mean_on_binary_segmentation_is_reproduced_without_damping() -> None:
    """The paper's table has -79 for its BP, -137.1 for ICM and -75.5 for the optimum."""
    models = [benchmark(name) for name in references() if name.startswith("segmentation2/")]
    if len(models) < 50:
        pytest.skip("not all of the 50 models are there")
    values = [graph.value(last_labels(graph, damping=0.0, decode="argmax")) for graph in models]
    assert np.mean(values) == pytest.approx(-79.0, abs=0.06)


# -- tree-reweighted belief propagation -------------------------------------------------------------------------------


def random_pairwise(seed: int, n_vars: int = 10, states: int = 3, share: float = 0.4) -> FactorGraph:
    random = np.random.default_rng(seed)
    edges = np.array([(i, j) for i in range(n_vars) for j in range(i) if random.random() < share])
    tables = random.normal(size=(len(edges), states, states))
    return FactorGraph.from_pairwise(random.normal(size=(n_vars, states)), edges, tables)


def root_shares(problem: Problem, weights: ForestWeights) -> np.ndarray:
    """What every variable keeps of its belief in the bound."""
    kept = np.repeat(weights.rho, np.diff(problem.scope_ptr)) - weights.parent
    return 1.0 - np.bincount(problem.scope, weights=kept, minlength=problem.n_vars)


@given(recipe=soft_recipes(max_factors=14), seed=st.integers(0, 99), n_least=st.sampled_from([1, 7]))
def test_weights_are_shares_of_forests_and_leave_every_variable_a_share_of_the_roots(
    recipe: Recipe, seed: int, n_least: int
) -> None:
    problem = Problem.compile(recipe.graph())
    if problem.n_factors == 0:
        return
    weights = forest_weights(problem, n_least, seed)
    # Every forest that holds a factor hangs it on one of its variables; every part of it has one root.
    np.testing.assert_allclose(np.add.reduceat(weights.parent, problem.scope_ptr[:-1]), weights.rho)
    assert root_shares(problem, weights).sum() >= Tour.of(problem).n_parts - 1e-9
    rho = degree_weights(problem)
    by_degree = ForestWeights(rho, parent_shares(problem, rho))
    # Shares are balanced by iteration, so some are a little off; the bound holds for any shares.
    np.testing.assert_allclose(np.add.reduceat(by_degree.parent, problem.scope_ptr[:-1]), rho, rtol=0.25)
    for found in (weights, by_degree):
        assert np.all((found.rho > 0) & (found.rho <= 1))
        assert root_shares(problem, found).min() >= -1e-12


def test_forests_depend_on_the_seed_alone_and_more_of_them_make_more_even_weights() -> None:
    problem = Problem.compile(grid(12, 12))
    first, again, other, many = (forest_weights(problem, n, seed) for n, seed in ((1, 1), (1, 1), (1, 2), (100, 1)))
    assert np.array_equal(first.rho, again.rho) and np.array_equal(first.parent, again.parent)
    assert not np.array_equal(first.rho, other.rho)
    assert np.std(many.rho) < 0.25 * np.std(first.rho)


def test_factors_that_would_take_too_many_forests_are_weighed_by_degree() -> None:
    """Twenty factors on the same two variables: no forest holds two of them."""
    random = np.random.default_rng(0)
    problem = Problem.compile(Recipe([2, 2], [(0, 1)] * 20, list(random.normal(size=(20, 2, 2)))).graph())
    np.testing.assert_allclose(forest_weights(problem, 1, 0).rho, 0.05)
    np.testing.assert_allclose(forest_weights(problem, 1, 0, max_work=100).rho, 0.1)
    np.testing.assert_allclose(degree_weights(problem), 0.1)


def test_uniform_weights_are_those_of_a_tree_shared_equally() -> None:
    problem = Problem.compile(grid(9, 7))
    rho = uniform_weights(problem)
    np.testing.assert_allclose(rho, (9 * 7 - 1) / problem.n_factors)
    parent = parent_shares(problem, rho)
    assert parent.min() >= 0
    assert root_shares(problem, ForestWeights(rho, parent)).min() >= -1e-12
    np.testing.assert_allclose(np.add.reduceat(parent, problem.scope_ptr[:-1]), rho, rtol=2e-2)


@pytest.mark.parametrize(
    ("weights", "pairwise", "middle"),
    [("forests", True, 1e-5), ("uniform", True, 1e-5), ("degree", True, 1e-5), ("forests", False, 1e-6)],
)
def test_the_bound_of_trbp_is_mostly_that_of_the_relaxation(weights: str, pairwise: bool, middle: float) -> None:
    """It cannot be less. Where the forests agree it is the same; other fixed points are some per cent off."""
    graphs = [random_pairwise(seed) if pairwise else random_recipe(seed, 7, 12).graph() for seed in range(12)]
    relaxed = np.array([mapmrf.solve(graph, "lp").relaxed_value for graph in graphs])
    bounds = [mapmrf.solve(graph, "trbp", max_iterations=3000, weights=weights).bound for graph in graphs]
    above = (np.array(bounds) - relaxed) / np.maximum(1.0, np.abs(relaxed))
    assert above.min() >= -1e-8
    assert np.median(above) <= middle
    assert above.max() <= 0.06


def test_forbidden_states_take_no_part_in_the_bound() -> None:
    """Without state 1 of the second variable, whose tables are worth much there, the model is a tree of one pair."""
    table = np.array([[0.0, 50.0], [1.0, 50.0]])
    graph = FactorGraph.from_pairwise([[0, 0], [0, -np.inf], [0, 0]], [[0, 1], [2, 1], [0, 2]], table)
    result = mapmrf.solve(graph, "trbp")
    assert result.status is Status.OPTIMAL
    assert result.value == brute_force(graph)[0]


@given(recipe=tree_recipes())
def test_on_a_tree_and_nowhere_else_trbp_is_belief_propagation(recipe: Recipe) -> None:
    graph = recipe.graph()
    result, plain = mapmrf.solve(graph, "trbp"), mapmrf.solve(graph, "bp")
    assert result.labels.tolist() == plain.labels.tolist()
    assert (result.bound, result.status, result.iterations) == (plain.bound, Status.OPTIMAL, plain.iterations)
    cyclic = random_pairwise(4)
    assert mapmrf.solve(cyclic, "trbp").details["change"] != mapmrf.solve(cyclic, "bp").details["change"]


# -- TRW-S ------------------------------------------------------------------------------------------------------------


def engine(graph: FactorGraph, **options: Any) -> SequentialPasses:
    return TRWS(**options).start(Problem.compile(graph), 0, Start()).passes


def test_every_model_takes_the_shortest_way_that_it_fits() -> None:
    pair, ring, never = [[0, 1]], [[0, 1], [1, 2], [0, 2]], -np.inf
    fits = [
        (SpinPasses, grid(3, 3)),
        (SpinPasses, FactorGraph.from_pairwise(np.zeros((2, 2)), pair, np.zeros((2, 2)))),
        (LabelPasses, attractive(3, 3)),
        (LabelPasses, FactorGraph.from_pairwise([[0.0, never], [0.0, 0.0]], pair, [[0.0, 1.0], [1.0, 0.0]])),
        (LabelPasses, triangle([np.eye(2), -np.eye(2) * 1e9, np.eye(2)])),
        (LabelPasses, FactorGraph.from_pairwise(np.zeros((3, 2)), ring, np.eye(2), weight=[1.0, -1e9, 1.0])),
        (TablePasses, random_recipe(1, 5, 8).graph()),
        (TablePasses, FactorGraph.from_pairwise(np.zeros((2, 2)), pair, [[0.0, never], [0.0, 0.0]])),
    ]
    assert [type(engine(graph)) for _, graph in fits] == [kind for kind, _ in fits]


@pytest.mark.parametrize("states", [2, 5])
def test_ties_go_to_the_smallest_state(states: int) -> None:
    graph = FactorGraph.from_pairwise(np.zeros((3, states)), [[0, 1], [1, 2]], np.eye(states))
    assert mapmrf.solve(graph, "trws").labels.tolist() == [0, 0, 0]


def test_a_shuffled_grid_gains_from_its_layers() -> None:
    graph = grid(20, 20, coupling=2.0, seed=3)
    new = np.random.default_rng(0).permutation(graph.n_vars)
    unary = np.zeros((graph.n_vars, 2))
    unary[new] = graph.theta_v.reshape(-1, 2)
    tables = [graph.table(a) for a in range(graph.n_factors)]
    shuffled = FactorGraph.from_pairwise(unary, new[graph.scope.reshape(-1, 2)], tables)
    one = [mapmrf.solve(shuffled, "trws", order=order, max_iterations=2).bound for order in ("given", "breadth_first")]
    assert one[0] is not None and one[1] is not None and one[1] < one[0]


def test_trws_decodes_as_often_as_asked() -> None:
    graph = grid(10, 10, coupling=2.0, seed=1)
    seldom = engine(graph, decode_every=3)
    seldom.iterate(1, 2, 3)
    assert seldom.figures.value == -np.inf  # iteration 1 of 3 decodes nothing
    seldom.iterate(3, 4, 3)
    assert seldom.figures.value == pytest.approx(graph.value(seldom.best))


# -- ADSal ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", [*range(30), 45])
def test_bound_and_relaxed_value_meet_at_the_relaxation_where_plain_passes_may_rest_above(seed: int) -> None:
    graph = random_recipe(seed, 7, 12).graph()
    relaxation, result = mapmrf.solve(graph, "lp").bound, mapmrf.solve(graph, "adsal")
    assert result.bound == pytest.approx(relaxation, rel=2e-5, abs=2e-5)
    assert result.relaxed_value == pytest.approx(relaxation, rel=2e-5, abs=2e-5)
    assert result.status in (Status.OPTIMAL, Status.CONVERGED)
    if seed == 45:
        assert mapmrf.solve(graph, "trws").bound > relaxation + 1e-3


@given(recipe=soft_recipes() | hard_recipes(), presolve=st.sampled_from([1, 50]))
def test_relaxed_solutions_lie_in_the_local_polytope_below_the_bound_and_only_rise(
    recipe: Recipe, presolve: int
) -> None:
    result = mapmrf.solve(recipe.graph(), "adsal", presolve_iterations=presolve, max_iterations=60)
    assert result.kind in (Kind.VALID, Kind.FRACTIONAL, Kind.UNIFORM)
    assert result.residuals is not None and result.residuals.largest <= 1e-6
    assert result.relaxed_value is not None and result.bound is not None
    assert result.relaxed_value >= result.value - 1e-9
    assert result.relaxed_value <= result.bound + 1e-5 * max(1.0, abs(result.bound))
    relaxed = [point.relaxed_value for point in result.trace if point.relaxed_value is not None]
    assert relaxed == sorted(relaxed)


def test_the_temperature_falls_by_the_decay_and_begins_after_the_plain_iterations() -> None:
    graph = grid(10, 10, coupling=2.0, seed=2)
    result = mapmrf.solve(graph, "adsal", presolve_iterations=4, presolve_tol=0.0)
    phases = [(point.iterations, point.phase) for point in result.trace]
    assert next(n for n, phase in phases if phase == "smooth") == 4
    temperatures = [point.extra["temperature"] for point in result.trace if "temperature" in point.extra]
    assert len(set(temperatures)) > 3
    assert temperatures == sorted(temperatures, reverse=True)
    assert result.details["temperature"] == temperatures[-1]
    without = mapmrf.solve(graph, "adsal", presolve_iterations=1)
    assert without.bound == pytest.approx(result.bound, rel=1e-5)
    fast = mapmrf.solve(graph, "adsal", tol=1e-2, decay=8.0)
    steps = sorted({point.extra["temperature"] for point in fast.trace if "temperature" in point.extra})
    assert len(steps) > 1
    np.testing.assert_allclose(np.divide(steps[1:], steps[:-1]), 8.0)
    for each in (result, fast):
        assert each.bound - each.relaxed_value <= each.options["tol"] * each.bound * 1.001


# -- MPLP -------------------------------------------------------------------------------------------------------------


def dual_of(graph: FactorGraph, **options: Any) -> Dual:
    method = MPLP(**options)
    return Dual.build(Problem.compile(graph), method.order, method.schedule, 0)


@pytest.mark.parametrize("order", ["variables", "model", "random"])
@pytest.mark.parametrize("schedule", ["alternate", "forward"])
def test_every_order_comes_to_the_same_bound(order: str, schedule: str) -> None:
    graph = grid(7, 7, coupling=2.0, seed=4)
    result = mapmrf.solve(graph, "mplp", order=order, schedule=schedule)
    assert result.bound == pytest.approx(mapmrf.solve(graph, "mplp").bound, rel=2e-3)
    assert result.status is Status.CONVERGED


def test_orders_are_what_they_say() -> None:
    edges = [[2, 3], [0, 1], [0, 3], [1, 2]]
    graph = FactorGraph.from_pairwise(np.zeros((4, 2)), edges, np.eye(2))
    assert dual_of(graph, order="model").visit.tolist() == [0, 1, 2, 3]
    assert dual_of(graph, order="variables").visit.tolist() == [1, 3, 2, 0]
    assert sorted(dual_of(graph, order="random").visit.tolist()) == [0, 1, 2, 3]


def test_hanging_trees_are_passed_once_and_left_out() -> None:
    """A cycle of three with a tail: the tail's factors are no part of the passes, and its best state is known."""
    edges = [[0, 1], [1, 2], [0, 2], [2, 3], [3, 4]]
    tables = np.random.default_rng(3).normal(size=(5, 2, 2))
    dual = dual_of(FactorGraph.from_pairwise(np.zeros((5, 2)), edges, tables))
    assert sorted(dual.visit.tolist()) == [0, 1, 2]
    assert dual.decide.tolist() == [0, 1, 2, 3, 4]
    tail = tables[3][:, :, None] + tables[4][None]
    assert dual.regions.belief[4:6] == pytest.approx(tail.max(axis=(1, 2)))


def test_contradictions_are_proven_where_messages_or_clusters_can() -> None:
    """Equality carries a fixed state round to a pair that forbids it; three variables differ, with two states."""
    same = np.array([[0.0, -np.inf], [-np.inf, 0.0]])
    fixed = np.array([0.0, -np.inf])
    carried = Recipe([2] * 3, [(0,), (0, 1), (1, 2), (0, 2)], [fixed, same, same, same[::-1].copy()]).graph()
    apart = triangle(same[::-1].copy())  # feasible for the linear relaxation alone
    for method, graph in ((MPLP(), carried), (MPLPC(), apart), (MPLPC(triplets=False), apart)):
        progress = alone(method, graph)
        assert (progress.finished, progress.bound) == (Status.INFEASIBLE, -np.inf)
    assert alone(MPLPC(triplets=False, cycles=False), apart).finished is Status.CONVERGED


# -- MPLP-C -----------------------------------------------------------------------------------------------------------


FRUSTRATED = [grid(rows, cols, coupling=5.0, seed=seed) for rows, cols in ((6, 6), (7, 9), (8, 8)) for seed in range(3)]
TORUS = grid(4, 4, coupling=5.0, wrap=True, seed=2)


@pytest.mark.parametrize("graph", [*FRUSTRATED, TORUS, *(random_grid(3, 3, 3, coupling=3.0, seed=s) for s in range(4))])
def test_frustrated_grids_are_proven_optimal(graph: FactorGraph) -> None:
    result = mapmrf.solve(graph, "mplp_c", max_iterations=20_000)
    assert result.status is Status.OPTIMAL
    assert result.value == pytest.approx(mapmrf.solve(graph, "branch").value, abs=1e-6)
    if len(graph.card) >= 36:
        assert mapmrf.solve(graph, "mplp").bound > result.bound + 1.0
        assert result.details["clusters"] > 0


@pytest.mark.parametrize("seed", range(4))
def test_larger_factors_are_tightened_on_pairs_of_their_variables(seed: int) -> None:
    """Three variables that want to differ, each two of them in a factor with a third variable of its own."""
    random = np.random.default_rng(seed)
    differ = np.array([[0.0, 3.0], [3.0, 0.0]])
    tables = [differ[:, :, None] + 0.3 * random.normal(size=(2, 2, 2)) for _ in range(3)]
    graph = FactorGraph.from_tables([2] * 6, [(0, 1, 3), (1, 2, 4), (0, 2, 5)], tables)
    assert mapmrf.solve(graph, "mplp").status is Status.CONVERGED
    result = mapmrf.solve(graph, "mplp_c")
    assert result.status is Status.OPTIMAL
    assert result.value == pytest.approx(brute_force(graph)[0])
    assert result.details["pairs_added"] > 0


@given(recipe=recipes())
@settings(max_examples=20)
def test_the_bound_is_at_least_as_good_as_that_of_mplp(recipe: Recipe) -> None:
    graph = recipe.graph()
    bound = mapmrf.solve(graph, "mplp_c").bound
    assert bound is not None and bound <= mapmrf.solve(graph, "mplp").bound + 1e-3


def test_each_kind_of_candidate_tightens_by_itself_and_without_any_it_is_mplp() -> None:
    graph = FRUSTRATED[0]
    plain = mapmrf.solve(graph, "mplp", tol=1e-9)
    for options in ({"triplets": False, "cycles": False, "tol": 1e-9}, {"max_entries": 0, "tol": 1e-9}):
        result = mapmrf.solve(graph, "mplp_c", **options)
        assert result.bound == pytest.approx(plain.bound, rel=1e-6)
        assert (result.status, result.details["clusters"]) == (Status.CONVERGED, 0)
    short = mapmrf.solve(graph, "mplp_c", cycles=False)
    long = mapmrf.solve(graph, "mplp_c", triplets=False)
    assert (short.details["clusters"], short.details["pairs_added"]) == (25, 0)
    assert max(short.bound, long.bound) < plain.bound - 1.0
    assert long.details["clusters"] > 0


@pytest.mark.parametrize("whole", [3, 32])
def test_cycles_may_be_clusters_as_a_whole_or_be_cut(whole: int) -> None:
    graph = FRUSTRATED[1]
    result = mapmrf.solve(graph, "mplp_c", whole=whole, max_iterations=3000)
    optimum = mapmrf.solve(graph, "branch").value
    assert optimum - 1e-6 <= result.bound <= 1.02 * optimum
    assert (result.details["pairs_added"] == 0) == (whole == 32)


def test_clusters_stop_at_the_limit_of_entries() -> None:
    graph = grid(8, 8, coupling=5.0, seed=0)
    result = mapmrf.solve(graph, "mplp_c", max_entries=1000)
    assert 0 < result.details["clusters"] <= 1000 / 12
    assert result.bound < mapmrf.solve(graph, "mplp").bound - 0.1


def test_the_first_search_waits_for_its_iterations_or_for_the_bound_to_stall() -> None:
    graph = grid(8, 8, coupling=5.0, seed=0)

    def first_search(**options: Any) -> int:
        trace = mapmrf.solve(graph, "mplp_c", max_iterations=60, decode_every=1, **options).trace
        return next((point.iterations for point in trace if point.phase == "search"), -1)

    assert first_search(first_iterations=7, patience=0.0) == 7
    assert first_search(patience=0.0) == -1
    assert 1 < first_search(patience=0.5) < 60
