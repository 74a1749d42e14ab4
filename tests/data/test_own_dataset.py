"""Somebody's own samples: order, batches, ranks and seeds as for class folders; wrong factories explained."""

from pathlib import Path

import numpy as np
import pytest

from dimred.data.own_dataset import OwnDataset
from dimred.errors import DataError

SEEDS: list[int | None] = []


class Numbers:
    def __init__(self, n: int, seed: int | None):
        self.n, self.seed = n, seed
        SEEDS.append(seed)

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, number: int) -> tuple[np.ndarray, int]:
        return np.full((2, 2), number, np.float32), number % 3


def factory(data: Path, split: str, seed: int | None) -> Numbers:
    return Numbers({"train": 23, "val": 5}[split], seed)


def numbers(batches: object) -> list[list[int]]:
    return [
        images[:, 0, 0].astype(int).tolist()
        for images, _ in batches.create_tuple_iterator(num_epochs=1, output_numpy=True)
    ]


def made(split: str = "train", **options: int) -> OwnDataset:
    return OwnDataset(factory, Path("anything"), split, batch_size=4, **options)


def test_an_epoch_has_every_sample_once_in_an_order_of_its_own() -> None:
    data = made()
    first, again, second = (numbers(data.training_epoch(1, epoch)) for epoch in (1, 1, 2))
    assert data.steps_per_epoch == len(first) == 5
    assert [len(batch) for batch in first] == [4] * 5
    assert len({number for batch in first for number in batch}) == 20
    assert first == again
    assert first != second


def test_each_epoch_has_its_seed_and_evaluation_has_none() -> None:
    SEEDS.clear()
    data = made()
    for epoch in (1, 2, 1):
        data.training_epoch(7, epoch)
    assert SEEDS[0] is None
    assert SEEDS[1] == SEEDS[3] != SEEDS[2]
    assert numbers(made("val").evaluation()) == [[0, 1, 2, 3], [4]]


def test_two_ranks_see_together_what_one_sees_alone_and_groups_of_micro_batches_what_single_ones_do() -> None:
    alone = numbers(OwnDataset(factory, Path(), "train", batch_size=8).training_epoch(1, 1))
    ranks = [numbers(made(rank=rank, group_size=2).training_epoch(1, 1)) for rank in (0, 1)]
    assert [first + second for first, second in zip(*ranks, strict=True)] == alone
    groups = numbers(made(accumulation=2).training_epoch(1, 1))
    single = numbers(made().training_epoch(1, 1))
    assert [len(batch) for batch in groups] == [8, 8, 4]
    assert [n for batch in groups for n in batch] == [n for batch in single for n in batch]


def test_labels_are_int32_whatever_came() -> None:
    for _, labels in made("val").evaluation().create_tuple_iterator(num_epochs=1, output_numpy=True):
        assert labels.dtype == np.int32


@pytest.mark.parametrize(
    ("bad", "said"),
    [
        (lambda data, split, seed: 5, "gave int"),
        (lambda data, split, seed: [], "IndexError"),
        (lambda data, split, seed: [1], "(input, label) pairs"),
        (lambda data: [], "TypeError"),
        (lambda data, split, seed: {}[split], "KeyError"),
    ],
)
def test_a_wrong_factory_is_explained(bad: object, said: str) -> None:
    with pytest.raises(DataError) as refused:
        OwnDataset(bad, Path("here"), "train", batch_size=4)  # type: ignore[arg-type]
    assert said in str(refused.value)
