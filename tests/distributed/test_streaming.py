"""UAI files cut while they are read."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import pytest

import mapmrf
from mapmrf import FactorGraph
from mapmrf.datasets import grid, random_graph
from mapmrf.distributed import streaming
from mapmrf.distributed.cutting import slabs, split
from mapmrf.distributed.streaming import stream_partition
from mapmrf.errors import FormatError

MODELS = {
    "grid": grid(7, 6, 2.0, seed=1),
    "mixed": random_graph(30, 40, states=(1, 4), arity=(2, 4), hard=0.1, seed=2),
    "constant": FactorGraph.from_tables([2, 3], [(), (1,), (1, 0)], [[1.5], [0, 1, 2], np.arange(6.0).reshape(3, 2)]),
}


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("suffix", [".uai", ".LG", ".uai.gz"])
@pytest.mark.parametrize("block", [1 << 20, 64])
def test_the_parts_are_those_of_the_model_that_is_read_whole(
    name: str, suffix: str, block: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streaming, "BLOCK", block)
    path = tmp_path / f"model{suffix}"
    mapmrf.write(MODELS[name], path)
    graph = mapmrf.read(path)
    folder = stream_partition(path, tmp_path / "parts", 2)
    assert (folder.counts.n_vars, folder.counts.n_factors) == (graph.n_vars, graph.n_factors)
    for part, other in zip(folder.read(range(2)), split(graph, slabs(graph.n_vars, 2), 2), strict=True):
        for array in ("var", "state_at", "factor", "halo_part", "neighbours", "send_ptr", "send"):
            assert np.array_equal(getattr(part, array), getattr(other, array)), array
        assert (part.n_own, part.n_inside, part.n_constrained) == (other.n_own, other.n_inside, other.n_constrained)
        assert np.allclose(part.graph.theta_v, other.graph.theta_v, rtol=1e-14, atol=1e-14)
        assert part.graph.constant == pytest.approx(other.graph.constant)
        for a in range(part.graph.n_factors):
            assert np.allclose(part.graph.table(a), other.graph.table(a), rtol=1e-14, atol=1e-14)
    assert sorted(path.name for path in (tmp_path / "parts").iterdir()) == [
        "part-00000.mrf", "part-00001.mrf", "parts.json",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("MRF 2 2 2 0", "expected MARKOV or BAYES"),
        ("MARKOV\n2 2 2 1\n2 0 1\n4 1 2 3", "it ends after 11 numbers, expected 12"),
        ("MARKOV\n2 2 2 1\n2 0 1\n3 1 2 3 4", "table of factor 0: found size 3, expected 4"),
        ("MARKOV\n2 2 2 1\n2 0 1\n4 1 2 x 4", "found 'x', expected a number"),
        ("MARKOV\n2 2 2 1\n2 0 5\n4 1 2 3 4", "out of range"),
        ("MARKOV\n2 2 2 1\n2 0 1\n4 1 2 -3 4", "table of factor 0: found -3, expected a finite potential"),
        ("MARKOV\n2 2 2 1\n4 0 1", "it ends within the scope of factor 0"),
        ("", "expected MARKOV or BAYES"),
    ],
)
def test_what_is_wrong_is_said_with_the_name_of_the_file(text: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "model.uai"
    path.write_text(text)
    with pytest.raises(FormatError, match=r"model\.uai: ") as caught:
        stream_partition(path, tmp_path / "parts", 1)
    assert message in str(caught.value)


def test_a_damaged_archive_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "model.uai.gz"
    path.write_bytes(gzip.compress(b"MARKOV\n1 2 0\n")[:-4])
    with pytest.raises(FormatError):
        stream_partition(path, tmp_path / "parts", 1)
