"""The recipe of LeNet on MNIST's files: both stages, a resume, and what is refused before and between them."""

import shutil
from pathlib import Path

import pytest

from dimred.checkpoints.checkpoint_io import read_checkpoint
from dimred.errors import ConfigError
from dimred.pipelines.stage_1 import stage_1
from dimred.pipelines.stage_2 import stage_2
from dimred.runs.run import Run
from tests.helpers.commands import CONFIGS
from tests.helpers.published_files import write_mnist
from tests.helpers.results import differences, results
from tests.helpers.tiny_run import dying

MNIST = CONFIGS / "mnist.yaml"
SHORT = ["epochs=2", "schedule.warmup_epochs=0", "snapshots.first_epoch=1", "snapshots.per_epoch=2"]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write 100 digits to train on, of which 10 are val, gzipped; a step takes 32 of the 90."""
    folder = tmp_path_factory.mktemp("data") / "mnist"
    write_mnist(folder, n_train=100, n_test=30, ending=".gz")
    return folder


@pytest.fixture(scope="module")
def run(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("run") / "one"
    stage_1(data, MNIST, out, overrides=SHORT)
    return out


@pytest.mark.slow
def test_a_killed_run_is_resumed_to_equal_bytes_with_unpacked_files(data: Path, run: Path, tmp_path: Path) -> None:
    """What is in the files counts, not whether they are gzipped."""
    with dying(Run, "log_epoch"):
        stage_1(data, MNIST, tmp_path / "killed", overrides=SHORT)
    write_mnist(tmp_path / "unpacked", n_train=100, n_test=30)
    stage_1(tmp_path / "unpacked", None, tmp_path / "killed", resume=True)
    found, expected = results(tmp_path / "killed"), results(run)
    assert found.pop("pins.json") != expected.pop("pins.json")  # which name the path
    assert differences(found, expected) == []


def test_lenet_has_61706_weights_and_goes_through_both_stages(
    data: Path, run: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    weights = run / "checkpoint_stage_1" / "lenet-2_3.ckpt"
    arrays = read_checkpoint(weights)
    assert sum(array.size for name, array in arrays.items() if name.startswith(("features", "classifier"))) == 61_706
    stage_2(data, weights, out=tmp_path / "two", overrides=["search.n_components=3", "epochs=1", "data.batch_size=30"])
    assert "{'Accuracy': " in caplog.text
    assert (tmp_path / "two" / "checkpoint_stage_2").is_dir()


def test_a_stage_2_must_leave_out_the_same_val(data: Path, run: Path, tmp_path: Path) -> None:
    weights = run / "checkpoint_stage_1" / "lenet-2_3.ckpt"
    for override, remedy in (("data.val_seed=2", "'data.val_seed=1'"), ("data.val_fraction=0.2", "val_fraction=0.1'")):
        with pytest.raises(ConfigError, match=r"data\.val_\w+ is .*, but WEIGHTS .* another value; --set") as refused:
            stage_2(data, weights, out=tmp_path / "two", overrides=[override, "search.n_components=3"])
        assert str(refused.value).endswith(remedy)


def test_a_resume_notices_other_images(data: Path, run: Path, tmp_path: Path) -> None:
    out = shutil.copytree(run, tmp_path / "one")
    write_mnist(tmp_path / "more", n_train=101, n_test=30)
    with pytest.raises(ConfigError, match=r"have changed:\n  DATA/test: .*\n  DATA/train: 90 samples in 10"):
        stage_1(tmp_path / "more", None, out, resume=True, overrides=["epochs=3"])
    shutil.rmtree(tmp_path / "more")
    with pytest.raises(ConfigError, match="which is not a folder; name the folder with MNIST's files"):
        stage_1(tmp_path / "more", None, out, resume=True, overrides=["epochs=3"])
