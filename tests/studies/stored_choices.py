"""Read the store of the study of choices, and choose as ``dimred.averaging.choice`` does, by the trained loss."""

import re
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from dimred.averaging.windows import Window

SMOOTHING = 0.1
FILE = re.compile(r"(?P<task>[a-z_]+)_(?P<seed>\d+)_(?P<at>\d+)(_(?P<rival>\w+))?\.npz")
_WINDOW = re.compile(r"uniform of (\d+) snapshots, steps (\d+) to (\d+)")


N_TRAIN = {  # samples in an epoch of training
    "photos": 4800,
    "noisy": 4788,
    "satimage": 3435,
    "letter": 15_000,
    "fashion": 10_000,
    "digits": 4788,
    "fashion_all": 59_000,
    "prose": 672,
    "source": 672,
}
LENGTHS = (1, 2, 3, 5, 8, 13, 21, 34, 55, 89, 144, 233)
ENDS = 4  # windows end at the newest checkpoint, and a quarter, a half and three quarters back


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


def measure_windows(n: int, loss: Callable[[Window], float]) -> None:
    """Measure a few windows of n checkpoints, from coarse to fine, to find one that is nearly as good as the best.

    Windows that end at the newest checkpoint come first: every other one of the lengths 1, 2, 3, 5, 8, ... and n, then
    the two beside the best. Then the best length above 1, or the longest that fits, is tried a quarter, a half and
    three quarters back until that is worse, and last a linear profile over twice the best window. A cooldown chose so
    when the store was made; today it chooses among ``newest_windows``.

    Args:
        n: number of checkpoints.
        loss: measures a window; called once for each. The newest checkpoint is the only window of length 1.
    """
    lengths = [*(length for length in LENGTHS if length < n), n]
    losses: dict[int, float] = {}

    def measure(places: Iterable[int]) -> int:
        """Measure the lengths at these places in ``lengths``; return the place of the best one so far."""
        for place in places:
            if 0 <= place < len(lengths) and place not in losses:
                losses[place] = loss(Window(n - lengths[place], n))
        return min(losses, key=lambda place: losses[place])

    best = measure(range(0, len(lengths), 2))
    measure((best - 1, best + 1))
    if n == 1:
        return
    lowest, length = min((losses[place], lengths[place]) for place in losses if lengths[place] > 1)
    end = n
    for earlier in sorted({n - back * n // ENDS for back in range(1, ENDS)} - {n}, reverse=True):
        shorter = max((one for one in lengths if 1 < one <= min(length, earlier)), default=0)
        if not shorter or (beside := loss(Window(earlier - shorter, earlier))) > lowest:
            break
        length, end, lowest = shorter, earlier, beside
    if min(2 * length, end) > 2:
        loss(Window(max(end - 2 * length, 0), end, "linear"))
