"""The folder of a run."""

import shutil
from pathlib import Path

import pytest

from dimred.errors import ConfigError
from dimred.trainer.session import run_folder


def fail_in(folder: Path, write: bool) -> None:
    with run_folder(folder, resume=False) as out:
        if write:
            (out / "result").write_text("kept")
        raise RuntimeError


def test_a_run_that_wrote_nothing_leaves_nothing_and_one_that_did_keeps_it(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError):
        fail_in(tmp_path / "a" / "b", write=False)
    assert not (tmp_path / "a" / "b").exists()
    with pytest.raises(RuntimeError):
        fail_in(tmp_path / "c", write=True)
    assert (tmp_path / "c" / "result").read_text() == "kept"


def lose(folder: Path) -> None:
    with run_folder(folder, resume=False) as out:
        shutil.rmtree(out)
        raise OSError("the disk is gone")


def test_a_folder_that_is_removed_meanwhile_does_not_hide_the_reason(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="the disk is gone"):
        lose(tmp_path / "a")


def test_earlier_results_and_files_are_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="earlier results"), run_folder(tmp_path, resume=False):
        pass
    with pytest.raises(ConfigError, match="earlier results"), run_folder(tmp_path / "file", resume=False):
        pass
    with pytest.raises(ConfigError, match="can't be made"), run_folder(tmp_path / "file" / "below", resume=False):
        pass
