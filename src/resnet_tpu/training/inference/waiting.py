"""Waiting for files that another program writes."""

import logging
import time
from collections.abc import Callable

log = logging.getLogger(__name__)

_POLL_SECS = 1.0
_SAY_AGAIN_SECS = 60.0


class Patience:
    """Waits for one thing after another, each for at most `timeout` seconds (None: no limit), and logs each."""

    def __init__(self, timeout: float | None) -> None:
        self._timeout = timeout
        self.begin()

    def begin(self) -> None:
        """Starts the wait for the next thing."""
        self._begun = time.monotonic()
        self._pause = 0.0  # seconds from the beginning until the next message; it grows with every message

    @property
    def is_over(self) -> bool:
        """Whether the time is up."""
        return self._timeout is not None and time.monotonic() - self._begun >= self._timeout

    def wait(self, what: Callable[[], str]) -> None:
        """Waits a moment. Logs `what` it waits for at once, and then at growing intervals."""
        if time.monotonic() - self._begun >= self._pause:
            self._pause = max(2 * self._pause, _SAY_AGAIN_SECS)
            limit = "--eval_timeout=SECONDS sets a limit" if self._timeout is None else f"at most {self._timeout:g} s"
            log.info("Waiting for %s; %s.", what(), limit)
        time.sleep(_POLL_SECS)
