"""Several processes on one cache of kernels, some of them killed: no kernel is ever damaged."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from mapmrf.compilation.store import Key, Store

pytestmark = pytest.mark.skipif(os.name != "posix", reason="kills processes")

KEY = Key("mapmrf.kernels.forests.f", "(int64,)")

WRITER = """
import sys
from pathlib import Path
from mapmrf.compilation.store import Key
from mapmrf.compilation.store import Store
store, letter = Store(Path(sys.argv[1])), sys.argv[2].encode()
print("ready", flush=True)
while True:
    store.put(Key("mapmrf.kernels.forests.f", "(int64,)"), "stamp", letter * 2_000_000)
"""


def test_two_writers_and_a_kill_leave_whole_kernels(tmp_path: Path) -> None:
    store, draw, seen = Store(tmp_path / "cpu"), random.Random(1), set()
    for _ in range(3):
        writers = [
            subprocess.Popen([sys.executable, "-c", WRITER, str(store.folder), letter], stdout=subprocess.PIPE)
            for letter in "ab"
        ]
        for writer in writers:
            assert writer.stdout is not None
            writer.stdout.readline()
        for _ in range(20):
            code = store.get(KEY, "stamp")
            assert code is None or (len(code) == 2_000_000 and len(set(code)) == 1)
            seen.add(code[:1] if code else None)
        time.sleep(draw.uniform(0.0, 0.1))
        for writer in writers:
            writer.send_signal(signal.SIGKILL)
            writer.communicate()
        code = store.get(KEY, "stamp")
        assert code is not None and len(set(code)) == 1 and len(code) == 2_000_000
    assert seen & {b"a", b"b"}


@pytest.mark.slow
def test_commands_share_a_cache_while_one_is_killed(tmp_path: Path) -> None:
    """Kernels are compiled by two commands at once, one of which is killed; what is left works and is not damaged."""
    import mapmrf
    from mapmrf.datasets import grid

    model, draw = tmp_path / "m.uai", random.Random(2)
    mapmrf.write(grid(20, 20, 2.0, seed=1), model)
    expected = mapmrf.solve(mapmrf.read(model), "icm").value
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path / "cache")}
    command = [sys.executable, "-m", "mapmrf", "solve", str(model), "-m", "icm", "--json"]
    for _ in range(4):
        pair = [subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) for _ in range(2)]
        time.sleep(draw.uniform(1.0, 8.0))
        pair[0].kill()
        pair[0].communicate()
        answer, _ = pair[1].communicate()
        assert pair[1].returncode == 0 and mapmrf.Result.from_json(answer).value == expected
    kernels = list((tmp_path / "cache").rglob("*.kernel"))
    assert kernels
    for path in kernels:
        head, _, body = path.read_bytes().partition(b"\n")
        from mapmrf.compilation.store import digest

        assert head == digest(body).encode(), path
