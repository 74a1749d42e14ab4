"""What a rank's process tells its launcher: JSON lines over a local socket."""

import json
import os
import socket
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

from dimred.launch.job import LAUNCHER


def launcher_address(name: str) -> str:
    """The local socket on which a launcher listens, in Linux's abstract name space: no file is left behind."""
    return f"\0dimred-{name}"


def tell(launcher: socket.socket, **message: int | str) -> None:
    """Send a message of a ``rank``.

    Its ``rank_process`` sends ``pid`` when its program has begun, and ``status`` when it has ended; its program, by a
    connection of its own, what it is ``doing`` for which ``step``, and how far its ``bar`` has come.
    """
    launcher.sendall(json.dumps(message).encode() + b"\n")


class ToLauncher:
    """A connection of a rank's program to its launcher; without a launcher nothing is told."""

    def __init__(self) -> None:
        self._rank = int(os.environ.get("RANK_ID", "0"))
        self._connection: socket.socket | None = None
        if LAUNCHER in os.environ:
            self._connection = socket.socket(socket.AF_UNIX)
            with suppress(OSError):  # a launcher that is gone takes its ranks with it
                self._connection.connect(launcher_address(os.environ[LAUNCHER]))

    def tell(self, **message: int | str) -> None:
        """Send what this rank has to say."""
        if self._connection is not None:
            with suppress(OSError):
                tell(self._connection, rank=self._rank, **message)


class Heard:
    """What one rank's process has sent so far.

    Attributes:
        connection: to it.
        rank: once its ``rank_process`` has told.
        closed: nothing more will come.
    """

    def __init__(self, connection: socket.socket):
        self.connection = connection
        self.rank: int | None = None
        self.closed = False
        self._text = b""

    def messages(self) -> Iterator[dict[str, Any]]:
        """The messages that are complete by now."""
        received = self.connection.recv(65536)
        self.closed = not received
        *lines, self._text = (self._text + received).split(b"\n")
        for line in lines:
            yield json.loads(line)
