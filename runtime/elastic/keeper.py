"""The process that hosts the store: nothing else happens in it, and it is forked anew where it ends.

Its socket is the launcher's: a new keeper is reached where the old one was. Keys of earlier generations are
lost with it, and nobody needs them.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Iterable

from torch.distributed import TCPStore  # type: ignore[attr-defined]

from ..start.rendezvous import LOCAL_HOST
from .forked import Process, fork

BACKLOG = socket.SOMAXCONN


class Keeper:
    """The store's host. address, port: where ranks find it."""

    def __init__(self, address: str = LOCAL_HOST) -> None:
        self.address = address
        self._listener = socket.socket()
        self._listener.bind((address, 0))
        self._listener.listen(BACKLOG)
        self._life = os.pipe()
        self.process: Process | None = None

    @property
    def port(self) -> int:
        port: int = self._listener.getsockname()[1]
        return port

    @property
    def descriptors(self) -> list[int]:
        """What other children of the launcher must close."""
        own = [] if self.process is None else self.process.descriptors
        return [self._listener.fileno(), *self._life, *own]

    def start(self, closing: Iterable[int]) -> Process:
        """Fork it; closing: descriptors of the launcher's other children."""
        life, end = self._life

        def host(control: int, heard: int) -> None:
            os.close(end)
            listener = os.dup(self._listener.fileno())  # the store closes it itself
            store = TCPStore(
                self.address, 0, is_master=True, wait_for_workers=False, master_listen_fd=listener
            )
            os.read(life, 1)  # until the launcher has ended
            del store

        self.process = fork(host, closing, is_told=False)
        return self.process

    def close(self) -> None:
        """End it."""
        if self.process is not None:
            self.process.kill()
            self.process.bury()
        self._listener.close()
        for descriptor in self._life:
            os.close(descriptor)
