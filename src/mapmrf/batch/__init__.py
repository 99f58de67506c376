"""Many models, or one model with many rows of evidence, solved in parallel."""

from mapmrf.batch.many import NotSolved, Outcome, read_rows, solve_many, solve_rows, solve_stream, stream_rows

__all__ = ["NotSolved", "Outcome", "read_rows", "solve_many", "solve_rows", "solve_stream", "stream_rows"]
