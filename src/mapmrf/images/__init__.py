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

from mapmrf.images.grids import MemoryEstimate, estimate_memory, grid_model, to_image
from mapmrf.images.neighbours import contrast_weights, neighbour_offsets, smoothness_table
from mapmrf.images.solving import LabelledImage, denoise, segment, stereo
from mapmrf.images.superpixels import Adjacency, label_image, region_adjacency, region_sums, superpixel_model
from mapmrf.images.unaries import (
    GaussianMixture,
    census,
    kmeans,
    unary_from_differences,
    unary_from_probabilities,
    unary_from_seeds,
    unary_from_stereo,
    without_data,
)

__all__ = [
    "Adjacency",
    "GaussianMixture",
    "LabelledImage",
    "MemoryEstimate",
    "census",
    "contrast_weights",
    "denoise",
    "estimate_memory",
    "grid_model",
    "kmeans",
    "label_image",
    "neighbour_offsets",
    "region_adjacency",
    "region_sums",
    "segment",
    "smoothness_table",
    "stereo",
    "superpixel_model",
    "to_image",
    "unary_from_differences",
    "unary_from_probabilities",
    "unary_from_seeds",
    "unary_from_stereo",
    "without_data",
]
