"""Where the seconds of a step go."""

import time


class Clock:
    """Wall seconds by part of a step, in ``laps``."""

    def __init__(self) -> None:
        self.laps: dict[str, float] = {}
        self._last = time.perf_counter()

    def lap(self, part: str) -> None:
        """Book the time since the last call under ``part``."""
        now = time.perf_counter()
        self.laps[part] = now - self._last
        self._last = now
