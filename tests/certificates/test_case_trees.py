"""Trees of cases: what they prove against exhaustive search, what is refused, and how they are grown."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import math
from collections.abc import Callable, Iterator
from fractions import Fraction
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st
from test_certificates import exact_values, optimum

import mapmrf
from exhaustive_truth import varied_recipe
from mapmrf import constraints
from mapmrf.certificates import CaseTree, Certificate, InvalidCertificate, verify
from mapmrf.certificates.check import DualCheck, TreeCheck
from mapmrf.certificates.exact_model import IntegerModel, add_up, exact_value, grain, without
from mapmrf.certificates.make import certify, greedy_start, in_graph_order
from mapmrf.cli import main
from mapmrf.engines.reduction.simplify import StateDrops, drop_states
from mapmrf.model.problem import Problem
from refusals import refuses

Change = Callable[[CaseTree], CaseTree]


@contextlib.contextmanager
def branching_alone() -> Iterator[None]:
    """No elimination and no cycles: what messages leave open is left to cases."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("mapmrf.certificates.make.small_order", lambda graph: None)
        patch.setattr("mapmrf.certificates.make.greedy_order", lambda *_: np.zeros(0, dtype=np.int64))
        patch.setattr("mapmrf.certificates.make.is_compact", lambda problem: False)
        patch.setattr("mapmrf.certificates.make.FIRST_ENTRIES", 0)
        yield


def frustrated_model(seed: int) -> mapmrf.FactorGraph:
    """A small dense model of pairs and triples, with weights and forbidden entries."""
    random = np.random.default_rng(seed)
    n = int(random.integers(4, 7))
    card = random.integers(2, 4, n).tolist()
    scopes: list[tuple[int, ...]] = [pair for pair in itertools.combinations(range(n), 2) if random.random() < 0.8]
    scopes += [tuple(random.permutation(n)[:3].tolist()) for _ in range(2)]
    tables = []
    for scope in scopes:
        table = random.normal(size=math.prod(card[i] for i in scope))
        tables.append(np.where(random.random(len(table)) < 0.15, -np.inf, table))
    weight = random.uniform(0.5, 2.0, len(scopes)) if seed % 2 else None
    return mapmrf.FactorGraph.from_tables(card, scopes, tables, weight=weight)


@given(st.integers(0, 10_000), st.booleans())
def test_cases_prove_the_optimum_of_frustrated_and_varied_models(seed: int, varied: bool) -> None:
    graph = varied_recipe(seed).graph() if varied else frustrated_model(seed)
    values = exact_values(graph)
    best = optimum(values)
    labels = max(values, key=lambda labels: -math.inf if values[labels] is None else values[labels])
    with branching_alone():
        certificate = certify(graph, labels)
    found = verify(graph, labels, certificate)
    assert found.value == best
    if best is None:
        assert found.bound is None and certificate.bound == -math.inf
        return
    assert found.bound is not None and 0 <= found.bound - best <= Fraction(1, 10**12)
    fast = verify(graph, labels, certificate, exact=False)
    assert fast.bound is not None and 0 <= fast.bound - best <= Fraction(1, 10**8)


@given(st.integers(0, 10_000))
def test_a_worse_labelling_gets_no_better_bound_than_the_optimum(seed: int) -> None:
    graph = frustrated_model(seed)
    values = exact_values(graph)
    labels = list(values)[seed % len(values)]
    with branching_alone():
        found = verify(graph, labels, certify(graph, labels, max_nodes=40))
    best = optimum(values)
    assert found.value == values[labels]
    assert best is None or (found.bound is not None and found.bound >= best)


def crowd() -> mapmrf.FactorGraph:
    """Six variables of three states, each two of which prefer different labels."""
    random = np.random.default_rng(3)
    pairs = list(itertools.combinations(range(6), 2))
    return mapmrf.FactorGraph.from_tables(
        [3] * 6, pairs, [random.normal(size=9) - 3 * np.eye(3).ravel() for _ in pairs]
    )


@cache
def proven() -> tuple[mapmrf.FactorGraph, list[int], Certificate]:
    graph = crowd()
    values = exact_values(graph)
    labels = max(values, key=lambda labels: values[labels] or Fraction(-(10**9)))
    with branching_alone():
        return graph, list(labels), certify(graph, labels)


@cache
def best_of_crowd() -> Fraction:
    best = optimum(exact_values(crowd()))
    assert best is not None
    return best


def test_a_tree_is_needed_proves_the_optimum_and_is_kept_in_a_file(tmp_path: Path) -> None:
    graph, labels, certificate = proven()
    assert certificate.tree.n > 1 and verify(graph, labels, certificate).optimal
    flat = dataclasses.replace(certificate, tree=CaseTree(), bound=math.inf)
    assert not verify(graph, labels, flat).optimal
    graph, labels, certificate = proven()
    certificate.write(tmp_path / "proof.npz")
    again = Certificate.read(tmp_path / "proof.npz")
    for name, array in certificate.tree.arrays().items():
        assert np.array_equal(again.tree.arrays()[name], array)
    assert verify(graph, labels, again) == verify(graph, labels, certificate)


def changed(**arrays: Callable[[np.ndarray], np.ndarray]) -> Change:
    return lambda tree: dataclasses.replace(
        tree, **{name: change(getattr(tree, name)) for name, change in arrays.items()}
    )


def put(place: int, number: float) -> Callable[[np.ndarray], np.ndarray]:
    def change(array: np.ndarray) -> np.ndarray:
        array = array.copy()
        array[place] = number
        return array

    return change


def without_last_case(tree: CaseTree) -> CaseTree:
    """The tree without its last node."""
    parts = {name: getattr(tree, name)[: getattr(tree, ptr)[-2]] for name, ptr in
             (("state", "state_ptr"), ("lam_at", "lam_ptr"), ("lam", "lam_ptr"), ("order", "order_ptr"))}  # fmt: skip
    ends = {name: getattr(tree, name)[:-1] for name in ("parent", "variable", "state_ptr", "lam_ptr", "order_ptr")}
    return dataclasses.replace(tree, **parts, **ends)


def other_state(tree: CaseTree) -> CaseTree:
    """The first state of the first two cases is the same."""
    state = tree.state.copy()
    state[tree.state_ptr[2]] = state[tree.state_ptr[1]]
    return dataclasses.replace(tree, state=state)


def twice(tree: CaseTree) -> CaseTree:
    """A state of the first case is in the second, too."""
    at = tree.state_ptr[2]
    ptr = tree.state_ptr.copy()
    ptr[3:] += 1
    return dataclasses.replace(tree, state=np.insert(tree.state, at, tree.state[tree.state_ptr[1]]), state_ptr=ptr)


REFUSED: list[tuple[Change, str]] = [
    (without_last_case, "is in no case"),
    (other_state, "is in no case"),
    (twice, "is in two cases"),
    (changed(state=put(0, 7)), "is in no case|is not one that"),
    (changed(variable=put(0, 6)), "not one of 0 ... 5"),
    (changed(variable=put(0, -1)), "has cases, but no variable"),
    (changed(variable=put(-1, 1)), "is in no case"),
    (changed(parent=put(1, 1)), "not one of those before"),
    (changed(parent=put(0, 0)), "not one of those before"),
    (changed(parent=lambda array: array[:-1]), "differ in length"),
    (changed(state_ptr=put(1, 1)), "node 0 has states"),
    (changed(lam_ptr=put(-1, 10**6)), "differ in length"),
    (changed(lam=put(0, np.inf)), "not finite"),
    (changed(lam_at=put(0, 10**6)), "not at one of"),
    (changed(lam=np.zeros_like), "but the certificate proves"),
    (changed(lam=lambda lam: lam + 3 * np.sin(np.arange(len(lam)))), "but the certificate proves"),
]  # fmt: skip


@pytest.mark.parametrize(("change", "reason"), REFUSED)
def test_corrupted_trees_are_refused_in_one_line(change: Change, reason: str) -> None:
    graph, labels, certificate = proven()
    with pytest.raises(InvalidCertificate, match=reason) as error:
        verify(graph, labels, dataclasses.replace(certificate, tree=change(certificate.tree)))
    assert "\n" not in str(error.value)


def test_a_bound_below_what_the_tree_proves_is_refused() -> None:
    graph, labels, certificate = proven()
    claim = math.nextafter(graph.value(labels) - 1e-9, -math.inf)
    with pytest.raises(InvalidCertificate, match="the claimed bound is"):
        verify(graph, labels, dataclasses.replace(certificate, bound=claim))


def test_orders_of_nodes_are_checked() -> None:
    graph, labels, certificate = proven()
    ptr = certificate.tree.order_ptr.copy()
    ptr[-1] = 2
    for order, reason in (([0, 0], "twice"), ([0, 9], "not one of 0 ... 5")):
        tree = dataclasses.replace(certificate.tree, order_ptr=ptr, order=np.array(order))
        refuses(InvalidCertificate, reason, verify, graph, labels, dataclasses.replace(certificate, tree=tree))


@given(st.integers(0, 2**31), st.sampled_from(["parent", "variable", "state_ptr", "state", "lam_ptr", "lam_at", "lam"]))
def test_no_changed_tree_proves_what_is_not_so(seed: int, name: str) -> None:
    graph, labels, certificate = proven()
    random = np.random.default_rng(seed)
    array = getattr(certificate.tree, name).copy()
    array[random.integers(len(array))] = random.integers(-2, 12)
    tree = dataclasses.replace(certificate.tree, **{name: array})
    with contextlib.suppress(InvalidCertificate):
        found = verify(graph, labels, dataclasses.replace(certificate, tree=tree, bound=math.inf))
        assert found.bound is not None and found.bound >= best_of_crowd()


def test_a_check_that_is_stopped_gives_a_weaker_bound() -> None:
    graph, labels, certificate = proven()
    worth = exact_value(graph, np.array(labels))
    full = TreeCheck(graph, certificate, True, 1000).above(worth, None)
    short = TreeCheck(graph, certificate, True, 1000, lambda: True).above(worth, None)
    assert full.bound == worth and short.bound is not None and worth is not None and short.bound > worth
    assert short.bound == short.relaxation or short.bound < (short.relaxation or 0)


def colouring(n_colours: int) -> mapmrf.FactorGraph:
    """A complete graph of five variables, no two of which may have the same colour."""
    table = np.where(np.eye(n_colours) > 0, -np.inf, 0.0)
    pairs = list(itertools.combinations(range(5), 2))
    return mapmrf.FactorGraph.from_tables([n_colours] * 5, pairs, [table] * len(pairs))


def test_an_infeasible_model_is_proven_infeasible_by_cases(tmp_path: Path) -> None:
    graph = colouring(4)
    with branching_alone():
        certificate = certify(graph, [0] * 5)
    assert certificate.tree.n > 1 and certificate.bound == -math.inf
    assert verify(graph, [0] * 5, certificate).bound is None
    with pytest.raises(InvalidCertificate):
        verify(colouring(5), [0] * 5, certificate)
    with pytest.raises(InvalidCertificate, match="is in no case"):
        verify(graph, [0] * 5, dataclasses.replace(certificate, tree=without_last_case(certificate.tree)))


def test_an_infeasible_model_is_proven_infeasible_by_maximising_out() -> None:
    graph = colouring(4)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("mapmrf.certificates.make.small_order", lambda graph: None)
        patch.setattr("mapmrf.certificates.make.greedy_order", lambda *_: np.zeros(0, dtype=np.int64))
        certificate = certify(graph, [0] * 5)
    assert len(certificate.first) == 4 and certificate.bound == -math.inf
    assert verify(graph, [0] * 5, certificate).bound is None
    with pytest.raises(InvalidCertificate, match=r"claimed bound is -inf, but the certificate proves 0\.0"):
        verify(colouring(5), [0] * 5, certificate)


def test_limits_leave_a_weaker_bound_and_the_command_line_says_so(tmp_path: Path) -> None:
    graph, labels, full = proven()
    with branching_alone():
        short = certify(graph, labels, max_nodes=2)
        none = certify(graph, labels, max_nodes=0)
        assert full.tree.n > short.tree.n and none.tree.n == 0
        assert full.bound < short.bound <= none.bound
        assert not verify(graph, labels, short).optimal
        assert certify(graph, labels, max_bytes=1).bound >= short.bound
        mapmrf.write(graph, tmp_path / "crowd.uai")
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("mapmrf.certificates.make.MOST_NODES", 0)
            patch.setattr(certify, "__kwdefaults__", {**(certify.__kwdefaults__ or {}), "max_nodes": 0})
            done = CliRunner().invoke(
                main, ["solve", str(tmp_path / "crowd.uai"), "-q", "--certificate", str(tmp_path / "proof.npz")]
            )
    assert done.exit_code == 0 and "proves no more than the bound" in done.stderr


@given(st.integers(0, 10_000))
def test_variables_that_are_maximised_out_first_leave_the_optimum_where_it_is(seed: int) -> None:
    graph = varied_recipe(seed).graph() if seed % 2 else frustrated_model(seed)
    values = exact_values(graph)
    best = optimum(values)
    random = np.random.default_rng(seed)
    first = random.permutation(graph.n_vars)[: random.integers(graph.n_vars + 1)]
    small, _ = without(graph, first)
    rest = optimum(exact_values(small))
    assert rest is None if best is None else rest is not None and 0 <= rest - best <= Fraction(1, 10**12)
    labels = list(values)[seed % len(values)]
    order = np.arange(small.n_vars)
    found = verify(graph, labels, Certificate(first=first, order=order))
    assert (found.value, found.bound) == (values[labels], rest if len(first) else best)


def test_sums_are_rounded_up_only_where_they_are_not_exact() -> None:
    random = np.random.default_rng(0)
    one, other = random.normal(size=1000), random.normal(size=1000) * 10.0 ** random.integers(-20, 20, 1000)
    for a, b, total in zip(one.tolist(), other.tolist(), add_up(one, other).tolist(), strict=True):
        exact = Fraction(a) + Fraction(b)
        assert Fraction(total) >= exact and Fraction(math.nextafter(total, -math.inf)) < exact
    assert add_up(np.array([-np.inf, 3.0]), np.array([1.0, 4.0])).tolist() == [-np.inf, 7.0]


def test_first_variables_are_checked() -> None:
    graph = crowd()
    for first, reason in (([0, 0], "first names a variable twice"), ([6], "first names a variable that is not one")):
        refuses(InvalidCertificate, reason, verify, graph, [0] * 6, Certificate(first=np.array(first)))
    wide = mapmrf.FactorGraph.from_tables(
        [2] * 22, [(0, i) for i in range(1, 22)], [np.arange(4.0)] * 21
    )  # fmt: skip
    refuses(InvalidCertificate, "expected at most 1048576", verify, wide, [0] * 22, Certificate(first=np.array([0])))


def test_variables_to_begin_with_have_small_tables_and_leave_some() -> None:
    star = mapmrf.FactorGraph.from_tables([2] * 6, [(0, i) for i in range(1, 6)], [np.arange(4.0)] * 5)
    assert greedy_start(star, 4).tolist() == [1, 2, 3, 4, 0]
    assert greedy_start(star, 3).tolist() == []
    ring = mapmrf.FactorGraph.from_tables([3] * 5, [(i, (i + 1) % 5) for i in range(5)], [np.arange(9.0)] * 5)
    assert len(greedy_start(ring, 26)) == 0 and len(greedy_start(ring, 27)) == 4


@given(st.integers(0, 10_000))
def test_the_kernel_drops_what_the_checker_drops(seed: int) -> None:
    graph = frustrated_model(seed)
    values = exact_values(graph)
    random = np.random.default_rng(seed)
    problem = Problem.compile(graph)
    lam_e = random.normal(size=problem.n_edge_states)
    labels = np.array(list(values)[seed % len(values)])
    worth = exact_value(graph, labels)
    model = IntegerModel.build(graph, Certificate(lam=in_graph_order(problem, lam_e)), True)
    check = DualCheck(model, model.target(worth))
    bound = check.drop_all()
    left = np.isfinite(graph.theta_v)
    target = -math.inf if worth is None else float(worth) - 1e-9
    found = drop_states(StateDrops.of(problem), lam_e, left, target)
    if bound is None or found == -math.inf:
        assert found == -math.inf or found <= target + 1e-8
        assert bound is None
        return
    assert found == pytest.approx(float(model.fraction(bound)), abs=1e-8)
    assert np.array_equal(left, check.left)


@given(st.integers(0, 10_000))
def test_all_values_are_multiples_of_the_grain(seed: int) -> None:
    random = np.random.default_rng(seed)
    unit = float(random.choice([1.0, 0.25, 3.0, 1.5, 0.1]))
    tables = [unit * random.integers(-9, 9, 4) for _ in range(3)]
    weight = random.integers(1, 4, 3).astype(float) if seed % 2 else None
    graph = mapmrf.FactorGraph.from_tables([2, 2, 2], [(0, 1), (1, 2), (0, 2)], tables, weight=weight)
    step = grain(graph)
    if step:
        assert all(value is not None and value % step == 0 for value in exact_values(graph).values())
    assert step or unit == 0.1 or all(value == 0 for value in exact_values(graph).values())


@given(st.integers(0, 200))
def test_models_with_constraints_are_proven(seed: int) -> None:
    random = np.random.default_rng(seed)
    scopes: list[tuple[int, ...]] = [(0,), (1,), (2,), (3,), (4,), (0, 1), (2, 3)]
    tables = [random.normal(size=2 ** len(scope)) for scope in scopes]
    plain = mapmrf.FactorGraph.from_tables([2] * 5, scopes, tables)
    graph = plain.with_constraints([constraints.exactly_k(range(5), 2)])
    best = max(graph.value(labels) for labels in itertools.product((0, 1), repeat=5))
    result = mapmrf.solve(graph, certificate=True)
    assert result.certificate is not None and result.value == pytest.approx(best)
    found = verify(graph, result.labels, result.certificate)
    assert found.relative_gap() <= 1e-12 and float(found.value or 0) == pytest.approx(best)
