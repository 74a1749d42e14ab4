"""The page's parts: nothing a file says becomes markup, and pictures do not share names."""

from pathlib import Path

from dimred.report.page import Page, details, figure, table

SVG = '<?xml version="1.0"?>\n<svg width="1"><defs><path id="a"/></defs><use href="#a"/><g clip-path="url(#a)"/></svg>'


def test_text_is_not_markup(tmp_path: Path) -> None:
    page = Page(tmp_path, "page.html")
    page.add("A & B", [], table(("<i>",), [("<script>", "**x**")]) + details("<u>", "</pre>"))
    made = page.write("<b>", "").read_text()
    for tag in ("<b>", "<i>", "<script>", "<u>", "</pre></pre>"):
        assert tag not in made.replace("<b>x</b>", "")
    assert "<b>x</b>" in made
    assert 'id="a-b"' in made
    assert 'href="#a-b"' in made


def test_names_within_a_picture_are_its_own() -> None:
    drawn = figure("one", SVG, 'says "so"', "below")
    assert 'id="one-a"' in drawn
    assert 'href="#one-a"' in drawn
    assert "url(#one-a)" in drawn
    assert 'aria-label="says &quot;so&quot;"' in drawn
    assert "<?xml" not in drawn
