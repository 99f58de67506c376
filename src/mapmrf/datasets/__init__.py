"""Models for experiments: the catalogue of the paper's sets, look-alikes, and other generators."""

from mapmrf.datasets.catalogue import Entry as Entry
from mapmrf.datasets.catalogue import ModelSet as ModelSet
from mapmrf.datasets.catalogue import data_folders as data_folders
from mapmrf.datasets.catalogue import entries as entries
from mapmrf.datasets.catalogue import locate as locate
from mapmrf.datasets.catalogue import sets as sets
from mapmrf.datasets.catalogue import verify as verify
from mapmrf.datasets.generate import PottsImage as PottsImage
from mapmrf.datasets.generate import grid as grid
from mapmrf.datasets.generate import lookalike as lookalike
from mapmrf.datasets.generate import lookalike_name as lookalike_name
from mapmrf.datasets.generate import n_lookalikes as n_lookalikes
from mapmrf.datasets.generate import potts_image as potts_image
from mapmrf.datasets.generate import random_graph as random_graph
