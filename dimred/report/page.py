"""A folder with one page and its pictures: what the pages of a run, a comparison and a merge have in common."""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from matplotlib.figure import Figure

from dimred.errors import ConfigError
from dimred.files.atomic import atomic_write, remove_leftovers
from dimred.files.run_names import LOCK
from dimred.report.html import document, figure
from dimred.report.plots import save_figure


def make_page_folder(out: Path, name: str, pictures: Sequence[str]) -> None:
    """Make the folder of a page ``name``; an earlier one, with some of these pictures, may be in it.

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
    """A picture of a page."""

    name: str
    drawn: Figure
    says: str  # for readers who can't see it
    caption: str


class Page:
    """Writes the pictures of each section that is added, and in the end the page ``name`` that shows them.

    ``pictures`` are the names of those that an earlier page in the folder may have left.
    """

    def __init__(self, out: Path, name: str, pictures: Sequence[str]):
        self._out, self._name, self._pictures = out, name, pictures
        self._sections: list[tuple[str, str]] = []
        self._shown: set[str] = set()

    def add(self, heading: str, pictures: Sequence[Picture], before: str = "", after: str = "") -> None:
        """A section of pictures, with HTML before and after them."""
        shown = ""
        for name, drawn, says, caption in pictures:
            svg = save_figure(drawn, self._out, name)
            shown += figure(name, svg, says, f"{caption} ({name}.png, {name}.svg)")
            self._shown.add(name)
        grid = f'<div class="figures">{shown}</div>' if pictures else ""
        self._sections.append((heading, f"{before}{grid}{after}"))

    def write(self, title: str, summary: str) -> Path:
        """Write the page; remove the pictures of an earlier report that it does not show."""
        atomic_write(self._out / self._name, document(title, summary, self._sections))
        for name in set(self._pictures) - self._shown:
            for suffix in ("png", "svg"):
                (self._out / f"{name}.{suffix}").unlink(missing_ok=True)
        return self._out / self._name
