"""One line between the launchers of a job's nodes, so that a failure on one ends the ranks on all of them.

Node 0 listens beside msrun's own port; the others connect. A node says ``done`` when its ranks have ended well; a line
that breaks before that is a failure. On one node there is no line.
"""

import socket
import time

_DONE, _FAILED = b"done\n", b"failed "
_SECONDS_TO_CONNECT = 600.0  # nodes are started by hand, one after the other


class NodeLink:
    """This node's end of the lines.

    Args:
        nodes: how many there are.
        node_rank: number of this one.
        address, port: where node 0 listens.

    Attributes:
        failure: what another node said of its failure; None while there is none.
        all_done: whether every other node is done.
    """

    def __init__(self, nodes: int, node_rank: int, address: str, port: int):
        self.failure: str | None = None
        self._nodes = nodes
        self._node_rank = node_rank
        self._address = (address, port)
        self._listener: socket.socket | None = None
        self._lines: list[_Line] = []
        self._said_done = False
        self._deadline = time.monotonic() + _SECONDS_TO_CONNECT
        if nodes > 1 and node_rank == 0:
            self._listener = socket.create_server(self._address)
            self._listener.setblocking(False)

    @property
    def all_done(self) -> bool:
        """Whether every node that this one hears of is done; node 0 hears of all, the others of node 0."""
        expected = 0 if self._nodes == 1 else self._nodes - 1 if self._node_rank == 0 else 1
        return sum(line.done for line in self._lines) == expected

    def exchange(self, *, done: bool) -> None:
        """Take new lines and messages; say once that this node is done (node 0: that all are)."""
        if self._nodes == 1:
            return
        self._connect()
        for line in self._lines:
            line.listen()
            if line.failure is not None and self.failure is None:
                self.failure = line.failure
        others_are = self._node_rank != 0 or self.all_done
        if done and others_are and self._lines and not self._said_done:
            self._said_done = True
            self._say(_DONE)

    def tell_failure(self, why: str) -> None:
        """Tell the other nodes, as far as they can be reached."""
        self._say(_FAILED + why.encode() + b"\n")

    def close(self) -> None:
        """Close all lines."""
        for line in self._lines:
            line.connection.close()
        if self._listener is not None:
            self._listener.close()

    def _connect(self) -> None:
        if self._listener is not None:
            try:
                connection, peer = self._listener.accept()
            except BlockingIOError:
                return
            self._lines.append(_Line(connection, f"the node at {peer[0]}"))
        elif not self._lines:
            try:
                connection = socket.create_connection(self._address, timeout=1.0)
            except OSError as error:
                if time.monotonic() > self._deadline:
                    self.failure = f"node 0 can't be reached at {self._address[0]}:{self._address[1]} ({error})"
                return
            self._lines.append(_Line(connection, "node 0"))

    def _say(self, message: bytes) -> None:
        for line in self._lines:
            try:
                line.connection.sendall(message)
            except OSError:
                continue


class _Line:
    """A connection to another node's launcher."""

    def __init__(self, connection: socket.socket, peer: str):
        connection.setblocking(False)
        self.connection = connection
        self.done = False
        self.failure: str | None = None
        self._peer = peer
        self._text = b""

    def listen(self) -> None:
        """Take what has arrived."""
        if self.done or self.failure is not None:
            return
        try:
            received = self.connection.recv(65536)
        except BlockingIOError:
            return
        except OSError:
            received = b""
        self._text += received
        if _DONE in self._text:
            self.done = True
        elif self._text.startswith(_FAILED) and self._text.endswith(b"\n"):
            self.failure = f"{self._peer} has failed: {self._text[len(_FAILED) :].decode(errors='replace').strip()}"
        elif not received:
            self.failure = f"{self._peer} is gone"
