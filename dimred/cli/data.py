"""``dimred data``: make data sets that need no download, and check the images of any."""

from collections import Counter
from pathlib import Path
from typing import Annotated

import typer

data = typer.Typer(help="Make data sets that need no download, and check the images of any.", no_args_is_help=True)

Out = Annotated[Path, typer.Argument(metavar="OUT", help="A new folder; gets train/, val/ and test/.")]
Seed = Annotated[int, typer.Option(help="Same seed, same bytes.")]


@data.command()
def digits(
    out: Out,
    seed: Seed = 1,
    label_noise: Annotated[float, typer.Option(help="Share of the training images put into a random class.")] = 0.0,
) -> None:
    """Write handwritten digits, shifted and noisy: 10 classes of 16 x 16 PNG files.

    Example: dimred data digits ./digits --seed 1
    """
    from dimred.data.digits import write_digits

    _report(out, write_digits(out, seed, label_noise=label_noise))


@data.command()
def photos(out: Out, seed: Seed = 1) -> None:
    """Write patches of two photographs, blurred, sharpened, ...: 8 classes by what was done, as 16 x 16 PNG files.

    Example: dimred data photos ./photos --seed 1
    """
    from dimred.data.photos import write_photos

    _report(out, write_photos(out, seed))


def _report(out: Path, counts: dict[str, int]) -> None:
    print(f"{out}: " + ", ".join(f"{count} {split} images" for split, count in counts.items()))


@data.command()
def check(
    root: Annotated[Path, typer.Argument(metavar="DATA", help="Folder with images in it, at any depth.", exists=True)],
    workers: Annotated[int, typer.Option(min=1, help="Processes that decode.")] = 8,
) -> None:
    """Decode every image; count grey, CMYK and damaged ones, name the damaged. Exit status 1 if there are any.

    Example: dimred data check ./imagenet
    """
    from dimred.data.image_tree import check_images

    kinds = check_images(root, workers)
    damaged = [path for path, kind in kinds.items() if kind == "damaged"]
    for path in damaged:
        print(path)
    print(", ".join(f"{number} {kind}" for kind, number in sorted(Counter(kinds.values()).items())))
    raise typer.Exit(1 if damaged else 0)
