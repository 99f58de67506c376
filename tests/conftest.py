"""Settings of the whole suite."""

import os
import signal

from hypothesis import HealthCheck, settings

os.environ["MAPMRF_STRICT"] = "1"  # a bound below the value of a labelling is an error here

# No deadline: the first call of a kernel compiles it. In CI the same examples every time.
settings.register_profile("default", deadline=None, max_examples=25, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("ci", settings.get_profile("default"), derandomize=True, print_blob=True)
settings.register_profile("thorough", settings.get_profile("default"), max_examples=1000)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci" if os.environ.get("CI") else "default"))

# A shell without job control starts background jobs with Ctrl-C ignored, and tests that send it would wait for ever.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
