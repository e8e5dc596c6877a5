"""Programs compared: who runs when, and how the figures are evaluated."""

import sys

import pytest

from benchmarks import script
from resnet_tpu.errors import UserError
from resnet_tpu.performance.bench import compare
from resnet_tpu.performance.bench.compare import Comparison, Contender


def python(code: str) -> list[str]:
    """The command that runs this Python code."""
    return [sys.executable, "-c", code]


def test_rounds_alternate_and_keep_the_figures_of_each() -> None:
    asked: list[tuple[str, int]] = []

    def contender(name: str) -> Contender:
        def command(number: int) -> list[str]:
            asked.append((name, number))
            return python(f"print('noise'); print('{{\"speed\": {number + 1}.5}}')")

        return Contender(name, command)

    outputs = compare.alternate([contender("a"), contender("b")], rounds=3)
    assert asked == [("a", 0), ("b", 0), ("b", 1), ("a", 1), ("a", 2), ("b", 2)]
    assert outputs == {name: [{"speed": 1.5}, {"speed": 2.5}, {"speed": 3.5}] for name in "ab"}


def test_the_environment_reaches_the_contenders(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KEPT", "1")
    tell = Contender(
        "a", lambda _: python("import os; print('{\"sum\":', os.environ['KEPT'] + os.environ['ADDED'], '}')")
    )
    assert compare.alternate([tell], rounds=1, environment={"ADDED": "2"}) == {"a": [{"sum": 12}]}


def test_optional_contenders_that_fail_are_left_out(caplog: pytest.LogCaptureFixture) -> None:
    good = Contender("good", lambda _: python("print('{}')"))
    bad = Contender("bad", lambda _: python("raise SystemExit(1)"))
    assert compare.alternate([good, bad], rounds=2, optional=["bad"]) == {"good": [{}, {}]}
    assert [record.message.partition(":")[0] for record in caplog.records if "Left out" in record.message] == [
        "Left out"
    ]


def test_ratios_are_of_each_round_and_medians_of_all() -> None:
    outputs = {"a": [{"s": 10.0}, {"s": 30.0}, {"s": 20.0}], "b": [{"s": 5.0}, {"s": 10.0}, {"s": 40.0}]}
    row = compare.compare("what", "s", "a", "b", outputs)
    assert row == Comparison("what", "s", "a", "b", {"a": [10.0, 30.0, 20.0], "b": [5.0, 10.0, 40.0]})
    assert row.ratios() == [2.0, 3.0, 0.5]
    assert row.medians() == (20.0, 10.0)
    assert script.table([row]).splitlines()[-1] == "| what, s | 20 | b: 10 | 2.00 | 0.50 to 3.00 |"


def test_peers_that_are_not_installed_are_named() -> None:
    with pytest.raises(UserError, match="Some peer, the peer of this benchmark: got no module 'no_such_module'"):
        compare.require("Some peer", "no_such_module", "some-package")
