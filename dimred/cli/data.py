"""``dimred data``: make a data set that needs no download, and check the images of any."""

from collections import Counter
from pathlib import Path
from typing import Annotated

import typer

data = typer.Typer(help="Make a data set that needs no download, and check the images of any.", no_args_is_help=True)


@data.command()
def digits(
    out: Annotated[Path, typer.Argument(metavar="OUT", help="A new folder; gets train/, val/ and test/.")],
    seed: Annotated[int, typer.Option(help="Same seed, same bytes.")] = 1,
    label_noise: Annotated[float, typer.Option(help="Share of the training images put into a random class.")] = 0.0,
) -> None:
    """Write handwritten digits, shifted and noisy: 10 classes of 16 x 16 PNG files.

    Example: dimred data digits ./digits --seed 1
    """
    from dimred.data.digits import write_digits

    counts = write_digits(out, seed, label_noise=label_noise)
    print(f"{out}: " + ", ".join(f"{count} {split} images" for split, count in counts.items()))


@data.command()
def check(
    root: Annotated[Path, typer.Argument(metavar="DATA", help="Folder with images in it, at any depth.", exists=True)],
    workers: Annotated[int, typer.Option(min=1, help="Processes that decode.")] = 8,
) -> None:
    """Decode every image; count grey, CMYK and damaged ones, and list the damaged. Exit status 1 if there are any.

    Example: dimred data check ./imagenet
    """
    from dimred.data.image_tree import check_images

    kinds = check_images(root, workers)
    damaged = [path for path, kind in kinds.items() if kind == "damaged"]
    for path in damaged:
        print(path)
    print(", ".join(f"{number} {kind}" for kind, number in sorted(Counter(kinds.values()).items())))
    raise typer.Exit(1 if damaged else 0)
