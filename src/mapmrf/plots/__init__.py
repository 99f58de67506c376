"""Figures, drawn with matplotlib: ``pip install 'mapmrf[plots]'``. Every function returns a Figure to be saved.

No window is opened and the global state of matplotlib is not changed, so this works without a display. The colours are
safe for colour-blind readers, and lines also differ in their dashes for greyscale printing.
"""

from mapmrf.plots._factor_graph import bayesian_network, factor_graph
from mapmrf.plots._maps import kinds, label_map, lattice_shape, margins
from mapmrf.plots._runs import compare, convergence

__all__ = [
    "bayesian_network",
    "compare",
    "convergence",
    "factor_graph",
    "kinds",
    "label_map",
    "lattice_shape",
    "margins",
]
