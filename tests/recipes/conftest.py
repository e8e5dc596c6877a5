"""What the tests of recipes share: trainings without a picture."""

import pytest


@pytest.fixture(autouse=True)
def without_curves(monkeypatch: pytest.MonkeyPatch) -> None:
    """No training draws its curves, which takes longer than its steps."""
    monkeypatch.setattr("resnet_tpu.training.loop.draw_curves", lambda _: None)
