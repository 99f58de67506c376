"""One model on many machines: models in parts, LS-LP over MPI, checkpoints."""

from mapmrf.distributed.cutting import partition as partition
from mapmrf.distributed.evaluation import join_labels as join_labels
from mapmrf.distributed.loop import solve as solve
from mapmrf.distributed.parts import Part as Part
from mapmrf.distributed.parts import PartFolder as PartFolder
from mapmrf.distributed.parts import read_part as read_part
from mapmrf.distributed.run import PartedResult as PartedResult
