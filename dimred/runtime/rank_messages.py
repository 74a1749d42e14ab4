"""What a rank's process tells its launcher: JSON lines over a local socket."""

import json
import socket
from collections.abc import Iterator
from typing import Any


def launcher_address(name: str) -> str:
    """The local socket on which a launcher listens, in Linux's abstract name space: no file is left behind."""
    return f"\0dimred-{name}"


def tell(launcher: socket.socket, **message: int | str) -> None:
    """Send a message of a ``rank``.

    Its ``rank_process`` sends ``pid`` when its program has begun, and ``status`` when it has ended; its program, by a
    connection of its own, what it is ``doing`` for which ``step``.
    """
    launcher.sendall(json.dumps(message).encode() + b"\n")


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
