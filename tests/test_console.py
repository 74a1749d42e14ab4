"""What a program says in the end, and with which exit status."""

import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from dimred.console import doing, heartbeat, note, run_program, say
from dimred.errors import ConfigError, FaultError


@pytest.fixture
def ended(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str]]:
    """Runs a program that raises an error; its exit status, and what stands on standard error."""

    def run(error: Exception, *tell_refusal: Callable[[str], bool]) -> tuple[int, str]:
        def program() -> None:
            raise error

        monkeypatch.setattr(sys, "argv", ["program"])
        with pytest.raises(SystemExit) as left:
            run_program(program, *tell_refusal)
        assert isinstance(left.value.code, int)
        return left.value.code, capsys.readouterr().err

    return run


def test_an_error_of_ours_is_one_line_with_its_own_status(ended) -> None:
    assert ended(ConfigError("rho is 2")) == (2, "error: rho is 2\n")
    assert ended(FaultError("no space")) == (3, "error: no space\n")


def test_an_error_that_nobody_foresaw_is_one_line_and_status_1(ended) -> None:
    assert ended(KeyError("seven")) == (1, "error: KeyError: 'seven' (dimred --debug COMMAND shows where)\n")


def test_a_refusal_that_somebody_else_tells_is_not_printed(ended) -> None:
    told: list[str] = []

    def tell(why: str) -> bool:
        told.append(why)
        return why == "rho is 2"

    assert ended(ConfigError("rho is 2"), tell) == (2, "")
    assert ended(ConfigError("sigma is 2"), tell) == (2, "error: sigma is 2\n")
    assert ended(FaultError("no space"), tell) == (3, "error: no space\n")
    assert told == ["rho is 2", "sigma is 2"]


@pytest.mark.parametrize(("stream", "tell"), [("stdout", say), ("stderr", note)])
def test_a_line_that_a_full_disk_does_not_take_ends_nothing(
    stream: str, tell: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    went_on = False
    with suppress(OSError), Path("/dev/full").open("w") as full:  # closing it fails once more
        monkeypatch.setattr(sys, stream, full)
        tell("a line")
        went_on = True
    assert went_on


def test_a_heartbeat_breaks_long_silences_only(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("dimred.console._LONGEST_SILENCE", 0.6)
    with heartbeat("preparing"):
        time.sleep(0.3)
        say("begun")
        time.sleep(0.4)  # 0.7 s in all, 0.4 of them silent
        assert capsys.readouterr() == ("begun\n", "")
        time.sleep(0.4)
        assert capsys.readouterr() == ("", "preparing\n")
        doing("measuring")
        time.sleep(0.8)
        assert capsys.readouterr() == ("", "measuring\n")
        doing("")  # a bar shows it
        time.sleep(0.8)
    time.sleep(0.8)
    assert capsys.readouterr() == ("", "")
