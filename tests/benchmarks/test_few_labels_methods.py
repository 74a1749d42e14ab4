"""That the methods of ``few_labels_study.py`` are what they say; a minute with ``-m benchmark``."""

import mindspore as ms
import numpy as np
import pytest
from mindspore import nn, ops

from dimred import WeightLayout
from dimred.vectors.parameters import to_arrays
from tests.benchmarks import few_labels_methods as methods
from tests.benchmarks.few_labels_methods import LAST_LAYER, PIXELS, Split, Subspace, logits, make_network

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
    return Split(rng.standard_normal((60, PIXELS)).astype(np.float32), labels, labels)


def test_logits_and_gradient_are_mindspore_s(network, vector, split):
    images, labels = ms.Tensor(split.images), ms.Tensor(split.labels)
    np.testing.assert_allclose(logits(vector, split.images), network(images).asnumpy(), atol=2e-6)

    def mean_loss(images, labels):
        return nn.CrossEntropyLoss()(network(images) / 3.0, labels)

    expected, gradients = ms.value_and_grad(mean_loss, None, network.trainable_params())(images, labels)
    loss, gradient = methods.loss_and_gradient(vector, split, 3.0)
    assert loss == pytest.approx(float(expected.asnumpy()), rel=1e-6)
    flat = ops.concat([one.reshape(-1) for one in gradients]).asnumpy()
    np.testing.assert_allclose(gradient, flat, atol=1e-7)
    assert np.abs(flat).max() > 1e-3


def test_the_subspace_s_logits_are_those_of_the_moved_weights(vector, split):
    rng = np.random.default_rng(2)
    directions = 0.1 * rng.standard_normal((5, len(vector))).astype(np.float32)
    z = rng.standard_normal(5)
    moved = (vector + z @ directions).astype(np.float32)
    found = Subspace(vector, directions, split.images).logits(z)
    np.testing.assert_allclose(found, logits(moved, split.images), atol=1e-4)
    assert np.abs(found - logits(vector, split.images)).max() > 1


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
    learnable = split._replace(labels=logits(np.roll(vector, 1), split.images).argmax(axis=1).astype(np.int32))
    moved = methods.fine_tune(vector, learnable, 1.0, LAST_LAYER)
    np.testing.assert_array_equal(moved[: LAST_LAYER.start], vector[: LAST_LAYER.start])
    before, _ = methods.loss_and_gradient(vector, learnable, 1.0)
    assert methods.loss_and_gradient(moved, learnable, 1.0)[0] < before


def test_the_temperature_that_made_the_labels_is_found():
    rng = np.random.default_rng(5)
    found = 6 * rng.standard_normal((20_000, 10))
    labels = (found / 3 + rng.gumbel(size=found.shape)).argmax(axis=1)  # drawn from softmax(found / 3)
    assert methods.fit_temperature(found, labels) == pytest.approx(3, rel=0.05)
