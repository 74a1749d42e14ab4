"""The metric of ``merge_study.py``: which images a network gets right, its BatchNorm statistics re-estimated.

``STUDY_DATA``, ``STUDY_RUN`` and ``STUDY_COUNT`` in the environment name the data, the folder of stage 1, and how many
images of ``val`` the splits ``search`` and ``select`` have each; ``test`` is the whole split.
"""

import os
from functools import cache
from itertools import islice
from pathlib import Path

import mindspore as ms
import numpy as np

from dimred.build import build_data, build_network
from dimred.config import StageOneConfig, load_config
from dimred.evaluate.batch_norm import reestimate_batch_norm
from dimred.run.device import set_up
from dimred.vectors.parameters import from_arrays

_BATCHES = 18  # that statistics are re-estimated on, as in stage 2


@cache
def _prepared():
    """The network, the training batches, and images and labels by split."""
    config = load_config(StageOneConfig, Path(os.environ["STUDY_RUN"]) / "config.yaml")
    set_up(config.seed)
    network, data = build_network(config), Path(os.environ["STUDY_DATA"])
    batches = list(islice(build_data(config.data, data, "train").spare_batches(config.seed), _BATCHES))
    images = {split: _all(build_data(config.data, data, split)) for split in ("val", "test")}
    order = np.random.default_rng(0).permutation(len(images["val"][1]))
    count = int(os.environ["STUDY_COUNT"])
    parts = {"search": order[:count], "select": order[count : 2 * count]}
    splits = {split: tuple(values[part] for values in images["val"]) for split, part in parts.items()}
    return network, batches, splits | {"test": images["test"]}


def _all(images):
    parts = [(batch.asnumpy(), labels.asnumpy()) for batch, labels in images.evaluation().create_tuple_iterator(1)]
    return tuple(np.concatenate(arrays) for arrays in zip(*parts, strict=True))


def score(tensors, split):
    """1 for each image that is right, else 0."""
    network, batches, splits = _prepared()
    from_arrays(network.trainable_params(), tensors, "the candidate")
    reestimate_batch_norm(network, batches)
    network.set_train(False)
    images, labels = splits[split]
    right = []
    for start in range(0, len(labels), 500):
        logits = network(ms.Tensor(images[start : start + 500])).asnumpy()
        right += (logits.argmax(axis=1) == labels[start : start + 500]).astype(float).tolist()
    return right
