"""Models from images: arrays in, labels out. Needs only NumPy (and SciPy for windows).

`segment`, `denoise` and `stereo` turn an image into labels in one call; `grid_model` builds a model from given unaries.
These are log potentials (H, W, L), to be maximised; functions named ``unary_from_...`` compute them.

>>> import mapmrf
>>> from mapmrf import images
>>> picture = [[0.1, 0.2, 0.9], [0.0, 0.7, 1.0]]
>>> graph = images.grid_model(images.unary_from_differences(picture, [0, 1]), weight=0.1)
>>> images.to_image(mapmrf.solve(graph), (2, 3)).tolist()
[[0, 0, 1], [0, 1, 1]]
"""

from mapmrf.images.grids import MemoryEstimate as MemoryEstimate
from mapmrf.images.grids import estimate_memory as estimate_memory
from mapmrf.images.grids import grid_model as grid_model
from mapmrf.images.grids import to_image as to_image
from mapmrf.images.neighbours import contrast_weights as contrast_weights
from mapmrf.images.neighbours import neighbour_offsets as neighbour_offsets
from mapmrf.images.neighbours import smoothness_table as smoothness_table
from mapmrf.images.solving import LabelledImage as LabelledImage
from mapmrf.images.solving import denoise as denoise
from mapmrf.images.solving import segment as segment
from mapmrf.images.solving import stereo as stereo
from mapmrf.images.superpixels import Adjacency as Adjacency
from mapmrf.images.superpixels import label_image as label_image
from mapmrf.images.superpixels import region_adjacency as region_adjacency
from mapmrf.images.superpixels import region_sums as region_sums
from mapmrf.images.superpixels import superpixel_model as superpixel_model
from mapmrf.images.unaries import GaussianMixture as GaussianMixture
from mapmrf.images.unaries import census as census
from mapmrf.images.unaries import kmeans as kmeans
from mapmrf.images.unaries import unary_from_differences as unary_from_differences
from mapmrf.images.unaries import unary_from_probabilities as unary_from_probabilities
from mapmrf.images.unaries import unary_from_seeds as unary_from_seeds
from mapmrf.images.unaries import unary_from_stereo as unary_from_stereo
from mapmrf.images.unaries import without_data as without_data
