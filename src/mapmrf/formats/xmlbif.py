"""XMLBIF 0.3, ``.xml``, ``.bifxml`` and ``.xmlbif``: Bayesian networks with the names of variables and states."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from xml.parsers import expat

from mapmrf.errors import FormatError
from mapmrf.formats.bayes import ConditionalTable, network_graph, table_size, write_network
from mapmrf.formats.files import Allowed, fitting_names, names_replaced, parse_numbers, read_bytes, shown
from mapmrf.formats.tables import check_values, first_bad
from mapmrf.model.graph import FactorGraph, Names

SUFFIXES = (".xml", ".bifxml", ".xmlbif")

_NAMES = Allowed(re.compile(r"\S(?:.*\S)?"), states_required=True)
_DTD = """<!DOCTYPE BIF [
  <!ELEMENT BIF ( NETWORK )*>
  <!ATTLIST BIF VERSION CDATA #REQUIRED>
  <!ELEMENT NETWORK ( NAME, ( PROPERTY | VARIABLE | DEFINITION )* )>
  <!ELEMENT NAME (#PCDATA)>
  <!ELEMENT VARIABLE ( NAME, ( OUTCOME | PROPERTY )* )>
  <!ATTLIST VARIABLE TYPE (nature|decision|utility) "nature">
  <!ELEMENT OUTCOME (#PCDATA)>
  <!ELEMENT DEFINITION ( FOR | GIVEN | TABLE | PROPERTY )*>
  <!ELEMENT FOR (#PCDATA)>
  <!ELEMENT GIVEN (#PCDATA)>
  <!ELEMENT TABLE (#PCDATA)>
  <!ELEMENT PROPERTY (#PCDATA)>
]>
"""


def sniff(data: bytes) -> bool:
    return data.lstrip()[:1] == b"<" and re.search(rb"<BIF[\s>]", data[:4096]) is not None


# -- reading ----------------------------------------------------------------------------------------------------------


def read(path: Path, *, values: str | None = None) -> FactorGraph:
    """Read a Bayesian network; probabilities of 0 are forbidden."""
    # Properties are skipped. Rows that do not sum to 1 are kept as they are, and logged.
    check_values(path, values, ("potential",), "probabilities")
    network = _network(path)
    states: dict[str, tuple[str, ...]] = {}
    for element in _all(network, "VARIABLE"):
        _variable(path, element, states)
    places = {name: i for i, name in enumerate(states)}
    card = [len(some) for some in states.values()]
    tables = [_table(path, element, places, card) for element in _all(network, "DEFINITION")]
    children = set()
    for table in tables:
        if table.child in children:
            raise FormatError(f"{path}: found two definitions of variable {list(states)[table.child]!r}, expected one")
        children.add(table.child)
    return network_graph(path, tables, Names(tuple(states), tuple(states.values())))


def _refuse_entities(path: Path, data: bytes) -> None:
    """Reject a file that declares entities: no network needs any, and nested ones expand without limit."""

    class EntityFound(Exception):
        """Ends the parser before the entity is used."""

    def stop(name: str, *rest: object) -> None:
        raise EntityFound(name)

    parser = expat.ParserCreate()
    parser.EntityDeclHandler = stop
    try:
        parser.Parse(data, True)
    except EntityFound as found:
        name = shown(str(found).encode())
        raise FormatError(f"{path}: found a declaration of the entity {name}, expected none") from None
    except (expat.ExpatError, ValueError, LookupError):
        return  # `_network` reports what is wrong


def _network(path: Path) -> ET.Element:
    """The only network of the file; comments are kept, since they separate the text around them."""
    parser, data = ET.XMLParser(target=ET.TreeBuilder(insert_comments=True)), read_bytes(path)
    _refuse_entities(path, data)
    try:
        root = ET.fromstring(data, parser)
    except ET.ParseError as error:
        raise FormatError(f"{path}: not XML: {error}, expected a complete XMLBIF file") from None
    except (ValueError, LookupError) as error:
        raise FormatError(f"{path}: cannot read this XML: {' '.join(str(error).split())}") from None
    networks = _all(root, "NETWORK")
    if _tag(root) != "BIF" or len(networks) != 1:
        found = f"<{_tag(root)[:40]}> with {len(networks)} networks"
        raise FormatError(f"{path}: found {found}, expected <BIF> with one <NETWORK>")
    return networks[0]


def _tag(element: ET.Element) -> str:
    return element.tag.rpartition("}")[2] if isinstance(element.tag, str) else ""


def _all(element: ET.Element, tag: str) -> list[ET.Element]:
    return [child for child in element if _tag(child) == tag]


def _text(element: ET.Element) -> str:
    return " ".join([element.text or "", *(child.tail or "" for child in element)]).strip()


def _variable(path: Path, element: ET.Element, states: dict[str, tuple[str, ...]]) -> None:
    names = [_text(child) for child in _all(element, "NAME")]
    if len(names) != 1 or not names[0] or names[0] in states:
        found = shown(" ".join(names).encode())
        raise FormatError(f"{path}: variable {len(states)}: found the name {found}, expected one that no other has")
    kind = element.get("TYPE", "nature")
    if kind != "nature":
        raise FormatError(f"{path}: variable {names[0]!r}: found the type {shown(kind.encode())}, expected 'nature'")
    some = tuple(_text(child) for child in _all(element, "OUTCOME"))
    if not some or len(set(some)) < len(some):
        raise FormatError(
            f"{path}: variable {names[0]!r}: found {len(set(some))} different outcomes of {len(some)}, "
            "expected at least one and every one once"
        )
    states[names[0]] = some


def _table(path: Path, element: ET.Element, places: dict[str, int], card: list[int]) -> ConditionalTable:
    """Read a definition: the table runs over the parents and then, fastest, over the child."""
    children = [_text(child) for child in _all(element, "FOR")]
    parents = [_text(child) for child in _all(element, "GIVEN")]
    what = f"definition of {' '.join(children)[:40]!r}"
    if len(children) != 1:
        raise FormatError(f"{path}: {what}: found {len(children)} elements <FOR>, expected one")
    scope = [*parents, *children]
    for k, name in enumerate(scope):
        if name not in places or name in scope[:k]:
            raise FormatError(f"{path}: {what}: found {shown(name.encode())}, expected variables, each once")
    tables = _all(element, "TABLE")
    if len(tables) != 1:
        raise FormatError(f"{path}: {what}: found {len(tables)} elements <TABLE>, expected one")
    variables = [places[name] for name in scope]
    shape = [card[i] for i in variables]
    size = table_size(path, shape, what)
    numbers = parse_numbers(_text(tables[0]).encode())
    if numbers is None or len(numbers) != size:
        found = "something else" if numbers is None else str(len(numbers))
        raise FormatError(f"{path}: {what}: found {found} in its table, expected {size} numbers")
    bad = first_bad(numbers, "potential")
    if bad is not None:
        raise FormatError(f"{path}: {what}, entry {bad}: found {numbers[bad]}, expected a finite number of at least 0")
    return ConditionalTable(variables[-1], tuple(variables[:-1]), numbers.reshape(shape))


# -- writing ----------------------------------------------------------------------------------------------------------


losses = partial(names_replaced, allowed=_NAMES)


def write(graph: FactorGraph, path: Path, *, values: str | None = None) -> None:
    write_network(path, graph, values, _lines)


def _lines(graph: FactorGraph, tables: list[ConditionalTable]) -> Iterator[str]:
    from xml.sax.saxutils import escape  # which imports half of urllib

    names = fitting_names(graph, _NAMES)
    variables = [escape(name) for name in names.variables]
    yield f'<?xml version="1.0" encoding="UTF-8"?>\n{_DTD}<BIF VERSION="0.3">\n<NETWORK>\n<NAME>mapmrf</NAME>\n'
    for name, states in zip(variables, names.states or (), strict=True):
        outcomes = "".join(f"<OUTCOME>{escape(state)}</OUTCOME>" for state in states)
        yield f'<VARIABLE TYPE="nature"><NAME>{name}</NAME>{outcomes}</VARIABLE>\n'
    for table in tables:
        given = "".join(f"<GIVEN>{variables[i]}</GIVEN>" for i in table.parents)
        yield f"<DEFINITION><FOR>{variables[table.child]}</FOR>{given}\n<TABLE>"
        yield " ".join([f"{p:.17g}" for p in table.probability.ravel().tolist()])
        yield "</TABLE></DEFINITION>\n"
    yield "</NETWORK>\n</BIF>\n"
