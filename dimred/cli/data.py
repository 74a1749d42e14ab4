"""``dimred data``: make the data sets that need no download."""

from pathlib import Path
from typing import Annotated

import typer

data = typer.Typer(help="Make data sets that need no download.", no_args_is_help=True)


@data.command()
def digits(
    out: Annotated[Path, typer.Argument(metavar="OUT", help="A new folder; gets train/, val/ and test/.")],
    seed: Annotated[int, typer.Option(help="Same seed, same bytes.")] = 1,
    label_noise: Annotated[float, typer.Option(help="Share of the training images put into a random class.")] = 0.0,
) -> None:
    """Handwritten digits, shifted and noisy, 10 classes of 16 x 16 PNG files.

    Example: dimred data digits ./digits --seed 1
    """
    from dimred.data.digits import write_digits

    _report(out, write_digits(out, seed, label_noise=label_noise))


@data.command()
def photos(
    out: Annotated[Path, typer.Argument(metavar="OUT", help="A new folder; gets train/, val/ and test/.")],
    seed: Annotated[int, typer.Option(help="Same seed, same bytes.")] = 1,
) -> None:
    """Patches of two photographs, turned and noisy, 8 classes of 16 x 16 PNG files.

    Example: dimred data photos ./photos --seed 1
    """
    from dimred.data.photos import write_photos

    _report(out, write_photos(out, seed))


def _report(out: Path, counts: dict[str, int]) -> None:
    print(f"{out}: " + ", ".join(f"{count} {split} images" for split, count in counts.items()))
