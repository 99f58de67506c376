"""The process that runs toulbar2: it reads a cost function network from stdin, and toulbar2 reports on stdout.

Started by `toulbar2_process` as a script. It imports only the standard library and pytoulbar2, so that it starts within
a tenth of a second. Its own output lines, in addition to those of toulbar2, begin with ``mapmrf``.
"""

from __future__ import annotations

import importlib
import itertools
import json
import math
import os
import signal
import sys
from collections import Counter
from typing import IO, Any


def main() -> None:
    _live_no_longer_than_the_parent(int(sys.argv[1]))
    network = _unpacked(json.loads(sys.stdin.buffer.readline()), sys.stdin.buffer)
    _allow_deep_recursion()
    sys.path[:] = network["path"]
    sys.modules["mpi4py"] = None  # type: ignore[assignment]  # pytoulbar2 would start MPI where that is installed
    toulbar2 = importlib.import_module("pytoulbar2")
    cfn = toulbar2.CFN(network["upper"], resolution=0, vac=network["vac"], seed=network["seed"], verbose=0)
    for name, value in network["settings"].items():
        if name not in dir(cfn.Option):  # hasattr would call getters, some of which fail
            sys.exit(f"it has no option {name!r}")
        setattr(cfn.Option, name, value)
    try:
        _build(cfn, toulbar2, network)
    except cfn.Contradiction:
        _say("end infeasible 0 0")
        return
    _say("ready")
    found = cfn.Solve(showSolutions=1)
    if cfn.Option.limited:
        how, bound = "limit", cfn.GetDDualBound()
    else:
        how, bound = ("optimal", found[1]) if found else ("infeasible", 0)
    if found:
        _say(f"labels {' '.join(map(str, found[0]))}")
    _say(f"end {how} {int(bound)} {cfn.GetNbBacktracks()}")


def _unpacked(part: Any, rest: IO[bytes]) -> Any:
    """Read what `toulbar2_process.packed` wrote: a line of JSON, and then the bytes of every {"size": n}."""
    if isinstance(part, dict):
        if list(part) == ["size"]:
            return rest.read(part["size"])
        return {name: _unpacked(value, rest) for name, value in part.items()}
    return [_unpacked(value, rest) for value in part] if isinstance(part, list) else part


def _say(line: str) -> None:
    sys.stdout.write(f"mapmrf {line}\n")
    sys.stdout.flush()


def _live_no_longer_than_the_parent(lifeline: int) -> None:
    """Exit when the other end of a pipe closes: the kernel ensures this even while toulbar2 holds the interpreter."""
    if not hasattr(signal, "SIGIO"):
        return
    import fcntl
    import select

    signal.signal(signal.SIGIO, signal.SIG_DFL)
    fcntl.fcntl(lifeline, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(lifeline, fcntl.F_SETFL, fcntl.fcntl(lifeline, fcntl.F_GETFL) | os.O_ASYNC)
    if select.select([lifeline], [], [], 0)[0]:  # closed before
        sys.exit(1)


def _allow_deep_recursion() -> None:
    """Raise the stack limit: the search recurses on the C stack as deep as there are variables."""
    try:
        import resource
    except ImportError:
        return
    hard = resource.getrlimit(resource.RLIMIT_STACK)[1]
    resource.setrlimit(resource.RLIMIT_STACK, (hard, hard))


def _build(cfn: Any, toulbar2: Any, network: dict[str, Any]) -> None:
    wcsp = cfn.CFN.wcsp
    for number, (first, n, card, costs) in enumerate(network["variables"]):
        wcsp.makeEnumeratedVariableVec(n, f"v{number}_", 0, card - 1)
        scopes = memoryview(b"".join(i.to_bytes(8, sys.byteorder) for i in range(first, first + n))).cast("q")
        cfn.AddFunctions(scopes, memoryview(costs).cast("d", (n, card)))
    for shape, n, scopes, costs in network["functions"]:
        shared = len(costs) < n * 8 * math.prod(shape)
        if len(shape) > 3:
            _add_tables(wcsp, toulbar2.pytoulbar2.tb2.MAX_COST, shape, scopes, costs)
            continue
        add = cfn.AddAkinFunctions if shared else cfn.AddFunctions
        add(
            memoryview(scopes).cast("q", (n, len(shape))),
            memoryview(costs).cast("d", shape if shared else (n, *shape)),
        )


def _add_tables(wcsp: Any, top: int, shape: list[int], scopes: bytes, costs: bytes) -> None:
    """Add functions of four and more variables tuple by tuple, with the most frequent cost as default."""
    edges, size = memoryview(scopes).cast("q"), math.prod(shape)
    tables = memoryview(costs).cast("d")
    for a in range(len(edges) // len(shape)):
        at = a * size if len(tables) > size else 0
        table = [top if cost == float("inf") else int(cost) for cost in tables[at : at + size]]
        ((default, n_default),) = Counter(table).most_common(1)
        scope = edges[a * len(shape) : (a + 1) * len(shape)].tolist()
        number = wcsp.postNaryConstraintBegin(scope, default, size - n_default)
        for states, cost in zip(itertools.product(*map(range, shape)), table, strict=True):
            if cost != default:
                wcsp.postNaryConstraintTuple(number, list(states), cost)
        wcsp.postNaryConstraintEnd(number)


if __name__ == "__main__":
    main()
