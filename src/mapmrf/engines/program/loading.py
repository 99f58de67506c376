"""HiGHS and SCIP, loaded when first needed: they may be missing, or another library may stand in their way."""

from __future__ import annotations

import importlib
import importlib.util
from typing import Any


def load_highs() -> Any:
    """The module highspy."""
    return importlib.import_module("highspy")


def load_scip() -> Any:
    """The module pyscipopt, of an optional extra."""
    return importlib.import_module("pyscipopt")


def highs_failure() -> str | None:
    """Why HiGHS cannot be loaded, in one line; None if it can.

    A process that has imported OR-Tools, which holds a HiGHS of its own, may be unable to load highspy.
    """
    return _failure("highspy", "HiGHS")


def scip_failure() -> str | None:
    """Why SCIP cannot be loaded, in one line; None if it can."""
    if importlib.util.find_spec("pyscipopt") is None:
        return "SCIP needs the optional extra: pip install 'mapmrf[exact]'"
    return _failure("pyscipopt", "SCIP")


def _failure(module: str, title: str) -> str | None:
    try:
        importlib.import_module(module)
    except Exception as error:  # an extension that does not fit may raise anything while it is loaded
        return f"{title} cannot be loaded: {_first_line(error)}"
    return None


def _first_line(error: Exception) -> str:
    lines = str(error).splitlines() or [type(error).__name__]
    return lines[0]
