"""Accuracy against a count by hand."""

import numpy as np
from mindspore import Tensor

from dimred.evaluate.accuracy import Accuracy
from tests.helpers.labelled import Labelled


def test_every_image_counts_once_the_uneven_last_batch_too_and_the_mode_is_put_back(labelled: Labelled) -> None:
    network, labels = labelled.network, labelled.labels
    accuracy = Accuracy(network)(labelled.batches)
    assert network.training
    assert accuracy == np.mean(labelled.logits.argmax(1) == labels)
    network[0].bias.set_data(Tensor(np.array([100, 0, 0, 0], np.float32)))
    assert Accuracy(network)(labelled.batches) == np.mean(labels == 0)
