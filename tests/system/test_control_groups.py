"""Limits of the groups that containers run in: those above a group count too, in both versions of the groups."""

from pathlib import Path

import pytest

from resnet_tpu.system import control_groups, machine


def group(folder: Path, **files: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / name.replace("__", ".")).write_text(f"{text}\n")


@pytest.fixture
def memberships(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(control_groups, "ROOT", tmp_path)
    monkeypatch.setattr(control_groups, "MEMBERSHIPS", tmp_path / "memberships")
    return tmp_path / "memberships"


def test_memory_left(tmp_path: Path, memberships: Path) -> None:
    group(tmp_path / "a" / "b", memory__max="max", memory__current="10")
    group(tmp_path / "a", memory__max="1000", memory__current="300", memory__stat="anon 5\ninactive_file 40")
    group(tmp_path / "memory" / "c", memory__limit_in_bytes="500", memory__usage_in_bytes="600")
    group(tmp_path / "memory", memory__limit_in_bytes="9000", memory__usage_in_bytes="600", memory__stat="x 1")
    for text, left in {
        "0::/a/b\n": [740],
        "4:memory:/c\n1:cpu:/a\n0::/\n": [-100, 8400],
        "0::/elsewhere\n": [],
        "": [],
    }.items():
        memberships.write_text(text)
        assert control_groups.memory_left() == left


def test_cores_allowed(tmp_path: Path, memberships: Path) -> None:
    group(tmp_path / "a" / "b", cpu__max="max 100000")
    group(tmp_path / "a", cpu__max="250000 100000")
    group(tmp_path / "cpu,cpuacct" / "c", cpu__cfs_quota_us="50000", cpu__cfs_period_us="100000")
    group(tmp_path / "cpu,cpuacct", cpu__cfs_quota_us="-1", cpu__cfs_period_us="100000")
    for text, allowed in {
        "0::/a/b\n": [2.5],
        "5:cpuset:/a\n4:cpu,cpuacct:/c\n0::/\n": [0.5],
        "0::/elsewhere\n": [],
        "": [],
    }.items():
        memberships.write_text(text)
        assert control_groups.cores_allowed() == allowed


@pytest.mark.parametrize(("allowed", "cores"), [([], 8), ([0.1], 1), ([2.5, 4.0], 3), ([64.0], 8)])
def test_a_container_has_the_cores_of_its_cpu_time(
    allowed: list[float], cores: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machine.os, "sched_getaffinity", lambda pid: {*range(8)}, raising=False)
    monkeypatch.setattr(control_groups, "cores_allowed", lambda: allowed)
    assert machine.num_cores() == cores
