"""MAP inference for discrete graphical models.

>>> import mapmrf
>>> graph = mapmrf.FactorGraph.from_pairwise([[0, 1], [0, 0]], [[0, 1]], [[1, 0], [0, 1]])
>>> mapmrf.solve(graph).labels.tolist()
[1, 1]
"""

from __future__ import annotations

from mapmrf._version import __version__ as __version__
from mapmrf.errors import FormatError as FormatError
from mapmrf.errors import GraphError as GraphError
from mapmrf.errors import MapMRFError as MapMRFError
from mapmrf.errors import OptionError as OptionError
from mapmrf.errors import UnknownName as UnknownName
from mapmrf.errors import UnsupportedModel as UnsupportedModel

_NAMES = {
    "mapmrf.batch": ("solve_many", "solve_rows"),
    "mapmrf.certificates": ("Certificate", "InvalidCertificate", "Verification", "verify"),
    "mapmrf.certificates.make": ("certify",),
    "mapmrf.formats": ("read", "write"),
    "mapmrf.model.graph": ("FactorGraph", "Names"),
    "mapmrf.model.model": ("Model", "Variable"),
    "mapmrf.model.polytope": ("Kind",),
    "mapmrf.questions.best": ("BestLabellings", "Diversity", "solve_best"),
    "mapmrf.questions.conflict": ("Conflict", "conflict"),
    "mapmrf.questions.marginal_map": ("log_partition", "marginal_map"),
    "mapmrf.questions.max_marginals": ("MaxMarginals", "max_marginals"),
    "mapmrf.questions.tune": ("tune",),
    "mapmrf.run.method": ("Method",),
    "mapmrf.run.registry": ("methods",),
    "mapmrf.run.result": ("Result", "Status"),
    "mapmrf.run.solve": ("solve",),
}
"""Public names by their modules. The classes of the methods are found by the files of `mapmrf/methods`; type checkers
read all of them in `__init__.pyi`, which ``python docs/tables.py`` writes."""

_MODULES = (
    "bench", "bridges", "constraints", "datasets", "distributed", "graph", "images", "learn", "method", "plots",
    "result", "torch",
)  # fmt: skip


def __getattr__(name: str) -> object:
    """Import heavy modules only on first use: numpy must not slow down `--help`, nor numba reading a file."""
    import importlib

    if name == "__all__":  # for `from mapmrf import *`
        return [each for each in __dir__() if not each.startswith("_") and each != "annotations"]
    if name in _MODULES:
        return importlib.import_module(f"mapmrf.{name}")
    module = next((module for module, names in _NAMES.items() if name in names), None)
    if module is None and name[:1].isupper():
        module = _method_modules().get(name.lower())
    found = None if module is None else vars(importlib.import_module(module))
    if found is None or name not in found:
        raise AttributeError(f"module 'mapmrf' has no attribute {name!r}")
    globals()[name] = found[name]
    return found[name]


def _method_modules() -> dict[str, str]:
    """Modules of the methods by the names of their classes in lower case: `MPLPC` is in ``mplp_c``."""
    import pkgutil

    folders = [f"{folder}/methods" for folder in __path__]
    return {each.name.replace("_", ""): f"mapmrf.methods.{each.name}" for each in pkgutil.iter_modules(folders)}


def __dir__() -> list[str]:
    import importlib.util
    import re

    classes = set()
    for name, module in _method_modules().items():  # read, not imported: that takes a second
        loader = getattr(importlib.util.find_spec(module), "loader", None)
        source = getattr(loader, "get_source", lambda _: None)(module) or ""
        classes |= {each for each in re.findall(r"(?m)^class (\w+)", source) if each.lower() == name}
    return sorted({*globals(), *(name for names in _NAMES.values() for name in names), *_MODULES, *classes})
