"""A process that does not outlive the one that started it, whatever ends that one."""

import ctypes
import signal

_PR_SET_PDEATHSIG = 1


def die_with_parent() -> None:
    """Ask the kernel to kill this process (SIGKILL) when the one that started it is gone; it stays so across ``exec``.

    Linux only, as msrun is; elsewhere nothing happens.
    """
    try:
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    except (AttributeError, OSError):
        return
