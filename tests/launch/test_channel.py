"""What arrives at a launcher: whole JSON objects, and nothing else does any harm."""

import pickle
import secrets
import socket
import time
from collections.abc import Iterator
from multiprocessing.connection import Client

import pytest

from dimred.console import heartbeat
from dimred.launch.channel import Inbox, StageBar, launcher_address


@pytest.fixture
def address() -> str:
    return launcher_address(secrets.token_hex(8))


@pytest.fixture
def inbox(address: str) -> Iterator[Inbox]:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(address)
        listener.listen()
        made = Inbox(listener)
        yield made
        made.close()


def received(inbox: Inbox) -> list[dict | None]:
    """Everything that comes until nothing does."""
    found: list[dict | None] = []
    empty = 0
    while empty < 2:  # a new connection is accepted in one turn and read in the next
        came = [message for _, message in inbox.receive(0)]
        empty = 0 if came else empty + 1
        found += came
    return found


def test_all_messages_of_a_connection_and_then_its_end(inbox: Inbox, address: str) -> None:
    with Client(address) as one:
        one.send_bytes(b'{"kind": "at", "step": 1}')
        one.send_bytes('{"kind": "refused", "why": "größer"}'.encode())
        assert received(inbox) == [{"kind": "at", "step": 1}, {"kind": "refused", "why": "größer"}]
        assert inbox.connections
    assert received(inbox) == [None]
    assert not inbox.connections


@pytest.mark.parametrize(
    "sent",
    [pickle.dumps({"kind": "at"}), b"", b"{", b"3", b'"text"', b"null", b"[1, 2]", b"[" * 60_000, b"{" + b" " * 70_000],
    ids=["pickled", "empty", "half", "number", "text", "null", "list", "nested", "too long"],
)
def test_whoever_sends_something_else_is_dropped_alone(inbox: Inbox, address: str, sent: bytes) -> None:
    with Client(address) as stranger, Client(address) as one:
        stranger.send_bytes(sent)
        one.send_bytes(b'{"kind": "bar"}')
        assert sorted(received(inbox), key=str) == [None, {"kind": "bar"}]
        one.send_bytes(b'{"kind": "at"}')
        assert received(inbox) == [{"kind": "at"}]


def test_what_a_program_says_comes_before_the_news_of_its_end(inbox: Inbox, address: str) -> None:
    with Client(address) as around:
        around.send_bytes(b'{"kind": "hello"}')
        assert received(inbox) == [{"kind": "hello"}]
        for name in ("a", "b"):
            with Client(address) as program:
                program.send_bytes(b'{"kind": "refused", "by": "%s"}' % name.encode())
        around.send_bytes(b'{"kind": "ended"}')
        arrived = [message for _, message in inbox.receive(5) if message]
        assert [message["kind"] for message in arrived] == ["refused", "refused", "ended"]


def test_half_a_message_is_not_waited_for_long(inbox: Inbox, address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dimred.launch.channel._SECONDS_FOR_A_MESSAGE", 1)
    with socket.socket(socket.AF_UNIX) as stranger:
        stranger.connect(address)
        stranger.sendall(b"\0\0")
        assert received(inbox) == [None]


def test_without_a_terminal_a_heartbeat_says_how_far_the_stage_is(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("dimred.console._LONGEST_SILENCE", 0.2)
    monkeypatch.delenv("DIMRED_LAUNCHER", raising=False)
    with heartbeat("preparing"), StageBar("stage 1", 40, 5) as bar:
        bar.step("loss 0.5")
        time.sleep(0.3)
    assert capsys.readouterr().err == "stage 1  step 6/40  loss 0.5\n"
