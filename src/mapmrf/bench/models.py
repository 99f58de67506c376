"""The models of a benchmark: files of the catalogue, own files, and look-alikes."""

from __future__ import annotations

import hashlib
import logging
import pickle
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, cast

import numpy as np

from mapmrf.arrays import Ints
from mapmrf.errors import OptionError
from mapmrf.model.graph import FactorGraph

if TYPE_CHECKING:
    from mapmrf.datasets.catalogue import Entry

log = logging.getLogger("mapmrf")


@dataclass(frozen=True)
class ModelRef:
    """A model that is read or generated on demand.

    Attributes
    ----------
    set, index, name
        Its set, its number there (``M1``), and its name.
    path
        The model file, or empty for a look-alike.
    number, scale
        Number of the look-alike in its family, and its scale.
    best
        Best known log potential, if any.
    digest
        Checksum of the content of the file, if known.
    checksum
        For a file of the catalogue ``right``, ``differs``, or ``unknown`` where the catalogue has no checksum.
    pickled
        File of a model that was in memory, instead of `path`.
    max_bytes
        Memory for reading the file in bytes, None for the memory of the machine.
    """

    set: str
    name: str
    path: str = ""
    index: str = ""
    number: int = 0
    scale: float = 1.0
    best: float | None = None
    digest: str = ""
    checksum: str = ""
    pickled: str = ""
    max_bytes: float | None = None

    @property
    def identity(self) -> str:
        """Equal for references to the same model."""
        if self.pickled:
            return f"{self.set}/{self.name}/{self.digest}"
        if not self.path:
            return f"{self.set}/{self.name}@{self.scale:g}"
        return f"{self.set}/{self.name}/{self.digest or Path(self.path).name}"

    def load(self) -> FactorGraph:
        """Read the file, or generate the look-alike."""
        if self.path:
            from mapmrf.formats import read

            return read(self.path, max_bytes=self.max_bytes)
        if self.pickled:  # make its arrays read-only again: kernels are compiled for those
            return replace(cast(FactorGraph, pickle.loads(Path(self.pickled).read_bytes())))
        from mapmrf.datasets.generate import lookalike

        return lookalike(self.set.removesuffix("-like"), self.number, scale=self.scale)


def of_set(which: str, data: str | Path | None = None) -> list[ModelRef]:
    """The models of one of the paper's sets whose files are present, with their checksums verified.

    A file with other content is treated as another model: identified by its content, without a best known value.
    """
    from mapmrf.datasets.catalogue import entries, locate

    return [_of_entry(entry, path) for entry in entries(which) if (path := locate(entry, data)) is not None]


def _of_entry(entry: Entry, path: Path) -> ModelRef:
    from mapmrf.datasets.catalogue import verify

    right = verify(entry, path)
    model = ModelRef(entry.set, entry.name, str(path), entry.index, best=entry.best, digest=entry.sha256 or "")
    if right is not False:
        return replace(model, checksum="unknown" if right is None else "right")
    log.warning("%s: differs from the catalogue, so its best known value and the paper's figures are not used", path)
    return replace(model, best=None, digest=_digest(path), checksum="differs")


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def like_set(which: str, most: int | None = None, scale: float = 1.0) -> list[ModelRef]:
    """Look-alikes of one of the paper's sets, all or the first few."""
    from mapmrf.datasets.generate import lookalike_name, n_lookalikes

    count = n_lookalikes(which) if most is None else min(most, n_lookalikes(which))
    return [
        ModelRef(f"{which}-like", lookalike_name(which, number), index=f"M{number}", number=number, scale=scale)
        for number in range(1, count + 1)
    ]


def from_files(paths: Iterable[str | Path]) -> list[ModelRef]:
    """The user's model files, identified by their content; equal names get the folder as prefix.

    Raises
    ------
    OptionError
        If a file does not exist.
    """
    files = [Path(path) for path in paths]
    for path in files:
        if not path.is_file():
            raise OptionError(f"{path}: no such file")
    count = Counter(_name(path) for path in files)
    found = []
    for path in files:
        name = _name(path) if count[_name(path)] == 1 else f"{path.resolve().parent.name}/{path.name}"
        found.append(ModelRef(set="own", name=name, path=str(path.resolve()), digest=_digest(path)))
    return found


def from_graphs(graphs: Mapping[str, FactorGraph], folder: str | Path) -> list[ModelRef]:
    """Models in memory by name, written to a folder for the workers, and identified by their content."""
    found = []
    for number, (name, graph) in enumerate(graphs.items()):
        path = Path(folder, f"{number}.pickle")
        path.write_bytes(pickle.dumps(replace(graph), protocol=5))
        found.append(ModelRef("own", name, digest=_digest(path), pickled=str(path)))
    return found


def _name(path: Path) -> str:
    """The name of a file without its suffixes of compression and format."""
    stem = path.stem if path.suffix in (".gz", ".bz2", ".xz") else path.name
    return Path(stem).stem


def lattice(graph: FactorGraph) -> tuple[int, int] | None:
    """Rows and columns of a model whose pairs are those of a grid in reading order; None for any other.

    There may also be pairs across opposite borders and along diagonals.

    Examples
    --------
    >>> from mapmrf.datasets import grid
    >>> lattice(grid(3, 5, wrap=True))
    (3, 5)
    """
    n = graph.n_vars
    if graph.n_factors == 0 or not np.all(graph.arity == 2):
        return None
    pairs = np.sort(graph.scope.reshape(-1, 2), axis=1)
    found = np.unique(pairs[:, 0] * n + pairs[:, 1])
    widths = [int(step) for step in np.unique(found % n - found // n) if step > 1 and n % step == 0 and step < n]
    return next(((n // width, width) for width in widths if _is_lattice(found, n // width, width)), None)


def _is_lattice(found: Ints, height: int, width: int) -> bool:
    """Return whether pairs, as first x n + second, include all those of a grid and only neighbours."""
    at = np.arange(height * width).reshape(height, width)

    def coded(first: Ints, second: Ints) -> Ints:
        return (np.minimum(first, second) * at.size + np.maximum(first, second)).ravel()

    needed = np.concatenate([coded(at[:, :-1], at[:, 1:]), coded(at[:-1], at[1:])])
    across = [coded(at[:, 0], at[:, -1]), coded(at[0], at[-1])]
    diagonal = [coded(at[:-1, :-1], at[1:, 1:]), coded(at[:-1, 1:], at[1:, :-1])]
    allowed = np.concatenate([needed, *across, *diagonal])
    return bool(np.isin(needed, found).all() and np.isin(found, allowed).all())
