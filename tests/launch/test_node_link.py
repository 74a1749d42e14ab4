"""What the launchers of several hosts tell each other."""

import os
import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

from dimred.launch.job import make_job
from dimred.launch.node_link import NodeLink


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[[int], list[NodeLink]]]:
    """The links of so many nodes on loopback, connected."""

    with ExitStack() as stack:

        def made(nodes: int) -> list[NodeLink]:
            port = make_job("p", "s", [], out=tmp_path, devices=1, device_target="CPU").master_port
            several = {"nodes": nodes, "master_addr": "127.0.0.1", "master_port": port}
            links = []
            for node in range(nodes):
                job = make_job(
                    "p", "s", [], out=tmp_path, devices=nodes, device_target="CPU", node_rank=node, **several
                )
                links.append(stack.enter_context(closing(NodeLink(job))))
            exchange(links)
            return links

        yield made


def exchange(links: list[NodeLink], done: tuple[int, ...] = ()) -> None:
    for _ in range(4):  # connect, accept, say, hear
        for node, link in enumerate(links):
            link.exchange(done=node in done)


def test_one_node_alone_has_nobody_to_wait_for(start) -> None:
    (link,) = start(1)
    assert link.all_done
    assert not link.failure


def test_a_line_on_which_nothing_is_said_for_days_is_probed(start) -> None:
    for link in start(2):
        (connection,) = link._nodes
        with socket.socket(fileno=os.dup(connection.fileno())) as line:
            assert line.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
            assert line.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) == 60


def test_nobody_is_done_before_all_are(start) -> None:
    links = start(3)
    exchange(links, done=(0, 2))
    assert not any(link.all_done for link in links)
    exchange(links, done=(0, 1, 2))
    assert all(link.all_done for link in links)
    links[1].close()  # who leaves now is no failure
    exchange([links[0], links[2]])
    links[0].close()
    exchange(links[2:])
    assert not any(link.failure for link in links)


@pytest.mark.parametrize("refused", [False, True])
def test_a_failure_reaches_node_0_and_its_own_all_others(start, refused: bool) -> None:
    links = start(3)
    links[2].tell_failure("rank 2 ended", refused)
    exchange(links)
    assert (links[0].failure, links[0].refused) == ("node 2 has failed: rank 2 ended", refused)
    links[0].tell_failure(links[0].failure, refused)
    exchange(links)
    assert (links[1].failure, links[1].refused) == ("node 0 has failed: node 2 has failed: rank 2 ended", refused)


def test_a_node_that_is_gone_is_a_failure_and_a_stranger_is_not(start) -> None:
    links = start(2)
    with socket.create_connection(links[0]._address) as stranger:
        stranger.sendall(b"GET / HTTP/1.1\r\n\r\n")
        exchange(links)
    exchange(links)
    assert not links[0].failure
    links[1].close()
    exchange(links[:1])
    assert (links[0].failure, links[0].refused) == ("node 1 is gone", False)
