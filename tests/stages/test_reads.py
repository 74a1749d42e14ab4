"""Between two logged steps neither stage 1 nor the cooldown reads the device, and a search reads as documented."""

from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

import mindspore as ms
import numpy as np
import pytest
from mindspore import nn

from dimred.checkpoints.series import CheckpointSeries
from dimred.config import StageOneConfig, StageTwoConfig
from dimred.run_files.metrics_file import read_metrics
from dimred.search_step.search_step import SearchStep
from dimred.subspace.fit import fit_basis
from dimred.train_step.clipping import Clipping
from dimred.train_step.loss_scale import DynamicLossScale
from dimred.train_step.step import TrainStep
from dimred.vectors import projection, weights
from tests.helpers.networks import BatchNormNet, image_batch
from tests.helpers.reads import watched_reads
from tests.helpers.tiny_run import RunStage, stage_1_run, stage_2_run
from tests.helpers.tiny_task import TASK, Points

STEPS = 40  # in an epoch
MANY: dict[str, Any] = TASK | {"data": TASK["data"] | {"dataset": "tests.stages.test_reads:ManyPoints"}}


class ManyPoints(Points):
    """Forty batches of six points."""

    def __len__(self) -> int:
        return 6 * STEPS if len(self._labels) == 24 else 9

    def __getitem__(self, number: int) -> tuple[np.ndarray, int]:
        return super().__getitem__(number % len(self._labels))


class Reads(NamedTuple):
    """How often the device was read inside the call of a step, and after it, by the step's number."""

    inside: Counter[int]
    after: Counter[int]


def reads_of(run: RunStage, out: Path, kind: type[nn.Cell]) -> Reads:
    """Count the reads of a run of one epoch from the first step to before the last; the first is compiled."""
    reads, made, is_inside, take = Reads(Counter(), Counter()), 0, False, kind.__call__

    def note() -> None:
        if 1 < made < STEPS:
            (reads.inside if is_inside else reads.after)[made] += 1

    def call(step: nn.Cell, *inputs: Any) -> Any:
        nonlocal made, is_inside
        made, is_inside = made + 1, True
        result = take(step, *inputs)
        is_inside = False
        return result

    with pytest.MonkeyPatch.context() as patch, watched_reads(note):
        patch.setattr(kind, "__call__", call)
        run(out, False)
    assert made == STEPS
    return reads


@pytest.fixture(autouse=True)
def _graphs() -> None:
    """Set graph mode, in which the programs train."""
    ms.set_context(mode=ms.context.GRAPH_MODE)


@pytest.fixture(scope="module")
def stage_1(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Reads]:
    ms.set_context(mode=ms.context.GRAPH_MODE)
    out = tmp_path_factory.mktemp("reads") / "stage_1"
    options: dict[str, Any] = {
        "epochs": 1,
        "schedule": {"peak": 0.1, "warmup_epochs": 0, "total_epochs": 2},
        "snapshots": {"per_epoch": 5, "first_epoch": 1},
        "clipping": {"norm": 1.0},
        "loss_scale": {"name": "dynamic"},
        "ema": {"decay": 0.9},
    }
    return out, reads_of(stage_1_run(StageOneConfig.model_validate(MANY | options)), out, TrainStep)


def weights_of(out: Path) -> Path:
    return next((out / "checkpoint_stage_1").glob("*.ckpt"))


@pytest.mark.slow
def test_stage_1_reads_after_every_tenth_step_and_for_snapshots(stage_1: tuple[Path, Reads]) -> None:
    assert not stage_1[1].inside
    assert set(stage_1[1].after) == {*range(10, STEPS, 10), *range(8, STEPS, 8)}


@pytest.mark.slow
def test_the_cooldown_reads_as_often_as_it_is_told(stage_1: tuple[Path, Reads], tmp_path: Path) -> None:
    """Each loss is read once."""
    options = {"method": "cooldown", "epochs": 1, "read_every_steps": 7, "cooldown": {"keep_best": False}}
    config = StageTwoConfig.model_validate(MANY | options)
    reads = reads_of(stage_2_run(config, weights_of(stage_1[0])), tmp_path / "two", TrainStep)
    assert not reads.inside
    assert reads.after == dict.fromkeys(range(7, STEPS, 7), 7)


@pytest.mark.slow
def test_micro_batches_read_nothing_where_vectors_are_on_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(weights, "is_on_host", lambda: False)  # a host reads its own vectors in place
    network = BatchNormNet()
    optimizer = nn.Momentum(network.trainable_params(), 0.1, 0.9)
    step = TrainStep(network, optimizer, micro_batch_size=4, parts=[DynamicLossScale(), Clipping(1.0)])
    step(*image_batch(0))
    batches, reads = [image_batch(number) for number in range(10)], []
    with watched_reads(lambda: reads.append(1)):
        for batch in batches:
            step(*batch)
    assert not reads


@pytest.mark.slow
def test_a_search_reads_as_often_as_its_readme_says(
    stage_1: tuple[Path, Reads], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (projection, weights):
        monkeypatch.setattr(module, "is_on_host", lambda: False)
    fit_basis(CheckpointSeries.open(weights_of(stage_1[0]).parent / "checkpoint_pca"), 2, out=tmp_path / "pca_mat.npy")
    config = StageTwoConfig.model_validate(MANY | {"epochs": 1, "search": {"n_components": 2, "alpha": 0}})
    run = stage_2_run(config, weights_of(stage_1[0]), tmp_path / "pca_mat.npy")
    reads = reads_of(run, tmp_path / "two", SearchStep)
    for step, record in enumerate(read_metrics(tmp_path / "two" / "metrics.jsonl")[1:-1], start=2):
        assert (reads.inside[step], reads.after[step]) == (3 + record["n_trials"], 2)
