"""The command line: the only part of the package that prints.

Each module holds related commands and imports only click at the top. A command imports everything else itself, so that
`--help` and commands that only read files start quickly.
"""

# Commands are listed by `--help` in this order.
from mapmrf.cli import solving, verifying, models, parting, plotting, generating, datasets, bench  # isort: skip
from mapmrf.cli import compiling, competition, completion  # isort: skip
from mapmrf.cli.program import main

__all__ = [
    "bench", "competition", "compiling", "completion", "datasets", "generating", "main", "models", "parting",
    "plotting", "solving", "verifying",
]  # fmt: skip
