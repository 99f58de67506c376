"""The catalogue of the paper's models: names, files, checksums and best known values.

It does not contain the models: put the files into a folder by hand, or use `mapmrf.datasets.download`.
"""

from __future__ import annotations

import csv
import hashlib
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from pathlib import Path

import numpy as np

from mapmrf.compilation.store import user_folder
from mapmrf.errors import FormatError, UnknownName
from mapmrf.model.graph import FactorGraph

SUFFIXES = (".gz", "", ".bz2", ".xz")  # compression suffixes of a model's `.uai` file, in search order


@dataclass(frozen=True)
class ModelSet:
    """A set of models used in the paper.

    Attributes
    ----------
    name
        Name in this package, such as ``seg-2``.
    folder
        Subfolder of its files in a data folder.
    n_models
        Number of models in the paper; the catalogue may list fewer by name.
    source
        Description and publisher of the models.
    page
        Web page of the models, for those without an individual download address.

    Examples
    --------
    >>> sets()["grids"].source
    'PIC-2011 Grids'
    """

    name: str
    folder: str
    n_models: int
    source: str
    page: str


_PIC = "http://www.cs.huji.ac.il/project/PASCAL/"
_OPENGM = "http://hciweb2.iwr.uni-heidelberg.de/opengm/"

_SETS = (
    ModelSet("seg-2", "segmentation2", 50, "PIC-2011 Segmentation, two labels", _PIC),
    ModelSet("seg-21", "segmentation21", 50, "PIC-2011 Segmentation, 21 labels", _PIC),
    ModelSet("scene", "scene", 715, "OpenGM 2 scene-decomposition, converted to UAI", _OPENGM),
    ModelSet("grids", "grids", 21, "PIC-2011 Grids", _PIC),
    ModelSet("protein", "protein", 7, "PIC-2011 ProteinProtein", _PIC),
)


@dataclass(frozen=True)
class Entry:
    """A model of the catalogue.

    Attributes
    ----------
    set, index, name
        Its set, its number in the set (``M1``), and its name: the file name without suffixes.
    file
        Path of its file in a data folder; another compression, or none, is fine.
    sha256
        Checksum of the uncompressed content, or None if it is not known.
    best
        Largest known log potential of a labelling, or None.
    best_status
        Status of `best`: ``optimal (...)`` if proven, with the solver in parentheses.
    source
        Description and publisher of the model.
    url
        Address of the file, or of an archive that contains it; empty if none is known.

    Examples
    --------
    >>> entry = entries("protein")[0]
    >>> entry.set, entry.index, entry.file
    ('protein', 'M1', 'protein/didNotconverge1.uai.gz')
    """

    set: str
    index: str
    name: str
    file: str
    sha256: str | None
    best: float | None
    best_status: str
    source: str
    url: str


def sets() -> dict[str, ModelSet]:
    """The sets of the paper by name, in its order.

    Examples
    --------
    >>> {name: of.n_models for name, of in sets().items()}
    {'seg-2': 50, 'seg-21': 50, 'scene': 715, 'grids': 21, 'protein': 7}
    """
    return {of.name: of for of in _SETS}


def model_set(which: str) -> ModelSet:
    known = sets()
    if which not in known:
        raise UnknownName(f"no set is named {which!r}, expected one of {', '.join(known)}")
    return known[which]


@cache
def entries(which: str) -> tuple[Entry, ...]:
    """The models of a set that are listed by name, in the order of their numbers.

    Examples
    --------
    >>> first = entries("grids")[0]
    >>> first.index, first.name, first.best, first.best_status
    ('M1', 'grid20x20.f10', 3015.7447, 'optimal (frontier DP)')
    """
    source = model_set(which).source
    return tuple(
        Entry(
            **{name: row[name] for name in ("set", "index", "name", "file", "best_status", "url")},
            sha256=row["sha256"] or None,
            best=float(row["best"]) if row["best"] else None,
            source=source,
        )
        for row in rows("catalogue", "")
        if row["set"] == which
    )


# -- files -----------------------------------------------------------------------------------------------------------


def data_folders(data: str | os.PathLike[str] | None = None) -> tuple[Path, ...]:
    """Folders searched for models: the given one, else those of MAPMRF_DATA, else one in the user's cache.

    MAPMRF_DATA may name several folders, separated as in PATH. Downloads go to the first one.

    Examples
    --------
    >>> [folder.name for folder in data_folders("models")]
    ['models']
    """
    if data is not None:
        return (Path(data),)
    named = [folder for folder in os.environ.get("MAPMRF_DATA", "").split(os.pathsep) if folder]
    return tuple(Path(folder) for folder in named) or (user_folder(),)


def plain_file(entry: Entry) -> str:
    """Path of an entry's file in a data folder, without a compression suffix."""
    return entry.file.removesuffix(".gz")


def locate(entry: Entry, data: str | os.PathLike[str] | None = None) -> Path | None:
    """Path of an entry's file, compressed or not, or None if it is in none of the `data_folders`.

    Examples
    --------
    >>> import pathlib, tempfile
    >>> entry = entries("grids")[0]
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     print(locate(entry, folder))
    ...     path = pathlib.Path(folder, "grids", f"{entry.name}.uai")
    ...     path.parent.mkdir()
    ...     path.touch()
    ...     locate(entry, folder) == path
    None
    True
    """
    return next((path for path in _places(entry, data) if path.is_file()), None)


def _places(entry: Entry, data: str | os.PathLike[str] | None) -> Iterator[Path]:
    """Possible paths of the file: under its published name, or under that of the model."""
    published = plain_file(entry)
    named = f"{model_set(entry.set).folder}/{entry.name}.uai"
    for folder in data_folders(data):
        for name in dict.fromkeys((published, named)):
            for suffix in SUFFIXES:
                yield folder / f"{name}{suffix}"


def verify(entry: Entry, path: str | os.PathLike[str]) -> bool | None:
    """Return whether the uncompressed content of a file matches an entry; None if no checksum is known.

    False for a file that cannot be read or decompressed.

    Examples
    --------
    >>> import pathlib, tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = pathlib.Path(folder, "model.uai")
    ...     _ = path.write_text("MARKOV 0 0")
    ...     verify(entries("grids")[0], path)  # some other model
    False
    """
    from mapmrf.formats.files import read_bytes

    if entry.sha256 is None:
        return None
    try:
        return matches(entry, read_bytes(path))
    except FormatError:
        return False


def matches(entry: Entry, content: bytes) -> bool:
    """Return whether uncompressed content matches an entry's checksum, if known."""
    return entry.sha256 is None or hashlib.sha256(content).hexdigest() == entry.sha256


# -- The paper's statistics of a set of models (its C1 to C7), recomputed from files ----------------------------------
# The paper counts only factors on two or more variables: unary potentials are neither factors nor edges there.
# Every column is the mean over the models of a set.


@dataclass(frozen=True)
class Statistics:
    """A row of the paper's table."""

    models: int  # number of models (C1)
    # variables, factors, edges: variables, factors on two or more of them, and (variable, factor) pairs (C2 to C4)
    variables: float
    factors: float
    edges: float
    factor_size: float  # variables of a factor (C5)
    # variable_states, factor_states: states of a variable, and configurations of a factor (C6, C7)
    variable_states: float
    factor_states: float


def model_statistics(graph: FactorGraph) -> Statistics:
    sizes = np.diff(graph.table_ptr)[graph.table_of]
    return Statistics(
        models=1,
        variables=graph.n_vars,
        factors=graph.n_factors,
        edges=graph.n_edges,
        factor_size=_mean(graph.arity),
        variable_states=_mean(graph.card),
        factor_states=_mean(sizes),
    )


def mean_statistics(models: Iterable[Statistics]) -> Statistics | None:
    """The row of a set: the mean over its models; None if there are none."""
    found = [list(vars(model).values())[1:] for model in models]
    if not found:
        return None
    return Statistics(len(found), *(_mean(column) for column in zip(*found, strict=True)))


def paper_statistics(which: str) -> Statistics:
    row = next(row for row in rows("dataset_statistics") if row["dataset"] == SETS[which])
    models, *means = (row[name] for name in Statistics.__dataclass_fields__)
    return Statistics(int(models), *map(float, means))


def _mean(values: Sequence[float] | np.ndarray) -> float:
    return float(np.mean(values)) if len(values) else 0.0


# -- The paper's figures: log potentials, iterations, seconds and solution types, by method and model or set ----------


COLUMNS = {
    "lp": "LP-LP",
    "branch": "DAOOPT",
    "mplp_c": "MPLP-C",
    "icm": "ICM",
    "bp": "BP",
    "trbp": "TRBP",
    "dd_sg": "DD-SG",
    "trws": "TRWS",
    "adsal": "ADSal",
    "psdd": "PSDD",
    "ad3": "AD3",
    "l2box": "l2-Box",
    "lslp": "LS-LP",
}
"""The paper's names of the methods, in the order of its tables."""

SETS = {"seg-2": "Seg-2", "seg-21": "Seg-21", "scene": "Scene", "grids": "Grids", "protein": "Protein"}
"""The paper's names of the sets of models."""


@cache
def rows(table: str, folder: str = "paper") -> tuple[dict[str, str], ...]:
    """The rows of one of the paper's tables, such as ``grids_logpot``, or of the catalogue."""
    text = files("mapmrf.datasets").joinpath(folder, f"{table}.csv").read_text(encoding="utf-8")
    return tuple(csv.DictReader(text.splitlines()))


def model_figure(which: str, model: str, method: str, measure: str = "logpot") -> float | None:
    """The paper's figure for a method on one model; None if it reports none."""
    if which not in ("grids", "protein"):
        return None
    table = f"{which}_logpot" if measure == "logpot" else f"{which}_runtime"
    return _find(table, method, {"model": model, "measure": measure})


def set_figure(which: str, method: str, measure: str = "logpot", stat: str = "mean") -> float | None:
    """The paper's figure for a method over a set (Seg-2, Seg-21, Scene): mean or std of a measure."""
    table = f"segmentation_scene_{'logpot' if measure == 'logpot' else 'runtime'}"
    return _find(table, method, {"dataset": SETS[which], "measure": measure, "stat": stat})


def model_kind(which: str, model: str, method: str) -> str | None:
    """Kind of a method's solution of one model, as reported in the paper; None if it reports none."""
    if which not in ("grids", "protein"):
        return None
    return _paper_entry("solution_types", method, {"dataset": SETS[which], "model": model})


def set_kinds(which: str, method: str) -> str | None:
    """Number of solutions of each kind over a set (Seg-2, Seg-21, Scene), as reported in the paper."""
    return _paper_entry("solution_types", method, {"dataset": SETS[which]})


def _find(table: str, method: str, wanted: dict[str, str]) -> float | None:
    text = _paper_entry(table, method, wanted)
    return None if text is None else float(text)


def _paper_entry(table: str, method: str, wanted: dict[str, str]) -> str | None:
    """The entry of a method's column in the row that matches all `wanted` values that the table has."""
    column = COLUMNS.get(method, "")
    for row in rows(table):
        if all(row.get(key, value) == value for key, value in wanted.items()):
            return row.get(column) or None
    return None
