"""The folder of a run: what may be in it, who may use it, and the versions that it is run with."""

import json
import re
import shutil
from pathlib import Path

import pytest

from dimred.errors import ConfigError, RunError
from dimred.io.atomic import open_atomic
from dimred.runs.run_folder import check_run_folder, run_folder, write_versions


def fail_in(folder: Path, how: str) -> None:
    with run_folder(folder) as out:
        if how == "after a result":
            (out / "result").write_text("kept")
        elif how == "without the folder":
            shutil.rmtree(out)
        raise OSError("the disk is gone")


@pytest.mark.parametrize("how", ["before a result", "after a result", "without the folder"])
def test_a_run_that_wrote_nothing_leaves_nothing_and_its_folder_never_hides_the_reason(
    how: str, tmp_path: Path
) -> None:
    with pytest.raises(OSError, match="the disk is gone"):
        fail_in(tmp_path / "a" / "b", how)
    assert (tmp_path / "a" / "b").exists() == (how == "after a result")


def test_a_run_that_is_refused_removes_nothing_of_the_one_that_is_at_work(tmp_path: Path) -> None:
    with open_atomic(tmp_path / "elsewhere") as file:
        of_this_host = Path(file.name).name
    unfinished = tmp_path / "run" / re.sub(r"-\d+-", "-4194399-", of_this_host)  # of a process that is not seen here
    with run_folder(tmp_path / "run"):
        unfinished.touch()
        with pytest.raises(RunError, match="is at work"), run_folder(tmp_path / "run"):
            pass
        assert unfinished.exists()
    with run_folder(tmp_path / "run"):
        assert not unfinished.exists()


def test_earlier_results_and_files_are_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for folder, said in ((tmp_path, "earlier results"), (tmp_path / "file", "not a folder; name another one")):
        with pytest.raises(ConfigError, match=said):
            check_run_folder(folder, resume=False)
    with pytest.raises(ConfigError, match="something other than a run"):
        check_run_folder(tmp_path, resume=True)
    with pytest.raises(ConfigError, match="can't be made"), run_folder(tmp_path / "file" / "below"):
        pass


def test_the_versions_are_those_of_the_last_start(tmp_path: Path) -> None:
    file = tmp_path / "versions.json"
    file.write_text("damaged")
    write_versions(tmp_path)
    assert {"dimred", "mindspore", "python", "system", "processors"} <= json.loads(file.read_text()).keys()
