"""The command line: the only part of the package that prints.

Each module holds the commands of one kind. Only click is imported at the top of them: what a command needs it imports
itself, so that help and the commands that only read files start at once.
"""

from mapmrf.cli import solving, models, generating, datasets, bench  # isort: skip  # their order is that of the help
from mapmrf.cli.program import main

__all__ = ["bench", "datasets", "generating", "main", "models", "solving"]
