"""That the methods of ``few_labels_study.py`` are what they say; seconds with ``-m benchmark``."""

import mindspore as ms
import numpy as np
import pytest
from mindspore import nn, ops

from dimred import WeightLayout
from dimred.data.digits import FIELD
from dimred.vectors.parameters import to_arrays
from tests.benchmarks import few_labels_methods as methods
from tests.benchmarks.few_labels_methods import LAST_LAYER, Split, forward, make_network

pytestmark = pytest.mark.benchmark


@pytest.fixture(scope="module")
def network():
    ms.set_seed(1)
    return make_network()


@pytest.fixture(scope="module")
def vector(network):
    return WeightLayout.from_network(network).flatten(to_arrays(network.trainable_params()))


@pytest.fixture(scope="module")
def split():
    rng = np.random.default_rng(1)
    labels = rng.integers(10, size=60).astype(np.int32)
    return Split(rng.standard_normal((60, 1, FIELD, FIELD)).astype(np.float32), labels, labels)


def test_logits_and_gradient_are_mindspore_s(network, vector, split):
    images, labels = ms.Tensor(split.images), ms.Tensor(split.labels)
    np.testing.assert_allclose(forward(vector, split.patches()).logits, network(images).asnumpy(), atol=2e-6)

    def mean_loss(images, labels):
        return nn.CrossEntropyLoss()(network(images) / 3.0, labels)

    expected, gradients = ms.value_and_grad(mean_loss, None, network.trainable_params())(images, labels)
    loss, gradient = methods.loss_and_gradient(vector, split.patches(), split.labels, 3.0)
    assert loss == pytest.approx(float(expected.asnumpy()), rel=1e-6)
    flat = ops.concat([one.reshape(-1) for one in gradients]).asnumpy()
    np.testing.assert_allclose(gradient, flat, atol=1e-7)
    assert np.abs(flat).max() > 1e-3


def test_elliptical_slice_sampling_finds_a_known_posterior():
    """y = A z + noise has the posterior N(S A'y / s^2, S) with S = (I + A'A / s^2)^-1."""
    rng = np.random.default_rng(3)
    matrix, deviation = rng.standard_normal((4, 3)), 0.5
    observed = matrix @ np.array([1.5, -1.0, 0.5]) + deviation * rng.standard_normal(4)
    covariance = np.linalg.inv(np.eye(3) + matrix.T @ matrix / deviation**2)
    mean = covariance @ matrix.T @ observed / deviation**2

    def log_likelihood(z):
        return -np.sum((observed - matrix @ z) ** 2) / (2 * deviation**2)

    chain = methods.sample(log_likelihood, 3, 40_000, rng)
    blocks = chain.reshape(40, -1, 3).mean(axis=1)
    errors = blocks.std(axis=0, ddof=1) / np.sqrt(len(blocks))
    assert np.all(np.abs(chain.mean(axis=0) - mean) < 4 * errors)
    assert np.all(errors < 0.1 * np.sqrt(np.diag(covariance)))  # so that the line above says something
    np.testing.assert_allclose(np.cov(chain.T), covariance, atol=0.12 * np.diag(covariance).max())


def test_without_data_the_chain_is_the_prior():
    chain = methods.sample(lambda z: 0.0, 2, 20_000, np.random.default_rng(4))
    np.testing.assert_allclose(chain.mean(axis=0), 0, atol=0.05)
    np.testing.assert_allclose(np.cov(chain.T), np.eye(2), atol=0.05)


def test_fine_tuning_moves_what_is_free(vector, split):
    patches = split.patches()
    labels = forward(np.roll(vector, 1), patches).logits.argmax(axis=1)  # of another network, which can be learned
    before, _ = methods.loss_and_gradient(vector, patches, labels, 1.0)
    moved = methods.fine_tune(vector, patches, labels, 1.0, LAST_LAYER)
    np.testing.assert_array_equal(moved[: LAST_LAYER.start], vector[: LAST_LAYER.start])
    after, _ = methods.loss_and_gradient(moved, patches, labels, 1.0)
    assert after < before


def test_the_temperature_that_made_the_labels_is_found():
    rng = np.random.default_rng(5)
    found = 6 * rng.standard_normal((20_000, 10))
    labels = (found / 3 + rng.gumbel(size=found.shape)).argmax(axis=1)  # drawn from softmax(found / 3)
    assert methods.fit_temperature(found, labels) == pytest.approx(3, rel=0.05)
