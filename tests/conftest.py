"""Settings of the whole suite, the clock that tests of time limits turn, and what needs benchmark models."""

from __future__ import annotations

import gc
import importlib
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from types import ModuleType

import pytest
from hypothesis import HealthCheck, settings

from benchmark_models import FOLDER, REFERENCE
from clocks import Clock
from scripts import ROOT

os.environ["MAPMRF_STRICT"] = "1"  # a bound below the value of a labelling is an error here

# The same examples every time, for everybody. No deadline: the first call of a kernel compiles it.
settings.register_profile(
    "fixed", deadline=None, max_examples=25, suppress_health_check=[HealthCheck.too_slow], derandomize=True
)
settings.register_profile("random", settings.get_profile("fixed"), derandomize=False, print_blob=True)
settings.register_profile("thorough", settings.get_profile("random"), max_examples=1000)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "fixed"))

# A shell without job control starts background jobs with Ctrl-C ignored, and tests that send it would wait for ever.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(time, "perf_counter", made)
    return made


@pytest.fixture(scope="module")
def benches() -> Iterator[Callable[[str], ModuleType]]:
    """A function that imports a script of `benches`; they import each other."""
    sys.path.insert(0, str(ROOT / "benches"))
    yield importlib.import_module
    sys.path.remove(str(ROOT / "benches"))


def pytest_collection_finish() -> None:
    """Thousands of tests live until the end: collections of garbage need not look at them again and again."""
    gc.collect()
    gc.freeze()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if not REFERENCE.is_file():
        for item in items:
            if item.get_closest_marker("data"):
                item.add_marker(pytest.mark.skip(reason=f"no benchmark models in {FOLDER}"))
