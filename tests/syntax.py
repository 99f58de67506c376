"""The statements of a source file."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator

INSIDE = (ast.stmt, ast.excepthandler, ast.match_case)


def statements(node: ast.AST, enter: Callable[[ast.stmt], bool] = lambda node: True) -> Iterator[ast.stmt]:
    """Yield all statements below a node, without those below statements that are not to be entered.

    Definitions and imports are statements; visiting no expressions saves most of the time of `ast.walk`.
    """
    for child in ast.iter_child_nodes(node):
        if not isinstance(child, INSIDE):
            continue
        if isinstance(child, ast.stmt):
            yield child
            if not enter(child):
                continue
        yield from statements(child, enter)
