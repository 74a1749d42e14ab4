"""Real jobs that end in every way. Ranks that join MindSpore's cluster are in tests/distributed."""

import os
import shlex
import signal
import socket
import subprocess
import time
from pathlib import Path

import psutil
import pytest

from dimred.errors import ConfigError
from dimred.launch.job import make_job
from dimred.launch.launcher import RankFailedError, launch
from dimred.launch.processes import LogTail, remove_folders
from tests.helpers.processes import held, nothing_is_left, soon
from tests.launch.jobs import Launcher, job

GO_ON = "Once the cause is gone, run the same command with --resume."
HIDING = ("random", "token", "signal", "queue")
WITH_IPV6 = pytest.mark.skipif(not Path("/proc/net/if_inet6").exists(), reason="this machine has no IPv6")


def test_one_rank_needs_no_scheduler(tmp_path, capfd):
    out = tmp_path / "with blanks é"
    assert launch(job(out, "fine")) == 0
    assert "rank 0 of 1 ö fine\n" in capfd.readouterr().out
    folder = out / "device0_stage_1"
    assert (folder / "train.log").read_text() == "rank 0 of 1 ö fine\n"
    environment = (folder / "env.log").read_text().splitlines()
    assert "RANK_ID=0" in environment
    assert shlex.join(job(out, "fine").command(0)) in environment[1]
    assert not any(line.startswith("MS_ROLE") for line in environment)


def test_files_in_the_current_folder_hide_no_module_of_python(tmp_path, monkeypatch, capfd):
    for name in HIDING:
        (tmp_path / f"{name}.py").write_text(f"raise RuntimeError('{name} is hidden')")
    monkeypatch.chdir(tmp_path)
    ranks = job(tmp_path / "out", "fine")
    assert launch(ranks) == 0
    assert "rank 0 of 1 ö fine\n" in capfd.readouterr().out
    python = ranks.scheduler_command()[: ranks.scheduler_command().index("-c")]
    subprocess.run([*python, "-c", f"import {', '.join(HIDING)}"], check=True)


def test_a_failed_rank_is_named_with_the_end_of_the_log_of_this_attempt(tmp_path):
    for words in ("the first reason", "the second reason"):
        with pytest.raises(RankFailedError, match="rank 1 of 2 ended with status 3") as failed:
            launch(job(tmp_path, "fail", "1", "3", words, devices=2))
        assert f"  error: {words}" in str(failed.value)
    assert "the first reason" not in str(failed.value)
    log = tmp_path / "device1_stage_1" / "train.log"
    assert str(log) in str(failed.value)
    assert "the first reason" in log.read_text()
    assert failed.value.exit_status == 3


@pytest.mark.parametrize("address", ["127.0.0.1", pytest.param("::1", marks=WITH_IPV6)])
def test_a_port_that_another_program_has_is_refused_and_a_free_one_is_not(tmp_path, address):
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.create_server((address, 0), family=family) as other:
        port = other.getsockname()[1]
        of_ranks = job(tmp_path, "fine", devices=2, nodes=2, node_rank=0, master_addr=address, master_port=port)
        with pytest.raises(ConfigError, match=rf"port {port} of --master-addr {address} .*\(Address already in use\)"):
            of_ranks.check(resume=False)
    of_ranks.check(resume=False)


def test_logs_alone_are_no_earlier_results_and_are_kept(tmp_path):
    launch(job(tmp_path, "fine"))
    (tmp_path / "device0_stage_1" / ".writing-0123456789abcdef-0123abcd.tmp").write_text("")  # of a run that was killed
    launch(job(tmp_path, "fine"))
    assert (tmp_path / "device0_stage_1" / "train.log").read_text().count("fine") == 2
    result = tmp_path / "device0_stage_1" / "result.json"
    result.write_text("{}")
    with pytest.raises(ConfigError, match=r"device0_stage_1' holds earlier results; continue them with --resume"):
        launch(job(tmp_path, "fine"))
    assert launch(job(tmp_path, "fine"), resume=True) == 0
    assert result.read_text() == "{}"


def test_a_killed_rank_ends_the_others_and_is_named_whatever_follows(tmp_path):
    launcher = Launcher(tmp_path, "wait", devices=2)
    pids = launcher.pids(2)
    os.kill(pids["1"], signal.SIGKILL)
    time.sleep(0.7)  # the launcher has seen it, and waits for the other rank's words
    launcher.process.send_signal(signal.SIGINT)
    status, _, err = launcher.end()
    assert "error: rank 1 of 2 was killed by SIGKILL, as happens when this host runs out of memory; " in err
    assert f"; the other ranks were ended. {GO_ON} The end of its log" in err
    assert "  rank 1 of 2 ö wait" in err
    assert status == 128 + signal.SIGKILL
    assert soon(lambda: nothing_is_left(tmp_path))


def test_the_first_rank_s_error_is_shown_once(tmp_path):
    """Standard output has its log; standard error names the log."""
    status, out, err = Launcher(tmp_path, "fail", "0", "3", "the disk is gone", devices=1).end()
    assert status == 3
    assert (out + err).count("the disk is gone") == 1
    log = tmp_path / "device0_stage_1" / "train.log"
    assert err == f"error: rank 0 of 1 ended with status 3. Its log, shown above, is {log}\n"


def test_a_scheduler_that_ends_ends_the_ranks_and_the_job_can_go_on(tmp_path):
    """As it does when ranks that were suspended, or on a host that was, have not been heard for half a minute."""
    launcher = Launcher(tmp_path, "wait", devices=2)
    ranks = launcher.pids(2).values()
    [scheduler] = [child for child in psutil.Process(launcher.process.pid).children() if child.pid not in ranks]
    scheduler.kill()
    status, _, err = launcher.end()
    assert "error: the scheduler was killed by SIGKILL" in err
    assert f"; the ranks were ended. {GO_ON} The end of its log" in err
    assert status == 1
    assert soon(lambda: nothing_is_left(tmp_path))


@pytest.mark.parametrize(("status", "goes_on"), [("1", True), ("2", False), ("3", False), ("4", False), ("127", True)])
def test_a_rank_whose_words_tell_what_to_do_is_not_told_to_go_on(tmp_path, status, goes_on):
    with pytest.raises(RankFailedError, match=f"rank 0 of 1 ended with status {status}") as failed:
        launch(job(tmp_path, "fail", "0", status, "words"))
    assert (GO_ON in str(failed.value)) == goes_on


def test_a_stalled_rank_is_named_and_the_job_ended(tmp_path):
    with pytest.raises(RankFailedError, match=r"rank 1 is reading the batch of step 13, and rank 0 waited") as stalled:
        launch(job(tmp_path, "stall", "1", "2", devices=2), stall_timeout_seconds=2)
    assert f"; the ranks were ended. {GO_ON} The end of its log" in str(stalled.value)
    assert str(tmp_path / "device1_stage_1" / "train.log") in str(stalled.value)
    assert stalled.value.exit_status == 1
    assert soon(lambda: nothing_is_left(tmp_path))


@pytest.mark.parametrize("how", ["measure", pytest.param("log", marks=pytest.mark.slow)])
def test_a_rank_that_reads_batches_or_waits_for_disk_space_is_not_stalled(tmp_path, how):
    assert launch(job(tmp_path, how, "3"), stall_timeout_seconds=1.5) == 0


@pytest.mark.parametrize(("devices", "ranks"), [(1, "0"), (2, "1")])
def test_bad_input_that_a_rank_finds_is_said_once_and_leaves_nothing(tmp_path, capfd, monkeypatch, devices, ranks):
    monkeypatch.setattr("dimred.launch.launcher.SECONDS_FOR_RANK_0", 1.0)
    with pytest.raises(RankFailedError) as refused:
        launch(job(tmp_path / "new" / "out", "refuse", ranks, devices=devices))
    assert str(refused.value) == f"DATA is not what rank {ranks[0]} wants"
    assert refused.value.exit_status == 2
    assert "DATA" not in "".join(capfd.readouterr())
    assert list(tmp_path.iterdir()) == []
    assert soon(lambda: nothing_is_left(tmp_path))


def test_a_refused_resume_leaves_the_run_as_it_is(tmp_path):
    folder = tmp_path / "device0_stage_1"
    folder.mkdir()
    before = {"result.json": "{}", "train.log": "of the run\n"}
    for name, text in before.items():
        (folder / name).write_text(text)
    with pytest.raises(RankFailedError, match="DATA is not what"):
        launch(job(tmp_path, "refuse", "0"), resume=True)
    assert all((folder / name).read_text().startswith(text) for name, text in before.items())


def test_a_refused_job_leaves_the_folder_to_the_one_that_was_started_at_the_same_time(tmp_path):
    """That one has locked the folder, which the refused job made, and fits a basis before it writes anything."""
    folder = tmp_path / "device0_stage_2"
    folder.mkdir()
    (folder / "train.log").write_text("of both\n")
    with held("from dimred.io.atomic import FolderLock\nwith FolderLock(target, 'x'): wait()", folder):
        remove_folders([folder, tmp_path])
        assert sorted(path.name for path in folder.iterdir()) == [".lock", "train.log"]
    assert soon(lambda: remove_folders([folder, tmp_path]) or not tmp_path.exists())
    tmp_path.mkdir()


def test_a_rank_that_only_follows_rank_0_does_not_hide_its_fault(tmp_path, capfd):
    with pytest.raises(RankFailedError, match="rank 0 of 2 ended with status 3"):
        launch(job(tmp_path, "follow", devices=2))
    assert "error: the disk is full\n" in capfd.readouterr().out
    assert "the disk is full" in (tmp_path / "device0_stage_1" / "train.log").read_text()


def test_another_rank_that_fails_too_can_say_why(tmp_path, capfd):
    with pytest.raises(RankFailedError, match=r"rank 1 of 2 ended with status 3"):
        launch(job(tmp_path, "together", devices=2))
    assert "error: the words of rank 0\n" in capfd.readouterr().out


def test_a_rank_that_had_begun_is_a_failure_with_its_log(tmp_path, capfd):
    with pytest.raises(RankFailedError, match="rank 0 of 1 ended with status 2"):
        launch(job(tmp_path, "begin and refuse"))
    assert "error: too late\n" in capfd.readouterr().out
    assert (tmp_path / "device0_stage_1" / "train.log").exists()


def test_a_signal_lets_the_ranks_save_and_nothing_is_left(tmp_path):
    """Slurm and systemd send a signal to every process of a job, also to the scheduler."""
    launcher = Launcher(tmp_path, "save", "75", devices=2)
    launcher.pids(2)
    below = psutil.Process(launcher.process.pid).children(recursive=True)
    assert len(below) == 3
    for process in (*below, launcher.process):
        process.send_signal(signal.SIGUSR1)
    status, out, err = launcher.end()
    assert status == 75, err
    assert "rank 0 of 2 ö save" in out
    assert all((tmp_path / f"device{rank}_stage_1" / "saved").exists() for rank in range(2))
    assert soon(lambda: nothing_is_left(tmp_path))


@pytest.mark.parametrize(("number", "saved", "status"), [(signal.SIGINT, "143", 130), (signal.SIGHUP, "75", 75)])
def test_the_rank_saves_though_nobody_reads_what_the_launcher_shows(tmp_path, number, saved, status):
    """Ctrl-C ends ``tee`` in ``dimred train | tee`` too, and both pipes break when the terminal ends.

    The rank gets SIGTERM and ends with 143 if all is well; the job's status is that of the signal that came.
    """
    launcher = Launcher(tmp_path, "save", saved, devices=1)
    launcher.pids(1)
    launcher.process.stdout.close()
    launcher.process.stderr.close()
    launcher.process.send_signal(number)
    assert launcher.process.wait(timeout=60) == status
    assert (tmp_path / "device0_stage_1" / "saved").exists()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"devices": 3, "nodes": 2}, r"--devices is 3, for all nodes together; it must be a multiple of --nodes 2"),
        ({"devices": 4, "nodes": 2, "master_addr": "10.0.0.1"}, r"--node-rank is missing: with 2 nodes"),
        ({"devices": 4, "nodes": 2, "node_rank": 1}, r"--master-addr is missing"),
        ({"devices": 4, "nodes": 2, "node_rank": 2, "master_addr": "a"}, r"--node-rank is 2; .* must be 0 to 1"),
    ],
)
def test_wrong_numbers_of_devices_and_nodes_are_refused(tmp_path, options, message):
    with pytest.raises(ConfigError, match=message):
        job(tmp_path, "fine", **options)


def test_a_missing_ascend_device_or_collective_library_is_said_before_anything_starts(tmp_path, monkeypatch):
    two, one = (make_job("x", "stage_1", [], out=tmp_path, devices=n, device_target="Ascend") for n in (2, 1))
    with pytest.raises(ConfigError, match="--device-target is Ascend, but this host has no Ascend device"):
        launch(two)
    monkeypatch.setattr("dimred.launch.ascend.ASCEND_DEVICE", tmp_path)  # there is a device, but not its software
    with pytest.raises(
        ConfigError, match=r"--devices asks .*, but .* has no module 'hccl'.* source CANN's set_env\.sh"
    ):
        launch(two)
    one.check(resume=False)
    assert not list(tmp_path.iterdir())


def test_the_description_of_a_job_has_every_rank_and_starts_nothing(tmp_path, monkeypatch):
    monkeypatch.delenv("HCCL_CONNECT_TIMEOUT", raising=False)
    four = make_job(
        "dimred.pipelines.stage_1",
        "stage_1",
        ["data"],
        out=tmp_path,
        devices=4,
        nodes=2,
        node_rank=1,
        master_addr="10.0.0.1",
        device_target="Ascend",
    )
    shown = "\n".join(four.describe())
    assert "MS_WORKER_NUM=4 MS_SCHED_HOST=10.0.0.1 MS_SCHED_PORT=8118" in shown
    assert "MS_SCHED " not in shown  # it runs on node 0
    assert "rank 2:" in shown
    assert "RANK_ID=3 RANK_SIZE=4 DEVICE_ID=1 MS_ROLE=MS_WORKER MS_NODE_ID=3" in shown
    assert shlex.join(four.command(3)) in shown
    assert " HCCL_CONNECT_TIMEOUT=600\n" in shown
    monkeypatch.setenv("HCCL_CONNECT_TIMEOUT", "1800")
    assert four.environment()["HCCL_CONNECT_TIMEOUT"] == "1800"
    assert not list(tmp_path.iterdir())


NOISE = (
    "[INFO] DISTRIBUTED(20472,7f01,python):2026-11-21-18:16:39 [tcp_client.cc:367] Start] Event base dispatch success!"
)


def test_whole_lines_are_shown_once_without_mindspores_noise_and_an_epochs_line_for_programs(tmp_path, capsys):
    log = tmp_path / "train.log"
    log.write_text("of an earlier run\n")
    tail = LogTail(log)
    with log.open("a") as file:
        for text, expected in [
            ("epoch: 1 st", ""),
            ("ep: 20 loss is 2\nnan loss is 2\nnext", "nan loss is 2\n"),
            (f" line\n{NOISE}\n[WARNING] PIPELINE(1,7f,python):late\n", "next line\n"),
            ("[ERROR] ME(1:2,MainProcess): it failed\n[WARNING] of my own\n", None),
            ("no end", ""),
        ]:
            file.write(text)
            file.flush()
            tail.show()
            assert capsys.readouterr().out == (text if expected is None else expected)
    tail.show(to_the_end=True)
    assert capsys.readouterr().out == "no end"


def test_a_log_that_can_not_be_read_for_a_moment_ends_nothing(tmp_path, capsys):
    """This happens on a network disk that is away; here a folder replaces the file."""
    log = tmp_path / "train.log"
    tail = LogTail(log)
    log.mkdir()
    tail.show()
    log.rmdir()
    log.write_text("back again\n")
    tail.show()
    assert capsys.readouterr().out == "back again\n"
