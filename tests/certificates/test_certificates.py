"""Certificates: the checker against exact exhaustive search, what it refuses, and what it is made of."""

from __future__ import annotations

import contextlib
import dataclasses
import io
import itertools
import math
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import mapmrf
from exhaustive_truth import varied_recipe
from mapmrf.certificates import Certificate, Cycles, InvalidCertificate, verify
from mapmrf.datasets import grid
from mapmrf.errors import FormatError
from mapmrf.formats.files import spending
from refusals import refuses

Change = Callable[[Certificate], Certificate]


def exact_values(graph: mapmrf.FactorGraph) -> dict[tuple[int, ...], Fraction | None]:
    """The value of every labelling in fractions, None for -inf, from the arrays of the graph."""

    def value(labels: tuple[int, ...]) -> Fraction | None:
        terms = [(1.0, graph.constant)]
        terms += [(1.0, graph.theta_v[graph.var_ptr[i] + k]) for i, k in enumerate(labels)]
        for a in range(graph.n_factors):
            place = 0
            for i in graph.scope[graph.scope_ptr[a] : graph.scope_ptr[a + 1]].tolist():
                place = place * int(graph.card[i]) + labels[i]
            weight = 1.0 if graph.weight is None else graph.weight[a]
            terms.append((weight, graph.theta_t[graph.table_ptr[graph.table_of[a]] + place]))
        if any(number == -math.inf for _, number in terms):
            return None
        return sum((Fraction(float(w)) * Fraction(float(number)) for w, number in terms), Fraction(0))

    return {labels: value(labels) for labels in itertools.product(*map(range, graph.card.tolist()))}


def optimum(values: dict[tuple[int, ...], Fraction | None]) -> Fraction | None:
    return max((value for value in values.values() if value is not None), default=None)


def random_certificate(graph: mapmrf.FactorGraph, seed: int, ordered: bool) -> Certificate:
    random = np.random.default_rng(seed)
    lam = random.normal(size=int(graph.card[graph.scope].sum()))
    order = random.permutation(graph.n_vars) if ordered else np.zeros(0, dtype=np.int64)
    return Certificate(lam=lam, order=order)


@given(st.integers(0, 10_000), st.booleans(), st.booleans())
def test_any_messages_prove_a_bound_that_no_labelling_is_above(seed: int, exact: bool, ordered: bool) -> None:
    graph = varied_recipe(seed).graph()
    values = exact_values(graph)
    best = optimum(values)
    labels = list(values)[seed % len(values)]
    found = verify(graph, labels, random_certificate(graph, seed, ordered), exact=exact)
    assert found.value == values[labels]
    if best is not None:
        assert found.bound is not None and found.bound >= best
    if ordered:
        assert found.bound is None if best is None else 0 <= found.bound - best <= (0 if exact else Fraction(1, 10**8))


def frustrated() -> mapmrf.FactorGraph:
    """A triangle of which each pair prefers different labels: 2 at best, 3 by any messages."""
    unlike = [[0.0, 1.0], [1.0, 0.0]]
    return mapmrf.FactorGraph.from_tables([2, 2, 2], [(0, 1), (1, 2), (2, 0)], [unlike] * 3)


def triangle(weight: float = 1.0) -> Cycles:
    return Cycles(np.array([0, 3]), np.array([0, 1, 2]), np.array([1, 1, 1]), np.array([weight]))


@pytest.mark.parametrize("exact", [True, False])
def test_an_odd_cycle_closes_the_gap_that_messages_leave(exact: bool) -> None:
    graph = frustrated()
    without = verify(graph, [0, 1, 0], Certificate(), exact=exact)
    found = verify(graph, [0, 1, 0], Certificate(cycles=triangle()), exact=exact)
    assert without.bound == 3
    assert found.relaxation == 2
    assert found.bound is not None and 0 <= found.bound - 2 <= (0 if exact else Fraction(1, 10**9))


@given(st.integers(0, 10_000))
def test_any_multipliers_of_odd_cycles_prove_a_bound(seed: int) -> None:
    graph = grid(2, 3, coupling=2.0, seed=seed)
    ends = {frozenset(pair): a for a, pair in enumerate(graph.scope.reshape(-1, 2).tolist())}
    squares = [[(0, 1), (1, 4), (4, 3), (3, 0)], [(1, 2), (2, 5), (5, 4), (4, 1)]]
    factor = np.array([ends[frozenset(pair)] for square in squares for pair in square])
    random = np.random.default_rng(seed)
    odd = np.concatenate([random.permutation([1, 0, 0, 0]), random.permutation([1, 1, 1, 0])])
    cycles = Cycles(np.array([0, 4, 8]), factor, odd, random.exponential(size=2))
    best = optimum(exact_values(graph))
    for certificate in (
        Certificate(cycles=cycles),
        dataclasses.replace(random_certificate(graph, seed, False), cycles=cycles),
    ):
        found = verify(graph, np.zeros(6, dtype=int), certificate)
        assert best is not None and found.bound is not None and found.bound >= best


def cycles(**changed: object) -> Change:
    return lambda certificate: dataclasses.replace(
        certificate, cycles=dataclasses.replace(certificate.cycles, **changed)
    )


REFUSED: list[tuple[Change, str]] = [
    (lambda c: dataclasses.replace(c, bound=1.9), "claimed bound is 1.9, but the certificate proves 2.0"),
    (lambda c: dataclasses.replace(c, bound=-math.inf), "claimed bound is -inf"),
    (lambda c: dataclasses.replace(c, bound=math.nan), "nan"),
    (lambda c: dataclasses.replace(c, lam=np.ones(11)), "11 entries, expected 12"),
    (lambda c: dataclasses.replace(c, lam=np.full(12, np.inf)), "not finite"),
    (lambda c: dataclasses.replace(c, lam=np.arange(12.0)), "proves 6.0"),
    (lambda c: dataclasses.replace(c, order=np.array([0, 3])), "not one of 0 ... 2"),
    (lambda c: dataclasses.replace(c, order=np.array([0, 0])), "twice"),
    (cycles(weight=np.array([-1.0])), "at least 0"),
    (cycles(weight=np.array([np.nan])), "at least 0"),
    (cycles(weight=np.array([5.0])), "but the certificate proves"),
    (cycles(odd=np.array([1, 1, 0])), "even number"),
    (cycles(odd=np.array([1, 2, 0])), "0 or 1"),
    (cycles(factor=np.array([0, 1, 1])), "twice"),
    (cycles(factor=np.array([0, 1, 3])), "not one of 0 ... 2"),
    (cycles(factor=np.array([0, 1]), odd=np.array([1, 0]), ptr=np.array([0, 2])), "not closed"),
    (cycles(ptr=np.array([0, 2])), "differ in length"),
    (cycles(ptr=np.array([0, 3, 3]), weight=np.ones(2)), "empty"),
]  # fmt: skip


@pytest.mark.parametrize(("change", "reason"), REFUSED)
def test_tampered_certificates_are_refused(change: Change, reason: str) -> None:
    graph, labels = frustrated(), [0, 1, 0]
    good = Certificate(bound=2.0, lam=np.zeros(12), cycles=triangle())
    assert verify(graph, labels, good).optimal
    refuses(InvalidCertificate, reason, verify, graph, labels, change(good))


@given(
    st.lists(st.lists(st.tuples(st.integers(-1, 6), st.integers(-1, 2)), max_size=5), max_size=4),
    st.lists(st.floats(-1, 4), min_size=4, max_size=4),
    st.lists(st.floats(-3, 3), min_size=26, max_size=26),
)
def test_no_certificate_proves_what_is_not_so(pairs, weights, messages) -> None:
    graph = grid(2, 3, coupling=2.0, seed=4)
    places = [pair for cycle in pairs for pair in cycle]
    made = Cycles(
        np.cumsum([0, *map(len, pairs)]),
        np.array([a for a, _ in places], dtype=np.int64),
        np.array([odd for _, odd in places], dtype=np.int64),
        np.array(weights[: len(pairs)]),
    )
    best = optimum(exact_values(graph))
    certificate = Certificate(lam=np.array([*messages, 0.0, 0.5]), cycles=made)
    with contextlib.suppress(InvalidCertificate):
        found = verify(graph, np.zeros(6, dtype=int), certificate)
        assert best is not None and found.bound is not None and found.bound >= best


@given(st.integers(0, 2**31), st.integers(0, 255))
def test_damaged_files_are_refused_or_harmless(place: int, byte: int) -> None:
    data = bytearray(_npz())
    data[place % len(data)] = byte
    graph = frustrated()
    with tempfile.TemporaryDirectory() as folder, contextlib.suppress(InvalidCertificate):
        path = Path(folder, "proof.npz")
        path.write_bytes(data)
        found = verify(graph, [0, 1, 0], Certificate.read(path))
        assert found.bound is not None and found.bound >= 2


def test_cycles_through_other_factors_than_binary_pairs_are_refused() -> None:
    three = mapmrf.FactorGraph.from_tables([3, 3, 3], [(0, 1), (1, 2), (2, 0)], [np.zeros(9)] * 3)
    refuses(InvalidCertificate, "not binary", verify, three, [0, 0, 0], Certificate(cycles=triangle()))
    triple = mapmrf.FactorGraph.from_tables(
        [2, 2, 2], [(0, 1), (1, 2), (2, 0, 1)], [np.zeros(4), np.zeros(4), np.zeros(8)]
    )
    refuses(InvalidCertificate, "not a pair", verify, triple, [0, 0, 0], Certificate(cycles=triangle()))


def test_a_certificate_of_another_model_is_refused() -> None:
    one, other = (grid(12, 12, coupling=2.0, seed=seed) for seed in (1, 2))
    result = mapmrf.solve(one, certificate=True)
    assert result.certificate is not None
    with pytest.raises(InvalidCertificate):
        verify(other, result.labels, result.certificate)


def test_whole_potentials_have_whole_bounds() -> None:
    found = verify(frustrated(), [0, 1, 0], Certificate(cycles=triangle(0.75)))
    assert (found.relaxation, found.bound) == (Fraction(9, 4), 2)


@pytest.mark.parametrize("exact", [True, False])
@pytest.mark.parametrize("size", [1e300, 1e-300, 5e-324, 1.0])
def test_numbers_at_the_edge_of_floats_are_summed_exactly(size: float, exact: bool) -> None:
    graph = mapmrf.FactorGraph.from_tables([2, 2], [(0,), (1,), (0, 1)], [[0, size], [0, -size], [size, 0, 0, size]])
    found = verify(graph, [1, 1], Certificate(order=np.array([0, 1])), exact=exact)
    assert found.value == Fraction(size)
    assert found.bound is not None and found.bound >= Fraction(size)
    assert found.optimal or not exact


def test_an_infeasible_model_has_no_bound() -> None:
    never = np.full(4, -np.inf)
    graph = mapmrf.FactorGraph.from_tables([2, 2], [(0, 1)], [never])
    found = verify(graph, [0, 0], Certificate())
    assert (found.value, found.bound, found.optimal, found.relative_gap()) == (None, None, True, 0.0)
    nothing = mapmrf.FactorGraph.from_tables([2], [()], [[-np.inf]])
    certificate = mapmrf.certify(nothing, [0])
    assert certificate.bound == -math.inf
    assert verify(nothing, [0], certificate).bound is None


def test_files_give_back_the_same_certificate(tmp_path: Path) -> None:
    graph = grid(25, 25, coupling=2.0, seed=1)
    result = mapmrf.solve(graph, certificate=True)
    assert result.certificate is not None and result.certificate.cycles.n > 0
    result.certificate.write(tmp_path / "proof.npz")
    again = Certificate.read(tmp_path / "proof.npz")
    assert again.bound == result.certificate.bound
    assert np.array_equal(again.lam, result.certificate.lam)
    assert np.array_equal(again.cycles.factor, result.certificate.cycles.factor)
    assert verify(graph, result.labels, again) == verify(graph, result.labels, result.certificate)


def _arrays() -> dict[str, object]:
    """The arrays of a certificate without messages or cycles."""
    none = np.zeros(0, dtype=int)
    return {
        "version": 1, "bound": 3.0, "lam": np.zeros(0), "cycle_ptr": np.zeros(1, dtype=int), "cycle_factor": none,
        "cycle_odd": none, "cycle_weight": np.zeros(0), "order": none,
    }  # fmt: skip


def _npz(**changed: object) -> bytes:
    room = io.BytesIO()
    np.savez(room, **{name: np.asarray(value) for name, value in (_arrays() | changed).items() if value is not None})
    return room.getvalue()


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "not a certificate"),
        (b"PK\x03\x04 and so on", "not a certificate"),
        (_npz()[:-40], "not a certificate"),
        (_npz(version=3), "version 3, expected 1 to 2"),
        (_npz(version=2), "node_parent is missing"),
        (_npz(lam=None), "lam is missing"),
        (_npz(lam=np.array(["1"])), "lam is of type"),
        (_npz(lam=np.zeros((2, 2))), "2 dimensions"),
        (_npz(lam=np.array([{}, []], dtype=object)), "not a certificate"),
        (_npz(bound=np.zeros(1)), "bound is of type"),
    ],
)
def test_malformed_files_are_refused_in_one_line(data: bytes, reason: str, tmp_path: Path) -> None:
    path = tmp_path / "proof.npz"
    path.write_bytes(data)
    with pytest.raises(InvalidCertificate, match=reason) as error:
        Certificate.read(path)
    assert "\n" not in str(error.value)


def test_the_checker_loads_neither_numba_nor_any_solver(tmp_path: Path) -> None:
    mapmrf.write(frustrated(), tmp_path / "model.uai")
    (tmp_path / "answer.MPE").write_text("MPE\n3 0 1 0\n")
    Certificate(bound=2.0, cycles=triangle()).write(tmp_path / "proof.npz")
    program = (
        "import sys; from mapmrf.cli import main\n"
        "try: main(['verify', 'model.uai', 'answer.MPE', 'proof.npz'])\n"
        "except SystemExit as end: assert end.code == 0, end.code\n"
        "parts = ('certificates', 'formats', 'cli', 'compilation', 'constraints')\n"
        "allowed = tuple('mapmrf.' + part for part in parts)\n"
        "ground = {'arrays', 'errors', '_version', 'model', 'run', 'model.builders',"
        " 'model.factor_pool', 'model.graph', 'model.memory', 'model.model', 'model.names', 'model.summary',"
        " 'run.atomic_files', 'run.clock', 'run.interrupts', 'run.registry'}\n"
        "loaded = [name for name in sys.modules if name == 'numba' or name.startswith('mapmrf.')]\n"
        "print([name for name in loaded if not name.startswith(allowed) and name.split('.', 1)[-1] not in ground])\n"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


def test_an_archive_that_unpacks_to_very_much_is_refused_before_it_does(tmp_path: Path) -> None:
    path = tmp_path / "bomb.npz"
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(header, {"descr": "<f8", "fortran_order": False, "shape": (10**8,)})
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        with archive.open("lam.npy", "w") as file:
            file.write(header.getvalue() + bytes(10**6))
        archive.infolist()[0].file_size = 2**31  # as the directory of the archive says
    refuses(InvalidCertificate, "its arrays need 2147483648 bytes, expected at most 1073741824", Certificate.read, path)


def test_arrays_are_charged_and_missing_ones_are_missed_before_others_are_read(tmp_path: Path) -> None:
    path = tmp_path / "c.npz"
    np.savez(path, version=np.int64(2), lam=np.array([object()]))  # reading lam would be another error
    refuses(InvalidCertificate, "the array bound is missing", Certificate.read, path)
    path = tmp_path / "c.npz"
    Certificate(bound=1.0, lam=np.zeros(10_000)).write(path)
    with spending(50_000), pytest.raises(FormatError, match="its arrays: reading takes"):
        Certificate.read(path)
