"""What a split on disk holds."""

import os
from pathlib import Path

from dimred.data.image_tree import read_image_tree


def test_images_are_counted_and_other_files_are_not(tmp_path: Path) -> None:
    for name in ("a/1.png", "a/2.JPEG", "b/1.jpg", "b/notes.txt", "b/" + os.fsdecode(b"\xff.png")):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(b"")
    assert read_image_tree(tmp_path) == (["a", "b"], 4, [".JPEG", ".jpg", ".png"])
