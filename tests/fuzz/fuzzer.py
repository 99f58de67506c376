"""Run a reader on many files that are almost right: it must return or raise one of our errors, soon and in few bytes.

``python tests/fuzz/fuzzer.py --inputs 1e7`` runs all of them; ``--only .wcsp --seed 3`` one, with other files.
"""

from __future__ import annotations

import argparse
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType

from targets import BUDGET, Target, targets

from mapmrf.errors import MapMRFError

PATIENCE = 20.0
"""Seconds after which a reader of a tiny file hangs."""
CHUNK = 500
"""Files between two looks at the memory."""
ROOM = 48_000_000
"""Bytes beyond the budget that a process may grow by, for what libraries load and keep."""


class Hang(BaseException):
    """A reader does not come to an end; no `except Exception` of a reader may hide it."""


@dataclass
class Fuzzed:
    """What came out: files that were read, files that were refused, and those that did harm."""

    name: str
    read: int = 0
    refused: int = 0
    harm: Counter[str] = field(default_factory=Counter)
    examples: dict[str, bytes] = field(default_factory=dict)
    slowest: float = 0.0
    seconds: float = 0.0

    def note(self, what: str, data: bytes) -> None:
        self.harm[what] += 1
        if what not in self.examples or len(data) < len(self.examples[what]):
            self.examples[what] = data

    def text(self) -> str:
        each = 1e6 * self.seconds / max(1, self.read + self.refused)
        line = f"{self.name:18} {self.read:9} read {self.refused:9} refused {each:7.0f} us each"
        return "\n".join([line, *(f"    {n} x {what}: {self.examples[what]!r}" for what, n in self.harm.items())])


@contextmanager
def alarm() -> Iterator[None]:
    def ring(number: int, frame: FrameType | None) -> None:
        raise Hang

    before = signal.signal(signal.SIGALRM, ring)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def _peak() -> int | None:
    """The most memory that this process has had since `_forget_peak`; None where the system does not say."""
    try:
        status = Path("/proc/self/status").read_text()
        return 1024 * int(status.split("VmHWM:")[1].split()[0])
    except (OSError, IndexError):
        return None


def _forget_peak() -> int | None:
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        return None
    return _peak()


def fuzz(target: Target, n_inputs: int, seed: int, folder: Path) -> Fuzzed:
    """Call a reader so many times."""
    found = Fuzzed(target.name)
    folder.mkdir(exist_ok=True)
    rng = random.Random(f"{target.name} {seed}")
    began = time.process_time()
    with alarm():
        for begin in range(0, n_inputs, CHUNK):
            some = [target.make(rng, target.seeds) for _ in range(min(CHUNK, n_inputs - begin))]
            if _grows(found, target, folder, some):
                # Which of them? Each once more.
                for data in some:
                    if _grows(Fuzzed(""), target, folder, [data]):
                        found.note("memory", data)
    found.seconds = time.process_time() - began
    return found


def _grows(found: Fuzzed, target: Target, folder: Path, some: list[bytes]) -> bool:
    """Read some files; whether that took more memory than it may."""
    before = _forget_peak()
    for data in some:
        _one(found, target, folder, data)
    after = _peak()
    return before is not None and after is not None and after - before > BUDGET + ROOM


def _one(found: Fuzzed, target: Target, folder: Path, data: bytes) -> None:
    path = folder / target.name
    path.write_bytes(data)
    began = time.perf_counter()
    signal.setitimer(signal.ITIMER_REAL, PATIENCE)
    try:
        target.read(path)
        found.read += 1
    except MapMRFError as error:
        found.refused += 1
        if "\n" in str(error) or not str(error):
            found.note(f"{type(error).__name__} that is not one line", data)
    except Hang:
        found.note("hang", data)
    except Exception as error:
        trace = error.__traceback__
        while trace is not None and trace.tb_next is not None:
            trace = trace.tb_next
        place = f"{Path(trace.tb_frame.f_code.co_filename).name}:{trace.tb_lineno}" if trace else ""
        found.note(f"{type(error).__name__} at {place}", data)
    signal.setitimer(signal.ITIMER_REAL, 0)
    found.slowest = max(found.slowest, time.perf_counter() - began)


def main() -> int:
    """Run all readers, or some."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--inputs", type=float, default=1e5, help="files in all")
    parser.add_argument("--only", default="", help="part of the name of the file")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    import logging
    import warnings

    logging.getLogger("mapmrf").addHandler(logging.NullHandler())
    warnings.simplefilter("error")
    harm = 0
    with tempfile.TemporaryDirectory() as folder:
        all_of_them = targets(Path(folder))
        shares = sum(target.share for target in all_of_them)
        for k, target in enumerate(all_of_them):
            if options.only in target.name:
                n = max(1, round(options.inputs * target.share / shares))
                found = fuzz(target, n, options.seed, Path(folder, str(k)))
                print(found.text(), flush=True)
                harm += sum(found.harm.values())
    return min(harm, 1)


if __name__ == "__main__":
    sys.exit(main())
