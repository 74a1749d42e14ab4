"""The questions that each kind of device answers: how many there are, how ranks get theirs, and what is wrong."""

import os
from collections.abc import Iterable, Iterator
from typing import Literal, NamedTuple

from dimred.errors import ConfigError
from dimred.io.system import n_processors

Target = Literal["Ascend", "GPU", "CPU"]

_USUAL_DEVICES = 8  # per host, for a dry run on a host without any


class CheckResult(NamedTuple):
    """The result of a check: its name, what it found, and a remedy if something is wrong."""

    name: str
    text: str
    remedy: str = ""


class Found(NamedTuple):
    """How many devices of a kind can be used here, and a phrase for what was found."""

    n_devices: int
    words: str


def refuse_wrong(results: Iterable[CheckResult], asked: str, otherwise: str) -> None:
    """Raise a ConfigError for the first result that says what is wrong; arguments as in ``Device.check``."""
    for result in results:
        if result.remedy:
            raise ConfigError(f"{asked}, but {result.text}; {result.remedy}, or {otherwise}")


class Device:
    """A kind of device.

    Attributes:
        target: its name for ``--device-target`` and for MindSpore.
        remedy: what to do if MindSpore does not know it.
        is_shared: whether several processes can compute on one of them at the same time.
        starts_late: whether its first operation starts it, and may fail or take long.
        short_type: the shorter type in which it can compute products of float32 numbers, as MindSpore's options and
            the key in ``precision`` name it; "" if it has none.
        turns_short_type_off: whether dimred turns it off unless the user allows it; otherwise MindSpore chooses.
        special_keys: configuration keys that have an effect on it, and none on some other kind.
    """

    target: Target
    remedy = ""
    is_shared = False
    starts_late = False
    short_type = ""
    turns_short_type_off = False
    special_keys: frozenset[str] = frozenset()

    def find(self) -> Found:
        """Look for devices that this process can use."""
        raise NotImplementedError

    def checks(self) -> Iterator[CheckResult]:
        """Check everything that the device needs besides MindSpore itself."""
        raise NotImplementedError

    def describe(self) -> str:
        """Return the name of the device that this process computes on, for a table."""
        return self.target

    def default_count(self, found: Found) -> int:
        """Return how many devices per host a job takes by default."""
        return found.n_devices or _USUAL_DEVICES

    def check(self, asked: str, otherwise: str, n_ranks: int = 1, *, joins: bool = False) -> None:
        """Check that ranks on this host can use the device; by default they can.

        Args:
            asked: how the user asked for it, such as "--device-target is GPU".
            otherwise: what to do without it.
            n_ranks: number of ranks on this host.
            joins: whether there are several ranks on all hosts together.

        Raises:
            ConfigError: something that it needs is missing, there are too few devices, or what joins them is missing.
        """

    def rank_environment(self, number: int, *, is_alone: bool) -> dict[str, str]:
        """Return the variables that give a rank the device with this number.

        DEVICE_ID is among them, unless a lone rank keeps the user's: beside a rank table, MindSpore starts no rank
        without it.

        Args:
            number: the device's number among those that the launcher sees on this host.
            is_alone: whether the job has no other rank, and no rank table names its device.
        """
        return {"DEVICE_ID": str(number)}

    def cluster_environment(self, n_ranks: int) -> dict[str, str]:
        """Return default variables for ranks that join; ``n_ranks`` of them are on this host."""
        if n_ranks < 2:
            return {}
        n_threads = max(1, n_processors() // n_ranks)
        # By default MindSpore's ranks look for each other every 3 to 5 s; with 1 s, two ranks start 5 s sooner.
        every_second = {"MS_RETRY_INTERVAL_LOWER": "1", "MS_RETRY_INTERVAL_UPPER": "1"}
        return {"OMP_NUM_THREADS": str(n_threads)} | every_second

    def make_ready(self, asked: str, otherwise: str) -> None:
        """Prepare this process before it imports MindSpore; arguments and errors as in ``check``."""


class Cpu(Device):
    """The host's processor."""

    target: Target = "CPU"
    is_shared = True

    def describe(self) -> str:
        return f"CPU, {os.cpu_count()} cores"

    def find(self) -> Found:
        return Found(1, "")

    def checks(self) -> Iterator[CheckResult]:
        yield CheckResult("device", f"CPU; {n_processors()} of the host's {os.cpu_count()} cores for this process")
