"""The part of a run's page about classes: each one's accuracy, and which are mistaken for which."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from matplotlib.figure import Figure

from dimred.report.page import Page, Picture, details, sentences, table
from dimred.report.plots import new_figure

_MOST_IN_A_PICTURE = 20  # classes; their names and counts are still readable
_WORST = 20  # pairs of classes that a table lists


class ClassView(NamedTuple):
    """How often each class was predicted right on a split.

    Attributes:
        split: the split.
        names: the classes' names; a class without a name is given by its number.
        n_items: number of items in each class, (n_classes,).
        n_correct: how many of these were predicted right, (n_classes,).
        confusions: (label, predicted class, how often), the most frequent first.
    """

    split: str
    names: Sequence[str]
    n_items: np.ndarray
    n_correct: np.ndarray
    confusions: Sequence[tuple[int, int, int]]


def add_classes(page: Page, view: ClassView) -> None:
    """Add the section about classes: a picture of up to 20 classes, or the worst pairs; and all accuracies."""
    pictures = []
    worst = ""
    if len(view.names) <= _MOST_IN_A_PICTURE:
        pictures.append(_picture(view))
    else:
        rows = [
            (view.names[label], view.names[predicted], f"{n:,}", f"{n / view.n_items[label]:.1%}")
            for label, predicted, n in view.confusions[:_WORST]
        ]
        worst = table(("class", "taken for", "how often", "fraction of the class"), rows)
    n_items = int(view.n_items.sum())
    n_correct = int(view.n_correct.sum())
    told = (
        f"Of {n_items:,} samples of {view.split}, the network to use takes {n_items - n_correct:,} for another class."
    )
    order = np.argsort(view.n_correct / np.maximum(view.n_items, 1), kind="stable")
    accuracies = [
        (view.names[number], f"{view.n_items[number]:,}", f"{view.n_correct[number] / view.n_items[number]:.1%}")
        for number in order.tolist()
        if view.n_items[number]
    ]
    by_class = details("The accuracy of each class", table(("class", "samples", "accuracy"), accuracies))
    page.add("Classes", pictures, sentences([told]), worst + by_class)


def _picture(view: ClassView) -> Picture:
    words = "Nothing is taken for another class."
    if view.confusions:
        label, predicted, n = view.confusions[0]
        words = f"The most frequent confusion is {view.names[label]} taken for {view.names[predicted]}, {n:,} times."
    return Picture(
        "classes",
        plot_classes(view),
        f"Table of true and predicted classes. {words}",
        f"How many samples of each class (rows) were predicted as which class (columns). {words}",
    )


def plot_classes(view: ClassView) -> Figure:
    """Draw a table of true classes (rows) and predicted classes (columns), coloured by the fraction of each row."""
    n_classes = len(view.names)
    counts = np.diag(view.n_correct).astype(np.int64)
    for label, predicted, n in view.confusions:
        counts[label, predicted] = n
    fractions = counts / np.maximum(view.n_items, 1)[:, None]
    size = 2.4 + 0.3 * n_classes
    figure, axes = new_figure((size, size))
    edges = np.arange(n_classes + 1) - 0.5
    axes.pcolormesh(edges, edges, fractions, cmap="Blues", vmin=0, vmax=1)  # imshow would put an image into the SVG
    axes.invert_yaxis()
    for row, column in np.argwhere(counts).tolist():
        shade = "#fafafa" if fractions[row, column] > 0.5 else "#111111"  # the same in a dark page
        axes.text(column, row, f"{counts[row, column]}", ha="center", va="center", fontsize=7, color=shade)
    axes.set_xticks(range(n_classes), view.names, rotation=90, fontsize=8)
    axes.set_yticks(range(n_classes), view.names, fontsize=8)
    axes.set(xlabel="predicted", ylabel="class")
    return figure
