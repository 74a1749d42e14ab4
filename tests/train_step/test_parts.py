"""The step with no part, each part, every pair and all of them equals its plain twins in one fixed order."""

import itertools

import numpy as np
import pytest
from mindspore import dataset
from mindspore.train import LossMonitor, Model

from dimred.config import NO_DECAY_PATTERNS
from dimred.proof.step_twin import Optimizer, clip, ema
from dimred.train_step.clipping import Clipping
from dimred.train_step.ema import EMA
from dimred.train_step.loss_scale import DynamicLossScale
from dimred.train_step.optimizers import decays, make_optimizer
from dimred.train_step.precision import with_precision
from dimred.train_step.step import TrainStep
from tests.helpers.networks import TanhMLP, mlp_function, weight_vector
from tests.helpers.problems import RATES, batches, tensors

N_STEPS = 5
CLIP, DECAY, KEEP = {"norm": 0.1}, 0.1, 0.7
PARTS = ("precision", "loss_scale", "micro_batches", "clipping", "ema", "adamw")
MADE = {
    "loss_scale": lambda network: DynamicLossScale(1024.0, window=2),
    "clipping": lambda network: Clipping(**CLIP),
    "ema": lambda network: EMA(network, KEEP, ramp=False),
}
CHOICES = [set(chosen) for n in (0, 1, 2, len(PARTS)) for chosen in itertools.combinations(PARTS, n)]


def build(parts: set[str]) -> tuple[TanhMLP, TrainStep]:
    network = TanhMLP()
    used = with_precision(network, "O1") if "precision" in parts else network
    optimizer = make_optimizer(
        "adamw" if "adamw" in parts else "momentum",
        used.trainable_params(),
        RATES,
        weight_decay=DECAY,
        no_decay=NO_DECAY_PATTERNS,
    )
    step = TrainStep(
        used,
        optimizer,
        parts=[make(network) for name, make in MADE.items() if name in parts],
        micro_batch_size=3 if "micro_batches" in parts else None,
    )
    return network, step


def twin(parts: set[str]) -> tuple[list[float], list[float], np.ndarray, np.ndarray]:
    """Return losses, norms before clipping, final weights, and their average."""
    network = TanhMLP()
    parameters = network.trainable_params()
    shapes = [parameter.shape for parameter in parameters]
    ends = np.cumsum([parameter.size for parameter in parameters])[:-1]
    optimizer = Optimizer(
        "adamw" if "adamw" in parts else "momentum",
        [DECAY if decays(p, NO_DECAY_PATTERNS) else 0.0 for p in parameters],
        RATES,
    )
    w = weight_vector(network).astype(np.float64)
    losses, norms, path = [], [], []
    for batch in batches(N_STEPS):
        loss, g = mlp_function()(w, batch)
        gradients = [part.reshape(shape) for part, shape in zip(np.split(g, ends), shapes, strict=True)]
        gradients, norm = clip(gradients, **CLIP) if "clipping" in parts else (gradients, np.nan)
        weights = [part.reshape(shape) for part, shape in zip(np.split(w, ends), shapes, strict=True)]
        w = np.concatenate([part.ravel() for part in optimizer.step(weights, gradients)])
        losses, norms, path = [*losses, loss], [*norms, norm], [*path, w]
    return losses, norms, w, ema(path, KEEP, ramp=False)


def compare(parts: set[str]) -> None:
    network, step = build(parts)
    results = [step(*tensors(batch)) for batch in batches(N_STEPS)]
    losses, norms, weights, average = twin(parts)
    half = "precision" in parts
    close = {"rtol": 2e-2, "atol": 2e-2} if half else {"rtol": 2e-4, "atol": 2e-5}
    np.testing.assert_allclose([float(result.loss.asnumpy()) for result in results], losses, **close)
    np.testing.assert_allclose([float(result.telemetry.get("grad_norm", np.nan)) for result in results], norms, **close)
    np.testing.assert_allclose(weight_vector(network), weights, **close)
    if half:
        assert np.abs(weight_vector(network) - weights).max() > 1e-6
    if "ema" in parts:
        found = np.concatenate([value.asnumpy().ravel() for value in step.ema.averages])
        np.testing.assert_allclose(found, average, **close)
    if "loss_scale" in parts:
        assert [float(result.telemetry["loss_scale"]) for result in results] == [1024, 1024, 2048, 2048, 4096]
    assert all(bool(result.applied) for result in results)


@pytest.mark.parametrize("parts", CHOICES, ids=lambda parts: "+".join(sorted(parts)) or "none")
def test_the_step_is_its_twin(parts, pynative):
    compare(parts)


def test_in_graph_mode_too():
    compare(set(PARTS))


@pytest.mark.slow
def test_mindspore_s_model_trains_with_all_of_them(capsys):
    network, step = build(set(PARTS))
    columns = [np.concatenate(parts) for parts in zip(*batches(N_STEPS), strict=True)]
    data = dataset.NumpySlicesDataset(tuple(columns), shuffle=False).batch(8)
    Model(step).train(1, data, callbacks=[LossMonitor(1)])
    assert capsys.readouterr().out.count("loss is") == N_STEPS
    np.testing.assert_allclose(weight_vector(network), twin(set(PARTS))[2], atol=2e-2)
