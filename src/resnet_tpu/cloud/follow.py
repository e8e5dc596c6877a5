"""Follows training that runs elsewhere: the state of its job, and the log of its first host."""

import contextlib
import logging
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from resnet_tpu import storage
from resnet_tpu.errors import UserError, first_line
from resnet_tpu.storage.buckets import NoAnswerError

log = logging.getLogger(__name__)

_LAST_LINES = 20


@dataclass(frozen=True)
class JobState:
    """The state of a job as reported by its service."""

    state: str
    is_over: bool = False


class TrainingFailedError(UserError):
    """Training failed."""


def follow(poll: Callable[[], JobState], folder: str, *, pause_secs: float) -> None:
    """Shows each change of state and the log of host 0 as it grows, until that host has ended.

    folder: where host 0 keeps `log-0.txt` and, when it has ended, its exit code in `exit-0`. Raises TrainingFailedError
    if that is not 0, or if the job ends without one. While the service or the bucket does not answer, training is
    assumed to continue.
    """
    shown, state = "", ""
    while True:
        now = poll()
        try:
            code = _read(folder, "exit-0").strip()  # read before the log: once it is there, the log is complete
            text = _read(folder, "log-0.txt")
        except NoAnswerError as error:
            now, code, text = JobState(f"no answer: {first_line(error)}"), "", shown
        if now.state != state:
            log.info("%s: %s", time.strftime("%H:%M:%S"), now.state)
        state = now.state
        if not text.startswith(shown[:-1]):  # a restarted host has a new log; the last character may be incomplete
            shown = ""
        sys.stdout.write(text[len(shown) :])
        sys.stdout.flush()
        shown = text
        if code:
            break
        if now.is_over:
            do = "Submit it again: it continues from its last checkpoint."
            raise TrainingFailedError(f"Training in {folder}", f"state {state}", "it to finish on its own", do)
        time.sleep(pause_secs)
    if code != "0":
        last = "\n".join(text.splitlines()[-_LAST_LINES:])
        do = f"Logs of all hosts are there. The log of the first ends with:\n{last}"
        raise TrainingFailedError(f"Training in {folder}", f"exit code {code}", "0", do)


@contextlib.contextmanager
def log_stop_command_on_exit(command: str) -> Iterator[None]:
    """If the block is left before training ends, logs that it continues, and the command that ends it."""
    try:
        yield
    except TrainingFailedError:
        raise
    except BaseException:
        log.info("Training continues. Stop it with: %s", command)
        raise


def delete_old_logs(folder: str) -> None:
    """Deletes the files that an earlier job of the same name left in the folder."""
    for name in ("exit-0", "log-0.txt"):
        storage.remove(storage.join(folder, name))


def _read(folder: str, name: str) -> str:
    """The text of a file; empty until it exists."""
    with contextlib.suppress(FileNotFoundError):
        return storage.read_bytes(storage.join(folder, name)).decode(errors="replace")  # may end within a character
    return ""
