"""Checks of ``checks.py``: compare the steps of both stages on several ranks with one rank that has all rows."""

import hashlib

import mindspore as ms
import numpy as np
from mindspore import Tensor, nn, ops

from dimred.distributed.group import Group
from dimred.distributed.ranks import ALONE, Ranks
from dimred.stages.subspace_train_step import SubspaceTrainStep
from dimred.train_step.step import TrainStep
from tests.helpers.networks import DropoutNet, PlainBasis, TanhMLP, basis_for, orthonormal_rows, weight_vector

K, STEPS, ROWS = 32, 5, 6  # ROWS: rows of a batch on each rank
OPTIONS = {"rho": 0.5, "sigma": 0.3, "gamma": 0.9, "alpha": 0.01}


def digest(*arrays: np.ndarray) -> str:
    return hashlib.sha256(b"".join(np.ascontiguousarray(array).tobytes() for array in arrays)).hexdigest()


def batch_of_all(seed: int, group_size: int) -> tuple[np.ndarray, ...]:
    rng = np.random.default_rng(seed)
    rows = ROWS * group_size
    return rng.standard_normal((rows, 8)).astype(np.float32), rng.standard_normal((rows, 4)).astype(np.float32)


def part(ranks: Ranks, arrays) -> tuple[Tensor, ...]:
    own = slice(ranks.rank * ROWS, (ranks.rank + 1) * ROWS) if ranks.group_size > 1 else slice(None)
    return tuple(Tensor(array[own]) for array in arrays)


def stage_1_weights(ranks: Ranks, group_size: int) -> np.ndarray:
    network = TanhMLP(8, 12, 4)
    step = TrainStep(network, nn.Momentum(network.trainable_params(), 0.1, 0.9), ranks=ranks)
    for number in range(STEPS):
        step(*part(ranks, batch_of_all(number, group_size)))
    return weight_vector(network)


def stage_2_weights(ranks: Ranks, group_size: int):
    network = TanhMLP(8, 12, 4)
    basis = PlainBasis(orthonormal_rows(K, len(weight_vector(network))))
    step = SubspaceTrainStep(network, basis, ranks=ranks, **OPTIONS)
    found = [step(*part(ranks, batch_of_all(number % 2, group_size))) for number in range(STEPS)]
    return weight_vector(network), [(result.outcome.name, result.step_size, result.n_trials) for result in found]


def beside_one_rank(ranks: Ranks) -> dict:
    """Take five steps of each stage on R ranks with b rows each, and on one rank, in PyNative, with all R b rows."""
    one = stage_1_weights(ranks, ranks.group_size)
    two, decisions = stage_2_weights(ranks, ranks.group_size)
    ms.set_context(mode=ms.PYNATIVE_MODE)
    alone = stage_1_weights(ALONE, ranks.group_size)
    two_alone, decisions_alone = stage_2_weights(ALONE, ranks.group_size)
    ms.set_context(mode=ms.GRAPH_MODE)
    return {
        "stage_1_error": float(np.abs(one - alone).max()),
        "stage_2_error": float(np.abs(two - two_alone).max()),
        "moved": float(np.abs(two - weight_vector(TanhMLP(8, 12, 4))).max()),
        "decisions": decisions,
        "decisions_alone": decisions_alone,
        "digest": digest(one, two),
    }


class OwnLoss(nn.Cell):
    """f(w; a) = sum(a w^2) / 2 - sum(w), where a differs between the ranks."""

    def __init__(self, n: int):
        super().__init__()
        self.w = ms.Parameter(Tensor(np.full(n, 2.0, np.float32)), name="w")

    def construct(self, a):
        return 0.5 * (a * self.w * self.w).sum() - self.w.sum()


def one_loss_differs(ranks: Ranks) -> dict:
    """Let the last rank's loss grow along the step that the others like, and be NaN in the third step."""
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


def dropout(ranks: Ranks) -> dict[str, list[float]]:
    """Take search steps of a network with dropout: on R ranks, on one rank in R micro-batches, and in one micro-batch.

    All rows of the input are equal, so only the masks tell two micro-batches apart.
    """
    losses = {}
    for name, who, n_parts in (("ranks", ranks, 1), ("one rank", ALONE, ranks.group_size), ("one part", ALONE, 1)):
        ms.set_seed(1 + who.rank)  # of this rank, as in a run
        network = DropoutNet()
        step = SubspaceTrainStep(network, basis_for(network, 2), ranks=who, micro_batch_size=ROWS)
        batch = Tensor(np.ones((n_parts * ROWS, 30), np.float32))
        losses[name] = [float(step(batch).loss.asnumpy()) for _ in range(3)]
    return losses


class Dropouts(nn.Cell):
    """Dropout by a cell and by a function, and a weight that is drawn."""

    def __init__(self) -> None:
        super().__init__()
        self.dropout, self.dense = nn.Dropout(p=0.5), nn.Dense(8, 8)

    def construct(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return self.dropout(x), ops.dropout(x, p=0.5)


def masks_of_training(ranks: Ranks) -> dict[str, list[str]]:
    """Draw masks twice, in both modes, on this rank and as a process draws them that is alone; and other numbers."""
    ones, found = Tensor(np.ones((16, 16), np.float32)), {}
    for name, who in (("rank", ranks), ("alone", ALONE)):
        found[name] = []
        for mode in (ms.PYNATIVE_MODE, ms.GRAPH_MODE):
            ms.set_context(mode=mode)
            ms.set_seed(1)
            network = Dropouts().set_train()
            who.separate_masks(network)
            found[name] += [digest(mask.asnumpy()) for _ in range(2) for mask in network(ones)]
        found[f"{name}, weights"] = [digest(network.dense.weight.asnumpy(), np.random.rand(3))]  # noqa: NPY002
    ms.set_seed(1)
    return found


def counters(ranks: Ranks) -> dict:
    """Count the numbers that one accepted step hands to the collectives."""
    network = TanhMLP(8, 12, 4)
    n_weights = len(weight_vector(network))
    sent = {"mean": 0, "project": 0, "gather": 0}

    def counted(name, call, size):
        def calling(*values):
            found = call(*values)
            sent[name] += size(values, found)
            return found

        return calling

    class Counting(Group):
        def mean(self):
            return counted("mean", super().mean(), lambda values, _: sum(value.size for value in values))

    counting = Counting(ranks.rank, ranks.group_size)
    step = SubspaceTrainStep(network, PlainBasis(orthonormal_rows(K, n_weights)), ranks=counting, **OPTIONS)
    subspace = step.subspace
    subspace.project = counted("project", subspace.project, lambda _, found: found.size)
    subspace.back_project = counted("gather", subspace.back_project, lambda _, found: sum(up.size for up in found))
    batch = part(ranks, batch_of_all(0, ranks.group_size))
    step(*batch)  # the first step asks for one loss more
    sent.update(dict.fromkeys(sent, 0))
    found = step(*batch)
    return {"sent": sent, "n_weights": n_weights, "n_trials": found.n_trials, "accepted": found.accepted}


def counted_labels(ranks: Ranks) -> dict:
    """Take steps of both stages where the ranks have different numbers of labels that count; the last has none at all.

    Compare with one rank that takes all rows in one batch, whose loss is MindSpore's mean.
    """
    x = np.random.default_rng(6).standard_normal((ROWS * ranks.group_size, 8)).astype(np.float32)
    labels = np.random.default_rng(7).integers(0, 4, len(x)).astype(np.int32)
    labels[: ROWS - 1] = labels[-ROWS:] = -100
    found = []
    for who, size in ((ALONE, None), (ranks, None), (ranks, 2)):
        weights = Tensor(np.random.default_rng(8).standard_normal((4, 8)), ms.float32)
        network = nn.WithLossCell(nn.Dense(8, 4, weights, has_bias=False), nn.CrossEntropyLoss())
        one = TrainStep(
            network,
            nn.SGD(network.trainable_params(), 0.1),
            ranks=who,
            ballot=who.ballot(),
            micro_batch_size=size,
        )
        basis = PlainBasis(orthonormal_rows(4, len(weight_vector(network))))
        two = SubspaceTrainStep(network, basis, ranks=who, micro_batch_size=size, **OPTIONS)
        batch = part(who, (x, labels))
        results = [one(*batch), two(*batch)]
        losses = [*(float(result.loss) for result in results), results[1].loss_after]
        found.append(np.array([*losses, *weight_vector(network)], np.float32))
    return {"errors": [float(np.abs(each - found[0]).max()) for each in found[1:]], "digest": digest(*found)}


def probabilities(ranks: Ranks) -> dict:
    """Take a step of stage 1 on labels that are probabilities, as mixup makes them, and compare with one rank."""
    draws = np.random.default_rng(9)
    x = draws.standard_normal((ROWS * ranks.group_size, 8)).astype(np.float32)
    labels = draws.dirichlet(np.ones(4), len(x)).astype(np.float32)
    weights = draws.standard_normal((4, 8))
    found = []
    for who, size in ((ALONE, None), (ranks, 2)):
        layer = nn.Dense(8, 4, Tensor(weights, ms.float32), has_bias=False)
        network = nn.WithLossCell(layer, nn.CrossEntropyLoss(label_smoothing=0.1))
        optimizer = nn.SGD(network.trainable_params(), 0.1)
        step = TrainStep(network, optimizer, ranks=who, ballot=who.ballot(), micro_batch_size=size)
        loss = float(step(*part(who, (x, labels))).loss)
        found.append(np.array([loss, *weight_vector(network)], np.float32))
    alone, together = found
    return {"error": float(np.abs(together - alone).max()), "digest": digest(together)}
