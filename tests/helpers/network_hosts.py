"""Two hosts on this machine with networks of their own: network namespaces that a virtual cable joins."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

import pytest

from tests.helpers.commands import run

_CARD = "eth1"


class NetworkHost(NamedTuple):
    """A network namespace.

    Attributes:
        namespace: its name.
        address: its address on the cable; its loopback is its own, too.
    """

    namespace: str
    address: str

    def command(self, *words: object) -> list[str]:
        """Return the command line that runs a command there; the process is the command's."""
        return ["ip", "netns", "exec", self.namespace, *map(str, words)]

    def pull_the_cable(self) -> None:
        run("ip", "-n", self.namespace, "link", "set", _CARD, "down", status=0)


@contextmanager
def two_network_hosts() -> Iterator[tuple[NetworkHost, NetworkHost]]:
    """Make two hosts that reach each other and nothing else; skip the test where that is not allowed."""
    if shutil.which("ip") is None:
        pytest.skip("two hosts with networks of their own need the command ip (iproute2)")
    hosts = (
        NetworkHost(f"dimred-{os.getpid()}-0", "10.77.0.1"),
        NetworkHost(f"dimred-{os.getpid()}-1", "10.77.0.2"),
    )
    try:
        for host in hosts:
            made = run("ip", "netns", "add", host.namespace)
            if made.returncode != 0:
                pytest.skip(f"this machine makes no network namespace: {made.stderr.strip()}")
        ends = ["netns", hosts[0].namespace, "type", "veth", "peer", "name", _CARD, "netns", hosts[1].namespace]
        run("ip", "link", "add", _CARD, *ends, status=0)
        for host in hosts:
            run("ip", "-n", host.namespace, "address", "add", f"{host.address}/24", "dev", _CARD, status=0)
            for card in ("lo", _CARD):
                run("ip", "-n", host.namespace, "link", "set", card, "up", status=0)
        yield hosts
    finally:
        for host in hosts:
            run("ip", "netns", "delete", host.namespace)
