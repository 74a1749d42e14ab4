"""Bad input: one clear line, exit status 2, nothing written."""

import shutil
from pathlib import Path

import numpy as np
import pytest

from tests.helpers.commands import STAGE_1, STAGE_2, TwoStages, dimred, program


def assert_refused(done, out: Path, *said: str) -> None:
    assert done.returncode == 2, done.stderr
    lines = done.stderr.strip().splitlines()
    assert len(lines) == 1, done.stderr
    assert lines[0].startswith("error: ")
    for words in said:
        assert words in lines[0]
    assert not out.exists()


def test_no_data_folder(tmp_path: Path) -> None:
    done = program("stage_1", tmp_path / "nowhere", "--config", STAGE_1, "--out", tmp_path / "out", cwd=tmp_path)
    assert_refused(done, tmp_path / "out", "nowhere", "not a folder")


def test_an_empty_class(digits: Path, tmp_path: Path) -> None:
    data = tmp_path / "data"
    shutil.copytree(digits, data)
    for image in (data / "train" / "3").iterdir():
        image.unlink()
    done = program("stage_1", data, "--config", STAGE_1, "--out", tmp_path / "out", cwd=tmp_path)
    assert_refused(done, tmp_path / "out", "class '3'", "no images")


def test_more_classes_than_outputs(digits: Path, tmp_path: Path) -> None:
    done = program(
        "stage_1", digits, "--config", STAGE_1, "--out", tmp_path / "out", "--set=model.n_classes=9", cwd=tmp_path
    )
    assert_refused(done, tmp_path / "out", "10 classes", "n_classes 9")


def test_a_queue_on_a_device_that_has_none(digits: Path, tmp_path: Path) -> None:
    done = program(
        "stage_1", digits, "--config", STAGE_1, "--out", tmp_path / "out", "--set=data.sink=true", cwd=tmp_path
    )
    assert_refused(done, tmp_path / "out", "data.sink is true", "--set data.sink=false")


def test_an_unknown_key_is_refused_with_the_nearest_one_named(digits: Path, tmp_path: Path) -> None:
    done = program("stage_1", digits, "--config", STAGE_1, "--out", tmp_path / "out", "--set=epoch=3", cwd=tmp_path)
    assert_refused(done, tmp_path / "out", "'epoch'", "'epochs'")


def test_earlier_results_are_kept(two_stages: TwoStages, tmp_path: Path) -> None:
    before = sorted(two_stages.stage_1.rglob("*"))
    done = program("stage_1", two_stages.data, "--config", STAGE_1, "--out", two_stages.stage_1, cwd=tmp_path)
    assert done.returncode == 2
    assert "earlier results" in done.stderr
    assert sorted(two_stages.stage_1.rglob("*")) == before


@pytest.mark.parametrize("command", ["pca", "stage_2"])
def test_one_snapshot_where_33_are_needed(two_stages: TwoStages, tmp_path: Path, command: str) -> None:
    folder = tmp_path / "checkpoint_stage_1" / "checkpoint_pca"
    folder.mkdir(parents=True)
    weights = shutil.copy(two_stages.weights, folder.parent)
    shutil.copy(two_stages.snapshots / "resnet_small-3_74.ckpt", folder)
    out = tmp_path / "out"
    if command == "pca":
        out.mkdir()
        done = dimred("pca", "--ckpt-dir", folder, "--out", out / "pca_mat.npy", cwd=tmp_path)
        assert not any(out.iterdir())
        out.rmdir()
    else:
        done = program("stage_2", two_stages.data, weights, "--config", STAGE_2, "--out", out, cwd=tmp_path)
    assert_refused(done, out, "33", " 1 ")


@pytest.mark.parametrize(("shape", "said"), [((32, 19953), ["19,953", "19,954"]), ((19954,), ["(19954,)"])])
def test_a_matrix_of_the_wrong_shape(
    two_stages: TwoStages, tmp_path: Path, shape: tuple[int, ...], said: list[str]
) -> None:
    np.save(tmp_path / "wrong.npy", np.zeros(shape, np.float32))
    done = program(
        "stage_2", two_stages.data, two_stages.weights, tmp_path / "wrong.npy", "--config", STAGE_2,
        "--out", tmp_path / "out", cwd=tmp_path,
    )  # fmt: skip
    assert_refused(done, tmp_path / "out", "wrong.npy", *said)


def test_weights_of_another_network(two_stages: TwoStages, tmp_path: Path) -> None:
    snapshot = two_stages.snapshots / "resnet_small-3_74.ckpt"
    done = program(
        "stage_2",
        two_stages.data,
        snapshot,
        two_stages.matrix,
        "--config",
        STAGE_2,
        "--out",
        tmp_path / "out",
        cwd=tmp_path,
    )
    assert_refused(done, tmp_path / "out", "moving_mean")


def test_a_number_outside_its_range(two_stages: TwoStages, tmp_path: Path) -> None:
    done = program(
        "stage_2", two_stages.data, two_stages.weights, two_stages.matrix, "--config", STAGE_2,
        "--out", tmp_path / "out", "--set=rho=1.5", cwd=tmp_path,
    )  # fmt: skip
    assert_refused(done, tmp_path / "out", "rho", "1.5", "less than 1")


def test_the_digits_are_never_written_over(digits: Path, tmp_path: Path) -> None:
    done = dimred("data", "digits", digits, cwd=tmp_path)
    assert done.returncode == 2
    assert "exists already" in done.stderr
