"""Checks that ``dimred compare`` makes before anything is trained."""

from pathlib import Path
from typing import Any

import pytest

from dimred.cli.measure import compare
from dimred.comparison.methods import METHODS
from dimred.config import StageOneConfig, config_text, load_config
from dimred.errors import ConfigError
from tests.helpers.commands import DIGITS, dimred_here
from tests.helpers.run_files import write_config


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"at": "1,a"}, "--at is '1,a'; give whole numbers"),
        ({"at": "0,20"}, "--at has 0; give epochs from 1 on"),
        ({"methods": "last, nonsense"}, "--methods has 'nonsense'; allowed: "),
    ],
)
def test_wrong_calls_train_nothing(tmp_path: Path, options: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError) as refused:
        compare("data", [tmp_path / "run"], DIGITS, out=tmp_path / "out", **options)
    assert said in str(refused.value)
    assert not (tmp_path / "out").exists()


def test_a_run_that_has_no_checkpoint_yet_is_to_be_finished_first(tmp_path: Path) -> None:
    config = load_config(StageOneConfig, DIGITS, ["stop=averaged"])
    (tmp_path / "run" / "checkpoint_stage_1").mkdir(parents=True)
    write_config(tmp_path / "run", config_text(config))
    with pytest.raises(ConfigError, match=r"no full checkpoint of epoch 0 .*; finish stage 1 first"):
        compare("data", [tmp_path / "run"], DIGITS, out=tmp_path / "out")


def test_the_help_names_every_method() -> None:
    text = " ".join(dimred_here("compare", "--help", status=0).stdout.replace("│", " ").split())
    assert f"{', '.join(METHODS)}." in text
