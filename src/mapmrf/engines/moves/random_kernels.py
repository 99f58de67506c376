"""Random numbers inside the kernels of moves."""

from mapmrf.kernels.random_numbers import UNIT as UNIT
from mapmrf.kernels.random_numbers import Bits as Bits
from mapmrf.kernels.random_numbers import draw as draw
from mapmrf.kernels.random_numbers import next_bits as next_bits
from mapmrf.kernels.random_numbers import seeded as seeded
