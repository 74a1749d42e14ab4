"""The picture: what is drawn is what was measured."""

from pathlib import Path

from PIL import Image

from dimred.report.plots import plot_accuracy

ORANGE, BLUE = (0xD5, 0x5E, 0x00), (0x00, 0x72, 0xB2)


def rows_of(path: Path, colour: tuple[int, int, int], right_of: int) -> list[int]:
    picture = Image.open(path).convert("RGB")
    width, height = picture.size
    return [y for y in range(height) if any(picture.getpixel((x, y)) == colour for x in range(right_of, width))]


def test_stage_2_stands_above_the_average_when_it_is_better(tmp_path: Path) -> None:
    plain = {epoch: 0.5 + epoch / 300 for epoch in range(1, 91)}
    for name, stage_2 in (("above", 0.9), ("below", 0.7)):
        path = tmp_path / f"{name}.png"
        plot_accuracy(path, plain, {70: stage_2, 72: stage_2}, average=0.8, branch_epoch=70, snapshots_from=31)
        searched, average = rows_of(path, ORANGE, 930), rows_of(path, BLUE, 930)
        legend = 400  # pixels from the top; the legend is below
        highest_orange, highest_blue = min(searched), min(average)
        assert highest_blue < legend
        assert (highest_orange < highest_blue) == (name == "above")
