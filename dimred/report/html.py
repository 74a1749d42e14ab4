"""One HTML file that is whole by itself: text, tables and SVG pictures, no script, nothing from the network."""

import re
from collections.abc import Iterable, Sequence
from html import escape
from importlib.resources import files
from string import Template


def document(title: str, summary: str, sections: Sequence[tuple[str, str]]) -> str:
    """Make the HTML document.

    Args:
        title: plain text.
        summary: HTML below the title.
        sections: heading and HTML of each section; links to them stand at the top.
    """
    links, parts = [], []
    for heading, content in sections:
        anchor = re.sub(r"[^a-z0-9]+", "-", heading.lower()).strip("-")
        links.append(f'<a href="#{anchor}">{escape(heading)}</a>')
        parts.append(f'<section id="{anchor}">\n<h2>{escape(heading)}</h2>\n{content}\n</section>')
    own = files("dimred.report")
    return Template(own.joinpath("page.html").read_text(encoding="utf-8")).substitute(
        title=escape(title),
        style=own.joinpath("style.css").read_text(encoding="utf-8"),
        summary=summary,
        links=" ".join(links),
        sections="\n".join(parts),
    )


def figure(name: str, svg: str, says: str, caption: str) -> str:
    """Make a picture.

    Args:
        name: unique on the page.
        svg: text of an SVG file.
        says: description for readers who can't see it.
        caption: words below it.
    """
    drawing = re.sub(r"<metadata>.*?</metadata>", "", svg[svg.index("<svg") :], flags=re.DOTALL)
    drawing = re.sub(r'(id="|href="#|url\(#)', rf"\g<1>{name}-", drawing)  # ids are the page's, not the picture's
    drawing = drawing.replace("<svg ", f'<svg role="img" aria-label="{escape(says, quote=True)}" ', 1)
    return f'<figure id="figure-{name}">\n{drawing}\n<figcaption>{escape(caption)}</figcaption>\n</figure>'


def table(heading: Sequence[str], rows: Iterable[Sequence[str]], kind: str = "") -> str:
    """Make a table that scrolls sideways where it is too wide; ``**text**`` is bold."""

    def text(cell: str) -> str:
        return re.sub(r"\*\*(.+?)\*\*", r"<b>\1</b>", escape(cell))

    head = "".join(f'<th scope="col">{text(cell)}</th>' for cell in heading)
    head = f"<thead><tr>{head}</tr></thead>" if heading else ""
    body = "\n".join("<tr>" + "".join(f"<td>{text(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    return f'<div class="wide"><table class="{kind}">{head}<tbody>\n{body}\n</tbody></table></div>'


def preformatted(text: str) -> str:
    """Show text as it stands in a file."""
    return f"<pre>{escape(text)}</pre>"


def details(summary: str, content: str) -> str:
    """Hide HTML below a line that opens it."""
    return f"<details><summary>{escape(summary)}</summary>{content}</details>"


def sentences(texts: Iterable[str], kind: str = "") -> str:
    """Join sentences to one paragraph; no sentence makes none."""
    text = escape(" ".join(texts))
    return f'<p class="{kind}">{text}</p>' if text else ""


def key_figures(facts: Iterable[tuple[str, str]]) -> str:
    """Show a few figures large: pairs of a value and its meaning."""
    cells = "".join(f"<div><b>{escape(value)}</b><span>{escape(what)}</span></div>" for value, what in facts)
    return f'<div class="key">{cells}</div>'
