"""Stage 1 ends when its averaged weights gain no more, and measuring them leaves no trace in the training."""

from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

import mindspore as ms
import numpy as np
import pytest
from mindspore import Tensor, nn, ops

from dimred.averaging.choice import Candidate
from dimred.config import StageOneConfig, StopConfig
from dimred.console import Lines
from dimred.distributed.ranks import ALONE
from dimred.errors import ConfigError
from dimred.evaluation.evaluator import Evaluator
from dimred.run_files.metrics_file import read_metrics
from dimred.stages.early_stop import EarlyStop
from tests.helpers.results import STATE_LOSSES, differences, results
from tests.helpers.tiny_run import RunStage, stage_1_run
from tests.helpers.tiny_task import TASK

STAGE_1: dict[str, Any] = {
    "epochs": 6,
    "schedule": {"name": "constant", "peak": 0.1, "warmup_epochs": 1, "total_epochs": 1},
    "checkpoints": {"every_epochs": 6, "keep": 9},
    "snapshots": {"per_epoch": 2, "first_epoch": 2, "keep": 8},
    "evaluate_every_epochs": 6,
    "reestimate_batches": 2,
}
STOP: dict[str, Any] = {"every_epochs": 2, "patience": 9}
AT_REST = {"schedule": {"name": "constant", "peak": 1e-30, "warmup_epochs": 0}}


def config_with(**options: Any) -> StageOneConfig:
    return StageOneConfig.model_validate(TASK | STAGE_1 | options)


def measured(folder: Path) -> list[dict[str, Any]]:
    return [record for record in read_metrics(folder / "metrics.jsonl") if "averaged_loss" in record]


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> tuple[RunStage, Path]:
    """Run without measurements; return the run and its folder."""
    run, out = stage_1_run(config_with()), tmp_path_factory.mktemp("plain") / "one"
    run(out, False)
    return run, out


@pytest.mark.slow
def test_measuring_the_averages_leaves_the_training_the_same_to_the_byte(
    plain: tuple[RunStage, Path], tmp_path: Path
) -> None:
    stage_1_run(config_with(stop=STOP))(tmp_path / "one", False)
    records = measured(tmp_path / "one")
    assert [record["epoch"] for record in records] == [2, 4, 6]
    assert [record["averaged_gain"] is None for record in records] == [True, False, False]
    assert all(record["averaged_standard_error"] > 0 for record in records)
    assert all(record["averaged_forward_passes"] > 0 for record in records)
    assert [record["averaged_window"] for record in records] == [2, 3, 4]  # of 2, 6 and 8 snapshots
    found, expected = results(tmp_path / "one"), results(plain[1])
    assert len(found.pop(STATE_LOSSES)["val_loss:best average"]) == 9  # val's samples
    for name in ("metrics.jsonl", "config.yaml"):
        found.pop(name)
    assert {name for name in expected if found.get(name) != expected[name]} == {
        STATE_LOSSES,
        "metrics.jsonl",
        "config.yaml",
    }


def test_a_run_that_is_killed_while_it_measures_has_not_lost_the_epoch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def killed(evaluator: Evaluator, weights: np.ndarray) -> np.ndarray:
        monkeypatch.undo()
        raise KeyboardInterrupt

    run = stage_1_run(config_with(epochs=4, stop=STOP))
    run(tmp_path / "whole", False)
    monkeypatch.setattr(Evaluator, "measure_val_of", killed)
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path / "one", False)
    assert (tmp_path / "one" / "resume" / "state-8.ckpt").exists()
    run(tmp_path / "one", True)
    assert not differences(results(tmp_path / "one"), results(tmp_path / "whole"))


def test_it_ends_by_itself_saves_a_checkpoint_and_says_why(tmp_path: Path) -> None:
    """The weights do not move, so it ends after three measurements."""
    out, told = tmp_path / "one", StringIO()
    run = stage_1_run(config_with(epochs=9, stop=STOP | {"patience": 2}, stage_2={"method": "cooldown"}, **AT_REST))
    run(out, False)
    before = results(out)
    with redirect_stdout(told), Lines(to_stdout=True):
        run(out, True)  # there is nothing to do: it ends at the same place, and writes nothing else
    said = told.getvalue()
    assert not differences(results(out), before)
    records = read_metrics(out / "metrics.jsonl")
    assert [record["epoch"] for record in records] == [1, 2, 3, 4, 5, 6]
    assert records[-1]["metrics"]["accuracy"]["as_trained"] is not None
    assert [record["averaged_gain"] for record in measured(out)] == [None, *[pytest.approx(0, abs=1e-6)] * 2]
    checkpoints = out / "checkpoint_stage_1"
    assert [path.name for path in checkpoints.glob("*.ckpt")] == ["network-6_4.ckpt"]
    assert "stage 1 ends after epoch 6: in 2 measurements in a row the averaged weights gained no more than a" in said
    assert f"train stage-2 {Path.cwd()} {checkpoints / 'network-6_4.ckpt'} --out {tmp_path} " in said


@pytest.mark.slow
def test_more_budget_later_gives_what_an_uninterrupted_run_gives(plain: tuple[RunStage, Path], tmp_path: Path) -> None:
    """It runs to epoch 4, then on without the rule to a larger ``epochs``, which a constant rate allows."""
    run, whole = plain
    stage_1_run(config_with(epochs=4, stop=STOP))(tmp_path, False)
    with pytest.raises(ConfigError, match="epochs is 3, but the run has finished epoch 4"):
        stage_1_run(config_with(epochs=3))(tmp_path, True)
    run(tmp_path, True)
    found, expected = results(tmp_path), results(whole)
    assert found.keys() - expected.keys() == {"checkpoint_stage_1/network-4_4.ckpt"}
    for name in expected.keys() - {"metrics.jsonl"}:
        assert found[name] == expected[name], name


def candidate(losses: np.ndarray) -> Candidate:
    return Candidate("average", 4, losses)


def stop_after(patience: int) -> EarlyStop:
    """Make a rule that is told its measurements."""
    return EarlyStop(StopConfig(patience=patience), None, None, ALONE)


def test_a_stop_is_reached_after_patience_measurements_without_a_gain() -> None:
    rng = np.random.default_rng(0)
    hard, noise = rng.exponential(1.0, 400), np.tile([0.2, -0.2], 200)  # the standard error of the noise is 0.01
    stop = stop_after(2)
    assert stop.add(candidate(hard), 2) is None
    gains = [stop.add(candidate(hard - gain + noise), epoch) for gain, epoch in ((0.005, 4), (0.02, 6))]
    assert gains[0] is not None
    assert gains[0].loss == pytest.approx(0.005)
    assert gains[0].standard_error == pytest.approx(0.01, rel=0.01)
    assert (stop.best_epoch, stop.n_without_gain, stop.reason) == (6, 0, None)
    stop.add(candidate(hard + noise), 8)  # worse
    assert stop.reason is None
    stop.add(candidate(hard - 0.02 + noise), 10)  # equal
    assert stop.reason is not None
    assert stop.best_epoch == 6


def test_small_gains_add_up() -> None:
    noise = np.tile([0.2, -0.2], 200)
    stop = stop_after(3)
    for number in range(7):
        stop.add(candidate(np.ones(400) - 0.004 * number + (noise if number % 2 else 0)), number)
    assert stop.best_epoch == 6


class OutlyingLoss(nn.Cell):
    """A cross entropy that is infinite for label 0, where it is not averaged."""

    def __init__(self, reduction: str) -> None:
        super().__init__()
        self.loss, self.is_mean = nn.CrossEntropyLoss(reduction=reduction), reduction == "mean"
        self.outlier = Tensor(np.inf, ms.float32)

    def construct(self, outputs: Tensor, labels: Tensor) -> Tensor:
        losses = self.loss(outputs, labels)
        return losses if self.is_mean else ops.where(labels == 0, self.outlier, losses)


@pytest.mark.slow
def test_losses_that_are_not_finite_end_no_training(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    run = stage_1_run(config_with(stop=STOP | {"patience": 1}, loss=f"{__name__}:OutlyingLoss"))
    run(tmp_path / "one", False)
    assert measured(tmp_path / "one") == []
    assert len(read_metrics(tmp_path / "one" / "metrics.jsonl")) == 6
    assert "no average has a finite loss on 'val'" in caplog.text
