"""Hosts on a network: processes in network namespaces with addresses of their own, joined by a bridge.

Needs root and iproute2. Only these namespaces are touched, and all of them are removed in the end.
"""

import contextlib
import importlib.util
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from resnet_tpu.checkpoints import folders

pytestmark = [
    pytest.mark.slow,
    pytest.mark.network,
    pytest.mark.skipif(shutil.which("ip") is None, reason="iproute2 is not installed"),
    pytest.mark.skipif(not hasattr(os, "getuid") or os.getuid() != 0, reason="network namespaces are root's to make"),
]

BOUND_SECS = 90  # allows for heartbeats of 10 s and a machine that is busy with other tests


def _neighbour(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"hosts_{name}", Path(__file__).with_name(f"{name}.py"))
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look the module up there
    spec.loader.exec_module(module)
    return module


shared, processes = _neighbour("conftest"), _neighbour("test_processes")


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True, text=True)


class Network:
    """Hosts at 10.0.0.1, 10.0.0.2, ..., joined by a bridge in a namespace of its own."""

    def __init__(self, count: int) -> None:
        self.name = f"rt{os.getpid()}"
        self.hosts = [f"{self.name}h{number}" for number in range(count)]

    def make(self) -> None:
        """Creates namespaces, bridge and links."""
        _ip("netns", "add", self.name)
        _ip("-n", self.name, "link", "add", "bridge", "type", "bridge")
        _ip("-n", self.name, "link", "set", "bridge", "up")
        for number, host in enumerate(self.hosts):
            _ip("netns", "add", host)
            port = f"port{number}"
            _ip("-n", self.name, "link", "add", port, "type", "veth", "peer", "name", "eth0", "netns", host)
            _ip("-n", self.name, "link", "set", port, "master", "bridge", "up")
            _ip("-n", host, "address", "add", f"10.0.0.{number + 1}/24", "dev", "eth0")
            for device in ("lo", "eth0"):
                _ip("-n", host, "link", "set", device, "up")

    def cut(self, number: int) -> None:
        """Takes a host's link down."""
        _ip("-n", self.name, "link", "set", f"port{number}", "down")

    def slow_down(self, number: int, milliseconds: int) -> None:
        """Delays all traffic to a host; skips the test if the kernel cannot do this."""
        delay = ["root", "netem", "delay", f"{milliseconds}ms"]
        command = ["tc", "-n", self.name, "qdisc", "add", "dev", f"port{number}", *delay]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            pytest.skip(f"no added latency here: {done.stderr.strip()}")

    def remove(self) -> None:
        """Removes all namespaces with everything in them."""
        for name in (self.name, *self.hosts):
            subprocess.run(["ip", "netns", "delete", name], capture_output=True, check=False)


@contextlib.contextmanager
def network(count: int) -> Iterator[Network]:
    """A network that exists while it is used."""
    made = Network(count)
    try:
        try:
            made.make()
        except subprocess.CalledProcessError as error:
            pytest.skip(f"no network namespaces here: {error.stderr.strip()}")
        yield made
    finally:
        made.remove()


@contextlib.contextmanager
def started(hosts: Network, folder: Path, words: Sequence[str]) -> Iterator[list[Any]]:
    """Runs `resnet-tpu` with these words on each host; all processes are killed in the end."""
    environment = os.environ | {"JAX_NUM_CPU_DEVICES": "1", "NPROC": "16", "JAX_PLATFORMS": "cpu"}
    found = []
    try:
        for number, host in enumerate(hosts.hosts):
            log, names = folder / f"host{number}-{time.monotonic_ns()}.log", folder / f"hosts{number}"
            options = {
                "coordinator_address": "10.0.0.1:8476", "num_processes": len(hosts.hosts), "process_id": number,
            }  # fmt: skip
            named = [f"--{name}={value}" for name, value in options.items()]
            # Each host gets a name that resolves to its address, which the others need to connect for collectives.
            here = f"hostname {host}; echo 10.0.0.{number + 1} {host} >{names}; mount --bind {names} /etc/hosts"
            inside = ["unshare", "--uts", "--mount", "sh", "-ec", f'{here}; exec "$@"', "sh"]
            command = ["ip", "netns", "exec", host, *inside, sys.executable, "-m", "resnet_tpu", *words, *named]
            with log.open("wb") as file:
                popen = subprocess.Popen(command, stdout=file, stderr=subprocess.STDOUT, env=environment)
            found.append(shared.Process(popen, log))
        yield found
    finally:
        for process in found:
            process.popen.kill()
            process.popen.wait()


def train_and_end(hosts: Network, folder: Path, words: Sequence[str]) -> None:
    """Trains on all hosts, and checks that each ends without an error."""
    with started(hosts, folder, words) as running:
        results = [process.end() for process in running]
    assert [code for code, _ in results] == [0] * len(running), results


@pytest.mark.parametrize(("count", "delay"), [(2, 0), (4, 0), (2, 20)])
def test_hosts_train_as_one_process_with_as_many_devices(count: int, delay: int, tmp_path: Path) -> None:
    options: dict[str, Any] = {"train_steps": 3, "steps_per_eval": 3}
    with network(count) as hosts:
        if delay:
            hosts.slow_down(1, delay)
        train_and_end(hosts, tmp_path, processes.words(tmp_path / "run", **options))
    processes.alone(tmp_path / "alone", count, **options)
    processes.check_the_same_training(tmp_path / "alone", tmp_path / "run")


@pytest.mark.parametrize("fault", ["link", "host"])
def test_a_lost_link_or_host_ends_all_and_the_training_goes_on(fault: str, tmp_path: Path) -> None:
    model_dir = tmp_path / "run"
    options: dict[str, Any] = {"mode": "train", "save_checkpoints_steps": 10, "heartbeat_timeout": 10}
    with network(2) as hosts:
        with started(hosts, tmp_path, processes.words(model_dir, train_steps=1_000_000, **options)) as running:
            running[0].wait_for("Step 20 of")
            begin = time.monotonic()
            if fault == "link":
                hosts.cut(1)
                left = running
            else:
                running[1].popen.kill()
                left = running[:1]
            for process in left:
                processes.check_that_a_lost_process_was_said(*process.end())
            assert time.monotonic() - begin < BOUND_SECS
        kept = folders.steps_in(str(model_dir / "checkpoints"))[-1]
        assert kept >= 10
    shutil.copytree(model_dir, tmp_path / "alone")
    with network(2) as hosts:
        train_and_end(hosts, tmp_path, processes.words(model_dir, train_steps=kept + 3, **options))
    processes.alone(tmp_path / "alone", 2, mode="train", train_steps=kept + 3)
    processes.check_the_same_training(tmp_path / "alone", model_dir)
