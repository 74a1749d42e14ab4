"""The plane through the start of stage 2, its last weights and an average shows what was measured."""

import re
from pathlib import Path

import mindspore as ms
import numpy as np
import pytest
from mindspore import Tensor, nn

from dimred.checkpoints.layout import WeightLayout
from dimred.config import StageOneConfig
from dimred.pipelines.report import grid_around, loss_in_plane, plane_directions, plane_point, report
from dimred.report.plots import PlanePoints, PlaneView, plot_plane
from tests.helpers.finished_stage_1 import STAGE_1, config_with
from tests.helpers.tiny_run import stage_1_run, stage_2_run
from tests.helpers.tiny_task import TASK


def test_the_picture_says_which_points_lie_off_the_plane_and_how_far() -> None:
    sides = np.linspace(-1, 5, 5)
    loss = 1.875 + sides**2 + sides[:, None] ** 2
    loss[0, 0] = np.inf
    corners = np.array([[0.0, 0.0], [2.0, 0.0], [1.0, 3.0]])
    snapshots = PlanePoints(np.array([[3.0, 4.0], [0.0, 4.0]]), np.array([7.25, 0.5]))
    for epochs, n_hollow, said in (
        (PlanePoints(np.array([[1.0, 0.5]]), np.array([0.25])), 2, ["7.2 off", "0.25 off"]),
        (PlanePoints(np.empty((0, 2)), np.empty(0)), 1, ["7.2 off"]),
    ):
        view = PlaneView(sides, sides, loss, 10, True, "mean", corners, snapshots, epochs)
        figure = plot_plane(view)
        axes, colours = figure.axes
        assert colours.get_ylabel() == "loss above the lowest here, 2.375"
        hollow = [line for line in axes.lines if line.get_marker() != "None" and line.get_markerfacecolor() == "none"]
        assert len(hollow) == n_hollow
        np.testing.assert_array_equal(hollow[0].get_xydata(), snapshots.along)
        assert hollow[0].get_label() == "snapshots, 0.5 to 7.2 off the plane"
        assert [text.get_text() for text in axes.texts if "off" in text.get_text()] == said
        filled = {line.get_label(): line.get_xydata()[0] for line in axes.lines[-3:]}
        names = ["stage 2's start", "stage 2's last weights", "the mean of the snapshots"]
        assert list(filled) == names
        np.testing.assert_array_equal(list(filled.values()), corners)


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
    value = at(0.5, -0.25)
    network[1].moving_mean.set_data(Tensor(np.full(3, 1e3, np.float32)))
    assert at(0.5, -0.25) == value

    weights = layout.unflatten((origin + 0.5 * directions[0] - 0.25 * directions[1]).astype(np.float32))
    w1, b1, gamma, beta, w2, b2 = (weights[name] for name in layout.names)
    expected = []
    for x, y in batches:
        hidden = x.asnumpy() @ w1.T + b1
        hidden = gamma * (hidden - hidden.mean(0)) / np.sqrt(hidden.var(0) + 1e-5) + beta
        expected.append(np.mean((hidden @ w2.T + b2 - y.asnumpy()) ** 2))
    np.testing.assert_allclose(value, np.mean(expected), rtol=1e-4)


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


def test_the_plane_goes_through_its_three_points_and_a_line_has_none() -> None:
    rng = np.random.default_rng(3)
    three = rng.normal(size=(3, 50))
    directions = plane_directions(*three)
    assert directions is not None
    np.testing.assert_allclose(directions @ directions.T, np.eye(2), atol=1e-12)
    for point, other in zip(three, rng.normal(size=(3, 2)), strict=True):
        along, off = plane_point(three[0], directions, point)
        np.testing.assert_allclose(three[0] + along @ directions, point)
        assert off < 1e-12
        across = rng.normal(size=50)
        across -= across @ directions.T @ directions
        along, off = plane_point(three[0], directions, three[0] + other @ directions + across)
        np.testing.assert_allclose(along, other)
        np.testing.assert_allclose(off, np.linalg.norm(across))
    for line in ([three[0], three[1], three[0] - 3 * (three[1] - three[0])], [three[0], three[0], three[1]]):
        assert plane_directions(*line) is None
    assert plane_directions(three[0], three[1], three[0]) is None


def test_the_grid_holds_every_point_also_where_they_lie_on_a_line() -> None:
    points = np.array([[0.0, 1.0], [10.0, 1.0]])
    first, second = grid_around(points, 7)
    assert (len(first), len(second)) == (7, 7)
    assert first[0] < 0
    assert first[-1] > 10
    assert second[0] < 1 < second[-1]


@pytest.mark.slow
def test_snapshots_that_are_equal_leave_the_plane_out(tmp_path: Path) -> None:
    """Such as those of a training in which every step overflowed; their mean is the start of stage 2."""
    schedule = {"name": "constant", "peak": 1e-46, "warmup_epochs": 0}  # 0 in float32
    stage_1_run(StageOneConfig.model_validate(TASK | STAGE_1 | {"epochs": 3, "schedule": schedule}))(
        tmp_path / "one", False
    )
    stage_2_run(config_with(), tmp_path / "one" / "checkpoint_stage_1" / "network-3_4.ckpt")(tmp_path / "two", False)
    page = report(tmp_path / "two", tmp_path / "report", 3, 1).read_text()
    assert re.findall(r'id="figure-([^"]+)"', page) == ["metric", "loss", "classes"]
