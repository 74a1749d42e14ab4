import mindspore as ms
import numpy as np
import pytest
from mindspore import Tensor, nn

from dimred.errors import ConfigError
from dimred.models.built_in import make_named
from dimred.models.initialisation import initialise
from dimred.models.resnet import BasicBlock, Bottleneck, resnet


@pytest.fixture(scope="module", autouse=True)
def _pynative():
    ms.set_context(mode=ms.PYNATIVE_MODE)
    yield
    ms.set_context(mode=ms.GRAPH_MODE)


@pytest.fixture(scope="module")
def resnet50():
    return resnet("resnet50", 1001)


def n_weights(network: nn.Cell) -> int:
    return sum(parameter.size for parameter in network.trainable_params())


def test_published_parameter_counts(resnet50):
    assert n_weights(resnet50) == 25_557_032 + 2048 + 1  # torchvision's resnet50 has 1000 classes
    assert n_weights(resnet("resnet18", 1000)) == 11_689_512  # torchvision's resnet18
    assert 15_000 < n_weights(resnet("resnet_small", 10)) < 25_000


def test_published_shapes_of_each_stage(resnet50):
    """He et al. 2015, table 1, has the sizes 56, 28, 14, 7 at 224, with 3, 4, 6, 3 blocks; here the input has 64."""
    x = resnet50.stem(Tensor(np.zeros((2, 3, 64, 64), np.float32)))
    assert x.shape == (2, 64, 16, 16)
    ends, shapes = (3, 7, 13, 16), []
    assert len(resnet50.blocks) == 16
    for number, block in enumerate(resnet50.blocks, start=1):
        assert isinstance(block, Bottleneck)
        x = block(x)
        if number in ends:
            shapes.append(x.shape)
    assert shapes == [(2, 256, 16, 16), (2, 512, 8, 8), (2, 1024, 4, 4), (2, 2048, 2, 2)]
    assert resnet50(Tensor(np.zeros((2, 3, 64, 64), np.float32))).shape == (2, 1001)


def test_a_block_adds_its_shortcut():
    block = BasicBlock(4, 4, 1)
    for parameter in block.trainable_params():
        if parameter.name.endswith("gamma"):
            parameter.set_data(Tensor(np.zeros(parameter.shape, np.float32)))
    block.set_train(False)
    x = np.random.default_rng(0).standard_normal((2, 4, 5, 5)).astype(np.float32)
    np.testing.assert_allclose(block(Tensor(x)).asnumpy(), np.maximum(x, 0), atol=1e-6)


def test_the_stem_pools_as_the_paper_does(resnet50):
    """It takes 3 x 3 maxima, stride 2, over one ring of padding that never wins."""
    pool = nn.SequentialCell(list(resnet50.stem.name_cells().values())[3:])
    x = np.abs(np.random.default_rng(1).standard_normal((1, 2, 8, 8))).astype(np.float32)
    padded = np.pad(x, ((0, 0), (0, 0), (1, 1), (1, 1)), constant_values=-np.inf)
    expected = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), (2, 3))[:, :, ::2, ::2].max((-1, -2))
    np.testing.assert_array_equal(pool(Tensor(x)).asnumpy(), expected)


def weights(network: nn.Cell, kind: type) -> list[np.ndarray]:
    return [cell.weight.asnumpy() for _, cell in network.cells_and_names() if isinstance(cell, kind)]


def fans(weight: np.ndarray) -> tuple[int, int]:
    receptive = int(np.prod(weight.shape[2:]))
    return weight.shape[1] * receptive, weight.shape[0] * receptive


# Name -> the scale that gives weights a standard deviation of 1, and the largest weight in that scale.
TRUNCATED = 0.8796  # standard deviation of a unit normal cut off at -2 and 2
EXPECTED = {
    "xavier_uniform": (lambda fan_in, fan_out: np.sqrt(2 / (fan_in + fan_out)), np.sqrt(3)),
    "kaiming": (lambda fan_in, fan_out: np.sqrt(2 / fan_out), 8.0),
}


@pytest.mark.parametrize("name", EXPECTED)
def test_initial_weights_have_the_distribution_of_their_name(name):
    network = resnet("resnet_small", 10)
    initialise(network, name)
    scale, largest = EXPECTED[name]
    scaled = np.concatenate([(weight / scale(*fans(weight))).ravel() for weight in weights(network, nn.Conv2d)])
    assert scaled.mean() == pytest.approx(0, abs=0.03)
    assert scaled.std() == pytest.approx(1, abs=0.03)
    assert np.abs(scaled).max() <= largest * 1.001
    if name == "kaiming":
        assert np.abs(scaled).max() > 2  # not uniform


def test_dense_batch_norm_and_biases(resnet50):
    (dense,) = weights(resnet50, nn.Dense)
    assert dense.std() == pytest.approx(0.01 * TRUNCATED, rel=0.01)
    assert not resnet50.classifier.bias.asnumpy().any()
    for _, cell in resnet50.cells_and_names():
        if isinstance(cell, nn.BatchNorm2d):
            assert (cell.gamma.asnumpy() == 1).all()
            assert not cell.beta.asnumpy().any()


def test_initial_weights_follow_the_seed():
    def drawn(seed):
        ms.set_seed(seed)
        return np.concatenate([p.asnumpy().ravel() for p in resnet("resnet_small", 10).trainable_params()])

    first = drawn(1)
    np.testing.assert_array_equal(first, drawn(1))
    assert not np.array_equal(first, drawn(2))


def test_a_classifier_has_two_classes_at_least():
    with pytest.raises(ConfigError, match="n_classes is 1"):
        make_named("resnet_small", 1)
