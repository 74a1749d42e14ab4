"""The pictures show what was measured."""

from dataclasses import replace
from pathlib import Path

import numpy as np

from dimred.report.plots import (
    epochs_beyond_axis,
    plot_curve,
    plot_losses,
    plot_metric,
    plot_spectrum,
    save_figure,
)
from dimred.run_files.metric import ACCURACY, Metric


def test_an_accuracy_is_drawn_in_percent_and_another_metric_as_it_is() -> None:
    plain, stage_2 = {1: 0.2, 2: 0.5, 3: 0.6}, {3: 0.6, 4: 0.7}
    for metric, label, factor in ((ACCURACY, "accuracy, %", 100), (Metric("rmse"), "rmse", 1)):
        axes = plot_metric(metric, plain, stage_2, None, "as trained").axes[0]
        assert [line.get_label() for line in axes.lines] == ["stage 1, as trained", "stage 2, as trained"]
        assert axes.get_ylabel() == label
        for line, values in zip(axes.lines, (plain, stage_2), strict=True):
            np.testing.assert_allclose(line.get_xydata(), [(epoch, factor * value) for epoch, value in values.items()])
        low, high = axes.get_ylim()
        assert low < factor * 0.5 < factor * 0.7 < high


def test_the_axis_leaves_out_single_collapses_but_nothing_where_better_is_not_known() -> None:
    plain = dict.fromkeys(range(1, 38), 0.5) | {38: 0.2, 39: 0.7, 40: 0.7}
    for metric, held in ((ACCURACY, [0.5, 0.7]), (replace(ACCURACY, higher_is_better=None), [0.2, 0.5, 0.7])):
        low, high = plot_metric(metric, plain, {}, None, "as trained").axes[0].get_ylim()
        assert [value for value in (0.2, 0.5, 0.7) if low < 100 * value < high] == held
        assert epochs_beyond_axis(metric, plain, {}, None) == ([] if 0.2 in held else [38])


def test_the_band_of_the_snapshots_has_the_whole_epochs_in_which_they_were_taken() -> None:
    """An epoch's point stands at its end, and one epoch has a width."""
    plain = {1: 0.1, 2: 0.5, 3: 0.6}
    for epochs in ((2, 3), (3, 3)):
        axes = plot_metric(ACCURACY, plain, {}, epochs, "").axes[0]
        [band] = axes.patches
        assert (band.get_x(), band.get_x() + band.get_width()) == (epochs[0] - 1, epochs[1])
        assert [line.get_label() for line in axes.lines] == ["stage 1"]
    assert epochs_beyond_axis(ACCURACY, plain, {}, (2, 3)) == [1]


def test_the_same_figure_gives_the_same_svg(tmp_path: Path) -> None:
    for name in "ab":
        save_figure(plot_spectrum(np.array([0.6, 0.3])), tmp_path, name)
    text = (tmp_path / "a.svg").read_text()
    assert text == (tmp_path / "b.svg").read_text()
    assert text.count("<svg") == 1


def test_the_loss_of_both_stages_is_one_picture_and_a_search_has_a_point_for_each_step() -> None:
    stage_1 = (np.arange(1, 5), np.array([2.0, 1.0, 0.8, 0.7]))
    for epochs, label in ((np.array([5, 6]), "last step of each epoch"), (np.array([4.5, 5]), "mean of 5 steps")):
        axes = plot_losses(stage_1, (epochs, np.array([0.6, 0.5]))).axes[0]
        first, *_, last = axes.lines
        assert first.get_label() == "stage 1, last step of each epoch"
        np.testing.assert_array_equal(first.get_xydata().T, stage_1)
        assert last.get_label() == f"stage 2, {label}"
        np.testing.assert_array_equal(axes.lines[1].get_xydata().T, [epochs, [0.6, 0.5]])
    alone = plot_losses((np.empty(0), np.empty(0)), (np.array([4.5, 5]), np.array([0.6, 0.5]))).axes[0]
    assert alone.get_ylim()[0] < 0.5 < 0.6 < alone.get_ylim()[1]


def test_a_curve_has_a_line_for_each_method_and_the_spread_as_a_band() -> None:
    def row(passes: float, mean: float, spread: float | None) -> dict[str, object]:
        return {"passes": passes, "test_reestimated": {"mean": mean, "spread": spread}}

    axes = plot_curve({"a": [row(20, 0.8, 0.01), row(45, 0.9, 0.02)], "b": [row(20, 0.7, None)]}).axes[0]
    first, second = axes.lines
    np.testing.assert_allclose(first.get_xydata(), [(20, 80), (45, 90)])
    np.testing.assert_allclose(second.get_xydata(), [(20, 70)])
    assert first.get_color() != second.get_color()
    band = axes.collections[0].get_paths()[0].get_extents()
    np.testing.assert_allclose([band.ymin, band.ymax], [79, 92])


def test_a_picture_has_dark_colours_for_readers_who_prefer_them(tmp_path: Path) -> None:
    text = save_figure(plot_spectrum(np.array([0.6, 0.3])), tmp_path, "spectrum")
    dark = text[text.index("@media (prefers-color-scheme: dark)") : text.index("</style>")]
    assert '[style*="fill: #ffffff"]{fill:#16191d !important}' in dark  # the paper
    assert '[style*="stroke: #000000"]{stroke:#e8e8e8 !important}' in dark  # frames and lines
    assert "svg{fill:#e8e8e8}" in dark  # letters
    drawn = text[text.index("</style>") :]
    assert "fill: #ffffff" in drawn
    assert "stroke: #000000" in drawn
