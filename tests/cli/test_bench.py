"""`bench WHAT --quick`: little work replaces the defaults, never what was typed."""

from typing import Any

import pytest

from resnet_tpu import cli


def measured(monkeypatch: pytest.MonkeyPatch, what: str, *words: str) -> tuple[Any, ...]:
    """The arguments that `bench WHAT` gives to the function that measures, the last of which are the words."""
    calls: list[tuple[Any, ...]] = []
    monkeypatch.setattr(f"resnet_tpu.performance.bench.{what}.bench_{what}", lambda *values: calls.append(values))
    assert cli.main(["bench", what, *words]) == 0
    (call,) = calls
    assert call[-1] == ["resnet-tpu", "bench", what, *words]
    return call


@pytest.mark.parametrize("what", ["input", "wait"])
def test_quick_option_of_bench_input_and_wait(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def found(*words: str) -> tuple[Any, ...]:
        where, _, options, _ = measured(monkeypatch, what, *words)
        return where, options.rounds, options.seconds, options.batch_size, options.num_images

    assert found() == found("--quick", "--noquick") == ("", 5, 5.0, 100, 1000)
    assert found("--quick") == ("", 1, 0.2, 8, 32)
    assert found("photos", "--quick", "--batch_size=64") == ("photos", 1, 0.2, 64, 32)
    # the defaults, but typed
    assert found("--rounds=5", "--seconds=5", "--quick", "--num_images=1000") == ("", 5, 5.0, 8, 1000)


def test_quick_option_of_bench_step(monkeypatch: pytest.MonkeyPatch) -> None:
    def found(*words: str) -> tuple[Any, ...]:
        cases, options, _ = measured(monkeypatch, "step", *words)
        return cases, options.rounds, options.seconds, options.warmup, options.steps

    assert found() == ("", 5, 5.0, 4, 12)
    assert found("--quick") == ("18:64:8", 1, 0.2, 1, 2)
    assert found("20:32:8", "--quick", "--steps=12", "--rounds=5") == ("20:32:8", 5, 0.2, 1, 12)


def test_quick_option_of_bench_serve(monkeypatch: pytest.MonkeyPatch) -> None:
    def found(*words: str) -> tuple[Any, ...]:
        where, config, options, _ = measured(monkeypatch, "serve", *words)
        model = config.model
        return where, options.rounds, model.resnet_depth, model.resnet_width, config.data.image_size

    assert found() == ("", 5, 50, None, 224)
    assert found("--quick") == ("", 1, 18, 8, 64)
    assert found("--quick", "--resnet_depth=50", "--rounds=5") == ("", 5, 50, 8, 64)
    assert found("exported", "--quick")[:2] == ("exported", 1)
