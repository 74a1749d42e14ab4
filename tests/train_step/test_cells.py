"""Compiled graphs that are not used any more are freed."""

import mindspore as ms
import numpy as np
from mindspore import Tensor, nn
from mindspore.nn.cell import _cell_graph_executor

from dimred.train_step.cells import free_graphs
from dimred.train_step.step import TrainStep


def test_what_was_compiled_is_gone_and_compiled_again_where_it_is_needed_after_all() -> None:
    ms.set_context(mode=ms.GRAPH_MODE)
    network = nn.Dense(4, 3)
    step = TrainStep(nn.WithLossCell(network, nn.MSELoss()), nn.Momentum(network.trainable_params(), 0.1, 0.9))
    batch = Tensor(np.ones((2, 4), np.float32)), Tensor(np.zeros((2, 3), np.float32))
    first = float(step(*batch).loss)
    compiled = {phase for _, cell in step.cells_and_names() for phase in cell.compile_cache}
    assert compiled
    assert all(_cell_graph_executor.has_compiled(phase) for phase in compiled)
    free_graphs(step)
    assert not any(_cell_graph_executor.has_compiled(phase) for phase in compiled)
    assert float(step(*batch).loss) < first
