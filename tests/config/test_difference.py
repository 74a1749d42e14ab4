"""Stage 2 takes over from stage 1 what its own configuration does not set, key by key; and errors of stored ones."""

from functools import partial
from pathlib import Path

import pytest

from dimred.config import StageOneConfig, StageTwoConfig, complete, keys_taken_over, load_any_config, load_config
from dimred.config.base import Strict
from dimred.errors import ConfigError

OF_STAGE_1 = [
    "loss_scale.name=dynamic", "loss_scale.window=300", "ema.decay=0.999", "precision.level=O2", "clipping.norm=1.5",
    "model.n_classes=7", "accumulation=4", "data.workers=1",
]  # fmt: skip


def both(*of_stage_2):
    one = load_config(StageOneConfig, Path("digits_stage"), OF_STAGE_1)
    return one, complete(load_config(StageTwoConfig, None, of_stage_2), one)


@pytest.mark.parametrize(
    "key",
    [
        "loss_scale.factor=4.0", "ema.ramp=false", "precision.keep_batch_norm=true", "model.initialisation=kaiming",
        "data.batch_size=5", "clipping.norm=null",
    ],
)  # fmt: skip
def test_one_key_of_a_section_leaves_the_others_as_in_stage_1(key):
    name, _, inner = key.partition("=")[0].partition(".")
    one, two = both(key)
    of_one, of_two = (getattr(config, name).model_dump() for config in (one, two))
    assert of_two.pop(inner) != of_one.pop(inner)
    if name == "data":
        assert of_two.pop("workers") != of_one.pop("workers")
    assert of_two == of_one


def test_a_part_that_is_switched_off_stays_off():
    two = both("loss_scale.name=none", "ema.decay=null", "accumulation=1")[1]
    assert (two.loss_scale.name, two.ema.decay, two.accumulation, two.precision.level) == ("none", None, 1, "O2")


def test_every_key_that_is_taken_over_is_a_value_and_not_a_section():
    one, two = both()
    for key in keys_taken_over(StageTwoConfig()):
        of_one, of_two = one, two
        for name in key.split("."):
            of_one, of_two = getattr(of_one, name), getattr(of_two, name)
        assert of_one == of_two, key
        assert not isinstance(of_two, Strict), key


@pytest.mark.parametrize("name", ["config.yaml", "mine.yaml"])
def test_a_wrong_key_in_a_file_is_told_with_the_file_which_may_be_a_run_s_of_another_version(
    name: str, tmp_path: Path
) -> None:
    file = tmp_path / name
    file.write_text("epochs: 3\ndata: {shuffle: 1}\n")
    for load in (partial(load_config, StageOneConfig), load_any_config):
        with pytest.raises(ConfigError, match=r"^unknown key 'data\.shuffle'") as refused:
            load(file, [])
        assert f"\n(in {str(file)!r}" in str(refused.value)
        assert ("which a run has stored; if by another version" in str(refused.value)) == (name == "config.yaml")
    file.write_text("epochs: 3\n")
    with pytest.raises(ConfigError, match=r"unknown key 'data\.shuffle'") as refused:
        load_config(StageOneConfig, file, ["data.shuffle=1"])
    assert str(file) not in str(refused.value)
