"""``dimred`` as a new user meets it: help without MindSpore, exit statuses, and errors that fit on one screen."""

import importlib.metadata
import json
import re
import signal
import sys
from pathlib import Path

import pytest

from dimred.cli.commands import command_line
from dimred.cli.main import app
from tests.helpers.commands import DIMRED, REPOSITORY, command_words, dimred, dimred_here, run, script

COMMANDS = command_words(command_line)


def test_the_commands_are_those_of_the_table_in_the_readme() -> None:
    page = (REPOSITORY / "dimred" / "cli" / "README.md").read_text(encoding="utf-8")
    cells = re.findall(r"^\| (`.*?`) \| ", page, re.MULTILINE)
    in_table = [name.split() for cell in cells for name in re.findall(r"`(.+?)`", cell)]
    assert {words[0] for words in in_table} == {words[0] for words in COMMANDS if words}
    assert {words[1] for words in in_table if words[0] == "data"} == {"digits", "check"}


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_every_command_says_what_it_does_on_one_screen_with_an_example(
    words: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("typer.rich_utils.MAX_WIDTH", 100)
    text = dimred_here(*words, "--help", status=0).stdout
    assert "Usage: " in text
    assert max(map(len, text.splitlines())) == 100
    assert len(text.splitlines()) <= 50
    assert "bool" not in text  # of a flag; it is typed without a value
    command = command_line
    for word in words:
        command = command.get_command(None, word)
    assert command.help
    if not getattr(command, "commands", None):
        assert "Example: dimred " + " ".join(words) in command.help
        for parameter in command.params:
            assert getattr(parameter, "help", None), f"{parameter.name} has no help"


def test_the_main_way_comes_first_and_the_options_of_several_hosts_last() -> None:
    text = dimred_here("--help").stdout
    panels = [re.findall(r"^│ ([a-z][a-z-]*) ", panel, re.MULTILINE) for panel in re.split(r"^╭", text, flags=re.M)]
    assert panels[2:] == [
        ["train", "pca", "eval", "report", "compare"],
        ["merge", "convert", "show"],
        ["init", "data", "summary", "doctor", "bench", "rank-table"],
    ]
    hosts = dimred_here("train", "--help").stdout.rpartition("╭")[2]
    assert re.findall(r"^│ (--[a-z-]+)", hosts, re.MULTILINE) == [
        "--nodes",
        "--node-rank",
        "--master-addr",
        "--master-port",
    ]


def test_help_whose_reader_has_gone_ends_in_silence() -> None:
    done = run("bash", "-c", '"$0" train --help | true; echo "${PIPESTATUS[0]}"', DIMRED, status=0)
    assert (done.stdout, done.stderr) == (f"{128 + signal.SIGPIPE}\n", "")


def test_the_exit_statuses_are_documented() -> None:
    text = " ".join(dimred_here("--help").stdout.replace("│", " ").split())
    assert "Exit status: 0 done; 1" in text
    for status in (
        "2 wrong input",
        "3 a run that had begun met a fault",
        "4 its training diverged",
        "130 ctrl-C",
        "143 SIGTERM",
    ):
        assert status in text


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("data", "digits", "."), "exists already"),
        (("data", "digits", "x", "--seed", "-1"), "--seed is '-1'; it must be greater than or equal to 0 (see "),
        (("show",), "error: Missing argument 'FILE' (see "),
        (("train", "stage-3", "."), "error: STAGE is 'stage-3'; allowed: 'stage-1', 'stage-2' (see "),
        (("init", "here.txt"), "FILE is 'here.txt', which exists already"),
        (("init", "gone/x.yaml"), "FILE is 'gone/x.yaml', in a folder that is missing"),
        (("eval", ".", "gone.ckpt", "--config", "gone.yaml", "--save", "here.txt"), "--save is 'here.txt'"),
        (
            ("eval", ".", "here.txt", "--config", "digits", "--save", "net.pt"),
            "--save is 'net.pt'; a checkpoint",
        ),
        (("rank-table", "make", "gone/x.json", "--device-ips", "10.0.0.1"), "OUT is 'gone/x.json', in a folder"),
        (("pca",), "--ckpt-dir"),
        (("pca", "--ckpt-dir", "nowhere"), "nowhere"),
        (("show", "nowhere.npy"), "nowhere.npy"),
        (("train", "stage-1", "nowhere", "--device-target", "CPU"), "DATA is 'nowhere', which does not exist"),
        (("train", "stage-1", ".", "--device-target", "TPU"), "Ascend"),
        (("train", "stage-1", ".", "--set", "epoch=3"), "did you mean 'epochs'"),
        (("train", "stage-1", ".", "--model", "resnet51"), "allowed: resnet50"),
        (("train", "stage-2", "."), "WEIGHTS is missing; stage-2 begins with stage 1's last full checkpoint"),
        (("train", "stage-1", ".", "here.txt"), "WEIGHTS is 'here.txt', but stage-1 takes DATA alone"),
        (("train", "stage-2", ".", ".", "--device-target", "CPU"), "WEIGHTS is '.', which is a folder; give a full"),
        (("eval", "nowhere", "here.txt", "--config", "gone.yaml"), "gone.yaml"),
        (("eval", ".", "gone.ckpt", "--config", "digits"), "'WEIGHTS': path 'gone.ckpt' does not exist"),
        (("eval", ".", ".", "--config", "digits"), "WEIGHTS is '.', which is not the folder of a run; give"),
        (
            ("eval", ".", "here.txt"),
            "--config is missing, and WEIGHTS 'here.txt' are not in a run whose config.yaml could",
        ),
        (("merge", "nowhere", "--out", "x", "--metric", "gone.py:f", "--minimize"), "nowhere"),
        (("show", "here.txt"), "FILE is 'here.txt', which is not a basis; give the pca_mat.npy"),
        (("report", "nowhere"), "RUN is 'nowhere'"),
        (("compare", "nowhere", "run"), "RUN is 'run', which has no config.yaml"),
        (("rank-table", "check", "gone.json"), "'TABLE': file 'gone.json' does not exist"),
        (("convert", "."), "'FILE': file '.' is a directory"),
        (("bench", "gone", "--config", "digits"), "error: DATA is 'gone', which does not exist"),
        (("summary", "resnet51"), "MODEL is 'resnet51'; allowed: resnet50, resnet18, resnet_small, lenet, or your own"),
        (("summary", "resnet_small", "--input", "1,x"), "--input is '1,x'"),
        (("summary", "nowhere:build"), "'nowhere' can't be imported"),
        (("nothing",), "No such command"),
    ],
)
def test_a_bad_call_is_explained_on_one_screen_and_changes_nothing(
    arguments: tuple[str, ...],
    words: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "here.txt").write_text("")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["dimred", *arguments])
    with pytest.raises(SystemExit) as error:
        app()
    text = capsys.readouterr().err
    assert error.value.code == 2, text
    assert words in re.sub(r"[\s│]+", " ", text)
    assert "Traceback" not in text
    assert len(text.splitlines()) <= 10
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {"here.txt": ""}


def test_a_script_that_is_called_wrongly_says_how() -> None:
    usage = "usage: bash run_stage_2.sh DATA WEIGHTS [PCA_MAT] [options]\n"
    assert run(*script(2, "--help"), status=0).stdout.startswith(usage)
    for arguments in ((), ("data",), ("data", "--resume")):
        assert run(*script(2, *arguments), status=2).stderr.startswith(usage)


@pytest.mark.parametrize("host", [0, 1])
def test_host_0_alone_needs_weights_and_basis(host: int, tmp_path: Path) -> None:
    several = ("--nodes", 2, "--node-rank", host, "--master-addr", "10.0.0.1", "--dry-run")
    process = dimred_here("train", "stage-2", ".", "gone.ckpt", "gone.npy", *map(str, several), cwd=tmp_path)
    assert process.returncode == (2 if host == 0 else 0), process.stderr
    message = "WEIGHTS is 'gone.ckpt', which does not exist; PCA_MAT is 'gone.npy', which does not exist"
    assert (message in " ".join(process.stderr.split())) == (process.returncode == 2)


def test_a_rank_table_is_made_and_then_checked(tmp_path: Path) -> None:
    dimred_here(
        "rank-table",
        "make",
        "table.json",
        "--servers",
        "10.0.0.1,10.0.0.2",
        "--device-ips",
        "192.168.0.1,192.168.0.2, 192.168.0.3,192.168.0.4",
        cwd=tmp_path,
        status=0,
    )
    assert json.loads((tmp_path / "table.json").read_text())["server_count"] == "2"
    good = dimred_here("rank-table", "check", "table.json", "--devices", 4, cwd=tmp_path, status=0)
    assert "rank 3: device 1 (192.168.0.4) on server 10.0.0.2" in good.stdout
    bad = dimred_here("rank-table", "check", "table.json", "--devices", 8, cwd=tmp_path, status=2)
    assert "it has 4 devices, but --devices is 8" in bad.stderr


def test_debug_prints_the_traceback(tmp_path: Path) -> None:
    process = dimred("--debug", "pca", "--ckpt-dir", ".", cwd=tmp_path, status=2)
    assert "Traceback" in process.stderr
    assert process.stderr.splitlines()[-1].startswith("error: ")


def test_a_path_that_the_output_can_not_spell_is_written_in_ascii(tmp_path: Path) -> None:
    process = dimred("init", "é.yaml", cwd=tmp_path, environment={"PYTHONIOENCODING": "ascii"}, status=0)
    assert process.stdout.startswith(r"\xe9.yaml: the keys to set first")


def test_a_command_imports_no_other_command() -> None:
    code = "import sys; from dimred.cli.commands import command_line; command_line.get_command(None, 'pca'); "
    shown = run(sys.executable, "-c", code + "print(*sorted(name for name in sys.modules if '.cli.' in name))").stdout
    assert shown.split() == ["dimred.cli.commands", "dimred.cli.options", "dimred.cli.pca"]


def test_completion_is_offered() -> None:
    assert "--install-completion" in dimred_here("--help").stdout
    script = run(Path(sys.executable).with_name("dimred"), environment={"_DIMRED_COMPLETE": "source_bash"}).stdout
    assert script.rstrip().endswith("dimred")
    assert "complete -o default -F" in script


def test_the_versions_are_shown() -> None:
    version = importlib.metadata.version("mindspore")
    assert dimred_here("--version").stdout == f"dimred 0.1.0, mindspore {version}\n"


@pytest.mark.parametrize(
    ("module", "arguments"),
    [
        ("typer", ("merge", "run", "--out", "x.safetensors")),
        ("rich.table", ("doctor",)),
        ("numpy.linalg", ("merge", "run", "--out", "x.safetensors")),
        ("dimred.subspace.fit", ("pca", "--ckpt-dir", ".")),
        ("mindspore.nn", ("summary", "resnet50")),
        ("", ("merge", "run", "--out", "x.safetensors")),
    ],
)
def test_ctrl_c_before_a_command_has_begun_prints_no_traceback(
    module: str, arguments: tuple[str, ...], tmp_path: Path
) -> None:
    """The process sends itself the signal when it begins to import a module, or else when Typer lists the commands."""
    code = f"""if True:
        import os, signal, sys

        def interrupt(*arguments):
            print("interrupted", flush=True)
            os.kill(os.getpid(), signal.SIGINT)

        class Finder:
            def find_spec(self, name, path=None, target=None):
                if name == {module!r}:
                    sys.meta_path.remove(self)
                    interrupt()

        signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it
        sys.meta_path.insert(0, Finder())
        from dimred.cli.main import app
        if not {module!r}:
            import typer.main
            typer.main.get_command = interrupt
        app()
    """
    process = run(sys.executable, "-c", code, *arguments, cwd=tmp_path)
    assert process.stdout == "interrupted\n"
    assert process.stderr == ""
    assert process.returncode in (-signal.SIGINT, 130)
    assert not list(tmp_path.iterdir())
