import mindspore as ms
import numpy as np
import pytest
from mindspore import dataset, nn

from tests.helpers.labelled import Labelled


@pytest.fixture
def labelled() -> Labelled:
    ms.set_context(mode=ms.GRAPH_MODE)
    rng = np.random.default_rng(3)
    images = rng.normal(size=(23, 6)).astype(np.float32)
    labels = rng.integers(0, 4, 23).astype(np.int32)
    network = nn.SequentialCell(nn.Dense(6, 4), nn.Dropout(p=0.9))
    network.set_train(True)
    batches = dataset.NumpySlicesDataset((images, labels), shuffle=False).batch(5)
    logits = images @ network[0].weight.asnumpy().T + network[0].bias.asnumpy()
    return Labelled(network, batches, logits, labels)
