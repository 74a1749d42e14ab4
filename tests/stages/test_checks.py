"""Before the first step, bad input is refused and nothing is written."""

import shutil
from collections.abc import Callable
from functools import partial
from itertools import product
from pathlib import Path

import numpy as np
import pytest
from mindspore import Parameter, nn

from dimred.checkpoints.checkpoint_io import write_checkpoint
from dimred.checkpoints.series import CheckpointSeries
from dimred.config import StageOneConfig, StageTwoConfig, load_config
from dimred.data.digits import write_image_tree
from dimred.distributed.ranks import ALONE, Ranks
from dimred.errors import DimredError
from dimred.runs.begun import Begun, Pin
from dimred.runs.splits import build_data
from dimred.runs.task import build_network, build_task
from dimred.stages.checks import check_stage_1, check_stage_2
from dimred.stages.parent import StageOneRun
from dimred.stages.search import SearchPlan
from dimred.subspace.basis import SubspaceBasis
from dimred.subspace.fit import fit_basis
from dimred.train_step.schedule_free import ScheduleFree
from dimred.vectors.parameters import to_arrays
from tests.helpers.commands import DIGITS
from tests.helpers.networks import state_bytes

SMALL = ["data.batch_size=4"]
ONE = load_config(StageOneConfig, DIGITS, SMALL)
TWO = load_config(StageTwoConfig, DIGITS, SMALL)
COOLDOWN = load_config(
    StageTwoConfig,
    DIGITS,
    [*SMALL, "method=cooldown", "epochs=1", "cooldown.rate=0.1", "cooldown.optimizer.name=momentum"],
)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Write two images of each of ten classes in every split."""
    places = product(("train", "val", "test"), map(str, range(10)), ("0", "1"))
    write_image_tree(tmp_path / "data", [(*place, np.zeros((16, 16))) for place in places])
    return tmp_path / "data"


@pytest.fixture(scope="module")
def network() -> nn.Cell:
    return build_network(ONE)


@pytest.fixture
def weights(network: nn.Cell, tmp_path: Path) -> Path:
    """Write every parameter of the network, and one snapshot beside it."""
    folder = tmp_path / "checkpoint_stage_1"
    CheckpointSeries.create(folder / "checkpoint_pca", keep=9).append(to_arrays(network.trainable_params()), 1, 1)
    write_checkpoint(folder / "resnet_small-1_74.ckpt", to_arrays(network.get_parameters()))
    return folder / "resnet_small-1_74.ckpt"


def refusal(network: nn.Cell, data: Path, check: Callable[[Path], object]) -> str:
    """Return the error of a check, which gets a new folder and leaves the network and the disk as they are."""
    out, before = data.parent / "out", state_bytes(network)
    with pytest.raises(DimredError) as refused:
        check(out)
    assert refused.value.exit_status == 2
    assert not out.exists()
    assert state_bytes(network) == before
    return str(refused.value)


def check_1(data: Path, out: Path, config: StageOneConfig, ranks: Ranks = ALONE) -> None:
    check_stage_1(build_task(config, data, ranks, is_checked=False), out)


def check_2(
    data: Path,
    weights: Path,
    out: Path,
    pca_mat: Path | None = None,
    config: StageTwoConfig = TWO,
    begun: Begun[StageTwoConfig] | None = None,
) -> object:
    task = build_task(config, data, is_checked=False)
    return check_stage_2(task, StageOneRun.open(weights), pca_mat, out, begun, resume=begun is not None)


def refusal_of_stage_2(
    data: Path, network: nn.Cell, weights: Path, pca_mat: Path | None, config: StageTwoConfig = TWO
) -> str:
    return refusal(network, data, lambda out: check_2(data, weights, out, pca_mat, config))


@pytest.mark.parametrize(
    ("removed", "override", "said"),
    [
        (".", "", ["DATA is", "not a folder"]),
        ("train/3/*", "", ["class '3'", "no images"]),
        ("val", "stop=averaged", ["val"]),
        ("", "model.n_classes=9", ["10 classes", "n_classes 9"]),
        ("", "callback=nowhere.to_be:found", ["callback is 'nowhere.to_be:found', but 'nowhere.to_be' can't"]),
    ],
)
def test_what_stage_1_refuses(removed: str, override: str, said: list[str], data: Path, network: nn.Cell) -> None:
    for path in [data] if removed == "." else data.glob(removed) if removed else []:
        path.unlink() if path.is_file() else shutil.rmtree(path)
    config = load_config(StageOneConfig, DIGITS, [override] if override else [])
    told = refusal(network, data, lambda out: check_1(data, out, config))
    assert all(words in told for words in said), told


def test_a_step_that_needs_twice_the_memory_is_refused_before_it_is_made(data: Path, network: nn.Cell) -> None:
    keys = ["data.batch_size=2000000", "data.image_size=64", "data.resize=true"]
    told = refusal(network, data, lambda out: check_1(data, out, load_config(StageOneConfig, DIGITS, keys)))
    assert "a step of resnet_small on 2000000 images of 64 pixels takes about " in told
    assert "GB are available; lower data.batch_size" in told


def samples(n_in_val: int, data: Path, split: str, seed: int | None) -> list[tuple[np.ndarray, int]]:
    return [(np.zeros((3, 16, 16), np.float32), 0)] * (n_in_val if split == "val" else 256)


one_in_val, two_in_val = partial(samples, 1), partial(samples, 2)


def named_epoch() -> nn.Cell:
    network = nn.Dense(2, 10)
    network.insert_param_to_cell("epoch", Parameter(1.0, name="epoch"))
    return network


def test_a_name_that_full_checkpoints_need_is_refused_before_training(data: Path, network: nn.Cell) -> None:
    config = load_config(StageOneConfig, DIGITS, [f"model.name={__name__}:named_epoch"])
    told = refusal(network, data, lambda out: check_1(data, out, config))
    assert "a network with a parameter named 'epoch'" in told


def test_a_val_too_small_to_choose_by_is_refused_and_a_small_one_warned_of(
    data: Path, network: nn.Cell, weights: Path, caplog: pytest.LogCaptureFixture
) -> None:
    one, two = (
        COOLDOWN.model_copy(update={"data": COOLDOWN.data.model_copy(update={"dataset": f"{__name__}:{name}"})})
        for name in ("one_in_val", "two_in_val")
    )
    said = refusal_of_stage_2(data, network, weights, None, one)
    assert "'val' chooses between networks by their losses, but has 1 sample" in said
    check_2(data, weights, data.parent / "out", None, two)
    assert "'val' chooses between networks, but has only 2 samples" in caplog.text


def test_a_data_queue_is_refused_where_the_device_has_none(data: Path) -> None:
    config = load_config(StageOneConfig, DIGITS, ["data.sink=true"])
    with pytest.raises(DimredError, match=r"data\.sink is true.*--set data\.sink=false"):
        build_data(config.data, data, "train")


def test_a_basis_for_a_cooldown_is_refused(data: Path, network: nn.Cell, weights: Path) -> None:
    config = COOLDOWN
    said = refusal_of_stage_2(data, network, weights, data.parent / "pca_mat.npy", config)
    assert "PCA_MAT is" in said
    assert (
        "method is cooldown, which has no use for it; leave PCA_MAT out, or search in it with --set method=se" in said
    )


def test_the_point_of_schedule_free_gradients_is_no_start(data: Path, network: nn.Cell, weights: Path) -> None:
    free = to_arrays([ScheduleFree(network.trainable_params()).rates_squared])
    write_checkpoint(weights, to_arrays(network.get_parameters()) | free)
    said = refusal_of_stage_2(data, network, weights, None)
    assert f"{str(weights)!r} has the point at which schedule-free training takes its gradients" in said
    assert "name the *-final.ckpt beside it" in said


@pytest.mark.parametrize("is_given", [False, True])
def test_a_stage_2_that_goes_on_takes_the_basis_it_began_with_whatever_became_of_the_snapshots(
    is_given: bool, data: Path, network: nn.Cell, weights: Path
) -> None:
    """Where it begins, one snapshot would be too few, and they can't be read any more."""
    out, folder = data.parent / "out", data.parent / "series"
    (weights.parent / "checkpoint_pca" / "manifest.json").write_text("{")
    out.mkdir()
    series, rng = CheckpointSeries.create(folder), np.random.default_rng(0)
    for step in range(1, 34):
        noise = {weight.name: rng.normal(size=weight.shape).astype(np.float32) for weight in network.trainable_params()}
        series.append(noise, step, step)
    basis = fit_basis(series, 32, out=(data.parent if is_given else out) / "pca_mat.npy")
    (out / "config.yaml").touch()
    pin = Pin(basis.digest, str(basis.path) if is_given else None)
    plan = check_2(data, weights, out, begun=Begun(TWO, {"PCA_MAT": pin}))
    assert isinstance(plan, SearchPlan)
    found = plan.basis
    assert isinstance(found, SubspaceBasis)
    assert found.path == basis.path


def test_weights_of_another_network_are_refused(data: Path, network: nn.Cell, weights: Path) -> None:
    (snapshot,) = (weights.parent / "checkpoint_pca").glob("*.ckpt")
    assert "moving_mean" in refusal_of_stage_2(data, network, snapshot, None)


def test_every_problem_is_told_at_once(data: Path, network: nn.Cell, weights: Path) -> None:
    """Besides the missing data, there is one snapshot where 33 are needed."""
    told = refusal_of_stage_2(data / "nowhere", network, weights, None)
    assert told.startswith("2 problems:")
    assert "nowhere" in told
    assert "33" in told


class Second(Ranks):
    """Rank 1, as far as a check can see."""

    rank = 1


def test_the_rank_that_writes_needs_room_and_no_other(data: Path, network: nn.Cell) -> None:
    """When a run is resumed, what it has written already stands in the folder of rank 0."""
    keeps_all = ONE.snapshots.model_copy(update={"keep": 10**12})
    config = ONE.model_copy(update={"epochs": 10**12, "snapshots": keeps_all})
    said = refusal(network, data, lambda out: check_1(data, out, config))
    assert "MB free; the run takes up to" in said
    check_1(data, data.parent / "out", config, Second())
