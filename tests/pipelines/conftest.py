"""One real run of both stages, short, shared by the tests of the programs."""

import re
import shutil
from pathlib import Path

import pytest

from dimred.data.digits import write_digits
from tests.helpers.commands import SHORT, STAGE_1, STAGE_2, TwoStages, dimred, program


@pytest.fixture(scope="session")
def digits(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data") / "digits with ü and blanks"
    write_digits(folder, seed=7)
    return folder


@pytest.fixture(scope="session")
def few_digits(digits: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """200 images to train on, 50 to choose by, and 50 to test on."""
    few = tmp_path_factory.mktemp("data") / "few"
    for split, count in (("train", 20), ("val", 5), ("test", 5)):
        for folder in sorted((digits / split).iterdir()):
            (few / split / folder.name).mkdir(parents=True)
            for image in sorted(folder.iterdir())[:count]:
                shutil.copy(image, few / split / folder.name)
    return few


@pytest.fixture(scope="session")
def two_stages(digits: Path, tmp_path_factory: pytest.TempPathFactory) -> TwoStages:
    folder = tmp_path_factory.mktemp("run")
    stage_1 = folder / "stage 1 é"
    done = program("stage_1", digits, "--config", STAGE_1, "--out", stage_1, *SHORT, cwd=folder)
    assert done.returncode == 0, done.stderr
    snapshots = stage_1 / "checkpoint_stage_1" / "checkpoint_pca"
    fitted = dimred("pca", "--ckpt-dir", snapshots, "--out", folder / "pca_mat.npy", cwd=folder)
    assert fitted.returncode == 0, fitted.stderr
    return TwoStages(
        folder=folder,
        data=digits,
        stage_1=stage_1,
        snapshots=snapshots,
        weights=stage_1 / "checkpoint_stage_1" / "resnet_small-3_74.ckpt",
        matrix=folder / "pca_mat.npy",
        stage_1_output=done.stdout,
    )


@pytest.fixture(scope="session")
def searched(two_stages: TwoStages) -> Path:
    """A run from the mean with alpha = 0, on the given matrix."""
    out = two_stages.folder / "stage 2"
    done = program(
        "stage_2", two_stages.data, two_stages.weights, two_stages.matrix, "--config", STAGE_2, "--out", out,
        "--set=alpha=0", "--set=start=mean", cwd=two_stages.folder,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert re.search(r"^\{'Accuracy': 0\.\d+\}$", done.stdout, re.MULTILINE)
    return out
