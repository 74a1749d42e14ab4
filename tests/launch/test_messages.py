"""Messages arrive whole and in order, or not at all, however full the socket is."""

import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from dimred.launch.messages import Receiver, Sender


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        yield ours, theirs


@pytest.fixture
def ends(pair: tuple[socket.socket, socket.socket]) -> tuple[Sender, Receiver]:
    ours, theirs = pair
    return Sender(theirs), Receiver(ours)


def test_what_does_not_fit_is_dropped_whole_and_later_messages_arrive(ends: tuple[Sender, Receiver]) -> None:
    sender, receiver = ends
    text = "x" * 1000
    was_sent = [sender.send([number, text]) for number in range(2000)]
    n_sent = was_sent.index(False)
    assert 10 < n_sent < 1999
    assert not any(was_sent[n_sent:])
    arrived = list(receiver.messages())
    assert sender.send("after")  # behind the rest of the last message that was begun
    arrived += receiver.messages()
    assert arrived == [*([number, text] for number in range(n_sent)), "after"]


def test_a_message_that_must_arrive_is_waited_for(ends: tuple[Sender, Receiver]) -> None:
    sender, receiver = ends
    why: dict[str, Any] = {"ö": ["\n"] * 200_000}
    with ThreadPoolExecutor(1) as pool:
        sent = pool.submit(sender.send, why, waits=True)
        arrived = []
        while not arrived:
            arrived += receiver.messages()
        assert sent.result()
    assert arrived == [why]


def test_the_receiver_notices_that_the_sender_is_gone(pair: tuple[socket.socket, socket.socket]) -> None:
    ours, theirs = pair
    receiver = Receiver(ours)
    Sender(theirs).send(1)
    theirs.close()
    assert receiver.is_open
    assert list(receiver.messages()) == [1]
    assert not receiver.is_open


def test_the_sender_notices_that_the_receiver_is_gone(pair: tuple[socket.socket, socket.socket]) -> None:
    ours, theirs = pair
    Receiver(ours).close()
    with pytest.raises(BrokenPipeError):
        Sender(theirs).send(1)


def test_a_line_that_a_signal_has_cut_is_passed_over(pair: tuple[socket.socket, socket.socket]) -> None:
    ours, theirs = pair
    theirs.send(b'["at", "comp\n["alive"]\n\n[')
    assert list(Receiver(ours).messages()) == [["alive"]]
