"""One model on many machines: models in parts, LS-LP over MPI, checkpoints."""

from mapmrf.distributed.cutting import partition
from mapmrf.distributed.evaluation import join_labels
from mapmrf.distributed.loop import solve
from mapmrf.distributed.parts import Part, PartFolder, read_part
from mapmrf.distributed.run import PartedResult

__all__ = ["Part", "PartFolder", "PartedResult", "join_labels", "partition", "read_part", "solve"]
