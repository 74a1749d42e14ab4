"""What ``dimred compare`` checks before anything is trained, and how it ends the stage 1 that it started."""

import os
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from dimred.cli.compare import compare
from dimred.comparison.programs import run_logged
from dimred.config import StageOneConfig, config_text, load_config
from dimred.errors import ConfigError, StoppedError
from dimred.launch.signals import StopSignals
from tests.helpers.commands import STAGE_1, STAGE_2

SEEDS = {"seeds": "1", "stage_1_config": STAGE_1}


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({}, "give either the folders of stage 1 runs"),
        ({"runs": [Path("run")], "seeds": "1"}, "give either the folders of stage 1 runs"),
        ({"seeds": "1"}, "--seeds and --stage-1-config, stage 1's YAML file, need each other"),
        ({"runs": [Path("run")], "stage_1_config": STAGE_1}, "--seeds and --stage-1-config"),
        (SEEDS | {"seeds": "1,a"}, "--seeds is '1,a'; give whole numbers"),
        (SEEDS | {"at": "0,20"}, "--at has 0; give epochs from 1 on"),
        (SEEDS | {"at": "70,30"}, "is to be compared at epoch 30, but keeps snapshots from epoch 31 on"),
        (SEEDS | {"methods": "last, nonsense"}, "--methods has 'nonsense'; allowed: "),
    ],
)
def test_wrong_calls_train_nothing(tmp_path: Path, options: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError) as refused:
        compare("data", STAGE_2, out=tmp_path / "out", **options)
    assert said in str(refused.value)
    assert not (tmp_path / "out").exists()


def test_a_run_that_has_no_checkpoint_yet_is_to_be_finished_first(tmp_path: Path) -> None:
    settings = load_config(StageOneConfig, STAGE_1, ["stop=averaged"])
    (tmp_path / "run" / "checkpoint_stage_1").mkdir(parents=True)
    (tmp_path / "run" / "config.yaml").write_text(config_text(settings))
    with pytest.raises(ConfigError, match=r"no full checkpoint of epoch 0 .*; finish stage 1 first"):
        compare("data", STAGE_2, [tmp_path / "run"], out=tmp_path / "out")


def test_ctrl_c_waits_until_the_stage_1_has_saved_its_state(tmp_path: Path) -> None:
    log, saved = tmp_path / "stage_1.log", tmp_path / "saved"

    def interrupt() -> None:
        while not (log.exists() and "ready" in log.read_text()):
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=interrupt).start()
    with pytest.raises(StoppedError), StopSignals():
        run_logged([sys.executable, str(Path(__file__).with_name("slow_to_save.py")), str(saved)], log)
    assert saved.read_text() == "saved"


def test_a_signal_is_told_with_what_to_do(tmp_path: Path) -> None:
    """MindSpore would end the process without a word, as by SIGTERM, whichever came."""
    out = tmp_path / "out"

    def interrupt() -> None:
        while not (out / "seed_1" / "stage_1.log").exists():
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=interrupt).start()
    with pytest.raises(StoppedError) as stopped:
        compare("data", STAGE_2, out=out, **SEEDS)
    assert str(stopped.value) == f"stopped by SIGTERM; what is finished is in {out}; the same command goes on"
    assert stopped.value.exit_status == 143
