"""What is fuzzed: readers of all files that may come from anyone, each with files to start from."""

from __future__ import annotations

import bz2
import gzip
import importlib.util
import io
import json
import lzma
import random
import zipfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import corpus
import numpy as np
from corpus import mutate

import mapmrf
from mapmrf.batch import read_rows
from mapmrf.bench.records import read_records, unpack_labels
from mapmrf.bench.run_list import read_plan
from mapmrf.certificates import Certificate, verify
from mapmrf.distributed.evaluation import join_labels
from mapmrf.distributed.loop import read_manifest
from mapmrf.distributed.parts import PartFolder, read_part
from mapmrf.distributed.streaming import stream_partition
from mapmrf.formats.evidence import read_evidence
from mapmrf.formats.solution import read_solution, read_solutions
from mapmrf.model.graph import FactorGraph
from mapmrf.run.result import read_trace
from mapmrf.run.state import ALIGNMENT, MAGIC, PREFIX

BUDGET = 4_000_000
"""Bytes that a model may take."""

Make = Callable[[random.Random, Sequence[bytes]], bytes]


@dataclass(frozen=True)
class Target:
    """A reader."""

    name: str  # of the file that it reads
    seeds: list[bytes]  # files to start from
    read: Callable[[Path], object]  # reads the file at a path, and looks at what it has got
    make: Make = mutate  # makes a file of these
    share: float = 1.0  # how often it is called, relative to others: some take milliseconds


def read_model(path: Path) -> None:
    """A model that is read can be evaluated, and is legal."""
    graph = mapmrf.read(path, memory_limit=BUDGET)
    check_graph(graph)


def check_graph(graph: FactorGraph) -> None:
    value = graph.value(np.zeros(graph.n_vars, dtype=np.int64))
    assert not np.isnan(value), "the value is not a number"
    assert not np.isnan(graph.theta_v).any() and not (graph.theta_v == np.inf).any()


# -- files with checksums or compression ------------------------------------------------------------------------------


def packed(pack: Callable[[bytes], bytes], unpack: Callable[[bytes], bytes]) -> Make:
    """Change a compressed file, or its content."""

    def make(rng: random.Random, seeds: Sequence[bytes]) -> bytes:
        if rng.random() < 0.5:
            return mutate(rng, seeds)
        return pack(mutate(rng, [unpack(seed) for seed in seeds]))

    return make


def sealed(rng: random.Random, seeds: Sequence[bytes]) -> bytes:
    """Change a file of arrays: as it is, or its header or an array with checksums to match."""
    if rng.random() < 0.2:
        return mutate(rng, seeds)
    data = rng.choice(seeds)
    _, length, _ = PREFIX.unpack(data[: PREFIX.size])
    head: dict[str, Any] = json.loads(data[PREFIX.size : PREFIX.size + length])
    body = bytearray(data[PREFIX.size + length :])
    for _ in range(rng.choice((0, 0, 1, 1, 2))):
        entry = rng.choice(head["arrays"])
        size = int(np.prod(entry["shape"])) * np.dtype(entry["type"]).itemsize
        if size:
            at = entry["at"] + rng.randrange(size)
            body[at] = rng.choice((0, 1, 2, 3, 127, 128, 255, body[at] ^ 1))
            entry["crc"] = zlib.crc32(body[entry["at"] : entry["at"] + size])
    text = json.dumps(head).encode()
    if rng.random() < 0.6:
        text = mutate(rng, [text])
    text += b" " * (-(PREFIX.size + len(text)) % ALIGNMENT)
    return PREFIX.pack(MAGIC, len(text), zlib.crc32(text)) + text + bytes(body)


def zipped(rng: random.Random, seeds: Sequence[bytes]) -> bytes:
    """Change an archive of arrays: as it is, or one of its members."""
    if rng.random() < 0.3:
        return mutate(rng, seeds)
    with zipfile.ZipFile(io.BytesIO(rng.choice(seeds))) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    name = rng.choice(list(members))
    if rng.random() < 0.3:
        members[name] = members[rng.choice(list(members))]
    elif rng.random() < 0.5:
        raw = np.load(io.BytesIO(members[name]))
        room = io.BytesIO()
        values = raw.copy().reshape(-1)
        if len(values):
            values[rng.randrange(len(values))] = rng.choice((0, 1, -1, 2, 3, 10**9, 2**62))
        np.save(room, values.reshape(raw.shape) if rng.random() < 0.8 else values[: rng.randrange(len(values) + 1)])
        members[name] = room.getvalue()
    else:
        members[name] = mutate(rng, [members[name]])
    room = io.BytesIO()
    with zipfile.ZipFile(room, "w") as archive:
        for member, data in members.items():
            if rng.random() < 0.98:
                archive.writestr(member, data)
    return room.getvalue()


# -- the readers ------------------------------------------------------------------------------------------------------


def _models() -> Iterator[Target]:
    written = {
        ".uai": (corpus.GRAPH,), ".LG": (corpus.PAIRS,), ".suai": (corpus.GRAPH,), ".fg": (corpus.GRAPH,),
        ".wcsp": (corpus.GRAPH,), ".cfn": (corpus.GRAPH,), ".bif": (corpus.NETWORK,), ".xml": (corpus.NETWORK,),
        ".erg": (corpus.NETWORK,), ".coo": (corpus.PAIRS,), ".qubo": (corpus.PAIRS,),
    }  # fmt: skip
    for suffix, texts in corpus.TEXTS.items():
        seeds = [text.encode() for text in texts] + corpus.written(suffix, *written.get(suffix, ()))
        yield Target(f"model{suffix}", seeds, read_model, share=0.6 if suffix == ".xml" else 1.0)
    everything = [text.encode() for texts in corpus.TEXTS.values() for text in texts]
    yield Target("model.unknown", everything, read_model, share=0.6)
    text = corpus.TEXTS[".uai"][0].encode()
    yield Target("model.uai.gz", [gzip.compress(text)], read_model, packed(gzip.compress, gzip.decompress), 0.2)
    yield Target("model.uai.bz2", [bz2.compress(text)], read_model, packed(bz2.compress, bz2.decompress), 0.2)
    yield Target("model.uai.xz", [lzma.compress(text)], read_model, packed(lzma.compress, lzma.decompress), 0.1)
    if importlib.util.find_spec("h5py"):
        yield Target("model.h5", corpus.opengm(), read_model, opengm_datasets, 0.1)


def opengm_datasets(rng: random.Random, seeds: Sequence[bytes]) -> bytes:
    """Change an HDF5 file: its bytes, or numbers in its datasets."""
    import h5py

    if rng.random() < 0.5:
        return mutate(rng, seeds)
    memory = io.BytesIO(rng.choice(seeds))
    with h5py.File(memory, "r+") as file:
        names: list[str] = []
        file.visititems(lambda name, item: names.append(name) if isinstance(item, h5py.Dataset) else None)
        for _ in range(rng.choice((1, 1, 2))):
            name = rng.choice(names)
            data = file[name][:]
            del file[name]
            if len(data) and rng.random() < 0.8:
                data[rng.randrange(len(data))] = rng.choice((0, 1, 2, 3, 5, 16001, 16006, 2**31, 2**40, 2**62, 2**63))
            elif rng.random() < 0.5:
                data = data[: rng.randrange(len(data) + 1)]
            elif rng.random() < 0.5:
                file.create_dataset(name, shape=(2**40,), chunks=(2**10,), dtype=data.dtype)
                continue
            file[name] = data
    return memory.getvalue()


def _read_records(path: Path) -> None:
    for record in read_records(path):
        if isinstance(record.get("labels"), str):
            unpack_labels(record["labels"])
    list(mapmrf.bench.Records.read(path))


def _others() -> Iterator[Target]:
    graph = corpus.GRAPH
    texts = {"e.evid": corpus.EVIDENCE, "s.MPE": corpus.SOLUTIONS, "t.csv": corpus.TABLE_ROWS}
    seeds = {name: [text.encode() for text in some] for name, some in texts.items()}
    yield Target("e.evid", seeds["e.evid"], lambda path: read_evidence(path, graph))
    yield Target("s.MPE", seeds["s.MPE"], lambda path: (read_solution(path, graph), read_solutions(path, 3)))
    yield Target("t.csv", seeds["t.csv"], lambda path: read_rows(path, graph))
    yield Target("trace.csv", [text.encode() for text in corpus.TRACES], read_trace)
    yield Target("plan.toml", [text.encode() for text in corpus.PLANS], read_plan, share=0.3)
    yield Target("r.jsonl", corpus.records(), _read_records, share=0.5)
    yield Target(
        "result.json",
        corpus.results(),
        lambda path: mapmrf.Result.from_json(path.read_bytes().decode("utf-8", "replace")),
    )


def _folders(folder: Path) -> Iterator[Target]:
    """Readers of files that the package writes into a folder."""
    (folder / "certificates").mkdir()
    (folder / "parts").mkdir()
    certificates = corpus.certificates(folder / "certificates")
    labels = mapmrf.solve(corpus.GRAPH).labels

    def check(path: Path) -> None:
        verify(corpus.GRAPH, labels, Certificate.read(path), exact=False)

    yield Target("proof.npz", certificates, check, zipped, 0.2)
    parts, manifests, by_part = corpus.parts(folder / "parts")
    yield Target("part-00000.mrf", parts, lambda path: check_graph(read_part(path).graph), sealed, 0.5)
    yield Target("parts.json", manifests, lambda path: PartFolder(path.parent))
    yield Target("labels-00000.mrf", by_part[:1], lambda path: join_labels(path.parent), sealed, 0.5)
    for chosen in (mapmrf.LSLP(max_iterations=40, lp_iterations=20), mapmrf.TRWS(max_iterations=40, tol=0.0)):

        def resume(path: Path, chosen: Any = chosen) -> None:
            mapmrf.solve(corpus.FRUSTRATED, chosen, checkpoint=path.parent, every=1e9, resume=True)

        checkpoint = corpus.checkpoint_of(folder / f"checkpoint-{chosen.name}", chosen)
        yield Target("run.mrf", [checkpoint.read_bytes()], resume, sealed, 0.02)
    texts = [text.encode() for text in corpus.TEXTS[".uai"][:2]]
    yield Target("stream.uai", texts, lambda path: stream_partition(path, path.parent / "parts", 2), share=0.05)
    manifest = json.dumps({"generation": 3, "origin": {}, "rested": 1.5, "trace": []}).encode()
    yield Target("checkpoint.json", [manifest], lambda path: read_manifest(path.parent))


def targets(folder: Path) -> list[Target]:
    """All readers; the folder is for files that are made on the way."""
    return [*_models(), *_others(), *_folders(folder)]
