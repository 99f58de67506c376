"""Many models, or one model with many rows of evidence, solved in parallel."""

from mapmrf.batch.many import NotSolved as NotSolved
from mapmrf.batch.many import Outcome as Outcome
from mapmrf.batch.many import read_rows as read_rows
from mapmrf.batch.many import solve_many as solve_many
from mapmrf.batch.many import solve_rows as solve_rows
from mapmrf.batch.many import solve_stream as solve_stream
from mapmrf.batch.many import stream_rows as stream_rows
