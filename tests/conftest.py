"""Settings of the whole suite, and the clock that tests of time limits turn themselves."""

from __future__ import annotations

import os
import signal
import time

import pytest
from hypothesis import HealthCheck, settings

from clocks import Clock

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
