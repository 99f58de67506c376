"""Compiling in a separate process, so that a run can abandon it: numba's compiler cannot be interrupted in-process.

The process compiles one kernel after another and stores the code in the user's cache. It ends with this process, and is
killed when a run is stopped.
"""

from __future__ import annotations

import atexit
import contextlib
import importlib
import os
import pickle
import queue
import signal
import subprocess
import sys
import threading
import time
from typing import Any

from mapmrf.compilation import CompileWatch, CompilingPostponed, CompilingStopped, watch_of_run

EVENT = "mapmrf:compile"
"""The numba event around a compilation in another process; those in this one are ``numba:compile``."""

_COMMAND = (sys.executable, "-m", "mapmrf.compilation.process")


class CompileProcess:
    """A process that compiles kernels on request."""

    def __init__(self) -> None:
        pipe = subprocess.PIPE
        path = os.pathsep.join(entry for entry in sys.path if entry)
        self.process = subprocess.Popen(
            _COMMAND, stdin=pipe, stdout=pipe, env={**os.environ, "PYTHONPATH": path}, start_new_session=True
        )
        self.replies: queue.SimpleQueue[str] = queue.SimpleQueue()
        self.listener = threading.Thread(target=self._listen, name="mapmrf-compile-process", daemon=True)
        self.listener.start()

    def _listen(self) -> None:
        assert self.process.stdout
        with contextlib.suppress(EOFError, pickle.UnpicklingError):
            while True:
                self.replies.put(pickle.load(self.process.stdout))
        self.replies.put("")  # the process has ended
        self.process.wait()  # leave no zombie and no open pipe behind
        self.process.stdout.close()

    def compile(self, name: str, signature: Any, watch: CompileWatch) -> bool:
        """Compile a kernel; return whether that worked. Raises CompilingStopped once the run must stop waiting."""
        assert self.process.stdin
        end = time.monotonic() + watch.patience * watch.left()
        try:
            pickle.dump(pickle.dumps((name, signature)), self.process.stdin)  # bytes, whose reading never fails
            self.process.stdin.flush()
        except OSError:
            return False
        while True:
            try:
                return self.replies.get(timeout=0.02) == "done"
            except queue.Empty:
                if watch.stop():
                    raise CompilingStopped(name) from None
                if time.monotonic() >= end:
                    raise CompilingPostponed(name) from None

    @property
    def alive(self) -> bool:
        return self.process.poll() is None

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        self.listener.join()
        for pipe in (self.process.stdin, self.process.stdout):
            with contextlib.suppress(OSError):
                if pipe is not None:
                    pipe.close()


_lock = threading.Lock()
_process: CompileProcess | None = None
_finishing: list[CompileProcess] = []


def compile_elsewhere(name: str, signature: Any) -> bool:
    """Compile a kernel of a run in another process; return whether its code is now in the user's cache."""
    # Also returns False outside of runs and where no process can be started: the kernel is then compiled in this one.
    global _process
    watch = watch_of_run()
    if watch is None or os.environ.get("MAPMRF_KERNELS") == "compile":
        return False
    if watch.stop():
        raise CompilingStopped(name)
    from mapmrf.compilation.jit import event

    with _lock:
        try:
            if _process is not None and not _process.alive:
                close()
            if _process is None:
                _process = CompileProcess()
                atexit.register(_process.close)
            with event.trigger_event(EVENT, data=name):
                return _process.compile(name, signature, watch)
        except (OSError, pickle.PicklingError):
            return False
        except CompilingPostponed:
            _let_finish()
            raise
        except BaseException:
            close()
            raise


def _let_finish() -> None:
    """Let the process finish its current compilation for the next run, without further requests; it ends with us."""
    global _process
    if _process is not None and _process.process.stdin is not None:
        _process.process.stdin.close()
        for finished in [process for process in _finishing if not process.alive]:
            atexit.unregister(finished.close)
            _finishing.remove(finished)
        _finishing.append(_process)
        _process = None


def close() -> None:
    """Kill the process, if there is one, and those left to finish."""
    global _process
    for process in (*_finishing, *([] if _process is None else [_process])):
        atexit.unregister(process.close)
        process.close()
    _process = None
    _finishing.clear()


def main() -> None:
    from mapmrf.compilation.store import own_stamps

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the requesting process
    channel = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # nothing else may write to the pipe
    with contextlib.suppress(EOFError, BrokenPipeError):  # the requesting process has ended
        while True:
            request = pickle.load(sys.stdin.buffer)
            try:
                name, signature = pickle.loads(request)
                module, _, function = name.rpartition(".")
                getattr(importlib.import_module(module), function).compile(signature)
                own_stamps()  # kept for later processes, which need not parse the sources
                reply = "done"
            except Exception as error:  # the requesting process compiles the kernel itself and gets the same error
                reply = f"{type(error).__name__}: {error}"
            pickle.dump(reply, channel)
            channel.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
