"""The folder of one page and its pictures; a run, a comparison and a merge have one each."""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from matplotlib.figure import Figure

from dimred.errors import ConfigError
from dimred.io.atomic import atomic_write, remove_leftovers
from dimred.io.run_names import LOCK
from dimred.report.html import document, figure
from dimred.report.plots import save_figure

COMPARISON_PICTURES = ("comparison", "curve")  # of a comparison's page, and of a run's that shows one


def make_page_folder(out: Path, name: str, pictures: Sequence[str]) -> None:
    """Make the folder of a page; it may hold an earlier one.

    Args:
        out: the folder.
        name: of the page.
        pictures: names of those that an earlier page may have left.

    Raises:
        ConfigError: it holds something else, or can't be made.
    """
    own = {name, LOCK, *(f"{picture}.{suffix}" for picture in pictures for suffix in ("png", "svg"))}
    try:
        out.mkdir(parents=True, exist_ok=True)
        remove_leftovers(out)
        others = sorted({path.name for path in out.iterdir()} - own)
    except OSError as error:
        why = error.strerror
        raise ConfigError(f"--out is {str(out)!r}, which can't be made ({why}); name another folder") from error
    if others:
        raise ConfigError(f"--out is {str(out)!r}, where {others[0]!r} is no part of a report; name another folder")


class Picture(NamedTuple):
    """A picture of a page.

    Attributes:
        name: of its files, and on the page.
        drawn: the figure.
        says: description for readers who can't see it.
        caption: words below it.
    """

    name: str
    drawn: Figure
    says: str
    caption: str


class Page:
    """A page in the making: pictures are written as sections are added, the page at the end.

    Args:
        out: folder.
        name: of the page.
        pictures: names of those that an earlier page in the folder may have left.
    """

    def __init__(self, out: Path, name: str, pictures: Sequence[str]):
        self._out, self._name, self._pictures = out, name, pictures
        self._sections: list[tuple[str, str]] = []
        self._shown: set[str] = set()

    def add(self, heading: str, pictures: Sequence[Picture], before: str = "", after: str = "") -> None:
        """Add a section of pictures, with HTML before and after them."""
        shown = ""
        for name, drawn, says, caption in pictures:
            svg = save_figure(drawn, self._out, name)
            shown += figure(name, svg, says, f"{caption} ({name}.png, {name}.svg)")
            self._shown.add(name)
        grid = f'<div class="figures">{shown}</div>' if pictures else ""
        self._sections.append((heading, f"{before}{grid}{after}"))

    def write(self, title: str, summary: str) -> Path:
        """Write the page, remove pictures of an earlier one that it does not show, and return its path."""
        atomic_write(self._out / self._name, document(title, summary, self._sections))
        for name in set(self._pictures) - self._shown:
            for suffix in ("png", "svg"):
                (self._out / f"{name}.{suffix}").unlink(missing_ok=True)
        return self._out / self._name
