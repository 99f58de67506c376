"""What methods refuse: numbers below their limits, unknown words, and models that they cannot take."""

from __future__ import annotations

import dataclasses
import math
import re
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import numpy as np
import pytest

import mapmrf
from mapmrf import FactorGraph, OptionError, UnsupportedModel
from mapmrf.methods import cuts, sdp
from mapmrf.methods.cuts import Cuts
from mapmrf.model.problem import Problem
from mapmrf.run.registry import method_class, method_names
from strategies import Recipe

# fmt: off
LIMITS = """
ad3: max_iterations >= 1, rho > 0, adapt_every >= 0, balance >= 1, rho_factor >= 1, rho_lower > 0, rho_upper > 0,
    relaxation >= 0.1, primal_tol > 0, dual_tol > 0, check_every >= 1, node_iterations >= 1
adsal: max_iterations >= 1, tol >= 0, presolve_iterations >= 1, presolve_tol >= 0, inner_iterations >= 1, gap_ratio >
    1, decay > 1
annealing: max_iterations >= 1, reads >= 1, hot > 0, cold > 0
auto: max_iterations >= 1, starts >= 1, pool >= 1, width >= 0, memory > 0, relax_iterations >= 1, elimination_entries
    >= 0, cuts_degree >= 0, branch_gap >= 0
blocks: max_iterations >= 1, width >= 0, patience >= 1
bp: max_iterations >= 1, damping >= 0, tol >= 0
branch: max_iterations >= 1, memory > 0, i_bound >= 0, restarts >= 1, sweeps >= 0, join_sweeps >= 0, local_search >= 0
chains: max_iterations >= 1, length >= 1, breadth >= 1
cuts: max_iterations >= 1, rounds >= 0, local_search >= 0, lp_iterations >= 0, gap >= 0, memory > 0
dd_sg: max_iterations >= 1, step_size > 0, patience >= 1, decay >= 0, exponent >= 0, tolerance >= 0
exhaustive: max_iterations >= 1, max_labellings >= 1
expansion: max_iterations >= 1
flips: max_iterations >= 1, depth >= 1
fusion: max_iterations >= 1, starts >= 1, depth >= 1, length >= 1, width >= 0, pool >= 0
icm: max_iterations >= 1, starts >= 1
l2box: max_iterations >= 1, rho > 0, sphere_weight > 0, mass_weight > 0, growth >= 1, update_every >= 1, rho_upper >
    0, warm_rho > 0, curvature >= 0, cg_tol > 0, cg_limit >= 1, noise >= 0, forbidden > 0, tol >= 0, history >= 0,
    value_tol >= 0
lp: max_iterations >= 1
lslp: sphere_weight > 0, sphere_block >= 0, alternate_block >= 0, rho > 0, eta >= 1, rho_upper > 0, update_every >= 1,
    epsilon >= 0, relaxation > 0, freeze_after >= 0, noise >= 0, starts >= 1, warm_rho > 0, lp_rho > 0, lp_iterations
    >= 0, tol > 0, patience >= 1, check_every >= 1, beliefs >= 0, max_iterations >= 1
maxflow: max_iterations >= 1
mplp: max_iterations >= 1, tol >= 0, decode_every >= 1
mplp_c: max_iterations >= 1, tol >= 0, decode_every >= 1, whole >= 3, max_length >= 3, projections >= 1,
    first_iterations >= 1, round_iterations >= 1, patience >= 0, per_round > 0, max_entries >= 0
psdd: max_iterations >= 1, step_size > 0, patience >= 1, tolerance >= 0
qpbo: max_iterations >= 1, rounds >= 0
restarts: max_iterations >= 1, patience >= 1, kick >= 1, temperature >= 0, depth >= 1, length >= 1, width >= 0
sdp: max_iterations >= 1, cut_spins >= 0, branch_spins >= 0
tabu: max_iterations >= 1, patience >= 1, elite >= 1, trajectories >= 1
toulbar2: max_iterations >= 1, vac >= 0, eliminate >= 0
trbp: max_iterations >= 1, damping >= 0, tol >= 0, forests >= 1
trws: max_iterations >= 1, tol >= 0, decode_every >= 1
wcsp: max_iterations >= 1, eliminate >= 0, sweeps >= 0, local_search >= 0
"""
# fmt: on


def limits() -> list[tuple[str, str, str, float]]:
    """Method, option, ">" or ">=", and limit."""
    rows = []
    for line in LIMITS.replace("\n    ", " ").strip().splitlines():
        name, stated = line.split(": ")
        rows += [(name, *each.split()[:2], float(each.split()[2])) for each in stated.split(", ")]
    return rows


def kinds(name: str, option: str) -> tuple[Any, ...]:
    """The alternatives of an option's type."""
    hint = get_type_hints(method_class(name))[option]
    return get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)


@pytest.mark.parametrize(("name", "option", "sign", "limit"), limits())
def test_numbers_below_their_limit_are_refused_by_name(name: str, option: str, sign: str, limit: float) -> None:
    kind = float if float in kinds(name, option) else int
    bad = kind(limit) if sign == ">" else kind(limit - 1)
    with pytest.raises(OptionError, match=rf"^{name}: {option} is {re.escape(repr(bad))}, expected a"):
        method_class(name)(**{option: bad})
    if sign == ">=":
        method_class(name)(**{option: kind(limit)})
    if kind is float:
        with pytest.raises(OptionError, match=f"^{name}: {option} is nan"):
            method_class(name)(**{option: math.nan})


@pytest.mark.parametrize("name", method_names())
def test_every_number_has_a_limit_and_every_word_is_one_of_those_named(name: str) -> None:
    stated = {option for method, option, _, _ in limits() if method == name}
    cls = method_class(name)
    numbers = {item.name for item in dataclasses.fields(cls) if {int, float} & set(kinds(name, item.name))}
    assert numbers == stated
    for item in dataclasses.fields(cls):
        if get_origin(kinds(name, item.name)[0]) is Literal or (str in kinds(name, item.name) and item.default != ""):
            with pytest.raises(OptionError, match=f"{name}: {item.name} is 'none', expected one of ") as refusal:
                cls(**{item.name: "none"})
            words = str(refusal.value).partition("expected one of ")[2].split(", ")
            for word in words:
                assert getattr(cls(**{item.name: word}), item.name) == word


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("ad3", {"relaxation": 2.0}, "relaxation is 2.0, expected a number from 0.1 to 1.9"),
        ("bp", {"damping": 1.0}, "damping is 1.0, expected a number from 0.0 to 0.999"),
        ("dd_sg", {"decomposition": "factors", "decode": "subproblems"}, "a single factor gives no labelling"),
        ("toulbar2", {"settings": "DEE"}, "settings has 'DEE', expected name=number"),
        ("toulbar2", {"settings": "DEE=0,hbfs=x"}, "settings has 'hbfs=x', expected name=number"),
    ],
)
def test_impossible_options_are_refused(name: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        method_class(name)(**options)


# -- models -----------------------------------------------------------------------------------------------------------

THREE_STATES = Recipe([2, 3], [(0, 1)], [np.zeros((2, 3))])
THREE_VARIABLES = Recipe([2] * 3, [(0, 1, 2)], [np.zeros((2, 2, 2))])
ODD_RING = Recipe([2] * 3, [(0, 1), (1, 2), (2, 0)], [1.0 - np.eye(2)] * 3)


@pytest.mark.parametrize(
    ("name", "recipe", "options", "message"),
    [
        ("exhaustive", Recipe([3, 3]), {"max_labellings": 8}, "it has 9 labellings, more than max_labellings = 8"),
        ("exhaustive", Recipe([2] * 100_000), {}, r"about 10\^30103 labellings"),
        ("expansion", THREE_VARIABLES, {}, "factor 0 has 3 variables, expected 2"),
        ("fusion", THREE_VARIABLES, {"crossover": "flow"}, "factor 0 has 3 variables, expected 2"),
        ("l2box", THREE_VARIABLES, {}, "at most two variables, this model has one of 3"),
        ("maxflow", THREE_STATES, {}, "variable 1 has 3 states, expected at most 2"),
        ("maxflow", THREE_VARIABLES, {}, "factor 0 has 3 variables, expected 2"),
        ("maxflow", ODD_RING, {}, "factor 2 on variables 2 and 0 is not submodular, whichever variables are flipped"),
        ("qpbo", THREE_STATES, {}, "variable 1 has 3 states, expected at most 2"),
        ("qpbo", THREE_VARIABLES, {}, "factor 0 has 3 variables, expected 2"),
        ("sdp", Recipe([2] * 25), {}, "25 variables, expected at most 20"),
        ("tabu", THREE_STATES, {}, "expected"),
        ("tabu", THREE_VARIABLES, {}, "expected"),
    ],
)
def test_models_that_a_method_cannot_take_are_refused_in_one_line(
    name: str, recipe: Recipe, options: dict[str, Any], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sdp, "MOST_SPINS", 20)
    with pytest.raises(UnsupportedModel, match=f"^{name} cannot solve this model: .*{message}[^\n]*$"):
        mapmrf.solve(recipe.graph(), name, **options)


def test_programs_beyond_all_memory_are_refused() -> None:
    """A hundred factors share a table of a million entries: the model is small, its program is not."""
    edges = [[i, i + 1] for i in range(101)]
    graph = FactorGraph.from_pairwise(np.zeros((102, 1000)), edges, np.zeros((1000, 1000)))
    reason = "its program would have 202000000 entries, expected at most 200000000"
    assert Cuts().supports(Problem.compile(graph)) == reason


def test_without_the_extra_highs_is_taken_and_scip_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuts, "scip_failure", lambda: "SCIP needs the optional extra: pip install 'mapmrf[exact]'")
    assert mapmrf.solve(ODD_RING.graph(), "cuts", rounds=0).status.closes_gap
    with pytest.raises(UnsupportedModel, match=r"SCIP needs the optional extra: pip install 'mapmrf\[exact\]'"):
        mapmrf.solve(ODD_RING.graph(), "cuts", solver="scip")
