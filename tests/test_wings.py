"""The packages around the core use each other's public modules only."""

import ast
from collections.abc import Iterator
from pathlib import Path

import mapmrf
from syntax import statements

SOURCE = Path(mapmrf.__file__).parent
WINGS = ("batch", "bench", "bridges", "cli", "datasets", "formats", "images", "plots")


def imported(path: Path) -> Iterator[str]:
    """Dotted names that a file imports, those imported from a package included."""
    for node in statements(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def test_a_private_module_is_imported_by_its_own_package_only() -> None:
    for path in SOURCE.rglob("*.py"):
        own = path.relative_to(SOURCE).parts[0]
        for name in imported(path):
            top, *rest = name.removeprefix("mapmrf.").split(".")
            if name.startswith("mapmrf.") and top in WINGS and top != own:
                assert not any(part.startswith("_") for part in rest), f"{path} imports {name}"
