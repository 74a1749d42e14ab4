"""An HTML page about a run or a comparison: one file with text, tables and SVG pictures; no scripts, no network."""

import re
from collections.abc import Iterable, Sequence
from html import escape
from importlib.resources import files
from pathlib import Path
from string import Template
from typing import NamedTuple

from matplotlib.figure import Figure

from dimred.io.atomic import atomic_write
from dimred.report.plots import save_figure

_TEMPLATE = ("page.html", "style.css")


class Picture(NamedTuple):
    """A picture on a page, and its texts.

    Attributes:
        name: its files' name, without an ending.
        figure: the picture itself.
        description: text for readers who can't see it.
        caption: text below it.
    """

    name: str
    figure: Figure
    description: str
    caption: str


class Page:
    """A page under construction: ``add`` writes the pictures, and ``write`` the page.

    Args:
        out: folder for the page and its pictures.
        name: the page's file name.
    """

    def __init__(self, out: Path, name: str):
        self._out = out
        self._name = name
        self._sections: list[tuple[str, str]] = []

    def add(self, heading: str, pictures: Sequence[Picture], before: str = "", after: str = "") -> None:
        """Add a section to the page, and write its pictures' files.

        Args:
            heading: plain text.
            pictures: the section's pictures, in order.
            before, after: HTML above and below the pictures.

        Raises:
            OSError: a file can't be written.
        """
        html = ""
        for picture in pictures:
            name = picture.name
            svg = save_figure(picture.figure, self._out, picture.name)
            html += figure(name, svg, picture.description, f"{picture.caption} ({name}.png, {name}.svg)")
        grid = f'<div class="figures">{html}</div>' if pictures else ""
        self._sections.append((heading, f"{before}{grid}{after}"))

    def write(self, title: str, summary: str) -> Path:
        """Write the page with links to its sections, and return its path.

        Args:
            title: plain text.
            summary: HTML below the title.

        Raises:
            OSError: the file can't be written.
        """
        links = []
        parts = []
        for heading, content in self._sections:
            anchor = re.sub(r"[^a-z0-9]+", "-", heading.lower()).strip("-")
            links.append(f'<a href="#{anchor}">{escape(heading)}</a>')
            parts.append(f'<section id="{anchor}">\n<h2>{escape(heading)}</h2>\n{content}\n</section>')
        template, style = (files("dimred.report").joinpath(name).read_text("utf-8") for name in _TEMPLATE)
        inside = {"links": " ".join(links), "sections": "\n".join(parts), "summary": summary}
        path = self._out / self._name
        atomic_write(path, Template(template).substitute(inside, title=escape(title), style=style))
        return path


def figure(name: str, svg: str, description: str, caption: str) -> str:
    """Make a picture's HTML from its SVG text; the other arguments are as in ``Picture``."""
    image = re.sub(r"<metadata>.*?</metadata>", "", svg[svg.index("<svg") :], flags=re.DOTALL)
    image = re.sub(r'(id="|href="#|url\(#)', rf"\g<1>{name}-", image)  # ids must be unique on the page
    image = image.replace("<svg ", f'<svg role="img" aria-label="{escape(description, quote=True)}" ', 1)
    return f'<figure id="figure-{name}">\n{image}\n<figcaption>{escape(caption)}</figcaption>\n</figure>'


def table(heading: Sequence[str], rows: Iterable[Sequence[str]], kind: str = "") -> str:
    """Make a table's HTML; a wide table scrolls sideways.

    Args:
        heading: the column titles; empty for a table without a head.
        rows: the cells as plain text, in which ``**text**`` becomes bold.
        kind: the table's class in the style sheet.
    """

    def text(cell: str) -> str:
        return re.sub(r"\*\*(.+?)\*\*", r"<b>\1</b>", escape(cell))

    head = "".join(f'<th scope="col">{text(cell)}</th>' for cell in heading)
    head = f"<thead><tr>{head}</tr></thead>" if heading else ""
    body = "\n".join("<tr>" + "".join(f"<td>{text(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    return f'<div class="wide"><table class="{kind}">{head}<tbody>\n{body}\n</tbody></table></div>'


def details(summary: str, content: str) -> str:
    """Fold HTML away behind ``summary``, a plain-text line."""
    return f"<details><summary>{escape(summary)}</summary>{content}</details>"


def sentences(texts: Iterable[str], kind: str = "") -> str:
    """Join plain-text sentences into an HTML paragraph; return an empty text if there are none.

    Args:
        texts: the sentences.
        kind: the paragraph's class in the style sheet.
    """
    text = escape(" ".join(texts))
    return f'<p class="{kind}">{text}</p>' if text else ""


def key_figures(facts: Iterable[tuple[str, str]]) -> str:
    """Make the HTML for a few figures in large type, from pairs of a value and its meaning."""
    cells = "".join(f"<div><b>{escape(value)}</b><span>{escape(meaning)}</span></div>" for value, meaning in facts)
    return f'<div class="key">{cells}</div>'
