"""Many shards at once: processes, a progress bar, and a clear error when one of them dies."""

import collections
import contextlib
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection, wait
from typing import Any

from rich.console import Console

from resnet_tpu.data.cleaning import Limits
from resnet_tpu.data.prepare.shards import Shard, ShardResult, write_shard
from resnet_tpu.errors import UserError
from resnet_tpu.system.processes import CONTEXT, Crew, outcome_of
from resnet_tpu.system.terminal import live_line

_REFRESH_SECS = 0.2
_PATIENCE_SECS = 10  # for a worker to finish the photo in hand


class _StoppedError(BaseException):
    """Raised to end work that is no longer wanted."""


def write_shards(
    shards: Sequence[Shard], out_dir: str, limits: Limits, workers: int, console: Console
) -> dict[str, ShardResult]:
    """Writes the shards in up to `workers` processes; returns the results by shard name.

    Raises UserError when a shard cannot be written or a process dies; finished shards are kept.
    """
    with live_line(console=console) as progress:
        bar = progress.add_task("images", total=sum(len(shard.photos) for shard in shards))
        if min(workers, len(shards)) <= 1:
            return {shard.name: write_shard(shard, out_dir, limits, lambda: progress.advance(bar)) for shard in shards}
        return _in_processes(shards, out_dir, limits, workers, lambda count: progress.update(bar, completed=count))


def _in_processes(
    shards: Sequence[Shard], out_dir: str, limits: Limits, workers: int, show: Callable[[int], None]
) -> dict[str, ShardResult]:
    counts, stop = CONTEXT.RawArray("q", len(shards)), CONTEXT.RawValue("b", 0)  # photos done; whether to end
    queue = collections.deque(enumerate(shards))
    results: dict[str, ShardResult] = {}
    try:
        crew = Crew(min(workers, len(shards)), _serve, (out_dir, limits, counts, stop))
        try:
            busy: dict[Connection, Shard] = {}
            for connection in crew.connections:
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
        finally:
            stop.value = 1
            crew.close(_PATIENCE_SECS)
    except (EOFError, OSError):
        do = "Run the same command again, with fewer --workers if memory is short: finished shards are kept."
        got = "a process that was killed or crashed"
        raise UserError("Preparing images", got, "every worker to finish its shards", do) from None
    return results


def _serve(connection: Connection, out_dir: str, limits: Limits, counts: Any, stop: Any) -> None:
    with contextlib.suppress(_StoppedError):
        while True:
            i, shard = connection.recv()

            def after_photo(i: int = i) -> None:
                counts[i] += 1
                if stop.value:
                    raise _StoppedError

            connection.send(outcome_of(write_shard, shard, out_dir, limits, after_photo))
