"""The result of a run, under the path that programs import it from."""

from mapmrf.model.polytope import Kind
from mapmrf.run.result import Result, Status, TracePoint, read_trace

__all__ = ["Kind", "Result", "Status", "TracePoint", "read_trace"]
