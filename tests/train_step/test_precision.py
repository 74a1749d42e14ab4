"""Mixed precision: which cells compute in which type, and what is refused."""

import mindspore as ms
import numpy as np
import pytest
from mindspore import Tensor, nn

from dimred.errors import ConfigError
from dimred.train_step.precision import with_precision


class SeenType(nn.Cell):
    """A cell that passes on its input, and remembers its type."""

    def __init__(self):
        super().__init__()
        self.seen = None

    def construct(self, x):
        self.seen = x.dtype
        return x


def network() -> nn.Cell:
    """Make a convolution, BatchNorm, ReLU and dense layer, with a SeenType behind each of the first two."""
    return nn.SequentialCell(
        nn.Conv2d(1, 4, 3), SeenType(), nn.BatchNorm2d(4), SeenType(), nn.ReLU(), nn.Flatten(), nn.Dense(4 * 36, 3)
    )


CASES = [
    ({"level": "O0"}, "float32", "float32"),
    ({"level": "O1"}, "float32", "float32"),
    ({"level": "O2"}, "float16", "float16"),
    ({"level": "O3"}, "float16", "float16"),
    ({"level": "O0", "casts": {"0": "float16"}}, "float32", "float32"),
]


@pytest.mark.parametrize(("options", "after_convolution", "after_norm"), CASES, ids=str)
def test_types_between_the_layers_and_float32_at_the_end(options, after_convolution, after_norm, pynative):
    plain = network()
    names = [parameter.name for parameter in plain.get_parameters()]
    images = Tensor(np.random.default_rng(0).standard_normal((2, 1, 6, 6)).astype(np.float32))
    plain.set_train(True)
    exact = plain(images).asnumpy()
    used = with_precision(plain, **options)
    used.set_train(True)
    found = used(images)
    seen = [cell.seen for _, cell in used.cells_and_names() if isinstance(cell, SeenType)]
    assert seen == [getattr(ms, after_convolution), getattr(ms, after_norm)]
    assert found.dtype == ms.float32
    np.testing.assert_allclose(found.asnumpy(), exact, atol=2e-2)
    assert (options["level"] == "O0" and not options.get("casts")) == np.array_equal(found.asnumpy(), exact)
    assert [parameter.name for parameter in used.get_parameters()] == names
    assert {parameter.dtype for parameter in used.get_parameters()} == {ms.float32}


@pytest.mark.parametrize("level", ["O1", "O2", "O3"])
def test_a_network_that_is_one_layer_is_converted_too(level, pynative):
    weight, x = (np.random.default_rng(n).normal(size=(3, 5)).astype(np.float32) for n in (1, 2))
    network = with_precision(nn.Dense(5, 3, weight_init=Tensor(weight), has_bias=False), level)
    found = network(Tensor(x))
    half = (x.astype(np.float16).astype(np.float64) @ weight.astype(np.float16).astype(np.float64).T).astype(np.float16)
    assert found.dtype == ms.float32
    np.testing.assert_allclose(found.asnumpy(), half, rtol=2e-3, atol=2e-3)
    assert np.array_equal(found.asnumpy(), found.asnumpy().astype(np.float16))
    assert [parameter.name for parameter in network.trainable_params()] == ["weight"]


def test_a_recurrent_cell_stays_in_float32_and_returns_its_tuple(mode):
    plain = nn.SequentialCell(nn.LSTMCell(3, 4))
    x = np.random.default_rng(0).standard_normal((2, 3)).astype(np.float32)
    inputs = (Tensor(x), (Tensor(np.zeros((2, 4), np.float32)),) * 2)
    exact = plain[0](*inputs)
    for options in ({"level": "O1"}, {"casts": {"0": "float32"}}):
        found = with_precision(plain, **options)[0](*inputs)
        for one, other in zip(found, exact, strict=True):
            np.testing.assert_array_equal(one.asnumpy(), other.asnumpy(), strict=True)


def test_a_cell_in_two_places_stays_in_both(pynative):
    """``O1`` converts both places of the dense layer, and leaves both ReLUs where they are."""
    relu, dense = nn.ReLU(), nn.Dense(5, 5)
    plain = nn.SequentialCell(dense, relu, nn.Dense(5, 5), relu, dense)
    x = Tensor(np.random.default_rng(0).standard_normal((4, 5)).astype(np.float32))
    exact = plain(x).asnumpy()
    used = with_precision(plain, "O1")
    found = used(x)
    assert found.dtype == ms.float32
    np.testing.assert_allclose(found.asnumpy(), exact, atol=2e-3)
    assert [cell is relu for cell in used] == [False, True, False, True, False]


@pytest.mark.parametrize(
    ("options", "kept"),
    [
        ({"level": "O2"}, True),
        ({"level": "O2", "keep_batch_norm": False}, False),
        ({"level": "O3"}, False),
        ({"level": "O3", "keep_batch_norm": True}, True),
        ({"level": "O3", "casts": {"2": "float32"}}, True),
    ],
    ids=str,
)
def test_batch_norm_is_kept_in_float32_or_not(options, kept, pynative):
    used = with_precision(network(), **options)
    (norm,) = [cell for _, cell in used.cells_and_names() if isinstance(cell, nn.BatchNorm2d)]
    assert norm.fp16 == (not kept)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"level": "O2", "dtype": "bfloat16"}, "dtype is 'bfloat16', but the device CPU can't compute"),
        ({"level": "O2", "casts": {"classifier": "float32"}}, "casts has 'classifier', which matches no cell"),
    ],
)
def test_what_is_refused_is_named(options, said):
    with pytest.raises(ConfigError) as refused:
        with_precision(network(), **options)
    assert said in str(refused.value)
