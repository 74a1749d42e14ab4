"""One self-contained HTML file: text, tables and SVG pictures, no script, nothing from the network."""

import re
from collections.abc import Iterable, Sequence
from html import escape
from importlib.resources import files

__all__ = ["bullet_facts", "details", "figure", "page", "paragraph", "section", "table"]


def page(title: str, body: Iterable[str], sections: Sequence[tuple[str, str]]) -> str:
    """The whole document.

    Args:
        title: of the page.
        body: HTML above the sections.
        sections: (heading, HTML) each; linked at the top.
    """
    style = files("dimred.report").joinpath("style.css").read_text(encoding="utf-8")
    links = " ".join(f'<a href="#{_anchor(heading)}">{escape(heading)}</a>' for heading, _ in sections)
    parts = "\n".join(section(heading, content) for heading, content in sections)
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<link rel="icon" href="data:,">\n'
        f"<title>{escape(title)}</title>\n<style>\n{style}</style>\n</head>\n<body>\n"
        f"<h1>{escape(title)}</h1>\n{''.join(body)}\n<nav>{links}</nav>\n{parts}\n</body>\n</html>\n"
    )


def section(heading: str, content: str) -> str:
    """A heading and what is below it."""
    return f'<section id="{_anchor(heading)}">\n<h2>{escape(heading)}</h2>\n{content}\n</section>'


def paragraph(text: str) -> str:
    """Plain text."""
    return f"<p>{escape(text)}</p>"


def figure(name: str, svg: str, says: str, caption: str) -> str:
    """A picture.

    Args:
        name: of the picture, unique on the page.
        svg: the file's text.
        says: what a reader who can't see it should know.
        caption: below it.
    """
    drawing = svg[svg.index("<svg") :]
    drawing = re.sub(r"<metadata>.*?</metadata>", "", drawing, flags=re.DOTALL)
    drawing = re.sub(r'(id="|href="#|url\(#)', rf"\g<1>{name}-", drawing)  # ids are the page's, not the picture's
    drawing = drawing.replace("<svg ", f'<svg role="img" aria-label="{escape(says, quote=True)}" ', 1)
    return f'<figure id="figure-{name}">\n{drawing}\n<figcaption>{escape(caption)}</figcaption>\n</figure>'


def table(heading: Sequence[str], rows: Iterable[Sequence[str]], kind: str = "") -> str:
    """A table that scrolls sideways by itself where it is too wide; ``**text**`` is bold."""
    head = "".join(f'<th scope="col">{_text(cell)}</th>' for cell in heading)
    head = f"<thead><tr>{head}</tr></thead>" if heading else ""
    body = "\n".join("<tr>" + "".join(f"<td>{_text(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    return f'<div class="wide"><table class="{kind}">{head}<tbody>\n{body}\n</tbody></table></div>'


def bullet_facts(facts: Iterable[tuple[str, str]]) -> str:
    """Few figures, large: (value, what it is) each."""
    return (
        '<div class="key">'
        + "".join(f"<div><b>{escape(value)}</b><span>{escape(what)}</span></div>" for value, what in facts)
        + "</div>"
    )


def details(summary: str, text: str) -> str:
    """Preformatted text below a line that opens it."""
    return f"<details><summary>{escape(summary)}</summary><pre>{escape(text)}</pre></details>"


def _text(cell: str) -> str:
    return re.sub(r"\*\*(.+?)\*\*", r"<b>\1</b>", escape(cell))


def _anchor(heading: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", heading.lower()).strip("-")
