"""The formats of the files that dimred writes and reads again. Each file states its format and its version."""

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from dimred.errors import shown
from dimred.io.regular_file import read_regular

_NAME = "format"
_VERSION = "version"


class FileFormat(NamedTuple):
    """A format: its name, and the version that this dimred writes.

    Attributes:
        name: the name that a file of this format states.
        version: 1 at first. A change that an older dimred can't read increments it, and adds a function that converts
            content of the previous version, for ``content_of`` to call.
    """

    name: str
    version: int

    def marked(self, content: Mapping[str, Any]) -> dict[str, Any]:
        """Return the content of a file with its format and version as the first two keys."""
        return {_NAME: self.name, _VERSION: self.version, **content}

    def content_of(self, marked: Any) -> dict[str, Any]:
        """Return the content of a file without the two keys.

        Raises:
            ValueError: it is of another format, or of a version that this dimred does not read.
        """
        if not isinstance(marked, dict) or marked.get(_NAME) != self.name:
            raise ValueError(f"it is not in the format {self.name!r}")
        self._check_version(marked.get(_VERSION))
        return {key: value for key, value in marked.items() if key not in (_NAME, _VERSION)}

    def sealed(self, text: str) -> str:
        """Return a text with a last line added: its format, its version, and the SHA-256 of the lines before."""
        digest = hashlib.sha256(text.encode()).hexdigest()
        return f"{text}{self._seal}{self.version}, SHA-256 of the lines above: {digest}\n"

    def check_seal(self, path: Path) -> None:
        """Check a file with a text that ``sealed`` returned.

        Raises:
            ValueError: the seal is missing, is of a version that this dimred does not read, or does not match.
            OSError: the file can't be read.
        """
        text, seal, end = read_regular(path).rpartition(self._seal.encode())
        version, _, digest = end.decode(errors="replace").partition(", SHA-256 of the lines above: ")
        if not seal or not version.isdecimal():
            raise ValueError("its last line, with its version and checksum, is missing")
        self._check_version(int(version))
        if digest != f"{hashlib.sha256(text).hexdigest()}\n":
            raise ValueError("it was changed after it was written: its checksum does not match")

    @property
    def _seal(self) -> str:
        return f"# {self.name}, version "

    def _check_version(self, version: Any) -> None:
        if type(version) is not int or version != self.version:
            raise ValueError(
                f"it has version {shown(version)} of its format, and this dimred reads version {self.version}; use a "
                "dimred that is as new as the one that wrote it"
            )


# Of every run. metrics.jsonl states no version: it has the version of the pins beside it.
CONFIGURATION = FileFormat("dimred run configuration", 1)
PINNED = FileFormat("dimred run pins", 1)
STATE = FileFormat("dimred run state", 1)
# Of stage 1, the PCA and stage 2.
SERIES = FileFormat("dimred snapshot series", 1)
BASIS = FileFormat("dimred basis", 1)
RESULT_OF_STAGE_2 = FileFormat("dimred stage 2 result", 1)
# Of a merge and of a comparison.
MERGE = FileFormat("dimred merge", 1)
SCORES = FileFormat("dimred scores", 1)
COMPARED = FileFormat("dimred comparison row", 1)
