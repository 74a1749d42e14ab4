"""Kill ranks of a search and of a cooldown at random moments of the clock, and resume to the uninterrupted run's bytes.

Unlike in ``test_killed.py``, the moments are not those of writing: they lie anywhere between the start of the processes
and their end, one in each twentieth of the time that the uninterrupted job takes. DIMRED_KILLS (default 20) is their
number, and DIMRED_KILL_SEED (default 1) chooses them, and who is killed. By default
``tests/distributed`` has what the ranks save when one of them can't go on.
"""

import os
import random
import signal
import subprocess
import time
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.helpers.commands import REPOSITORY, TWO_RANKS, script
from tests.helpers.processes import nothing_is_left, others, soon
from tests.helpers.ranks_jobs import RanksJob, job_in_milliseconds, results_of, started, uninterrupted
from tests.helpers.results import differences

KILLS = int(os.environ.get("DIMRED_KILLS", "20"))
SEED = int(os.environ.get("DIMRED_KILL_SEED", "1"))
METHODS = {
    "search": {"epochs": 30, "search.n_components": 4, "save_every_steps": 3},
    "cooldown": {"method": "cooldown", "epochs": 30, "save_every_steps": 3},
}


class Kill(NamedTuple):
    """A kill of a job.

    Attributes:
        moment: fraction of the time that the uninterrupted job takes.
        victim: ``rank 0``, ``rank 1``, ``launcher`` or ``all``.
    """

    moment: float
    victim: str


def kills() -> list[Kill]:
    """Draw one moment in each of equal parts of the time, and who is killed, each as often as the others."""
    chance = random.Random(SEED)
    victims = [("rank 0", "rank 1", "launcher", "all")[number % 4] for number in range(KILLS)]
    chance.shuffle(victims)
    return [Kill((number + chance.random()) / KILLS, victim) for number, victim in enumerate(victims)]


class Timed(NamedTuple):
    """An uninterrupted job, and the seconds that it took."""

    job: RanksJob
    seconds: float


@pytest.fixture(scope="module")
def stage_1(tmp_path_factory: pytest.TempPathFactory) -> RanksJob:
    return job_in_milliseconds(tmp_path_factory.mktemp("stage 1"))


@pytest.fixture(scope="module", params=METHODS)
def stage_2(stage_1: RanksJob, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Timed:
    """Run stage 2 of the task that trains in milliseconds; a search fits its basis on the way."""
    weights = stage_1.folder / "device0_stage_1" / "checkpoint_stage_1" / "network-5_4.ckpt"
    options = [f"--set={key}={value}" for key, value in METHODS[request.param].items()]
    command = script(2, stage_1.folder, weights, *TWO_RANKS, *options)
    began = time.monotonic()
    job = uninterrupted(2, command, tmp_path_factory.mktemp(request.param), PYTHONPATH=str(REPOSITORY))
    return Timed(job, time.monotonic() - began)


def victims_of(job: subprocess.Popen[bytes], out: Path, victim: str) -> list[int]:
    """Return the processes of a job that are to be killed; none if they have not begun."""
    if victim == "launcher":
        return [job.pid]
    folder = out if victim == "all" else out / f"device{victim[-1]}_stage_2"
    return [
        process.pid
        for process in others()
        if any(word == str(folder) or word.startswith(f"{folder}/") for word in process.info["cmdline"] or [])
    ]


@pytest.mark.slow
@pytest.mark.parametrize("kill", kills(), ids=lambda kill: f"{kill.victim} at {kill.moment:.2f}")
def test_a_job_that_is_killed_at_any_moment_is_resumed_to_the_same_bytes(
    kill: Kill, stage_2: Timed, tmp_path: Path
) -> None:
    command = [*stage_2.job.command, "--out", str(tmp_path)]
    process, log = started(command, tmp_path, PYTHONPATH=str(REPOSITORY))
    time.sleep(kill.moment * stage_2.seconds)
    while not (found := victims_of(process, tmp_path, kill.victim)) and process.poll() is None:
        time.sleep(0.01)
    for pid in found:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    status = process.wait(timeout=120)
    states = sorted(path.stem for path in (tmp_path / "device0_stage_2" / "resume").glob("state-*.ckpt"))
    print(f"{kill}: status {status}, {states or 'no state yet'}")
    assert soon(lambda: nothing_is_left(tmp_path))
    again, log = started([*command, "--resume"], tmp_path, PYTHONPATH=str(REPOSITORY))
    assert again.wait(timeout=300) == 0, log.read_text()
    assert not differences(results_of(tmp_path, 2), stage_2.job.results)


@pytest.mark.slow
@pytest.mark.parametrize("stage_2", ["search"], indirect=True)
def test_ranks_that_were_suspended_end_with_advice_that_works(stage_2: Timed, tmp_path: Path) -> None:
    """After 50 s, as of a laptop's lid or ``scontrol suspend``, MindSpore's scheduler has given the ranks up."""
    command = [*stage_2.job.command, "--out", str(tmp_path)]
    process, log = started(command, tmp_path, PYTHONPATH=str(REPOSITORY))
    states = tmp_path / "device0_stage_2" / "resume"
    while len(list(states.glob("state-*.ckpt"))) < 2:
        assert process.poll() is None, log.read_text()
        time.sleep(0.01)
    ranks = [pid for victim in ("rank 0", "rank 1") for pid in victims_of(process, tmp_path, victim)]
    for pid in ranks:
        os.kill(pid, signal.SIGSTOP)
    time.sleep(50)
    for pid in ranks:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)
    assert process.wait(timeout=120) == 1
    assert "Once the cause is gone, run the same command with --resume." in log.read_text()
    assert soon(lambda: nothing_is_left(tmp_path))
    again, log = started([*command, "--resume"], tmp_path, PYTHONPATH=str(REPOSITORY))
    assert again.wait(timeout=300) == 0, log.read_text()
    assert not differences(results_of(tmp_path, 2), stage_2.job.results)
