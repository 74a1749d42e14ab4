"""The plane of the first two directions shows what was measured."""

import re
from pathlib import Path

import mindspore as ms
import numpy as np
from mindspore import Tensor, nn

from dimred.checkpoints.layout import WeightLayout
from dimred.config import StageOneConfig
from dimred.pipelines.report import grid_around, loss_in_plane, plane_point, report
from dimred.report.plots import PlanePoints, PlaneView, Surface, plot_plane
from dimred.subspace.basis import SubspaceBasis
from tests.helpers.finished_stage_1 import STAGE_1, settings
from tests.helpers.tiny_run import stage_1_run, stage_2_run
from tests.helpers.tiny_task import TASK


def view_of(surface: Surface) -> PlaneView:
    points = PlanePoints(np.array([[0.0, 0.0], [1.0, 0.0], [1.0, 1.0]]), np.array([1.0, 2.0, 3.0]))
    return PlaneView(surface, surface, 10, True, points, points, points.along)


def test_losses_are_differences_in_a_unit_with_a_plain_name() -> None:
    sides = np.linspace(-1, 1, 5)
    for height, unit in ((2.0, ""), (2e-3, ", in thousandths"), (2e-6, ", in millionths"), (2e-10, ", in billionths")):
        loss = 1.875 + height * (sides**2 + sides[:, None] ** 2) / 2
        loss[0, 0] = np.inf
        surface = Surface(sides, sides, loss)
        axes, colours = plot_plane(surface, view_of(surface)).axes
        label = colours.get_ylabel()
        assert label.startswith("loss above the lowest here, 1.875")
        assert label.partition("1.875")[2] == unit
        levels = np.unique([text.get_text() for text in axes.texts])
        assert len(levels) > 3
        assert all(0 <= float(level) <= 2 for level in levels)


def test_the_loss_is_that_of_the_weights_whatever_the_statistics_are() -> None:
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


class SumAndCount(nn.Cell):
    """The squared errors' sum and number, as a user's own loss may give them."""

    def construct(self, outputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        errors = (outputs - targets) ** 2
        return errors.sum(), Tensor(errors.size, ms.int32)


def test_a_loss_that_gives_sum_and_count_has_the_surface_of_its_mean() -> None:
    ms.set_seed(2)
    rng = np.random.default_rng(2)
    network = nn.Dense(4, 2)
    batch = tuple(Tensor(rng.normal(size=(8, n)).astype(np.float32)) for n in (4, 2))
    directions = rng.normal(size=(2, 10))
    surfaces = [
        loss_in_plane(nn.WithLossCell(network, loss), [batch], np.zeros(10), directions)
        for loss in (SumAndCount(), nn.MSELoss())
    ]
    np.testing.assert_allclose(surfaces[0](0.5, 2.0), surfaces[1](0.5, 2.0), rtol=1e-5)


def test_a_point_has_the_coordinates_that_it_was_made_from() -> None:
    rng = np.random.default_rng(3)
    rows = np.linalg.qr(rng.normal(size=(50, 4)))[0].T
    basis = SubspaceBasis(rows.astype(np.float32))
    mean = rng.normal(size=50)
    along, off = plane_point(basis, mean, mean + 2 * rows[0] - 3 * rows[1] + 4 * rows[2] - 3 * rows[3])
    np.testing.assert_allclose(along, [2, -3], rtol=1e-5)
    np.testing.assert_allclose(off, 5, rtol=1e-5)


def test_the_grid_holds_every_point_also_where_they_lie_on_a_line() -> None:
    points = np.array([[0.0, 1.0], [10.0, 1.0]])
    first, second = grid_around(points, 7)
    assert (len(first), len(second)) == (7, 7)
    assert first[0] < 0
    assert first[-1] > 10
    assert second[0] < 1 < second[-1]


def test_snapshots_that_are_equal_leave_the_plane_out(tmp_path: Path) -> None:
    """Such as those of a training in which every step overflowed."""
    schedule = {"name": "constant", "peak": 1e-46, "warmup_epochs": 0}  # 0 in float32
    stage_1_run(StageOneConfig.model_validate(TASK | STAGE_1 | {"epochs": 3, "schedule": schedule}))(
        tmp_path / "one", False
    )
    stage_2_run(settings(), tmp_path / "one" / "checkpoint_stage_1" / "network-3_4.ckpt")(tmp_path / "two", False)
    page = report(tmp_path / "two", tmp_path / "report", 3, 1).read_text()
    assert re.findall(r'id="figure-([^"]+)"', page) == ["metric", "loss"]
