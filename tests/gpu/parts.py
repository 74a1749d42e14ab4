"""What is asked of a device: each part computes with it, and returns arrays that are compared with the CPU's.

Weights and batches come from NumPy, so that they are the same on every device. ``on_device.py`` runs a part in a
process of its own; a GPU must have been chosen there before this module imports MindSpore.
"""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any, NamedTuple

import mindspore as ms
import numpy as np
from mindspore import Tensor, nn, ops

import dimred
from dimred.distributed.ranks import ALONE
from dimred.models.resnet import resnet
from dimred.proof.search_twin import Twin
from dimred.search_step.direction import Proposal
from dimred.search_step.line_search import ArmijoBacktracking
from dimred.search_step.search_step import SearchStep
from dimred.stages.snapshot_callback import SnapshotCallback
from dimred.vectors.projection import GraphProjection
from dimred.vectors.weights import GraphVectors
from tests.helpers.networks import TanhMLP, mlp_function, orthonormal_rows, weight_vector

N_STEPS = 10
N_COMPONENTS = 32


class Setting(NamedTuple):
    """How large a part is, and where it may write.

    Attributes:
        device: GPU, or CPU for the numbers to compare with.
        is_small: whether times mean nothing, as on a CPU: small networks and few steps.
        folder: a folder of its own.
    """

    device: str
    is_small: bool
    folder: Path


Arrays = Mapping[str, np.ndarray | float]


def products(setting: Setting) -> Arrays:
    """A matrix product, and a convolution with both of its gradients."""
    rng = np.random.default_rng(5)
    a, b = (Tensor(rng.normal(size=(512, 512)).astype("f4")) for _ in range(2))
    convolution = _with_own_weights(nn.Conv2d(64, 64, 3))
    x = Tensor(rng.normal(size=(8, 64, 28, 28)).astype("f4"))

    def square(x: Tensor) -> Tensor:
        return (convolution(x) ** 2).sum()

    of_x, of_weights = ms.grad(square, 0, convolution.trainable_params())(x)
    return {
        "matrix product": ops.matmul(a, b).asnumpy(),
        "convolution": convolution(x).asnumpy(),
        "gradient of x": of_x.asnumpy(),
        "gradient of weights": of_weights[0].asnumpy(),
    }


def products_tf32(setting: Setting) -> Arrays:
    """The same where TF32 is allowed: how much it changes."""
    with _tf32(setting):
        return products(setting)


def bare_step(setting: Setting) -> Arrays:
    """Ten steps of MindSpore's own ``nn.TrainOneStepCell``."""
    network = _network()
    step = nn.TrainOneStepCell(_loss_of(network), _momentum(network)).set_train()
    losses = [float(step(*batch).asnumpy()) for batch in _batches(N_STEPS)]
    return {"losses": np.array(losses), "weights": weight_vector(network), "statistics": _statistics(network)}


def train_step(setting: Setting) -> Arrays:
    """Ten steps of ``TrainStep`` without any part; they equal those of the bare step."""
    network = _network()
    return _trained(network, dimred.TrainStep(_loss_of(network), _momentum(network)))


def forms(setting: Setting) -> Arrays:
    """Ten steps of each form of ``TrainStep`` in float32."""
    made: dict[str, Callable[[nn.Cell], nn.Cell]] = {
        "clipping": lambda net: dimred.TrainStep(_loss_of(net), _momentum(net), clipping=0.5),
        "ema": lambda net: dimred.TrainStep(_loss_of(net), _momentum(net), ema=dimred.EMA(net, 0.9)),
        "static scale": lambda net: dimred.TrainStep(_loss_of(net), _momentum(net), loss_scale=1024),
        "micro-batches": lambda net: dimred.TrainStep(_loss_of(net), _momentum(net), micro_batch_size=8),
        "micro-batches and all parts": lambda net: dimred.TrainStep(
            _loss_of(net),
            _momentum(net),
            micro_batch_size=8,
            clipping=0.5,
            ema=dimred.EMA(net, 0.9),
            loss_scale=dimred.DynamicLossScale(),
        ),
        "adamw": lambda net: dimred.TrainStep(_loss_of(net), dimred.AdamW(net.trainable_params(), 1e-3)),
        "schedule-free": lambda net: dimred.TrainStep(_loss_of(net), dimred.ScheduleFree(net.trainable_params(), 0.05)),
    }
    found = {}
    for name, make in made.items():
        network = _network()
        found |= {f"{name}: {key}": values for key, values in _trained(network, make(network)).items()}
    return found


def half_precision(setting: Setting) -> Arrays:
    """Ten steps at each level of half precision; they differ from the CPU's by rounding to 11 bits."""
    found = {}
    for level in ("O1", "O2", "O3"):
        network = _network()
        inner = dimred.with_precision(network, level)
        step = dimred.TrainStep(_loss_of(inner), _momentum(inner), loss_scale=1024)
        found |= {f"{level}: {key}": values for key, values in _trained(network, step).items()}
    return found


def overflow(setting: Setting) -> Arrays:
    """A step at O2 that overflows under a dynamic scale: it is not applied, and changes no value."""
    network = dimred.with_precision(_network(), "O2")
    step = dimred.TrainStep(_loss_of(network), _momentum(network), loss_scale=dimred.DynamicLossScale())
    ((x, y),) = _batches(1)
    step(x, y)
    before = {p.name: p.asnumpy().copy() for p in network.get_parameters()}
    bad = x.asnumpy().copy()
    bad[0, 0, 0, 0] = np.inf
    result = step(Tensor(bad), y)
    changed = [name for name, p in _named(network) if not np.array_equal(p.asnumpy(), before[name], equal_nan=True)]
    return {"changed parameters": float(len(changed)), "applied": float(result.applied.asnumpy())}


def dropout(setting: Setting) -> Arrays:
    """A step with dropout of both kinds of step; masks differ from the CPU's."""
    network = nn.SequentialCell(nn.Dense(16, 32), nn.Dropout(p=0.5), nn.Dense(32, 4))
    rng = np.random.default_rng(4)
    x, y = Tensor(rng.normal(size=(64, 16)).astype("f4")), Tensor(rng.integers(0, 4, 64).astype("i4"))
    trained = dimred.TrainStep(_loss_of(network), _momentum(network))(x, y)
    search = dimred.SubspaceTrainStep(_loss_of(network), _basis(network, 4), alpha=0.01)
    searched = [search(x, y) for _ in range(3)]
    return {"is finite": float(np.isfinite([float(one.loss.asnumpy()) for one in (trained, *searched)]).all())}


def search(setting: Setting) -> Arrays:
    """Ten steps of the published search on a convolutional network."""
    network = _network()
    step = dimred.SubspaceTrainStep(_loss_of(network), _basis(network, 16), alpha=0.01)
    return _searched(network, step, _batches(N_STEPS, 128))


def search_forms(setting: Setting) -> Arrays:
    """Ten steps of each other form of the search."""
    made: dict[str, Callable[[nn.Cell, Any], nn.Cell]] = {
        "micro-batches": lambda net, basis: dimred.SubspaceTrainStep(_loss_of(net), basis, micro_batch_size=32),
        "all parts": lambda net, basis: dimred.SubspaceTrainStep(
            _loss_of(net), basis, clipping=0.5, ema=dimred.EMA(net, 0.9), loss_scale=1024
        ),
        "projected SGD": lambda net, basis: dimred.SubspaceTrainStep(
            _loss_of(net), basis, rule="sgd", learning_rate=0.1, momentum=0.8
        ),
        "trials": lambda net, basis: SearchStep(
            _loss_of(net), basis.components, _Along(), ArmijoBacktracking(0.55, 0.4, 4), None
        ),
    }
    found = {}
    for name, make in made.items():
        network = _network()
        step = make(network, _basis(network, 16))
        results = _searched(network, step, _batches(N_STEPS, 128))
        found |= {f"{name}: {key}": values for key, values in results.items()}
    return found


def twin(setting: Setting) -> Arrays:
    """Ten steps of the search, and of its plain NumPy twin in float64, which takes over the weights after each."""
    network, rng = TanhMLP(), np.random.default_rng(4)
    basis = _basis(network, 6)
    step = dimred.SubspaceTrainStep(network, basis)
    reference = Twin(mlp_function(), basis.components, weight_vector(network))
    differences, sizes, expected_sizes = [], [], []
    for _ in range(N_STEPS):
        batch = [rng.standard_normal((64, n)).astype("f4") for n in (3, 2)]
        result = step(*map(Tensor, batch))
        expected = reference.step(tuple(part.astype("f8") for part in batch))
        weights = weight_vector(network)
        differences.append(np.linalg.norm(weights - reference.weights) / np.linalg.norm(weights))
        sizes.append(result.step_size)
        expected_sizes.append(expected["step_size"])
        reference.weights = weights.astype("f8")
    return {
        "difference of weights": np.array(differences),
        "step sizes": np.array(sizes),
        "step sizes of the twin": np.array(expected_sizes),
    }


def vectors(setting: Setting) -> Arrays:
    """All weights as one vector, and the passes over a basis, by the graphs that a device uses."""
    network = _network()
    weights = network.trainable_params()
    device = GraphVectors(weights)
    rows = orthonormal_rows(16, sum(p.size for p in weights))
    projection = GraphProjection(rows, ALONE)
    first = device.read()
    coordinates = projection.project(first)
    back, twice = projection.back_project(coordinates, 2 * coordinates)
    total, square = device.add(0.5, (1.0, back), (0.25, twice))
    device.put((1.0, first), (0.5, back), (-0.25, twice))
    return {
        "weights": first.asnumpy(),
        "coordinates": coordinates,
        "projected back": back.asnumpy(),
        "sum": total.asnumpy(),
        "square": square,
        "put": device.read().asnumpy(),
    }


def moved_values(setting: Setting) -> Arrays:
    """Values that are loaded after a graph was compiled reach it, and are trained on."""
    network = _network()
    step = dimred.TrainStep(_loss_of(network), _momentum(network))
    data = _batches(4)
    step(*data[0])
    halves = {p.name: ms.Parameter(Tensor(p.asnumpy() * 0.5), name=p.name) for p in network.trainable_params()}
    ms.load_param_into_net(network, halves)
    losses = [float(step(*batch).loss.asnumpy()) for batch in data[1:]]
    return {"losses": np.array(losses), "weights": weight_vector(network)}


def statistics(setting: Setting) -> Arrays:
    """BatchNorm's statistics, re-estimated over four batches."""
    network = _network()
    dimred.reestimate_batch_norm(network, _batches(4))
    return {"mean and variance": _statistics(network)}


def sink(setting: Setting) -> Arrays:
    """``Model.train`` without and with sink mode, and a series of snapshots: seconds of three epochs."""
    rng = np.random.default_rng(6)
    n_rows = 256 if setting.is_small else 8192
    x, y = rng.normal(size=(n_rows, 3, 16, 16)).astype("f4"), rng.integers(0, 10, n_rows).astype("i4")
    found: dict[str, np.ndarray | float] = {}
    for sinks in (False, True):
        network = _network()
        model = ms.train.Model(dimred.TrainStep(_loss_of(network), _momentum(network)))
        snapshots = SnapshotCallback(setting.folder / f"snapshots_{sinks}")
        callbacks = [] if sinks and setting.device == "CPU" else [snapshots]
        for n_epochs in (1, 3):
            data = ms.dataset.NumpySlicesDataset((x, y), shuffle=False).batch(32)
            begun = time.perf_counter()
            sink_here = sinks and setting.device != "CPU"
            model.train(n_epochs, data, callbacks=callbacks if n_epochs == 3 else [], dataset_sink_mode=sink_here)
            found[f"seconds, sink {sinks}"] = time.perf_counter() - begun
        found[f"weights, sink {sinks}"] = weight_vector(network)
    return found


def speed(setting: Setting) -> Arrays:
    """ResNet-50 at 224 pixels, 256 images, O2: images a second, the first step's seconds, and memory."""
    x, y = _images(setting)
    forms: dict[str, Callable[[nn.Cell], nn.Cell]] = {
        "bare step": lambda net: nn.TrainOneStepCell(
            _loss_of(net), nn.Momentum(net.trainable_params(), 0.1, 0.9, loss_scale=1024.0), 1024.0
        ).set_train(),
        "TrainStep": lambda net: dimred.TrainStep(
            _loss_of(net), _momentum(net), loss_scale=dimred.StaticLossScale(1024, drop_overflow=False)
        ),
        "TrainStep, overflows dropped": lambda net: dimred.TrainStep(_loss_of(net), _momentum(net), loss_scale=1024),
    }
    found: dict[str, np.ndarray | float] = {}
    for name, make in forms.items():
        call = make(dimred.with_precision(_large_network(setting), "O2"))
        ms.runtime.reset_peak_memory_stats()
        first, rate = _timed(call, (x, y), 2 if setting.is_small else 20)
        found[f"{name}: first step, s"], found[f"{name}: images a second"] = first, rate
        found[f"{name}: peak memory, MB"] = ms.runtime.max_memory_allocated() / 1e6
        print(name, {key: value for key, value in found.items() if key.startswith(f"{name}:")}, flush=True)
    return found


def speed_float32(setting: Setting) -> Arrays:
    """The same network in float32, without and with TF32: images a second of ``TrainStep``."""
    x, y = _images(setting)
    found: dict[str, np.ndarray | float] = {}
    for name, context in (("float32", nullcontext()), ("TF32", _tf32(setting))):
        with context:
            network = _large_network(setting)
            call = dimred.TrainStep(_loss_of(network), _momentum(network))
            _, found[f"{name}: images a second"] = _timed(call, (x, y), 2 if setting.is_small else 8)
            print(name, found, flush=True)
    return found


def search_speed(setting: Setting) -> Arrays:
    """A step of the search on that network in float32, 32 directions: seconds of each of its parts."""
    x, y = _images(setting)
    network = _large_network(setting)
    count = sum(p.size for p in network.trainable_params())
    basis, width = np.zeros((N_COMPONENTS, count), "f4"), count // N_COMPONENTS
    for row in range(N_COMPONENTS):  # orthonormal at once: each row has columns of its own
        basis[row, row * width : (row + 1) * width] = width**-0.5
    path = setting.folder / "basis.npy"
    np.save(path, basis)
    step = dimred.SubspaceTrainStep(_loss_of(network), dimred.load_basis(path, network=network))
    results = [step(x, y) for _ in range(3 if setting.is_small else 6)]
    print(*results, sep="\n", flush=True)
    names = sorted({name for result in results for name in result.seconds})
    seconds = {f"{name}, s": np.array([result.seconds.get(name, 0.0) for result in results]) for name in names}
    trials = np.array([result.n_trials for result in results])
    return seconds | {"trials": trials, "peak memory, MB": ms.runtime.max_memory_allocated() / 1e6}


@contextmanager
def _tf32(setting: Setting) -> Iterator[None]:
    """Allow TF32 on a GPU inside the block; graphs that were compiled before keep what they had."""
    for allowed in (True, False):
        if setting.device == "GPU":
            ms.device_context.gpu.op_precision.conv_allow_tf32(allowed)
            ms.device_context.gpu.op_precision.matmul_allow_tf32(allowed)
        if allowed:
            yield


class _Along:
    """A direction that is the same in every step, so that a line search has something to try."""

    def initial(self) -> None:
        return None

    def propose(self, state: None, subspace_grad: np.ndarray) -> Proposal:
        direction = np.full(len(subspace_grad), 0.01)
        return Proposal(direction, -1e-4, None)

    def follow(self, proposal: Proposal, subspace_grad: np.ndarray, step_size: float) -> None:
        return None


def _network() -> nn.Cell:
    return _with_own_weights(
        nn.SequentialCell(
            nn.Conv2d(3, 16, 3),
            nn.BatchNorm2d(16),
            nn.ReLU(),
            nn.MaxPool2d(2, 2),
            nn.Conv2d(16, 16, 3),
            nn.BatchNorm2d(16),
            nn.ReLU(),
            nn.Flatten(),
            nn.Dense(16 * 64, 10),
        )
    )


def _with_own_weights(network: nn.Cell) -> nn.Cell:
    """Give a network weights and biases that don't come from MindSpore's random numbers."""
    rng = np.random.default_rng(3)
    for parameter in network.trainable_params():
        if parameter.ndim > 1 or parameter.name.endswith("bias"):
            spread = np.sqrt(parameter.size / len(parameter)) if parameter.ndim > 1 else 10.0
            parameter.set_data(Tensor((rng.normal(size=parameter.shape) / spread).astype("f4")))
    return network


def _large_network(setting: Setting) -> nn.Cell:
    return resnet("resnet_small", 1001) if setting.is_small else resnet("resnet50", 1001)


def _images(setting: Setting) -> tuple[Tensor, Tensor]:
    rng = np.random.default_rng(5)
    n_images, size = (8, 16) if setting.is_small else (256, 224)
    x = rng.normal(size=(n_images, 3, size, size)).astype("f4")
    return Tensor(x), Tensor(rng.integers(0, 1000, n_images).astype("i4"))


def _batches(n_batches: int, n_rows: int = 32) -> list[tuple[Tensor, Tensor]]:
    rng = np.random.default_rng(4)
    return [
        (Tensor(rng.normal(size=(n_rows, 3, 16, 16)).astype("f4")), Tensor(rng.integers(0, 10, n_rows).astype("i4")))
        for _ in range(n_batches)
    ]


def _loss_of(network: nn.Cell) -> nn.Cell:
    return nn.WithLossCell(network, nn.CrossEntropyLoss(label_smoothing=0.1))


def _momentum(network: nn.Cell) -> nn.Optimizer:
    return nn.Momentum(network.trainable_params(), 0.05, 0.9)


def _basis(network: nn.Cell, n_components: int) -> dimred.SubspaceBasis:
    rows = orthonormal_rows(n_components, sum(p.size for p in network.trainable_params()))
    return dimred.SubspaceBasis(rows, n_components)


def _named(network: nn.Cell) -> Iterable[tuple[str, ms.Parameter]]:
    return [(p.name, p) for p in network.get_parameters()]


def _statistics(network: nn.Cell) -> np.ndarray:
    """Return the moving means and variances of all BatchNorms."""
    return np.concatenate([p.asnumpy().ravel() for name, p in _named(network) if "moving" in name])


def _trained(network: nn.Cell, step: nn.Cell) -> Arrays:
    losses = [float(step(*batch).loss.asnumpy()) for batch in _batches(N_STEPS)]
    return {"losses": np.array(losses), "weights": weight_vector(network), "statistics": _statistics(network)}


def _searched(network: nn.Cell, step: nn.Cell, batches: Iterable[tuple[Tensor, Tensor]]) -> Arrays:
    results = [step(*batch) for batch in batches]
    return {
        "losses": np.array([float(result.loss.asnumpy()) for result in results]),
        "step sizes": np.array([result.step_size for result in results]),
        "weights": weight_vector(network),
    }


def _timed(call: Callable[..., Any], batch: tuple[Tensor, Tensor], n_steps: int) -> tuple[float, float]:
    """Return the seconds of the first call, and the images a second of ``n_steps`` more after a warm-up of three."""

    def run(n: int) -> float:
        begun = time.perf_counter()
        for _ in range(n):
            result = call(*batch)
        (result[0] if isinstance(result, tuple) else result).asnumpy()
        return time.perf_counter() - begun

    first = run(1)
    run(3)
    return first, n_steps * len(batch[0]) / run(n_steps)


PARTS: dict[str, Callable[[Setting], Arrays]] = {
    part.__name__: part
    for part in (
        products,
        products_tf32,
        bare_step,
        train_step,
        forms,
        half_precision,
        overflow,
        dropout,
        search,
        search_forms,
        twin,
        vectors,
        moved_values,
        statistics,
        sink,
        speed,
        speed_float32,
        search_speed,
    )
}
"""The parts by name, in the order in which a card is asked: what is right comes before what is fast."""
