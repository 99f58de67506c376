"""Models for experiments: the catalogue of the paper's sets, look-alikes, and other generators."""

from mapmrf.datasets.catalogue import Entry, ModelSet, data_folders, entries, locate, sets, verify
from mapmrf.datasets.generate import (
    PottsImage,
    grid,
    lookalike,
    lookalike_name,
    n_lookalikes,
    potts_image,
    random_graph,
)

__all__ = [
    "Entry",
    "ModelSet",
    "PottsImage",
    "data_folders",
    "entries",
    "grid",
    "locate",
    "lookalike",
    "lookalike_name",
    "n_lookalikes",
    "potts_image",
    "random_graph",
    "sets",
    "verify",
]
