"""Where stage 2 starts, a figure that is not stage 1's of the same weights is warned of."""

import shutil
from pathlib import Path

import pytest
from mindspore import Tensor, nn

from dimred.config import config_text
from dimred.io.run_names import METRICS
from dimred.pipelines.stage_2 import stage_2
from tests.helpers import tiny_task
from tests.helpers.finished_stage_1 import settings
from tests.helpers.tiny_run import stage_2_run

WARNING = "before the first step of stage 2, but gave"


class MinusTanh(nn.Tanh):
    def construct(self, inputs: Tensor) -> Tensor:
        return -super().construct(inputs)


def changed(n_classes: int) -> nn.Cell:
    network = tiny_task_network(n_classes)
    network[2] = MinusTanh()
    return network


tiny_task_network = tiny_task.network


@pytest.mark.parametrize(
    ("is_changed", "has_records", "warned"), [(False, True, False), (True, True, True), (True, False, False)]
)
def test_a_network_whose_code_has_changed_under_its_name_is_warned_of(
    is_changed: bool,
    has_records: bool,
    warned: bool,
    checkpoints: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    one = shutil.copytree(checkpoints.parent, tmp_path / "one")
    if not has_records:
        (one / METRICS).unlink()
    if is_changed:
        monkeypatch.setattr(tiny_task, "network", changed)
    stage_2_run(settings(), one / "checkpoint_stage_1" / "network-2_4.ckpt")(tmp_path / "two", False)
    assert (WARNING in caplog.text) == warned
    if warned:
        assert "network-2_4.ckpt', which gives accuracy " in caplog.text
        assert "as metrics.jsonl there says for epoch 2: the network's code, the data, or the versions" in caplog.text


def test_a_trial_which_measures_few_samples_warns_of_nothing(
    checkpoints: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    config = tmp_path / "two.yaml"
    config.write_text(config_text(settings()))
    monkeypatch.setattr(tiny_task, "network", changed)
    weights = checkpoints / "network-2_4.ckpt"
    stage_2(tmp_path, weights, config=config, out=tmp_path / "two", fast_dev_run=True)
    assert "stage 2 starts from WEIGHTS" in caplog.text
    assert WARNING not in caplog.text
