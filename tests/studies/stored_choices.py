"""Read the store of the study of choices, and choose as ``dimred.averaging.choice`` does, by the trained loss."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from dimred.averaging.windows import Window, measure_windows

SMOOTHING = 0.1
FILE = re.compile(r"(?P<task>[a-z_]+)_(?P<seed>\d+)_(?P<at>\d+)(_(?P<rival>\w+))?\.npz")
_WINDOW = re.compile(r"uniform of (\d+) snapshots, steps (\d+) to (\d+)")


class Stored(NamedTuple):
    """What one choice can see, and the test metric that it should find."""

    task: str
    seed: int
    at: int
    rival: str | None
    names: list[str]
    n_images: int  # forwarded to measure a candidate
    losses: np.ndarray  # the trained loss of each sample of val, (candidates, n)
    test: np.ndarray  # (candidates,); higher is better: accuracy in percent, or minus a hundred times the loss


def smoothed_entropy(logits: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Return the cross entropy with smoothed labels, (candidates, n), of logits (candidates, n, classes)."""
    shifted = logits - logits.max(-1, keepdims=True)
    log_p = shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))
    return -(1 - SMOOTHING) * log_p[:, np.arange(len(labels)), labels] - SMOOTHING * log_p.mean(-1)


def read(path: Path) -> Stored:
    """Read a file of the store, with outputs or with what was kept of them."""
    place = FILE.fullmatch(path.name)
    assert place is not None
    with np.load(path, allow_pickle=False) as stored:
        names, n_images = stored["names"].tolist(), int(stored["n_images"])
        if "val_losses" in stored:
            losses = stored["val_losses"]
            test = -100 * stored["test_losses"].astype(np.float64).mean(1)
        elif "val_trained" in stored:
            losses = stored["val_trained"]
            test = 100 * np.unpackbits(stored["test_correct"], 1, count=int(stored["n_test"])).mean(1)
        else:
            losses = smoothed_entropy(stored["val_logits"].astype(np.float64), stored["val_labels"])
            test = 100 * (stored["test_logits"].argmax(-1) == stored["test_labels"]).mean(1)
    seed, at = int(place["seed"]), int(place["at"])
    return Stored(place["task"], seed, at, place["rival"], names, n_images, losses.astype(np.float64), test)


def choose(stored: Stored, numbers: Sequence[int]) -> int:
    """Return which of these candidates has the lowest mean loss on ``val``."""
    return min(numbers, key=lambda number: float(stored.losses[number].mean()))


def few(stored: Stored) -> list[int]:
    """Return the numbers of the candidates that were measured: windows from coarse to fine, and stage 2's ends."""
    means = stored.losses.mean(1)
    n, first, last = max(tuple(map(int, match.groups())) for match in map(_WINDOW.fullmatch, stored.names) if match)
    steps = np.linspace(first, last, n).astype(int).tolist()
    numbers = {name: number for number, name in enumerate(stored.names)}
    ends = [name for name in stored.names if name.startswith(("epoch ", "mean of epochs 1 to "))]
    measured = [numbers[name] for name in ("last", *ends)]

    def of_window(window: Window) -> float:
        number = numbers["last"] if window.end - window.first == 1 else numbers.get(window.name(steps))
        if number is None:
            return np.inf  # the store does not have this window
        measured.append(number)
        return float(means[number])

    measure_windows(n, of_window)
    return list(dict.fromkeys(measured))
