"""The pictures of a search show its records: as points if they are few, else as a band; and their running mean."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dimred.report.plots import save_figure
from dimred.report.search_plots import plot_captured, plot_coordinates, plot_gains, plot_movement
from dimred.report.search_steps import FAILURES, SearchSteps, collect_steps
from dimred.report.trend import MOST_POINTS, band, mean_width, places_to_draw, running_mean, trend_in_words


def step(number: int, outcome: str = "accepted", **changes: object) -> dict[str, Any]:
    return {
        "step": number,
        "outcome": outcome,
        "loss": 1.0,
        "loss_after": 0.9,
        "n_trials": 2,
        "captured_fraction": 0.02,
        "step_size": 0.55,
        "moved_inside": 0.1,
        "moved_outside": 0.001,
        "subspace_step": [0.0, 0.0],
    } | changes


def collected(*records: dict[str, Any]) -> SearchSteps:
    return collect_steps(records, len(records))


def many_steps(n: int, k: int) -> tuple[SearchSteps, np.ndarray]:
    """Make n steps, and the coordinates of the points that they lead to, (n + 1, k)."""
    rng = np.random.default_rng(n)
    moves = rng.normal(size=(n, k))
    steps = [
        step(
            number,
            loss=1 + rng.normal(),
            loss_after=1 + rng.normal(),
            n_trials=int(rng.integers(1, 11)),
            captured_fraction=rng.random(),
            step_size=rng.random(),
            moved_inside=float(np.linalg.norm(move)),
            moved_outside=rng.random(),
            subspace_step=move.tolist(),
        )
        for number, move in enumerate(moves, start=1)
    ]
    return collected(*steps), np.concatenate([np.zeros((1, k)), moves.cumsum(0)])


def test_gain_and_t_are_drawn_for_each_step_and_the_failures_are_told_apart() -> None:
    nothing = {"loss_after": 1.0, "step_size": 0.0, "moved_inside": 0.0}
    steps = [
        step(1),
        step(2, "no_decrease", **nothing),
        step(3, loss_after=0.5, step_size=1.0),
        step(4, "non_finite_gradient", **nothing | {"loss": None, "loss_after": None, "captured_fraction": None}),
    ]
    upper, middle, lower = plot_gains(collected(*steps)).axes
    np.testing.assert_allclose(upper.lines[0].get_ydata(), [0.1, 0, 0.5, np.nan])
    np.testing.assert_allclose(upper.lines[1].get_ydata(), [0.2, 0.2, 0.2, 0.25])  # the mean of those that exist
    assert middle.lines[0].get_ydata().tolist() == [0.55, 0, 1, 0]
    assert lower.lines[0].get_ydata().tolist() == [2, 2, 2, 2]
    failures = {line.get_label(): line.get_xydata().tolist() for line in middle.lines[2:]}
    assert failures == {FAILURES["no_decrease"]: [[2, 0]], FAILURES["non_finite_gradient"]: [[4, 0]]}
    assert plot_gains(collected(step(1))).axes[1].get_legend_handles_labels() == ([], [])


def test_the_distances_are_those_of_the_steps_and_their_sums() -> None:
    steps = collected(
        step(1, moved_inside=3.0, subspace_step=[3.0, 0.0]),
        step(2, moved_inside=4.0, subspace_step=[0.0, 4.0]),
        step(3, moved_inside=0.0),
    )
    upper, lower = plot_movement(steps).axes
    assert upper.get_yscale() == lower.get_yscale() == "log"
    np.testing.assert_allclose(upper.lines[0].get_ydata(), [3, 4, np.nan])
    drawn = {line.get_label(): line.get_ydata() for line in lower.lines}
    np.testing.assert_allclose(drawn["distance from the start, inside"], [3, 5, 5])
    np.testing.assert_allclose(drawn["path inside the subspace"], [3, 7, 7])
    np.testing.assert_allclose(drawn["path outside the subspace"], [0.001, 0.002, 0.003])
    still = collected(step(1, "no_decrease", moved_inside=0.0, moved_outside=0.0))
    assert [axes.get_yscale() for axes in plot_movement(still).axes] == ["linear", "linear"]


@pytest.mark.parametrize("k", [1, 3, 32])
def test_every_coordinate_is_drawn_and_the_farthest_are_named(k: int) -> None:
    steps, coordinates = many_steps(20, k)
    lines = plot_coordinates(steps).axes[0].lines[:-1]  # the last one is zero
    assert len(lines) == k
    named = {line.get_label(): line for line in lines if line.get_label().startswith("direction")}
    farthest = np.argsort(-np.abs(coordinates[-1]))[:4]
    assert list(named) == [f"direction {direction + 1}" for direction in farthest]
    for direction, line in zip(farthest, named.values(), strict=True):
        np.testing.assert_array_equal(line.get_ydata(), coordinates[:, direction])


def test_the_share_inside_is_a_percentage_and_steps_without_one_leave_a_gap() -> None:
    steps = collected(*(step(number, captured_fraction=each) for number, each in enumerate((0.25, None, 0.75), 1)))
    points, mean = plot_captured(steps).axes[0].lines
    np.testing.assert_allclose(points.get_ydata(), [25, np.nan, 75])
    np.testing.assert_allclose(mean.get_ydata(), [50, 50, 50])


@pytest.mark.parametrize("n", [1, 2, 5, 60, 592])
def test_the_running_mean_is_that_of_the_neighbours_that_are_finite(n: int) -> None:
    values = np.random.default_rng(n).normal(size=n)
    values[::4] = np.nan
    width = mean_width(n)
    assert width % 2 == 1
    expected = []
    for place in range(n):
        near = [values[i] for i in range(n) if abs(i - place) <= width // 2 and np.isfinite(values[i])]
        expected.append(np.mean(near) if near else np.nan)
    np.testing.assert_allclose(running_mean(values, width, range(n)), expected, rtol=1e-10, atol=1e-12)
    places = [0, n // 2, n - 1]
    np.testing.assert_allclose(running_mean(values, width, places), np.array(expected)[places], rtol=1e-10, atol=1e-12)


def test_one_huge_value_hides_none_of_those_behind_its_window() -> None:
    losses = np.full(300, 2.0)
    losses[10] = 1e17
    mean = running_mean(losses, width := mean_width(300), range(300))
    np.testing.assert_array_equal(mean[10 + width // 2 + 1 :], 2.0)
    assert mean[10] == pytest.approx(1e17 / width)


def test_the_band_holds_the_middle_of_each_window_and_leaves_out_what_is_not_finite() -> None:
    numbers, values = np.arange(1.0, 1501), np.tile(np.arange(10.0), 150)
    values[0], values[10:20] = np.nan, np.inf
    middle, low, high = band(numbers, values)
    assert len(middle) == 149  # of 150 windows of ten steps, one has nothing finite
    np.testing.assert_allclose([middle[0], low[0], high[0]], [6, 1.8, 8.2])
    np.testing.assert_allclose([middle[1], low[1], high[1]], [25.5, 0.9, 8.1])
    assert band(numbers, np.full(1500, np.nan))[0].size == 0


def test_thinning_keeps_both_ends() -> None:
    assert places_to_draw(5).tolist() == [0, 1, 2, 3, 4]
    assert places_to_draw(6001).tolist()[::299] == [0, 6000]
    assert len(places_to_draw(6001)) == MOST_POINTS


@pytest.mark.slow
def test_a_long_search_has_a_band_and_pictures_of_bounded_size(tmp_path: Path) -> None:
    assert trend_in_words(60) == "Points: each step; line: mean of 5 steps."
    assert trend_in_words(6000) == "Band: the middle 80 % of neighbouring steps; line: mean of 401 steps."
    assert not any(axes.collections for axes in plot_gains(many_steps(MOST_POINTS, 32)[0]).axes)
    steps, coordinates = many_steps(6000, 32)
    np.testing.assert_array_equal(steps.coordinates, coordinates[steps.points])
    figures = [plot_gains(steps), plot_movement(steps), plot_coordinates(steps), plot_captured(steps)]
    assert all(axes.collections for axes in figures[0].axes)
    assert sum(len(save_figure(figure, tmp_path, "picture")) for figure in figures) < 1_000_000
