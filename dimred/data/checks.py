"""The checks for ``dimred data check``, one for each kind of data that has files; they need no MindSpore."""

from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import NamedTuple

from dimred.data.image_checks import UNUSABLE, check_images
from dimred.data.image_tree import IMAGE_SUFFIXES, count_in_words
from dimred.data.published_files import PARTS, PUBLISHED, PublishedFiles


class Checked(NamedTuple):
    """What a check has found."""

    lines: list[str]  # to print
    is_damaged: bool


def check_class_folders(root: Path, workers: int) -> Checked:
    """Decode every image below a folder, and list the damaged ones; see ``check_images``."""
    kinds, not_read = check_images(root, workers)
    damaged = [str(path) for path, kind in kinds.items() if kind in UNUSABLE]
    lines = [*damaged, ", ".join(f"{number} {kind}" for kind, number in sorted(Counter(kinds.values()).items()))]
    if not_read:
        lines.append(
            f"passed over, because training reads only {', '.join(IMAGE_SUFFIXES)}: {count_in_words(not_read)}"
        )
    return Checked(lines, bool(damaged))


def check_published(files: PublishedFiles, root: Path, workers: int) -> Checked:
    """Read all published files.

    Raises:
        DataError: a file is missing or damaged; see ``PublishedFiles.read``.
    """
    files.check(root)
    lines = []
    for part in PARTS:
        samples = files.read(root, part)
        n, height, width, _ = samples.images.shape
        n_classes = len(set(samples.labels.tolist()))
        lines.append(f"{part}: {n:,} images of {width} x {height} pixels in {n_classes} classes")
    return Checked(lines, is_damaged=False)


CHECKS: dict[str, Callable[[Path, int], Checked]] = {
    "image_folder": check_class_folders,
    **{name: partial(check_published, files) for name, files in PUBLISHED.items()},
}
"""The checks by the name of the kind of data."""
