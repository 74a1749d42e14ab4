"""The plain average of a series."""

from pathlib import Path

import numpy as np

from dimred.evaluate.averages import average_snapshots
from dimred.weights.layout import WeightLayout
from dimred.weights.series import CheckpointSeries


def test_it_is_the_mean_over_the_snapshots_in_the_window(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    drawn = [
        {"a": rng.normal(size=(2, 3)).astype(np.float32), "b": rng.normal(size=4).astype(np.float32)} for _ in range(5)
    ]
    series = CheckpointSeries(tmp_path, keep=3)
    for step, weights in enumerate(drawn, start=1):
        series.append(weights, step=step, epoch=step)
    layout = WeightLayout.from_weights(drawn[0])
    expected = np.mean([np.concatenate([weights["a"].ravel(), weights["b"]]) for weights in drawn[2:]], axis=0)
    np.testing.assert_allclose(average_snapshots(CheckpointSeries.open(tmp_path), layout), expected, rtol=1e-6)
