"""Mean cross entropy against scikit-learn's."""

import mindspore as ms
import numpy as np
import pytest
from mindspore import dataset, nn
from scipy.special import softmax
from sklearn.metrics import log_loss

from dimred.evaluate.cross_entropy import CrossEntropy


def test_every_image_counts_once_the_uneven_last_batch_too_and_the_mode_is_put_back() -> None:
    ms.set_context(mode=ms.GRAPH_MODE)
    rng = np.random.default_rng(3)
    images = rng.normal(size=(23, 6)).astype(np.float32)
    labels = rng.integers(0, 4, 23).astype(np.int32)
    network = nn.SequentialCell(nn.Dense(6, 4), nn.Dropout(p=0.9))
    network.set_train(True)
    found = CrossEntropy(network)(dataset.NumpySlicesDataset((images, labels), shuffle=False).batch(5))
    assert network.training
    logits = images @ network[0].weight.asnumpy().T + network[0].bias.asnumpy()
    assert found == pytest.approx(log_loss(labels, softmax(logits.astype(np.float64), axis=1)), rel=1e-5)
