import pytest

from resnet_tpu.performance.plan.operations import Operation
from resnet_tpu.performance.plan.timing import time_step
from resnet_tpu.performance.plan.topology import find_topology


def operation(kind: str, cycles: int | None, size: int) -> Operation:
    return Operation("one", kind, "", "", 1, cycles, size)


def test_cycles_go_by_the_clock_and_the_rest_by_bandwidth() -> None:
    topology = find_topology("v2:2x2")
    operations = [operation("convolution", 7_000_000, 10**9), operation("pooling", None, 350_000_000)]
    time = time_step(operations, topology)
    assert time.compiler == pytest.approx(0.010)  # at 0.7 GHz; its bytes are in the cycles already
    assert time.memory == pytest.approx(0.001)  # half of the chip's 700 GB/s
    assert time.network == 0
    assert time.total == pytest.approx(0.011)


@pytest.mark.parametrize(("name", "share"), [("v5e:1x1", 0), ("v5e:2x2", 2 * 3 / 4), ("v5e:16x16", 2 * 255 / 256)])
def test_an_all_reduce_sends_all_but_its_own_part_twice(name: str, share: float) -> None:
    topology = find_topology(name)
    time = time_step([operation("all-reduce", None, 10**9)], topology)
    assert time.network == pytest.approx(share * 10**9 / topology.generation.network_bandwidth)
    gathered = time_step([operation("all-gather", None, 10**9)], topology)
    assert gathered.network == pytest.approx(time.network / 2)


def test_no_step_is_faster_than_the_matrix_units() -> None:
    time = time_step([operation("convolution", None, 48 * 10**9)], find_topology("h200:1"), flops=989e12 / 50)
    assert (time.memory, time.peak) == pytest.approx((0.010, 0.020))
    assert time.total == time.peak
