"""Layers, parameters and FLOPs equal counts by hand, and those published for ResNet-50."""

import mindspore as ms
import numpy as np
import pytest
from mindspore import Tensor, nn, ops

from dimred.errors import ConfigError
from dimred.models.resnet import resnet
from dimred.models.summary import Input, summarise


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


N_TEXTS, LENGTH, WIDTH, N_WORDS = 3, 5, 8, 50


class OwnAttention(nn.Cell):
    """Two heads, whose products are operators and functions."""

    def __init__(self) -> None:
        super().__init__()
        self.query, self.key, self.value = (nn.Dense(WIDTH, WIDTH) for _ in range(3))
        self.product = ops.BatchMatMul(transpose_b=True)

    def construct(self, x: Tensor) -> Tensor:
        q, k, v = (part(x).reshape(N_TEXTS, LENGTH, 2, 4).swapaxes(1, 2) for part in (self.query, self.key, self.value))
        return (ops.softmax(self.product(q, k), -1) @ v).swapaxes(1, 2).reshape(x.shape)


class OfTokens(nn.Cell):
    """Tokens and their positions, through both kinds of attention, to logits by an embedding's table."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.positions = nn.Embedding(N_WORDS, WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.own = OwnAttention()
        self.attention = nn.MultiheadAttention(WIDTH, 2, batch_first=True)
        self.norm = nn.LayerNorm((WIDTH,))

    def construct(self, tokens: Tensor, positions: Tensor) -> Tensor:
        x = self.own(self.embedding(tokens) + self.positions(positions))
        x = self.norm(self.attention(x, x, x)[0])
        return ops.matmul(x, self.embedding.embedding_table.swapaxes(0, 1))


def test_a_network_of_tokens_is_counted_by_hand() -> None:
    tokens = Input((N_TEXTS, LENGTH), "int32")
    found = summarise(OfTokens(), tokens, tokens, count_functions=True)
    n_tokens = N_TEXTS * LENGTH
    projection, of_heads = 2 * n_tokens * WIDTH * WIDTH, 2 * 2 * n_tokens * LENGTH * WIDTH
    flops = {layer.name: layer.flops for layer in found.layers}
    of_own = dict.fromkeys(["own.query", "own.key", "own.value"], projection + n_tokens * WIDTH)
    of_norm = 2 * n_tokens * WIDTH
    assert flops == {"embedding": 0, "positions": 0, **of_own, "attention": 4 * projection + of_heads, "norm": of_norm}
    assert found.function_flops == of_heads + 2 * n_tokens * WIDTH * N_WORDS
    assert found.flops == sum(flops.values()) + found.function_flops
    assert [layer.n_parameters for layer in found.layers] == [400, 40, 72, 72, 72, 288, 16]
    assert found.inputs == (tokens, tokens)


def test_the_compiled_graph_has_the_products_of_the_layers() -> None:
    convolutions = nn.SequentialCell(
        nn.Conv2d(4, 8, 3, stride=2, group=2),
        nn.Conv2dTranspose(8, 4, 3, stride=2, has_bias=True),
        nn.Flatten(),
        nn.Dense(4 * 6 * 8, 10),
    )
    flat = nn.SequentialCell(nn.Conv1d(4, 8, 3), nn.Conv1dTranspose(8, 4, 3))
    deep = nn.SequentialCell(nn.Conv3d(4, 8, 3), nn.Conv3dTranspose(8, 4, 3))
    for network, shape in ((convolutions, (2, 4, 6, 8)), (flat, (2, 4, 9)), (deep, (2, 4, 5, 6, 7))):
        assert summarise(network, shape, count_functions=True).function_flops == 0


class OnHost(nn.Cell):
    """A network that no graph can hold."""

    def construct(self, x: Tensor) -> Tensor:
        return Tensor(np.linalg.inv(x.asnumpy() + np.eye(3, dtype=np.float32)))


def test_where_a_network_can_not_be_compiled_it_is_said() -> None:
    mode = ms.get_context("mode")
    found = summarise(OnHost(), (3, 3), count_functions=True)
    assert found.function_flops is None
    assert ": " in found.not_counted
    assert ms.get_context("mode") == mode


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
    with pytest.raises(ConfigError, match=r"can't take 1 input, float32 \(1, 5, 16, 16\) \(RuntimeError: "):
        summarise(resnet("resnet_small", 10), (1, 5, 16, 16))
    with pytest.raises(ConfigError, match=r"float32 \(1, 7\) \(TypeError: .*\w.*\); give its inputs with --input"):
        summarise(nn.Embedding(10, 4), (1, 7))
    with pytest.raises(ConfigError, match=r"can't take 2 inputs, float32 \(1, 7\) and int32 \(2,\) \("):
        summarise(nn.Dense(7, 4), (1, 7), Input((2,), "int32"))
    with pytest.raises(ConfigError, match=r"\(AssertionError: needs 20\)"):
        summarise(Demanding(), (1, 7))


class Demanding(nn.Cell):
    """A network that refuses its input in its own way."""

    def construct(self, x: Tensor) -> Tensor:
        raise AssertionError("needs 20")
