"""The command line: the only part of the package that prints.

Each module holds related commands and imports only click at the top. A command imports everything else itself, so that
`--help` and commands that only read files start quickly.
"""

from mapmrf.cli import bench, contest, datasets, demo, installation, methods, models, plotting, solving
from mapmrf.cli.program import main

__all__ = [
    "bench", "contest", "datasets", "demo", "installation", "main", "methods", "models", "plotting", "solving",
]  # fmt: skip
