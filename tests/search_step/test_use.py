"""The cell as users meet it: ``mindspore.train.Model``, callbacks, checkpoints, wrong arguments."""

import inspect
import logging
import pydoc
import re
import threading

import numpy as np
import pytest
from mindcv.utils.callbacks import StateMonitor
from mindspore import Tensor, dataset, load_checkpoint, nn
from mindspore.train import Callback, CheckpointConfig, LossMonitor, Model, ModelCheckpoint, TimeMonitor

import dimred
from dimred.checkpoints.layout import WeightLayout
from dimred.config import SearchOptions
from dimred.errors import BasisMismatchError, ConfigError
from dimred.stages.subspace_train_step import SubspaceTrainStep
from tests.helpers.networks import BatchNormNet, PlainBasis, basis_for, weight_vector

_LIMITS = {"minimum": "at least", "exclusiveMinimum": "above", "maximum": "at most", "exclusiveMaximum": "below"}
ONES = Tensor(np.ones((3, 4), np.float32)), Tensor(np.ones((3, 2), np.float32))


class Record(Callback):
    """A callback that keeps the outputs it is shown."""

    def __init__(self):
        self.outputs = []

    def on_train_step_end(self, run_context):
        self.outputs.append(run_context.original_args().net_outputs)


def network_and_loss():
    network = nn.SequentialCell(nn.Dense(4, 6), nn.Tanh(), nn.Dropout(p=0.2), nn.Dense(6, 2))
    return network, nn.WithLossCell(network, nn.MSELoss())


def wait_for_async_saves():
    for thread in threading.enumerate():
        if thread.name == "asyn_save_ckpt":
            thread.join()


def batches():
    rng = np.random.default_rng(0)
    columns = {name: rng.standard_normal((40, width)).astype(np.float32) for name, width in (("x", 4), ("y", 2))}
    return dataset.NumpySlicesDataset(columns, shuffle=False).batch(8)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_model_train_with_callbacks(mode, tmp_path, capsys):
    network, with_loss = network_and_loss()
    names = [p.name for p in network.get_parameters()]
    start = weight_vector(network)
    step = SubspaceTrainStep(with_loss, basis_for(network, 5))
    record = Record()
    checkpoint = ModelCheckpoint("net", str(tmp_path), CheckpointConfig(save_checkpoint_steps=5))
    Model(step).train(2, batches(), callbacks=[LossMonitor(5), record, checkpoint], dataset_sink_mode=False)
    assert len(record.outputs) == step.memory.n_steps == 10
    printed = re.findall(r"loss is ([\d.]+)", capsys.readouterr().out)
    losses = [float(output.loss.asnumpy()) for output in record.outputs]
    assert [float(loss) for loss in printed] == pytest.approx([losses[4], losses[9]])
    assert [p.name for p in network.get_parameters()] == names
    assert not np.array_equal(weight_vector(network), start)
    saved = load_checkpoint(str(max(tmp_path.glob("*.ckpt"), key=lambda path: path.stat().st_mtime_ns)))
    in_network = {name for name in saved if name in names}
    assert in_network == set(names)
    assert sum(value.size for name, value in saved.items() if name not in names) <= 8  # Model's own counters
    for parameter in network.get_parameters():
        np.testing.assert_array_equal(saved[parameter.name].asnumpy(), parameter.asnumpy())


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_callbacks_that_look_for_an_optimizer_find_one(tmp_path, caplog):
    """mindcv's StateMonitor reads a rate and a count of updates from it, and saves it; so does OnRequestExit its count.

    The rate is 1 and the count that of the steps.
    """
    network, with_loss = network_and_loss()
    step = SubspaceTrainStep(with_loss, basis_for(network, 5))
    model, folder = Model(step), tmp_path / "mindcv"
    monitor = StateMonitor(
        model, "net", dataset_sink_mode=False, ckpt_save_dir=str(folder), summary_dir=str(tmp_path), log_interval=1
    )
    with caplog.at_level(logging.INFO):
        model.train(2, batches(), callbacks=[monitor, TimeMonitor()], dataset_sink_mode=False)
    rates = re.findall(r"lr: ([\d.]+)", caplog.text)
    assert [float(rate) for rate in rates] == [1.0] * 10
    assert int(step.optimizer.global_step.asnumpy().item()) == 10
    wait_for_async_saves()
    assert {path.name for path in folder.glob("*.ckpt")} == {"net-1_5.ckpt", "net-2_5.ckpt", "optim_net.ckpt"}


def test_a_basis_may_be_the_path_of_one(tmp_path, pynative, caplog):
    network, with_loss = network_and_loss()
    rows, path = basis_for(network, 5).components, tmp_path / "basis.npy"
    np.save(path, rows)
    for basis in (path, str(path)):
        step = SubspaceTrainStep(with_loss, basis, alpha=0)
        assert "has no basis.h5 beside it" in caplog.text
        found = step(*ONES)
        said = r"SearchResult\(accepted: loss [\d.]+ -> [\d.]+, step [\d.]+, \d+ trials, moved .* outside\)"
        assert re.fullmatch(said, repr(found))
    with pytest.raises(BasisMismatchError, match=r"gone\.npy"):
        SubspaceTrainStep(with_loss, tmp_path / "gone.npy")


def test_weights_outside_the_leading_components_do_not_move(pynative):
    network, with_loss = network_and_loss()
    basis = basis_for(network, 5)
    start = weight_vector(network)
    step = SubspaceTrainStep(with_loss, basis, alpha=0.0, n_components=2)
    found = step(*ONES)
    assert found.accepted
    coordinates = basis.components @ (weight_vector(network) - start)
    assert np.abs(coordinates[:2]).max() > 1e-4
    assert np.abs(coordinates[2:]).max() < 1e-6


OPTIONS = [
    ({"rho": 1.0}, "rho is 1.0; it must be less than 1"),
    ({"gamma": 1.0}, "gamma is 1.0; it must be less than 1"),
    ({"alpha": -0.1}, "alpha is -0.1; it must be greater than or equal to 0"),
    ({"max_trials": 2.5}, "max_trials is 2.5; it must be a valid integer"),
    ({"rule": "adam"}, "rule is 'adam'; it must be 'bfgs' or 'sgd'"),
    ({"n_components": 9}, "n_components is 9; the basis has 4, so 1 to 4 are allowed"),
    ({"n_component": 9}, "n_components is 9; the basis has 4, so 1 to 4 are allowed"),
    ({"micro_batchsize": 3}, "unknown key 'micro_batchsize'; did you mean 'micro_batch_size'?"),
    ({"rho": True}, "rho is True; it must be a valid number"),
    ({"learning_rate": 0}, "learning_rate is 0; it must be greater than 0 or a valid tuple or callable"),
    ({"learning_rate": []}, "learning_rate is []; it must be a valid number or a list of at least 1 item"),
    ({"learning_rate": [0.1, -1]}, "learning_rate is [0.1, -1]; it must be"),
    ({"momentum": 1}, "momentum is 1"),
    ({"momentum": 0.5}, "momentum is an option of the rule sgd, but rule is bfgs"),
    ({"rule": "sgd", "initial_scaling": True}, "initial_scaling is an option of the rule bfgs, but rule is sgd"),
]


@pytest.fixture(scope="module")
def batch_norm_net():
    return BatchNormNet()


def test_wrong_options_are_named(batch_norm_net):
    for options, message in OPTIONS:
        with pytest.raises(ConfigError) as caught:
            SubspaceTrainStep(batch_norm_net, basis_for(batch_norm_net, 4), **options)
        assert message in str(caught.value)


@pytest.mark.parametrize("shape", [(4, 10), (63, 4)])
def test_a_basis_of_another_shape_is_refused(shape, batch_norm_net):
    assert weight_vector(batch_norm_net).size == 63 - 4
    with pytest.raises(BasisMismatchError, match=rf"has {shape[1]} columns; the network has 59 trainable weights"):
        SubspaceTrainStep(batch_norm_net, PlainBasis(np.zeros(shape, np.float32)))


def test_a_basis_of_another_network_is_refused(batch_norm_net):
    layout = WeightLayout.from_network(batch_norm_net)
    rows = basis_for(batch_norm_net, 4).components
    SubspaceTrainStep(batch_norm_net, PlainBasis(rows, layout=layout))
    swapped = WeightLayout(layout.names, (layout.shapes[0], *layout.shapes[:0:-1]))
    with pytest.raises(BasisMismatchError, match="made for another network"):
        SubspaceTrainStep(batch_norm_net, PlainBasis(rows, layout=swapped))
    renamed = WeightLayout(("first", *layout.names[1:]), layout.shapes)
    with pytest.raises(BasisMismatchError, match=r"is 'first' \(4, 1, 3, 3\) in the basis and is 'conv.weight'"):
        SubspaceTrainStep(batch_norm_net, PlainBasis(rows, layout=renamed))


OF_BOOST = {
    "optimizer": r"SGD\(learning_rate=1\) of boost's tutorial adds the update as it is, .* leave optimizer out",
    "pca_mat_path": "pca_mat_path is not a key: give the argument basis",
    "weight_load_dir": "weight_load_dir is not a key: make the basis by dimred.fit_basis",
    "timeout": "timeout is not a key: leave it out",
    "boost_level": "boost_level is not a key: leave it out",
    "device_num": "device_num is not a key: give the argument ranks",
}


def test_what_the_tutorial_of_boost_gives_is_refused_with_what_takes_its_place():
    network, with_loss = network_and_loss()
    value, basis = nn.SGD(network.trainable_params(), 1.0), basis_for(network, 5)
    for option, said in OF_BOOST.items():
        with pytest.raises(ConfigError, match=said):
            SubspaceTrainStep(with_loss, basis, **{option: value})
    for arguments in ((value,), (basis, value)):
        with pytest.raises(ConfigError, match="optimizer is given"):
            SubspaceTrainStep(with_loss, *arguments)


def range_of(schema: dict) -> str:
    """Put the range of an option into words, from its JSON schema."""
    if schema.get("type") == "boolean":
        return "False or True"
    if "enum" in schema:
        return " or ".join(f'"{name}"' for name in schema["enum"])
    return ", ".join(f"{words} {schema[key]:g}" for key, words in _LIMITS.items() if key in schema)


def test_help_tells_each_option_of_a_search_with_its_default_and_its_range():
    text = inspect.getdoc(SubspaceTrainStep) or ""
    in_help = dict(re.findall(r"^ +(\w+) \((.+?)\): \w", text, re.MULTILINE))
    options = SearchOptions.model_json_schema()["properties"]
    told = {name: f"{option['default']}; {range_of(option)}" for name, option in options.items()}
    told["rule"] = f'"bfgs"; {range_of(options["rule"])}'
    # The schema of these two also has the forms for "all directions" and for several rates.
    told["n_components"], told["learning_rate"] = "all; 1 to the basis's k", "0.1; above 0"
    assert in_help == told


def test_help_of_every_public_name_begins_with_a_docstring_of_ours():
    for name in dimred.__all__:
        thing = getattr(dimred, name)
        first = vars(thing).get("__doc__") if inspect.isclass(thing) else thing.__doc__
        assert first, f"{name} inherits its docstring"
        assert first.splitlines()[0] in "".join(pydoc.plaintext.document(thing).splitlines()[:5]), name
