"""The result of a run, under the path that programs import it from."""

from mapmrf.model.polytope import Kind as Kind
from mapmrf.run.result import Result as Result
from mapmrf.run.result import Status as Status
from mapmrf.run.result import TracePoint as TracePoint
from mapmrf.run.result import read_trace as read_trace
