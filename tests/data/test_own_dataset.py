"""Somebody's own samples: order, batches, ranks and seeds as for class folders; wrong factories explained."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from dimred.data.own_dataset import OwnDataset
from dimred.errors import DataError


class Numbers:
    def __init__(self, n: int):
        self.n = n

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, number: int) -> tuple[np.ndarray, int]:
        return np.full((2, 2), number, np.float32), number % 3


def factory(data: Path, split: str, seed: int | None) -> Numbers:
    return Numbers(23)


def numbers(batches: object) -> list[list[int]]:
    return [
        images[:, 0, 0].astype(int).tolist()
        for images, _ in batches.create_tuple_iterator(num_epochs=1, output_numpy=True)
    ]


def made(batch_size: int = 4, **options: int) -> OwnDataset:
    return OwnDataset(factory, Path("anything"), "train", batch_size=batch_size, **options)


def test_an_epoch_has_its_seed_and_its_number_where_that_is_asked_for_and_evaluation_neither() -> None:
    told = []

    def of_epoch(data: Path, split: str, seed: int | None, epoch: int | None) -> Numbers:
        told.append((epoch, seed))
        return Numbers(8)

    data = OwnDataset(of_epoch, Path(), "train", batch_size=4)
    for epoch in (2, 1_000_001, 2):
        data.training_epoch(7, epoch)
    assert numbers(data.evaluation()) == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert [epoch for epoch, _ in told] == [None, 2, 1_000_001, 2]
    assert told[0][1] is None
    assert told[1][1] == told[3][1] != told[2][1]


def test_two_ranks_see_together_what_one_sees_alone_and_groups_of_micro_batches_what_single_ones_do() -> None:
    alone = numbers(made(batch_size=8).training_epoch(1, 1))
    ranks = [numbers(made(rank=rank, group_size=2).training_epoch(1, 1)) for rank in (0, 1)]
    assert [first + second for first, second in zip(*ranks, strict=True)] == alone
    grouped = made(accumulation=2)
    groups = numbers(grouped.training_epoch(1, 1))
    single = numbers(made().training_epoch(1, 1))
    assert [len(batch) for batch in groups] == [grouped.rows_of_step(step) for step in (1, 2, 3)] == [8, 8, 4]
    assert [made(rank=1, group_size=2, accumulation=2).rows_of_step(step) for step in (1, 2)] == [8, 0]
    assert [n for batch in groups for n in batch] == [n for batch in single for n in batch]


def labelled(*labels: object) -> OwnDataset:
    """Samples with these labels, in ``train``."""
    samples = [(np.zeros(2, np.float32), label) for label in labels]
    return OwnDataset(lambda data, split, seed: samples, Path(), "train", batch_size=len(labels))


def labels_of(data: OwnDataset) -> np.ndarray:
    (batch,) = data.evaluation().create_tuple_iterator(num_epochs=1, output_numpy=True)
    return batch[1]


@pytest.mark.parametrize(
    ("labels", "dtype"),
    [
        ((1, 0, 2), np.int32),
        (np.array([3, 4], np.uint8), np.int32),
        ((True, False), np.int32),
        ((0.25, 2), np.float32),
        (np.array([[0.5, 0.5], [0.0, 1.0]]), np.float32),
    ],
)
def test_whole_labels_leave_as_int32_and_other_numbers_as_float32(labels: Sequence[object], dtype: type) -> None:
    found = labels_of(labelled(*labels))
    assert found.dtype == dtype
    np.testing.assert_array_equal(found, np.array(labels))


def test_a_fraction_among_whole_labels_is_said_and_not_rounded() -> None:
    with pytest.raises(DataError, match=r"sample 1 has the label .*0\.5.*, where the first sample's is a whole number"):
        labels_of(labelled(1, 0.5))


@pytest.mark.parametrize(
    ("label", "split", "fits"),
    [
        (3, "val", True),
        (np.array([0, 1, 1]), "val", True),  # one class for each place of a text
        (0.5, "train", False),
        (np.array([0.1, 0.2, 0.7]), "train", True),
        (np.array([0.1, 0.2, 0.7]), "val", False),
        (np.array([0.3, 0.7]), "train", False),
    ],
)
def test_what_can_not_be_classified_is_said_before_training(label: object, split: str, fits: bool) -> None:
    data = OwnDataset(lambda data, split, seed: [(np.zeros(2), label)], Path(), split, batch_size=1)
    if fits:
        return data.check_classes(3)
    with pytest.raises(
        DataError, match=rf"shape .* for the split '{split}', which can't be classified; give the class"
    ):
        data.check_classes(3)


@pytest.mark.parametrize(
    ("bad", "said"),
    [
        (lambda data, split, seed: 5, "gave int"),
        (lambda data, split, seed: [], "IndexError"),
        (lambda data, split, seed: [1], "samples (input, label)"),
        (lambda data, split, seed: [(1,)], "not enough values to unpack"),
        (lambda data, split, seed: [(1, "cat")], "the label 'cat', which is no number"),
        (lambda data: [], "TypeError"),
        (lambda data, split, seed: {}[split], "KeyError"),
    ],
)
def test_a_wrong_factory_is_explained(bad: object, said: str) -> None:
    with pytest.raises(DataError) as refused:
        OwnDataset(bad, Path("here"), "train", batch_size=4)  # type: ignore[arg-type]
    assert said in str(refused.value)


def test_several_inputs_and_float_labels_of_any_shape_leave_as_they_are() -> None:
    samples = [(np.full(2, n, np.int64), np.float32(n), np.full((3, 2), n / 4)) for n in range(5)]
    data = OwnDataset(lambda data, split, seed: samples, Path(), "val", batch_size=5)
    ((first, second, labels),) = data.evaluation().create_tuple_iterator(num_epochs=1, output_numpy=True)
    assert (first.dtype, second.dtype, labels.dtype) == (np.int64, np.float32, np.float32)
    for column, expected in zip((first, second, labels), zip(*samples, strict=True), strict=True):
        np.testing.assert_array_equal(column, np.array(expected))


def test_an_error_in_somebodys_samples_is_told_in_its_own_words() -> None:
    class Broken(list):
        def __getitem__(self, number: int) -> tuple[np.ndarray, int]:
            if number == 1:
                raise OSError("the disk of image 1 is gone")
            return np.zeros(2), 0

    data = OwnDataset(lambda data, split, seed: Broken([0, 1]), Path(), "train", batch_size=2)
    with pytest.raises(DataError, match=r"can't be read: .*OSError: the disk of image 1 is gone"):
        labels_of(data)
