"""Stage 1 is resumed, or begun with a checkpoint, only where its steps are counted as before."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from mindspore import Parameter, Tensor, nn, ops

from dimred.checkpoints.checkpoint_io import read_checkpoint
from dimred.checkpoints.series import CheckpointSeries
from dimred.checkpoints.states import RunStates
from dimred.cli.measure import evaluate
from dimred.config import StageOneConfig
from dimred.errors import ConfigError, RunError
from dimred.evaluation.evaluator import Evaluator
from dimred.pipelines.stage_1 import stage_1
from dimred.run_files.metrics_file import read_metrics
from dimred.runs.begun import Begun, Pin, write_pins
from dimred.runs.run import Run
from dimred.runs.splits import build_data
from dimred.runs.task import build_network
from dimred.vectors.parameters import from_arrays
from tests.helpers.results import differences, results
from tests.helpers.tiny_run import differences_if_killed, dying, stage_1_run
from tests.helpers.tiny_task import N_CLASSES, TASK, network

STAGE_1: dict[str, Any] = {
    "epochs": 2,
    "schedule": {"name": "constant", "peak": 0.1, "warmup_epochs": 0},
    "checkpoints": {"every_epochs": 2},
    "evaluate_every_epochs": 2,
}
LARGER: dict[str, Any] = {"data": TASK["data"] | {"batch_size": 12}}  # 2 steps in an epoch, not 4


def config_with(**options: Any) -> StageOneConfig:
    return StageOneConfig.model_validate(TASK | STAGE_1 | options)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("finished") / "one"
    stage_1_run(config_with())(out, False)
    return out


def contents(folder: Path) -> dict[Path, bytes]:
    """Read all files below a folder but locks, which name who had them last."""
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file() and path.name != ".lock"}


def test_a_host_that_reads_with_another_number_of_threads_does_not_go_on(finished: Path, tmp_path: Path) -> None:
    """MindSpore's random operations on images would draw other numbers, without a word."""
    with pytest.raises(ConfigError, match=r"(?m)^  data\.workers: 1 -> 2$"):
        Begun.open(finished, StageOneConfig, None, ["data.workers=2"])
    out = shutil.copytree(finished, tmp_path / "one")
    write_pins(out, Begun.open(out, StageOneConfig).pins | {"DATA/train, threads": Pin("12")})
    with pytest.raises(ConfigError, match=r"(?m)^  DATA/train, threads: 12 -> 1$"):
        stage_1_run(config_with())(out, True)


@pytest.mark.parametrize("how", ["removed", "cut", "edited", "without states"])
def test_a_run_whose_records_or_states_are_lost_is_refused_and_left_as_it_is(
    how: str, finished: Path, tmp_path: Path
) -> None:
    """The last state follows the records of one epoch of two."""
    out = shutil.copytree(finished, tmp_path / "one")
    records = out / "metrics.jsonl"
    first, *rest = records.read_bytes().split(b"\n")
    if how == "without states":
        shutil.rmtree(out / "resume")
    elif how == "removed":
        records.unlink()
    else:
        records.write_bytes(first[:20] if how == "cut" else b"\n".join([first + b"  ", *rest]))
    before = contents(out)
    said = "There is no state in" if how == "without states" else "was cut or changed after the run wrote it; restore"
    with pytest.raises(RunError, match=said):
        stage_1_run(config_with(epochs=3))(out, True)
    assert contents(out) == before


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({}, "--from is from epoch 2, but epochs is 2; --set epochs to more"),
        ({"epochs": 4, **LARGER}, "--from is from epoch 2, after 8 updates, but an epoch has 2 steps here"),
    ],
)
def test_a_checkpoint_to_begin_with_that_does_not_fit_is_refused(
    options: dict[str, Any], said: str, finished: Path, tmp_path: Path
) -> None:
    config, first = tmp_path / "one.yaml", finished / "checkpoint_stage_1" / "network-2_4.ckpt"
    config.write_text(json.dumps(TASK | {"stage_1": STAGE_1 | options}))
    for fast_dev_run in (False, True):
        with pytest.raises(ConfigError, match=said):
            stage_1(tmp_path, config, tmp_path / "new", first, fast_dev_run=fast_dev_run)
    assert not (tmp_path / "new").exists()


def test_a_run_that_began_with_a_checkpoint_is_resumed_without_it(finished: Path, tmp_path: Path) -> None:
    config, first = tmp_path / "one.yaml", tmp_path / "network-2_4.ckpt"
    shutil.copy(finished / "checkpoint_stage_1" / first.name, first)
    config.write_text(json.dumps(TASK | {"stage_1": STAGE_1 | {"epochs": 3}}))
    stage_1(tmp_path, config, tmp_path / "new", first)
    first.unlink()
    stage_1(tmp_path, config, tmp_path / "new", first, resume=True, overrides=["epochs=4"])
    assert (tmp_path / "new" / "checkpoint_stage_1" / "network-4_4.ckpt").exists()


def test_a_checkpoint_to_begin_with_can_be_tried_in_one_step(finished: Path, tmp_path: Path) -> None:
    """The trial has one epoch, which is not to be compared with that of the checkpoint."""
    config, first = tmp_path / "one.yaml", finished / "checkpoint_stage_1" / "network-2_4.ckpt"
    config.write_text(json.dumps(TASK | {"stage_1": STAGE_1 | {"epochs": 3}}))
    stage_1(tmp_path, config, tmp_path / "new", first, fast_dev_run=True)
    state = RunStates(tmp_path / "new").newest(pytest.fail)
    assert state.arrays["global_step"].item() == 9  # of the checkpoint's 8 updates


@pytest.mark.slow
def test_a_run_that_is_ended_where_it_was_stopped_has_its_last_checkpoint(tmp_path: Path) -> None:
    """The rate is constant, and epoch 3 of 4, in whose evaluation the run stopped, becomes the last."""
    rarely, out = {"checkpoints": {"every_epochs": 4}, "evaluate_every_epochs": 3}, tmp_path / "one"
    with dying(Run, "measure"):
        stage_1_run(config_with(epochs=4, **rarely))(out, False)
    stage_1_run(config_with(epochs=3, **rarely))(out, True)
    stage_1_run(config_with(epochs=3, **rarely))(tmp_path / "uninterrupted", False)
    assert (out / "checkpoint_stage_1" / "network-3_4.ckpt").exists()
    assert not differences(results(out), results(tmp_path / "uninterrupted"))


def test_an_evaluation_re_estimates_batch_norm_and_leaves_no_trace_in_the_training(
    finished: Path, tmp_path: Path
) -> None:
    """Moving statistics have so short a memory that they belong to the last batches alone."""
    often = config_with(epochs=2, evaluate_every_epochs=1, reestimate_batches=3)
    stage_1_run(often)(tmp_path / "one", False)
    kept = Path("checkpoint_stage_1") / "network-2_4.ckpt"
    assert (tmp_path / "one" / kept).read_bytes() == (finished / kept).read_bytes()
    records = read_metrics(tmp_path / "one" / "metrics.jsonl")
    assert [[*record["metrics"]["accuracy"]] for record in records] == [["as_trained", "reestimated"]] * 2
    network = build_network(often)
    images = {split: build_data(often.data, Path(), split) for split in ("train", "val")}
    from_arrays(network.get_parameters(), read_checkpoint(tmp_path / "one" / kept), "the last checkpoint")
    evaluator = Evaluator(network, images, seed=often.seed, n_batches=3)
    assert evaluator.metrics("val")[0] == pytest.approx(records[-1]["metrics"]["accuracy"]["as_trained"])
    evaluator.reestimate()
    assert evaluator.metrics("val")[0] == pytest.approx(records[-1]["metrics"]["accuracy"]["reestimated"])


def test_a_figure_of_the_split_that_chooses_is_said_to_be_too_good() -> None:
    assert "so this figure is likely too good" in str(config_with(stop="averaged").eval_split_warning())
    assert config_with(stop=None).eval_split_warning() is None


SCHEDULE_FREE: dict[str, Any] = {"optimizer": {"name": "schedule_free", "beta": 0.8}, "evaluate_every_epochs": 1}


def test_schedule_free_training_keeps_and_measures_its_averaged_point(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """It is x = (y - (1 - beta) z) / beta, with the full checkpoint's weights y and state z."""
    stage_1_run(config_with(**SCHEDULE_FREE))(tmp_path / "one", False)
    folder = tmp_path / "one" / "checkpoint_stage_1"
    full, final = (read_checkpoint(folder / f"network-{name}.ckpt") for name in ("2_4", "final"))
    snapshot = read_checkpoint(CheckpointSeries.open(folder / "checkpoint_pca").paths[-1])
    for name, kept in snapshot.items():
        expected = (full[name] - 0.2 * full[f"schedule_free_z.{name}"]) / 0.8
        np.testing.assert_allclose(kept, expected, rtol=1e-4, atol=1e-6)
        np.testing.assert_array_equal(final[name], kept)
    network = build_network(config_with())
    images = {split: build_data(config_with().data, Path(), split) for split in ("train", "val")}
    from_arrays(network.get_parameters(), final, "the network")
    evaluator = Evaluator(network, images, seed=config_with().seed, n_batches=config_with().reestimate_batches)
    records = read_metrics(tmp_path / "one" / "metrics.jsonl")
    assert evaluator.metrics("val")[0] == pytest.approx(records[-1]["metrics"]["accuracy"]["reestimated"])
    assert f"network: {folder / 'network-final.ckpt'}" in caplog.text
    with pytest.raises(ConfigError, match=r"takes its gradients, .*name the \*-final\.ckpt beside it"):
        evaluate(tmp_path, folder / "network-2_4.ckpt")


@pytest.mark.slow
def test_schedule_free_training_is_resumed_to_the_same_bytes(tmp_path: Path) -> None:
    assert not differences_if_killed(stage_1_run(config_with(epochs=3, **SCHEDULE_FREE)), tmp_path)


class Masked(nn.Cell):
    """A network with a frozen mask of -inf, for the labels that there are."""

    def __init__(self, n_classes: int) -> None:
        super().__init__()
        self.body = network(n_classes)
        self.mask = Parameter(Tensor(np.float32([0.0] * n_classes + [-np.inf])), requires_grad=False)

    def construct(self, inputs: Tensor) -> Tensor:
        outputs = self.body(inputs)
        return ops.softmax(ops.concat((outputs, outputs[:, :1]), 1) + self.mask)[:, :-1]


def test_a_mask_of_minus_infinity_is_no_divergence(tmp_path: Path) -> None:
    masked = config_with(model={"name": f"{__name__}:Masked", "n_classes": N_CLASSES})
    assert not differences_if_killed(stage_1_run(masked), tmp_path)


def test_schedule_free_training_takes_a_constant_rate() -> None:
    with pytest.raises(ValueError, match=r"schedule\.name is linear, but optimizer\.name is schedule_free"):
        config_with(**SCHEDULE_FREE, schedule={"name": "linear", "total_epochs": 4, "warmup_epochs": 1})


@pytest.mark.parametrize(("first_epoch", "warned"), [(1, False), (2, True)])
def test_a_run_that_will_keep_no_snapshots_says_so(
    first_epoch: int, warned: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "one.yaml").write_text(json.dumps(TASK | {"stage_1": STAGE_1 | {"epochs": 1}}))
    overrides = [f"snapshots.first_epoch={first_epoch}", "reestimate_batches=1"]
    stage_1(tmp_path, tmp_path / "one.yaml", tmp_path / "one", overrides=overrides)
    assert (
        "this run keeps no snapshots, so stage 2 will have nothing to search in or to average" in caplog.text
    ) == warned
