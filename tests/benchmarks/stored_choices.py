"""Read what ``choice_store.py`` stored, and apply the rules of ``choice_rules.py``."""

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from scipy.optimize import minimize_scalar

from dimred.averaging.windows import Window, measure_windows

SMOOTHING = 0.1
FILE = re.compile(r"(?P<task>[a-z_]+)_(?P<seed>\d+)_(?P<at>\d+)(_(?P<rival>\w+))?\.npz")
_PARTS = 2**16  # of a unit, to which a kept loss is rounded; its last bits would not be compressed
_WINDOW = re.compile(r"uniform of (\d+) snapshots, steps (\d+) to (\d+)")


class Stored(NamedTuple):
    """What one choice can see, and the test metric that it should find."""

    task: str
    seed: int
    at: int
    rival: str | None
    names: list[str]
    sizes: np.ndarray  # effective, (candidates,)
    n_images: int  # forwarded to measure a candidate
    losses: dict[str, np.ndarray]  # by name, each (candidates, n)
    test: np.ndarray  # (candidates,); higher is better: accuracy in percent, or minus a hundred times the loss


def log_softmax(logits: np.ndarray) -> np.ndarray:
    shifted = logits - logits.max(-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))


def entropy(logits: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Return -log p(label), (candidates, n)."""
    return -log_softmax(logits)[:, np.arange(len(labels)), labels]


def trained(logits: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Return the cross entropy with smoothed labels, (candidates, n)."""
    found = log_softmax(logits)
    return -(1 - SMOOTHING) * found[:, np.arange(len(labels)), labels] - SMOOTHING * found.mean(-1)


def best_temperature(logits: np.ndarray, labels: np.ndarray) -> float:
    """Return the T > 0 with the lowest mean cross entropy of logits / T, (n, classes)."""
    found = minimize_scalar(
        lambda t: entropy(logits[None] / np.exp(t), labels).mean(), bounds=(-3, 3), method="bounded"
    )
    return float(np.exp(found.x))


def at_own_temperature(logits: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Return the cross entropy at each candidate's best temperature, cross-fitted on halves, (candidates, n)."""
    halves = np.arange(len(labels)) % 2
    found = np.empty(logits.shape[:2])
    for number, one in enumerate(logits):
        for half in (0, 1):
            fitted = best_temperature(one[halves != half], labels[halves != half])
            found[number, halves == half] = entropy(one[None, halves == half] / fitted, labels[halves == half])[0]
    return found


def error(logits: np.ndarray, labels: np.ndarray) -> np.ndarray:
    return (logits.argmax(-1) != labels).astype(float)


LOSSES: dict[str, Callable[[np.ndarray, np.ndarray], np.ndarray]] = {
    "entropy": entropy, "trained": trained, "temperature": at_own_temperature, "error": error,
}  # fmt: skip


def _losses(stored: Mapping[str, np.ndarray], n_val: int) -> dict[str, np.ndarray]:
    """Return each loss of the first ``n_val`` samples, (candidates, n_val), from outputs or from what was kept."""
    if "val_error" in stored:
        order = _order(stored["val_error"].shape[1], n_val)
        losses = {name: stored[f"val_{name}"][:, order] for name in LOSSES if name != "temperature"}
        found = {name: values.astype(np.float64) for name, values in losses.items()}
        return found | {"temperature": stored[f"val_temperature_{n_val}"].astype(np.float64)}
    labels = stored["val_labels"]
    order = _order(len(labels), n_val)
    logits = stored["val_logits"].astype(np.float64)[:, order]
    return {name: loss(logits, labels[order]) for name, loss in LOSSES.items()}


def _order(n: int, n_val: int) -> np.ndarray:
    return np.sort(np.random.default_rng(0).permutation(n)[:n_val])


def losses_only(stored: Mapping[str, np.ndarray], sizes: Sequence[int]) -> dict[str, np.ndarray]:
    """Return what the tables need of a file: rounded losses on ``val``, and which samples of ``test`` were right.

    The temperatures are fitted on the samples of each of the ``sizes``. A text has only losses, and stays as it is.
    """
    arrays = {name: array for name, array in stored.items() if not re.search("_(logits|labels)$", name)}
    if "val_logits" in stored:
        for name in LOSSES:
            if name == "temperature":
                found = {f"val_{name}_{n}": _losses(stored, n)[name] for n in sizes}
            else:
                found = {f"val_{name}": _losses(stored, len(stored["val_labels"]))[name]}
            arrays |= {key: (np.round(values * _PARTS) / _PARTS).astype(np.float32) for key, values in found.items()}
    if "test_logits" in stored:
        correct = stored["test_logits"].argmax(-1) == stored["test_labels"]
        arrays |= {"test_correct": np.packbits(correct, 1), "n_test": np.array(correct.shape[1])}
    return arrays


def read(path: Path, n_val: int) -> Stored:
    """Read a file of the store, with the first ``n_val`` samples of a fixed order of ``val``."""
    place = FILE.fullmatch(path.name)
    assert place is not None
    with np.load(path, allow_pickle=False) as stored:
        names, sizes, n_images = stored["names"].tolist(), stored["effective_sizes"], int(stored["n_images"])
        if "val_losses" in stored:
            order = np.random.default_rng(0).permutation(stored["val_losses"].shape[1])[:n_val]
            losses = {"entropy": stored["val_losses"][:, order]}
            test = -100 * stored["test_losses"].astype(np.float64).mean(1)
        else:
            losses = _losses(stored, n_val)
            if "test_correct" in stored:
                test = 100 * np.unpackbits(stored["test_correct"], 1, count=int(stored["n_test"])).mean(1)
            else:
                test = 100 * (stored["test_logits"].argmax(-1) == stored["test_labels"]).mean(1)
    seed, at = int(place["seed"]), int(place["at"])
    return Stored(place["task"], seed, at, place["rival"], names, sizes, n_images, losses, test)


def near(losses: np.ndarray, n_errors: float) -> np.ndarray:
    """Return which candidates are within ``n_errors`` standard errors of the lowest mean, paired by sample."""
    differences = losses - losses[losses.mean(1).argmin()]
    errors = differences.std(1, ddof=1) / np.sqrt(losses.shape[1])
    return differences.mean(1) <= n_errors * errors


def choose(stored: Stored, loss: str, tie: str) -> int:
    """Return the number of the candidate that a rule chooses."""
    losses = stored.losses.get(loss, stored.losses["entropy"])  # a text has one loss, which was trained
    means = losses.mean(1)
    if tie == "lowest":
        return int(means.argmin())
    if tie == "metric":
        errors = stored.losses.get("error", losses).mean(1)
        return int(min(np.flatnonzero(near(losses, 1.0)), key=lambda one: (errors[one], means[one])))
    within = np.flatnonzero(near(losses, 0.5 if tie == "widest half" else 1.0))
    return int(min(within, key=lambda one: (-stored.sizes[one], means[one])))


def few(stored: Stored, loss: str) -> list[int]:
    """Return the numbers of the candidates that stage 2 measures: windows from coarse to fine, and its own ends."""
    means = stored.losses.get(loss, stored.losses["entropy"]).mean(1)
    n, first, last = max(tuple(map(int, found.groups())) for found in map(_WINDOW.fullmatch, stored.names) if found)
    steps = np.linspace(first, last, n).astype(int).tolist()
    numbers = {name: number for number, name in enumerate(stored.names)}
    epochs = [name for name in stored.names if name.startswith("epoch ")]
    mean = f"mean of epochs 1 to {len(epochs)}"  # of one epoch there is none
    measured = [numbers[name] for name in ("last", epochs[-1], mean) if name in numbers]

    def of_window(window: Window) -> float:
        number = numbers["last"] if window.end - window.first == 1 else numbers.get(window.name(steps))
        if number is None:
            return np.inf  # the store does not have this window
        measured.append(number)
        return float(means[number])

    measure_windows(n, of_window)
    return list(dict.fromkeys(measured))


def part(stored: Stored, numbers: list[int]) -> Stored:
    losses = {name: values[numbers] for name, values in stored.losses.items()}
    names, sizes = [stored.names[number] for number in numbers], stored.sizes[numbers]
    return stored._replace(names=names, sizes=sizes, losses=losses, test=stored.test[numbers])
