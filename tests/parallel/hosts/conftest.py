"""Starts several processes of the program on this machine, for the tests of this folder."""

import contextlib
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

import pytest

PATIENCE_SECS = 400  # for a machine that is busy with other tests


@dataclass
class Process:
    """One of the processes, with its output in a file."""

    popen: "subprocess.Popen[bytes]"
    log: Path

    def said(self) -> str:
        """What it has written so far."""
        return self.log.read_text()

    def wait_for(self, text: str) -> None:
        """Waits until the process has written `text`."""
        until = time.monotonic() + PATIENCE_SECS
        while text not in self.said():
            if self.popen.poll() is not None or time.monotonic() > until:
                pytest.fail(f"no {text!r} in\n{self.said()}")
            time.sleep(0.05)

    def end(self) -> tuple[int, str]:
        """Waits for the end of the process; its exit code, and all that it has written."""
        try:
            code = self.popen.wait(PATIENCE_SECS)
        except subprocess.TimeoutExpired:
            pytest.fail(f"still running\n{self.said()}")
        return code, self.said()


def free_port(first: int = 0) -> int:
    """An unused port, from `first` on; with 0, one that the system will not give to others for a while."""
    for port in range(first, 65536):
        with socket.socket() as listener, contextlib.suppress(OSError):
            listener.bind(("127.0.0.1", port))
            return listener.getsockname()[1]
    raise OSError("no free port")


@contextlib.contextmanager
def start(
    folder: Path, words: Mapping[int, Sequence[str]], *, count: int | None = None, by_slurm: bool = False
) -> Iterator[list[Process]]:
    """Starts `resnet-tpu` with the words for each process number, in a group of `count`; all are killed in the end.

    Each has one device. They find each other by their options, or by the environment variables of Slurm's srun.
    """
    port = free_port(61440 if by_slurm else 0)
    # XLA sizes its thread pool by NPROC: with fewer threads than simultaneous collectives, these would deadlock
    environment = os.environ | {"JAX_NUM_CPU_DEVICES": "1", "NPROC": "16", "JAX_PLATFORMS": "cpu"}
    processes = []
    try:
        for number, own in words.items():
            log = folder / f"process{number}-{time.monotonic_ns()}.log"
            options = {"coordinator_address": f"127.0.0.1:{port}", "num_processes": count or len(words)}
            named = [f"--{name}={value}" for name, value in {**options, "process_id": number}.items()]
            slurm = {
                "SLURM_JOB_ID": str(port - 61440), "SLURM_STEP_NODELIST": "127.0.0.1", "SLURM_NTASKS": str(len(words)),
                "SLURM_PROCID": str(number), "SLURM_LOCALID": str(number),
            }  # fmt: skip
            command = [sys.executable, "-m", "resnet_tpu", *own, *([] if by_slurm else named)]
            with log.open("wb") as file:
                popen = subprocess.Popen(
                    command, stdout=file, stderr=subprocess.STDOUT, env=environment | (slurm if by_slurm else {})
                )
            processes.append(Process(popen, log))
        yield processes
    finally:
        for process in processes:
            process.popen.kill()
            process.popen.wait()


@pytest.fixture(scope="session")
def started() -> Callable[..., AbstractContextManager[list[Process]]]:
    """`start` above."""
    return start
