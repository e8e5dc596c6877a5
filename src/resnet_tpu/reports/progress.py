"""Progress bars for long work, shown only on a terminal."""

from collections.abc import Iterable, Iterator
from typing import TypeVar

from rich.console import Console
from rich.progress import Progress, TextColumn

from resnet_tpu.parallel import hosts
from resnet_tpu.system.terminal import live_line

T = TypeVar("T")


def _make_progress() -> Progress:
    return live_line(TextColumn("{task.fields[note]}"), console=Console(stderr=True), is_shown=hosts.is_first())


def track(items: Iterable[T], description: str, total: int) -> Iterator[T]:
    """Yields the items while showing a progress bar."""
    with _make_progress() as progress:
        task = progress.add_task(description, total=total, note="")
        for item in items:
            yield item
            progress.advance(task)


class TrainingProgress:
    """A progress bar over all steps of a run, as a context manager."""

    def __init__(self, step: int, total: int) -> None:
        self._progress = _make_progress()
        self._task = self._progress.add_task("train", total=total, completed=step, note="")

    def __enter__(self) -> "TrainingProgress":
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def update(self, step: int, note: str | None = None) -> None:
        """Moves the bar, and changes the text after it."""
        if note is None:
            self._progress.update(self._task, completed=step)
        else:
            self._progress.update(self._task, completed=step, note=note)
