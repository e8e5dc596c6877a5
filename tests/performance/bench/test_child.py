"""Programs run in processes of their own: what they print, how they fail, and that nothing is left behind."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from resnet_tpu.errors import UserError
from resnet_tpu.performance.bench import child


def python(code: str) -> list[str]:
    """The command that runs this Python code."""
    return [sys.executable, "-c", code]


def test_a_failure_is_named_with_its_output() -> None:
    with pytest.raises(UserError, match="Benchmark of a: got exit code 3\nno luck"):
        child.run("a", python("import sys; sys.stderr.write('no luck'); sys.exit(3)"))
    for output in ("'done'", "12", "''"):
        with pytest.raises(UserError, match="expected exit code 0 and a line with a JSON object"):
            child.run("a", python(f"print({output})"))


def test_output_that_is_not_utf8_costs_no_figures() -> None:
    code = "import os, sys; os.write(2, b'caf\\xe9.png'); print('{\"a\": 1}')"
    assert child.run("a", python(code)) == {"a": 1}


@pytest.mark.skipif(not Path("/proc").is_dir(), reason="no /proc, where processes are looked for")
def test_what_a_program_started_ends_with_it() -> None:
    code = "import json, subprocess as s; print(json.dumps({'pid': s.Popen(['sleep', '600'], stdout=s.DEVNULL).pid}))"
    pid = child.run("a", python(code))["pid"]
    for _ in range(100):
        try:
            if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z":
                return
        except (FileNotFoundError, ProcessLookupError):
            return
        time.sleep(0.1)
    pytest.fail("still there")


@pytest.mark.long
def test_what_is_out_of_time_ends_with_all_that_it_runs() -> None:
    seconds = f"601.{os.getpid()}"  # no other program sleeps as long
    code = (
        "import subprocess as s, sys; from resnet_tpu.performance.bench import child; "
        "from resnet_tpu.system.program import run_program; print('begun', flush=True); "
        f"sys.exit(run_program(lambda _: child.run('a', ['sleep', '{seconds}']), []))"
    )
    ended = child.run_to_end(python(code), seconds=5)
    assert (ended.code, ended.output, ended.errors) == (None, ["begun"], ["Terminated."])
    assert seconds not in subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True, check=True).stdout
