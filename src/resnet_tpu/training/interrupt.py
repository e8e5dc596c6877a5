"""Ctrl-C, SIGTERM and SIGHUP while training: the current step is finished and saved before the program ends.

With several processes, a signal to one is enough: all end at the same step.
"""

import signal
import threading
from types import FrameType

from resnet_tpu.parallel import hosts
from resnet_tpu.system import signals


class Interruption:
    """A context manager that turns the first termination signal into a flag; a second Ctrl-C acts at once."""

    def __init__(self) -> None:
        self._signal: int | None = None
        self._due: int | None = None
        self._before: dict[int, signal._HANDLER] = {}

    def __enter__(self) -> "Interruption":
        if threading.current_thread() is threading.main_thread():  # only this thread may set handlers
            for number in signals.ending():
                self._before[number] = signal.signal(number, self._note)
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        if kind is None and (group := hosts.process_group()):  # else the next training would stop after this last step
            group.stop_signal(-1, lambda: None)
        if kind is None and self._signal is not None:  # it came after `end_if_signalled`
            signal.raise_signal(self._signal)

    def _note(self, number: int, _: FrameType | None) -> None:
        self._signal = number
        if number == signal.SIGHUP:
            signals.drop_lost_terminal()
        if signal.SIGINT in self._before:
            signal.signal(signal.SIGINT, self._before[signal.SIGINT])

    def is_due(self, step: int) -> bool:
        """Whether the program must end before step `step`; the same in all processes."""
        group = hosts.process_group()
        self._due = self._signal if group is None else group.stop_signal(step, lambda: self._signal)
        return self._due is not None

    def end_if_signalled(self) -> None:
        """Ends the program as the signal would have, if any process received one; every process must call it."""
        # the processes ask each other again, as a signal may have come after the last step
        told = hosts.exchange(str(self._due or self._signal or ""))
        number = next((int(text) for text in told if text), None)
        if number is not None and (group := hosts.process_group()):
            group.stop_watching()
        if number == signal.SIGINT:
            raise KeyboardInterrupt
        if number is not None:
            raise SystemExit(signals.exit_code_after(number))
