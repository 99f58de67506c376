"""Small files of every kind, our own texts and files that the package writes, and a mutator that starts from them.

It makes files that are almost right, from a seed, the same on every machine.
"""

from __future__ import annotations

import io
import json
import random
import re
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np

import mapmrf
from mapmrf.bench.records import pack_labels
from mapmrf.certificates import Certificate
from mapmrf.certificates.certificate import Cycles
from mapmrf.datasets import grid
from mapmrf.model.graph import FactorGraph, Names
from mapmrf.run.state import FILE

GRAPH = FactorGraph.from_tables(
    [2, 3, 2],
    [(0,), (0, 1), (2, 1)],
    [[0, 0.5], [0.2, -0.1, 0, -0.3, 0.4, 0.1], [0, 0.3, -0.2, 0.6, float("-inf"), 0.1]],
    names=Names(("a", "b", "c"), (("no", "yes"), ("x", "y", "z"), ("0", "1"))),
)
PAIRS = FactorGraph.from_pairwise([[0.0, 1.0], [0.5, 0.0], [0.0, 0.0]], [[0, 1], [1, 2]], [[1.0, 0.0], [0.0, 1.0]])
NETWORK = FactorGraph.from_tables(
    [2, 2],
    [(0,), (0, 1)],
    [np.log([0.25, 0.75]), np.log([[0.5, 0.5], [0.125, 0.875]])],
    names=Names(("Rain", "Grass"), (("no", "yes"), ("dry", "wet"))),
)

MANY = " ".join(map(str, range(18)))
"""So many binary variables have a table that is kept as a list of tuples."""
TEXTS: dict[str, list[str]] = {
    ".uai": [
        "MARKOV\n3\n2 3 2\n3\n1 0\n2 0 1\n2 2 1\n\n2\n 1 1.5\n\n6\n 1 2 0.5 0.25 1 1\n\n6\n 1 1 2 2 0 1e-3\n",
        "BAYES 2 2 2 2 1 0 2 0 1 2 .25 .75 4 .5 .5 .125 .875",
        "c comment\nMARKOV 1 2 2  0  1 0 # all\n1 2.5 2 1 1",
    ],
    ".LG": ["MARKOV 3 3 3 2 3 2 0 1 2 1 0 2 1 2 -1 -0.5 -1 -2 6 0 1 -1e+39 -inf 2 3", "MARKOV 1 2 1 1 0 2 0 -1"],
    ".suai": [
        "SPARSEMARKOV\n3\n2 3 2\n2\n2 0 1\n3 2 1 0\n\n1 2\n0 2 3\n1 0 .5\n\n0.5 1\n1 2 1 4\n",
        "SPARSEBAYES 1 2 1 1 0 0.5 0",
        f"SPARSEMARKOV 18 {'2 ' * 18} 2 18 {MANY} 18 {MANY} 0.5 1 {'1 ' * 18} 2 0 2 {'0 ' * 18} 1 {'0 1 ' * 9} 0.25",
    ],
    ".fg": [
        "2\n\n2\n0 1\n2 3\n3\n0 1\n3 2.5\n5 1\n\n1\n2\n2\n1\n1 4\n",
        "# empty\n0\n",
        f"1\n\n18\n{MANY}\n{'2 ' * 18}\n3\n0 1\n262143 2\n77 0.5\n",
    ],
    ".wcsp": [
        "t 3 3 4 100\n2 3 2\n2 0 1 0 2\n0 0 5\n1 2 7\n1 2 3 1\n1 0\n0 4 0\n2 1 2 100 1\n2 1 0\n",
        "s 4 3 3 50\n3 3 3 3\n-2 0 1 0 1\n0 0 5\n2 1 2 0 -1\n3 0 1 2 -1 salldiff var 50\n",
        "g 3 3 4 50\n3 3 3\n3 0 1 2 -1 sgcc var 50 3 0 0 1 1 0 1 2 0 1\n3 0 1 2 -1 samong var 3 1 2 2 0 1\n"
        "3 0 1 2 -1 knapsackp 2 1 0 3 1 1 2 0\n2 0 1 -1 clique 1 1 0 2 0 1\n",
        "f 4 3 6 50\n3 3 -3 3\n4 0 1 2 3 -1 wsum lin 2 <= 3\n"
        "4 0 1 2 3 -1 sregular edit 2 2 1 0 1 1 3 0 0 0 0 1 1 1 2 0\n"
        "4 0 1 2 3 -1 sgrammar var 2 2 3 0 3 0 0 0 0 1 1 1 0 0 1\n"
        "3 0 1 2 -1 wcsp 1 9 0 0 in 3 3 1 9 3 3 3 1 0 0 1 1 4\n"
        "2 0 1 -1 sdisj 1 1 2 2 3 4\n4 0 1 2 3 -1 sgcc var 3 2 0 1 2 1 0 1\n",
        "mapmrf:decimals=2:offset=150 2 2 1 1000\n2 2\n2 0 1 0 1\n0 0 50\n",
        f"l 19 3 2 50\n{'2 ' * 18} 3\n-18 {MANY} 50 2 {'1 ' * 18} 3 {'0 1 ' * 9} 0\n18 {MANY} 50 -1\n",
        f"l 18 2 1 50\n{'2 ' * 18}\n18 {MANY} 5 3\n{'1 ' * 18} 3 {'0 1 ' * 9} 50 {'0 ' * 18} 9\n",
    ],
    ".cfn": [
        '{problem: {name: t, mustbe: "<100.00"},\n variables: {x: 2, y: [red green blue], z: 2},\n'
        " functions: {f: {scope: [x y], costs: [1 2 3 4 5 inf]}, g: {scope: [z], defaultcost: 1, costs: [0 2.5]},\n"
        " h: {scope: [], costs: [1.5]}}}\n",
        '{"problem":{"name":"s","mustbe":">-50"},"variables":{"a":2,"b":2,"c":2},"functions":{"f":{"scope":["a","b"],'
        '"costs":"g"},"g":{"scope":["b","c"],"costs":[0,1,2,3]},'
        '"k":{"scope":["a","b","c"],"type":"knapsackv","params":{"capacity":1,"weightedvalues":[["a",1,2],["b",0,1]]}},'
        '"d":{"scope":["a","b"],"type":"salldiff","params":{"metric":"var","cost":50}}}}',
        '{problem:{name:g mustbe:"<50"} variables:{a:3 b:3 c:3} functions:{'
        "s:{scope:[a b c] type:samong params:{metric:var cost:3 min:1 max:2 values:[0 1]}}"
        "c:{scope:[a b] type:sgcc params:{metric:var cost:50 bounds:[[0 0 1][1 0 1]]}}"
        "q:{scope:[a b] type:clique params:{rhs:1 values:[[0][0 1]]}}"
        "w:{scope:[a b c] type:wregular params:{nb_states:1 starts:[[0 0]] ends:[[0 1]] transitions:[[0 0 0 2]]}}"
        "n:{scope:[a b] type:cfnconstraint params:{lb:0 ub:1 "
        "cfn:{problem:{mustbe:<9} variables:{a:3 b:3} functions:{}}}}"
        "e:{scope:[a b] type:>= params:[1 2]} m:{scope:[a b c] type:max params:{defaultcost:1 tuples:[[a 0 2]]}}}}",
        '{problem:{name:l mustbe:"<50"} variables:{'
        + " ".join(f"v{i}:2" for i in range(18))
        + "} functions:{f:{scope:["
        f"{MANY}] defaultcost:inf costs:[{'1 ' * 18} 3 {'0 1 ' * 9} -2]}} "
        f"g:{{scope:[{MANY}] defaultcost:1 costs:[]}}}}}}",
    ],
    ".bif": [
        "network toy { property x; }\nvariable A { type discrete [ 2 ] { a0, a1 }; }\n"
        "variable C { type discrete [ 2 ] { c0, c1 }; }\nprobability ( A ) { table 0.25, 0.75; }\n"
        "probability ( C | A ) { (a0) 0.01, 0.99; default 0.5, 0.5; } // end\n",
        'network "q r" { } variable "x y" { type discrete [1] { "s" }; } probability ( "x y" ) { table 1; }',
    ],
    ".xml": [
        '<?xml version="1.0"?>\n<BIF VERSION="0.3"><NETWORK><NAME>t</NAME>\n'
        '<VARIABLE TYPE="nature"><NAME>A</NAME><OUTCOME>a0</OUTCOME><OUTCOME>a1</OUTCOME></VARIABLE>\n'
        '<VARIABLE TYPE="nature"><NAME>B</NAME><OUTCOME>b0</OUTCOME><OUTCOME>b1</OUTCOME></VARIABLE>\n'
        "<DEFINITION><FOR>A</FOR><TABLE>0.25 0.75</TABLE></DEFINITION>\n"
        "<DEFINITION><FOR>B</FOR><GIVEN>A</GIVEN><TABLE>0.5 0.5 <!-- row --> 0.1 0.9</TABLE></DEFINITION>\n"
        "</NETWORK></BIF>\n",
    ],
    ".erg": ["/* n */ 2 /* card */ 2 2 /* parents */ 0 1 0 /* tables */ 2 .25 .75 4 .5 .5 .1 .9"],
    ".coo": ["# vartype=SPIN\n# offset=1.5\n0 0 0.5\n0 1 -1\n1 2 2.25\n", "0 0 1\n0 3 -2.5\n"],
    ".qubo": ["c a comment\nc offset 2.5\np qubo 0 4 2 2\n0 0 1\n3 3 -2\n0 1 1.5\n2 3 -1\n"],
    ".qpbo": ["-4 3\n1 1 1\n2 3 -2.5\n1 4 3\n# offset=2\n", "2 -1\n1 2 3\n"],
    ".cnf": ["c x\np cnf 6 3\n1 -2 0\n-1 0 2 3\n4 5 6 0\n"],
    ".wcnf": ["c offset 2\np wcnf 3 2 9\n9 1 -2 0\n2 3 0\n", "h 1 2 3 4 5 -6 0\n3.5 -1 0\n"],
    ".opb": [
        "* #variable= 3 #constraint= 2\nmin: +2 x1 -1 x2 ~x3 ;\n+1 x1 +2 x2 >= 1 ;\n1 x1 x2 -1 x3 = 0;\n",
        "x_a <= 0;",
    ],
    ".wbo": ["soft: 9 ;\n[2] +1 x1 +1 ~x2 >= 1 ;\n-1 x3 >= 0 ;\n"],
    ".mc": ["# constant=2\n4 3\n1 2 1\n2 3 -2.5\n1 4 3\n", "2 0\n"],
}
"""Models as text."""

EVIDENCE = ["1 1 2", "0", "", "1\n1 0 1\n", "2\n1 0 1\n2 0 0 1 2\n", '{"a": "yes", "1": 2}', '[{"a": 1}, {}]']
SOLUTIONS = [
    "MPE\n3 1 2 0\n",
    "MPE\n1\n3 1 2 0\n",
    "MPE\n3 0 0 0\n-BEGIN-\n3 1 1 0\n-BEGIN-\n3 1",
    "MPE\n2\n3 1 1 0\n3 0 1 0\n",
    "1 2 0",
    '{"labels": [1, 2, 0]}',
    "[0, 1, 1]",
]
TABLE_ROWS = ["a,b\nyes,z\n,x\n", "0;2\n1;0\n\n0;\n", "a\tc\nno\t1\n"]
TRACES = ["time,iterations,value,bound,phase,gap,rho\n0.1,5,2.0,3.0,relax,0.5,0.25\n0.2,6,-inf,inf,,,\n"]
PLANS = [
    'methods = ["icm"]\nsets = ["grids"]\nseeds = [0, 1]\ntime_limit = 2.5\n',
    '[[run]]\nmethod = "lslp"\nname = "mine"\noptions = {rho = 0.1}\n',
]
RECORD = {
    **{"key": "k", "set": "own", "model": "m", "run": "icm", "method": "icm", "time_limit": 1.0, "message": ""},
    **{"outcome": "done", "value": 0.5, "bound": "inf", "status": "converged", "runtime": 0.1},
    **{"trace": [[0.1, 1, 0.5, "inf", None, None, None, None, ""]], "labels": pack_labels(np.array([1, 0, 2]))},
}


def records() -> list[bytes]:
    failed = {**RECORD, "key": "l", "outcome": "error", "message": "no memory"}
    return ["".join(json.dumps(one) + "\n" for one in (RECORD, failed)).encode(), json.dumps(RECORD).encode() + b"\n{"]


def results() -> list[bytes]:
    graph = GRAPH.with_constraints([mapmrf.constraints.all_different([0, 2])])
    found = [mapmrf.solve(GRAPH, "lslp", margins=True), mapmrf.solve(PAIRS, "icm"), mapmrf.solve(graph, "wcsp")]
    return [result.to_json(trace=True, mu_v=True).encode() for result in found]


def written(suffix: str, *graphs: FactorGraph) -> list[bytes]:
    found = []
    with tempfile.TemporaryDirectory() as folder:
        for graph in graphs:
            path = Path(folder, f"model{suffix}")
            mapmrf.write(graph, path)
            found.append(path.read_bytes())
    return found


def opengm() -> list[bytes]:
    """Files with every type of function; they need h5py."""
    kinds: dict[int, tuple[list[int], list[float]]] = {
        16000: ([2, 2, 3], [1, 2, 3, 4, 5, 6]),
        16001: ([2, 2, 3, 2, 0, 5], [1, 4, 5]),
        16002: ([2, 3], [0.5]),
        16003: ([2, 3], [1, 0.5]),
        16004: ([2, 3], [0.5]),
        16005: ([2, 3], [1, 0.5]),
        16006: ([2, 3], [0, 1]),
        16007: ([3, 2, 3, 2], [0, 1]),
        16008: ([1, 2], [3]),
        16011: ([3, 2, 3, 2], [1, 2, 3, 4, 5]),
    }
    shape = [18, *[2] * 18]
    lists = {16001: ([*shape, 2, 0, 77], [1.0, 4, 5]), 16007: (shape, [0.0, 1]), 16008: (shape, [3.0])}
    return [_opengm(kinds, [2, 3, 2]), _opengm(lists, [2] * 18), *written(".h5", GRAPH)]


def _opengm(kinds: dict[int, tuple[list[int], list[float]]], card: list[int]) -> bytes:
    """A function of every type, on the first variables."""
    import h5py

    memory = io.BytesIO()
    with h5py.File(memory, "w") as file:
        group = file.create_group("gm")
        types = [x for kind in kinds for x in (kind, 1)]
        group["header"] = np.array([2, 0, len(card), len(kinds), len(kinds), *types, 1], dtype=np.uint64)
        group["numbers-of-states"] = np.array(card, dtype=np.uint64)
        factors: list[int] = []
        for place, (kind, (indices, values)) in enumerate(kinds.items()):
            group[f"function-id-{kind}/indices"] = np.array(indices, dtype=np.uint64)
            group[f"function-id-{kind}/values"] = np.array(values, dtype=np.float64)
            arity = indices[0] if kind in (16000, 16001, 16007, 16008, 16011) else 2
            factors += [0, place, arity, *range(arity)]
        group["factors"] = np.array(factors, dtype=np.uint64)
    return memory.getvalue()


def certificates(folder: Path) -> list[bytes]:
    cycles = Cycles(np.array([0, 1]), np.array([0]), np.array([1]), np.array([0.5]))
    found = []
    for k, certificate in enumerate(
        [mapmrf.solve(GRAPH, certificate=True).certificate, Certificate(3.0, np.zeros(0), cycles, np.array([0, 2]))]
    ):
        assert certificate is not None
        certificate.write(folder / f"{k}.npz")
        found.append((folder / f"{k}.npz").read_bytes())
    return found


def parts(folder: Path) -> tuple[list[bytes], list[bytes], list[bytes]]:
    """Files of parts, their manifest, and files of labels."""
    graph = grid(3, 2, seed=1)
    mapmrf.distributed.partition(graph, folder, 2, "slabs")
    mapmrf.distributed.partition(graph, folder / "one", 1, "slabs")
    mapmrf.distributed.solve(folder / "one", max_iterations=5).write_labels(folder)
    return (
        [path.read_bytes() for path in sorted(folder.glob("part-*.mrf"))],
        [(folder / "parts.json").read_bytes()],
        [path.read_bytes() for path in sorted(folder.glob("labels-*.mrf"))],
    )


FRUSTRATED = grid(6, 6, 3.0, seed=1)
"""A model on which no method is done at once."""


def checkpoint_of(folder: Path, method: Any) -> Path:
    """The checkpoint of a run on `FRUSTRATED` that was cut short."""
    with mock.patch("mapmrf.run.pace.SWEEPS", 0):  # a step per iteration
        mapmrf.solve(FRUSTRATED, method, checkpoint=folder, every=0.0, callback=lambda point, _: point.iterations > 0)
    return folder / FILE


# -- the mutator ------------------------------------------------------------------------------------------------------

NUMBERS = tuple(
    b"0 1 2 3 -1 -2 7 1e300 -1e300 1e400 -inf inf nan 0.5 1e-320 2147483648 4294967296 9007199254740993 "
    b"9223372036854775807 9223372036854775808 18446744073709551616 99999999999999999999999 1e18 -0 00 1.0 1_0 0x10 "
    b"+1 1. .5 1e 1e+ 16384 65536 1000000 28 64 65 100".split()
)
WORDS = tuple(
    b"MARKOV BAYES SPARSEMARKOV p qubo network variable probability default table property type discrete salldiff sgcc "
    b"samong knapsack knapsackp clique wsum wregular sgrammar smaxdp sdisj wcsp lin quad edit h min: soft: ~x1 "
    b"var dec scope costs defaultcost mustbe problem functions params values null "
    b"true NaN Infinity MPE -BEGIN- c # /* */ // // -1".split()
)
TOKEN = re.compile(rb"[^\s{}()\[\]<>,;:\"]+")
JUNK = tuple(b"\x00 \xff \xef\xbb\xbf \n \r\n \t \" ' { } [ ] ( ) < > & ; , : | / \\ \x1f\x8b".split(b" "))

Mutation = Callable[[random.Random, bytes, Sequence[bytes]], bytes]


def _place(rng: random.Random, data: bytes) -> int:
    return rng.randrange(len(data) + 1)


def flip_byte(rng: random.Random, data: bytes, others: Sequence[bytes]) -> bytes:
    if not data:
        return b"\x00"
    at = rng.randrange(len(data))
    return data[:at] + bytes([data[at] ^ (1 << rng.randrange(8))]) + data[at + 1 :]


def set_byte(rng: random.Random, data: bytes, others: Sequence[bytes]) -> bytes:
    at = _place(rng, data)
    return data[:at] + bytes([rng.randrange(256)]) + data[at + 1 :]


def insert_junk(rng: random.Random, data: bytes, others: Sequence[bytes]) -> bytes:
    at = _place(rng, data)
    return data[:at] + rng.choice(JUNK) + data[at:]


def cut(rng: random.Random, data: bytes, others: Sequence[bytes]) -> bytes:
    return data[: _place(rng, data)]


def drop(rng: random.Random, data: bytes, others: Sequence[bytes]) -> bytes:
    begin = _place(rng, data)
    return data[:begin] + data[begin + rng.randrange(1, 20) :]


def repeat(rng: random.Random, data: bytes, others: Sequence[bytes]) -> bytes:
    begin = _place(rng, data)
    part = data[begin : begin + rng.randrange(1, 40)]
    return data[:begin] + part * rng.choice((2, 2, 3, 50)) + data[begin + len(part) :]


def splice(rng: random.Random, data: bytes, others: Sequence[bytes]) -> bytes:
    other = rng.choice(others)
    return data[: _place(rng, data)] + other[_place(rng, other) :]


def nest(rng: random.Random, data: bytes, others: Sequence[bytes]) -> bytes:
    """Many brackets inside each other: parsers that call themselves have an end."""
    at = _place(rng, data)
    return data[:at] + rng.choice((b"[", b"{", b"(", b'{"a":', b"<a>", b"/*")) * rng.choice((20, 3000)) + data[at:]


def _tokens(data: bytes) -> list[re.Match[bytes]]:
    return list(TOKEN.finditer(data))


def _with(data: bytes, match: re.Match[bytes], word: bytes) -> bytes:
    return data[: match.start()] + word + data[match.end() :]


def replace_token(rng: random.Random, data: bytes, others: Sequence[bytes]) -> bytes:
    found = _tokens(data)
    if not found:
        return rng.choice(NUMBERS)
    return _with(data, rng.choice(found), rng.choice(NUMBERS if rng.random() < 0.8 else WORDS))


def change_number(rng: random.Random, data: bytes, others: Sequence[bytes]) -> bytes:
    found = [match for match in _tokens(data) if match[0].lstrip(b"-").isdigit() and len(match[0]) < 19]
    if not found:
        return data
    match = rng.choice(found)
    return _with(data, match, b"%d" % (int(match[0]) + rng.choice((-2, -1, 1, 2, 100, 10**6, 2**32))))


def swap_tokens(rng: random.Random, data: bytes, others: Sequence[bytes]) -> bytes:
    found = _tokens(data)
    if len(found) < 2:
        return data
    first, second = sorted(rng.sample(found, 2), key=lambda match: match.start())
    return data[: first.start()] + second[0] + data[first.end() : second.start()] + first[0] + data[second.end() :]


def drop_token(rng: random.Random, data: bytes, others: Sequence[bytes]) -> bytes:
    found = _tokens(data)
    return _with(data, rng.choice(found), b"") if found else data


MUTATIONS: tuple[Mutation, ...] = (
    flip_byte, set_byte, insert_junk, cut, drop, repeat, splice, nest, *[replace_token] * 3, *[change_number] * 2,
    swap_tokens, drop_token,
)  # fmt: skip


def mutate(rng: random.Random, others: Sequence[bytes]) -> bytes:
    """One of some files, changed in one or a few places."""
    data = rng.choice(others)
    for _ in range(rng.choice((1, 1, 1, 2, 3, 6))):
        data = rng.choice(MUTATIONS)(rng, data, others)
    return data
