"""A line moves real weights, and tells whether it has."""

import numpy as np
import pytest
from mindspore import Parameter, Tensor

from dimred.search_step.moves import Line
from dimred.vectors.weights import GraphVectors, HostVectors


@pytest.mark.parametrize("vectors", [HostVectors, GraphVectors])
def test_a_line_tells_whether_a_step_changes_any_weight(vectors):
    weight = Parameter(Tensor(np.ones(5, np.float32)), name="weight")
    line = Line(vectors([weight]), Tensor(np.arange(5, dtype=np.float32)))
    for step_size, moves in ((0.0, False), (1e-9, False), (1e-3, True), (0.0, False)):  # 1 + 4e-9 is 1 in float32
        line.move_to(step_size)
        assert line.has_moved() is moves
    np.testing.assert_array_equal(weight.asnumpy(), 1)
