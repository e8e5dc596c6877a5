"""Several processes, on one host or many, that train together: how they connect, and what they agree on."""

import contextlib
import json
import logging
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import jax

from resnet_tpu.errors import UserError, describe, first_line
from resnet_tpu.options.config import RunConfig
from resnet_tpu.parallel import meshes, startup
from resnet_tpu.parallel.process_group import ProcessGroup, lost_process, status_of
from resnet_tpu.parallel.rendezvous import meet
from resnet_tpu.system.failures import as_user_error

log = logging.getLogger(__name__)

_group: ProcessGroup | None = None


def process_group() -> ProcessGroup | None:
    """The processes that this one works with; None when it works alone."""
    return _group


@contextlib.contextmanager
def connected(run: RunConfig) -> Iterator[None]:
    """Runs the block on the devices that the options ask for (see `startup.start_jax`), with any other processes.

    Enter it before anything touches a device; the processes stay connected until the program ends. An error in the
    block ends all processes; one caused by the loss of another process becomes LostProcessError. Raises UserError for
    invalid options, and when the others do not connect within `coordinator_timeout`.
    """
    startup.start_jax(use_tpu=run.use_tpu)
    if _group is None:
        _connect(run)
    group = process_group()
    if group is None:
        yield
        return
    try:
        _open_channels(run)
        yield
    except BaseException as error:
        try:
            ended = _translated(error, group)
        except BaseException as again:  # noqa: BLE001  # a signal
            ended = again
        if not group.is_ending:
            group.fail(describe(ended), _exit_code(ended))
        if ended is error:
            raise
        raise ended from error


def _open_channels(run: RunConfig) -> None:
    """Connects the devices of all processes once, at a time when all processes are known to be there.

    Between CPUs, the first to arrive waits for only 30 s. Later, a process that has a step in its cache would arrive
    long before one that has to compile it.
    """
    agree({"num_cores": run.num_cores}, "Start all with the same options.")
    mesh = meshes.make_mesh(run.num_cores)
    if mesh.devices.flat[0].platform == "cpu":
        meshes.add_up(mesh)


def agree(values: Mapping[str, Any], do: str) -> None:
    """Raises UserError in every process, naming values and processes, unless all processes give the same values."""
    group = process_group()
    if group is None:
        return
    answers = [json.loads(text) for text in group.exchange(json.dumps({k: str(v) for k, v in values.items()}))]
    names = sorted({name for answer in answers for name in answer})
    differing = {
        name: by_value
        for name in names
        if len(by_value := _by_value([answer.get(name, "nothing") for answer in answers])) > 1
    }
    if differing:
        group.stop_watching()
        got = "; ".join(
            f"{name} " + ", ".join(f"{value} in {_processes(where)}" for value, where in by_value.items())
            for name, by_value in differing.items()
        )
        raise UserError("Processes", got, f"the same in all {group.count} processes", do)


def exchange(text: str) -> list[str]:
    """The texts that the processes passed to the same call, in order; every process must call it."""
    group = process_group()
    return [text] if group is None else group.exchange(text)


def from_first(make: Callable[[], Any]) -> Any:
    """The result of `make`, which only process 0 calls, sent to all as JSON; every process must call this."""
    return json.loads(exchange(json.dumps(make()) if is_first() else "")[0])


def is_first() -> bool:
    """Whether this process works alone or is number 0: the one that logs, and writes what is written only once."""
    group = process_group()
    return group is None or group.index == 0


def wait_for_all() -> None:
    """Returns when every process has called it."""
    exchange("")


def _by_value(values: list[str]) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    for index, value in enumerate(values):
        found.setdefault(value, []).append(index)
    return found


def _processes(numbers: list[int]) -> str:
    named = ", ".join(map(str, numbers[:8])) + (f" and {len(numbers) - 8} more" if len(numbers) > 8 else "")
    return f"process {named}" if len(numbers) == 1 else f"processes {named}"


def is_loss(error: BaseException) -> bool:
    """Whether a JAX error means that another process ended."""
    if process_group() is None or not isinstance(error, ValueError | RuntimeError):
        return False
    if status_of(error) == "UNAVAILABLE":
        return True
    # errors of collectives between CPUs have no status: JAX turns Gloo's message into a ValueError
    return any(origin in str(error) for origin in ("CoordinationServiceError", "Gloo"))


def _translated(error: BaseException, group: ProcessGroup) -> BaseException:
    if not is_loss(error):
        return (isinstance(error, Exception) and as_user_error(error)) or error
    group.follow_failure()
    return lost_process(f"One of {group.count} processes", f"a stop in the middle of the work ({first_line(error)})")


def _exit_code(error: BaseException) -> int:
    if isinstance(error, UserError):
        return error.exit_code
    if isinstance(error, KeyboardInterrupt):
        return 130
    return error.code if isinstance(error, SystemExit) and isinstance(error.code, int) else 1


def _connect(run: RunConfig) -> None:
    """Connects to the other processes, if there are any."""
    global _group
    meet(run)
    if jax.distributed.is_initialized() and jax.process_count() > 1:
        index, count = jax.process_index(), jax.process_count()
        _group = ProcessGroup(index=index, count=count, timeout_secs=run.coordinator_timeout)
        _configure_log(index)
        log.info("%d processes with %d devices in all", count, jax.device_count())


def _configure_log(index: int) -> None:
    """Lets process 0 log everything, and the others only warnings, with their number."""
    if index:
        logger = logging.getLogger("resnet_tpu")
        logger.setLevel(logging.WARNING)
        for handler in logger.handlers:
            handler.setFormatter(logging.Formatter(f"[process {index}] %(message)s"))
