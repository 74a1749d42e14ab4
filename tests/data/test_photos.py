from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from dimred.data import photos
from dimred.data.photos import SPLITS, write_photos
from dimred.errors import DataError


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    out = tmp_path_factory.mktemp("data") / "photos"
    return out, write_photos(out, seed=2)


def test_counts_classes_and_sizes(written):
    out, counts = written
    assert counts == {name: 2 * n_blocks * n_patches for name, (n_blocks, n_patches) in SPLITS.items()}
    for split in SPLITS:
        assert len(list((out / split).rglob("*.png"))) == counts[split]
        assert len(list((out / split).iterdir())) == 8
    path = next((out / "val").rglob("*.png"))
    assert np.asarray(Image.open(path)).shape == (16, 16, 3)


def test_no_block_of_a_photograph_is_in_two_splits(written):
    out, _ = written
    seen: dict[tuple[str, str], str] = {}
    for path in out.rglob("*.png"):
        block = (path.parent.name.rsplit("_", 1)[0], path.name[5:8])
        assert seen.setdefault(block, path.parent.parent.name) == path.parent.parent.name
    assert len(seen) == 320


def test_the_class_says_how_far_the_patch_is_turned(tmp_path, monkeypatch):
    """A photograph that grows brighter downwards tells the turn of each patch."""
    ramp = np.broadcast_to(np.arange(427)[:, None, None] / 427 * 250, (427, 640, 3)).astype(np.uint8)

    class Ramp:
        filenames, images = (f"{tmp_path}/one.jpg", f"{tmp_path}/two.jpg"), (ramp, ramp)

    monkeypatch.setattr(photos, "load_sample_images", Ramp)
    write_photos(tmp_path / "out", noise=0.0)
    for path in sorted((tmp_path / "out" / "val").rglob("*.png"))[::20]:
        pixels = np.rot90(np.asarray(Image.open(path)).astype(float), -int(path.parent.name[-3:]) // 90)
        assert pixels[-1].mean() > pixels[0].mean() + 5


def test_same_seed_same_bytes_and_refusals(written, tmp_path):
    out, _ = written
    write_photos(tmp_path / "again", seed=2)

    def tree(folder: Path) -> dict[str, bytes]:
        return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*.png")}

    assert tree(out) == tree(tmp_path / "again")
    with pytest.raises(DataError, match="exists already"):
        write_photos(out)
