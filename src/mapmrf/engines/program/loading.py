"""HiGHS and SCIP, imported when first needed: they may be missing, or conflict with another library."""

from __future__ import annotations

import importlib
import importlib.util
from typing import Any


def load_highs() -> Any:
    """Import and return highspy."""
    return importlib.import_module("highspy")


def load_scip() -> Any:
    """Import and return pyscipopt, an optional extra."""
    return importlib.import_module("pyscipopt")


def highs_failure() -> str | None:
    """Return why HiGHS cannot be loaded, in one line; None if it can.

    A process that has imported OR-Tools, which bundles another HiGHS, may be unable to load highspy.
    """
    return _failure("highspy", "HiGHS")


def scip_failure() -> str | None:
    """Return why SCIP cannot be loaded, in one line; None if it can."""
    if importlib.util.find_spec("pyscipopt") is None:
        return "SCIP needs the optional extra: pip install 'mapmrf[exact]'"
    return _failure("pyscipopt", "SCIP")


def _failure(module: str, title: str) -> str | None:
    try:
        importlib.import_module(module)
    except Exception as error:  # an incompatible extension may raise anything on import
        return f"{title} cannot be loaded: {_first_line(error)}"
    return None


def _first_line(error: Exception) -> str:
    lines = str(error).splitlines() or [type(error).__name__]
    return lines[0]
