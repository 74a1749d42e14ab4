"""A user's own optimizer, and AdamW, are resumed and cooled down as momentum is; one that can't be used is refused."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from mindcv.optim.lion import Lion
from mindspore import nn

import dimred
from dimred.checkpoints.checkpoint_io import read_checkpoint
from dimred.config import NO_DECAY_PATTERNS, OptimizerConfig, StageOneConfig, StageTwoConfig
from dimred.errors import ConfigError
from dimred.pipelines.stage_1 import stage_1
from dimred.pipelines.stage_2 import stage_2
from dimred.runs.splits import build_data
from dimred.runs.steps import build_optimizer
from dimred.train_step.optimizer_state import last_rate, state_parameters
from dimred.train_step.optimizers import decay_groups
from dimred.vectors.parameters import from_arrays, to_arrays
from tests.helpers.tiny_run import differences_if_killed, stage_1_run, stage_2_run
from tests.helpers.tiny_task import TASK, network

LION = "mindcv.optim.lion:Lion"
STAGE_1: dict[str, Any] = {
    "epochs": 2,
    "schedule": {"name": "constant", "peak": 0.01, "warmup_epochs": 0},
    "checkpoints": {"every_epochs": 1},
}
DECAY, STEPS = 0.01, 4  # steps of an epoch


def plain(kind: type[nn.Optimizer], rates: list[float]) -> tuple[nn.Cell, nn.Optimizer, nn.Cell]:
    """Make a network, its optimizer, and MindSpore's own step of them."""
    cell = network(3)
    optimizer = kind(decay_groups(cell.trainable_params(), DECAY, NO_DECAY_PATTERNS), rates)
    loss = nn.WithLossCell(cell, nn.CrossEntropyLoss(label_smoothing=0.1))
    return cell, optimizer, nn.TrainOneStepCell(loss, optimizer).set_train(True)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "kind"), [(LION, Lion), ("adamw", dimred.AdamW)])
def test_a_resumed_run_and_a_cooldown_leave_the_weights_of_a_plain_loop(
    name: str, kind: type[nn.Optimizer], tmp_path: Path
) -> None:
    """Its moments, its count of updates and its decay groups go on, while the rate falls to 0."""
    optimizer = {"name": name, "weight_decay": DECAY}
    one = StageOneConfig.model_validate(TASK | STAGE_1 | {"optimizer": optimizer})
    assert not differences_if_killed(stage_1_run(one), tmp_path)

    weights = tmp_path / "one" / "checkpoint_stage_1" / "network-2_4.ckpt"
    options = {"method": "cooldown", "epochs": 1, "cooldown": {"keep_best": False}}
    two = StageTwoConfig.model_validate(TASK | options)
    stage_2_run(two, weights)(tmp_path / "two", False)
    cell, update, step = plain(kind, [0.0] * 2 * STEPS + [0.5 * 0.01 * (STEPS - n) / STEPS for n in range(STEPS)])
    begun = read_checkpoint(weights)
    from_arrays([*cell.get_parameters(), *state_parameters(update)], begun, "stage 1")
    for batch in build_data(two.data, Path(), "train").training_epoch(two.seed, 1_000_001).create_tuple_iterator():
        step(*batch)
    [found] = (tmp_path / "two" / "checkpoint_stage_2").glob("network-1_4.ckpt")
    arrays = read_checkpoint(found)
    for parameter, value in to_arrays(cell.trainable_params()).items():
        np.testing.assert_array_equal(arrays[parameter], value, err_msg=parameter)
    assert np.abs(arrays["0.weight"] - begun["0.weight"]).max() > 1e-3


class Constant(nn.Momentum):
    """An optimizer that ignores the rates, which must be refused: its rate could not be brought to 0."""

    def __init__(self, groups: list[dict[str, Any]], rates: list[float]):
        super().__init__(groups, 0.1, 0.9)


class LayerWise(nn.Momentum):
    """An optimizer whose groups have rates of their own, made from those that it is called with."""

    def __init__(self, groups: list[dict[str, Any]], rates: list[float]):
        *named, order = groups
        own = [group | {"lr": [rate * 0.5**n for rate in rates]} for n, group in enumerate(named)]
        super().__init__([*own, order], rates, 0.9)


def failing(groups: list[dict[str, Any]], rates: list[float]) -> nn.Optimizer:
    raise KeyError("no")


def no_optimizer(groups: list[dict[str, Any]], rates: list[float]) -> nn.Cell:
    return nn.Dense(2, 2)


def of_one_weight(groups: list[dict[str, Any]], rates: list[float]) -> nn.Optimizer:
    return nn.Momentum([groups[-1]["order_params"][0]], rates, 0.9)


HERE = "tests.stages.test_own_optimizer"
REFUSED = [
    ({"name": "lion"}, r"optimizer\.name is 'lion'; allowed: momentum, sgd, adamw, schedule_free, or your own"),
    ({"name": "nowhere:Lion"}, "optimizer.name is 'nowhere:Lion', but 'nowhere' can't be imported"),
    ({"name": f"{HERE}:missing"}, "has no 'missing'"),
    ({"name": f"{HERE}:failing"}, "failed with KeyError: 'no'. It is called with the parameter groups and the"),
    ({"name": f"{HERE}:no_optimizer"}, "returned Dense; it must return an nn.Optimizer"),
    ({"name": f"{HERE}:of_one_weight"}, "returned an optimizer for 1 parameters; it must be for the 6 in the groups"),
    ({"name": f"{HERE}:Constant"}, "returned an optimizer without the 3 learning rates that it is called with"),
    ({"name": LION, "beta1": 0.9}, f"optimizer.beta1 is not an option of {LION}; set it in the factory"),
]


@pytest.mark.parametrize(("options", "said"), REFUSED, ids=lambda value: str(value)[:40])
def test_an_optimizer_that_can_not_be_used_is_named(options: dict[str, Any], said: str) -> None:
    def build() -> None:
        build_optimizer(StageOneConfig.checked({"optimizer": options}).optimizer, network(3), [0.1, 0.1, 0.1])

    with pytest.raises(ConfigError, match=said):
        build()


def test_it_is_refused_with_all_other_problems_before_the_folder_is_made(tmp_path: Path) -> None:
    (tmp_path / "one.yaml").write_text(
        f"stage_1: {{optimizer: {{name: '{HERE}:failing'}}}}\nmodel: {{name: resnet_small}}\n"
    )
    with pytest.raises(ConfigError, match=r"(?s)problems:.*DATA is .*optimizer\.name is .*failed with KeyError"):
        stage_1(tmp_path / "nothing", tmp_path / "one.yaml", out=tmp_path / "one")
    assert not (tmp_path / "one").exists()


def test_rates_of_groups_are_made_again_and_are_no_state() -> None:
    cell = network(3)
    update = build_optimizer(OptimizerConfig(name=f"{HERE}:LayerWise"), cell, [0.1, 0.2])
    state = state_parameters(update)
    assert {parameter.name.partition(".")[0] for parameter in state} == {"global_step", "momentum", "moments"}
    assert last_rate(update) == pytest.approx(0.1)


def test_a_pattern_that_matches_no_weight_is_told_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    optimizer = {"no_decay": ["*bias", "*gamma", "bais"]}
    (tmp_path / "one.yaml").write_text(json.dumps(TASK | {"stage_1": STAGE_1 | {"epochs": 1, "optimizer": optimizer}}))
    cooldown = {"method": "cooldown", "epochs": 1, "cooldown": {"rate": 0.01, "optimizer": optimizer}}
    (tmp_path / "two.yaml").write_text(json.dumps(TASK | {"stage_2": cooldown}))
    warnings = []
    for run in (
        lambda: stage_1(tmp_path, tmp_path / "one.yaml", out=tmp_path / "one"),
        lambda: stage_2(
            tmp_path,
            tmp_path / "one/checkpoint_stage_1/network-1_4.ckpt",
            config_file=tmp_path / "two.yaml",
            out=tmp_path / "two",
            fast_dev_run=True,
        ),
    ):
        run()
        warnings.append([one.partition(", which")[0] for one in caplog.messages if "no_decay" in one])
        caplog.clear()
    assert warnings == 2 * [["optimizer.no_decay has 'bais'"]]
