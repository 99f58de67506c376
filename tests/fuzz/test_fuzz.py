"""Files that are almost right end in a model or in one of our errors, soon and within the budget of bytes.

All readers together get 12 000 files. `MAPMRF_FUZZ=1e7 pytest tests/fuzz` runs more, `tests/fuzz/fuzzer.py` says what
came out.
"""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest
from fuzzer import Fuzzed, fuzz
from mutator import mutate
from targets import Target, targets

from mapmrf.errors import FormatError

N_INPUTS = float(os.environ.get("MAPMRF_FUZZ", "1.2e4"))
SEED = 0 if N_INPUTS <= 1e5 else random.SystemRandom().randrange(10**6)

NAMES = (
    "model.uai", "model.LG", "model.suai", "model.fg", "model.wcsp", "model.cfn", "model.bif", "model.xml", "model.erg",
    "model.coo", "model.qubo", "model.mc", "model.unknown", "model.uai.gz", "model.uai.bz2", "model.uai.xz", "model.h5",
    "e.evid", "s.MPE", "t.csv", "trace.csv", "plan.toml", "r.jsonl", "result.json", "proof.npz", "part-00000.mrf",
    "parts.json", "labels-00000.mrf", "run.mrf", "stream.uai", "checkpoint.json",
)  # fmt: skip


@pytest.fixture(scope="module")
def known(tmp_path_factory: pytest.TempPathFactory) -> list[Target]:
    return targets(tmp_path_factory.mktemp("fuzz"))


@pytest.mark.parametrize("name", NAMES)
def test_no_file_does_harm(name: str, known: list[Target], tmp_path: Path) -> None:
    mine = [target for target in known if target.name == name]
    if not mine and name == "model.h5":
        pytest.skip("h5py is not installed")
    assert mine
    everything = sum(target.share for target in known)
    for k, target in enumerate(mine):
        n = max(10, round(N_INPUTS * target.share / everything))
        found = fuzz(target, n, SEED, tmp_path / str(k))
        assert not found.harm, f"seed {SEED}: {found.text()}"
        assert found.read + found.refused == n
        assert found.refused > 0


def test_every_reader_is_fuzzed(known: list[Target]) -> None:
    from mapmrf.formats import suffixes

    fuzzed = {Path(target.name).suffix.lower() for target in known} | {"uai.lg"}
    twins = {".uai.lg": ".lg", ".bifxml": ".xml", ".xmlbif": ".xml", ".hdf5": ".h5", ".bqm": ".coo", ".rudy": ".mc"}
    missing = {suffix for suffix in suffixes() if twins.get(suffix, suffix) not in fuzzed}
    assert missing <= {".h5", ".hdf5"}
    assert {target.name for target in known} | {"model.h5"} == set(NAMES)


def test_the_mutator_makes_the_same_files_on_every_machine() -> None:
    one, two = (mutate(random.Random("x"), [b"MARKOV 2 2 2 0", b"MARKOV 1 3 0"]) for _ in range(2))
    assert one == two
    many = {mutate(random.Random(str(k)), [b"MARKOV 2 2 2 0"]) for k in range(200)}
    assert len(many) > 150


def _reader(found: object) -> Target:
    def read(path: Path) -> None:
        if b"7" not in path.read_bytes():
            raise FormatError("one line")
        if isinstance(found, BaseException):
            raise found
        if found == "memory":
            bytearray(200_000_000)
        if found == "hang":
            while True:
                pass

    return Target("x.txt", [b"1 2 3 4 5 6 8 9"], read)


@pytest.mark.parametrize("harm", [KeyError("x"), RecursionError(), FormatError("two\nlines"), "memory", "hang"])
def test_the_fuzzer_notices_harm(harm: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if harm == "memory" and not os.access("/proc/self/clear_refs", os.W_OK):
        pytest.skip("the system does not say how much memory a process has had")
    if harm == "hang":
        monkeypatch.setattr("fuzzer.PATIENCE", 0.2)
    found: Fuzzed = fuzz(_reader(harm), 40 if isinstance(harm, str) else 200, 1, tmp_path)
    assert found.harm and b"7" in min(found.examples.values())
