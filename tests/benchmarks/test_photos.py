from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from dimred.errors import DataError
from tests.benchmarks import photos as photos_module
from tests.benchmarks.photos import CHANGES, PATCH, SPLITS, write_photos


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    out = tmp_path_factory.mktemp("data") / "photos"
    return out, write_photos(out, seed=2)


def test_counts_classes_and_sizes(written):
    out, counts = written
    assert counts == {name: 2 * n_blocks * n_patches for name, (n_blocks, n_patches) in SPLITS.items()}
    for split in SPLITS:
        assert len(list((out / split).rglob("*.png"))) == counts[split]
        assert sorted(folder.name for folder in (out / split).iterdir()) == sorted(CHANGES)
    path = next((out / "val").rglob("*.png"))
    assert np.asarray(Image.open(path)).shape == (PATCH, PATCH, 3)


def test_no_block_of_a_photograph_is_in_two_splits(written):
    out, _ = written
    seen: dict[str, str] = {}
    for path in out.rglob("*.png"):
        block, split = path.name.rsplit("_", 1)[0], path.parent.parent.name
        assert seen.setdefault(block, split) == split
    assert len(seen) == 320


def variation(patch, axis):
    """Mean absolute difference of neighbours along an axis."""
    return np.abs(np.diff(patch, axis=axis)).mean()


def test_each_change_does_what_its_name_says():
    patch = np.random.default_rng(1).uniform(0, 255, (PATCH, PATCH, 3))
    changed = {name: change(patch) for name, change in CHANGES.items()}
    before = {axis: variation(patch, axis) for axis in (0, 1)}
    after = {name: [variation(changed[name], axis) / before[axis] for axis in (0, 1)] for name in CHANGES}
    assert after["nothing"] == [1, 1]
    assert after["blur_rows"][1] < 0.5 < after["blur_rows"][0] < 0.7  # noise shrinks by the root of 3 across the rows
    assert after["blur_columns"][0] < 0.5 < after["blur_columns"][1] < 0.7
    assert max(after["blur"]) < 0.4
    assert min(after["sharpen"]) > 1.5
    np.testing.assert_allclose(after["flatten"], 0.5)
    np.testing.assert_allclose(changed["flatten"].mean((0, 1)), patch.mean((0, 1)))
    assert np.unique(changed["posterise"]).tolist() == list(range(16, 256, 32))
    np.testing.assert_array_equal(changed["pixelate"][0::2, 0::2], changed["pixelate"][1::2, 1::2])
    np.testing.assert_allclose(changed["pixelate"][:2, :2], np.broadcast_to(patch[:2, :2].mean((0, 1)), (2, 2, 3)))


def test_same_seed_same_bytes_and_refusals(tmp_path, monkeypatch):
    monkeypatch.setattr(photos_module, "SPLITS", {"train": (20, 3), "val": (4, 2)})
    out = tmp_path / "one"
    write_photos(out, seed=2)
    write_photos(tmp_path / "again", seed=2)

    def tree(folder: Path) -> dict[str, bytes]:
        return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*.png")}

    assert tree(out) == tree(tmp_path / "again")
    with pytest.raises(DataError, match="exists already"):
        write_photos(out)
