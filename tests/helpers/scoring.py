"""A network measured by one score, in one call."""

from typing import Any

import numpy as np
from mindspore import nn

from dimred.evaluation.scores import Score, mean_of_items, means_of_samples, score_batches


def mean_score(network: nn.Cell, score: Score, batches: Any) -> float:
    [found] = score_batches(network, batches, score)
    return mean_of_items(found)


def sample_scores(network: nn.Cell, score: Score, batches: Any) -> np.ndarray:
    [found] = score_batches(network, batches, score)
    return means_of_samples(found)
