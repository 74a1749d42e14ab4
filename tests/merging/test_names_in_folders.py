"""What stands beside checkpoints in a folder: copies, links, another series, and arrays by misleading names."""

import os
from pathlib import Path

import numpy as np
import pytest

import dimred
from dimred.errors import CheckpointError, ConfigError
from dimred.merging.inputs import open_checkpoints
from tests.helpers.checkpoint_files import read_file, write_file
from tests.merging.test_inputs import steps, write_named


def test_copies_with_numbers_of_their_own_are_passed_over_beside_a_series(tmp_path: Path) -> None:
    write_named(tmp_path, "n-1.safetensors", "n-2.safetensors", "last-v1.safetensors", "last-v2.safetensors")
    assert steps(tmp_path) == [("n-1.safetensors", 1), ("n-2.safetensors", 2)]


def test_further_names_of_a_checkpoint_count_once_and_broken_links_are_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    write_named(tmp_path, "n-1.safetensors", "n-2.safetensors")
    os.link(tmp_path / "n-2.safetensors", tmp_path / "n-3.safetensors")
    (tmp_path / "n-4.safetensors").symlink_to("gone.safetensors")
    assert steps(tmp_path) == [("n-1.safetensors", 1), ("n-2.safetensors", 2)]
    assert any("n-3.safetensors is another name of" in message for message in caplog.messages)
    assert any("n-4.safetensors is a link to what is gone" in message for message in caplog.messages)


def test_numbered_folders_beside_a_series_of_files_are_refused(tmp_path: Path) -> None:
    write_named(tmp_path, "epoch_1.safetensors", "epoch_2.safetensors")
    for number in (1, 2):
        write_named(tmp_path / f"pretrained_v{number}", "model.safetensors")
    with pytest.raises(ConfigError, match="checkpoints in folders, such as pretrained_v1, and in files") as error:
        open_checkpoints(tmp_path)
    for name in ("pretrained_v*", "epoch_*.safetensors"):
        assert f"'{tmp_path / name}'" in str(error.value)


def test_a_quantised_array_in_a_module_called_generator_is_no_random_state(tmp_path: Path) -> None:
    for number in (1, 2):
        arrays = {"generator.w": np.full((2, 3), number, np.int8), "generator.scale": np.ones(3, np.float32)}
        write_file(tmp_path / f"n-{number}.safetensors", arrays)
    with pytest.raises(CheckpointError, match=r"'generator\.w' has the type int8 and differs"):
        dimred.merge(tmp_path, tmp_path / "mean.safetensors")


def test_statistics_of_an_average_that_is_copied_are_copied_with_it(tmp_path: Path) -> None:
    for number in (1, 3):
        arrays = {"l.weight": (4, 3), "l.bias": (4,), "bn.moving_mean": (4,)}
        own = {name: np.full(shape, number, np.float32) for name, shape in arrays.items()}
        write_file(tmp_path / f"n-{number}.safetensors", own | {f"ema.{name}": value for name, value in own.items()})
    dimred.merge(tmp_path, tmp_path / "mean.safetensors")
    mean = read_file(tmp_path / "mean.safetensors")
    assert {name: value.ravel()[0] for name, value in mean.items()} == {
        "l.weight": 2, "l.bias": 2, "bn.moving_mean": 2, "ema.l.weight": 3, "ema.l.bias": 3, "ema.bn.moving_mean": 3
    }  # fmt: skip
