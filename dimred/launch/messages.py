"""Messages from one process on this host to another: JSON values, one per line, over a private socket pair."""

import json
import socket
import threading
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

_MOST_BYTES = 65_536  # read at once


class Sender:
    """The sending end of a socket pair.

    Args:
        connection: the socket; it must block.
    """

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._rest = b""
        self._lock = threading.Lock()

    def send(self, message: Any, *, waits: bool = False) -> bool:
        """Send a message, or drop it if the receiver has fallen behind and ``waits`` is not set.

        If only part of a message fits, the rest is sent before the next message.

        Args:
            message: a JSON value.
            waits: whether to wait until all of it is sent.

        Returns:
            True, or False if it was dropped.

        Raises:
            OSError: the receiver is gone.
        """
        with self._lock:
            self._send_rest(waits)
            if self._rest:
                return False
            self._rest = json.dumps(message).encode() + b"\n"
            self._send_rest(waits)
            return True

    def _send_rest(self, waits: bool) -> None:
        with suppress(BlockingIOError):
            while self._rest:
                rest = self._rest
                self._rest = b""  # a signal that raises after the call must not send it twice
                try:
                    n_sent = self._connection.send(rest, 0 if waits else socket.MSG_DONTWAIT)
                except BlockingIOError:
                    self._rest = rest
                    raise
                self._rest = rest[n_sent:]


class Receiver:
    """The receiving end of a socket pair.

    Args:
        connection: the socket.

    Attributes:
        is_open: whether the sender still held its end when ``messages`` last read from it.
    """

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._line = b""
        self.is_open = True
        connection.setblocking(False)

    def fileno(self) -> int:
        """Return a descriptor that is readable when there is a message, or the sender has closed its end."""
        return self._connection.fileno()

    def messages(self) -> Iterator[Any]:
        """Yield the messages that have arrived whole, without waiting."""
        while self.is_open:
            try:
                part = self._connection.recv(_MOST_BYTES)
            except BlockingIOError:
                return
            except OSError:
                part = b""
            self.is_open = bool(part)
            *lines, self._line = (self._line + part).split(b"\n")
            for line in lines:
                with suppress(ValueError):  # a signal in the sender has cut the line
                    yield json.loads(line)

    def close(self) -> None:
        """Close this end."""
        self._connection.close()
