"""Named pipes as files that a process waits for."""

from __future__ import annotations

import os
import time
from pathlib import Path


def opened(pipe: Path) -> int:
    """Open a named pipe for writing as soon as somebody reads it."""
    while True:
        try:
            return os.open(pipe, os.O_WRONLY | os.O_NONBLOCK)
        except OSError:
            time.sleep(0.01)
