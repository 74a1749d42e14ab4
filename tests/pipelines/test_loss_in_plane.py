"""The loss in the plane is the network's own loss, on weights put in by hand."""

import mindspore as ms
import numpy as np
from mindspore import Tensor, nn

from dimred.checkpoints.layout import WeightLayout
from dimred.pipelines.report import loss_in_plane


def test_it_is_the_loss_of_those_weights_whatever_the_statistics_are() -> None:
    ms.set_seed(1)
    rng = np.random.default_rng(1)
    network = nn.SequentialCell(nn.Dense(4, 3), nn.BatchNorm1d(3), nn.Dense(3, 2))
    loss = nn.WithLossCell(network, nn.MSELoss())
    batches = [
        (Tensor(rng.normal(size=(8, 4)).astype(np.float32)), Tensor(rng.normal(size=(8, 2)).astype(np.float32)))
        for _ in range(2)
    ]
    layout = WeightLayout.from_network(loss)
    origin = layout.flatten({parameter.name: parameter for parameter in loss.trainable_params()})
    directions = rng.normal(size=(2, layout.size))
    at = loss_in_plane(loss, batches, origin, directions)
    found = at(0.5, -0.25)
    network[1].moving_mean.set_data(Tensor(np.full(3, 1e3, np.float32)))
    assert at(0.5, -0.25) == found

    weights = layout.unflatten((origin + 0.5 * directions[0] - 0.25 * directions[1]).astype(np.float32))
    w1, b1, gamma, beta, w2, b2 = (weights[name] for name in layout.names)
    expected = []
    for x, y in batches:
        hidden = x.asnumpy() @ w1.T + b1
        hidden = gamma * (hidden - hidden.mean(0)) / np.sqrt(hidden.var(0) + 1e-5) + beta
        expected.append(np.mean((hidden @ w2.T + b2 - y.asnumpy()) ** 2))
    np.testing.assert_allclose(found, np.mean(expected), rtol=1e-4)
