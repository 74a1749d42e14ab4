"""What the loop of a run costs beside a bare one, on one rank; and what the ranks' votes cost in the step of two.

Take the first on one core: on two, instances of the same bare step differ by up to a factor of two, for all of a run.

OMP_NUM_THREADS=1 taskset -c 0 bash scripts/test.sh -m benchmark -s tests/benchmarks/test_loop.py -k bare_one
"""

import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mindspore as ms
import numpy as np
import pytest
from mindspore import nn

from dimred.builders import build_data, build_network
from dimred.builders.loss_and_metric import build_loss
from dimred.builders.steps import build_optimizer, build_rates
from dimred.config import StageOneConfig, StageTwoConfig
from dimred.io.metrics_file import read_metrics
from dimred.launch.job import make_job
from dimred.launch.launcher import launch
from tests.helpers.tiny_run import Run, stage_1_run, stage_2_run

pytestmark = pytest.mark.benchmark
EPOCHS, ROUNDS = 3, 4


def test_two_ranks_beside_an_all_reduce_that_the_host_waits_for(tmp_path: Path) -> None:
    job = make_job("tests.benchmarks.loop_of_ranks", "stage_1", [], out=tmp_path, devices=2, device_target="CPU")
    assert launch(job) == 0
    for rank in range(2):
        told = json.loads((job.folder(rank) / "figures.json").read_text())
        print(f"rank {rank}: before {told['before_ms']:.3f} ms a step, after {told['after_ms']:.3f} ms, "
              f"ratio {told['ratio']:.3f} in the median")  # fmt: skip


class Images16:
    """Forty batches of 64 random images; reading them costs next to nothing."""

    def __init__(self, data: Path, split: str, seed: int | None):
        rng = np.random.default_rng(1)
        self._images = rng.normal(size=(64 * 40 if split == "train" else 64, 3, 16, 16)).astype(np.float32)

    def __len__(self) -> int:
        return len(self._images)

    def __getitem__(self, number: int) -> tuple[np.ndarray, int]:
        return self._images[number], number % 10


TASK: dict[str, Any] = {
    "model": {"name": "resnet_small", "n_classes": 10},
    "data": {"dataset": "tests.benchmarks.test_loop:Images16", "batch_size": 64},
    "epochs": EPOCHS,
    "reestimate_batch_norm": False,
}
STAGE_1 = TASK | {"schedule": {"peak": 0.01, "warmup_epochs": 0, "total_epochs": EPOCHS + 1}}


def make_bare() -> tuple[Callable[[Path], float], Callable[[Path], float]]:
    """Functions that train some epochs, by ``TrainOneStepCell`` in a loop and by ``Model.train``: seconds an epoch."""
    settings = StageOneConfig.model_validate(STAGE_1)
    network, images = build_network(settings), build_data(settings.data, Path(), "train")
    rates = (ROUNDS + 1) * build_rates(settings.schedule, images.steps_per_epoch, EPOCHS).tolist()
    loss = build_loss(settings, network)
    step = nn.TrainOneStepCell(loss, build_optimizer(settings.optimizer, network, rates)).set_train(True)
    model = ms.train.Model(loss, optimizer=build_optimizer(settings.optimizer, network, rates))

    def in_a_loop(_: Path) -> float:
        times = []
        for epoch in range(1, EPOCHS + 1):
            started, found = time.perf_counter(), None
            for batch in images.training_epoch(1, epoch).create_tuple_iterator(num_epochs=1):
                found = step(*batch)
            found.asnumpy()
            times.append(time.perf_counter() - started)
        return min(times)

    def by_model(_: Path) -> float:
        times = []
        for epoch in range(1, EPOCHS + 1):
            started = time.perf_counter()
            model.train(1, images.training_epoch(1, epoch)._batches, dataset_sink_mode=False)
            times.append(time.perf_counter() - started)
        return min(times)

    return in_a_loop, by_model


def seconds_an_epoch(run: Run) -> Callable[[Path], float]:
    """A function that runs a stage in a folder: the least seconds of an epoch's steps."""

    def take(out: Path) -> float:
        run(out, False)
        return min(record["seconds"] for record in read_metrics(out / "metrics.jsonl"))

    return take


def test_the_loops_of_both_stages_beside_a_bare_one_and_mindspores(tmp_path: Path) -> None:
    ms.set_context(mode=ms.GRAPH_MODE)
    in_a_loop, by_model = make_bare()
    stage_1 = stage_1_run(StageOneConfig.model_validate(STAGE_1))
    stage_1(tmp_path / "one", False)
    weights = next((tmp_path / "one" / "checkpoint_stage_1").glob("*.ckpt"))
    two = StageTwoConfig.model_validate(TASK | {"start": "last"})
    programs = {
        "TrainOneStepCell in a loop": in_a_loop,
        "Model.train": by_model,
        "stage 1": seconds_an_epoch(stage_1),
        "cooldown": seconds_an_epoch(stage_2_run(two, weights)),
    }
    for program in programs.values():
        program(tmp_path / f"compiled {id(program)}")
    rounds = [
        {name: program(tmp_path / f"{number} {name}") for name, program in programs.items()} for number in range(ROUNDS)
    ]
    for name in programs:
        ratio = statistics.median(times[name] / times["TrainOneStepCell in a loop"] for times in rounds)
        least = min(times[name] for times in rounds)
        print(f"{name}: {least:.3f} s an epoch, {ratio:.3f} of the bare loop in the median")
