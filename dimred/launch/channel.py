"""What the ranks of a job tell their launcher: JSON messages, framed by the standard library. Nothing is unpickled.

The process around a rank (``rank.py``) sends ``hello``, the process of its ``program``, and how it ``ended``. The
rank's program has a connection of its own: it sends what it is ``at``, its ``bar``, and why it ``refused`` to begin.
"""

import json
import os
import socket
import struct
import time
from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from multiprocessing.connection import Client, Connection, wait
from typing import Any

from dimred.console import LiveBar, doing

LAUNCHER = "DIMRED_LAUNCHER"
READING, COMPUTING = "reading the batch of", "computing"
_LONGEST_MESSAGE = 65_536  # bytes
_SECONDS_FOR_A_MESSAGE = 10  # who sends half of one is dropped
_SECONDS_BETWEEN_BARS = 0.1
Message = dict[str, Any]


def launcher_address(name: str) -> str:
    """The local socket on which a launcher listens, in Linux's abstract name space: no file is left behind."""
    return f"\0dimred-{name}"


class Inbox:
    """The messages that arrive on a listening socket's connections, and on connections that were added.

    Args:
        listener: accepts connections; None for an inbox that only has those that are added.

    Attributes:
        connections: those that have not ended.
    """

    def __init__(self, listener: socket.socket | None = None):
        self._listeners = [] if listener is None else [listener]
        self.connections: list[Connection] = []

    def add(self, connected: socket.socket) -> Connection:
        """Listen to one more connection; it is closed with the inbox."""
        connected.setblocking(True)
        timeout = struct.pack("ll", _SECONDS_FOR_A_MESSAGE, 0)  # and microseconds
        connected.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, timeout)
        self.connections.append(Connection(connected.detach()))
        return self.connections[-1]

    def receive(self, timeout_seconds: float) -> Iterator[tuple[Connection, Message | None]]:
        """All messages that arrive in time; None after the last one of a connection.

        Newer connections are read first. So what a program says before it ends comes before the news of its end, which
        the process around it sends through an older connection.
        """
        ready = wait([*self._listeners, *self.connections], timeout_seconds)
        accepted = [self._accept(listener) for listener in self._listeners if listener in ready]
        known = [connection for connection in reversed(self.connections) if connection in ready]
        for connection in [*(new for news in accepted for new in wait(news, 0)), *known]:
            yield from self._read(connection)

    def _accept(self, listener: socket.socket) -> list[Connection]:
        """All connections that wait to be accepted, the newest first."""
        found: list[Connection] = []
        with suppress(OSError):
            while wait([listener], 0):
                found.insert(0, self.add(listener.accept()[0]))
        return found

    def _read(self, connection: Connection) -> Iterator[tuple[Connection, Message | None]]:
        try:
            while True:
                yield connection, dict(json.loads(connection.recv_bytes(_LONGEST_MESSAGE)))
                if not connection.poll():
                    return
        except (EOFError, OSError, ValueError, TypeError, RecursionError):  # it has ended, or is nobody of ours
            self.connections.remove(connection)
            connection.close()
            yield connection, None

    def close(self) -> None:
        """Close everything."""
        for listener in self._listeners:
            listener.close()
        for connection in self.connections:
            connection.close()


@cache
def _connection() -> Connection | None:
    """This process's connection to its launcher, if it has one."""
    with suppress(OSError):  # a launcher that is gone takes its ranks with it
        if LAUNCHER in os.environ:
            return Client(launcher_address(os.environ[LAUNCHER]))
    return None


_told: set[str] = set()


def tell_launcher(kind: str, **content: Any) -> bool:
    """Send the launcher a message of this rank; whether there is a launcher that took it."""
    _told.add(kind)
    with suppress(OSError):
        if (connection := _connection()) is not None:
            message = {"rank": int(os.environ["RANK_ID"]), "kind": kind} | content
            connection.send_bytes(json.dumps(message).encode())
            return True
    return False


def tell_refusal(why: str) -> bool:
    """Leave it to the launcher to say why this rank's program does not begin; false without one, or if it has begun."""
    return not _told and tell_launcher("refused", why=why)


def tell_position(doing: str, step: int) -> None:
    """Tell the launcher what this rank begins to do for a step, so that it can name a rank that stalls."""
    tell_launcher("at", doing=doing, step=step)


def tell_alive() -> None:
    """Tell it that this rank moves, though no step further, as in a pass over ``val``."""
    if "at" in _told:  # nothing before counts as a stall
        tell_launcher("alive")


class StageBar:
    """The bar of a stage, inside ``with``. Under a launcher it is told how far the stage is, and shows the bar.

    Where this process has no terminal, ``heartbeat`` learns how far it is.

    Args:
        name: of the stage.
        total: steps in all.
        done: steps that earlier runs have done.
    """

    def __init__(self, name: str, total: int, done: int):
        self._content: dict[str, Any] = {"name": name, "total": total, "done": done, "status": ""}
        self._bar = LiveBar()
        self._told_at = 0.0

    def __enter__(self) -> "StageBar":
        self._bar.start()
        self.status(None)
        return self

    def __exit__(self, *_: object) -> None:
        self.status(None)
        self._bar.stop()
        doing("measuring the result")

    def step(self, status: str | None = None) -> None:
        """One more step is done."""
        self._content["done"] += 1
        self._show(status, at_once=time.monotonic() - self._told_at > _SECONDS_BETWEEN_BARS)

    def status(self, text: str | None) -> None:
        """Show what was measured after an epoch; None leaves it as it is."""
        self._show(text, at_once=True)

    def _show(self, text: str | None, at_once: bool) -> None:
        if text is not None:
            self._content["status"] = text
        self._bar.show(**self._content)
        doing("{name}  step {done}/{total}  {status}".format(**self._content).rstrip() if self._bar.disable else "")
        if at_once:
            tell_launcher("bar", content=self._content)
            self._told_at = time.monotonic()
