"""Record what a command does to a folder, and rebuild what a power failure may leave of it.

The disk certainly has the bytes that a file had at its last ``fsync``, and the names that a folder had at the folder's
own ``fsync``. Of what came later, all, nothing or a part may be there. Only these two calls make anything safe. So the
recording reads the real folder at each of them and at each change of a name, in the process of the command.
"""

import hashlib
import os
import random
import re
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

_CHANGES = ("os.rename", "os.remove", "os.truncate", "os.mkdir", "os.rmdir", "os.link", "os.symlink")
_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT
_ROOT = 0
_UNREAD = re.compile(r"(candidate-|\.writing-|\.lock).*")  # files whose content no later call reads

Names = dict[int, dict[str, int]]  # of each folder, by its number: name -> number of the file or folder
Contents = dict[int, bytes]  # of each file, by its number
Tree = dict[str, bytes | None]  # path below the folder -> content, None for a folder

_recordings: list["Recording"] = []


class Moment(NamedTuple):
    """A folder at one moment.

    Attributes:
        names, contents: what the process sees.
        safe_names, safe_contents: what the disk certainly has; a new file or folder is empty there.
    """

    names: Names
    contents: Contents
    safe_names: Names
    safe_contents: Contents


class Recording:
    """The moments of a folder while ``recorded`` lasts; what is there at the beginning is safe.

    Args:
        root: the folder.

    Attributes:
        moments: the folder before and after each event, without repetitions.
        n_flushes: calls of ``fsync`` and ``fdatasync``.
    """

    def __init__(self, root: Path) -> None:
        self.root, self.n_flushes = root, 0
        self.moments: list[Moment] = []
        self._numbers: dict[tuple[int, int], int] = {}
        self._held: list[int] = []  # one descriptor for each inode, so that its number is not given again
        self._safe_names: Names = {}
        self._safe_contents: Contents = {}
        self._lock, self._is_reading = threading.RLock(), False

    @contextmanager
    def recorded(self) -> Iterator[None]:
        """Record until the block ends."""
        self._safe_names, self._safe_contents = self._read()
        self.note()
        _recordings.append(self)
        try:
            yield
        finally:
            self.note()
            _recordings.remove(self)
            for descriptor in self._held:
                os.close(descriptor)

    def note(self, flushed: int | None = None) -> None:
        """Note the present moment, and that the file or folder behind the descriptor ``flushed`` is safe."""
        with self._lock:
            if self._is_reading:  # this is an event of the recording itself
                return
            names, contents = self._read()
            self._safe_names = {number: {} for number in names} | self._safe_names
            self._safe_contents = dict.fromkeys(contents, b"") | self._safe_contents
            if flushed is not None:
                self.n_flushes += 1
                about = os.fstat(flushed)
                number = self._numbers.get((about.st_dev, about.st_ino))
                self._safe_names |= {number: names[number]} if number in names else {}
                self._safe_contents |= {number: contents[number]} if number in contents else {}
            moment = Moment(names, contents, self._safe_names, dict(self._safe_contents))
            if moment not in self.moments[-1:]:
                self.moments.append(moment)

    def _read(self) -> tuple[Names, Contents]:
        self._is_reading = True
        try:
            while True:
                names, contents = Names(), Contents()
                try:
                    self._read_below(self.root, names, contents)
                except FileNotFoundError:  # another thread has just removed it
                    continue
                return names, contents
        finally:
            self._is_reading = False

    def _read_below(self, path: Path, names: Names, contents: Contents) -> int:
        """Read a file, or a folder and all that is in it; return its number."""
        descriptor = os.open(path, os.O_RDONLY)
        about = os.fstat(descriptor)
        inode = (about.st_dev, about.st_ino)
        if inode in self._numbers:
            os.close(descriptor)
        else:
            self._numbers[inode] = len(self._numbers)
            self._held.append(descriptor)
        number = self._numbers[inode]
        if path.is_dir():
            names[number] = {one.name: self._read_below(one, names, contents) for one in sorted(path.iterdir())}
        else:
            contents[number] = path.read_bytes()
        return number

    def states(self) -> Iterator[tuple[str, Tree]]:
        """Yield each different state that a power failure may leave, with a description.

        Locks and unfinished files count by being there, because nobody reads what is in them.
        """
        seen = set[str]()
        for place, moment in enumerate(self.moments):
            for number, way in enumerate(WAYS):
                tree = way(moment, random.Random(len(WAYS) * place + number))
                if (digest := _digest(tree)) not in seen:
                    seen.add(digest)
                    yield f"moment {place} of {len(self.moments)}, {way.__name__}", tree


def keep_all(moment: Moment, chance: random.Random) -> Tree:
    """Nothing is lost, as if the process alone had died."""
    return _tree(moment, lambda _: True, lambda safe, now: now)


def lose_all(moment: Moment, chance: random.Random) -> Tree:
    """Lose all that was not flushed."""
    return _tree(moment, lambda _: False, lambda safe, now: safe)


def lose_contents(moment: Moment, chance: random.Random) -> Tree:
    """Keep the names; a new file is empty."""
    return _tree(moment, lambda _: True, lambda safe, now: safe)


def lose_contents_to_zeros(moment: Moment, chance: random.Random) -> Tree:
    """Keep the names and sizes, with zeros in place of what was not flushed."""
    return _tree(moment, lambda _: True, lambda safe, now: safe.ljust(len(now), b"\0"))


def lose_names(moment: Moment, chance: random.Random) -> Tree:
    """Keep the contents of the files that have names."""
    return _tree(moment, lambda _: False, lambda safe, now: now)


def lose_some(moment: Moment, chance: random.Random) -> Tree:
    """Keep or lose the names of each folder; a file is as it was flushed, as it was last, or cut between the two."""
    return _tree(
        moment,
        lambda _: chance.random() < 0.5,
        lambda safe, now: chance.choice([safe, now, now[: (len(safe) + len(now)) // 2]]),
    )


WAYS = (lose_all, lose_contents, lose_contents_to_zeros, lose_names, lose_some, lose_some, lose_some, lose_some)


def _tree(moment: Moment, keeps_names: Callable[[int], bool], content: Callable[[bytes, bytes], bytes]) -> Tree:
    """Build a state.

    Args:
        moment: the moment of the power failure.
        keeps_names: tells of a folder, by its number, whether it has its present names; otherwise it has the safe ones.
        content: makes the content of a file from the safe and the present one.
    """
    tree: Tree = {}

    def add(folder: int, path: str) -> None:
        safe = moment.safe_names[folder]
        names = moment.names.get(folder, safe) if keeps_names(folder) else safe
        for name, number in names.items():
            if number in moment.safe_names:
                tree[path + name] = None
                add(number, f"{path}{name}/")
            else:
                safe_content = moment.safe_contents[number]
                tree[path + name] = content(safe_content, moment.contents.get(number, safe_content))

    add(_ROOT, "")
    return tree


def _digest(tree: Tree) -> str:
    read = {(_UNREAD.sub(r"\1", path), None if _UNREAD.search(path) else content) for path, content in tree.items()}
    return hashlib.sha256(repr(sorted(read)).encode()).hexdigest()


def write_tree(tree: Tree, root: Path) -> None:
    """Write a state into an empty folder."""
    for path, content in tree.items():
        if content is None:
            (root / path).mkdir()
        else:
            (root / path).write_bytes(content)


def _audit(name: str, arguments: tuple[Any, ...]) -> None:
    if not _recordings:
        return
    is_opened = name == "open" and isinstance(arguments[2], int) and arguments[2] & _WRITES
    if is_opened or name in _CHANGES:
        for recording in list(_recordings):
            recording.note()


def _noted(function: Callable[[int], None]) -> Callable[[int], None]:
    def call(descriptor: int) -> None:
        for recording in list(_recordings):
            recording.note()
        function(descriptor)
        for recording in list(_recordings):
            recording.note(flushed=descriptor)

    return call


for _name in ("fsync", "fdatasync"):
    if hasattr(os, _name):
        setattr(os, _name, _noted(getattr(os, _name)))
sys.addaudithook(_audit)
