"""Bad input is refused before anything is written, and the refusal names it."""

import shutil
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from mindspore import nn
from PIL import Image

from dimred.builders import build_data, build_network
from dimred.checkpoints.checkpoint_io import write_checkpoint
from dimred.checkpoints.layout import WeightLayout
from dimred.checkpoints.series import CheckpointSeries
from dimred.config import CooldownConfig, OptimizerConfig, StageOneConfig, StageTwoConfig, load_config
from dimred.distributed.ranks import ALONE
from dimred.errors import DimredError
from dimred.subspace.basis import SubspaceBasis
from dimred.subspace.fit import fit_basis
from dimred.trainer.preflight import check_stage_1, check_stage_2
from dimred.vectors.parameters import to_arrays
from tests.helpers.commands import STAGE_1, STAGE_2

ONE, TWO = load_config(StageOneConfig, STAGE_1), load_config(StageTwoConfig, STAGE_2)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Two images of each of ten classes in every split."""
    for split in ("train", "val", "test"):
        for label in range(10):
            folder = tmp_path / "data" / split / str(label)
            folder.mkdir(parents=True)
            for number in range(2):
                Image.new("L", (16, 16), 100 * number).save(folder / f"{number}.png")
    return tmp_path / "data"


@pytest.fixture(scope="module")
def network() -> nn.Cell:
    return build_network(ONE)


@pytest.fixture
def weights(network: nn.Cell, tmp_path: Path) -> Path:
    """Every parameter of the network, and one snapshot beside it."""
    folder = tmp_path / "checkpoint_stage_1"
    CheckpointSeries(folder / "checkpoint_pca", keep=9).append(to_arrays(network.trainable_params()), 1, 1)
    write_checkpoint(folder / "resnet_small-1_74.ckpt", to_arrays(network.get_parameters()))
    return folder / "resnet_small-1_74.ckpt"


def refusal_of_stage_1(data: Path, network: nn.Cell, *overrides: str) -> str:
    out = data.parent / "out"
    with pytest.raises(DimredError) as refused:
        check_stage_1(load_config(StageOneConfig, STAGE_1, overrides), network, data, out, None, False, ALONE)
    assert refused.value.exit_status == 2
    assert not out.exists()
    return str(refused.value)


@pytest.mark.parametrize(
    ("removed", "override", "said"),
    [
        (".", "", ["DATA is", "not a folder"]),
        ("train/3/*", "", ["class '3'", "no images"]),
        ("val", "stop=averaged", ["val"]),
        ("", "model.n_classes=9", ["10 classes", "n_classes 9"]),
        (
            "",
            "callback=nowhere.to_be:found",
            ["callback is 'nowhere.to_be:found', but 'nowhere.to_be' can't"],
        ),
    ],
)
def test_what_stage_1_refuses(removed: str, override: str, said: list[str], data: Path, network: nn.Cell) -> None:
    for path in [data] if removed == "." else data.glob(removed) if removed else []:
        path.unlink() if path.is_file() else shutil.rmtree(path)
    refusal = refusal_of_stage_1(data, network, *([override] if override else []))
    assert all(words in refusal for words in said), refusal


def samples(n_in_val: int, data: Path, split: str, seed: int | None) -> list[tuple[np.ndarray, int]]:
    return [(np.zeros((3, 16, 16), np.float32), 0)] * (n_in_val if split == "val" else 256)


one_in_val, two_in_val = partial(samples, 1), partial(samples, 2)


def test_a_val_too_small_to_choose_by_is_refused_and_a_small_one_warned_of(
    data: Path, network: nn.Cell, weights: Path, caplog: pytest.LogCaptureFixture
) -> None:
    told = {}
    for name in ("one_in_val", "two_in_val"):
        settings = TWO.model_copy(update={"data": TWO.data.model_copy(update={"dataset": f"{__name__}:{name}"})})
        told[name] = refusal_of_stage_2(data, network, weights, None, settings) + caplog.text
    assert "'val' chooses between networks by their losses, but has 1 sample" in told["one_in_val"]
    assert "'val' chooses between networks, and has only 2 samples" in told["two_in_val"]


def refusal_of_stage_2(
    data: Path, network: nn.Cell, weights: Path, pca_mat: Path | None, settings: StageTwoConfig = TWO
) -> str:
    out, before = data.parent / "out", [parameter.asnumpy().tobytes() for parameter in network.get_parameters()]
    with pytest.raises(DimredError) as refused:
        check_stage_2(settings, network, data, weights, pca_mat, out, False, ALONE)
    assert refused.value.exit_status == 2
    assert not out.exists()
    assert [parameter.asnumpy().tobytes() for parameter in network.get_parameters()] == before
    return str(refused.value)


def test_a_data_queue_is_refused_where_the_device_has_none(data: Path) -> None:
    settings = load_config(StageOneConfig, STAGE_1, ["data.sink=true"])
    with pytest.raises(DimredError, match=r"data\.sink is true.*--set data\.sink=false"):
        build_data(settings.data, data, "train")


def test_one_snapshot_where_33_are_needed(data: Path, network: nn.Cell, weights: Path) -> None:
    said = refusal_of_stage_2(data, network, weights, None)
    assert "33" in said
    assert " 1 " in said


def test_a_basis_without_a_search_is_refused(data: Path, network: nn.Cell, weights: Path) -> None:
    settings = TWO.model_copy(
        update={"search": None, "cooldown": CooldownConfig(rate=0.1, optimizer=OptimizerConfig())}
    )
    said = refusal_of_stage_2(data, network, weights, data.parent / "pca_mat.npy", settings)
    assert "PCA_MAT is" in said
    assert "search is null, so it has no use; leave PCA_MAT out, or search in it, such as --set search.n_comp" in said


@pytest.mark.parametrize(
    ("start", "said"),
    [
        ("nowhere.ckpt", "nowhere.ckpt is not found"),
        ("{snapshot}", "start '{snapshot}' has no '"),
    ],
)
def test_a_start_that_cannot_be_used_is_refused(
    start: str, said: str, data: Path, network: nn.Cell, weights: Path
) -> None:
    (snapshot,) = (weights.parent / "checkpoint_pca").glob("*.ckpt")
    cooldown = {"optimizer": {"name": "momentum"}, "rate": 0.1}
    options = {"start": start.format(snapshot=snapshot), "search": None, "cooldown": cooldown}
    settings = StageTwoConfig.model_validate(TWO.model_dump() | options)
    assert said.format(snapshot=snapshot) in refusal_of_stage_2(data, network, weights, None, settings)


@pytest.mark.parametrize(("shape", "said"), [((32, 19953), ["19,953", "19,954"]), ((19954,), ["(19954,)"])])
def test_a_matrix_of_the_wrong_shape(
    data: Path, network: nn.Cell, weights: Path, shape: tuple[int, ...], said: list[str]
) -> None:
    assert WeightLayout.from_network(network).size == 19954
    np.save(data.parent / "wrong.npy", np.zeros(shape, np.float32))
    refusal = refusal_of_stage_2(data, network, weights, data.parent / "wrong.npy")
    assert all(words in refusal for words in ["wrong.npy", *said])


def test_a_stage_2_that_goes_on_takes_its_own_basis_whatever_became_of_the_snapshots(
    data: Path, network: nn.Cell, weights: Path
) -> None:
    """Where it begins, one snapshot is too few; and they can't be read any more."""
    out, folder = data.parent / "out", data.parent / "series"
    (weights.parent / "checkpoint_pca" / "manifest.json").write_text("{")
    (out / "resume").mkdir(parents=True)
    (out / "resume" / "state-0.ckpt").touch()
    series, rng = CheckpointSeries(folder), np.random.default_rng(0)
    for step in range(1, 34):
        noise = {weight.name: rng.normal(size=weight.shape).astype(np.float32) for weight in network.trainable_params()}
        series.append(noise, step, step)
    fit_basis(series, 32, out=out / "pca_mat.npy")
    (out / "config.yaml").touch()
    found = check_stage_2(TWO, network, data, weights, None, out, True, ALONE).basis
    assert isinstance(found, SubspaceBasis)
    assert found.path == out / "pca_mat.npy"


def test_weights_of_another_network(data: Path, network: nn.Cell, weights: Path) -> None:
    (snapshot,) = (weights.parent / "checkpoint_pca").glob("*.ckpt")
    assert "moving_mean" in refusal_of_stage_2(data, network, snapshot, None)


def test_every_problem_is_told_at_once(data: Path, network: nn.Cell, weights: Path) -> None:
    refusal = refusal_of_stage_2(data / "nowhere", network, weights, None)
    assert refusal.startswith("2 problems:")
    assert "nowhere" in refusal
    assert "33" in refusal
