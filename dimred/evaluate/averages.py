"""Plain averages of snapshots: the controls that stage 2 has to be compared with.

Each reads the snapshots one at a time, so that a series of any length fits into memory.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

import numpy as np

from dimred.weights.checkpoint_io import read_checkpoint
from dimred.weights.layout import WeightLayout
from dimred.weights.series import CheckpointSeries

Score = Callable[[np.ndarray], float]


def average_snapshots(series: CheckpointSeries, layout: WeightLayout) -> np.ndarray:
    """The mean of all snapshots, (M,) float32, accumulated in float64.

    Of a whole series this is SWA (Izmailov et al., 2018) and a uniform soup; of the latest, ``series.select(last=k)``,
    it is LAWA (Kaddour, 2022).

    Raises:
        CheckpointError: a snapshot can't be read, or does not fit the layout.
    """
    total = np.zeros(layout.size, np.float64)
    for vector in _vectors(series, layout):
        total += vector
    return (total / len(series)).astype(np.float32)


def moving_average(series: CheckpointSeries, layout: WeightLayout, decay: float) -> np.ndarray:
    """The exponential moving average over the snapshots, (M,) float32: a <- decay a + (1 - decay) w, from the first.

    Args:
        series: the snapshots, oldest first.
        layout: of the weights.
        decay: from one snapshot to the next, 0 <= decay < 1.

    Raises:
        CheckpointError: a snapshot can't be read, or does not fit the layout.
    """
    vectors = _vectors(series, layout)
    average = next(vectors).astype(np.float64)
    for vector in vectors:
        average = decay * average + (1 - decay) * vector
    return average.astype(np.float32)


class Soup(NamedTuple):
    """A greedy soup.

    Attributes:
        weights: (M,) float32, the mean of the ingredients.
        ingredients: their positions in the series.
        score: of the soup.
    """

    weights: np.ndarray
    ingredients: tuple[int, ...]
    score: float


def greedy_soup(series: CheckpointSeries, layout: WeightLayout, score: Score) -> Soup:
    """The greedy soup of the snapshots (Wortsman et al., Model soups, 2022, recipe 1).

    The snapshots are tried from the best to the worst, of equal ones the newer first; each goes in if the mean with it
    scores no worse than without.

    Args:
        series: the snapshots.
        layout: of the weights.
        score: weights (M,) -> what is to be high, such as the accuracy on a held-out split. Called 2 N - 1 times.

    Raises:
        CheckpointError: a snapshot can't be read, or does not fit the layout.
    """
    scores = [score(vector) for vector in _vectors(series, layout)]
    best, *others = sorted(range(len(series)), key=lambda number: (-scores[number], -number))
    total = _vector(series, layout, best).astype(np.float64)
    ingredients, reached = [best], scores[best]
    for number in others:
        tried = total + _vector(series, layout, number)
        found = score((tried / (len(ingredients) + 1)).astype(np.float32))
        if found >= reached:
            total, reached = tried, found
            ingredients.append(number)
    return Soup((total / len(ingredients)).astype(np.float32), tuple(ingredients), reached)


class Choice(NamedTuple):
    """One of several candidates.

    Attributes:
        name: of the candidate.
        weights: (M,) float32.
        losses: of every candidate, by name.
    """

    name: str
    weights: np.ndarray
    losses: dict[str, float]


def best_of(candidates: Iterable[tuple[str, np.ndarray]], loss: Score) -> Choice:
    """The candidate with the lowest loss; of equal ones the first."""
    losses: dict[str, float] = {}
    best: tuple[str, np.ndarray] | None = None
    for name, weights in candidates:
        losses[name] = loss(weights)
        if best is None or losses[name] < losses[best[0]]:
            best = (name, weights)
    if best is None:
        raise ValueError("there are no candidates")
    return Choice(*best, losses)


def _vectors(series: CheckpointSeries, layout: WeightLayout) -> Iterator[np.ndarray]:
    for number in range(len(series)):
        yield _vector(series, layout, number)


def _vector(series: CheckpointSeries, layout: WeightLayout, number: int) -> np.ndarray:
    return layout.flatten(read_checkpoint(series.paths[number], names=layout.names))
