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

TYPE_CHECKING = False  # type checkers understand this too: importing typing would take longer than everything else here
if TYPE_CHECKING:
    from typing import Any

    from mapmrf.batch import solve_many as solve_many
    from mapmrf.batch import solve_rows as solve_rows
    from mapmrf.certificates import Certificate as Certificate
    from mapmrf.certificates import InvalidCertificate as InvalidCertificate
    from mapmrf.certificates import Verification as Verification
    from mapmrf.certificates import verify as verify
    from mapmrf.certificates.make import certify as certify
    from mapmrf.formats import read as read
    from mapmrf.formats import write as write
    from mapmrf.methods.ad3 import AD3 as AD3
    from mapmrf.methods.adsal import ADSal as ADSal
    from mapmrf.methods.annealing import Annealing as Annealing
    from mapmrf.methods.auto import Auto as Auto
    from mapmrf.methods.blocks import Blocks as Blocks
    from mapmrf.methods.bp import BP as BP
    from mapmrf.methods.branch import Branch as Branch
    from mapmrf.methods.chains import Chains as Chains
    from mapmrf.methods.cuts import Cuts as Cuts
    from mapmrf.methods.dd_sg import DDSG as DDSG
    from mapmrf.methods.exhaustive import Exhaustive as Exhaustive
    from mapmrf.methods.expansion import Expansion as Expansion
    from mapmrf.methods.flips import Flips as Flips
    from mapmrf.methods.fusion import Fusion as Fusion
    from mapmrf.methods.icm import ICM as ICM
    from mapmrf.methods.l2box import L2Box as L2Box
    from mapmrf.methods.lp import LP as LP
    from mapmrf.methods.lslp import LSLP as LSLP
    from mapmrf.methods.maxflow import MaxFlow as MaxFlow
    from mapmrf.methods.mplp import MPLP as MPLP
    from mapmrf.methods.mplp_c import MPLPC as MPLPC
    from mapmrf.methods.psdd import PSDD as PSDD
    from mapmrf.methods.qpbo import QPBO as QPBO
    from mapmrf.methods.restarts import Restarts as Restarts
    from mapmrf.methods.sdp import SDP as SDP
    from mapmrf.methods.tabu import Tabu as Tabu
    from mapmrf.methods.toulbar2 import Toulbar2 as Toulbar2
    from mapmrf.methods.trbp import TRBP as TRBP
    from mapmrf.methods.trws import TRWS as TRWS
    from mapmrf.methods.wcsp import WCSP as WCSP
    from mapmrf.model.graph import FactorGraph as FactorGraph
    from mapmrf.model.graph import Names as Names
    from mapmrf.model.polytope import Kind as Kind
    from mapmrf.questions.best import BestLabellings as BestLabellings
    from mapmrf.questions.best import Diversity as Diversity
    from mapmrf.questions.best import solve_best as solve_best
    from mapmrf.questions.marginal_map import marginal_map as marginal_map
    from mapmrf.questions.max_marginals import MaxMarginals as MaxMarginals
    from mapmrf.questions.max_marginals import max_marginals as max_marginals
    from mapmrf.questions.tune import tune as tune
    from mapmrf.run.method import Method as Method
    from mapmrf.run.registry import methods as methods
    from mapmrf.run.result import Result as Result
    from mapmrf.run.result import Status as Status
    from mapmrf.run.solve import solve as solve

_LAZY = {
    "FactorGraph": "mapmrf.model.graph",
    "Names": "mapmrf.model.graph",
    "read": "mapmrf.formats",
    "write": "mapmrf.formats",
    "Kind": "mapmrf.model.polytope",
    "Result": "mapmrf.run.result",
    "Status": "mapmrf.run.result",
    "Method": "mapmrf.run.method",
    "methods": "mapmrf.run.registry",
    "solve": "mapmrf.run.solve",
    "solve_rows": "mapmrf.batch",
    "BestLabellings": "mapmrf.questions.best",
    "Diversity": "mapmrf.questions.best",
    "solve_best": "mapmrf.questions.best",
    "MaxMarginals": "mapmrf.questions.max_marginals",
    "max_marginals": "mapmrf.questions.max_marginals",
    "marginal_map": "mapmrf.questions.marginal_map",
    "Certificate": "mapmrf.certificates",
    "InvalidCertificate": "mapmrf.certificates",
    "Verification": "mapmrf.certificates",
    "verify": "mapmrf.certificates",
    "certify": "mapmrf.certificates.make",
    "solve_many": "mapmrf.batch",
    "tune": "mapmrf.questions.tune",
}


_MODULES = (
    "bench", "bridges", "constraints", "datasets", "distributed", "graph", "images", "learn", "method", "plots",
    "result", "torch",
)  # fmt: skip


def __getattr__(name: str) -> Any:
    """Import heavy modules only on first use: numpy must not slow down `--help`, nor numba reading a file."""
    import importlib

    if name in _MODULES:
        return importlib.import_module(f"mapmrf.{name}")
    module = _LAZY.get(name) or (_method_modules().get(name.lower()) if name[:1].isupper() else None)
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
    return sorted({*globals(), *_LAZY, *_MODULES, *classes})
