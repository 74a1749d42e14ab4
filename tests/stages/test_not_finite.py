"""A sample with NaN or infinity is named where it makes a loss or an output that is not finite, and only there."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from mindspore import Tensor, nn

from dimred.errors import FaultError
from dimred.pipelines.stage_1 import stage_1
from dimred.pipelines.stage_2 import stage_2
from tests.helpers import tiny_task

HERE = "tests.stages.test_not_finite"
STAGE_1: dict[str, Any] = {"epochs": 2, "schedule": {"name": "constant", "peak": 0.1, "warmup_epochs": 0}}
STAGE_2: dict[str, Any] = {"method": "cooldown", "epochs": 1, "cooldown": {"keep_best": False}}
TASK = tiny_task.TASK | {"data": tiny_task.TASK["data"] | {"dataset": f"{HERE}:Spoilt"}}

SPOILT: dict[tuple[str, int], float] = {}
"""Split and number of each sample with a number that is not finite, and that number."""


class Spoilt(tiny_task.Points):
    """The points of the tiny task, some of which are spoilt."""

    def __init__(self, data: Path, split: str, seed: int | None):
        super().__init__(data, split, seed)
        self._split = split

    def __getitem__(self, number: int) -> tuple[np.ndarray, int]:
        point, label = super().__getitem__(number)
        point[2] = SPOILT.get((self._split, number), point[2])
        return point, label


class WithMask(tiny_task.Points):
    """The points of the tiny task, each with a mask of -inf, as attention has, which the network takes too."""

    def __getitem__(self, number: int) -> tuple[np.ndarray, np.ndarray, int]:  # type: ignore[override]
        return super().__getitem__(number)[0], np.float32([-np.inf]), super().__getitem__(number)[1]


class Masked(nn.Cell):
    def __init__(self, n_classes: int):
        super().__init__()
        self.network = tiny_task.network(n_classes)

    def construct(self, points: Tensor, mask: Tensor) -> Tensor:
        return self.network(points) + mask.exp()


def masked(n_classes: int) -> nn.Cell:
    return Masked(n_classes)


@pytest.fixture
def config(tmp_path: Path) -> Iterator[Path]:
    (tmp_path / "one.yaml").write_text(json.dumps(TASK | {"stage_1": STAGE_1, "stage_2": STAGE_2}))
    yield tmp_path / "one.yaml"
    SPOILT.clear()


def step_of(sample: int, epoch: int) -> int:
    """Return the step of an epoch, of six samples each, in which a sample is trained on."""
    order = np.random.default_rng([TASK["seed"], epoch]).permutation(24)
    return int(np.flatnonzero(order == sample)[0]) // 6 + 1


@pytest.mark.parametrize("options", [[], ["accumulation=2", "data.batch_size=3"]], ids=["whole", "micro-batches"])
def test_a_sample_that_spoils_the_loss_is_named(options: list[str], config: Path, tmp_path: Path) -> None:
    SPOILT["train", 17] = np.nan
    said = (
        rf"^sample 17 of the split 'train' has nan at \[2\] in input 1, so the loss of step {step_of(17, 1)} is not "
        r"finite; correct the sample; the last good state is .*state-0\.ckpt: once the cause is gone, run the same"
    )
    with pytest.raises(FaultError, match=said):
        stage_1(tmp_path, config, tmp_path / "run", overrides=["reestimate_batch_norm=false", *options])
    SPOILT.clear()
    stage_1(tmp_path, None, tmp_path / "run", resume=True)


def test_a_stage_2_names_it_too(config: Path, tmp_path: Path) -> None:
    stage_1(tmp_path, config, tmp_path / "one")
    SPOILT["train", 5] = np.inf
    weights = tmp_path / "one" / "checkpoint_stage_1" / "network-2_4.ckpt"
    said = rf"^sample 5 of the split 'train' has inf at \[2\] in input 1, so the loss of step {step_of(5, 1_000_001)}"
    with pytest.raises(FaultError, match=said):
        stage_2(tmp_path, weights, config_file=config, out=tmp_path / "two", overrides=["reestimate_batch_norm=false"])


def test_a_measurement_with_it_is_refused(config: Path, tmp_path: Path) -> None:
    """The accuracy of outputs that are not finite would be a number like any other."""
    SPOILT["val", 7] = np.nan
    said = r"^sample 7 of the split 'val' has nan at \[2\] in input 1, so that its outputs are not finite and"
    with pytest.raises(FaultError, match=said):
        stage_1(tmp_path, config, tmp_path / "run")


def test_an_input_that_is_infinite_on_purpose_is_no_fault(config: Path, tmp_path: Path) -> None:
    overrides = [f"data.dataset={HERE}:WithMask", f"model.name={HERE}:masked"]
    stage_1(tmp_path, config, tmp_path / "run", overrides=overrides)
    assert (tmp_path / "run" / "checkpoint_stage_1" / "masked-2_4.ckpt").exists()
