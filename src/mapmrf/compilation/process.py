"""Compiling in a separate process, so that a run can abandon it: numba's compiler cannot be interrupted in-process.

The process compiles one kernel after another and stores the code in the user's cache. It ends with this process, but
not before it has stored the kernel that it is compiling: a run that is abandoned is not compiled for in vain.
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

_COMMAND = (sys.executable, "-m", "mapmrf.compilation.process")

Request = tuple[str, Any]  # a kernel, and the kind of its arguments


class CompileProcess:
    """A process that compiles kernels on request."""

    def __init__(self) -> None:
        pipe, nowhere = subprocess.PIPE, subprocess.DEVNULL  # nobody waits for the end of what it may print
        path = os.pathsep.join(entry for entry in sys.path if entry)
        environment = {**os.environ, "PYTHONPATH": path}
        self.process = subprocess.Popen(
            _COMMAND, stdin=pipe, stdout=pipe, stderr=nowhere, env=environment, start_new_session=True
        )
        self.request: Request | None = None  # what it is compiling
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

    def compile(self, request: Request, watch: CompileWatch) -> bool:
        """Compile a kernel; return whether that worked. Raises CompilingStopped once the run must stop waiting."""
        assert self.process.stdin
        end = time.monotonic() + watch.patience * watch.left()
        if self.request is None:
            try:
                pickle.dump(pickle.dumps(request), self.process.stdin)  # bytes, whose reading never fails
                self.process.stdin.flush()
            except OSError:
                return False
            self.request = request
        while True:
            try:
                reply = self.replies.get(timeout=0.02)
                self.request = None
                return reply == "done"
            except queue.Empty:
                if watch.stop():
                    raise CompilingStopped(request[0]) from None
                if time.monotonic() >= end:
                    raise CompilingPostponed(request[0]) from None

    def takes(self, request: Request) -> bool:
        """Return whether the process is idle, or compiles this kernel already."""
        if self.request not in (None, request) and not self.replies.empty():
            self.replies.get()
            self.request = None
        return self.process.poll() is None and self.request in (None, request)

    def leave(self) -> None:
        """Let the process end when it has stored what it is compiling."""
        with contextlib.suppress(OSError):
            if self.process.stdin is not None:
                self.process.stdin.close()
        if self.request is None:
            self.process.wait()

    def kill(self) -> None:
        self.process.kill()
        self.leave()
        self.process.wait()
        self.listener.join()


_lock = threading.Lock()
_processes: list[CompileProcess] = []


def compile_elsewhere(name: str, kind: Any) -> bool:
    """Compile a kernel of a run in another process; return whether its code is now in the user's cache."""
    # Also returns False outside of runs and where no process can be started: the kernel is then compiled in this one.
    watch, request = watch_of_run(), (name, kind)
    if watch is None or os.environ.get("MAPMRF_KERNELS") == "compile":
        return False
    if watch.stop():
        raise CompilingStopped(name)
    with _lock, contextlib.suppress(OSError, pickle.PicklingError, AttributeError):
        _processes[:] = [each for each in _processes if each.process.poll() is None]
        found = next((each for each in _processes if each.takes(request)), None)
        if found is None:
            found = CompileProcess()
            _processes.append(found)
            atexit.register(leave)
        return found.compile(request, watch)
    return False


def leave() -> None:
    """Let all processes end as soon as they have nothing left to compile."""
    while _processes:
        _processes.pop().leave()


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the requesting process
    channel = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # nothing else may write to the pipe
    with contextlib.suppress(EOFError):
        while True:
            request = pickle.load(sys.stdin.buffer)
            try:
                name, kind = pickle.loads(request)
                module, _, function = name.rpartition(".")
                getattr(importlib.import_module(module), function).compile(kind)
                reply = "done"
            except Exception as error:  # the requesting process compiles the kernel itself and gets the same error
                reply = f"{type(error).__name__}: {error}"
            with contextlib.suppress(BrokenPipeError):  # the requesting process has ended
                pickle.dump(reply, channel)
                channel.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
