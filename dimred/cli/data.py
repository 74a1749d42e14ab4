"""``dimred data``: make the data sets that need no download."""

from pathlib import Path
from typing import Annotated

import typer

data = typer.Typer(help="Make data sets that need no download.", no_args_is_help=True)


@data.callback()
def _data() -> None:
    """A callback keeps ``digits`` a command of its own while it is the only one."""


@data.command()
def digits(
    out: Annotated[Path, typer.Argument(metavar="OUT", help="A new folder; gets train/, val/ and test/.")],
    seed: Annotated[int, typer.Option(help="Same seed, same bytes.")] = 1,
) -> None:
    """Handwritten digits, shifted and noisy, as an ImageFolder tree of PNG files.

    Example: dimred data digits ./digits --seed 1
    """
    from dimred.data.digits import write_digits

    counts = write_digits(out, seed)
    print(f"{out}: " + ", ".join(f"{count} {split} images" for split, count in counts.items()))
