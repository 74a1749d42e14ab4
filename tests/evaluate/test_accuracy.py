"""Accuracy against a count by hand."""

import mindspore as ms
import numpy as np
from mindspore import Tensor, dataset, nn

from dimred.evaluate.accuracy import Accuracy


def test_every_image_counts_once_the_uneven_last_batch_too_and_the_mode_is_put_back() -> None:
    ms.set_context(mode=ms.GRAPH_MODE)
    rng = np.random.default_rng(3)
    images = rng.normal(size=(23, 6)).astype(np.float32)
    labels = rng.integers(0, 4, 23).astype(np.int32)
    network = nn.SequentialCell(nn.Dense(6, 4), nn.Dropout(p=0.9))
    network.set_train(True)
    batches = dataset.NumpySlicesDataset((images, labels), shuffle=False).batch(5)
    accuracy = Accuracy(network)(batches)
    assert network.training
    logits = images @ network[0].weight.asnumpy().T + network[0].bias.asnumpy()
    assert accuracy == np.mean(logits.argmax(1) == labels)
    network[0].bias.set_data(Tensor(np.array([100, 0, 0, 0], np.float32)))
    assert Accuracy(network)(batches) == np.mean(labels == 0)
