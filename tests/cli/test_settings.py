from dataclasses import dataclass
from typing import Literal

import pytest

import mapmrf
from mapmrf import OptionError
from mapmrf.cli.methods import parse_grid, parse_settings
from mapmrf.run.method import Method


@dataclass(frozen=True)
class Options(Method):
    max_iterations: int = 10
    rho: float = 0.5
    fast: bool = False
    preset: str = "paper"
    limit: float | None = None
    mode: Literal["slow", "quick"] = "slow"
    level: int | str = 1

    def start(self, problem, seed, initial):
        raise NotImplementedError

    step = answer = start


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("max_iterations=20", 20),
        ("max-iterations=1e5", 100_000),
        ("rho=0.25", 0.25),
        ("rho = 3", 3.0),
        ("rho=inf", float("inf")),
        ("fast=yes", True),
        ("fast=False", False),
        ("preset=own=words", "own=words"),
        ("limit=none", None),
        ("limit=2", 2.0),
        ("mode=quick", "quick"),
        ("level=3", 3),
        ("level=high", "high"),
        ("unknown=7", "7"),
    ],
)
def test_values_take_the_type_of_the_option(text, value):
    (found,) = parse_settings(Options, [text]).values()
    assert found == value
    assert type(found) is type(value)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("rho", "found 'rho', expected key=value"),
        ("=3", "expected key=value"),
        ("rho=much", "option rho: found 'much', expected a number"),
        ("max_iterations=2.5", "expected a whole number"),
        ("max_iterations=inf", "expected a whole number"),
        ("fast=maybe", "expected true or false"),
        ("limit=never", "expected none or a number"),
        ("mode=other", "expected 'slow' or 'quick'"),
    ],
)
def test_other_values_are_refused(text, says):
    with pytest.raises(OptionError, match=says):
        parse_settings(Options, [text])


def test_grid_of_lists():
    assert parse_grid(mapmrf.LSLP, ["rho=1,2.5", "seeds=3"]) == {"rho": [1.0, 2.5], "seeds": [3]}
    assert parse_grid(mapmrf.BP, ["decode=argmax,sequential"]) == {"decode": ["argmax", "sequential"]}
    with pytest.raises(OptionError, match="option eta: found '', expected a number"):
        parse_grid(mapmrf.LSLP, ["eta=1,"])
    with pytest.raises(OptionError, match="found 'rho', expected seeds or an option of icm: max_iterations"):
        parse_grid(mapmrf.ICM, ["rho=1"])
