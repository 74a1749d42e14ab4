"""What a rank of a real job finds out: python -m tests.distributed.checks --out FOLDER, started by the launcher.

One job answers many questions, because starting it is what costs. Each check returns plain numbers; every rank writes
its answers to FOLDER/checks.json, and ``test_ranks.py`` compares them.
"""

import hashlib
import json
import os
import sys
import tempfile
import threading
import time
from pathlib import Path

import mindspore as ms
import numpy as np
from mindspore import Tensor, nn
from mindspore.dataset import NumpySlicesDataset

from dimred.averaging.windows import Window
from dimred.builders.search import SubspaceTrainStep
from dimred.checkpoints.layout import WeightLayout
from dimred.checkpoints.series import CheckpointSeries
from dimred.distributed.ranks import ALONE, Intent, Ranks
from dimred.distributed.share import share
from dimred.errors import DataError, DimredError, DivergedError
from dimred.evaluation.averages import SnapshotAverages
from dimred.evaluation.scores import cross_entropy, is_correct, mean_of_items, means_of_samples, score_batches
from dimred.io.metrics_file import read_metrics
from dimred.train_step.network_state import moving_statistics
from dimred.train_step.step import TrainStep
from dimred.trainer.device import set_up
from dimred.trainer.faults import DivergenceDetector
from dimred.trainer.metrics import MetricsLog, cut_metrics
from dimred.trainer.snapshot_callback import SnapshotCallback
from dimred.trainer.states import RunStates, read_state
from dimred.vectors.base import make_projection
from tests.helpers.networks import BatchNormNet, PlainBasis, TanhMLP, image_batch, orthonormal_rows, weight_vector

K, STEPS, ROWS = 32, 10, 6  # ROWS: of a batch on each rank
OPTIONS = {"rho": 0.5, "sigma": 0.3, "gamma": 0.9, "alpha": 0.01}


def digest(*arrays: np.ndarray) -> str:
    return hashlib.sha256(b"".join(np.ascontiguousarray(array).tobytes() for array in arrays)).hexdigest()


def one_rank_fails_at_work(ranks: Ranks) -> list[str]:
    """The last rank can't read an image; then rank 0's disk is full. All of them raise, and can still add."""

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
    counted = ms.Parameter(Tensor([5180 if ranks.is_rank_zero else 0], ms.int32), name="global_step")
    ranks.broadcast([counted])
    return {
        "broadcast": counted.asnumpy().tolist(),
        "sum": ranks.sum([ranks.rank + 1, 0.5]).tolist(),
        "tell": ranks.broadcast_bytes("größer".encode() * (1 if ranks.is_rank_zero else 0)).decode(),
        "any": [ranks.any(ranks.rank == 1), ranks.any(False)],
        "run_on_rank_zero": ranks.run_on_rank_zero(lambda: time.sleep(1) or 7),
        "failures": failures,
        "differs": differs,
        "threads": threading.active_count(),
    }


def subspace(ranks: Ranks) -> dict:
    """Down and up over the shards, beside NumPy on the whole; M odd and prime."""
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
        "held": int(np.prod(sharded._components.shape)),
    }


def batch_of_all(seed: int, group_size: int) -> tuple[np.ndarray, ...]:
    rng = np.random.default_rng(seed)
    rows = ROWS * group_size
    return rng.standard_normal((rows, 8)).astype(np.float32), rng.standard_normal((rows, 4)).astype(np.float32)


def part(ranks: Ranks, arrays) -> tuple[Tensor, ...]:
    own = slice(ranks.rank * ROWS, (ranks.rank + 1) * ROWS) if ranks.group_size > 1 else slice(None)
    return tuple(Tensor(array[own]) for array in arrays)


def stage_1_weights(ranks: Ranks, group_size: int) -> np.ndarray:
    network = TanhMLP(8, 12, 4)
    step = TrainStep(network, nn.Momentum(network.trainable_params(), 0.1, 0.9), reduce=ranks.mean())
    for number in range(STEPS):
        step(*part(ranks, batch_of_all(number, group_size)))
    return weight_vector(network)


def stage_2_weights(ranks: Ranks, group_size: int, continued: bool = False):
    network = TanhMLP(8, 12, 4)
    basis = PlainBasis(orthonormal_rows(K, len(weight_vector(network))))
    options = dict(OPTIONS)
    if continued:
        options |= {"optimizer": nn.Momentum(network.trainable_params(), 0.05, 0.9)}
    step = SubspaceTrainStep(network, basis, ranks=ranks, **options)
    found = [step(*part(ranks, batch_of_all(number % 2, group_size))) for number in range(STEPS)]
    return weight_vector(network), [(result.outcome.name, result.step_size, result.n_trials) for result in found]


def beside_one_rank(ranks: Ranks) -> dict:
    """R ranks with b rows each, and one with all R b rows: the same weights after ten steps of each stage."""
    one, alone = (stage_1_weights(who, ranks.group_size) for who in (ranks, ALONE))
    (two, decisions), (two_alone, decisions_alone) = (stage_2_weights(who, ranks.group_size) for who in (ranks, ALONE))
    continued, continued_alone = (stage_2_weights(who, ranks.group_size, True)[0] for who in (ranks, ALONE))
    return {
        "stage_1_error": float(np.abs(one - alone).max()),
        "stage_2_error": float(np.abs(two - two_alone).max()),
        "continued_error": float(np.abs(continued - continued_alone).max()),
        "continued_apart": float(np.abs(continued - two).max()),
        "moved": float(np.abs(two - weight_vector(TanhMLP(8, 12, 4))).max()),
        "decisions": decisions,
        "decisions_alone": decisions_alone,
        "digest": digest(one, two, continued),
    }


def batch_norm(ranks: Ranks) -> dict:
    """Bit-equal weights with BatchNorm; its statistics differ until they are averaged."""
    network = BatchNormNet()
    step = TrainStep(network, nn.Momentum(network.trainable_params(), 0.1, 0.9), reduce=ranks.mean())
    for number in range(STEPS):
        step(*image_batch(number * ranks.group_size + ranks.rank))
    one = weight_vector(network)
    search = SubspaceTrainStep(network, PlainBasis(orthonormal_rows(K, len(one))), ranks=ranks, **OPTIONS)
    for number in range(STEPS):
        search(*image_batch(number * ranks.group_size + ranks.rank))
    statistics = moving_statistics(network)
    before = [value.asnumpy().copy() for value in statistics]
    ranks.all_reduce_mean(statistics)
    after = [value.asnumpy().copy() for value in statistics]
    return {
        "weights": digest(one, weight_vector(network)),
        "statistics": [value.tolist() for value in before],
        "averaged": [value.tolist() for value in after],
    }


class OwnLoss(nn.Cell):
    """f(w; a) = sum(a w^2) / 2 - sum(w): a differs between the ranks."""

    def __init__(self, n: int):
        super().__init__()
        self.w = ms.Parameter(Tensor(np.full(n, 2.0, np.float32)), name="w")

    def construct(self, a):
        return 0.5 * (a * self.w * self.w).sum() - self.w.sum()


def one_loss_differs(ranks: Ranks) -> dict:
    """The last rank's loss grows along the step that the others like, and is not finite in the third step."""
    network = OwnLoss(K)
    basis = PlainBasis(np.eye(K, dtype=np.float32))
    step = SubspaceTrainStep(network, basis, ranks=ranks, **(OPTIONS | {"alpha": 0.0}))
    last = ranks.rank == ranks.group_size - 1
    decisions = []
    for number in range(4):
        curvature = 3.0 * ranks.group_size if last else 0.1
        found = step(Tensor(np.full(K, np.nan if last and number == 2 else curvature, np.float32)))
        decisions.append((found.outcome.name, found.step_size, found.n_trials, digest(weight_vector(network))))
    return {"decisions": decisions}


def one_rank_fails(ranks: Ranks) -> dict:
    """The last rank can't read its fourth batch: all leave before that step, and can still add.

    Without the agreement the last rank's sum at the end would meet the others' fourth step.
    """
    fails = ranks.rank == ranks.group_size - 1
    sums = []
    for number in range(1, 7):
        agreed = ranks.agree(Intent.FAIL if fails and number == 4 else Intent.STEP)
        if agreed is not Intent.STEP:
            break
        sums.append(float(ranks.sum([number])[0]))
    after = float(ranks.sum([100])[0])
    highest = ranks.agree(Intent.FAIL if fails else Intent.STOP)
    return {"agreed": agreed.name, "sums": sums, "after": after, "highest": highest.name}


def one_rank_diverges(ranks: Ranks) -> dict:
    """The last rank's losses are no numbers from the 5th step on: all of them end after the same step."""
    watch, diverges = DivergenceDetector(ranks=ranks), ranks.rank == ranks.group_size - 1
    for step in range(1, 31):
        try:
            watch.see(Tensor(np.float32(np.nan if diverges and step >= 5 else 1.0)), step)
        except DivergedError as error:
            return {"step": step, "said": str(error)}
    return {}


def evaluation(ranks: Ranks) -> dict:
    """23 images, of which the network gets every third right; the ranks have different numbers of them."""
    logits = np.eye(3, dtype=np.float32)[np.arange(23) % 3]
    labels = np.zeros(23, np.int32)
    own = slice(ranks.rank, None, ranks.group_size)
    images = NumpySlicesDataset((logits[own], labels[own]), shuffle=False).batch(4)
    metric, loss = score_batches(nn.Identity(), images, is_correct, cross_entropy)
    return {"accuracy": mean_of_items(metric, ranks), "losses": means_of_samples(loss, ranks).tolist()}


def averages(ranks: Ranks) -> dict:
    """Of snapshots that only rank 0 has."""
    rows = np.random.default_rng(2).standard_normal((5, 101)).astype(np.float32)
    layout = WeightLayout.from_weights({"w": rows[0]})
    with tempfile.TemporaryDirectory() as own:
        series = CheckpointSeries(own) if ranks.is_rank_zero else None
        for step, row in enumerate(rows, start=1) if series is not None else ():
            series.append({"w": row}, step, step)
        of_series = SnapshotAverages(series, layout, ranks)
        found = [of_series.of(window) for window in (Window(2, 4), Window(0, 4), Window(0, 5, "linear"))]
    expected = [rows[2:4].mean(0), rows[:4].mean(0), np.arange(1, 6) @ rows / 15]
    return {
        "steps": of_series.steps,
        "error": float(max(np.abs(mean - each).max() for mean, each in zip(found, expected, strict=True))),
        "digest": digest(*found),
    }


def shared_files(ranks: Ranks) -> dict:
    """Rank 0's state under one path for all; then under a path that is another folder's on every rank."""
    before = Path.cwd()
    weights = np.random.default_rng(3).standard_normal(100_000, dtype=np.float32)
    shared = RunStates(Path(sys.argv[-1]).parent)  # on one host, of which all ranks here are
    if ranks.is_rank_zero:
        shared.save(7, {"w": weights}, {"epoch": 1})
    state = share(ranks.run_on_rank_zero(lambda: shared.newest(print)), ranks, read_state)
    found = [[state.progress, digest(state.arrays["w"]) == digest(weights)]]
    nothing = share(None, ranks, read_state)
    states = RunStates(Path("/proc/self/cwd"))
    with tempfile.TemporaryDirectory() as own:
        os.chdir(own)
        for values in (None, weights, weights + 1):
            if ranks.is_rank_zero or values is not None:
                states.save(7, {"w": weights if ranks.is_rank_zero else values}, {"epoch": 2})
            try:
                state = share(ranks.run_on_rank_zero(lambda: states.newest(print)), ranks, read_state)
                found.append([state.progress, digest(state.arrays["w"]) == digest(weights)])
            except DimredError as error:
                found.append(str(error))
        os.chdir(before)
    return {"nothing": nothing, "found": found}


def metrics_without_a_shared_disk(ranks: Ranks) -> dict:
    """Rank 0 goes on with three of its four records; the others, on hosts that are new, have none or other ones."""
    with tempfile.TemporaryDirectory() as own:
        path = Path(own) / "metrics.jsonl"
        with MetricsLog(path) as log:
            for step in range(1, 4) if ranks.is_rank_zero else ():
                log.write(step=step)
            mark = log.mark()
            log.write(step=4)
        cut_metrics(path, mark, ranks)
        kept = read_metrics(path)
        cut_metrics(path, 0, ranks)
        return {"steps": [record["step"] for record in kept], "at_the_beginning": len(read_metrics(path))}


def counters(ranks: Ranks) -> dict:
    """Numbers that one accepted step hands to the collectives, counted where they enter."""
    network = TanhMLP(8, 12, 4)
    n_weights = len(weight_vector(network))
    step = SubspaceTrainStep(network, PlainBasis(orthonormal_rows(K, n_weights)), ranks=ranks, **OPTIONS)
    batch = part(ranks, batch_of_all(0, ranks.group_size))
    step(*batch)  # the first step asks for one loss more
    sent = {"mean": 0, "project": 0, "gather": 0}
    mean, project, gather = step._objective._reduce, step._subspace._project, step._subspace._back_project

    def count(name, cell, size):
        def call(*values):
            found = cell(*values)
            sent[name] += size(values, found)
            return found

        return call

    step._objective._reduce = count("mean", mean, lambda values, _: sum(value.size for value in values))
    step._subspace._project = count("project", project, lambda _, found: found.size)
    step._subspace._back_project = count("gather", gather, lambda _, found: found.size)
    found = step(*batch)
    return {"sent": sent, "n_weights": n_weights, "n_trials": found.n_trials, "accepted": found.accepted}


def snapshot_callback(ranks: Ranks) -> bool:
    """Whether this rank wrote snapshots in somebody's ``Model.train``."""
    network = TanhMLP()
    model = ms.train.Model(network, optimizer=nn.SGD(network.trainable_params(), 0.1))
    data = NumpySlicesDataset((np.ones((4, 3), np.float32), np.ones((4, 2), np.float32))).batch(2)
    with tempfile.TemporaryDirectory() as folder:
        snapshots = Path(folder, "snapshots")
        model.train(1, data, callbacks=[SnapshotCallback(snapshots)], dataset_sink_mode=False)
        return snapshots.exists() and len(CheckpointSeries.open(snapshots)) == 1


CHECKS = (collectives, one_rank_fails_at_work, one_rank_fails, one_rank_diverges, subspace, beside_one_rank,
          batch_norm, one_loss_differs,
          evaluation, averages, shared_files, metrics_without_a_shared_disk, counters,
          snapshot_callback)  # fmt: skip


def main() -> None:
    ranks = set_up(1)
    answers = {}
    for check in CHECKS:
        print(check.__name__, flush=True)
        answers[check.__name__] = check(ranks)
    (Path(sys.argv[-1]) / "checks.json").write_text(json.dumps(answers))


if __name__ == "__main__":
    main()
