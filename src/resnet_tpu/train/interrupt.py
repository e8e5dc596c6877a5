"""Ctrl-C and SIGTERM while training: the step in work is finished and saved before the program ends."""

import signal
import threading
from types import FrameType

_EXIT_TERMINATED = 128 + signal.SIGTERM


class Interruption:
    """A context manager that turns the first Ctrl-C or SIGTERM into a flag; the second Ctrl-C acts at once."""

    def __init__(self) -> None:
        self._signal: int | None = None
        self._before: dict[int, signal._HANDLER] = {}

    def __enter__(self) -> "Interruption":
        if threading.current_thread() is threading.main_thread():  # Python allows handlers nowhere else
            for number in (signal.SIGINT, signal.SIGTERM):
                if signal.getsignal(number) != signal.SIG_IGN:  # what was started to run in the background stays so
                    self._before[number] = signal.signal(number, self._note)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _note(self, number: int, _: FrameType | None) -> None:
        self._signal = number
        if signal.SIGINT in self._before:
            signal.signal(signal.SIGINT, self._before[signal.SIGINT])

    @property
    def is_requested(self) -> bool:
        """Whether the program has been asked to end."""
        return self._signal is not None

    def leave(self) -> None:
        """Ends the program the way the signal would have, when one came."""
        if self._signal == signal.SIGINT:
            raise KeyboardInterrupt
        if self._signal is not None:
            raise SystemExit(_EXIT_TERMINATED)
