import pytest

from benchmarks.feeding import Lost, Slow, simulate
from resnet_tpu.performance.plan.host import Host

STEP = 0.05
PER_HOST = 1024
NEEDED = PER_HOST / STEP


def epoch(host: Host, *, workers: int = 96, hosts: int = 1, steps: int = 600, **changes):
    return simulate(
        host, workers=workers, hosts=hosts, batch_size=hosts * PER_HOST, step_seconds=STEP, steps=steps, **changes
    )


@pytest.mark.long
@pytest.mark.parametrize("hosts", [1, 8])
@pytest.mark.parametrize(
    ("host", "workers"),
    [(Host(NEEDED / 2), 8), (Host(NEEDED / 2), 96), (Host(2 * NEEDED, mb_per_sec=NEEDED / 2 * 0.11), 96)],
    ids=["threads", "processes", "reading"],
)
def test_in_the_long_run_devices_wait_as_long_as_the_slower_of_reading_and_decoding_takes(
    host: Host, workers: int, hosts: int
) -> None:
    assert epoch(host, workers=workers, hosts=hosts).input_wait == pytest.approx(
        1 - host.most_images_per_sec / NEEDED, abs=0.03
    )


@pytest.mark.parametrize("host", [Host(1.25 * NEEDED), Host(1.25 * NEEDED, mb_per_sec=1.25 * NEEDED * 0.11)])
def test_hosts_that_give_more_than_is_needed_keep_no_device_waiting(host: Host) -> None:
    found = epoch(host, hosts=2)
    assert found.input_wait < 0.002
    assert found.seconds == pytest.approx(600 * STEP, rel=0.002)


def test_one_slow_bucket_holds_up_all_hosts_once_what_they_hold_is_used_up() -> None:
    host = Host(1.25 * NEEDED, mb_per_sec=1.25 * NEEDED * 0.11)
    short, long = (epoch(host, hosts=2, slow=[Slow(10, seconds, 0.001, hosts=1)]) for seconds in (0.2, 5))
    assert short.input_wait < 0.002
    assert 4 < long.longest_wait < 5
    assert long.seconds == pytest.approx(600 * STEP + long.longest_wait, abs=0.3)


def test_more_workers_hold_more_images() -> None:
    few, many = (epoch(Host(2 * NEEDED), workers=workers) for workers in (8, 96))
    batch_mb = PER_HOST * 224 * 224 * 3 / 1e6
    assert 2 * batch_mb < few.host_mb < many.host_mb


def test_a_lost_worker_costs_the_restart_and_the_steps_since_the_last_checkpoint() -> None:
    found = epoch(Host(2 * NEEDED), hosts=2, lost=Lost(at=15.1, restart=60, steps_per_save=100))
    assert found.longest_wait == 60
    again = found.steps - 600
    assert 0 < again <= 100
    assert found.seconds == pytest.approx((600 + again) * STEP + 60, abs=1)
