"""Images that come or go while a run reads them."""

import os
from pathlib import Path

import pytest

from dimred.data.image_tree import ClassFolders
from dimred.errors import DataError


@pytest.fixture
def split(tmp_path: Path) -> Path:
    for name in ("a/1.png", "a/2.JPEG", "b/1.jpg", "b/notes.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(b"")
    return tmp_path


def test_images_are_counted_and_other_files_come_and_go(split: Path) -> None:
    folders = ClassFolders(split)
    assert (folders.n_images, folders.suffixes) == (3, [".JPEG", ".jpg", ".png"])
    folders.check_unchanged()
    (split / "b" / "more notes.txt").write_bytes(b"")
    (split / "b" / "notes.txt").unlink()
    folders.check_unchanged()


@pytest.mark.parametrize("change", ["gone", "new", "another"])
def test_an_image_that_comes_or_goes_is_said(split: Path, change: str) -> None:
    folders = ClassFolders(split)
    if change != "new":
        (split / "a" / "1.png").unlink()
    if change != "gone":
        (split / "a" / "3.png").write_bytes(b"")
    count = {"gone": 1, "new": 3, "another": 2}[change]
    with pytest.raises(DataError, match=rf"images in .*/a are not those .*\(2 then, {count} now\)"):
        folders.check_unchanged()


def test_a_class_that_is_gone_is_named_and_may_come_back(split: Path) -> None:
    folders = ClassFolders(split)
    (split / "b").rename(split / "away")
    with pytest.raises(DataError, match=r"/b can't be read \(No such file"):
        folders.check_unchanged()
    (split / "away").rename(split / "b")
    folders.check_unchanged()


def test_a_name_that_is_no_text_is_counted(split: Path) -> None:
    (split / "a" / os.fsdecode(b"\xff.png")).write_bytes(b"")
    folders = ClassFolders(split)
    assert folders.n_images == 4
    folders.check_unchanged()
