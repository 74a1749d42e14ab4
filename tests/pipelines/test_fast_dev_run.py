"""``dimred train --fast-dev-run`` makes one step and everything around it, on the user's data and network."""

import shutil
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pytest
import yaml

from dimred.launch.job import make_job
from tests.helpers import commands
from tests.helpers.commands import REPOSITORY, TWO_RANKS
from tests.helpers.tiny_task import TASK

ONE_RANK = ("--devices", "1", "--device-target", "CPU")
dimred = partial(commands.dimred, environment={"PYTHONPATH": str(REPOSITORY)})  # for ``TASK``


@pytest.fixture
def config(tmp_path: Path) -> Path:
    (tmp_path / "one.yaml").write_text(yaml.safe_dump(TASK | {"stage_1": {"epochs": 70, "stop": "averaged"}}))
    return tmp_path / "one.yaml"


@pytest.mark.slow
def test_stage_1_goes_through_every_phase_and_leaves_nothing(tmp_path: Path, config: Path) -> None:
    done = dimred("train", "stage-1", ".", "--config", config, *ONE_RANK, "--fast-dev-run", cwd=tmp_path, status=0)
    assert "\nup to 70 epochs of 4 steps, 280 in all; snapshots, checkpoints and states take up to " in done.stdout
    of_trial = [line for line in done.stdout.splitlines() if line.startswith("(trial: figures mean nothing) ")]
    for words in ("averaged: uniform of 2 snapshots, steps 1 to 2: loss", "epoch 2/2  step 1  loss", "{'Accuracy': "):
        assert any(words in line for line in of_trial)
    assert not [line for line in done.stdout.splitlines() if "loss" in line and line not in of_trial]
    assert "went well on 1 rank in" in done.stdout.splitlines()[-1]
    assert "next: " not in done.stdout  # the network is gone
    assert list(tmp_path.iterdir()) == [config]


@pytest.fixture
def weights(tmp_path: Path) -> Path:
    """Copy a stage 1 of 4 steps an epoch and 4 snapshots; return its checkpoint, beside a file with a search."""
    run = shutil.copytree(REPOSITORY / "tests" / "golden" / "format_1" / "stage_1", tmp_path / "device0_stage_1")
    (tmp_path / "two.yaml").write_text(yaml.safe_dump(TASK | {"stage_2": {"search": {"n_components": 2}}}))
    return run / "checkpoint_stage_1" / "network-2_4.ckpt"


@pytest.mark.slow
def test_stage_2_fits_a_basis_and_makes_one_step(tmp_path: Path, weights: Path) -> None:
    before = sorted(tmp_path.rglob("*"))
    command = ("train", "stage-2", ".", weights, "--config", "two.yaml", *ONE_RANK, "--fast-dev-run")
    done = dimred(*command, "--set=epochs=9", cwd=tmp_path, status=0)
    assert "\n9 epochs of 4 steps, 36 in all; snapshots, checkpoints and states take up to " in f"\n{done.stdout}"
    assert "epoch 1/1  step 1" in done.stdout
    assert "a step and everything around it went well on 1 rank in" in done.stdout
    assert "stage 1 made" not in done.stdout + done.stderr  # a whole stage 2 makes 4 steps an epoch, too
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.slow
def test_a_second_host_finds_the_basis_that_the_first_one_fits(tmp_path: Path, weights: Path) -> None:
    before = sorted(tmp_path.rglob("*"))
    port = make_job("", "", [], out=tmp_path, devices=2, device_target="CPU").master_port
    several = ("--nodes", 2, "--master-addr", "127.0.0.1", "--master-port", port)
    command = ("train", "stage-2", ".", weights, "--config", "two.yaml", *TWO_RANKS, *several, "--fast-dev-run")
    with ThreadPoolExecutor() as hosts:
        done = list(hosts.map(lambda host: dimred(*command, "--node-rank", host, cwd=tmp_path, status=0), range(2)))
    assert all("went well on 2 ranks in" in host.stdout for host in done)
    assert sorted(tmp_path.rglob("*")) == before


def test_a_run_that_would_fail_fails_at_once_and_leaves_nothing(tmp_path: Path, config: Path) -> None:
    command = ("train", "stage-1", ".", "--config", config, *ONE_RANK, "--fast-dev-run")
    done = dimred(*command, "--loss", "tests.helpers.tiny_task:nothing_there", cwd=tmp_path, status=2)
    assert "tests.helpers.tiny_task:nothing_there" in done.stderr
    assert "went well" not in done.stdout
    assert "is removed, with its logs" in done.stderr
    assert list(tmp_path.iterdir()) == [config]
    refused = dimred(*command, "--resume", cwd=tmp_path, status=2)
    assert "--fast-dev-run runs in a new folder" in refused.stderr
