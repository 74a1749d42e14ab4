"""Jobs of two ranks give the same bytes when killed, after a data fault, on two hosts and by a rank table.

Whole jobs that are ended and resumed are slow, and so is the recipe of the digits; by default a job of the task that
trains in milliseconds runs whole, in PyNative. The parts are quick: ``tests/distributed`` has the state that ranks save
when one of them can't go on, at any step, and how all of them get it back.
"""

import json
import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dimred.checkpoints.checkpoint_io import read_checkpoint
from dimred.checkpoints.series import CheckpointSeries
from dimred.checkpoints.states import RunStates
from dimred.checkpoints.trainable import is_statistic
from dimred.launch.job import make_job
from dimred.launch.rank_table import make_rank_table
from tests.helpers.commands import DIGITS, REPOSITORY, TWO_RANKS, TwoStages, next_lines, run, script
from tests.helpers.network_hosts import NetworkHost, two_network_hosts
from tests.helpers.processes import nothing_is_left, soon
from tests.helpers.ranks_jobs import RanksJob, job_in_milliseconds, program_of, results_of, started, uninterrupted
from tests.helpers.results import differences, differing

ONE_OPTIONS = [
    "epochs=5",
    "data.batch_size=10",
    "schedule.total_epochs=6",
    "schedule.warmup_epochs=1",
    "snapshots.per_epoch=2",
    "snapshots.first_epoch=1",
    "snapshots.keep=9",
    "save_every_steps=3",
    "data.eval_split=val",
    "stop.patience=9",
    "reestimate_batches=2",
    "loss=mindspore.nn:CrossEntropyLoss",
]
TWO_OPTIONS = [
    "epochs=2",
    "data.batch_size=5",
    "search.n_components=4",
    "save_every_steps=3",
    "reestimate_batches=2",
    "data.eval_split=val",
]


@pytest.fixture(scope="module")
def short_job(tmp_path_factory: pytest.TempPathFactory) -> RanksJob:
    return job_in_milliseconds(tmp_path_factory.mktemp("two ranks ü"), mode="pynative")


@pytest.fixture(scope="module")
def job_1(few_digits: Path, tmp_path_factory: pytest.TempPathFactory) -> RanksJob:
    options = [f"--set={option}" for option in ONE_OPTIONS]
    return uninterrupted(
        1, script(1, few_digits, "--config", DIGITS, *TWO_RANKS, *options), tmp_path_factory.mktemp("ranks of digits")
    )


@pytest.fixture(scope="module")
def job_2(few_digits: Path, two_stages: TwoStages, tmp_path_factory: pytest.TempPathFactory) -> RanksJob:
    options = [f"--set={option}" for option in TWO_OPTIONS]
    paths = (few_digits, two_stages.weights, two_stages.matrix)
    return uninterrupted(
        2, script(2, *paths, "--config", DIGITS, *TWO_RANKS, *options), tmp_path_factory.mktemp("two ranks again")
    )


JOBS = ["short_job", *(pytest.param(name, marks=pytest.mark.slow) for name in ("job_1", "job_2"))]


@pytest.mark.parametrize("name", JOBS)
def test_the_log_lines_appear_once_and_in_every_ranks_log(name: str, request: pytest.FixtureRequest) -> None:
    job: RanksJob = request.getfixturevalue(name)
    assert "loss is" not in job.shown
    accuracy = re.findall(r"^\{'Accuracy': [01]\.\d+\}$", job.shown, re.MULTILINE)
    assert len(accuracy) == 1
    for rank in (0, 1):
        folder = job.folder / f"device{rank}_stage_{job.stage}"
        log = (folder / "train.log").read_text()
        assert accuracy[0] in log
        assert len(re.findall(r"^epoch: 1 step: \d+ loss is \d+\.\d+$", log, re.MULTILINE)) == 1
        assert f"RANK_ID={rank}\n" in (folder / "env.log").read_text()
        named = re.findall(r"^(?:network|next): ", log, re.MULTILINE)
        assert bool(named) is (
            rank == 0
        )  # another rank, such as the first of a second host, has no files to go on with


@pytest.mark.parametrize("name", JOBS)
def test_rank_0_alone_saves(name: str, request: pytest.FixtureRequest) -> None:
    job: RanksJob = request.getfixturevalue(name)
    saved = job.folder.glob("device1_*/**/*")
    assert [path for path in saved if path.suffix in (".ckpt", ".npy", ".h5")] == []
    out = job.folder / f"device0_stage_{job.stage}"
    if job.stage == 1:
        assert len(CheckpointSeries.open(out / "checkpoint_stage_1" / "checkpoint_pca")) == 9
        return
    result = json.loads((out / "result.json").read_text())
    assert result["steps"] == 2 * 20
    assert result["totals"]["accepted_steps"] > 0
    assert result["totals"]["moved_outside"] > 0


def test_the_printed_commands_of_two_ranks_run_as_they_are_in_another_folder(
    short_job: RanksJob, tmp_path: Path
) -> None:
    """The recipe searches in 32 directions, but stage 1 kept 9 snapshots."""
    make_basis, train = next_lines(short_job.shown)
    done = run("bash", "-c", make_basis, cwd=tmp_path, status=0)
    assert "8 directions from 9 snapshots" in done.stdout
    done = run("bash", "-c", f"{train} --dry-run", cwd=tmp_path, status=0)
    assert "node 0 of 1: ranks 0 to 1 of 2\n" in done.stdout
    assert done.stdout.count("--set=search.n_components=8") == 2


@pytest.mark.slow
@pytest.mark.parametrize(("stage", "rank"), [(1, 0), (1, 1), (2, 0), (2, 1)])
def test_a_killed_rank_ends_the_job_and_resume_gives_the_same_bytes(
    stage: int, rank: int, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    kill_and_resume(request.getfixturevalue(f"job_{stage}"), rank, 2, tmp_path)


def kill_and_resume(job: RanksJob, rank: int, n_ranks: int, tmp_path: Path) -> None:
    """Run a job again, kill a rank of it, and resume it: it must leave the bytes of the first one."""
    stage = job.stage
    command = [*job.command, "--out", str(tmp_path)]
    process, log = started(command, tmp_path)
    wait_for_a_state(process, tmp_path / f"device0_stage_{stage}")
    os.kill(program_of(tmp_path / f"device{rank}_stage_{stage}"), signal.SIGKILL)
    assert process.wait(timeout=30) == 128 + signal.SIGKILL
    assert (
        f"error: rank {rank} of {n_ranks} was killed by SIGKILL, as happens when this host runs out " in log.read_text()
    )
    assert "; the other ranks were ended." in log.read_text()
    assert soon(lambda: nothing_is_left(tmp_path))
    assert differences(results_of(tmp_path, stage), job.results)  # it was killed before its end
    again = run(*command, "--resume", cwd=tmp_path, status=0)
    assert "continuing after step" in again.stdout
    assert not differences(results_of(tmp_path, stage), job.results)


@pytest.mark.slow
@pytest.mark.parametrize("stage", [1, 2])
def test_three_ranks_in_pynative_that_are_killed_and_resumed_give_the_same_bytes(
    stage: int, few_digits: Path, two_stages: TwoStages, tmp_path: Path
) -> None:
    paths = (few_digits,) if stage == 1 else (few_digits, two_stages.weights, two_stages.matrix)
    sets = [f"--set={option}" for option in ("mode=pynative", *(ONE_OPTIONS if stage == 1 else TWO_OPTIONS))]
    three = ("--devices", "3", "--device-target", "CPU")
    folders = [tmp_path / name for name in ("whole", "killed")]
    for folder in folders:
        folder.mkdir()
    job = uninterrupted(stage, script(stage, *paths, "--config", DIGITS, *three, *sets), folders[0])
    kill_and_resume(job, 2, 3, folders[1])


@pytest.mark.slow
@pytest.mark.parametrize("stage", [1, 2])
def test_an_image_that_one_rank_cannot_read_ends_the_job_and_resume_gives_the_same_weights(
    stage: int, few_digits: Path, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    job: RanksJob = request.getfixturevalue(f"job_{stage}")
    data = tmp_path / "data"
    shutil.copytree(few_digits, data)
    image = sorted((data / "train").glob("*/*"))[7]
    whole = image.read_bytes()
    command = [str(data) if word == str(few_digits) else word for word in job.command] + ["--out", str(tmp_path)]
    process, log = started(command, tmp_path)
    wait_for_a_state(process, tmp_path / f"device0_stage_{stage}")
    image.write_bytes(b"no image")
    assert process.wait(timeout=60) == 3, log.read_text()
    for words in (str(image), "--resume", f"he last good state is {tmp_path / f'device0_stage_{stage}'}"):
        assert words in log.read_text()
    assert soon(lambda: nothing_is_left(tmp_path))
    state = RunStates(tmp_path / f"device0_stage_{stage}").newest(pytest.fail)
    image.write_bytes(whole)
    again = run(*command, "--resume", cwd=tmp_path, status=0)
    assert f"continuing after step {state.values['done']} of epoch {state.values['epoch']}" in again.stdout
    # The fault changes the step at which statistics are averaged over the ranks, so their last bits may differ.
    # The pins have the path of DATA, which is a copy here.
    for name in set(differing(results_of(tmp_path, stage), job.results)) - {"pins.json"}:
        found, expected = (arrays_of(files[name], tmp_path) for files in (results_of(tmp_path, stage), job.results))
        for parameter, value in expected.items():
            if is_statistic(parameter, {}):
                np.testing.assert_allclose(found[parameter], value, rtol=1e-5, err_msg=f"{name}: {parameter}")
            else:
                assert found[parameter].tobytes() == value.tobytes(), f"{name}: {parameter}"


def arrays_of(found: Any, folder: Path) -> dict[str, np.ndarray]:
    """Return the arrays of a checkpoint, given as its bytes or as the values of a state."""
    if isinstance(found, dict):
        return {
            name: np.frombuffer(value, np.float32 if is_statistic(name, {}) else np.uint8)
            for name, value in found.items()
        }
    (folder / "copy.ckpt").write_bytes(found)
    return read_checkpoint(folder / "copy.ckpt")


def two_hosts(folder: Path) -> tuple[list[Path], str]:
    """Make the folders of two hosts, both on this machine, and find a port for them."""
    hosts = [folder / f"host {number}" for number in range(2)]
    for host in hosts:
        host.mkdir()
    return hosts, str(make_job("", "", [], out=folder, devices=2, device_target="CPU").master_port)


def wait_for_a_state(process: subprocess.Popen[bytes], folder: Path) -> None:
    """Wait for a state after some steps; the run has begun a moment after that of step 0."""
    deadline, states = time.monotonic() + 300, folder / "resume"
    while not any(states.glob("state-[1-9]*.ckpt")) and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.01)
    assert process.poll() is None


@pytest.mark.slow
@pytest.mark.parametrize("by", ["--nodes", "--rank-table"])
@pytest.mark.parametrize("stage", [1, 2])
def test_two_hosts_give_the_bytes_of_one(
    stage: int, by: str, two_stages: TwoStages, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """Both hosts are on loopback with folders of their own; the second has neither weights, snapshots nor basis."""
    job: RanksJob = request.getfixturevalue(f"job_{stage}")
    paths = {str(two_stages.weights): "weights.ckpt", str(two_stages.matrix): "pca_mat.npy"}
    if stage == 2:  # these WEIGHTS are in no run, so that nothing can be taken over from stage 1
        paths[str(DIGITS)] = str(job.folder / "device0_stage_2" / "config.yaml")
    command = [paths.get(word, word) for word in job.command]
    hosts, port = two_hosts(tmp_path)
    if by == "--nodes":
        command += ["--nodes", "2", "--master-addr", "127.0.0.1", "--master-port", port]
    else:
        table = make_rank_table(["127.0.0.1", "127.0.0.2"], ["192.168.0.1", "192.168.0.2"])
        (tmp_path / "table.json").write_text(json.dumps(table))
        command += ["--rank-table", str(tmp_path / "table.json"), "--master-port", port]
    (hosts[0] / "weights.ckpt").symlink_to(two_stages.weights)
    (hosts[0] / "checkpoint_pca").symlink_to(two_stages.snapshots)
    for file in (two_stages.matrix, two_stages.matrix.with_suffix(".h5")):
        (hosts[0] / file.name).symlink_to(file)
    jobs = [  # as many threads as each of two ranks has on one host of 2 cores
        started([*command, "--node-rank", str(number)], host, OMP_NUM_THREADS="1") for number, host in enumerate(hosts)
    ]
    statuses = [process.wait(timeout=300) for process, _ in jobs]
    assert statuses == [0, 0], "".join(log.read_text() for _, log in jobs)
    assert not differences(results_of(hosts[0], stage), job.results)
    assert not (hosts[0] / f"device1_stage_{stage}").exists()
    assert (hosts[1] / f"device1_stage_{stage}" / "train.log").exists()


@pytest.mark.slow
@pytest.mark.parametrize("dead", [0, 1])
def test_a_host_that_dies_ends_the_job_on_the_other(dead: int, job_1: RanksJob, tmp_path: Path) -> None:
    """MindSpore's heartbeat tells the other host within about 35 s here."""
    hosts, port = two_hosts(tmp_path)
    command = [*job_1.command, "--set=epochs=400", "--set=schedule.total_epochs=401", "--nodes", "2"]
    command += ["--master-addr", "127.0.0.1", "--master-port", port]
    jobs = [started([*command, "--node-rank", str(number)], host) for number, host in enumerate(hosts)]
    wait_for_a_state(jobs[0][0], hosts[0] / "device0_stage_1")
    jobs[dead][0].kill()
    began = time.monotonic()
    process, log = jobs[1 - dead]
    jobs[dead][0].wait()
    assert process.wait(timeout=120) not in (0, None)
    print(f"host {1 - dead} ended {time.monotonic() - began:.1f} s after host {dead}")
    failed = "rank 1 of 2" if dead == 0 else "rank 0 of 2|the scheduler"  # on host 0, where either may end first
    assert re.search(rf"error: ({failed}) .*if its log names no cause, look at the other hosts", log.read_text())
    assert soon(lambda: nothing_is_left(tmp_path))


def started_in_networks(
    hosts: Sequence[NetworkHost], command: Sequence[str], folder: Path, *options: str
) -> list[tuple[subprocess.Popen[bytes], Path]]:
    """Start the command on each host, in a folder of its own, by a rank table with the addresses of both."""
    table = make_rank_table([host.address for host in hosts], ["192.168.0.1", "192.168.0.2"])
    (folder / "table.json").write_text(json.dumps(table))
    jobs = []
    for number, host in enumerate(hosts):
        place = folder / f"host {number}"
        place.mkdir(exist_ok=True)
        words = host.command(*command, "--rank-table", folder / "table.json", "--node-rank", number, *options)
        jobs.append(started(words, place, OMP_NUM_THREADS="1", PYTHONPATH=str(REPOSITORY)))
    return jobs


@pytest.mark.slow
def test_two_hosts_with_networks_of_their_own_give_the_bytes_of_one(short_job: RanksJob, tmp_path: Path) -> None:
    """Unlike on loopback, a rank that listens on another address than its host's is found by nobody."""
    with two_network_hosts() as hosts:
        jobs = started_in_networks(hosts, short_job.command, tmp_path)
        statuses = [process.wait(timeout=300) for process, _ in jobs]
    assert statuses == [0, 0], "".join(log.read_text() for _, log in jobs)
    assert not differences(results_of(tmp_path / "host 0", 1), short_job.results)
    assert f"MS_SCHED_HOST={hosts[0].address}\n" in (tmp_path / "host 1/device1_stage_1/env.log").read_text()


@pytest.mark.slow
def test_a_cable_that_is_pulled_ends_both_hosts_and_resume_gives_the_same_bytes(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """MindSpore's heartbeat tells both hosts within about 40 s."""
    options = {"epochs": 150, "schedule.total_epochs": 151, "save_every_steps": 50}
    options |= {"evaluate_every_epochs": 150, "checkpoints.every_epochs": 150}
    whole = job_in_milliseconds(tmp_path_factory.mktemp("one host"), **options)
    with two_network_hosts() as hosts:
        jobs = started_in_networks(hosts, whole.command, tmp_path)
        wait_for_a_state(jobs[0][0], tmp_path / "host 0/device0_stage_1")
        hosts[1].pull_the_cable()
        began = time.monotonic()
        statuses = [process.wait(timeout=300) for process, _ in jobs]
        print(f"both hosts ended {time.monotonic() - began:.1f} s after the cable was pulled")
    assert 0 not in statuses
    assert all("look at the other hosts" in log.read_text() for _, log in jobs)
    assert soon(lambda: nothing_is_left(tmp_path))
    with two_network_hosts() as hosts:
        jobs = started_in_networks(hosts, whole.command, tmp_path, "--resume")
        statuses = [process.wait(timeout=300) for process, _ in jobs]
    assert statuses == [0, 0], "".join(log.read_text() for _, log in jobs)
    assert "continuing after step" in jobs[0][1].read_text()
    assert not differences(results_of(tmp_path / "host 0", 1), whole.results)
