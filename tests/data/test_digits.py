from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from sklearn.datasets import load_digits

from dimred.data import digits
from dimred.data.digits import write_digits, write_image_tree
from dimred.errors import ConfigError, DataError
from dimred.io.atomic import BOOT


def tree(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


SPLITS = {name: (n_scans, 1 + (name == "val")) for name, (n_scans, _) in digits.SPLITS.items()}  # a third of the images


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    out = tmp_path_factory.mktemp("data") / "some digits é"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(digits, "SPLITS", SPLITS)
        return out, write_digits(out, seed=3)


def scan_of(path: Path) -> int:
    return int(path.name[4:8])


def test_no_scan_is_in_two_splits_and_each_lies_in_its_class(written):
    out, counts = written
    target, scans = load_digits().target, set()
    for name, (n_scans, n_variants) in SPLITS.items():
        paths = list((out / name).rglob("*.png"))
        assert len(paths) == counts[name] == n_scans * n_variants
        assert sorted(folder.name for folder in (out / name).iterdir()) == [str(digit) for digit in range(10)]
        assert all(target[scan_of(path)] == int(path.parent.name) for path in paths)
        scans |= {scan_of(path) for path in paths}
    assert len(scans) == sum(n_scans for n_scans, _ in SPLITS.values()) == 1797


def test_an_image_is_its_scan_shifted_and_noisy(tmp_path, monkeypatch):
    monkeypatch.setattr(digits, "SPLITS", {"val": (100, 1)})
    write_digits(tmp_path / "clean", seed=3, noise=0.0)
    scans = load_digits().images
    positions = set()
    for path in sorted((tmp_path / "clean" / "val").rglob("*.png")):
        pixels = np.asarray(Image.open(path)).astype(float)
        assert pixels.shape == (16, 16)
        expected = 64 + 128 * scans[scan_of(path)] / 16
        places = [
            (top, left)
            for top in range(9)
            for left in range(9)
            if np.abs(pixels[top : top + 8, left : left + 8] - expected).max() <= 0.5
        ]
        assert places
        positions.add(places[0])
    assert len(positions) > 30


def test_noise_is_on_every_pixel(written):
    out, _ = written
    corner = [np.asarray(Image.open(path))[0, 0] for path in (out / "val").rglob("*.png")]
    assert np.std(corner) == pytest.approx(0.32 * 128, rel=0.1)


def test_the_same_seed_gives_the_same_bytes_and_label_noise_reaches_the_training_images_only(tmp_path, monkeypatch):
    monkeypatch.setattr(digits, "SPLITS", {"train": (200, 1), "val": (30, 1), "test": (30, 1)})
    for name, seed, label_noise in (("one", 3, 0.4), ("again", 3, 0.4), ("other", 4, 0.4), ("clean", 3, 0.0)):
        write_digits(tmp_path / name, seed=seed, label_noise=label_noise)
    assert tree(tmp_path / "one") == tree(tmp_path / "again")
    assert tree(tmp_path / "one") != tree(tmp_path / "other")
    for name in ("val", "test"):
        assert tree(tmp_path / "one" / name) == tree(tmp_path / "clean" / name)
    target = load_digits().target
    paths = list((tmp_path / "one" / "train").rglob("*.png"))
    wrong = np.mean([target[scan_of(path)] != int(path.parent.name) for path in paths])
    assert wrong == pytest.approx(0.4 * 0.9, abs=0.08)


def test_refusals_name_what_was_given_and_write_nothing(tmp_path):
    full = tmp_path / "full"
    full.mkdir()
    (full / "mine.txt").write_text("mine")
    with pytest.raises(DataError, match=r"OUT is .*full.*exists already"):
        write_digits(full)
    assert [p.name for p in full.iterdir()] == ["mine.txt"]
    with pytest.raises(ConfigError, match=r"OUT is .*below', which can't be made or written to \(File exists\)"):
        write_digits(full / "mine.txt" / "below")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["full"]


def test_a_write_cut_off_midway_leaves_nothing(tmp_path):
    """What a killed one has left goes with the next."""
    (tmp_path / f".writing-{BOOT}-0123abcd.tmp" / "train").mkdir(parents=True)

    def images():
        yield "train", "one", "first", np.zeros((2, 2))
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_image_tree(tmp_path / "out", images())
    assert not list(tmp_path.iterdir())
