"""The page shows what the network takes for what: a picture, or beyond 20 classes a table of the worst pairs."""

import re
from pathlib import Path

import numpy as np

from dimred.report.class_section import ClassView, add_classes, plot_classes
from dimred.report.page import Page


def view_of(n_classes: int) -> ClassView:
    """Make classes of 10 items, of which the first has 4 wrong, taken for the last and the second."""
    n_correct = np.full(n_classes, 10)
    n_correct[0] = 6
    names = [f"c{number}" for number in range(n_classes)]
    return ClassView("test", names, np.full(n_classes, 10), n_correct, [(0, n_classes - 1, 3), (0, 1, 1)])


def page_of(view: ClassView, folder: Path) -> str:
    page = Page(folder, "page.html")
    add_classes(page, view)
    return page.write("page", "").read_text()


def test_few_classes_are_a_picture_with_a_number_for_each_pair(tmp_path: Path) -> None:
    [axes] = plot_classes(view_of(20)).axes
    told = {text.get_position(): text.get_text() for text in axes.texts}
    assert told == {(19, 0): "3", (1, 0): "1", (0, 0): "6"} | {(number, number): "10" for number in range(1, 20)}
    assert [label.get_text() for label in axes.get_yticklabels()] == [f"c{number}" for number in range(20)]
    page = page_of(view_of(20), tmp_path)
    assert "<image" not in (tmp_path / "classes.svg").read_text()
    assert "The most frequent confusion is c0 taken for c19, 3 times." in page
    assert "Of 200 samples of test, the network to use takes 4 for another class." in page


def test_many_classes_are_a_table_of_the_worst_pairs(tmp_path: Path) -> None:
    page = page_of(view_of(21), tmp_path)
    assert not (tmp_path / "classes.svg").exists()
    rows = [re.findall(r"<td>(.*?)</td>", row) for row in re.findall(r"<tr>(.*?)</tr>", page)]
    assert ["c0", "c20", "3", "30.0%"] in rows
    assert ["c0", "c1", "1", "10.0%"] in rows
    assert rows.index(["c0", "10", "60.0%"]) < rows.index(["c1", "10", "100.0%"])
