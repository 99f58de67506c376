"""Checks of options name the method, the option, what was found and what was expected."""

import math
from types import SimpleNamespace

import pytest

from mapmrf import OptionError
from mapmrf.run.options import check_above, check_at_least, check_choice, check_within

METHOD = SimpleNamespace(name="bp", damping=0.5, rho=0.0, schedule="odd", tol=math.nan)


def test_options_in_range_pass() -> None:
    check_choice(METHOD, "schedule", ("even", "odd"))
    check_at_least(METHOD, 0, "rho", "damping")
    check_above(METHOD, 0, "damping")
    check_within(METHOD, 0, 0.5, "rho", "damping")


def test_errors_name_everything() -> None:
    with pytest.raises(OptionError, match=r"^bp: schedule is 'odd', expected one of even, all$"):
        check_choice(METHOD, "schedule", ("even", "all"))
    with pytest.raises(OptionError, match=r"^bp: rho is 0\.0, expected at least 1$"):
        check_at_least(METHOD, 1, "rho")
    with pytest.raises(OptionError, match=r"^bp: rho is 0\.0, expected a number above 0$"):
        check_above(METHOD, 0, "damping", "rho")
    with pytest.raises(OptionError, match=r"^bp: damping is 0\.5, expected a number from 0 to 0\.4$"):
        check_within(METHOD, 0, 0.4, "damping")


@pytest.mark.parametrize("check", [check_at_least, check_above])
def test_not_a_number_is_refused(check) -> None:
    with pytest.raises(OptionError, match="tol is nan"):
        check(METHOD, 0, "tol")
