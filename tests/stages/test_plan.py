"""What a whole run takes is counted before its first step: steps, snapshots, space, memory."""

import logging
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import psutil
import pytest
from mindspore import nn

from dimred.config import SearchConfig, StageOneConfig, StageTwoConfig
from dimred.distributed.ranks import ALONE, Ranks
from dimred.errors import ConfigError
from dimred.stages.checks import log_plan
from dimred.stages.disk import check_space, snapshots_in_the_end
from dimred.stages.search import check_search_memory, ranks_on_this_host, search_memory

SEARCH = StageTwoConfig(search={"n_components": 32})


def test_space_and_memory(tmp_path: Path) -> None:
    check_space(tmp_path / "not" / "yet", 1000)
    with pytest.raises(ConfigError, match=r"MB free; the run takes up to 1,000,000,000,000 MB"):
        check_space(tmp_path / "not" / "yet", 10**18)
    check_search_memory(SEARCH, nn.Dense(3, 2), ALONE)
    huge = SEARCH.model_copy(update={"search": SearchConfig(n_components=10**16)})
    with pytest.raises(ConfigError, match=r"the search needs [\d,]+ MB of memory, but [\d,]+ MB are free"):
        check_search_memory(huge, nn.Dense(3, 2), ALONE)


class TwoOfThree(Ranks):
    """Rank 0 of three, of which rank 2 is on this host too, as far as a check can see."""

    group_size = 3

    def sum(self, numbers):
        return np.asarray([numbers[0], 5, numbers[0]], np.float32)


def test_the_ranks_of_a_host_share_its_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    weights = nn.Dense(3, 2)
    one = search_memory(SEARCH, weights, 3)
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(available=1.5 * one))
    assert ranks_on_this_host(ALONE) == 1
    assert ranks_on_this_host(TwoOfThree()) == 2
    with pytest.raises(ConfigError, match="the search of 2 ranks needs"):
        check_search_memory(SEARCH, weights, TwoOfThree())


def test_each_rank_has_a_share_of_the_basis_and_all_of_the_vectors() -> None:
    weights = nn.Dense(3, 2)  # 8 weights of 4 bytes
    assert [search_memory(SEARCH, weights, ranks) for ranks in (1, 5)] == [(32 + 8) * 32, (7 + 8) * 32]


def test_the_plan_counts_in_words(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        log_plan(SEARCH.model_copy(update={"epochs": 1}), 1, 2_000_000)
        log_plan(StageOneConfig.model_validate({"stop": "averaged", "epochs": 90}), 5004, 2_000_000)
    ends = "in all; snapshots, checkpoints and states take up to 2 MB of disk"
    assert caplog.messages == [f"1 epoch of 1 step, 1 {ends}", f"up to 90 epochs of 5,004 steps, 450,360 {ends}"]


def test_an_epoch_has_no_more_snapshots_than_steps() -> None:
    one = StageOneConfig.model_validate({"epochs": 3, "snapshots": {"per_epoch": 12}})
    assert [snapshots_in_the_end(one, steps) for steps in (None, 74, 4)] == [36, 36, 12]
