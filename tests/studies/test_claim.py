"""The tables of the published claim say what the store holds."""

from pathlib import Path

import numpy as np

from tests.studies import published_claim

NAMES = [
    "plain 70",
    "plain 80",
    "plain 90",
    "search 1",
    "search 2",
    "cooldown 1",
    "cooldown 2",
    "uniform of 3 snapshots, steps 1 to 3",
    "uniform of 5 snapshots, steps 1 to 5",
    "median of 5 snapshots, steps 1 to 5",
]


def _store(path: Path, right: list[int], **more: np.ndarray) -> None:
    """Write a run whose networks are right on so many of ten images."""
    correct = np.arange(10)[None] < np.array(right)[:, None]
    arrays = {"test_correct": np.packbits(correct, 1), "n_test": np.array(10)} | more
    np.savez(
        path,
        names=NAMES,
        passes=[70, 80, 90, 71.4, 72.8, 71, 72, 71.5, 71.5, 71.5],
        val_losses=[0.7, 0.6, 0.5, 0.7, 0.7, 0.7, 0.7, 0.65, 0.55, 0.5],
        as_trained=np.full(10, 0.25),
        moved=np.full((10, 2), 0.5),
        **arrays,
    )


def test_rows_have_the_latest_epochs_and_the_average_that_val_chooses(tmp_path: Path) -> None:
    _store(tmp_path / "digits_1.npz", [1, 2, 9, 0, 4, 0, 5, 7, 6, 8])
    _store(tmp_path / "digits_2.npz", [3, 2, 9, 0, 4, 0, 7, 7, 8, 8])
    runs = [published_claim.read(path) for path in sorted(tmp_path.glob("*.npz"))]
    assert published_claim.score_table(runs).splitlines()[2:] == [
        "| plain training, epoch 70 | 70.0 | 20.00 ± 14.14 |",
        "| the search as published, 2 epochs | 72.8 | 40.00 ± 0.00 |",
        "| cooldown of 2 epochs | 72.0 | 60.00 ± 14.14 |",
        "| best average of the snapshots | 71.5 | 70.00 ± 14.14 |",
        "| plain training, epoch 80 | 80.0 | 20.00 ± 0.00 |",
        "| plain training, epoch 90 | 90.0 | 90.00 ± 0.00 |",
    ]
    differences = published_claim.difference_table(runs).splitlines()
    assert differences[2] == "| plain training, epoch 70 | +20.00 ± 10.00 | nothing |"  # two seeds are too few
    medians = "| digits | 2 | -0.0500 | +10.00 | 10.00 | 20.00 |"
    assert published_claim.median_table(runs).splitlines()[2:] == [medians]


def test_a_text_has_minus_a_hundred_times_its_loss(tmp_path: Path) -> None:
    _store(tmp_path / "source_1.npz", [0] * 10, test_losses=np.linspace(1, 2, 10)[:, None] * np.ones(4))
    [row, *_] = published_claim.read(tmp_path / "source_1.npz").networks
    assert (row.test, row.as_trained) == (-100, -25)


def test_a_run_again_stands_beside_its_own_seed(tmp_path: Path) -> None:
    for seed, right in ((1, [1, 2, 9, 0, 4, 0, 5, 7, 6, 8]), (2, [3, 2, 9, 0, 6, 0, 7, 7, 8, 8])):
        _store(tmp_path / f"digits_{seed}.npz", right)
    stored = published_claim.load(tmp_path)
    again = stored[1]._replace(networks=[one._replace(test=one.test + 10) for one in stored[1].networks[:5:4]])
    row = "| digits, seed 2 | 30.00 | 40.00 | 60.00 | 70.00 | +10.00 | 14.14 | +30.00 | +30.00 |"
    assert published_claim.again_table(stored, [again]).splitlines()[2:] == [row]
