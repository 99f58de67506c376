"""Evidence files: observed variables, in the three layouts used by the competitions, or by name in JSON."""

from __future__ import annotations

import json
import logging
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import cast

from mapmrf.errors import FormatError, GraphError, MapMRFError
from mapmrf.formats.files import (
    AnyPath,
    read_bytes,
    shown,
    whole_number,
    without_c_comments,
    without_comments,
    write_bytes,
)
from mapmrf.model.graph import FactorGraph
from mapmrf.model.names import index_of

Evidence = dict[int, int]

_log = logging.getLogger("mapmrf")


def read_evidence(path: AnyPath, graph: FactorGraph) -> list[Evidence]:
    """Read an evidence file: a mapping variable -> state for every sample, usually just one.

    The layouts are ``k  v x  v x ...`` (2006, 2008, since 2014) and ``m`` followed by m samples ``n  v x  v x ...``
    (2010, 2011). The number of tokens decides; if both fit, the first that is valid for the model. An
    empty file, or just 0, is a sample without observations. Comments are ``/* ... */``, ``# ...`` and lines
    ``c ...``. A JSON object ``{variable: state, ...}``, or a list of
    such objects, has variables and states by name or index.

    Parameters
    ----------
    path
        The file, compressed or not.
    graph
        The model that the evidence belongs to.

    Raises
    ------
    FormatError
        If no layout fits, a variable is repeated, or a variable or state does not exist.

    Examples
    --------
    >>> import pathlib, tempfile
    >>> import mapmrf
    >>> graph = mapmrf.FactorGraph.from_tables([2, 3], [], [])
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = pathlib.Path(folder, "model.uai.evid")
    ...     _ = path.write_text("1 1 2")
    ...     read_evidence(path, graph)
    [{1: 2}]
    """
    data = read_bytes(path).removeprefix(b"\xef\xbb\xbf")
    if data.lstrip()[:1] in (b"{", b"["):
        return _named_samples(path, data, graph)
    tokens = []
    text = without_c_comments(path, without_comments(path, data))
    for place, token in enumerate(text.split(), start=1):
        number = whole_number(token)
        if number is None:
            raise FormatError(f"{path}: token {place}: found {shown(token)}, expected a whole number of at least 0")
        tokens.append(number)
    if tokens in ([], [0]):
        return [{}]
    one_sample = [(1, tokens[0])] if len(tokens) == 1 + 2 * tokens[0] else None
    layouts = [layout for layout in (one_sample, _many_samples(tokens)) if layout is not None]
    if not layouts:
        k = tokens[0]
        raise FormatError(
            f"{path}: found {len(tokens)} tokens that start with {k}, expected {1 + 2 * k} for one sample "
            f"(k, then k pairs of variable and state) or {k} complete samples"
        )
    errors = []
    for places in layouts:
        try:
            return [_sample(path, tokens, begin, n, graph) for begin, n in places]
        except FormatError as error:
            errors.append(error)
    raise errors[0]


def observed(graph: FactorGraph, evidence: AnyPath | Mapping[int | str, int | str]) -> FactorGraph:
    """Fix the variables of a mapping, of a text such as ``rain=yes,wet=1``, or of the first sample of a file."""
    if isinstance(evidence, Mapping):
        return graph.condition(evidence)
    given = pairs_in(evidence)
    if given is not None:
        return graph.condition(cast(Mapping[int | str, int | str | bool], _located(given, graph)))
    samples = read_evidence(evidence, graph)
    if len(samples) > 1:
        _log.warning("%s: %d samples of evidence, only the first is used", evidence, len(samples))
    return graph.condition(cast(Mapping[int | str, int | str | bool], samples[0]))


def pairs_in(evidence: AnyPath) -> list[tuple[str, str]] | None:
    """The variables and states of a text that is no file, ``variable=state`` once or several times, or None."""
    text = os.fspath(evidence)
    if "=" not in text or Path(text).exists():
        return None
    pairs = [part.strip().partition("=") for part in text.split(",") if part.strip()]
    wrong = next((name for name, equals, state in pairs if not (name and equals and state)), None)
    if wrong is not None:
        raise FormatError(f"evidence {text!r}: found {wrong!r}, expected variable=state, or the name of a file")
    return [(name.strip(), state.strip()) for name, _, state in pairs]


def _located(given: list[tuple[str, str]], graph: FactorGraph) -> Evidence:
    """Variables and states, each by its name or, if there is none like it, by its index."""
    found: Evidence = {}
    known = graph.names.place if graph.names is not None else {}
    for name, word in given:
        try:
            i, _ = graph.locate(int(name) if name not in known and name.isdigit() else name, 0)
            states = graph.names.states[i] if graph.names is not None and graph.names.states is not None else ()
            found[i] = graph.locate(i, int(word) if word.isdigit() and word not in states else word)[1]
        except MapMRFError as error:
            raise type(error)(f"evidence {name}={word}: {error}") from None
    return found


def write_evidence(path: AnyPath, evidence: Mapping[int, int] | Sequence[Mapping[int, int]]) -> None:
    r"""Write observations in the layout in use since 2014, or several samples in the layout of 2010.

    Examples
    --------
    >>> import pathlib, tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = pathlib.Path(folder, "model.uai.evid")
    ...     write_evidence(path, {3: 0, 5: 1})
    ...     path.read_text()
    '2 3 0 5 1\n'
    """
    samples = [evidence] if isinstance(evidence, Mapping) else evidence
    text = "" if isinstance(evidence, Mapping) else f"{len(evidence)}\n"
    for sample in samples:
        text += str(len(sample))
        for pair in sample.items():
            for value, what in zip(pair, ("variable", "state"), strict=True):
                found = index_of(value)
                if found is None:
                    raise GraphError(f"evidence has the {what} {value!r}, expected an index")
                text += f" {found}"
        text += "\n"
    write_bytes(path, text.encode("ascii"))


def _named_samples(path: AnyPath, data: bytes, graph: FactorGraph) -> list[Evidence]:
    try:
        # Objects as tuples of pairs, which keep repeated variables and differ from lists.
        content = json.loads(data, object_pairs_hook=tuple)
    except (ValueError, RecursionError) as error:
        raise FormatError(f"{path}: starts like JSON, but is not ({error})") from None
    found: list[Evidence] = []
    known = graph.names.place if graph.names is not None else {}
    for number, pairs in enumerate(content if isinstance(content, list) else [content]):
        if not isinstance(pairs, tuple):
            raise FormatError(f"{path}: sample {number} is {str(pairs)[:40]!r}, expected an object of variable: state")
        found.append({})
        for name, state in pairs:
            variable = int(name) if name not in known and re.fullmatch("[0-9]{1,10}", name) else name
            if not isinstance(state, int | str):
                raise FormatError(f"{path}: state of {name!r}: found {str(state)[:40]}, expected a name or an index")
            try:
                i, k = graph.locate(variable, state)
            except MapMRFError as error:
                raise FormatError(f"{path}: {error}") from None
            if i in found[-1]:
                raise FormatError(f"{path}: found variable {name!r} again, expected every variable once")
            found[-1][i] = k
    return found or [{}]


def _many_samples(tokens: list[int]) -> list[tuple[int, int]] | None:
    """Position and number of the pairs of every sample, if the file is ``m`` and m times ``n  v x  v x ...``."""
    places = []
    at = 1
    for _ in range(min(tokens[0], len(tokens))):
        if at >= len(tokens):
            return None
        places.append((at + 1, tokens[at]))
        at += 1 + 2 * tokens[at]
    return places if at == len(tokens) and len(places) == tokens[0] else None


def _sample(path: AnyPath, tokens: list[int], begin: int, n: int, graph: FactorGraph) -> Evidence:
    sample: Evidence = {}
    for at in range(begin, begin + 2 * n, 2):
        i, state = tokens[at], tokens[at + 1]
        if i >= graph.n_vars:
            raise FormatError(f"{path}: token {at + 1}: found variable {i}, expected 0 to {graph.n_vars - 1}")
        if i in sample:
            raise FormatError(f"{path}: token {at + 1}: found variable {i} again, expected every variable once")
        if state >= graph.card[i]:
            raise FormatError(
                f"{path}: token {at + 2}: found state {state} of variable {i}, expected 0 to {graph.card[i] - 1}"
            )
        sample[i] = state
    return sample
