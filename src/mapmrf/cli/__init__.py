"""The command line: the only part of the package that prints.

Each module holds related commands, is imported for these or for `--help`, and imports only click at the top. A command
imports everything else itself, so that `--help` and commands that only read files start quickly.
"""

from mapmrf.cli.program import main

__all__ = ["main"]
