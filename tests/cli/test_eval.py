"""``dimred eval`` measures a checkpoint, and tells how it does on each sample and each class."""

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from mindspore import nn
from PIL import Image
from sklearn.metrics import f1_score

from dimred.checkpoints.checkpoint_io import write_checkpoint
from tests.helpers import tiny_regression, tiny_task
from tests.helpers.commands import dimred_here
from tests.helpers.tiny_task import N_CLASSES, N_FEATURES, Points

PIXELS = 4
CLASSES = ["Bee", "ant", 'ü, "comma"']  # sorted, as Python and MindSpore do


def network(n_classes: int) -> nn.Cell:
    return nn.SequentialCell(nn.Flatten(), nn.Dense(3 * PIXELS * PIXELS, n_classes))


@pytest.fixture
def images(tmp_path: Path) -> Path:
    """Write images that are red, green or blue, with one of each class in the colour of the next."""
    data = tmp_path / "data"
    for number, name in enumerate(CLASSES):
        for split, count in (("train", 2), ("val", number + 2)):
            (data / split / name).mkdir(parents=True)
            for image in range(count):
                pixels = np.zeros((PIXELS, PIXELS, 3), np.uint8)
                pixels[:, :, (number + (image == 0)) % 3] = 200
                Image.fromarray(pixels).save(data / split / name / f"{image}.{('png', 'JPG')[image % 2]}")
    return data


@pytest.fixture
def config(tmp_path: Path) -> Path:
    """Configure a network of three classes, and one output more than there are classes."""
    of_data = {"batch_size": 4, "image_size": PIXELS, "resize": False, "augmentation": "none", "damaged": "replace"}
    task = {"model": {"name": f"{__name__}:network", "n_classes": 4}, "data": of_data}
    (tmp_path / "run.yaml").write_text(yaml.safe_dump(task))
    return tmp_path / "run.yaml"


@pytest.fixture
def weights(tmp_path: Path) -> Path:
    """Write weights that add up each colour."""
    matrix = np.zeros((4, 3, PIXELS * PIXELS), np.float32)
    for colour in range(3):
        matrix[colour, colour] = 0.01
    arrays = {"1.weight": matrix.reshape(4, -1), "1.bias": np.zeros(4, np.float32)}
    write_checkpoint(tmp_path / "net.ckpt", arrays)
    return tmp_path / "net.ckpt"


def test_each_sample_has_a_line_and_each_class_its_accuracy(
    images: Path, config: Path, weights: Path, tmp_path: Path
) -> None:
    out = tmp_path / "predictions.csv"
    call = ("eval", images, weights, "--config", config, "--predictions", out)
    shown = dimred_here(*call, "--json", cwd=tmp_path, status=0).stdout
    with out.open(newline="") as file:
        heading, *lines = csv.reader(file)
    assert heading == ["sample", "label", "prediction", "probability"]
    files = [sorted(path.name for path in (images / "val" / name).iterdir()) for name in CLASSES]
    names = [f"{name}/{file}" for name, of_class in zip(CLASSES, files, strict=True) for file in of_class]
    assert [line[0] for line in lines] == names
    assert [line[1] for line in lines] == [name.split("/")[0] for name in names]
    for name, label, prediction, probability in lines:
        with Image.open(images / "val" / name) as image:
            colour = int(np.argmax(np.asarray(image.convert("RGB")).sum((0, 1))))
        assert prediction == CLASSES[colour]
        assert 0.25 < float(probability) <= 1
        assert (label == prediction) == (not name.endswith("/0.png"))
    result = json.loads(shown)
    classes = result["classes"]
    assert classes["statistics"] == "as_trained"
    assert [(one["class"], one["items"]) for one in classes["accuracy"]] == [
        (name, len(of_class)) for name, of_class in zip(CLASSES, files, strict=True)
    ]
    right = sum(one["accuracy"] * one["items"] for one in classes["accuracy"]) / len(lines)
    assert result["metrics"]["accuracy"]["as_trained"] == pytest.approx(right)
    assert sum(one["items"] for one in classes["confusions"]) == sum(label != other for _, label, other, _ in lines)


def test_a_damaged_image_has_no_prediction_of_another_one(
    images: Path, config: Path, weights: Path, tmp_path: Path
) -> None:
    (images / "val" / "ant" / "0.png").write_bytes(b"\x89PNG\r\n\x1a\n")
    out = tmp_path / "predictions.csv"
    call = ("eval", images, weights, "--config", config)
    done = dimred_here(*call, "--predictions", out, cwd=tmp_path, status=2)
    assert "ant/0.png can't be read as an image" in done.stderr
    assert not out.exists()
    assert "accuracy on 'val'" in dimred_here(*call, cwd=tmp_path, status=0).stdout  # data.damaged is replace
    out.touch()
    done = dimred_here(*call, "--predictions", out, cwd=tmp_path, status=2)
    assert f"--predictions is '{out}', which exists already" in done.stderr


class F1:
    """A metric that is no mean over samples."""

    whole_split = True

    def __call__(self, outputs: np.ndarray, labels: np.ndarray) -> Any:
        return f1_score(labels, outputs.argmax(1), average="macro")


def test_a_metric_of_the_whole_split_is_told_so_beside_the_predictions(tmp_path: Path) -> None:
    (tmp_path / "run.yaml").write_text(yaml.safe_dump(tiny_task.TASK | {"metric": f"{__name__}:F1"}))
    rng = np.random.default_rng(0)
    arrays = {
        "0.weight": rng.normal(size=(6, N_FEATURES)),
        "0.bias": np.zeros(6),
        "1.gamma": np.ones(6),
        "1.beta": np.zeros(6),
        "1.moving_mean": np.zeros(6),
        "1.moving_variance": np.ones(6),
        "3.weight": rng.normal(size=(N_CLASSES, 6)),
        "3.bias": np.zeros(N_CLASSES),
    }
    write_checkpoint(tmp_path / "net.ckpt", {name: value.astype(np.float32) for name, value in arrays.items()})
    out = tmp_path / "predictions.csv"
    call = ("eval", ".", "net.ckpt", "--config", "run.yaml", "--predictions", out)
    shown = dimred_here(*call, cwd=tmp_path, status=0).stdout
    with out.open(newline="") as file:
        samples, labels, classes, _ = zip(*[*csv.reader(file)][1:], strict=True)
    source = Points(Path(), "val", None)
    assert samples == tuple(map(str, range(len(source))))
    assert labels == tuple(str(source[number][1]) for number in range(len(source)))
    hidden = np.stack([source[n][0] for n in range(9)]).astype(np.float64) @ arrays["0.weight"].T / (1 + 1e-5) ** 0.5
    expected = (np.tanh(hidden) @ arrays["3.weight"].T).argmax(1)
    assert classes == tuple(map(str, expected))
    f1 = f1_score([*map(int, labels)], expected, average="macro")
    assert shown.startswith(f"F1 on 'val': {f1:.4g}; ")
    assert " (over the whole split, so without a standard error)\n" in shown
    assert "classes" not in json.loads(dimred_here(*call[:-2], "--json", cwd=tmp_path, status=0).stdout)


def test_predictions_of_a_regression_are_refused(tmp_path: Path) -> None:
    (tmp_path / "run.yaml").write_text(yaml.safe_dump(tiny_regression.TASK))
    network = tiny_regression.network(tiny_regression.N_LABELS)
    write_checkpoint(tmp_path / "net.ckpt", {one.name: one.asnumpy() for one in network.get_parameters()})
    call = ("eval", ".", "net.ckpt", "--config", "run.yaml", "--predictions", "out.csv")
    done = dimred_here(*call, cwd=tmp_path, status=2)
    assert "the labels of 6 samples are Float32 of the shape (6, 2); leave it out" in done.stderr
