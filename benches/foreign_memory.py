"""Memory that other libraries keep in a process that works for hours, shown without mapmrf.

    python benches/foreign_memory.py        # half a minute; needs Linux with glibc

glibc keeps freed memory at the end of every thread's arena, up to a threshold that rises to 64 MB with the blocks that
were freed, and `malloc_trim` returns only that of the first arena. joblib registers an exit function for every
call that runs in processes.
"""

from __future__ import annotations

import atexit
import ctypes
import gc
import os
import subprocess
import sys
import threading

import numpy as np
from joblib import Parallel, delayed

import soak_samples

THREADS, ARRAYS, REPEATS, CALLS = 6, 4000, 4, 40
"""Threads at a time, arrays of 10 kB in each of them, how often that is repeated, and calls of joblib."""

SETTINGS = ({}, soak_samples.ONE_ARENA, {"MALLOC_TRIM_THRESHOLD_": "131072"})


def work(all_are_there: threading.Barrier) -> None:
    """Allocate some arrays while other threads do, and free them."""
    all_are_there.wait()
    arrays = [np.ones(1250) for _ in range(ARRAYS)]
    all_are_there.wait()
    while arrays:
        arrays.pop()


def resident_after_threads() -> int:
    """Bytes that are resident after threads have freed all they had, and after `malloc_trim`."""
    barrier = threading.Barrier(THREADS)
    threads = [threading.Thread(target=work, args=(barrier,)) for _ in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    return soak_samples.resident()


def print_arenas() -> None:
    """A row: resident memory at the beginning, and after threads have worked, again and again."""
    np.ones(30 * 125_000)  # a block of 30 MB, freed at once: from now on glibc keeps up to 60 MB of every arena
    figures = [soak_samples.resident(), *(resident_after_threads() for _ in range(REPEATS))]
    print("".join(f" {figure / 1e6:.0f} |" for figure in figures))


def print_calls() -> None:
    """What joblib keeps of a call."""
    before = (0, 0, 0)
    for _ in range(2):
        for _ in range(CALLS):
            Parallel(n_jobs=2)(delayed(abs)(-k) for k in range(4))
        gc.collect()
        now = atexit._ncallbacks(), len(gc.get_objects()), soak_samples.given_out()
        callbacks, objects, size = ((after - first) / CALLS for first, after in zip(before, now, strict=True))
        before = now
    print(
        f"\njoblib, per call in processes: {callbacks:.0f} callbacks at exit, {objects:.0f} objects, {size:.0f} bytes"
    )


def main() -> None:
    if sys.argv[1:]:
        print_arenas() if sys.argv[1] == "arenas" else print_calls()
        return
    print("| resident, MB | first |" + " after threads |" * REPEATS + "\n" + "|---" * (REPEATS + 2) + "|")
    for setting in SETTINGS:
        words = " ".join(f"`{name}={value}`" for name, value in setting.items())
        print(f"| {words or 'default'} |", end="", flush=True)
        env = {**os.environ, **soak_samples.SETTINGS, **setting}
        subprocess.run([sys.executable, __file__, "arenas"], env=env, check=True)
    subprocess.run([sys.executable, __file__, "calls"], env={**os.environ, **soak_samples.SETTINGS}, check=True)


if __name__ == "__main__":
    main()
