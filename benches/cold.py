"""The experience of a new user: the demo, and solves under a time limit with empty and with warm caches.

    python benches/cold.py [MODEL ...] [--time-limit 10] [--own]

Run it with the Python of an environment that has the package installed, away from the checkout. Every command runs in a
process of its own, with an initially empty home and kernel cache; the second run of a command is the warm one.
`--own` ignores the code shipped with the package, so that everything must be compiled: limits must hold even then.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path


def run(home: Path, own: bool, *words: str) -> tuple[float, str, int]:
    """Seconds, output and number of compiled kernels of a command."""
    env = {key: word for key, word in os.environ.items() if not key.startswith(("NUMBA", "MAPMRF", "PYTHON"))}
    env |= {"HOME": str(home), "XDG_CACHE_HOME": str(home / "cache"), "NUMBA_CACHE_DIR": str(home / "kernels")}
    if own:
        env["MAPMRF_KERNELS"] = "own"
    began = time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-m", "mapmrf", *words], cwd=home, env=env, capture_output=True, text=True, check=True
    )
    return time.perf_counter() - began, done.stdout, len(list((home / "kernels").rglob("*.kernel")))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", type=lambda text: Path(text).resolve())
    parser.add_argument("--time-limit", default="10")
    parser.add_argument("--own", action="store_true")
    args = parser.parse_args()
    print("| command | cache | seconds | log potential | status | kernels compiled |\n|---|---|---|---|---|---|")
    for model in [None, *args.models]:
        with tempfile.TemporaryDirectory() as home:
            for cache in ("cold", "warm"):
                solve = ("solve", str(model), "--json", "--time-limit", args.time_limit)
                seconds, text, n = run(Path(home), args.own, *(("demo",) if model is None else solve))
                found = {} if model is None else json.loads(text)
                value, status = found.get("value", ""), found.get("status", "")
                title = "demo" if model is None else f"solve {model.name}"
                print(f"| {title} | {cache} | {seconds:.2f} | {value} | {status} | {n} |", flush=True)


if __name__ == "__main__":
    main()
