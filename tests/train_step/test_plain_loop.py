"""A user's own loop around TrainStep, as the README has it, equals stage 1's program."""

from pathlib import Path

import mindspore as ms
import numpy as np
from mindspore import Tensor, nn

import dimred
from dimred.checkpoints.states import read_full_checkpoint
from dimred.config import StageOneConfig
from dimred.runs.splits import build_data
from dimred.runs.steps import build_optimizer, build_rates
from dimred.runs.task import build_network
from dimred.train_step.statistics import moving_statistics
from tests.helpers.tiny_run import stage_1_run
from tests.helpers.tiny_task import N_FEATURES, TASK

EPOCHS = 2


def test_it_leaves_the_weights_and_moving_statistics_that_the_program_leaves(tmp_path: Path, pynative: None) -> None:
    schedule = {"name": "constant", "peak": 0.1, "warmup_epochs": 0}
    config = StageOneConfig.model_validate(TASK | {"epochs": EPOCHS, "evaluate_every_epochs": 1, "schedule": schedule})
    stage_1_run(config)(tmp_path / "run", False)
    [path] = (tmp_path / "run" / "checkpoint_stage_1").glob(f"network-{EPOCHS}_*.ckpt")
    expected, _ = read_full_checkpoint(path, "the run")

    ms.set_seed(config.seed)
    network, images = build_network(config), build_data(config.data, Path(), "train")
    optimizer = build_optimizer(config.optimizer, network, build_rates(config.schedule, 4, EPOCHS).tolist())
    loss = nn.CrossEntropyLoss(label_smoothing=config.label_smoothing)
    step = dimred.TrainStep(nn.WithLossCell(network, loss), optimizer)
    for epoch in range(1, EPOCHS + 1):
        for batch in images.training_epoch(config.seed, epoch).create_tuple_iterator(num_epochs=1):
            step(*batch)
        network.set_train(False)(Tensor(np.zeros((1, N_FEATURES), np.float32)))
    for value in (*network.trainable_params(), *moving_statistics(network)):
        np.testing.assert_array_equal(value.asnumpy(), expected[value.name], err_msg=value.name)
