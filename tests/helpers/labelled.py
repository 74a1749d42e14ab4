from typing import NamedTuple

import numpy as np
from mindspore import dataset, nn


class Labelled(NamedTuple):
    """A network that drops nearly everything in training, 23 inputs in uneven batches, and what it should say."""

    network: nn.Cell
    batches: dataset.Dataset
    logits: np.ndarray
    labels: np.ndarray
