"""The command line: the only part of the package that prints.

Each module holds the commands of one kind. Only click is imported at the top of them: what a command needs it imports
itself, so that help and the commands that only read files start at once.
"""

# The order of these is that of the help.
from mapmrf.cli import solving, verifying, models, parting, plotting, generating, datasets, bench  # isort: skip
from mapmrf.cli import compiling, competition, completion  # isort: skip
from mapmrf.cli.program import main

__all__ = [
    "bench", "competition", "compiling", "completion", "datasets", "generating", "main", "models", "parting",
    "plotting", "solving", "verifying",
]  # fmt: skip
