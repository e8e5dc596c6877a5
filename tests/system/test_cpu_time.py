"""CPU time of processes, of process trees, and of cores."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from resnet_tpu.system.cpu_time import cpu_secs_of_family, cpu_secs_of_process, cpu_secs_per_core


@pytest.mark.skipif(not Path("/proc").is_dir(), reason="CPU time of other processes is known on Linux alone")
def test_cpu_time_of_a_family_includes_all_children() -> None:
    before = cpu_secs_of_family()
    with subprocess.Popen(
        [sys.executable, "-c", "import time\nwhile time.process_time() < 0.5: pass\nprint(flush=True); input()"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as child:
        assert child.stdout
        child.stdout.readline()
        assert cpu_secs_of_process(child.pid) > 0.4
        assert cpu_secs_of_family() - before > 0.4  # while the child is running
        child.communicate(b"\n")
    assert cpu_secs_of_family() - before > 0.4  # and after its end


def test_an_ended_process_has_no_cpu_time() -> None:
    with subprocess.Popen([sys.executable, "-c", ""]) as child:
        child.wait()
    assert cpu_secs_of_process(child.pid) == 0


@pytest.mark.skipif(not Path("/proc").is_dir(), reason="CPU time of other processes is known on Linux alone")
def test_a_core_is_busy_no_longer_than_it_was_there() -> None:
    """A process that may use part of the machine looks at that part alone."""
    if not cpu_secs_per_core():
        pytest.skip("/proc/stat has other numbers for the cores, as in some containers")
    allowed = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(allowed)})
    try:
        before, began, used = cpu_secs_per_core(), time.perf_counter(), time.process_time()
        while time.process_time() - used < 0.3:
            pass
        busy, elapsed = cpu_secs_per_core() - before, time.perf_counter() - began
    finally:
        os.sched_setaffinity(0, allowed)
    assert 0.2 < busy < elapsed + 0.2
