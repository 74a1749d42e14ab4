"""Run the checks of one rank of a real job: python -m tests.distributed.checks MODE --out FOLDER, by the launcher.

With ``pynative`` in place of ``graph``, checks whose graphs take long to compile run in PyNative or are left out. One
job answers many questions, because starting it is what costs. Each check returns plain numbers; every rank writes its
answers to FOLDER/checks.json, and ``test_ranks.py`` compares them.
"""

import json
import os
import sys
import tempfile
import time
from pathlib import Path

import mindspore as ms
import numpy as np
from mindspore import Tensor, nn
from mindspore.dataset import NumpySlicesDataset

from dimred.averaging.windows import Window
from dimred.checkpoints.layout import WeightLayout
from dimred.checkpoints.series import CheckpointSeries
from dimred.checkpoints.states import FullCheckpoints, RunStates, read_state
from dimred.config import StageOneConfig
from dimred.distributed.ranks import Ranks
from dimred.errors import DataError, DimredError
from dimred.evaluation.averages import SnapshotAverages
from dimred.evaluation.batch_norm import reestimate_batch_norm
from dimred.evaluation.measures import MeanOfItems, MeansOfSamples, OfWholeSplit, measure_batches
from dimred.evaluation.predictions import Predict
from dimred.evaluation.scores import cross_entropy, is_correct, mean_of_items
from dimred.run_files.metrics_file import read_metrics
from dimred.runs.device import set_up
from dimred.runs.records import MetricsLog, cut_metrics
from dimred.runs.task import build_task
from dimred.stages.checks import check_stage_1
from dimred.stages.snapshot_callback import SnapshotCallback
from dimred.vectors.projection import make_projection
from tests.distributed.agreement import (
    all_reduces,
    one_loss_is_not_finite,
    one_rank_leaves,
    one_rank_leaves_between_micro_batches,
)
from tests.distributed.steps import (
    K,
    beside_one_rank,
    counted_labels,
    counters,
    digest,
    dropout,
    masks_of_training,
    one_loss_differs,
    probabilities,
)
from tests.helpers import tiny_task
from tests.helpers.networks import TanhMLP, orthonormal_rows
from tests.oracles.moments import mean_and_variance

EXACT = (
    (2**24 + 1, ms.int32),
    (2**53 + 1, ms.int64),
    (-1, ms.int8),
    (2**32 - 1, ms.uint32),
    (True, ms.bool_),
    (-0.0, ms.float32),
    (0.1, ms.float64),
    (65504.0, ms.float16),
)
"""Values, most of which a sum of float32 numbers would round or change, and their types."""


def one_rank_fails_at_work(ranks: Ranks) -> list[str]:
    """Let the last rank fail to read an image, then rank 0's disk be full: all raise, and can still add."""

    def unreadable() -> float:
        if ranks.rank == ranks.group_size - 1:
            raise DataError("no image")
        return 7.0

    def full() -> float:
        Path("/dev/full" if ranks.is_rank_zero else "/dev/null").write_text("full")
        return 7.0

    found = []
    for work in (unreadable, full, lambda: 7.0):
        try:
            found.append(str(ranks.run_together(work)))
        except (DimredError, OSError) as error:
            found.append(f"{type(error).__name__}: {error}")
    return [*found, str(float(ranks.sum([1])[0]))]


def collectives(ranks: Ranks) -> dict:
    failures = []
    for work in (lambda: 1 / 0, lambda: [][0], lambda: Path("/dev/full").write_text("full")):
        try:
            ranks.run_on_rank_zero(work)
        except (DimredError, ArithmeticError, LookupError, OSError) as error:
            failures.append(f"{type(error).__name__}: {error}")
    differs = False
    try:
        ranks.check_same("number", str(ranks.rank).encode())
    except DimredError:
        differs = True
    ranks.check_same("text", b"the same")
    counted = [ms.Parameter(Tensor([value if ranks.is_rank_zero else 7], kind)) for value, kind in EXACT]
    ranks.broadcast(counted)
    averaged = [ms.Parameter(Tensor(np.full((2, 3), ranks.rank, np.float32)), name=name) for name in "ab"]
    ranks.all_reduce_mean(averaged)
    return {
        "broadcast": [value.asnumpy().tobytes().hex() for value in counted],
        "gather": ranks.gather([2**24 + ranks.rank, 0.1]).tolist(),
        "averaged": [value.asnumpy().tolist() for value in averaged],
        "sum": ranks.sum([ranks.rank + 1, 0.5]).tolist(),
        "tell": ranks.broadcast_bytes("größer".encode() * (1 if ranks.is_rank_zero else 0)).decode(),
        "any": [ranks.any(ranks.rank == 1), ranks.any(False)],
        "run_on_rank_zero": ranks.run_on_rank_zero(lambda: time.sleep(1) or 7),
        "failures": failures,
        "differs": differs,
    }


def subspace(ranks: Ranks) -> dict:
    """Project down and up over the shards, and compare with NumPy on the whole; M is odd and prime."""
    m = 101
    components = orthonormal_rows(K, m)
    vector = np.random.default_rng(1).standard_normal(m).astype(np.float32)
    sharded = make_projection(components, ranks)
    down = sharded.project(Tensor(vector))
    up = sharded.back_project(down)[0].asnumpy()
    return {
        "down_error": float(np.abs(down - components @ vector).max()),
        "up_error": float(np.abs(up - down @ components).max()),
        "digest": digest(down, up),
        "held": int(np.prod(sharded.components.shape)),
    }


def evaluation(ranks: Ranks) -> dict:
    """Measure 23 images, of which the network gets every third right; the ranks have different numbers of them."""
    logits = np.eye(3, dtype=np.float32)[np.arange(23) % 3]
    labels = np.zeros(23, np.int32)
    own = slice(ranks.rank, None, ranks.group_size)
    images = NumpySlicesDataset((logits[own], labels[own]), shuffle=False).batch(4)
    in_order = OfWholeSplit(lambda outputs, labels: outputs.argmax(1) @ 3 ** np.arange(23) + labels.sum())
    measures = (MeanOfItems(is_correct), MeansOfSamples(cross_entropy), in_order, Predict())
    kept, _ = measure_batches(nn.Identity(), images, measures)
    accuracy, losses, whole, predictions = (
        measure.of_split(of_one, ranks) for measure, of_one in zip(measures, kept, strict=True)
    )
    many = [(np.array([1.0]), np.array([2.0]))] if ranks.rank else [(np.array([2.0**24]), np.array([2.0**24]))]
    return {
        "accuracy": accuracy,
        "losses": losses.tolist(),
        "whole": whole,
        "predicted": predictions.classes.tolist(),
        "many": mean_of_items(many, ranks),
    }


def statistics(ranks: Ranks) -> dict:
    """Re-estimate BatchNorm with 1, 7, ... rows on rank 0, 1, ...; only rank 0 has a batch of a single row more."""
    rows = [np.random.default_rng(rank).normal(3 * rank, 2.0, (6 * rank + 1, 3)) for rank in range(ranks.group_size)]
    rows[0] = np.concatenate([rows[0], rows[0] + 9])
    norm = nn.BatchNorm1d(3)
    cuts = [1] if ranks.is_rank_zero else [4]
    parts = np.split(rows[ranks.rank].astype(np.float32), cuts)
    n_batches = reestimate_batch_norm(norm, [(Tensor(part), Tensor(0)) for part in parts], ranks=ranks)
    mean, variance = norm.moving_mean.asnumpy(), norm.moving_variance.asnumpy()
    of_all = mean_and_variance(rows)
    error = max(np.abs(mean / of_all[0] - 1).max(), np.abs(variance / of_all[1] - 1).max())
    return {"n_batches": n_batches, "error": float(error), "digest": digest(mean, variance)}


def averages(ranks: Ranks) -> dict:
    """Average snapshots that only rank 0 has."""
    rows = np.random.default_rng(2).standard_normal((5, 101)).astype(np.float32)
    layout = WeightLayout.from_weights({"w": rows[0]})
    with tempfile.TemporaryDirectory() as own:
        series = CheckpointSeries.create(own) if ranks.is_rank_zero else None
        for step, row in enumerate(rows, start=1) if series is not None else ():
            series.append({"w": row}, step, step)
        of_snapshots = SnapshotAverages(series, layout, ranks)
        found = [of_snapshots.of(window) for window in (Window(2, 4), Window(0, 4), Window(0, 5, "linear"))]
    expected = [rows[2:4].mean(0), rows[:4].mean(0), np.arange(1, 6) @ rows / 15]
    return {
        "steps": of_snapshots.steps,
        "error": float(max(np.abs(mean - each).max() for mean, each in zip(found, expected, strict=True))),
        "digest": digest(*found),
    }


def shared_files(ranks: Ranks) -> dict:
    """Share rank 0's state under one path for all, then under a path that leads to another folder on every rank."""
    before = Path.cwd()
    weights = np.random.default_rng(3).standard_normal(100_000, dtype=np.float32)
    shared = RunStates(Path(sys.argv[-1]).parent)  # on one host, of which all ranks here are
    if ranks.is_rank_zero:
        shared.save(7, {"w": weights}, {"epoch": 1})
    state = ranks.share(ranks.run_on_rank_zero(lambda: shared.newest(print)), read_state)
    found = [[state.values, digest(state.arrays["w"]) == digest(weights)]]
    nothing = ranks.share(None, read_state)
    states = RunStates(Path("/proc/self/cwd"))
    with tempfile.TemporaryDirectory() as own:
        os.chdir(own)
        for values in (None, weights, weights + 1):
            if ranks.is_rank_zero or values is not None:
                states.save(7, {"w": weights if ranks.is_rank_zero else values}, {"epoch": 2})
            try:
                state = ranks.share(ranks.run_on_rank_zero(lambda: states.newest(print)), read_state)
                found.append([state.values, digest(state.arrays["w"]) == digest(weights)])
            except DimredError as error:
                found.append(str(error))
        os.chdir(before)
    return {"nothing": nothing, "found": found}


def metrics_without_a_shared_disk(ranks: Ranks) -> dict:
    """Resume with three of rank 0's four records; ranks on new hosts have none of them."""
    with tempfile.TemporaryDirectory() as own:
        path = Path(own) / "metrics.jsonl"
        with MetricsLog(path) as log:
            for step in range(1, 4) if ranks.is_rank_zero else ():
                log.write(step=step)
            mark = log.mark()
            log.write(step=4)
        cut_metrics(path, mark, ranks)
        kept = read_metrics(path)
        return {"steps": [record["step"] for record in kept]}


def snapshot_callback(ranks: Ranks) -> bool:
    """Return whether this rank wrote snapshots in a user's own ``Model.train``."""
    network = TanhMLP()
    model = ms.train.Model(network, optimizer=nn.SGD(network.trainable_params(), 0.1))
    data = NumpySlicesDataset((np.ones((4, 3), np.float32), np.ones((4, 2), np.float32))).batch(2)
    with tempfile.TemporaryDirectory() as folder:
        snapshots = Path(folder, "snapshots")
        model.train(1, data, callbacks=[SnapshotCallback(snapshots)], dataset_sink_mode=False)
        return snapshots.exists() and len(CheckpointSeries.open(snapshots)) == 1


def of_this_rank(n_classes: int) -> nn.Cell:
    """Make a network that draws its weights from a generator of its own, differently on every rank."""
    made, rng = tiny_task.network(n_classes), np.random.default_rng(int(os.environ["RANK_ID"]))
    for parameter in made.get_parameters():
        parameter.set_data(Tensor(rng.standard_normal(parameter.shape).astype(np.float32)))
    return made


def own_networks(ranks: Ranks) -> dict:
    """Build a stage's task whose network has other weights on every rank."""
    model = tiny_task.TASK["model"] | {"name": f"{of_this_rank.__module__}:{of_this_rank.__name__}"}
    config = StageOneConfig.model_validate(tiny_task.TASK | {"model": model})
    at_first, task = of_this_rank(tiny_task.N_CLASSES), build_task(config, Path(), ranks)
    seed = ms.get_seed()
    ms.set_seed(1)
    return {"seed": seed} | {
        name: digest(*(parameter.asnumpy() for parameter in network.get_parameters()))
        for name, network in (("at first", at_first), ("of the task", task.network))
    }


def other_checkpoint(ranks: Ranks) -> str:
    """Begin a stage 1 with a checkpoint that has another number in it on every rank."""
    task = build_task(StageOneConfig.model_validate(tiny_task.TASK | {"epochs": 3}), Path(), ranks, is_checked=False)
    with tempfile.TemporaryDirectory() as own:
        FullCheckpoints(Path(own), "net", 1).save(1, 4, {"global_step": np.full(1, 4), "w": np.full(1, ranks.rank)})
        try:
            check_stage_1(task, Path(own) / "new", Path(own) / "net-1_4.ckpt")
        except DimredError as error:
            return str(error)
    return "nothing"


IN_GRAPHS = (
    collectives,
    one_rank_fails_at_work,
    one_rank_leaves,
    one_loss_is_not_finite,
    all_reduces,
    subspace,
    beside_one_rank,
    masks_of_training,
    evaluation,
    statistics,
    averages,
    shared_files,
    metrics_without_a_shared_disk,
    snapshot_callback,
    own_networks,
    other_checkpoint,
)
IN_EITHER_MODE = (one_loss_differs, dropout, counted_labels, probabilities, counters)


def main() -> None:
    ranks = set_up(1, all_reduce_split=(1,))
    answers, in_graphs = {}, sys.argv[1] == "graph"
    for check in (*IN_GRAPHS, *((one_rank_leaves_between_micro_batches,) if in_graphs else ()), *IN_EITHER_MODE):
        if check is IN_EITHER_MODE[0] and not in_graphs:
            ms.set_context(mode=ms.PYNATIVE_MODE)
        print(check.__name__, flush=True)
        answers[check.__name__] = check(ranks)
    (Path(sys.argv[-1]) / "checks.json").write_text(json.dumps(answers))


if __name__ == "__main__":
    main()
