"""Programs compared: who runs when, and how the figures are evaluated."""

import sys

import pytest

from benchmarks import script
from resnet_tpu.errors import UserError
from resnet_tpu.performance.bench import compare


def python(code: str) -> list[str]:
    """The command that runs this Python code."""
    return [sys.executable, "-c", code]


def test_rounds_alternate_and_keep_the_figures_of_each(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "resnet_tpu")
    code = "import sys; print('noise'); print('{\"speed\": ' + sys.argv[1].removeprefix('--seed=') + '.5}')"
    outputs = compare.alternate({name: python(code) for name in "ab"}, rounds=3, round_option="--seed")
    logged = [record.message.split(", ")[:2] for record in caplog.records if record.message.startswith("Round")]
    assert [(text, name) for text, name in logged] == [
        (f"Round {number} of 3", name) for number, name in zip((1, 1, 2, 2, 3, 3), "abbaab", strict=True)
    ]
    assert outputs == {name: [{"speed": 0.5}, {"speed": 1.5}, {"speed": 2.5}] for name in "ab"}


def test_the_environment_reaches_the_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KEPT", "1")
    tell = python("import os; print('{\"sum\":', os.environ['KEPT'] + os.environ['ADDED'], '}')")
    assert compare.alternate({"a": tell}, rounds=1, environment={"ADDED": "2"}) == {"a": [{"sum": 12}]}


def test_optional_programs_that_fail_are_left_out(caplog: pytest.LogCaptureFixture) -> None:
    commands = {"good": python("print('{}')"), "bad": python("raise SystemExit(1)")}
    assert compare.alternate(commands, rounds=2, optional=["bad"]) == {"good": [{}, {}]}
    assert [record.message.partition(":")[0] for record in caplog.records if "Left out" in record.message] == [
        "Left out"
    ]


def test_ratios_are_of_each_round_and_medians_of_all() -> None:
    outputs = {"a": [{"s": 10.0}, {"s": 30.0}, {"s": 20.0}], "b": [{"s": 5.0}, {"s": 10.0}, {"s": 40.0}]}
    assert compare.ratios(outputs, "s", "a", "b") == [2.0, 3.0, 0.5]
    assert compare.median(outputs["a"], "s") == 20.0
    assert compare.ratio_cells([2.0, 3.0, 0.5]) == ("2.00", "0.50 to 3.00")
    row = script.compared("what", "s", "a", "b", outputs)
    assert row.ratios() == [2.0, 3.0, 0.5]
    assert row.medians() == (20.0, 10.0)
    assert script.table([row]).splitlines()[-1] == "| what, s | 20 | b: 10 | 2.00 | 0.50 to 3.00 |"


def test_peers_that_are_not_installed_are_named() -> None:
    with pytest.raises(UserError, match="Some peer, the peer of this benchmark: got no module 'no_such_module'"):
        compare.require("Some peer", "no_such_module", "some-package")
