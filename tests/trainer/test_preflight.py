"""Every problem at once."""

import logging
from pathlib import Path

import numpy as np
import pytest
from mindspore import nn

from dimred.checkpoints.series import CheckpointSeries
from dimred.config import SearchConfig, StageOneConfig, StageTwoConfig
from dimred.errors import ConfigError, SeriesError
from dimred.trainer.preflight import (
    check_search_memory,
    check_space,
    say_plan,
    search_memory,
    snapshots_if_any,
    snapshots_in_the_end,
    snapshots_until,
)

TWO = StageTwoConfig(search={"n_components": 32}, cooldown=None)


def test_space_and_memory(tmp_path: Path) -> None:
    check_space(tmp_path / "not" / "yet", 1000, "the run")
    with pytest.raises(ConfigError, match=r"MB free; the run takes up to 1,000,000,000,000 MB"):
        check_space(tmp_path / "not" / "yet", 10**18, "the run")
    check_search_memory(TWO, nn.Dense(3, 2), 1)
    huge = TWO.model_copy(update={"search": SearchConfig(n_components=10**16)})
    with pytest.raises(ConfigError, match=r"the search needs [\d,]+ MB of memory, [\d,]+ MB are available"):
        check_search_memory(huge, nn.Dense(3, 2), 1)


def test_each_rank_has_a_share_of_the_basis_and_all_of_the_vectors() -> None:
    weights = nn.Dense(3, 2)  # 8 weights of 4 bytes
    assert [search_memory(TWO, weights, ranks) for ranks in (1, 5)] == [(32 + 8) * 32, (7 + 8) * 32]


def test_the_plan_counts_in_words(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        say_plan(TWO, 1, 1, 2_000_000)
        say_plan(StageOneConfig.model_validate({"stop": "averaged"}), 90, 5004, 2_000_000)
    ends = "in all; snapshots, checkpoints and states take up to 2 MB of disk"
    assert caplog.messages == [f"1 epoch of 1 step, 1 {ends}", f"up to 90 epochs of 5,004 steps, 450,360 {ends}"]


def test_an_epoch_has_no_more_snapshots_than_steps() -> None:
    one = StageOneConfig.model_validate({"epochs": 3, "snapshots": {"per_epoch": 12}})
    assert [snapshots_in_the_end(one, steps) for steps in (None, 74, 4)] == [36, 36, 12]


def test_a_checkpoint_is_paired_with_the_snapshots_up_to_its_epoch(tmp_path: Path) -> None:
    assert snapshots_if_any(tmp_path / "net-2_5.ckpt") is None
    (tmp_path / "checkpoint_pca").mkdir()
    assert snapshots_if_any(tmp_path / "net-2_5.ckpt") is None
    series = CheckpointSeries(tmp_path / "checkpoint_pca", keep=9)
    for epoch in range(1, 5):
        series.append({"weight": np.full(3, epoch, np.float32)}, step=5 * epoch, epoch=epoch)
    for name, steps in (("net-2_5.ckpt", [5, 10]), ("net-4_5.ckpt", [5, 10, 15, 20]), ("mine.ckpt", [5, 10, 15, 20])):
        found = snapshots_if_any(tmp_path / name)
        assert found is not None
        assert [entry.step for entry in found.entries] == steps
    assert snapshots_if_any(tmp_path / "net-0_5.ckpt") is None
    with pytest.raises(SeriesError, match="checkpoint_pca has no snapshots up to epoch 0"):
        snapshots_until(tmp_path / "net-0_5.ckpt")
