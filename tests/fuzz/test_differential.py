"""What another program makes of a file is what we make of it, for files that are almost right and both can read."""

from __future__ import annotations

import io
import itertools
import random
import re
from pathlib import Path

import corpus
import numpy as np
import pytest
from mutator import MUTATIONS, change_number, replace_token

import mapmrf
from mapmrf.errors import MapMRFError
from mapmrf.model.graph import FactorGraph
from toulbar2_runs import toulbar2

NUMBERS = (replace_token, change_number)
ODD = re.compile(rb"\d_|\d[eE]|nan|\d\.(?!\d)|(?<!\d)\.\d|\+|\b0\d|\d{12}")
"""Numbers that not everybody reads."""


def near(rng: random.Random, texts: list[str]) -> bytes:
    """A file with some other numbers, sometimes with more changed than that."""
    seeds = [text.encode() for text in texts]
    data = rng.choice(seeds)
    for _ in range(rng.choice((0, 1, 2, 3))):
        data = rng.choice(NUMBERS if rng.random() < 0.8 else MUTATIONS)(rng, data, seeds)
    return data


def ours(path: Path, data: bytes) -> FactorGraph | None:
    path.write_bytes(data)
    try:
        return mapmrf.read(path, max_bytes=1e6)
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
    for k in range(60):
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


def test_h5py_finds_the_same_tables(tmp_path: Path) -> None:
    h5py = pytest.importorskip("h5py", reason="h5py is not installed")
    rng, compared = random.Random(3), 0
    (seed,) = corpus.written(".h5", corpus.GRAPH)
    for _ in range(60):
        memory = io.BytesIO(seed)
        with h5py.File(memory, "r+") as file:
            values = file["gm/function-id-16000/values"]
            values[rng.randrange(len(values))] = rng.choice((0.0, -3.5, 1e7, 2.25))
            if rng.random() < 0.3:
                factors = file["gm/factors"]
                factors[rng.randrange(len(factors))] = rng.choice((0, 1, 2))
            model = {name: file[f"gm/{name}"][:] for name in ("numbers-of-states", "factors")}
            indices, numbers = file["gm/function-id-16000/indices"][:].tolist(), values[:].tolist()
        graph = ours(tmp_path / "m.h5", memory.getvalue())
        if graph is None:
            continue
        compared += 1
        for labels in labellings(graph):
            energy = _energy(labels, model["factors"].tolist(), indices, numbers)
            assert graph.value(labels) == pytest.approx(-energy) or (energy == np.inf == -graph.value(labels))
    assert compared > 20


def _energy(labels: tuple[int, ...], factors: list[int], indices: list[int], numbers: list[float]) -> float:
    """The energy of a labelling, straight from the description of the format."""
    functions, at, first = [], 0, 0
    while at < len(indices):
        shape = indices[at + 1 : at + 1 + indices[at]]
        functions.append((shape, first))
        first += int(np.prod(shape))
        at += 1 + indices[at]
    total, at = 0.0, 0
    while at < len(factors):
        function, _, order = factors[at : at + 3]
        shape, first = functions[function]
        place = step = 0
        for k, i in enumerate(factors[at + 3 : at + 3 + order]):
            step = 1 if k == 0 else step * shape[k - 1]
            place += step * labels[i]
        total += numbers[first + place]
        at += 3 + order
    return total


def test_pgmpy_reads_the_same_networks(tmp_path: Path) -> None:
    reader = pytest.importorskip("pgmpy.readwrite", reason="pgmpy is not installed").BIFReader
    rng, compared = random.Random(4), 0
    text = corpus.TEXTS[".bif"][0].replace("default 0.5, 0.5;", "(a1) 0.5, 0.5;").replace(" // end", "")
    for _ in range(40):
        data = near(rng, [text])
        graph = ours(tmp_path / "m.bif", data)
        if graph is None or graph.names is None:
            continue
        try:
            network = reader(string=data.decode()).get_model()
            network.check_model()
        except Exception:  # what it raises for a file that it does not read is not ours to know
            continue
        compared += 1
        for labels in labellings(graph):
            states = dict(zip(graph.names.variables, labels, strict=True))
            product = 1.0
            for table in network.get_cpds():
                product *= table.values[tuple(states[name] for name in table.variables)]
            assert np.exp(graph.value(labels)) == pytest.approx(product)
    assert compared > 5


def test_toulbar2_finds_the_best_value_of_lists_of_tuples(tmp_path: Path) -> None:
    rng, n, top, least = random.Random(6), 17, 1000, []
    everything = (np.arange(2**n)[:, None] >> np.arange(n)) & 1
    paths = [tmp_path / f"m{k}.wcsp" for k in range(4)]
    for k in range(4):
        functions = [([i], 0, [([rng.randrange(2)], rng.randrange(1, 9))]) for i in range(n)]
        for default in ((0, 5), (5, top))[k % 2]:
            tuples = [([rng.randrange(2) for _ in range(n)], rng.choice((0, 2, 40, top))) for _ in range(4)]
            functions.append((rng.sample(range(n), n), default, tuples))
        paths[k].write_text(_wcsp([2] * n, functions, top))
        graph = mapmrf.read(paths[k])
        assert graph.n_factors == 0 and graph.n_constraints > 0
        costs = np.zeros(2**n)
        for scope, default, tuples in functions:
            mine = np.full(2**n, float(default))
            for states, cost in tuples:
                mine[(everything[:, scope] == states).all(axis=1)] = cost
            costs += np.where(mine >= top, np.inf, mine)
        some = [*np.argsort(costs)[:50].tolist(), *(rng.randrange(2**n) for _ in range(100))]
        assert [graph.value(everything[at]) for at in some] == pytest.approx((-costs[some]).tolist())
        least.append(costs.min())
    found = [(answer, cost) for answer, cost in zip(toulbar2(paths), least, strict=True) if answer != ""]
    assert found
    for answer, cost in found:
        assert cost == np.inf if answer is None else answer[1] == pytest.approx(cost)


def _wcsp(card: list[int], functions: list[tuple[list[int], int, list[tuple[list[int], int]]]], top: int) -> str:
    lines = [f"x {len(card)} {max(card)} {len(functions)} {top}", " ".join(map(str, card))]
    for scope, default, tuples in functions:
        lines.append(f"{len(scope)} {' '.join(map(str, scope))} {default} {len(tuples)}")
        lines += [f"{' '.join(map(str, states))} {cost}" for states, cost in tuples]
    return "\n".join(lines) + "\n"
