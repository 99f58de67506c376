"""Solution files: labels in the layouts of the competitions, as a plain list, or inside a JSON result."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

import numpy as np
from numpy.typing import ArrayLike

from mapmrf.arrays import Ints
from mapmrf.errors import FormatError, GraphError, OptionError
from mapmrf.formats.files import AnyPath, compression, read_bytes, shown, whole_number, write_bytes
from mapmrf.model.builders import as_ints
from mapmrf.model.graph import FactorGraph

_BEGIN = b"-BEGIN-"
_HEADER = b"MPE\n"
_MOST_KEPT = 1 << 24
_TASKS = (b"MPE", b"MAP")
_STYLES = ("2014", "2010")
# Cardinality of a variable where only the number of variables is known.
_ANY = 2**62


def read_solution(path: AnyPath, model: FactorGraph | int) -> Ints:
    r"""Read the labels of a solution file of any of these kinds.

    * ``MPE``, then ``N x_0 x_1 ...`` (since 2014) or ``1 N x_0 x_1 ...`` (2010); of blocks separated by ``-BEGIN-``,
      the last complete one is used, so that the file of a killed program can be read; of several labellings in a block,
      as written by `write_solutions`, the first is used;
    * a plain list of labels, with or without their number before it;
    * JSON: a list of labels, or an object with ``"labels"`` such as `Result.to_json` returns; of a list of such
      objects, the first is used.

    Parameters
    ----------
    path
        The file, compressed or not.
    model
        The graph, to check the labels against its cardinalities, or just the number of variables.

    Examples
    --------
    >>> import pathlib, tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = pathlib.Path(folder, "model.uai.MPE")
    ...     _ = path.write_text("MPE\n3 0 0 0\n-BEGIN-\n3 1 1 0\n-BEGIN-\n3 1")
    ...     read_solution(path, 3).tolist()
    [1, 1, 0]
    """
    data = read_bytes(path)
    card = model.card if isinstance(model, FactorGraph) else np.full(model, _ANY)
    if data.lstrip()[:1] in (b"{", b"["):
        return _checked(path, _json_labels(path, data), card)
    if not data.endswith(_BEGIN):  # an incomplete marker at the very end
        cut = next((k for k in range(1, len(_BEGIN)) if data.endswith(_BEGIN[:k])), 0)
        data = data[: len(data) - cut]
    blocks = [block.split() for block in data.split(_BEGIN)]
    if data[-1:].strip() and len(blocks) > 1 and _may_go_on(blocks[-1], card):
        blocks.pop()
    for block in reversed(blocks):
        labels = _block_labels(block, len(card))
        if labels is not None:
            return _checked(path, labels, card)
    if len(blocks) == 1 and len(blocks[0]) == len(card) > 0 and blocks[0][0].upper() not in _TASKS:
        return _checked(path, blocks[0], card)
    start = " ".join(shown(token) for token in blocks[-1][:3]) or "nothing"
    raise FormatError(
        f"{path}: found {len(blocks[-1])} tokens that start with {start}, expected the labels of {len(card)} variables "
        f"('MPE', {len(card)}, then {len(card)} labels)"
    )


def write_solution(path: AnyPath, labels: ArrayLike, style: str = "2014") -> None:
    r"""Write labels, (n_vars,), as a ``.MPE`` file, in the layout used since 2014 or that of 2010.

    Examples
    --------
    >>> import pathlib, tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = pathlib.Path(folder, "model.uai.MPE")
    ...     write_solution(path, [1, 1, 0])
    ...     path.read_text()
    'MPE\n3 1 1 0\n'
    """
    write_bytes(path, _HEADER + _block(labels, _known_style(style)))


def write_solutions(path: AnyPath, labellings: Sequence[ArrayLike]) -> None:
    r"""Write several labellings, each (n_vars,), as a ``.MPE`` file in the layout of 2010: a number, then a line each.

    The best comes first.

    Examples
    --------
    >>> import pathlib, tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = pathlib.Path(folder, "model.uai.MPE")
    ...     write_solutions(path, [[1, 1, 0], [0, 1, 0]])
    ...     path.read_text(), read_solution(path, 3).tolist()
    ('MPE\n2\n3 1 1 0\n3 0 1 0\n', [1, 1, 0])
    """
    blocks = [_block(labels, "2014") for labels in labellings]
    write_bytes(path, _HEADER + f"{len(blocks)}\n".encode("ascii") + b"".join(blocks))


def read_solutions(path: AnyPath, model: FactorGraph | int) -> list[Ints]:
    r"""Read all labellings of a file written by `write_solutions`, or the one of any other solution file.

    Examples
    --------
    >>> import pathlib, tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = pathlib.Path(folder, "model.uai.MPE")
    ...     write_solutions(path, [[1, 1, 0], [0, 1, 0]])
    ...     [labels.tolist() for labels in read_solutions(path, 3)]
    [[1, 1, 0], [0, 1, 0]]
    """
    card = model.card if isinstance(model, FactorGraph) else np.full(model, _ANY)
    rows = _rows(read_bytes(path).split(), len(card))
    if len(rows) < 2:
        return [read_solution(path, model)]
    return [_checked(path, row, card) for row in rows]


def write_query_solution(path: AnyPath, variables: Sequence[int], labels: ArrayLike) -> None:
    r"""Write labels (n,) of n variables as a marginal MAP solution: ``MMAP``, their number, variables and labels.

    Examples
    --------
    >>> import pathlib, tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = pathlib.Path(folder, "model.uai.MMAP")
    ...     write_query_solution(path, [4, 2], [1, 0])
    ...     path.read_text()
    'MMAP\n2 4 1 2 0\n'
    """
    pairs = zip(variables, as_ints(labels, "labels").tolist(), strict=True)
    text = " ".join(f"{i} {k}" for i, k in pairs)
    write_bytes(path, f"MMAP\n{len(variables)} {text}".rstrip().encode("ascii") + b"\n")


class SolutionStream:
    r"""Context manager for a ``.MPE`` file to which ever better solutions are added while a solver runs.

    However the program is killed, the file ends with a complete block. Small blocks are appended, each by a single
    write. A kill may interrupt a write that spans many pages, so a large block is written to a new file that replaces
    the old one; superseded blocks are then dropped once the file is large.

    Parameters
    ----------
    path
        The file; its old content is dropped. It is never compressed.
    style
        ``"2014"`` or ``"2010"``.
    first : (n_vars,)
        Labels that the file holds from the moment it appears; None for an empty file.

    Examples
    --------
    >>> import pathlib, tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = pathlib.Path(folder, "model.uai.MPE")
    ...     with SolutionStream(path) as stream:
    ...         stream.add([0, 0])
    ...         stream.add([1, 0])
    ...     path.read_text()
    'MPE\n2 0 0\n-BEGIN-\n2 1 0\n'
    """

    def __init__(self, path: AnyPath, style: str = "2014", first: ArrayLike | None = None) -> None:
        self.path = Path(path)
        self.style = _known_style(style)
        self._before = _HEADER
        if compression(path):
            raise FormatError(f"{path}: a file that grows cannot be compressed, expected a name such as model.uai.MPE")
        if first is not None and (self.path.is_file() or not self.path.exists()):
            write_bytes(self.path, _HEADER + _block(first, style), keep=False)
            self._before = _BEGIN + b"\n"
            self._descriptor = self._open(0)
            return
        self._descriptor = self._open(os.O_CREAT | os.O_TRUNC)
        if first is not None:  # a pipe or a device
            self.add(first)

    def add(self, labels: ArrayLike) -> None:
        """Append a solution: labels (n_vars,).

        Examples
        --------
        >>> import pathlib, tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     with SolutionStream(pathlib.Path(folder, "model.uai.MPE")) as stream:
        ...         stream.add([1, 1, 0])
        ...     read_solution(stream.path, 3).tolist()
        [1, 1, 0]
        """
        block = _block(labels, self.style)
        try:
            if len(block) > 4096 and stat.S_ISREG(os.fstat(self._descriptor).st_mode):
                self._replace(block)
            else:
                rest = self._before + block  # in one write if possible; pipes and full disks may accept less
                while rest:
                    rest = rest[os.write(self._descriptor, rest) :]
        except OSError as error:
            raise FormatError(f"{self.path}: cannot write: {error.strerror}") from None
        self._before = _BEGIN + b"\n"

    def close(self) -> None:
        """Close the file; may be called more than once.

        Examples
        --------
        >>> import pathlib, tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     stream = SolutionStream(pathlib.Path(folder, "model.uai.MPE"))
        ...     stream.close()
        ...     stream.path.exists()
        True
        """
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def _open(self, flags: int) -> int:
        try:
            return os.open(self.path, os.O_WRONLY | os.O_APPEND | flags, 0o666)
        except OSError as error:
            raise FormatError(f"{self.path}: cannot write: {error.strerror}") from None

    def _replace(self, block: bytes) -> None:
        """Replace the file by one with the old blocks, unless there are many, and the new one."""
        keep = 0 < os.fstat(self._descriptor).st_size <= _MOST_KEPT
        before = self.path.read_bytes() + self._before if keep else _HEADER
        write_bytes(self.path, before + block, keep=False)
        self.close()
        self._descriptor = self._open(0)


def _known_style(style: str) -> str:
    if style not in _STYLES:
        raise OptionError(f"style={style!r}, expected one of {', '.join(_STYLES)}")
    return style


def _block(labels: ArrayLike, style: str) -> bytes:
    given = as_ints(labels, "labels")
    if given.ndim != 1:
        raise GraphError(f"labels have shape {given.shape}, expected one for each variable")
    numbers = given.tolist()
    text = " ".join(map(str, [len(numbers), *numbers])) + "\n"
    return (text if style == "2014" else "1\n" + text).encode("ascii")


def _block_labels(tokens: list[bytes], n_vars: int) -> list[bytes] | None:
    """The labels of a block; None if it is incomplete."""
    if tokens and tokens[0].upper() in _TASKS:
        tokens = tokens[1:]
    if len(tokens) == n_vars + 1 and tokens[0] == str(n_vars).encode():
        return tokens[1:]
    return next(iter(_rows(tokens, n_vars)), None)


def _rows(tokens: list[bytes], n_vars: int) -> list[list[bytes]]:
    """The labels of each line of a block in the layout of 2010; none if it is not in this layout, or incomplete."""
    if tokens and tokens[0].upper() in _TASKS:
        tokens = tokens[1:]
    count = whole_number(tokens[0]) if tokens else None
    if not count or len(tokens) != 1 + count * (n_vars + 1):
        return []
    rows = [tokens[begin : begin + n_vars + 1] for begin in range(1, len(tokens), n_vars + 1)]
    return [row[1:] for row in rows] if all(row[0] == str(n_vars).encode() for row in rows) else []


def _may_go_on(tokens: list[bytes], card: Ints) -> bool:
    """Return whether the last label of a block without a blank after it may be truncated, such as a 1 for 12."""
    label = whole_number(tokens[-1]) if tokens else None
    if not label or len(card) == 0:
        return False
    return label * 10 < int(card[-1]) < _ANY


def _json_labels(path: AnyPath, data: bytes) -> list[bytes]:
    try:
        content = json.loads(data)
        if isinstance(content, list) and content and isinstance(content[0], dict):
            content = content[0]
        labels = content["labels"] if isinstance(content, dict) else content
        return [str(label).encode() for label in labels]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise FormatError(
            f"{path}: not a JSON result with a list of labels ({type(error).__name__}: {error})"
        ) from None


def _checked(path: AnyPath, tokens: list[bytes], card: Ints) -> Ints:
    if len(tokens) != len(card):
        raise FormatError(f"{path}: found {len(tokens)} labels, expected one for each of the {len(card)} variables")
    labels = np.zeros(len(card), dtype=np.int64)
    for i, token in enumerate(tokens):
        label = whole_number(token)
        if label is None or label >= card[i]:
            legal = "a whole number" if card[i] == _ANY else f"0 to {card[i] - 1}"
            raise FormatError(f"{path}: label of variable {i}: found {shown(token)}, expected {legal}")
        labels[i] = label
    return labels
