"""The end of a log that another process writes."""

import re
import sys
from pathlib import Path

_NOISE = re.compile(rb"^\[(INFO|WARNING)\] [A-Z_]+\(\d+,.*\n", re.MULTILINE)  # of MindSpore's C++ code
_TAIL_LINES = 20
_TAIL_BYTES = 64_000


class LogTail:
    """Copies what is appended to a log to standard output; what it held before is left out.

    So is what MindSpore's own code has to say below an error: it stays in the log.
    """

    def __init__(self, path: Path):
        self._path = path
        self._position = path.stat().st_size if path.exists() else 0

    def show(self, *, to_the_end: bool = False) -> None:
        """Print the lines that are new; ``to_the_end`` also one that has not ended."""
        if not self._path.exists():
            return
        with self._path.open("rb") as file:
            file.seek(self._position)
            text = file.read()
        if not to_the_end:
            text = text[: text.rfind(b"\n") + 1]
        self._position += len(text)
        sys.stdout.write(_NOISE.sub(b"", text).decode(errors="replace"))
        sys.stdout.flush()


def last_lines(path: Path) -> str:
    """The last 20 lines, indented, for an error message."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - _TAIL_BYTES))
            lines = file.read().decode(errors="replace").splitlines()
    except OSError as error:
        return f"(there is none: {error.strerror})"
    return "\n".join(f"  {line}" for line in lines[-_TAIL_LINES:])
