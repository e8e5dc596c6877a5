"""Waiting that is bounded, and never silent."""

import logging

import pytest

from resnet_tpu.training.inference import waiting
from resnet_tpu.training.inference.waiting import Patience


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """A clock that only advances when the program sleeps."""
    now = [1000.0]
    monkeypatch.setattr(waiting.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(waiting.time, "sleep", lambda seconds: now.__setitem__(0, now[0] + seconds))
    return now


def test_logs_waiting_at_once_and_then_less_and_less_often(
    clock: list[float], caplog: pytest.LogCaptureFixture
) -> None:
    patience = Patience(None)
    begun, said = clock[0], []
    with caplog.at_level(logging.INFO, logger="resnet_tpu"):
        while clock[0] < begun + 3600:
            patience.wait(lambda: "a letter")
            said += [clock[0] - begun - 1] * len(caplog.records)
            caplog.clear()
    assert said == [0, 60, 120, 240, 480, 960, 1920]
    assert not patience.is_over


def test_waiting_ends_and_can_begin_again(clock: list[float], caplog: pytest.LogCaptureFixture) -> None:
    patience = Patience(2)
    with caplog.at_level(logging.INFO, logger="resnet_tpu"):
        for _ in range(2):
            begun = clock[0]
            while not patience.is_over:
                patience.wait(lambda: "a letter")
            assert clock[0] == begun + 2
            patience.begin()
    assert [record.message for record in caplog.records] == ["Waiting for a letter; at most 2 s."] * 2
