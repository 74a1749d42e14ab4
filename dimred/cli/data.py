"""``dimred data`` makes a data set that needs no download, or checks the images of any data set."""

from collections import Counter
from pathlib import Path
from typing import Annotated

import typer

data = typer.Typer(help="Make a data set that needs no download, or check any data set.", no_args_is_help=True)


@data.command()
def digits(
    out: Annotated[Path, typer.Argument(metavar="OUT", help="A new folder for train/, val/ and test/.")],
    seed: Annotated[int, typer.Option(min=0, help="The same seed gives the same bytes.")] = 1,
    label_noise: Annotated[
        float, typer.Option(min=0, max=1, help="Fraction of the training images put into a random class.")
    ] = 0.0,
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
    """Decode every image; count grey, CMYK and damaged ones, and list the damaged. Exit status 1 if any is damaged.

    A named pipe or a device with the name of an image is listed too.

    Hidden files and folders are left out, as in training. Images in formats that training does not read are counted
    separately.

    Example: dimred data check ./imagenet
    """
    from dimred.data.image_checks import UNUSABLE, check_images
    from dimred.data.image_tree import IMAGE_SUFFIXES, count_in_words

    kinds, not_read = check_images(root, workers)
    bad_paths = [path for path, kind in kinds.items() if kind in UNUSABLE]
    for path in bad_paths:
        print(path)
    print(", ".join(f"{number} {kind}" for kind, number in sorted(Counter(kinds.values()).items())))
    if not_read:
        print(f"passed over, because training reads only {', '.join(IMAGE_SUFFIXES)}: {count_in_words(not_read)}")
    raise typer.Exit(1 if bad_paths else 0)
