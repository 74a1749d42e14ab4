"""Weights are told from statistics, optimizer state and settings, in real checkpoints of MindSpore and in others."""

import mindspore as ms
import numpy as np
import pytest
from mindcv.optim import adan, lion
from mindcv.utils.train_step import TrainStep as MindcvStep
from mindspore import Parameter, Tensor, nn
from mindspore.boost.grad_accumulation import GradientAccumulation

import dimred
from dimred.checkpoints.checkpoint_io import open_file, read_index, write_checkpoint
from dimred.checkpoints.layout import WeightLayout
from dimred.checkpoints.trainable import trainable_entries, trainable_layout
from dimred.errors import CheckpointError
from dimred.train_step.ema import EMA
from dimred.train_step.loss_scale import DynamicLossScale
from dimred.train_step.schedule_free import ScheduleFree
from tests.helpers.optimizers import OPTIMIZERS, optimizer_of


class Network(nn.Cell):
    """A network with weights of one number: one of its own, one of a module."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(1, 2, 3, has_bias=True)
        self.norm = nn.BatchNorm2d(2)
        self.act = nn.PReLU()
        self.fc = nn.Dense(2, 3)
        self.logit_scale = Parameter(Tensor(1.5, ms.float32), name="logit_scale")

    def construct(self, images):
        return self.fc(self.act(self.norm(self.conv(images))).mean((2, 3))) * self.logit_scale


class Part(nn.Cell):
    def __init__(self, twin=None):
        super().__init__()
        self.conv, self.fc = nn.Conv2d(1, 2, 3), nn.Dense(2, 3)
        self.twin = twin


def saved(path, network, optimizer, *, notes=None):
    loss = nn.WithLossCell(network, nn.SoftmaxCrossEntropyWithLogits(sparse=True))
    ms.save_checkpoint(nn.TrainOneStepCell(loss, optimizer), str(path), format=path.suffix[1:], append_dict=notes or {})
    return path


def check_weights(path, network):
    """Check that a file's weights are the network's trainable parameters, beyond doubt, in the file's order."""
    names, doubtful = trainable_entries(read_index(path))
    answer = [one.name for one in network.trainable_params()]
    assert (list(names), doubtful) == (answer if path.suffix == ".ckpt" else sorted(answer), ())


@pytest.mark.parametrize("kind", OPTIMIZERS, ids=lambda kind: f"{kind.__module__}.{kind.__name__}")
def test_the_state_of_every_optimizer_is_left_out(tmp_path, kind):
    assert len(OPTIMIZERS) >= 30
    network = Network()
    optimizer = optimizer_of(kind, network.trainable_params())
    notes = {"best_acc": 0.9, "epoch_num": 3, "lr_note": "x"}
    check_weights(saved(tmp_path / "a.ckpt", network, optimizer, notes=notes), network)
    check_weights(saved(tmp_path / "a.safetensors", network, optimizer), network)


OPTIONS = [
    (nn.AdaFactor, {"learning_rate": None, "compression": True, "beta1": 0.0}),
    (nn.Adam, {"use_amsgrad": True}),
    (nn.RMSProp, {"centered": True, "learning_rate": [0.1, 0.2, 0.3]}),
    (nn.Adam, {"learning_rate": nn.ExponentialDecayLR(0.1, 0.9, 4), "weight_decay": 0.1}),
]


@pytest.mark.parametrize("number", range(len(OPTIONS)))
def test_the_options_of_an_optimizer_change_nothing(tmp_path, number):
    kind, options = OPTIONS[number]
    network = Network()
    check_weights(saved(tmp_path / "a.ckpt", network, kind(network.trainable_params(), **options)), network)


@pytest.mark.parametrize("kind", [nn.Momentum, nn.Adam, nn.Rprop, lion.Lion, adan.Adan])
@pytest.mark.parametrize("rate", [0.2, [0.3, 0.2, 0.1]])
def test_groups_with_rates_of_their_own(tmp_path, kind, rate):
    network = Network()
    parameters = network.trainable_params()
    groups = [{"params": parameters[:3], "lr": rate}, {"params": parameters[3:], "weight_decay": 0.1}]
    check_weights(saved(tmp_path / "a.ckpt", network, optimizer_of(kind, groups, rate)), network)


def frozen(network):
    """Freeze all but the last module, and return what remains."""
    for parameter in network.trainable_params():
        parameter.requires_grad = parameter.name.startswith("fc.")
    return network.trainable_params()


@pytest.mark.parametrize("kind", [nn.Momentum, nn.AdaFactor, nn.ASGD, nn.AdamWeightDecay])
def test_an_optimizer_of_some_weights(tmp_path, kind):
    """Frozen weights count as weights, because nothing tells them from others; frozen single numbers don't."""
    network = Network()
    path = saved(tmp_path / "a.ckpt", network, optimizer_of(kind, frozen(network)))
    names, doubtful = trainable_entries(read_index(path))
    singles = {"logit_scale", network.act.w.name}
    assert {*names} == {one.name for one in network.get_parameters() if "moving" not in one.name} - singles
    assert not doubtful


def test_wrappers_of_an_optimizer_and_other_cells_of_a_training(tmp_path):
    def accumulating(loss, parameters):
        """A cell that changes the names of the weights, as one of boost does."""
        cell = nn.TrainOneStepCell(loss, nn.Momentum(parameters, 0.1, 0.9))
        cell.accumulation = GradientAccumulation(4, cell.optimizer)
        return cell

    def of_mindcv(loss, parameters):
        scale = nn.DynamicLossScaleUpdateCell(1024, 2, 100)
        return MindcvStep(loss, nn.Momentum(parameters, 0.1, 0.9), scale_sense=scale, ema=True)

    def of_dimred(loss, parameters):
        options = {"parts": [DynamicLossScale(), EMA(loss)], "micro_batch_size": 2}
        return dimred.TrainStep(loss, ScheduleFree(parameters, 0.1), **options)

    class LossAndOptimizer(nn.Cell):
        def __init__(self, loss, parameters, optimizer_first):
            super().__init__()
            optimizer = nn.AdaFactor(parameters, learning_rate=None)
            if optimizer_first:
                self.optimizer = optimizer
            self.network = loss
            self.optimizer = optimizer

    cells = (
        lambda loss, parameters: nn.TrainOneStepCell(loss, nn.LARS(nn.Momentum(parameters, 0.1, 0.9))),
        accumulating,
        of_mindcv,
        of_dimred,
        lambda loss, parameters: LossAndOptimizer(loss, parameters, optimizer_first=True),
        lambda loss, parameters: LossAndOptimizer(loss, parameters, optimizer_first=False),
    )
    for number, make in enumerate(cells):
        network = Network()
        loss = nn.WithLossCell(network, nn.SoftmaxCrossEntropyWithLogits(sparse=True))
        parameters = network.trainable_params()
        path = tmp_path / f"{number}.ckpt"
        ms.save_checkpoint(make(loss, parameters), str(path))
        assert len(read_index(path)) > 2 * len(parameters)
        check_weights(path, network)


def test_a_part_that_repeats_the_whole_is_known_by_its_own_state(tmp_path):
    network = Part(twin=Part())
    path = saved(tmp_path / "a.ckpt", network, nn.Adam(network.trainable_params()))
    check_weights(path, network)


def test_what_is_noted_beside_a_network_alone(tmp_path):
    for network in (Network(), nn.Dense(2, 3), nn.SequentialCell(nn.Dense(1, 1), nn.PReLU())):
        path = tmp_path / "a.ckpt"
        ms.save_checkpoint(network, str(path), append_dict={"best_acc": 0.9, "step_num": 3, "lr": 0.1})
        if any("." in one.name for one in network.trainable_params()):
            check_weights(path, network)
        else:  # nothing says whether best_acc is the network's own
            assert trainable_entries(read_index(path)) == (("weight", "bias", "best_acc", "lr"), ("best_acc", "lr"))


def tensors(**shapes):
    return {name.replace("__", "."): np.ones(shape, np.float32) for name, shape in shapes.items()}


MODEL = {"conv__weight": (2, 3, 3), "norm__weight": (2,), "norm__bias": (2,), "fc__weight": (4, 2)}


@pytest.mark.parametrize(
    ("others", "is_weight"),
    [
        ({"decoder__norm__weight": (2,), "decoder__norm__bias": (2,), "decoder__fc__weight": (5, 2)}, True),  # a module
        ({"final_norm__weight": (2,), "final_norm__bias": (2,)}, True),
        ({"aux__fc__weight": (4, 2)}, True),
        ({"pos_embed": (5,), "norm__weight_scale": (1,)}, True),
        ({"attn__temperature": (), "act__weight": (1,)}, True),
        ({f"ema__{name}": shape for name, shape in MODEL.items()} | {"ema__updates": ()}, False),
        ({f"shadow_{name}": shape for name, shape in MODEL.items()}, False),
        ({f"state__{kind}__{name}": shape for name, shape in MODEL.items() for kind in "mv"}, False),
        ({f"row_{name}": shape[:-1] or (1,) for name, shape in MODEL.items()}, False),
        ({f"norm_of__{name}": (1,) for name in MODEL}, False),
    ],
)
def test_files_of_other_frameworks(tmp_path, others, is_weight):
    for suffix in (".ckpt", ".safetensors"):
        path = tmp_path / f"a{suffix}"
        write_checkpoint(path, tensors(**MODEL, **others))
        names, doubtful = trainable_entries(read_index(path))
        assert set(names) == set(tensors(**MODEL, **(others if is_weight else {})))
        assert not doubtful


@pytest.mark.parametrize(
    ("others", "name"),
    [
        ({"best_acc": ()}, "best_acc"),
        ({"logit_bias": (1,)}, "logit_bias"),
        ({f"m__{name}": MODEL[name] for name in list(MODEL)[1:]}, "m.norm.weight"),  # no state of conv.weight
    ],
)
def test_doubt_is_refused_and_the_file_is_named(tmp_path, others, name):
    """A mean of doubtful entries does no harm, so an average takes them."""
    path = tmp_path / "a.safetensors"
    write_checkpoint(path, tensors(**MODEL, **others))
    with pytest.raises(CheckpointError, match=rf"a\.safetensors: the entry '{name}'.*--names-from"):
        trainable_layout(read_index(path), path, refuse_doubtful=True)
    assert open_file(path).layout == WeightLayout.from_weights(tensors(**MODEL, **others))


@pytest.mark.parametrize(
    ("weight", "copy"),
    [
        ("model.l.weight", "model_ema.lweight"), ("online_model.l.weight", "ema_model.l.weight"),
        ("model.l.weight", "swa_model.module.l.weight"), ("l.weight", "l.weight_ema"), ("l.weight", "l.weight.exp_avg"),
        ("online.l.weight", "target.l.weight"), ("_orig_mod.l.weight", "ema.l.weight"),
    ],
)  # fmt: skip
def test_what_is_named_as_a_copy_of_a_weight_is_doubtful(tmp_path, weight, copy):
    arrays = {weight: np.zeros((2, 3), np.float32), copy: np.ones((2, 3), np.float32)}
    write_checkpoint(tmp_path / "n.ckpt", arrays)
    index = read_index(tmp_path / "n.ckpt")
    names, doubtful = trainable_entries(index)
    assert copy in doubtful or copy not in names
    if copy in names:
        with pytest.raises(CheckpointError, match="may be a weight, or"):
            trainable_layout(index, "n.ckpt", refuse_doubtful=True)


def test_twins_and_a_module_called_target_are_weights_beyond_doubt(tmp_path):
    names = ("query.l.weight", "doc.l.weight", "head.target.weight")
    write_checkpoint(tmp_path / "n.ckpt", {name: np.zeros((2, 3), np.float32) for name in names})
    assert trainable_entries(read_index(tmp_path / "n.ckpt")) == (names, ())


@pytest.mark.parametrize("name", ["bn1/_mean", "bn1/_variance", "bn_running_mean", "bn_moving_variance"])
def test_statistics_by_other_names(tmp_path, name):
    arrays = {"l.weight": np.zeros((2, 3), np.float32), name: np.zeros(3, np.float32)}
    write_checkpoint(tmp_path / "n.ckpt", arrays)
    assert open_file(tmp_path / "n.ckpt").statistics == (name,)
