"""What goes wrong in a run that had begun: named, tried again where that helps, and told how to go on."""

import errno
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from dimred.errors import DataError, FaultError, StoppedError
from dimred.runtime.states import RunStates

__all__ = ["faults_named", "persistently"]

_Result = TypeVar("_Result")
_WAITS_SECONDS = (1.0, 5.0, 20.0)
# Errors that pass: a network disk that is away for a moment, a full disk that somebody clears.
_PASSING = {errno.EIO, errno.ESTALE, errno.EAGAIN, errno.ETIMEDOUT, errno.EBUSY, errno.ENOSPC, errno.EDQUOT}
_REMEDIES = {
    errno.ENOSPC: "free some space",
    errno.EDQUOT: "free some space, or have the quota raised",
    errno.EROFS: "make the disk writable",
    errno.EACCES: "make the folder writable",
    errno.ENOENT: "put the folder back",
}


def persistently(action: Callable[[], _Result], wait: Callable[[float], None] = time.sleep) -> _Result:
    """Do it; where the disk fails in a way that may pass, wait and do it again, three times.

    Raises:
        OSError: the last one.
    """
    for pause in _WAITS_SECONDS:
        try:
            return action()
        except OSError as error:
            if error.errno not in _PASSING:
                raise
            print(f"{_in_words(error)}; trying again in {pause:.0f} s", flush=True)
            wait(pause)
    return action()


@contextmanager
def faults_named(states: RunStates) -> Iterator[None]:
    """Turn a fault of the disk or the data into an error that says what failed, what is kept, and how to go on.

    Raises:
        FaultError: in place of an OSError or a DataError; a FaultError gets the last good state added.
        StoppedError: as it is, with the last good state added.
    """
    try:
        yield
    except OSError as error:
        remedy = _REMEDIES.get(error.errno or 0, "remove the cause")
        raise FaultError(f"{_in_words(error)}. {_kept(states)}: {remedy}, and {_GO_ON}") from error
    except (DataError, FaultError) as error:
        raise FaultError(f"{error}. {_kept(states)}: once the cause is gone, {_GO_ON}") from error
    except StoppedError as stop:
        raise StoppedError(stop.number, f"{states.newest_in_words()}; {_GO_ON}") from None


_GO_ON = "run the same command with --resume"


def _kept(states: RunStates) -> str:
    words = states.newest_in_words()
    return words[0].upper() + words[1:]


def _in_words(error: OSError) -> str:
    why = os.strerror(error.errno) if error.errno else str(error)
    return f"{error.filename}: {why}" if error.filename else why
