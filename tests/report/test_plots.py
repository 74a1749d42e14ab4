"""The pictures: what is drawn is what was measured."""

from pathlib import Path

import numpy as np
from PIL import Image

from dimred.report.plots import (
    grid_around,
    plane_point,
    plot_accuracy,
    plot_captured,
    plot_comparison,
    plot_curve,
    plot_spectrum,
    plot_steps,
    save_figure,
)
from dimred.subspace.basis import SubspaceBasis

ORANGE, BLUE = (0xD5, 0x5E, 0x00), (0x00, 0x72, 0xB2)


def rows_of(path: Path, colour: tuple[int, int, int], right_of: int, above: int) -> list[int]:
    picture = Image.open(path).convert("RGB")
    return [
        y for y in range(above) if any(picture.getpixel((x, y)) == colour for x in range(right_of, picture.size[0]))
    ]


def test_stage_2_stands_above_the_average_when_it_is_better(tmp_path: Path) -> None:
    plain = {epoch: 0.5 + epoch / 300 for epoch in range(1, 91)}
    for name, stage_2 in (("above", 0.9), ("below", 0.7)):
        save_figure(plot_accuracy(plain, {70: stage_2, 72: stage_2}, (31, 70), average=0.8), tmp_path, name)
        searched, average = (rows_of(tmp_path / f"{name}.png", colour, 930, 500) for colour in (ORANGE, BLUE))
        assert (min(searched) < min(average)) == (name == "above")


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


def test_a_skipped_step_without_numbers_is_drawn_around() -> None:
    steps = [step(1, "accepted"), step(2, "non_finite_gradient", loss=None, loss_after=None, captured_share=None)]
    line, mean = plot_captured(steps).axes[0].get_lines()
    assert np.isnan(line.get_ydata()[1])
    assert mean.get_ydata()[0] == 2.0
    assert plot_steps(steps).axes


def test_each_method_stands_at_its_accuracy_the_first_above() -> None:
    axes = plot_comparison([("last", 0.8, None), ("P-BFGS", 0.9, 0.01)]).axes[0]
    assert [label.get_text() for label in axes.get_yticklabels()] == ["P-BFGS", "last"]
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


def test_the_epochs_that_gave_snapshots_are_shaded_and_none_where_they_are_not_known() -> None:
    plain = dict.fromkeys(range(1, 51), 0.5)
    (shade,) = plot_accuracy(plain, {}, (21, 50)).axes[0].patches
    assert (shade.get_x(), shade.get_x() + shade.get_width()) == (21, 50)
    assert not plot_accuracy(plain, {}, None).axes[0].patches


def test_a_point_is_taken_apart_into_what_it_was_put_together_from() -> None:
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
