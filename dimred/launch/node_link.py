"""The line between the launchers of a job's nodes, so that a failure on one node ends the ranks on all of them.

Node 0 listens beside msrun's own port; the others connect, and say ``hello``. A node says ``done`` when its ranks have
ended well; a connection that ends before that is a failure. On one node there is no line.
"""

import json
import socket
import time
from contextlib import suppress
from multiprocessing.connection import Connection
from typing import Any

from dimred.launch.channel import Inbox
from dimred.launch.job import Job

_SECONDS_TO_CONNECT = 600.0  # nodes are started by hand, one after the other
_SECONDS_BETWEEN_PROBES = 60


class NodeLink:
    """This node's end of the line: how another node's ranks failed, or refused to begin (bad input)."""

    def __init__(self, job: Job):
        self.failure, self.refused = "", False  # what the first of them said; empty while there is none
        self._node_rank = job.node_rank
        # Node 0 hears of all others, they of node 0.
        self._others = 0 if job.nodes == 1 else job.nodes - 1 if job.node_rank == 0 else 1
        self._address = (job.master_addr, job.master_port + 1)
        listens = self._others > 0 and job.node_rank == 0
        self._inbox = Inbox(_probed(socket.create_server(self._address)) if listens else None)
        self._nodes: dict[Connection, int] = {}
        self._done: set[int] = set()
        self._said_done = False
        self._deadline = time.monotonic() + _SECONDS_TO_CONNECT

    @property
    def all_done(self) -> bool:
        """Whether every node that this one hears of is done."""
        return len(self._done) == self._others

    def exchange(self, *, done: bool) -> None:
        """Take what has arrived; say once that this node is done (node 0: that all are)."""
        if self._others and self._node_rank and not self._nodes:
            self._connect()
        for connection, message in self._inbox.receive(0):
            self._take(connection, message)
        if done and self._nodes and not self._said_done and (self._node_rank or self.all_done):
            self._said_done = True
            self._say(kind="done")

    def tell_failure(self, why: str, refused: bool = False) -> None:
        """Tell the other nodes, as far as they can be reached."""
        self._say(kind="failed", why=why[:1000], refused=refused)

    def close(self) -> None:
        """Close the line."""
        self._inbox.close()

    def _connect(self) -> None:
        try:
            connected = socket.create_connection(self._address, timeout=1.0)
        except OSError as error:
            if time.monotonic() > self._deadline:
                self._fail(f"node 0 can't be reached at {self._address[0]}:{self._address[1]} ({error})")
            return
        self._nodes[self._inbox.add(_probed(connected))] = 0
        self._say(kind="hello", node=self._node_rank)

    def _take(self, connection: Connection, message: dict[str, Any] | None) -> None:
        if message is not None and message.get("kind") == "hello":
            self._nodes[connection] = message.get("node", 0)
        node = self._nodes.get(connection)
        if node is None or node in self._done:
            return  # somebody else, or nothing that matters any more
        if message is None:
            self._fail(f"node {node} is gone")
        elif message.get("kind") == "done":
            self._done.add(node)
        elif message.get("kind") == "failed":
            self._fail(f"node {node} has failed: {message.get('why')}", bool(message.get("refused")))

    def _fail(self, why: str, refused: bool = False) -> None:
        if not self.failure:
            self.failure, self.refused = why, refused

    def _say(self, **message: int | str) -> None:
        for connection in self._nodes:
            with suppress(OSError):
                connection.send_bytes(json.dumps(message).encode())


def _probed(link: socket.socket) -> socket.socket:
    """Have the kernel probe a line on which nothing is said for days, and the connections that a listener accepts.

    So a host without power is noticed, and no firewall between the hosts takes the line for abandoned.
    """
    link.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    link.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, _SECONDS_BETWEEN_PROBES)
    return link
