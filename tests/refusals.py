"""Mistakes of a user: each is an error of the package with a message of one line."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest

from mapmrf import MapMRFError


def refuses(error: type[MapMRFError], message: str, call: Callable[..., Any], *given: Any, **options: Any) -> None:
    """A call must fail with one line that contains a text, or matches a pattern."""
    with pytest.raises(error) as caught:
        call(*given, **options)
    found = str(caught.value)
    assert message in found or re.search(message, found), found
    assert "\n" not in found
