"""What goes wrong in a run that had begun: named, tried again where that helps, and told how to go on."""

import errno
from collections.abc import Iterator
from contextlib import contextmanager

from dimred.errors import DataError, FaultError, StoppedError
from dimred.files.atomic import describe_os_error
from dimred.run.states import RunStates

__all__ = ["translate_errors"]

_REMEDIES = {
    errno.ENOSPC: "free some space",
    errno.EDQUOT: "free some space, or have the quota raised",
    errno.EROFS: "make the disk writable",
    errno.EACCES: "make the folder writable",
    errno.ENOENT: "put the folder back",
}


@contextmanager
def translate_errors(states: RunStates) -> Iterator[None]:
    """Turn a fault of the disk or the data into an error that says what failed, what is kept, and how to go on.

    Raises:
        FaultError: in place of an OSError or a DataError; a FaultError gets the last good state added.
        StoppedError: as it is, with the last good state added.
    """
    try:
        yield
    except OSError as error:
        remedy = _REMEDIES.get(error.errno or 0, "remove the cause")
        raise FaultError(f"{describe_os_error(error)}. {_kept(states)}: {remedy}, and {_GO_ON}") from error
    except (DataError, FaultError) as error:
        raise FaultError(f"{error}. {_kept(states)}: once the cause is gone, {_GO_ON}") from error
    except StoppedError as stop:
        raise StoppedError(stop.number, f"{states.newest_in_words()}; {_GO_ON}") from None


_GO_ON = "run the same command with --resume"


def _kept(states: RunStates) -> str:
    words = states.newest_in_words()
    return words[0].upper() + words[1:]
