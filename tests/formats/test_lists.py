"""Factors with one value but for a few tuples have no table, however many variables they have."""

from __future__ import annotations

import math
import random
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
from format_models import write_opengm

import mapmrf
from mapmrf import FormatError
from mapmrf.constraints import as_tables
from mapmrf.constraints.as_tables import rewrite
from mapmrf.formats import lists as lists_of
from mapmrf.model.graph import FactorGraph
from refusals import refuses
from toulbar2_runs import toulbar2

FORBIDDEN = 100


class Sparse(NamedTuple):
    """A function: its variables, its default cost, and tuples with costs; from 100 on a cost is forbidden."""

    scope: list[int]
    default: int
    tuples: list[tuple[list[int], int]]

    def cost(self, labels: tuple[int, ...]) -> float:
        found: float = self.default
        for states, cost in self.tuples:  # of repeated ones the last counts
            if states == [labels[i] for i in self.scope]:
                found = cost
        return math.inf if found >= FORBIDDEN else found


def wcsp(card: list[int], functions: list[Sparse]) -> str:
    text = f"x {len(card)} {max(card)} {len(functions)} {FORBIDDEN}\n{' '.join(map(str, card))}\n"
    for scope, default, tuples in functions:
        text += " ".join(map(str, [len(scope), *scope, default, len(tuples)])) + "\n"
        text += "".join(" ".join(map(str, [*states, cost])) + "\n" for states, cost in tuples)
    return text


def dense(card: list[int], functions: list[Sparse]) -> FactorGraph:
    shapes = [[card[i] for i in each.scope] for each in functions]
    tables = [np.full(shape, float(each.default)) for shape, each in zip(shapes, functions, strict=True)]
    for table, each in zip(tables, functions, strict=True):
        for states, cost in each.tuples:
            table[tuple(states)] = cost
        table[table >= FORBIDDEN] = np.inf
    return FactorGraph.from_energies(card, [each.scope for each in functions], tables)


def some_model(rng: random.Random, most: int = 5) -> tuple[list[int], list[Sparse]]:
    card = [rng.randrange(1, 4) for _ in range(rng.randrange(2, most + 1))]
    functions = []
    for _ in range(rng.randrange(1, 4)):
        scope = rng.sample(range(len(card)), rng.randrange(1, len(card) + 1))
        costs = [rng.choice((0, 1, 2, 5, FORBIDDEN)) for _ in range(rng.randrange(6))]
        tuples = [([rng.randrange(card[i]) for i in scope], cost) for cost in costs]
        functions.append(Sparse(scope, rng.choice((0, 3, FORBIDDEN)), tuples))
    return card, functions


@pytest.fixture
def always_lists(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lists_of, "LARGE", 1)
    monkeypatch.setattr(lists_of, "MOVE_BYTES", 0.0)


@pytest.mark.usefixtures("always_lists")
@pytest.mark.parametrize("suffix", [".wcsp", ".suai", ".fg"])
def test_every_labelling_has_the_value_that_the_file_says(suffix: str, tmp_path: Path) -> None:
    rng, constrained, path = random.Random(3), 0, tmp_path / f"m{suffix}"
    for k in range(120):
        card, functions = some_model(rng)
        if suffix == ".wcsp" and k % 2:
            path.write_text(wcsp(card, functions))
        else:
            mapmrf.write(dense(card, functions), path)
        graph = mapmrf.read(path)
        assert len(graph.theta_t) == graph.n_tables  # of one entry each
        constrained += graph.n_constraints > 0
        for labels in np.ndindex(*card):
            expected = -sum(each.cost(labels) for each in functions)
            assert graph.value(labels) == pytest.approx(expected, abs=1e-9), path.read_text()
    assert constrained > 30


def test_names_and_numbers_of_a_cfn_list_mean_states(tmp_path: Path) -> None:
    n = 20
    variables = " ".join(f"v{i}: [no yes]" for i in range(n))
    tuples = f"{'yes ' * n} 1.5 {'0 ' * n} inf"
    function = f"f: {{scope: [{' '.join(map(str, range(n)))}] defaultcost: 3 costs: [{tuples}]}}"
    path = tmp_path / "m.cfn"
    path.write_text(f'{{problem: {{name: x mustbe: "<inf"}} variables: {{{variables}}} functions: {{{function}}}}}')
    graph = mapmrf.read(path)
    assert graph.n_constraints == 1
    assert [graph.value([k] * n) for k in (0, 1)] == [-np.inf, -1.5] and graph.value([0, *[1] * (n - 1)]) == -3


@pytest.mark.usefixtures("always_lists")
@pytest.mark.parametrize("method", ["auto", "lp", "wcsp", "branch"])
def test_the_optimum_is_that_of_the_tables(method: str, tmp_path: Path) -> None:
    rng = random.Random(5)
    for _ in range(6):
        card, functions = some_model(rng)
        path = tmp_path / "m.wcsp"
        path.write_text(wcsp(card, functions))
        best = max(-sum(each.cost(labels) for each in functions) for labels in np.ndindex(*card))
        result = mapmrf.solve(path, method)
        if best == -math.inf:
            assert result.status == "infeasible"
        elif method == "lp":  # several of them make a relaxation that may not be tight
            assert result.value <= best + 1e-6 and result.bound >= best - 1e-6
            assert result.status == "converged" or result.value == pytest.approx(best)
        else:
            assert result.value == pytest.approx(best) and result.status == "optimal"


def test_long_lists_of_what_is_allowed_become_a_variable_of_tuples(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    rng, n, path = random.Random(8), 17, tmp_path / "m.wcsp"
    tuples = [([rng.randrange(2) for _ in range(n)], rng.randrange(5)) for _ in range(30)]
    path.write_text(wcsp([2] * n, [Sparse(list(range(n)), FORBIDDEN, tuples), Sparse([3], 0, [([0], 2)])]))
    graph = mapmrf.read(path)
    chain = rewrite(graph).graph
    monkeypatch.setattr(as_tables, "LARGE", 0)
    chosen = rewrite(graph)
    assert chosen.graph.n_vars == n + 1 and len(chosen.graph.theta_t) < len(chain.theta_t)
    for states in [states for states, _ in tuples] + [[rng.randrange(2) for _ in range(n)] for _ in range(30)]:
        lifted = chosen.lift(np.array(states))
        assert chosen.graph.value(lifted) == graph.value(states) and chosen.project(lifted).tolist() == states
    assert mapmrf.solve(chosen.graph).value == mapmrf.solve(chain).value == mapmrf.solve(graph).value


def test_a_forbidden_default_of_many_variables_leaves_its_tuples(tmp_path: Path) -> None:
    n = 40
    tuples = [([1] * n, 2), ([0] * n, 1), ([0, 1] * (n // 2), 4)]
    path = tmp_path / "m.wcsp"
    path.write_text(wcsp([2] * n, [Sparse(list(range(n)), FORBIDDEN, tuples), Sparse([0], 0, [([0], 9)])]))
    graph = mapmrf.read(path)
    assert graph.n_factors == 0 and graph.value([1] * n) == -2 and graph.value([0, 1] * (n // 2)) == -13
    rng = np.random.default_rng(0)
    for labels in rng.integers(0, 2, (200, n)):
        assert graph.value(labels) == -np.inf
    for states, _ in tuples:  # one step away from each of them
        for i in range(n):
            assert graph.value([*states[:i], 1 - states[i], *states[i + 1 :]]) == -np.inf


def test_a_factor_may_have_more_variables_than_an_array_has_dimensions(tmp_path: Path) -> None:
    n = 100
    path = tmp_path / "m.wcsp"
    path.write_text(wcsp([2] * n, [Sparse(list(range(n)), 3, [([1] * n, 1), ([0] * n, FORBIDDEN)])]))
    graph = mapmrf.read(path)
    assert graph.value([1] * n) == pytest.approx(-1) and graph.value([0] * n) == -np.inf
    assert graph.value([0, *[1] * (n - 1)]) == pytest.approx(-3)


TWOS, MANY = "2 " * 28, " ".join(map(str, range(28)))
VARIABLES = " ".join(f"v{i}: 2" for i in range(28))
SMALL = {
    ".wcsp": f"x 28 2 1 100 {TWOS} 28 {MANY} 1 0",
    ".suai": f"SPARSEMARKOV 28 {TWOS} 1 28 {MANY} 0.5 0",
    ".cfn": f'{{problem: {{name: x mustbe: "<9"}} variables: {{{VARIABLES}}} functions: '
    f"{{f: {{scope: [{MANY}] defaultcost: 1 costs: []}}}}}}",
    ".fg": f"1\n\n28\n{MANY}\n{TWOS}\n1\n0 1\n",
}
READ = """
import sys
from pathlib import Path
import mapmrf
from mapmrf.formats import suffixes
suffixes()
def peak():
    return 1024 * int(Path("/proc/self/status").read_text().split("VmHWM:")[1].split()[0])
before = peak()
graph = mapmrf.read(sys.argv[1])
print(graph.n_vars, peak() - before)
"""


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="looks into /proc")
@pytest.mark.parametrize("suffix", SMALL)
def test_a_small_file_takes_little_memory(suffix: str, tmp_path: Path) -> None:
    path = tmp_path / f"m{suffix}"
    path.write_text(SMALL[suffix])
    command = [sys.executable, "-c", READ, str(path)]
    n_vars, grown = map(int, subprocess.run(command, capture_output=True, text=True, check=True).stdout.split())
    assert n_vars == 28 and grown < 20e6
    mapmrf.read(path, memory_limit=1e6)


def test_lists_and_tables_beside_them_are_charged(tmp_path: Path) -> None:
    n, rng = 60, random.Random(1)
    tuples = [([rng.randrange(2) for _ in range(n)], 1) for _ in range(200)]
    path = tmp_path / "m.wcsp"
    path.write_text(wcsp([2] * n, [Sparse(list(range(n)), FORBIDDEN, tuples)]))
    with pytest.raises(FormatError, match=r"its lists of tuples \(factor 0 needs 2.4e\+04 moves\): reading takes"):
        mapmrf.read(path, memory_limit=2e6)
    graph = mapmrf.read(path, memory_limit=4e6)
    assert all(graph.value(states) == -1 for states, _ in tuples)
    table = Sparse([0, 1], 2, [([k, k], 0) for k in range(400)])  # a Potts factor stays one
    path.write_text(wcsp([400, 400, *[2] * n], [table, Sparse(list(range(2, n + 2)), 1, [([0] * n, 3)])]))
    refuses(FormatError, "its tables", mapmrf.read, path, memory_limit=4e6)
    graph = mapmrf.read(path, memory_limit=1e7)
    assert graph.n_factors == 1 and graph.value([3, 3, *[0] * n]) == -3 and graph.value([3, 4, *[1] * n]) == -3


def test_dense_lists_are_tables(tmp_path: Path) -> None:
    n, rng = 17, random.Random(1)
    tuples = [([rng.randrange(2) for _ in range(n)], rng.randrange(5)) for _ in range(2000)]
    path = tmp_path / "m.wcsp"
    path.write_text(wcsp([2] * n, [Sparse(list(range(n)), 7, tuples)]))
    graph = mapmrf.read(path)
    assert graph.n_factors == 1 and graph.n_constraints == 0


def test_evidence_and_lists(tmp_path: Path) -> None:
    n = 30
    path = tmp_path / "m.wcsp"
    path.write_text(wcsp([2] * n, [Sparse(list(range(n)), 5, [([1] * n, 1), ([1, 0] * (n // 2), 8)])]))
    graph = mapmrf.read(path, evidence={i: 1 for i in range(0, n, 2)})
    assert graph.value([1] * n) == -1 and graph.value([1, 0] * (n // 2)) == -8
    assert mapmrf.solve(graph).value == -1


def _opengm(path: Path, kind: int, shape: list[int], indices: list[int], values: list[float]) -> FactorGraph:
    return mapmrf.read(write_opengm(path, kind, shape, indices, values), memory_limit=2e6)


def test_functions_of_opengm_that_stay_lists(tmp_path: Path) -> None:
    path, shape = tmp_path / "m.h5", [3] * 20
    potts = _opengm(path, 16007, shape, [20, *shape], [1.0, 4.0])
    assert potts.value([2] * 20) == -1 and potts.value([0, *[2] * 19]) == -4
    constant = _opengm(path, 16008, shape, [20, *shape], [2.5])
    assert constant.value([1] * 20) == -2.5 and constant.n_constraints == 0
    sparse = _opengm(path, 16001, shape, [20, *shape, 2, 1, 3**20 - 1], [0.5, 7.0, 8.0])
    assert sparse.value([1, *[0] * 19]) == -7 and sparse.value([2] * 20) == -8 and sparse.value([1] * 20) == -0.5


@pytest.mark.usefixtures("always_lists")
@pytest.mark.parametrize("values", ["potential", "log", "cost"])
def test_lists_are_written_as_lists(values: str, tmp_path: Path) -> None:
    rng, path, copy = random.Random(7), tmp_path / "m.wcsp", tmp_path / "m.suai"
    for _ in range(30):
        card, functions = some_model(rng)
        path.write_text(wcsp(card, functions))
        graph = mapmrf.read(path)
        mapmrf.write(graph, copy, values=values)
        again = mapmrf.read(copy, values=values)
        for labels in np.ndindex(*card):
            assert again.value(labels) == pytest.approx(graph.value(labels), abs=1e-9)


def test_what_is_no_list_of_tuples_is_not_written(tmp_path: Path) -> None:
    graph, path = FactorGraph.from_tables([2] * 15, [], []), tmp_path / "m.suai"
    parity = graph.with_constraints([mapmrf.constraints.xor(range(15), 1)])
    refuses(FormatError, r"constraint 0 \(xor\) is not a list of at most 10000 tuples", mapmrf.write, parity, path)
    moves = graph.with_constraints([mapmrf.constraints.regular(range(15), [(0, 0, 0), (0, 1, 0, 2.0)])])
    refuses(FormatError, r"constraint 0 \(regular\) is not a list", mapmrf.write, moves, path)
    graph = FactorGraph.from_tables([2] * 4, [], [])
    mapmrf.write(graph.with_constraints([mapmrf.constraints.xor(range(4), 1)]), path)
    again = mapmrf.read(path)
    assert [again.value(x) for x in np.ndindex(2, 2, 2, 2)] == [
        0 if sum(x) % 2 else -np.inf for x in np.ndindex(2, 2, 2, 2)
    ]
    dear = graph.with_constraints([mapmrf.constraints.at_most_k(range(4), 3, penalty=1e5)])
    refuses(FormatError, "does not fit as a potential", mapmrf.write, dear, tmp_path / "m.suai")
    mapmrf.write(dear, tmp_path / "m.suai", values="log")
    assert mapmrf.read(tmp_path / "m.suai", values="log").value([1] * 4) == -1e5


def test_toulbar2_finds_the_best_value_of_lists_of_tuples(tmp_path: Path) -> None:
    rng, n, least = random.Random(6), 17, []
    everything = (np.arange(2**n)[:, None] >> np.arange(n)) & 1
    paths = [tmp_path / f"m{k}.wcsp" for k in range(4)]
    for k in range(4):
        functions = [Sparse([i], 0, [([rng.randrange(2)], rng.randrange(1, 9))]) for i in range(n)]
        for default in ((0, 5), (5, FORBIDDEN))[k % 2]:
            tuples = [([rng.randrange(2) for _ in range(n)], rng.choice((0, 2, 40, FORBIDDEN))) for _ in range(4)]
            functions.append(Sparse(rng.sample(range(n), n), default, tuples))
        paths[k].write_text(wcsp([2] * n, functions))
        graph = mapmrf.read(paths[k])
        assert graph.n_factors == 0 and graph.n_constraints > 0
        costs = np.zeros(2**n)
        for scope, default, tuples in functions:
            mine = np.full(2**n, float(default))
            for states, cost in tuples:
                mine[(everything[:, scope] == states).all(axis=1)] = cost
            costs += np.where(mine >= FORBIDDEN, np.inf, mine)
        some = [*np.argsort(costs)[:50].tolist(), *(rng.randrange(2**n) for _ in range(100))]
        assert [graph.value(everything[at]) for at in some] == pytest.approx((-costs[some]).tolist())
        least.append(costs.min())
    found = [(answer, cost) for answer, cost in zip(toulbar2(paths), least, strict=True) if answer != ""]
    assert found
    for answer, cost in found:
        assert cost == np.inf if answer is None else answer[1] == pytest.approx(cost)
