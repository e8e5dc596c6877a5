"""Many shards at once: processes, a progress bar, and a clear end when one of them dies.

Not a `ProcessPoolExecutor`: a worker killed while others are being started leaves it waiting for ever. Here nothing is
shared but one pipe to each worker, whose end tells that it died.
"""

import collections
import contextlib
import multiprocessing
import os
import signal
import threading
import traceback
from collections.abc import Callable, Iterator, Sequence
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnContext
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

from resnet_tpu.data.images import Limits
from resnet_tpu.data.shards import Shard, ShardResult, write_shard
from resnet_tpu.errors import UserError

_REFRESH_SECS = 0.2
_PATIENCE_SECS = 10  # for a worker to finish the photo in hand


class _StoppedError(Exception):
    """The work is no longer wanted."""


def write_shards(
    shards: Sequence[Shard], out_dir: str, limits: Limits, workers: int, console: Console
) -> dict[str, ShardResult]:
    """Writes the shards in up to `workers` processes; the results by name of shard.

    Raises UserError when a shard cannot be written or a process dies; finished shards stay.
    """
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TaskProgressColumn())
    with Progress(*columns, TimeRemainingColumn(), console=console, transient=True) as progress:
        bar = progress.add_task("images", total=sum(len(shard.photos) for shard in shards))
        if min(workers, len(shards)) <= 1:
            return {shard.name: write_shard(shard, out_dir, limits, lambda: progress.advance(bar)) for shard in shards}
        return _in_processes(shards, out_dir, limits, workers, lambda count: progress.update(bar, completed=count))


def _in_processes(
    shards: Sequence[Shard], out_dir: str, limits: Limits, workers: int, show: Callable[[int], None]
) -> dict[str, ShardResult]:
    context = multiprocessing.get_context("spawn")  # a fork of a process with threads can hang
    counts, stop = context.RawArray("q", len(shards)), context.RawValue("b", 0)  # photos done; whether to end
    queue = collections.deque(enumerate(shards))
    results: dict[str, ShardResult] = {}
    try:
        with _started(context, min(workers, len(shards)), (out_dir, limits, counts, stop), stop) as connections:
            busy: dict[Connection, Shard] = {}
            for connection in connections:
                connection.send(queue[0])
                busy[connection] = queue.popleft()[1]
            while busy:
                for ready in wait(list(busy), _REFRESH_SECS):
                    assert isinstance(ready, Connection)
                    outcome = ready.recv()
                    if isinstance(outcome, Exception):
                        raise outcome
                    results[busy.pop(ready).name] = outcome
                    if queue:
                        ready.send(queue[0])
                        busy[ready] = queue.popleft()[1]
                show(sum(counts))
    except (EOFError, OSError):
        do = "Run the same command again, with fewer --workers if memory is short: finished shards are kept."
        got = "a process that was killed or crashed"
        raise UserError("Preparing images", got, "every worker to finish its shards", do) from None
    return results


@contextlib.contextmanager
def _started(context: SpawnContext, count: int, arguments: tuple[Any, ...], stop: Any) -> Iterator[list[Connection]]:
    """Worker processes, as connections that take (number, Shard) and give the result or the error."""
    processes, connections = [], []
    try:
        for _ in range(count):
            ours, theirs = context.Pipe()
            connections.append(ours)
            process = context.Process(target=_serve, args=(theirs, *arguments), daemon=True)
            process.start()
            processes.append(process)
            theirs.close()  # theirs alone: when it dies, ours ends
        yield connections
    finally:
        stop.value = 1
        for connection in connections:
            connection.close()
        for process in processes:
            process.join(_PATIENCE_SECS)
            process.kill()
            process.join()


def _serve(connection: Connection, out_dir: str, limits: Limits, counts: Any, stop: Any) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent tells
    parent = multiprocessing.parent_process()
    if parent:  # when it is killed, nobody else would end this process
        threading.Thread(target=lambda: (parent.join(), os._exit(1)), daemon=True).start()
    with contextlib.suppress(EOFError, ConnectionError, _StoppedError):
        while True:
            i, shard = connection.recv()

            def after_photo(i: int = i) -> None:
                counts[i] += 1
                if stop.value:
                    raise _StoppedError

            try:
                outcome = write_shard(shard, out_dir, limits, after_photo)
            except _StoppedError:
                raise
            except Exception as error:  # noqa: BLE001  # raised by the parent
                error.add_note(traceback.format_exc())
                outcome = error
            connection.send(outcome)
