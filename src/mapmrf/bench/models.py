"""The models of a benchmark: files of the catalogue, own files, and look-alikes."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from mapmrf.errors import OptionError
from mapmrf.graph import FactorGraph


@dataclass(frozen=True)
class ModelRef:
    """A model that is read, or made up, where it is needed.

    Attributes
    ----------
    set, index, name
        The set it belongs to, its number there (``M1``), and its name.
    path
        The model file, or empty for a look-alike.
    number, scale
        Which look-alike of its family, and how large.
    best
        Best known log potential, if any.
    digest
        Of the content of the file where the catalogue knows it.
    """

    set: str
    name: str
    path: str = ""
    index: str = ""
    number: int = 0
    scale: float = 1.0
    best: float | None = None
    digest: str = ""

    @property
    def identity(self) -> str:
        """What makes two references the same model."""
        if not self.path:
            return f"{self.set}/{self.name}@{self.scale:g}"
        return f"{self.set}/{self.name}/{self.digest or Path(self.path).name}"

    def load(self) -> FactorGraph:
        """Read the file, or make the look-alike up."""
        if self.path:
            from mapmrf.formats import read

            return read(self.path)
        from mapmrf.datasets.lookalikes import lookalike

        return lookalike(self.set.removesuffix("-like"), self.number, scale=self.scale)


def of_set(which: str, data: str | Path | None = None) -> list[ModelRef]:
    """The models of a set of the paper whose files are there."""
    from mapmrf.datasets.catalogue import entries, locate

    found = []
    for entry in entries(which):
        path = locate(entry, data)
        if path is not None:
            digest = entry.sha256 or ""
            found.append(ModelRef(which, entry.name, str(path), entry.index, best=entry.best, digest=digest))
    return found


def like_set(which: str, most: int | None = None, scale: float = 1.0) -> list[ModelRef]:
    """Look-alikes of a set of the paper, all or the first few."""
    from mapmrf.datasets.lookalikes import lookalike_name, n_lookalikes

    count = n_lookalikes(which) if most is None else min(most, n_lookalikes(which))
    return [
        ModelRef(f"{which}-like", lookalike_name(which, number), index=f"M{number}", number=number, scale=scale)
        for number in range(1, count + 1)
    ]


def from_files(paths: Iterable[str | Path]) -> list[ModelRef]:
    """Model files of one's own, known by their content; equal names get their folder's in front.

    Raises
    ------
    OptionError
        If a file is not there.
    """
    files = [Path(path) for path in paths]
    for path in files:
        if not path.is_file():
            raise OptionError(f"{path}: there is no such file")
    count = Counter(_name(path) for path in files)
    found = []
    for path in files:
        name = _name(path) if count[_name(path)] == 1 else f"{path.resolve().parent.name}/{path.name}"
        digest = hashlib.sha256(path.read_bytes()).hexdigest()
        found.append(ModelRef(set="own", name=name, path=str(path.resolve()), digest=digest))
    return found


def _name(path: Path) -> str:
    """The name of a file without the suffixes of compression and format."""
    stem = path.stem if path.suffix in (".gz", ".bz2", ".xz") else path.name
    return Path(stem).stem


def lattice(graph: FactorGraph) -> tuple[int, int] | None:
    """Rows and columns of a model whose pairs are those of a grid in reading order; None for any other."""
    n = graph.n_vars
    if graph.n_factors == 0 or not np.all(graph.arity == 2):
        return None
    step = np.abs(np.diff(graph.scope.reshape(-1, 2), axis=1)).ravel()
    steps, counts = np.unique(step, return_counts=True)
    down = [int(s) for s, count in zip(steps, counts, strict=True) if s > 1 and n % s == 0 and count >= n - s]
    if not down or steps[0] != 1:
        return None
    width = down[0]
    return (n // width, width) if n // width > 1 and counts[0] >= n - n // width else None
