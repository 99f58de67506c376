"""What methods refuse: numbers below their limits, unknown words, and models that they cannot take."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import pytest

import mapmrf
from mapmrf import FactorGraph, OptionError, UnsupportedModel
from mapmrf.methods import cuts, sdp
from mapmrf.methods.cuts import Cuts
from mapmrf.model.problem import Problem
from mapmrf.run.method import kinds_of
from mapmrf.run.registry import make_method, method_class, method_names
from refusals import refuses
from strategies import Recipe, brute_force, random_recipe, submodular

OPTIONS = [(name, option) for name in method_names() for option in kinds_of(method_class(name))]
SMALL = (random_recipe(7, 6, 9).graph(), submodular(random_recipe(7, 6, 9)).graph())


@pytest.mark.parametrize(("name", "option"), OPTIONS)
def test_numbers_and_words_have_limits_and_a_run_at_them_is_honest(name: str, option: str) -> None:
    cls = method_class(name)
    legal, refused = [], {}
    for kind, limits in kinds_of(cls)[option]:
        if kind in (int, float):
            assert option != "max_iterations" or limits.low == 1
            legal += [] if limits.above else [kind(limits.low)]
            low = kind(limits.low - (not limits.above))
            refused |= dict.fromkeys((low, math.nan) if kind is float else (low,), str(limits))
        elif kind is Literal:
            legal += limits
            refused["none"] = f"one of {', '.join(limits)}"
        else:
            assert kind is not str or getattr(cls(), option) == ""
    for bad, expected in refused.items():
        refuses(OptionError, f"{name}: {option} is {bad!r}, expected {expected}", cls, **{option: bad})
    for value in legal:
        method = cls(**{"max_iterations": 50, option: value})
        for graph in SMALL:
            if method.supports(Problem.compile(graph)) is None:
                result, optimum = mapmrf.solve(graph, method), brute_force(graph)[0]
                assert result.value <= optimum + 1e-9 and (result.bound is None or result.bound >= optimum - 1e-6)


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


def test_a_class_of_a_user_that_checks_by_itself_gets_its_types_checked_when_it_is_named() -> None:
    @dataclass(frozen=True)
    class Own(mapmrf.ICM):
        def __post_init__(self) -> None:
            """Check nothing."""

    assert Own(starts=0).starts == 0
    refuses(OptionError, "icm: starts is 'x', expected a whole number", make_method, Own(), {"starts": "x"})


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
