"""``dimred data`` makes a data set that needs no download, or checks any data set's images."""

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
    root: Annotated[Path, typer.Argument(metavar="DATA", help="Folder with the data.", exists=True)],
    dataset: Annotated[
        str, typer.Option(metavar="NAME", help="What DATA is: image_folder, mnist, cifar10 or cifar100.")
    ] = "image_folder",
    workers: Annotated[int, typer.Option(min=1, help="Processes that decode images of class folders.")] = 8,
) -> None:
    """Read all data to find what is damaged, and count the samples. Exit status 1 if an image is damaged.

    In class folders, every image at any depth is decoded. Grey, CMYK and damaged images are counted, and the damaged
    ones are listed; so is a named pipe or a device that is named like an image. Hidden files and folders are left out,
    as in training, and images in formats that training does not read are counted separately. For mnist and cifar, each
    file is read to its last byte.

    Example: dimred data check ./imagenet

    Example: dimred data check ./mnist --dataset mnist
    """
    from dimred.data.checks import CHECKS
    from dimred.errors import check_choice

    check_choice("--dataset", dataset, CHECKS)
    checked = CHECKS[dataset](root, workers)
    print("\n".join(checked.lines))
    raise typer.Exit(1 if checked.is_damaged else 0)
