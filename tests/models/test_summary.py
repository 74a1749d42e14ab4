"""Layers, parameters and FLOPs equal counts by hand, and those published for ResNet-50."""

import mindspore as ms
import numpy as np
import pytest
from mindspore import Tensor, nn

from dimred.errors import ConfigError
from dimred.models.resnet import resnet
from dimred.models.summary import summarise


class Shared(nn.Cell):
    """One dense layer used twice, and a weight of its own outside any layer."""

    def __init__(self):
        super().__init__()
        self.dense = nn.Dense(4, 4)
        self.scale = ms.Parameter(Tensor(np.ones(3, np.float32)), name="scale")

    def construct(self, x):
        return self.dense(self.dense(x)) * self.scale.sum()


def test_a_small_network_is_counted_by_hand():
    network = nn.SequentialCell(
        nn.Conv2d(3, 8, 3, stride=2, pad_mode="pad", padding=1, has_bias=True),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.Conv2d(8, 8, 3, pad_mode="valid", group=4),
        nn.Flatten(),
        nn.Dense(8 * 3 * 3, 10),
    )
    found = summarise(network, (2, 3, 10, 10))
    assert [layer.kind for layer in found.layers] == ["Conv2d", "BatchNorm2d", "ReLU", "Conv2d", "Flatten", "Dense"]
    assert [layer.output_shape for layer in found.layers[:2]] == [(2, 8, 5, 5)] * 2
    assert found.layers[0].input_shape == (2, 3, 10, 10)
    outputs = 2 * 8 * 25
    by_hand = [
        outputs * 2 * 27 + outputs,
        2 * outputs,
        0,
        2 * 8 * 9 * 2 * 9 * 2,  # each output sums over 9 numbers of 2 channels
        0,
        2 * 10 * 2 * 72 + 20,
    ]
    assert [layer.flops for layer in found.layers] == by_hand
    assert [layer.n_parameters for layer in found.layers] == [27 * 8 + 8, 16, 0, 8 * 2 * 9, 0, 730]
    assert (found.n_other, found.flops) == (16, sum(by_hand))


def test_a_layer_used_twice_runs_twice_and_is_counted_once():
    found = summarise(Shared(), (1, 4))
    assert [layer.n_parameters for layer in found.layers] == [20, 0]
    assert (found.n_parameters, found.flops) == (23, 2 * (2 * 16 + 4))


def test_resnet_50_has_its_published_size_and_cost():
    found = summarise(resnet("resnet50", 1000), (1, 3, 224, 224))
    assert found.n_parameters == 25_557_032  # as in torchvision's table
    assert found.flops / 2 == pytest.approx(4.09e9, rel=0.01)  # "GFLOPS 4.09", counted there as multiply-adds


def test_mode_training_and_hooks_are_as_before():
    ms.set_context(mode=ms.GRAPH_MODE)
    network = resnet("resnet_small", 10)
    network.set_train(True)
    summarise(network, (1, 3, 16, 16))
    assert ms.get_context("mode") == ms.GRAPH_MODE
    assert network.training
    statistics = network.stem[1].moving_mean.asnumpy()
    np.testing.assert_array_equal(statistics, np.zeros_like(statistics))


def test_an_input_that_does_not_fit_is_named():
    with pytest.raises(ConfigError, match=r"one float32 input of the shape \(1, 5, 16, 16\) \(RuntimeError: "):
        summarise(resnet("resnet_small", 10), (1, 5, 16, 16))
    with pytest.raises(ConfigError, match=r"of the shape \(1, 7\) \(TypeError: .*\w.*\); give another --input-shape"):
        summarise(nn.Embedding(10, 4), (1, 7))
    with pytest.raises(ConfigError, match=r"\(AssertionError: needs 20\)"):
        summarise(Demanding(), (1, 7))


class Demanding(nn.Cell):
    """A network that refuses its input in its own way."""

    def construct(self, x: Tensor) -> Tensor:
        raise AssertionError("needs 20")
