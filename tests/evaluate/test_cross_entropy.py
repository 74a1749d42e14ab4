"""Mean cross entropy against scikit-learn's."""

import numpy as np
import pytest
from scipy.special import softmax
from sklearn.metrics import log_loss

from dimred.evaluate.cross_entropy import CrossEntropy
from tests.helpers.labelled import Labelled


def test_every_image_counts_once_the_uneven_last_batch_too_and_the_mode_is_put_back(labelled: Labelled) -> None:
    found = CrossEntropy(labelled.network)(labelled.batches)
    assert labelled.network.training
    probabilities = softmax(labelled.logits.astype(np.float64), axis=1)
    assert found == pytest.approx(log_loss(labelled.labels, probabilities), rel=1e-5)
