"""What the author of a method imports, under the path that programs import it from."""

from mapmrf.model.problem import Problem as Problem
from mapmrf.run.method import Answer as Answer
from mapmrf.run.method import Method as Method
from mapmrf.run.method import PhasedRun as PhasedRun
from mapmrf.run.method import Phases as Phases
from mapmrf.run.method import Progress as Progress
from mapmrf.run.method import Start as Start
