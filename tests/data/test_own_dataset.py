"""A user's own samples have order, batches, ranks and seeds as class folders do; wrong factories are explained."""

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import pytest

from dimred.data.batches import DamagedError, Readable, read_batches
from dimred.data.own_dataset import OwnDataset
from dimred.errors import DataError

NUMBERS = [(np.full((2, 2), number, np.float32), number % 3) for number in range(23)]


def made(samples: Sequence[tuple[object, ...]] = NUMBERS, split: str = "train", **options: int) -> OwnDataset:
    return OwnDataset(lambda data, split, seed: samples, Path("here"), split, **{"batch_size": 4} | options)


def columns(batches: Readable) -> list[tuple[np.ndarray, ...]]:
    return list(batches.create_tuple_iterator(output_numpy=True))


def numbers(batches: Readable) -> list[list[int]]:
    return [images[:, 0, 0].astype(int).tolist() for images, _ in columns(batches)]


def test_an_epoch_has_its_seed_and_its_number_where_that_is_asked_for_and_evaluation_neither() -> None:
    told = []

    def of_epoch(data: Path, split: str, seed: int | None, epoch: int | None) -> Sequence[tuple[object, ...]]:
        told.append((epoch, seed))
        return NUMBERS[:8]

    data = OwnDataset(of_epoch, Path(), "train", batch_size=4)
    for epoch in (2, 900_000, 1_000_001, 2, 900_001, 999_999, 0):
        data.training_epoch(7, epoch)
    assert numbers(data.evaluation()) == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert [epoch for epoch, _ in told] == [None, 2, 900_000, 1_000_001, 2, None, None, None]
    assert told[0][1] is None
    assert told[1][1] == told[4][1] != told[3][1]


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


def test_a_trial_takes_samples_from_the_whole_split() -> None:
    part = made().shortened(1)
    assert (part.n_images, part.steps_per_epoch) == (4, 1)
    assert numbers(part.evaluation()) == [[0, 5, 11, 17]]
    assert sorted(*numbers(part.training_epoch(1, 1))) == [0, 5, 11, 17]
    assert numbers(part.shortened(1).evaluation()) == numbers(part.evaluation())
    assert numbers(made().shortened(99).evaluation()) == numbers(made().evaluation())


@pytest.mark.parametrize(("n_ranks", "accumulation"), [(2, 1), (3, 1), (2, 2), (4, 1)])
def test_one_process_drops_the_samples_that_several_ranks_would_drop(n_ranks: int, accumulation: int) -> None:
    size = 3
    options = {"batch_size": size, "accumulation": accumulation, "group_size": n_ranks}
    ranks = [made(rank=rank, **options) for rank in range(n_ranks)]
    alone = made(batch_size=size, accumulation=accumulation * n_ranks, multiple_of=n_ranks)
    assert alone.steps_per_epoch == ranks[0].steps_per_epoch
    of_ranks = zip(*(numbers(rank.training_epoch(1, 1)) for rank in ranks), strict=True)
    steps = numbers(alone.training_epoch(1, 1))
    assert [sorted(number for part in parts for number in part) for parts in of_ranks] == [
        sorted(step) for step in steps
    ]
    assert [len(step) for step in steps] == [alone.rows_of_step(number + 1) for number in range(len(steps))]


@pytest.mark.parametrize(
    ("labels", "dtype"),
    [([1, 0, 2], np.int32), (np.array([3, 4], np.uint8), np.int32), ([True, False], np.int32), ([0.25, 2], np.float32)],
)
def test_whole_labels_leave_as_int32_and_other_numbers_as_float32(labels: Sequence[object], dtype: type) -> None:
    ((_, found),) = columns(made([(0, label) for label in labels]).evaluation())
    assert found.dtype == dtype
    np.testing.assert_array_equal(found, labels)


@pytest.mark.parametrize(
    ("given", "taken"),
    [
        ("f8", "f4"),
        (">f8", "f4"),
        (">f4", "f4"),
        ("longdouble", "f4"),
        ("f2", "f2"),
        (">f2", "f2"),
        (">i4", "i4"),
        ("i8", "i8"),
        ("u1", "u1"),
        ("?", "?"),
    ],
)
def test_inputs_keep_their_type_but_wide_floats_become_float32_in_this_machine_s_order(given: str, taken: str) -> None:
    ((inputs, labels),) = columns(made([(np.array([0, 1], given), np.array(1, ">i2"))], batch_size=1).evaluation())
    assert inputs.dtype == np.dtype(taken)
    assert labels.dtype == np.int32
    assert inputs.tolist() == [[0, 1]]
    assert labels.tolist() == [1]


@pytest.mark.parametrize(
    ("first", "label", "said"),
    [
        (1, 3_000_000_000, r"3000000000, which is beyond int32.* scale the labels, or give all as floats"),
        (1, np.array([0, -(1 << 40)]), r"-1099511627776, which is beyond int32"),
        (1, 1 << 70, r"1180591620717411303424, which is not a number that NumPy has a type for"),
        (1, "cat", "'cat', which is not a number"),
        (0.5, 1e39, r"1e\+39, which is beyond float32"),
        (1, 2**31 - 1, None),
        (0.5, 3_000_000_000, None),
        (0.5, np.inf, None),
    ],
)
def test_a_label_beyond_its_type_is_refused_and_not_changed(first: object, label: object, said: str | None) -> None:
    data = made([(0, np.broadcast_to(first, np.shape(label))), (0, label)])
    if said is None:
        ((_, labels),) = columns(data.evaluation())
        assert labels[1] == label
    else:
        with pytest.raises(DataError, match=f"^sample 1 of the split 'train' has the label {said}"):
            columns(data.evaluation())


def test_an_array_that_is_filled_again_for_each_sample_is_copied() -> None:
    class Refilled(list):
        image, label = np.zeros((2, 2), np.float32), np.zeros((), np.int32)

        def __getitem__(self, number: int) -> tuple[np.ndarray, np.ndarray]:
            self.image[:], self.label[()] = number, number
            return self.image, self.label

    for images, labels in columns(made(Refilled(range(240))).training_epoch(1, 1)):
        np.testing.assert_array_equal(images[:, 0, 0], labels)
        assert len({*labels.tolist()}) == 4


def test_a_fraction_among_whole_labels_is_said_and_not_rounded() -> None:
    said = r"^sample 1 of the split 'train' has the label .*0\.5.*, but the first sample's is a whole number; give all"
    with pytest.raises(DataError, match=said):
        list(read_batches(made([(0, 1), (0, 0.5)]).evaluation, wait=lambda _: pytest.fail("reads it again")))


@pytest.mark.parametrize(("label", "is_a_class"), [(-100, True), (2, True), (3, False), (-1, False), (1 << 40, False)])
def test_a_label_that_is_no_class_is_refused_before_it_is_trained(label: int, is_a_class: bool) -> None:
    data = made([(0.0, 0), (1.0, label)], batch_size=2)
    data.check_use(3, trains_classes=True, measures_classes=True)
    said = rf"^sample 1 of the split 'train' has the label {label}, but the network has 3 outputs, for the classes 0"
    with nullcontext() if is_a_class else pytest.raises(DataError, match=said):
        columns(data.training_epoch(1, 1))


@pytest.mark.parametrize(
    ("second", "said"),
    [
        (lambda: (np.zeros(3), 0), "samples have different shapes.*set data.resize=true"),
        (lambda: (np.zeros(2, np.float16), 0), "samples have different types.*or give all samples one type"),
        (
            lambda: (np.zeros(2), 0, 0),
            "^sample 1 of the split .train. has 3 parts, but the first has 2; give every sample the same number",
        ),
        (lambda: [][1], "IndexError"),
        (lambda: None, r"failed to give sample 1 of the split 'train' .*it is None, not a tuple \(input, label\)"),
        (lambda: {"x": np.zeros(2), "y": 0}, r"failed to give sample 1 .*it is \{'x': .*, not a tuple"),
        (lambda: ([[1.0, 2.0], [3.0]], 0), "failed to give sample 1 .*inhomogeneous shape"),
        (lambda: (None, 0), "sample 1 of the split .train. has the input None, which is not an array of numbers"),
    ],
)
def test_samples_that_never_fit_are_read_once(second: Callable[[], tuple[object, ...]], said: str) -> None:
    class Samples(list):
        def __getitem__(self, number: int) -> object:
            return (np.zeros(2), 0) if number == 0 else second()

    data = made(Samples([0, 1]), batch_size=2)
    with pytest.raises(DataError, match=said):
        list(read_batches(data.evaluation, wait=lambda _: pytest.fail("reads it again")))


def test_samples_of_a_disk_that_comes_back_are_read_again() -> None:
    class Samples(list):
        def __getitem__(self, number: int) -> object:
            if number == 1 and not waits:
                raise TimeoutError("the disk is away")
            return np.zeros(2), number

    waits = []
    data = made(Samples([0, 1]), batch_size=2)
    ((_, labels),) = list(read_batches(data.evaluation, wait=waits.append))
    assert labels.asnumpy().tolist() == [0, 1]
    assert waits == [2.0]


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
    said = rf"shape .* for the split '{split}', which is not a class; give the class"
    with nullcontext() if fits else pytest.raises(DataError, match=said):
        made([(0, label)], split).check_use(3, trains_classes=True, measures_classes=False)
    made([(0, label)], split).check_use(3, trains_classes=False, measures_classes=False)


@pytest.mark.parametrize(
    ("bad", "said"),
    [
        (lambda data, split, seed: 5, "'int' has no len()\"); fix the function, which must return a sequence"),
        (lambda data, split, seed: {1, 2}, "'set' object is not subscriptable"),
        (lambda data, split, seed: [], "no samples for the split 'train'"),
        (lambda data, split, seed: [1], "it is 1, not a tuple (input, label) or (input, ..., label)"),
        (lambda data, split, seed: [(1,)], "it is (1,), not a tuple (input, label)"),
        (lambda data, split, seed: [{"image": 1, "label": 2}], "it is {'image': 1, 'label': 2}, not a tuple"),
        (lambda data, split, seed: np.zeros((3, 8, 8)), "not a tuple (input, label)"),
        (lambda data, split, seed: [(1, "cat")], "the label 'cat', which is not a number"),
        (lambda data: [], "TypeError"),
        (lambda data, split, seed: {}[split], "KeyError"),
    ],
)
def test_a_wrong_factory_is_explained(bad: object, said: str) -> None:
    with pytest.raises(DataError) as refused:
        OwnDataset(bad, Path("here"), "train", batch_size=4)  # type: ignore[arg-type]
    assert said in str(refused.value)


@pytest.mark.parametrize(
    ("seeded", "is_lasting", "said"),
    [
        (lambda: NUMBERS[:4], True, "gave 23 samples without a seed, and 4 with one; give the same number"),
        (lambda: iter(NUMBERS), True, r"seed \d+ \(TypeError: .*'list_iterator' has no len\(\)"),
        (lambda: {}["seed"], True, r"split 'train', seed \d+ \(KeyError: "),
        (lambda: Path("gone").stat(), False, r"split 'train', seed \d+ \(FileNotFoundError: "),
    ],
)
def test_what_the_factory_gives_with_a_seed_is_checked_too(
    seeded: Callable[[], Sequence[tuple[object, ...]]], is_lasting: bool, said: str
) -> None:
    """Whoever reads an epoch has a DataError to save the run after; a mistake is not waited for."""
    data = OwnDataset(lambda data, split, seed: NUMBERS if seed is None else seeded(), Path(), "train", batch_size=4)
    waits: list[float] = []
    with pytest.raises(DataError, match=said):
        list(read_batches(lambda: data.training_epoch(1, 1), wait=waits.append))
    assert (not waits) == is_lasting


def test_several_inputs_and_float_labels_of_any_shape_leave_as_they_are() -> None:
    samples = [(np.full(2, n, np.int64), np.float32(n), np.full((3, 2), n / 4)) for n in range(5)]
    ((first, second, labels),) = columns(made(samples, batch_size=5).evaluation())
    assert (first.dtype, second.dtype, labels.dtype) == (np.int64, np.float32, np.float32)
    for column, expected in zip((first, second, labels), zip(*samples, strict=True), strict=True):
        np.testing.assert_array_equal(column, np.array(expected))


@pytest.mark.parametrize(
    ("error", "is_lasting", "said"),
    [
        (
            KeyError("image 1"),
            True,
            r"sample 1 of the split 'train' \(KeyError: .*image 1.*, in .*test_own_dataset\.py:\d+\); fix",
        ),
        (ValueError("1 error\n  for Sample"), True, r"\(ValueError: '1 error\\n  for Sample', in .*; fix the function"),
        (
            ConnectionError("the disk of image 1 is gone"),
            False,
            "can't be read: .*ConnectionError: the disk of image 1",
        ),
    ],
)
def test_an_error_in_a_user_s_samples_is_told_in_its_own_words(error: Exception, is_lasting: bool, said: str) -> None:
    """Only what may be of a disk or a network is read again."""

    class Broken(list):
        def __getitem__(self, number: int) -> object:
            if number == 1:
                raise error
            return super().__getitem__(number)

    with pytest.raises(DataError, match=said) as raised:
        columns(made(Broken(NUMBERS)).evaluation())
    assert isinstance(raised.value, DamagedError) == is_lasting
