"""The harness of all benchmarks: who runs when, how figures are evaluated, and that nothing is left behind."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from resnet_tpu.errors import UserError
from resnet_tpu.performance.bench import compare
from resnet_tpu.performance.bench.compare import Comparison, Contender
from resnet_tpu.system.machine import num_cores


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


def test_a_failure_is_named_with_its_output() -> None:
    with pytest.raises(UserError, match="Benchmark of a: got exit code 3\nno luck"):
        compare.run("a", python("import sys; sys.stderr.write('no luck'); sys.exit(3)"))
    for output in ("'done'", "12", "''"):
        with pytest.raises(UserError, match="expected exit code 0 and a line with a JSON object"):
            compare.run("a", python(f"print({output})"))


def test_optional_contenders_that_fail_are_left_out(caplog: pytest.LogCaptureFixture) -> None:
    good = Contender("good", lambda _: python("print('{}')"))
    bad = Contender("bad", lambda _: python("raise SystemExit(1)"))
    assert compare.alternate([good, bad], rounds=2, optional=["bad"]) == {"good": [{}, {}]}
    assert [record.message.partition(":")[0] for record in caplog.records if "Left out" in record.message] == [
        "Left out"
    ]


def test_what_a_contender_started_ends_with_it() -> None:
    code = "import json, subprocess as s; print(json.dumps({'pid': s.Popen(['sleep', '600'], stdout=s.DEVNULL).pid}))"
    child = compare.run("a", python(code))["pid"]
    for _ in range(100):
        try:
            if Path(f"/proc/{child}/stat").read_text().rpartition(")")[2].split()[0] == "Z":
                return
        except (FileNotFoundError, ProcessLookupError):
            return
        time.sleep(0.1)
    pytest.fail("still there")


@pytest.mark.long
def test_what_is_out_of_time_ends_with_all_that_it_runs() -> None:
    seconds = f"601.{os.getpid()}"  # no other program sleeps as long
    code = (
        "import subprocess as s, sys; from resnet_tpu.performance.bench import compare; "
        "from resnet_tpu.system.program import exit_code; print('begun', flush=True); "
        f"sys.exit(exit_code(lambda _: compare.run('a', ['sleep', '{seconds}']), []))"
    )
    ended = compare.run_to_end(python(code), seconds=5)
    assert (ended.code, ended.output, ended.errors) == (None, ["begun"], ["Terminated."])
    assert seconds not in subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True, check=True).stdout


def test_ratios_are_of_each_round_and_medians_of_all() -> None:
    outputs = {"a": [{"s": 10.0}, {"s": 30.0}, {"s": 20.0}], "b": [{"s": 5.0}, {"s": 10.0}, {"s": 40.0}]}
    row = compare.compare("what", "s", "a", "b", outputs)
    assert row == Comparison("what", "s", "a", "b", {"a": [10.0, 30.0, 20.0], "b": [5.0, 10.0, 40.0]})
    assert row.ratios() == [2.0, 3.0, 0.5]
    assert row.medians() == (20.0, 10.0)
    assert compare.table([row]).splitlines()[-1] == "| what, s | 20 | b: 10 | 2.00 | 0.50 to 3.00 |"


def test_a_record_says_where_the_figures_come_from(tmp_path: Path) -> None:
    compare.write_results(str(tmp_path / "new" / "r.json"), ["resnet-tpu", "bench", "my photos"], {"speed": 1})
    record = json.loads((tmp_path / "new" / "r.json").read_text())
    assert record["command"] == "resnet-tpu bench 'my photos'"
    assert record["figures"] == {"speed": 1}
    assert record["machine"]["cores"] == num_cores()
    assert {"jax", "grain", "numpy", "resnet-tpu"} <= record["machine"]["versions"].keys()


def test_peers_that_are_not_installed_are_named() -> None:
    with pytest.raises(UserError, match="Some peer, the peer of this benchmark: got no module 'no_such_module'"):
        compare.require("Some peer", "no_such_module", "some-package")
