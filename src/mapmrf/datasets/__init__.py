"""Models to try methods on: generators of look-alike models."""

from mapmrf.datasets.generate import PottsImage as PottsImage
from mapmrf.datasets.generate import grid as grid
from mapmrf.datasets.generate import potts_image as potts_image
from mapmrf.datasets.generate import random_graph as random_graph
