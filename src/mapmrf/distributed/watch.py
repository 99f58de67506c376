"""Detection of dead ranks: each watches the next one, reports its end in one line, and ends all.

MPI does not report that a process was killed, and launchers differ in their reaction. A connection to the next rank
does: the system closes it with the process.
"""

from __future__ import annotations

import os
import secrets
import socket
import traceback
from contextlib import suppress
from threading import Thread
from types import TracebackType
from typing import Self

from mapmrf.distributed.errors import describe
from mapmrf.distributed.ranks import Ranks
from mapmrf.errors import MapMRFError

GOODBYE = b"bye"
SECONDS = 5.0
"""Seconds within which connections must be established; without them, ranks are not watched."""
TOKEN = 16


class RankWatch:
    """Context in which a rank that dies ends all others; all ranks enter and leave it together.

    An error on a single rank also ends all; a MapMRFError does not, since it is raised on all of them.

    Attributes
    ----------
    active
        Whether ranks are watched: there are several, and they could connect.

    Examples
    --------
    >>> from mapmrf.distributed.ranks import OneProcess
    >>> with RankWatch(OneProcess()) as watch:
    ...     watch.active
    False
    """

    def __init__(self, ranks: Ranks) -> None:
        self.ranks = ranks
        self.active = False
        self._ahead: socket.socket | None = None
        self._behind: socket.socket | None = None
        self._thread = Thread(target=self._watch, daemon=True)

    def __enter__(self) -> Self:
        if self.ranks.size > 1:
            self._connect()
        if self.active:
            self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        alone = kind is not None and not issubclass(kind, MapMRFError)
        if alone and error is not None and self.ranks.size > 1:  # the others do not know, and would wait
            if not isinstance(error, OSError | MemoryError):
                traceback.print_exception(error)
            os.write(2, f"mapmrf: error: rank {self.ranks.rank}: {describe(error)}\n".encode())
            self.ranks.abort(2)
        watching, self.active = self.active, False
        for connection in (self._ahead, self._behind):
            if connection is not None:
                with suppress(OSError):
                    connection.sendall(GOODBYE)
                    connection.shutdown(socket.SHUT_WR)
        self._ahead = self._behind = None
        if watching:
            self._thread.join(SECONDS)  # until the next rank has signed off as well

    def _connect(self) -> None:
        ranks, token = self.ranks, secrets.token_bytes(TOKEN)
        with socket.create_server(("", 0)) as listener:
            listener.settimeout(SECONDS)
            self._places = ranks.allgather((socket.gethostname(), listener.getsockname()[1], token))
            host, port, its_token = self._places[(ranks.rank + 1) % ranks.size]
            with suppress(OSError):
                self._ahead = socket.create_connection((host, port), SECONDS)
                self._ahead.sendall(its_token)
                self._ahead.settimeout(None)
                self._behind, _ = listener.accept()
                self._behind.settimeout(SECONDS)
                if self._behind.recv(TOKEN, socket.MSG_WAITALL) != token:
                    self._behind = None
        self.active = all(ranks.allgather(self._ahead is not None and self._behind is not None))

    def _watch(self) -> None:
        """Wait for the next rank to sign off, or to vanish."""
        other = (self.ranks.rank + 1) % self.ranks.size
        connection = self._ahead
        assert connection is not None
        with suppress(OSError):
            if connection.recv(len(GOODBYE)) == GOODBYE:
                return
        if self.active:
            host = self._places[other][0]
            os.write(2, f"mapmrf: error: rank {other} on {host} died: killed, or out of memory\n".encode())
            self.ranks.abort(2)
