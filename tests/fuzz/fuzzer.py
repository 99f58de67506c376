"""Run a reader on many files that are almost right: it must return or raise one of our errors, soon and in few bytes.

``python tests/fuzz/fuzzer.py --inputs 1e7`` runs all of them; ``--only .wcsp --seed 3`` one, with other files; and
``--minutes 45`` goes on with other files until the time is over.
"""

from __future__ import annotations

import argparse
import logging
import random
import signal
import sys
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType

from targets import BUDGET, Target, targets

from mapmrf.errors import MapMRFError

PATIENCE = 20.0
"""Seconds of processor time after which a reader of a tiny file hangs."""
CHUNK = 500
"""Files between two looks at the memory."""
LONGEST = 2000
"""Bytes of a file that are printed."""
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

    def take(self, other: Fuzzed) -> None:
        """Add what another run has found."""
        self.read, self.refused = self.read + other.read, self.refused + other.refused
        self.seconds, self.slowest = self.seconds + other.seconds, max(self.slowest, other.slowest)
        self.harm += other.harm
        self.examples = other.examples | self.examples

    def text(self) -> str:
        each = 1e6 * self.seconds / max(1, self.read + self.refused)
        line = f"{self.name:18} {self.read:9} read {self.refused:9} refused {each:7.0f} us each"
        return "\n".join([line, *(f"    {n} x {what}: {shown(self.examples[what])}" for what, n in self.harm.items())])


def shown(data: bytes) -> str:
    """A file in a line; of a long one, which a seed makes again, the beginning."""
    return repr(data) if len(data) <= LONGEST else f"{data[:LONGEST]!r}... ({len(data)} bytes)"


@contextmanager
def alarm() -> Iterator[None]:
    def ring(number: int, frame: FrameType | None) -> None:
        raise Hang

    before = signal.signal(signal.SIGPROF, ring)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


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
    try:
        signal.setitimer(signal.ITIMER_PROF, PATIENCE)
        target.read(path)
        signal.setitimer(signal.ITIMER_PROF, 0)
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
    signal.setitimer(signal.ITIMER_PROF, 0)
    found.slowest = max(found.slowest, time.perf_counter() - began)


def main() -> int:
    """Run all readers, or some."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--inputs", type=float, default=1e5, help="files in all, or in a round")
    parser.add_argument("--only", default="", help="part of the name of the file")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--minutes", type=float, default=0.0, help="go on in rounds, a seed each, until this is over")
    options = parser.parse_args()
    logging.getLogger("mapmrf").addHandler(logging.NullHandler())
    warnings.simplefilter("error")
    began, found, seed = time.monotonic(), dict[int, Fuzzed](), options.seed
    with tempfile.TemporaryDirectory() as folder:
        all_of_them = targets(Path(folder))
        while True:
            run_all(all_of_them, options, seed, Path(folder), found)
            seed += 1
            n = sum(each.read + each.refused for each in found.values())
            harm = sum(sum(each.harm.values()) for each in found.values())
            seconds = sum(each.seconds for each in found.values())
            print(f"{n} files in {seconds:.0f} s, {harm} did harm", flush=True)
            if time.monotonic() - began >= 60.0 * options.minutes:
                break
    if options.minutes:
        print("\n".join(each.text() for each in found.values()), flush=True)
    return min(harm, 1)


def run_all(
    all_of_them: list[Target], options: argparse.Namespace, seed: int, folder: Path, total: dict[int, Fuzzed]
) -> None:
    """A round of all readers, added to what was found before."""
    shares = sum(target.share for target in all_of_them)
    for k, target in enumerate(all_of_them):
        if options.only not in target.name:
            continue
        n = max(1, round(options.inputs * target.share / shares))
        found = fuzz(target, n, seed, folder / str(k))
        total.setdefault(k, Fuzzed(target.name)).take(found)
        if found.harm or not options.minutes:
            print(found.text(), flush=True)


if __name__ == "__main__":
    sys.exit(main())
