"""Stage 1, run whole as a program."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import yaml
from mindspore import Parameter

from dimred.checkpoints.checkpoint_io import read_checkpoint
from dimred.checkpoints.series import CheckpointSeries
from dimred.config import StageOneConfig, load_config
from dimred.distributed.ranks import Ranks
from dimred.pipelines.stage_1 import stage_1
from tests.helpers.commands import N_SNAPSHOTS, SHORT, STAGE_1, TwoStages
from tests.helpers.tiny_task import N_CLASSES, TASK, network


def test_the_series_is_ordered_by_step_and_holds_the_trainable_weights_only(two_stages: TwoStages) -> None:
    series = CheckpointSeries.open(two_stages.snapshots)
    steps = [entry.step for entry in series.entries]
    assert steps == sorted(set(steps))
    assert len(steps) == N_SNAPSHOTS
    assert steps[11::12] == [74, 148, 222]
    assert series.layout is not None
    assert series.layout.size == 19954
    assert not any("moving" in name for name in read_checkpoint(series.paths[0]))


def test_the_last_snapshot_is_the_last_checkpoint(two_stages: TwoStages) -> None:
    snapshot = read_checkpoint(CheckpointSeries.open(two_stages.snapshots).paths[-1])
    checkpoint = read_checkpoint(two_stages.weights)
    for name, value in snapshot.items():
        np.testing.assert_array_equal(value, checkpoint[name])


def test_the_resolved_configuration_lies_beside_the_run(two_stages: TwoStages) -> None:
    saved = load_config(StageOneConfig, two_stages.stage_1 / "config.yaml")
    assert saved == load_config(StageOneConfig, STAGE_1, [option.removeprefix("--set=") for option in SHORT])


class FirstOfSeveral(Ranks):
    """One process that notes what it is asked to broadcast."""

    def __init__(self) -> None:
        self.names: list[str] = []

    def broadcast(self, parameters: Sequence[Parameter]) -> None:
        self.names += [parameter.name for parameter in parameters]


def test_all_ranks_begin_with_the_weights_of_rank_0(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The seed is the same on all of them; but an own network may draw from a generator of its own."""
    ranks = FirstOfSeveral()
    monkeypatch.setattr("dimred.pipelines.stage_1.set_up", lambda *_, **__: ranks)
    (tmp_path / "one.yaml").write_text(yaml.safe_dump(TASK | {"epochs": 1}))
    stage_1(tmp_path, tmp_path / "one.yaml", tmp_path / "out")
    assert set(ranks.names) == {parameter.name for parameter in network(N_CLASSES).get_parameters()}
