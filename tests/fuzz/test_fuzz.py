"""Files that are almost right end in a model or in one of our errors, soon and within the budget of bytes.

What another program makes of such a file is what we make of it, if both can read it.
All readers together get 12 000 files. `MAPMRF_FUZZ=1e7 pytest tests/fuzz` runs more, `tests/fuzz/fuzzer.py` says what
came out.
"""

from __future__ import annotations

import io
import itertools
import os
import random
import re
from pathlib import Path

import corpus
import numpy as np
import pytest
from corpus import MUTATIONS, change_number, mutate, replace_token
from fuzzer import Fuzzed, fuzz
from targets import Target, targets

import mapmrf
from mapmrf.errors import FormatError, MapMRFError
from mapmrf.formats import suffixes
from mapmrf.model.graph import FactorGraph
from toulbar2_runs import toulbar2

N_INPUTS = float(os.environ.get("MAPMRF_FUZZ", "1.2e4"))
SEED = 0 if N_INPUTS <= 1e5 else random.SystemRandom().randrange(10**6)

NAMES = (
    "model.uai", "model.LG", "model.suai", "model.fg", "model.wcsp", "model.cfn", "model.bif", "model.xml", "model.erg",
    "model.coo", "model.qubo", "model.qpbo", "model.mc", "model.cnf", "model.wcnf", "model.opb", "model.wbo",
    "model.unknown", "model.uai.gz", "model.uai.bz2", "model.uai.xz", "model.h5",
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
    fuzzed = {Path(target.name).suffix.lower() for target in known} | {"uai.lg"}
    twins = {".uai.lg": ".lg", ".bifxml": ".xml", ".xmlbif": ".xml", ".hdf5": ".h5", ".bqm": ".coo", ".rudy": ".mc"}
    missing = {suffix for suffix in suffixes() if twins.get(suffix, suffix) not in fuzzed}
    assert missing <= {".h5", ".hdf5", ".lp", ".mps"}  # h5py may not be installed, and programs are only written
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


# -- other programs ---------------------------------------------------------------------------------------------------

NEAR = (replace_token, change_number)
ODD = re.compile(rb"\d_|\d[eE]|nan|\d\.(?!\d)|(?<!\d)\.\d|\+|\b0\d|\d{12}")
"""Numbers that not everybody reads."""


def near(rng: random.Random, texts: list[str]) -> bytes:
    """A file with some other numbers, sometimes with more changed than that."""
    seeds = [text.encode() for text in texts]
    data = rng.choice(seeds)
    for _ in range(rng.choice((0, 1, 2, 3))):
        data = rng.choice(NEAR if rng.random() < 0.8 else MUTATIONS)(rng, data, seeds)
    return data


def ours(path: Path, data: bytes) -> FactorGraph | None:
    path.write_bytes(data)
    try:
        return mapmrf.read(path, memory_limit=1e6)
    except MapMRFError:
        return None


def labellings(graph: FactorGraph) -> list[tuple[int, ...]]:
    return list(itertools.islice(itertools.product(*map(range, graph.card.tolist())), 40))


def test_dimod_reads_the_same_energies(tmp_path: Path) -> None:
    coo = pytest.importorskip("dimod.serialization.coo", reason="dimod is not installed")
    line = re.compile(rb"(# vartype=(SPIN|BINARY)|\d+ \d+ -?\d+(\.\d+)?)")
    rng, compared = random.Random(1), 0
    for _ in range(400):
        data = near(rng, ["# vartype=SPIN\n0 0 0.5\n0 1 -1\n1 2 2.25\n", "# vartype=BINARY\n0 0 1\n0 2 -2.5\n1 1 3\n"])
        graph = ours(tmp_path / "m.coo", data)
        # dimod passes over lines that it does not understand; these are compared where there are none.
        if graph is None or graph.n_vars > 6 or not all(line.fullmatch(row) for row in data.splitlines()):
            continue
        try:
            other = coo.load(io.StringIO(data.decode()))
        except ValueError:
            continue
        if other.num_variables == 0:
            continue
        low = -1 if other.vartype.name == "SPIN" else 0
        for labels in labellings(graph):
            sample = {i: 1 if labels[i] else low for i in other.variables}
            assert graph.value(labels) == pytest.approx(-other.energy(sample)), data
        compared += 1
    assert compared > 50


def test_toulbar2_finds_the_same_optimum(tmp_path: Path) -> None:
    rng, read = random.Random(2), []
    for k in range(90):
        suffix = (".wcsp", ".cfn")[k % 2]
        texts = [text for text in corpus.TEXTS[suffix] if not re.search("type|sgcc|mapmrf:", text)]
        data = near(rng, texts if k > 3 else texts[:1])
        graph = ours(tmp_path / f"{k}{suffix}", data)
        if graph is None or graph.n_constraints or graph.n_vars > 5 or graph.card.max(initial=0) > 8:
            continue
        if not re.fullmatch(rb"[\x20-\x7e\n]*", data) or ODD.search(data.split(b"functions")[-1]):
            continue  # toulbar2 stops in the middle of such a number and goes on with the rest
        read.append((tmp_path / f"{k}{suffix}", graph, data))
    found = toulbar2([path for path, _, _ in read])
    for (_, graph, data), answer in zip(read, found, strict=True):
        best = max(graph.value(labels) for labels in itertools.product(*map(range, graph.card.tolist())))
        if answer != "":
            assert (answer is None) == (best == -np.inf), data
            assert answer is None or (1.0 if b'">' in data else -1.0) * answer[1] == pytest.approx(best, abs=1e-3), data
    assert sum(answer != "" for answer in found) >= 10
