"""Stage 1 ends when its averaged weights gain no more; measuring them leaves no trace in the training."""

from pathlib import Path
from typing import Any

import mindspore as ms
import numpy as np
import pytest

from dimred.config import StageOneConfig
from dimred.errors import ConfigError
from dimred.evaluate.selection import Candidate
from dimred.run.averaged_stop import Plateau
from dimred.run.metrics import read_metrics
from tests.helpers.results import STATE_LOSSES, differences, results
from tests.helpers.tiny_run import TASK, stage_1_run

STAGE_1: dict[str, Any] = {
    "epochs": 6,
    "schedule": {"name": "constant", "peak": 0.1, "warmup_epochs": 1, "total_epochs": 1},
    "checkpoints": {"every_epochs": 6, "keep": 9},
    "snapshots": {"per_epoch": 2, "first_epoch": 2, "keep": 8},
    "evaluate_every": 6,
}
STOP: dict[str, Any] = {"every_epochs": 2, "patience": 9, "reestimate_batches": 2}
AT_REST = {"schedule": {"name": "constant", "peak": 1e-30, "warmup_epochs": 0}}


def settings(**options: Any) -> StageOneConfig:
    return StageOneConfig.model_validate(TASK | STAGE_1 | options)


@pytest.fixture(autouse=True, scope="module")
def _graph_mode() -> None:
    ms.set_context(mode=ms.GRAPH_MODE)


def measured(folder: Path) -> list[dict[str, Any]]:
    return [record for record in read_metrics(folder / "metrics.jsonl") if "averaged_loss" in record]


def test_a_training_that_is_measured_is_the_one_that_is_not_to_the_byte(tmp_path: Path) -> None:
    for name, stop in (("plain", None), ("measured", STOP)):
        stage_1_run(settings(stop=stop))(tmp_path / name, False)
    records = measured(tmp_path / "measured")
    assert [record["epoch"] for record in records] == [2, 4, 6]
    assert [record["averaged_gain"] is None for record in records] == [True, False, False]
    assert all(record["averaged_standard_error"] > 0 for record in records)
    assert all(record["averaged_window"] in (2, 3, 4, 6, 8) for record in records)
    plain, found = results(tmp_path / "plain"), results(tmp_path / "measured")
    assert len(found.pop(STATE_LOSSES)["averaged_loss:best"]) == 9  # val's samples
    assert not plain.pop(STATE_LOSSES)
    for name in ("metrics.jsonl", "config.yaml"):
        found.pop(name)
        plain.pop(name)
    assert not differences(found, plain)


@pytest.fixture(scope="module")
def ended(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run whose weights do not move: it ends after three measurements."""
    out = tmp_path_factory.mktemp("ended") / "one"
    run = stage_1_run(settings(epochs=9, stop=STOP | {"patience": 2}, **AT_REST))
    run(out, False)
    before = results(out)
    run(out, True)  # there is nothing to do: it ends at the same place, and writes nothing else
    assert not differences(results(out), before)
    return out


def test_it_ends_by_itself_saves_a_checkpoint_and_says_why(ended: Path, capsys: pytest.CaptureFixture[str]) -> None:
    records = read_metrics(ended / "metrics.jsonl")
    assert [record["epoch"] for record in records] == [1, 2, 3, 4, 5, 6]
    assert records[-1]["accuracy"] is not None
    assert [record["averaged_gain"] for record in measured(ended)] == [None, *[pytest.approx(0, abs=1e-6)] * 2]
    checkpoints = ended / "checkpoint_stage_1"
    assert [path.name for path in checkpoints.glob("*.ckpt")] == ["network-6_4.ckpt"]
    stage_1_run(settings(epochs=9, stop=STOP | {"patience": 2}, **AT_REST))(ended, True)
    told = capsys.readouterr().out
    assert "stage 1 ends after epoch 6: in 2 measurements in a row the averaged weights gained no more than a" in told
    assert f"It saved {checkpoints / 'network-6_4.ckpt'}; next: dimred train stage-2 DATA {checkpoints}" in told


def test_a_run_that_ended_is_gone_on_with_to_what_an_uninterrupted_one_gives(tmp_path: Path) -> None:
    """First to epoch 4, then without the rule and a larger ``epochs``, which a constant rate allows."""
    stage_1_run(settings(epochs=4, stop=STOP))(tmp_path / "run", False)
    with pytest.raises(ConfigError, match="epochs is 3, but the run has done 4"):
        stage_1_run(settings(epochs=3))(tmp_path / "run", True)
    stage_1_run(settings(epochs=6))(tmp_path / "run", True)
    stage_1_run(settings(epochs=6))(tmp_path / "whole", False)
    found, whole = results(tmp_path / "run"), results(tmp_path / "whole")
    assert {"checkpoint_stage_1/network-4_4.ckpt"} == found.keys() - whole.keys()
    for name in whole.keys() - {"metrics.jsonl"}:
        assert found[name] == whole[name], name


def test_another_schedule_does_not_take_another_last_epoch(tmp_path: Path) -> None:
    linear = {"schedule": {"peak": 0.1, "warmup_epochs": 0, "total_epochs": 9}}
    stage_1_run(settings(epochs=1, **linear))(tmp_path, False)
    with pytest.raises(ConfigError, match=r"epochs: 1 -> 2"):
        stage_1_run(settings(epochs=2, **linear))(tmp_path, True)


def candidate(losses: np.ndarray) -> Candidate:
    return Candidate("average", 4, losses)


def test_a_plateau_is_reached_after_patience_measurements_without_a_gain() -> None:
    rng = np.random.default_rng(0)
    hard, noise = rng.exponential(1.0, 400), np.tile([0.2, -0.2], 200)  # the standard error of the noise is 0.01
    plateau = Plateau(patience=2)
    assert plateau.see(candidate(hard), 2) is None
    gains = [plateau.see(candidate(hard - gain + noise), epoch) for gain, epoch in ((0.005, 4), (0.02, 6))]
    assert gains[0] is not None
    assert gains[0].loss == pytest.approx(0.005)
    assert gains[0].standard_error == pytest.approx(0.01, rel=0.01)
    assert (plateau.best_epoch, plateau.n_without_gain, plateau.is_reached) == (6, 0, False)
    plateau.see(candidate(hard + noise), 8)  # worse
    assert not plateau.is_reached
    plateau.see(candidate(hard - 0.02 + noise), 10)  # equal
    assert (plateau.best_epoch, plateau.is_reached) == (6, True)


def test_small_gains_add_up() -> None:
    noise = np.tile([0.2, -0.2], 200)
    plateau = Plateau(patience=3)
    for number in range(7):
        plateau.see(candidate(np.ones(400) - 0.004 * number + (noise if number % 2 else 0)), number)
    assert plateau.best_epoch == 6
