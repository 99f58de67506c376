"""The small model that the tests of all formats share: mixed cardinalities, an unsorted scope, a forbidden entry."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from format_models import T3

from mapmrf.errors import FormatError
from mapmrf.model.graph import FactorGraph

HEAD = "MARKOV\n3\n2 3 2\n3\n1 0\n2 0 1\n2 2 1\n\n"
POTENTIALS = (
    "1 1.6487212707001282",
    "1.2214027581601699 0.90483741803595952 1 0.74081822068171788 1.4918246976412703 1.1051709180756477",
    "1 1.3498588075760032 0.81873075307798182 1.8221188003905089 0 1.1051709180756477",
)
LOGS = ("0 0.5", "0.2 -0.1 0 -0.3 0.4 0.1", "0 0.3 -0.2 0.6 -1e+39 0.1")


@pytest.fixture
def t3_uai() -> str:
    return HEAD + "\n\n".join(f"{len(table.split())}\n {table}" for table in POTENTIALS) + "\n"


@pytest.fixture
def t3_lg() -> str:
    return HEAD + "\n\n".join(f"{len(table.split())}\n {table}" for table in LOGS) + "\n"


@pytest.fixture
def t3() -> FactorGraph:
    return T3


@pytest.fixture
def error_of() -> Callable[..., str]:
    """Call something that must raise FormatError; return its message, which must be one line that names the file."""

    def call(path: Path, function: Callable[..., object], *arguments: object, **options: object) -> str:
        with pytest.raises(FormatError) as caught:
            function(*arguments, **options)
        message = str(caught.value)
        assert str(path) in message
        assert "\n" not in message
        assert len(message) < 400
        return message

    return call
