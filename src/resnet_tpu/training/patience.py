"""Waiting for what another program is to write."""

import logging
import time
from collections.abc import Callable

log = logging.getLogger(__name__)

_POLL_SECS = 1.0
_SAY_AGAIN_SECS = 60.0


class Patience:
    """Waits for one thing after the other, each for at most `timeout` seconds (None: for ever), and says for what."""

    def __init__(self, timeout: float | None) -> None:
        self._timeout = timeout
        self.begin()

    def begin(self) -> None:
        """From here on something new is waited for."""
        self._begun = time.monotonic()
        self._pause = 0.0  # from the beginning till it is said again what for: ever longer

    @property
    def is_over(self) -> bool:
        """Whether the time is up."""
        return self._timeout is not None and time.monotonic() - self._begun >= self._timeout

    def wait(self, what: Callable[[], str]) -> None:
        """Waits a moment. Says at once, then less and less often, `what` for."""
        if time.monotonic() - self._begun >= self._pause:
            self._pause = max(2 * self._pause, _SAY_AGAIN_SECS)
            limit = "--eval_timeout=SECONDS sets a limit" if self._timeout is None else f"at most {self._timeout:g} s"
            log.info("Waiting for %s; %s.", what(), limit)
        time.sleep(_POLL_SECS)
