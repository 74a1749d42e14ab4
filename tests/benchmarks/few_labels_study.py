"""What a few trusted images can take back of the wrong labels that a network learned by heart.

    python -m tests.benchmarks.few_labels_study --out study --seeds 1 2 3 4 5

About two minutes of both cores a seed. What is in ``--out`` already is not run again. Ends with tables in Markdown
(``few_labels_study.md`` beside this file has them): means and standard errors over the seeds. The trusted images are of
``val``; ``test`` is only reported.
"""

import argparse
import json
import shutil
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import mindspore as ms
import numpy as np
from mindspore import nn
from PIL import Image
from sklearn.datasets import load_digits

import dimred
from dimred.data.digits import SPLITS, write_digits
from dimred.evaluate.averages import SnapshotAverages, average_snapshots
from dimred.evaluate.window_search import search_windows
from dimred.run.device import set_up
from dimred.vectors.parameters import to_arrays
from tests.benchmarks.few_labels_methods import (
    LAST_LAYER,
    Split,
    cross_entropy,
    fine_tune,
    fit_temperature,
    forward,
    make_network,
    sample,
    softmax,
)

DRAWS = {20: 4, 50: 4, 200: 2}  # trusted images: how often they are drawn
LABEL_NOISE, PIXEL_NOISE = 4 / 9, 0.1  # 4 / 9 go to a class drawn at random, a tenth of them to the right one
VARIANTS = 2  # of each scan in train, half of what there are
EPOCHS, FIRST_SNAPSHOT, BATCH_SIZE, RATE, MOMENTUM = 40, 6, 64, 0.1, 0.9
REPORTED = (1, 5, 10, 15, 20, 30, 40)  # epochs
DIRECTIONS, SAMPLES, EVERY = 16, 1000, 50  # every 50th sample predicts
REFERENCE, START = "best window", "best window with a temperature"
Network = tuple[np.ndarray, float]  # weights (M,), temperature


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3, 4, 5])
    arguments = parser.parse_args()
    for seed in arguments.seeds:
        folder = arguments.out / str(seed)
        if not (folder / "data").exists():
            write_digits(folder / "data", seed, PIXEL_NOISE, LABEL_NOISE)
        if not (folder / "training.json").exists():
            (folder / "training.json").write_text(json.dumps(train(folder, seed)))
        for count in DRAWS:
            if not (folder / f"{count}.json").exists():
                (folder / f"{count}.json").write_text(json.dumps(list(study(folder, count, seed))))
                print(f"seed {seed}, {count} trusted images: done", flush=True)
    print(tables(arguments.out, arguments.seeds))


@cache
def read_split(folder: Path, split: str) -> Split:
    """One split in the order of scans and variants; the background of a scan is 0, full ink 1."""
    paths = sorted((folder / "data" / split).glob("*/*.png"), key=lambda path: path.name)
    pixels = np.array([np.asarray(Image.open(path), np.float32) for path in paths])
    labels = np.array([path.parent.name for path in paths]).astype(np.int32)
    truth = load_digits().target[[int(path.name[4:8]) for path in paths]]
    return Split((pixels[:, None] - 64) / 128, labels, truth.astype(np.int32))


def train(folder: Path, seed: int) -> list[dict[str, float]]:
    """Stage 1 at a constant rate; accuracy on test, and on wrong and right training labels, after some epochs."""
    shutil.rmtree(folder / "snapshots", ignore_errors=True)  # of a run that was cut off
    images, test = read_split(folder, "train"), read_split(folder, "test")
    images = images.part(np.arange(len(images.labels)) % SPLITS["train"][1] < VARIANTS)
    wrong = images.labels != images.truth
    parts = {"test": test, "wrong training labels": images.part(wrong), "right training labels": images.part(~wrong)}
    set_up(seed)
    network = make_network()
    optimizer = nn.Momentum(network.trainable_params(), RATE, MOMENTUM)
    step = dimred.TrainStep(nn.WithLossCell(network, nn.CrossEntropyLoss()), optimizer)
    layout = dimred.WeightLayout.from_network(network)
    series = dimred.CheckpointSeries(folder / "snapshots", keep=None)
    records, rng = [], np.random.default_rng([seed, 0])
    n_steps = len(images.labels) // BATCH_SIZE
    for epoch in range(1, EPOCHS + 1):
        for rows in rng.permutation(len(images.labels))[: n_steps * BATCH_SIZE].reshape(n_steps, BATCH_SIZE):
            step(ms.Tensor(images.images[rows]), ms.Tensor(images.labels[rows]))
        weights = to_arrays(network.trainable_params())
        if epoch >= FIRST_SNAPSHOT:
            series.append(weights, step=n_steps * epoch, epoch=epoch)
        if epoch in REPORTED:
            network_now = layout.flatten(weights), 1.0
            accuracies = {name: tested(network_now, part)["accuracy"] for name, part in parts.items()}
            records.append({"epoch": epoch, **accuracies})
    return records


def study(folder: Path, count: int, seed: int) -> Iterator[dict[str, dict[str, float]]]:
    """For each draw of ``count`` trusted images: accuracy and loss on test of each method's network."""
    val, test = read_split(folder, "val"), read_split(folder, "test")
    n_scans, n_variants = SPLITS["val"]
    series = dimred.CheckpointSeries.open(folder / "snapshots")
    basis = dimred.fit_basis(series, DIRECTIONS, network=make_network())
    assert basis.layout is not None
    assert basis.explained_variance is not None
    spread = np.sqrt(basis.explained_variance)[:, None].astype(np.float32)
    averages, mean = SnapshotAverages(series, basis.layout), average_snapshots(series, basis.layout)
    [(_, last)] = averages.uniform(len(series), [1])
    for draw in range(DRAWS[count]):
        rng = np.random.default_rng([seed, count, draw])
        scans = rng.permutation(n_scans)[:count]  # one image of each, so that what is held out is not seen
        trusted = val.part(n_variants * scans + draw % n_variants)
        networks = {"last weights": (last, 1.0), "mean of all snapshots": (mean, 1.0)}
        networks |= from_windows(averages, last, trusted)
        start, temperature = networks[START]
        for name, free in (("last layer fine-tuned, L2", LAST_LAYER), ("all weights fine-tuned, L2", slice(None))):
            tuned = fine_tune(start, trusted.patches(), trusted.labels, temperature, free)
            networks[name] = tuned, temperature
        found = {name: tested(network, test) for name, network in networks.items()}
        random = np.linalg.qr(rng.standard_normal((basis.n_weights, DIRECTIONS)))[0].T.astype(np.float32)
        for name, directions in (("posterior", basis.components), ("posterior in random directions", random)):
            found |= from_posterior(name, networks[START], spread * directions, trusted, test, rng)
        yield found


def tested(network: Network, part: Split) -> dict[str, float]:
    """Accuracy and mean loss on the labels as given."""
    vector, temperature = network
    return scores(forward(vector, part.patches()).logits / temperature, part.labels) | {"temperature": temperature}


def scores(logits: np.ndarray, labels: np.ndarray) -> dict[str, float]:
    right = logits.argmax(axis=1) == labels
    return {"accuracy": float(right.mean()), "loss": float(cross_entropy(logits, labels).mean())}


def from_windows(averages: SnapshotAverages, last: np.ndarray, trusted: Split) -> dict[str, Network]:
    """What the trusted images choose of the windows, measured as they are, and each with a temperature of its own."""
    patches, labels = trusted.patches(), trusted.labels

    def temperature_of(vector: np.ndarray) -> float:
        return fit_temperature(forward(vector, patches).logits, labels)

    def losses(vector: np.ndarray, temperature: float) -> np.ndarray:
        return cross_entropy(forward(vector, patches).logits / temperature, labels)

    best, lowest = choose_windows(averages, last, lambda vector: losses(vector, 1.0))
    best_tempered, lowest_tempered = choose_windows(averages, last, lambda one: losses(one, temperature_of(one)))
    return {
        REFERENCE: (best, 1.0),
        "the same weights with a temperature": (best, temperature_of(best)),
        "window of lowest loss": (lowest, 1.0),
        START: (best_tempered, temperature_of(best_tempered)),
        "window of lowest loss with a temperature": (lowest_tempered, temperature_of(lowest_tempered)),
    }


def choose_windows(
    averages: SnapshotAverages, last: np.ndarray, losses: Callable[[np.ndarray], np.ndarray]
) -> tuple[np.ndarray, np.ndarray]:
    """What ``start: best`` chooses (the widest within a standard error of the lowest loss), and the lowest loss."""
    measured: list[np.ndarray] = []

    def keep(vector: np.ndarray) -> np.ndarray:
        measured.append(vector)
        return losses(vector)

    found = search_windows(averages, keep, [("last", 1.0, last)])
    lowest = [one is found.selection.lowest() for one in found.selection.candidates].index(True)
    return found.weights, measured[lowest]


def from_posterior(
    name: str, start: Network, directions: np.ndarray, trusted: Split, test: Split, rng: np.random.Generator
) -> dict[str, dict[str, float]]:
    """The network at the mean of the posterior of z, and what the networks along the chain predict in the mean."""
    vector, temperature = start
    patches, test_patches = trusted.patches(), test.patches()

    def logits(z: np.ndarray, patches: np.ndarray) -> np.ndarray:
        return forward(vector + z.astype(np.float32) @ directions, patches).logits / temperature

    def log_likelihood(z: np.ndarray) -> float:
        return -float(cross_entropy(logits(z, patches), trusted.labels).sum())

    chain = sample(log_likelihood, len(directions), SAMPLES, rng)
    halves = np.array([half.mean(axis=0) for half in np.split(chain, 2)])
    told = {"length": root_mean_square(halves.mean(axis=0)), "error": root_mean_square(halves[0] - halves[1]) / 2}
    predicted = np.mean([softmax(logits(z, test_patches)) for z in chain[::EVERY]], axis=0)
    return {
        name: scores(logits(chain.mean(axis=0), test_patches), test.labels) | told,
        f"{name}, mean of its predictions": scores(np.log(predicted), test.labels),
    }


def root_mean_square(values: np.ndarray) -> float:
    return float(np.sqrt(np.mean(values**2)))


def tables(out: Path, seeds: list[int]) -> str:
    """What was learned by heart; then test accuracy, test loss, and both less those of two rows, seed by seed."""
    trainings = [json.loads((out / str(seed) / "training.json").read_text()) for seed in seeds]
    lines = [f"| accuracy after epoch | {' | '.join(map(str, REPORTED))} |", "|---" * (len(REPORTED) + 1) + "|"]
    for part in list(trainings[0][0])[1:]:
        by_epoch = 100 * np.array([[record[part] for record in records] for records in trainings])
        lines.append(f"| {part} | {' | '.join(map(cell, by_epoch.T))} |")
    found = {  # the mean over the draws, by count, seed, row and measure
        count: [json.loads((out / str(seed) / f"{count}.json").read_text()) for seed in seeds] for count in DRAWS
    }

    def of(count: int, row: str, measured: str) -> np.ndarray:
        return np.array([np.mean([draw[row][measured] for draw in draws]) for draws in found[count]])

    for measured, unit, digits in (("accuracy", 100, 1), ("loss", 1, 3)):
        for other in ("", REFERENCE, START):
            title = f"{measured}, gain over {other!r}" if other else measured
            columns = " | ".join(f"{count} images" for count in DRAWS)
            lines += ["", f"| {title} | {columns} |", "|---" * (len(DRAWS) + 1) + "|"]
            for row in found[min(DRAWS)][0][0]:
                less = {count: of(count, other, measured) if other else 0 for count in DRAWS}
                cells = [cell(unit * (of(count, row, measured) - less[count]), digits, other) for count in DRAWS]
                lines.append(f"| {row} | {' | '.join(cells)} |")
    return "\n".join(lines)


def cell(values: np.ndarray, digits: int = 1, signed: str = "") -> str:
    """Mean and standard error over the seeds."""
    mean = f"{values.mean():{'+' if signed else ''}.{digits}f}"
    return mean if len(values) == 1 else f"{mean} ± {values.std(ddof=1) / np.sqrt(len(values)):.{digits}f}"


if __name__ == "__main__":
    main()
