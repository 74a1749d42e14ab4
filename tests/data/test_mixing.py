"""Mixup and cutmix follow their equations, are replayed by seed and epoch, and stay in the training of stage 1."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from dimred.config import StageOneConfig, StageTwoConfig
from dimred.data.batches import Readable, read_batches
from dimred.data.mixing import Mixing
from dimred.data.own_dataset import OwnDataset
from dimred.errors import ConfigError, DataError
from dimred.runs.splits import build_splits
from tests.helpers import tiny_task
from tests.oracles.mixing import cutmix, mixup

CLASSES = 3
rng = np.random.default_rng(5)
IMAGES = [(rng.normal(size=(2, 6, 5)).astype(np.float32), number % CLASSES) for number in range(24)]


def own(samples: Sequence[tuple[object, ...]] = IMAGES, mixing: Mixing | None = None, **options: int) -> OwnDataset:
    mixing = Mixing(CLASSES, 0.4, 1.0) if mixing is None else mixing
    options = {"batch_size": 8} | options
    return OwnDataset(lambda data, split, seed: samples, Path(), "train", mixing=mixing, **options)


def batches(readable: Readable) -> list[tuple[np.ndarray, ...]]:
    return list(readable.create_tuple_iterator(output_numpy=True))


def content(readable: Readable) -> list[bytes]:
    return [b"".join(part.tobytes() for part in batch) for batch in batches(readable)]


@pytest.mark.parametrize("is_cutmix", [False, True], ids=["mixup", "cutmix"])
@pytest.mark.parametrize("number", range(8))
def test_a_batch_is_mixed_as_the_equations_say(number: int, is_cutmix: bool) -> None:
    x = np.stack([image for image, _ in IMAGES[:7]])
    labels = np.array([label for _, label in IMAGES[:7]], np.int32)
    numbers = (1, 2, 0, number)
    mixing = Mixing(CLASSES, None, 1.0) if is_cutmix else Mixing(CLASSES, 0.4)
    found = mixing.mixed(x, labels, numbers)
    draws = np.random.default_rng([*numbers, 2])
    partners = draws.permutation(7)
    draws.integers(1)  # the way, of which there is one
    if is_cutmix:
        kept = draws.beta(1.0, 1.0)
        expected = cutmix(x, np.eye(CLASSES)[labels], partners, kept, (draws.integers(6), draws.integers(5)))
    else:
        expected = mixup(x, np.eye(CLASSES)[labels], partners, draws.beta(0.4, 0.4))
    for one, other in zip(found, expected, strict=True):
        assert one.dtype == np.float32
        np.testing.assert_allclose(one, other, atol=1e-6)
    np.testing.assert_allclose(found[1].sum(1), 1, rtol=1e-6)


def test_each_batch_draws_its_way_and_probabilities_are_mixed_as_they_are() -> None:
    x = np.zeros((4, 1, 8, 8), np.float32)
    x[2:] = 1
    labels = np.array([[0.2, 0.8], [0.5, 0.5], [1, 0], [0, 1]], np.float32)
    partly = [np.unique(Mixing(2, 0.4, 1.0).mixed(x, labels, (n,))[0]).size > 2 for n in range(40)]
    assert 10 < sum(partly) < 30  # mixup makes numbers between 0 and 1, cutmix does not
    _, mixed = Mixing(2, 0.4).mixed(x, labels, (3,))
    np.testing.assert_allclose(mixed.sum(1), 1, rtol=1e-6)
    assert not np.array_equal(mixed, labels)


def test_an_epoch_is_replayed_and_differs_by_seed_epoch_and_rank() -> None:
    first = content(own().training_epoch(1, 1))
    assert content(own(workers=2).training_epoch(1, 1)) == first
    others = [content(own().training_epoch(2, 1)), content(own().training_epoch(1, 2))]
    assert first not in others
    resumed = list(read_batches(lambda: own().training_epoch(1, 1), 2))
    assert [b"".join(part.asnumpy().tobytes() for part in batch) for batch in resumed] == first[2:]
    ranks = [
        batches(own(mixing=Mixing(CLASSES, 0.4), rank=rank, group_size=2, batch_size=4).training_epoch(1, 1))
        for rank in (0, 1)
    ]
    drawn = [set(labels.ravel().tolist()) - {0.0, 1.0} for of_rank in ranks for _, labels in of_rank]  # l and 1 - l
    assert len(drawn) == 6
    assert len(set().union(*drawn)) == sum(map(len, drawn)) > 6  # each batch of each rank draws its own


def test_micro_batches_are_mixed_together() -> None:
    assert content(own(batch_size=2, accumulation=4).training_epoch(1, 1)) == content(own().training_epoch(1, 1))


def test_evaluation_and_the_batches_of_batch_norm_are_not_mixed() -> None:
    data = own()
    for readable in (data.evaluation(), data.training_epoch(1, 999_999)):
        for images, labels in batches(readable):
            assert labels.dtype == np.int32
            assert {image.tobytes() for image in images} <= {image.tobytes() for image, _ in IMAGES}


def test_only_the_first_input_is_mixed() -> None:
    samples = [(image, np.full(2, number, np.int32), number % CLASSES) for number, (image, _) in enumerate(IMAGES)]
    plain = batches(OwnDataset(lambda *_: samples, Path(), "train", batch_size=8).training_epoch(1, 1))
    changed = []
    for mixed, unmixed in zip(batches(own(samples).training_epoch(1, 1)), plain, strict=True):
        changed.append(not np.array_equal(mixed[0], unmixed[0]))
        np.testing.assert_array_equal(mixed[1], unmixed[1])
        assert mixed[2].shape == (8, CLASSES)
    assert any(changed)  # a box of cutmix may have no pixel


@pytest.mark.parametrize(
    ("sample", "mixing", "said"),
    [
        ((np.zeros(3, np.float32), 1), Mixing(CLASSES, None, 1.0), r"the shape \(8, 3\), but cutmix needs images"),
        ((np.zeros(3, np.int32), 1), Mixing(CLASSES, 0.2), r"int32 \(8, 3\), but only floats can be mixed; set mixing"),
        (
            (np.zeros(3, np.float32), -100),
            Mixing(CLASSES, 0.2),
            "the label -100, which is not a class and can't be mixed",
        ),
        ((np.zeros(3, np.float32), [0, 1]), Mixing(CLASSES, 0.2), r"the labels are int32 \(8, 2\), but only classes"),
    ],
)
def test_what_can_not_be_mixed_is_said_at_once(sample: tuple[object, ...], mixing: Mixing, said: str) -> None:
    data = own(8 * [sample], mixing)
    with pytest.raises(DataError, match=said):
        list(read_batches(lambda: data.training_epoch(1, 1), wait=lambda _: pytest.fail("reads it again")))


def test_only_stage_1_mixes_and_only_for_the_built_in_loss() -> None:
    task = tiny_task.TASK
    one = StageOneConfig.checked(task | {"mixing": {"mixup": 0.2}})
    ((_, labels), *_) = batches(build_splits(one, Path(), ["train"])["train"].training_epoch(1, 1))
    assert labels.shape == (6, 3)
    two = StageTwoConfig.checked(task)
    ((_, labels), *_) = batches(build_splits(two, Path(), ["train"])["train"].training_epoch(1, 1_000_001))
    assert labels.shape == (6,)
    with pytest.raises(ConfigError, match=r"unknown key 'mixing\.mixup'"):
        StageTwoConfig.checked(task | {"mixing": {"mixup": 0.2}})
    with pytest.raises(ConfigError, match=r"mixing turns labels into probabilities .* loss is 'mindspore"):
        StageOneConfig.checked(task | {"mixing": {"cutmix": 1}, "loss": "mindspore.nn:MSELoss"})
