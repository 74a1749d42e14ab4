"""Files appear whole or not at all, leftovers of a killed writer go, and one process at a time holds a folder."""

import os
import re
import shutil
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from dimred.errors import RunError
from dimred.io.atomic import (
    LOCK,
    FolderLock,
    atomic_folder,
    atomic_write,
    is_temporary,
    open_atomic,
    remove_leftovers,
)
from tests.helpers import needs
from tests.helpers.processes import held, slow_writer


def test_a_file_appears_only_when_the_block_ends(tmp_path):
    path = tmp_path / "a.json"
    with open_atomic(path) as file:
        file.write(b"half")
        assert not path.exists()
        file.write(b" and half")
    assert path.read_bytes() == b"half and half"
    assert list(tmp_path.iterdir()) == [path]


def test_an_error_leaves_what_was_there(tmp_path):
    path = tmp_path / "a.json"
    atomic_write(path, "old")
    with suppress(ZeroDivisionError), open_atomic(path) as file:
        file.write(b"new")
        raise ZeroDivisionError
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_target_with_the_longest_name_can_be_written(tmp_path):
    path = tmp_path / ("n" * 255)
    atomic_write(path, "x")
    assert path.read_text() == "x"


def test_files_get_the_usual_permissions(tmp_path):
    old = os.umask(0o027)
    try:
        atomic_write(tmp_path / "a", "x")
    finally:
        os.umask(old)
    assert (tmp_path / "a").stat().st_mode & 0o777 == 0o640


def test_leftovers_of_a_killed_process_are_removed_and_others_kept(tmp_path):
    with slow_writer(tmp_path / "target"):
        remove_leftovers(tmp_path)
        (leftover,) = tmp_path.iterdir()  # a living process's file stays
    assert leftover.read_bytes() == b"half"
    (tmp_path / ".writing-mine.tmp").write_text("not ours")
    remove_leftovers(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == [".writing-mine.tmp"]


@pytest.mark.skipif(shutil.which("unshare") is None, reason="needs a program of Linux")
def test_a_writer_in_another_container_keeps_its_file(tmp_path: Path) -> None:
    """There it has another number, and here none, so that only its lock says that it is at work."""
    code = "import sys; from dimred.io.atomic import remove_leftovers; remove_leftovers(sys.argv[1])"
    remover = ["unshare", "--user", "--map-root-user", "--pid", "--fork", sys.executable, "-c", code, tmp_path]
    with slow_writer(tmp_path / "target"):
        if subprocess.run(remover, stderr=subprocess.DEVNULL).returncode:
            pytest.skip("no namespaces here")
        assert len(list(tmp_path.iterdir())) == 1
    subprocess.run(remover, check=True)
    assert not list(tmp_path.iterdir())


def test_writers_and_removers_in_one_folder_do_not_disturb_each_other(tmp_path: Path) -> None:
    """A file can be found between the moments when it is made and when it is locked."""
    start = "import sys; from dimred.io.atomic import *; folder = Path(sys.argv[1])\n"
    writer = start + "for number in range(300): atomic_write(folder / sys.argv[2], str(number))"
    maker = start + "for number in range(300):\n    with atomic_folder(folder / f'{sys.argv[2]}{number}'): pass"
    remover = start + "while True: remove_leftovers(folder)"
    removers = [subprocess.Popen([sys.executable, "-c", remover, tmp_path]) for _ in range(2)]
    codes = {"a": writer, "b": writer, "c": maker}
    writers = [subprocess.Popen([sys.executable, "-c", code, tmp_path, name]) for name, code in codes.items()]
    try:
        assert [process.wait(120) for process in writers] == [0, 0, 0]
    finally:
        for process in (*removers, *writers):
            process.kill()
            process.wait()
    made = {"a", "b", *(f"c{number}" for number in range(300))}
    assert {path.name for path in tmp_path.iterdir()} == made


def test_what_was_written_elsewhere_or_before_the_last_start_stays(tmp_path: Path) -> None:
    """Its writer may be on another machine, whose locks on some shared disks do not reach here."""
    with slow_writer(tmp_path / "target"):
        pass
    (leftover,) = tmp_path.iterdir()
    other = leftover.rename(leftover.with_name(re.sub("-[0-9a-f]{16}-", f"-{'0' * 16}-", leftover.name)))
    remove_leftovers(tmp_path)
    assert list(tmp_path.iterdir()) == [other]
    assert is_temporary(other.name)


def test_leftovers_of_another_user_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with slow_writer(tmp_path / "target"):
        pass
    monkeypatch.chdir(tmp_path)
    tmp_path.chmod(0o555)
    user = os.geteuid()
    os.seteuid(user or 65534)  # root may do anything
    try:
        remove_leftovers(".")
    finally:
        os.seteuid(user)
        tmp_path.chmod(0o755)
    assert len(list(tmp_path.iterdir())) == 1


@pytest.mark.parametrize("ends", ["well", "with an error"])
def test_a_folder_appears_whole_or_not_at_all(tmp_path: Path, ends: str) -> None:
    target = tmp_path / "made"
    with suppress(ZeroDivisionError), atomic_folder(target) as folder:
        assert not target.exists()
        (folder / "one").write_text("1")
        if ends != "well":
            raise ZeroDivisionError
    assert [str(path.relative_to(tmp_path)) for path in sorted(tmp_path.rglob("*"))] == (
        ["made", "made/one"] if ends == "well" else []
    )


def test_a_folder_that_is_there_is_not_replaced(tmp_path: Path) -> None:
    (tmp_path / "made").mkdir()
    (tmp_path / "made" / "mine").write_text("1")
    with pytest.raises(OSError, match="not empty") as error, atomic_folder(tmp_path / "made"):
        pass
    assert error.value.filename == str(tmp_path / "made")
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["made", "mine"]


def test_the_holder_and_what_it_holds_are_named_and_a_killed_holder_holds_nothing(tmp_path: Path) -> None:
    lock = FolderLock(tmp_path, "--out", Path("here"))
    with (
        held("with FolderLock(target, 'FOLDER'):\n    wait()", tmp_path) as holder,
        pytest.raises(RunError, match=rf"^--out is 'here', where process {holder.pid} on .* is at work"),
        lock,
    ):
        pass
    assert (tmp_path / LOCK).exists()
    with lock:
        pass


def test_a_damaged_note_does_not_matter(tmp_path: Path) -> None:
    (tmp_path / LOCK).write_bytes(b"\xff{")
    with FolderLock(tmp_path, "a"):
        (tmp_path / LOCK).write_bytes(b"[" * 100_000)
        with pytest.raises(RunError, match="another process is at work"), FolderLock(tmp_path, "a"):
            pass


def test_a_file_that_was_removed_is_no_lock(tmp_path: Path) -> None:
    with FolderLock(tmp_path, "a") as first:
        first.remove()
        with FolderLock(tmp_path, "a"):
            assert (tmp_path / LOCK).exists()


def test_a_folder_with_a_result_stays(tmp_path: Path) -> None:
    with FolderLock(tmp_path / "a" / "b", "a") as lock:
        (tmp_path / "a" / "b" / "result").touch()
        lock.remove()
    assert [path.name for path in (tmp_path / "a" / "b").iterdir()] == ["result"]
    (tmp_path / "a" / "b" / "result").unlink()
    with FolderLock(tmp_path / "a" / "b", "a") as lock:
        lock.remove()
    assert not (tmp_path / "a" / "b").exists()
    assert (tmp_path / "a").exists()


def test_a_link_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / LOCK).symlink_to(tmp_path / "no" / "such")
    with pytest.raises(OSError, match="symbolic links"), FolderLock(tmp_path, "a"):
        pass


@needs.LINUX
def test_the_files_of_a_folder_reach_the_disk_before_it_appears(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flushes, flush = [], os.fsync

    def fsync(descriptor: int) -> None:
        flushes.append(Path(f"/proc/self/fd/{descriptor}").readlink().name)
        flush(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    with atomic_folder(tmp_path / "made") as folder:
        (folder / "one").write_text("1")
    assert flushes == ["one", folder.name, tmp_path.name]
