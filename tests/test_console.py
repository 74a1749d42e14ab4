"""What a program prints, and the exit status with which it ends."""

import errno
import logging
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from dimred.console import Lines, run_program
from dimred.errors import ConfigError, FaultError
from tests.helpers import needs

log = logging.getLogger("dimred.somewhere")


@pytest.fixture
def ended(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str]]:
    """Return a function that runs a program with an error, and returns its exit status and standard error."""

    def run(error: BaseException, tell_refusal: Callable[[str], bool] = lambda why: False) -> tuple[int, str]:
        def program() -> None:
            raise error

        monkeypatch.setattr(sys, "argv", ["program"])
        with pytest.raises(SystemExit) as left:
            run_program(program, tell_refusal=tell_refusal)
        assert isinstance(left.value.code, int)
        return left.value.code, capsys.readouterr().err

    return run


def test_an_error_of_ours_is_one_line_with_its_own_status(ended) -> None:
    assert ended(ConfigError("rho is 2")) == (2, "error: rho is 2\n")
    assert ended(FaultError("no space")) == (3, "error: no space\n")


def test_an_unforeseen_error_is_one_line_and_status_1(ended) -> None:
    assert ended(KeyError("seven")) == (1, "error: KeyError: 'seven' (dimred --debug COMMAND shows where)\n")


def test_a_user_s_code_that_ends_the_program_does_not_end_it_well(ended) -> None:
    status, shown = ended(SystemExit(0))
    assert status == 1
    assert shown.startswith("error: your own code called sys.exit(0), perhaps in a script that is imported for its")


def test_a_refusal_that_somebody_else_tells_is_not_printed(ended) -> None:
    told: list[str] = []

    def tell(why: str) -> bool:
        told.append(why)
        return why == "rho is 2"

    assert ended(ConfigError("rho is 2"), tell) == (2, "")
    assert ended(ConfigError("sigma is 2"), tell) == (2, "error: sigma is 2\n")
    assert ended(FaultError("no space"), tell) == (3, "error: no space\n")
    assert told == ["rho is 2", "sigma is 2"]


@pytest.mark.parametrize("to_stdout", [True, False])
def test_lines_go_where_the_program_wants_them_and_warnings_to_standard_error(
    to_stdout: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    with Lines(to_stdout=to_stdout):
        log.info("100 % done")
        log.warning("take care")
    log.info("nobody listens")
    lines, warning = "100 % done\n", "warning: take care\n"
    assert capsys.readouterr() == ((lines, warning) if to_stdout else ("", lines + warning))


@needs.FULL_DEVICE
@pytest.mark.parametrize("stream", ["stdout", "stderr"])
def test_a_line_that_a_full_disk_does_not_take_ends_nothing(stream: str, monkeypatch: pytest.MonkeyPatch) -> None:
    went_on = False
    with suppress(OSError), Path("/dev/full").open("w") as full:  # closing it fails once more
        monkeypatch.setattr(sys, stream, full)
        with Lines(to_stdout=stream == "stdout"):
            log.info("a line")
        went_on = True
    assert went_on


def test_what_a_program_does_is_said_in_a_long_silence_only(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("dimred.console.LONGEST_SILENCE_SECONDS", 0.6)
    with Lines(to_stdout=True):
        log.debug("preparing")
        time.sleep(0.3)
        log.info("begun")
        time.sleep(0.4)  # 0.7 s in all, 0.4 of them silent
        assert capsys.readouterr() == ("begun\n", "")
        time.sleep(0.4)
        assert capsys.readouterr() == ("", "preparing\n")
    time.sleep(0.8)
    assert capsys.readouterr() == ("", "")


def test_a_program_without_standard_output_does_its_work(tmp_path: Path) -> None:
    code = "from dimred.console import *; run_program(lambda: (print_table(['a'], [['b']]), open('done', 'w'))[0])"
    done = subprocess.run(["bash", "-c", f'"$0" -c "{code}" >&- 2>&-', sys.executable], cwd=tmp_path, timeout=60)
    assert done.returncode == 0
    assert (tmp_path / "done").exists()


def ends_without_a_reader(code: str, folder: Path) -> tuple[int, str]:
    """Run Python code whose output nobody reads, as behind ``| true``; return its exit status and standard error."""
    process = subprocess.Popen(
        [sys.executable, "-c", code], cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    process.stdout.close()
    _, shown = process.communicate(timeout=60)
    return process.returncode, shown


@pytest.mark.parametrize("output", ["print('a line')", "print('a line', flush=True)", "print_table(['a'], [['b']])"])
def test_a_command_whose_reader_has_gone_ends_in_silence(output: str, tmp_path: Path) -> None:
    code = "import typer; from dimred.console import *; app = typer.Typer(); "
    code += f"app.command()(lambda: {output}); run_command(typer.main.get_command(app))"
    assert ends_without_a_reader(code, tmp_path) == (128 + signal.SIGPIPE, "")


def test_a_training_whose_reader_has_gone_does_its_work(tmp_path: Path) -> None:
    code = "import logging; from dimred.console import *; log = logging.getLogger('dimred'); "
    code += "run_program(lambda: (log.info('begun'), log.info('done'), Path('done').touch())[0])"
    assert ends_without_a_reader(code, tmp_path) == (0, "")
    assert (tmp_path / "done").exists()


def test_a_broken_pipe_of_something_else_is_an_error(ended) -> None:
    line = "error: BrokenPipeError: [Errno 32] Broken pipe (dimred --debug COMMAND shows where)\n"
    assert ended(BrokenPipeError(errno.EPIPE, "Broken pipe")) == (1, line)
