"""The pictures show what was measured."""

from pathlib import Path

import numpy as np

from dimred.report.plots import plot_comparison, plot_curve, plot_metric, plot_spectrum, plot_steps, save_figure


def test_an_accuracy_is_drawn_in_percent_and_another_metric_as_it_is() -> None:
    plain, stage_2 = {1: 0.2, 2: 0.5, 3: 0.6}, {3: 0.6, 4: 0.7}
    for metric, label, factor in (("accuracy", "accuracy, %", 100), ("rmse", "rmse", 1)):
        axes = plot_metric(metric, plain, stage_2, None, "as trained").axes[0]
        assert [line.get_label() for line in axes.lines] == ["stage 1, as trained", "stage 2, as trained"]
        assert axes.get_ylabel() == label
        for line, values in zip(axes.lines, (plain, stage_2), strict=True):
            np.testing.assert_allclose(line.get_xydata(), [(epoch, factor * value) for epoch, value in values.items()])
        low, high = axes.get_ylim()
        assert low < factor * 0.5 < factor * 0.7 < high


def test_the_same_figure_gives_the_same_svg(tmp_path: Path) -> None:
    for name in "ab":
        save_figure(plot_spectrum(np.array([0.6, 0.3])), tmp_path, name)
    text = (tmp_path / "a.svg").read_text()
    assert text == (tmp_path / "b.svg").read_text()
    assert text.count("<svg") == 1


def step(number: int, outcome: str, **changes: object) -> dict[str, object]:
    return {
        "step": number, "outcome": outcome, "loss": 1.0, "loss_after": 0.9, "n_trials": 2, "captured_share": 0.02
    } | changes  # fmt: skip


def test_accepted_and_rejected_steps_are_told_apart() -> None:
    steps = [step(1, "accepted"), step(2, "no_decrease", loss_after=1.0), step(3, "accepted", loss_after=0.5)]
    upper, lower = plot_steps(steps).axes
    drawn = {line.get_label(): line.get_ydata().tolist() for line in upper.get_lines()}
    assert drawn["accepted"] == [0.9, 0.5]
    assert drawn["rejected: no trial accepted"] == [1.0]
    assert "skipped: not finite" not in drawn
    assert [bar.get_height() for bar in lower.patches] == [2, 2, 2]


def test_each_method_stands_at_its_accuracy_the_first_above() -> None:
    axes = plot_comparison([("last", 0.8, None), ("stage 2", 0.9, 0.01)]).axes[0]
    assert [label.get_text() for label in axes.get_yticklabels()] == ["stage 2", "last"]
    points = [tuple(container[0].get_xydata()[0]) for container in axes.containers]
    np.testing.assert_allclose(points, [(90, 0), (80, 1)])


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
