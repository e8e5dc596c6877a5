"""The progress line of long work appears on a terminal, and nowhere else."""

import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest

WORK = """
from resnet_tpu.system.terminal import OutputConsole, live_line
with live_line(console=OutputConsole(stderr=True)) as line:
    line.add_task("at work")
"""


def test_a_terminal_shows_it() -> None:
    leader, follower = pty.openpty()
    subprocess.run([sys.executable, "-c", WORK], stderr=follower, check=True, env=os.environ | {"TERM": "xterm"})
    os.close(follower)
    assert b"at work" in os.read(leader, 10_000)
    os.close(leader)


@pytest.mark.parametrize("variables", [{}, {"FORCE_COLOR": "1"}])
def test_a_file_gets_nothing_of_it(variables: dict[str, str], tmp_path: Path) -> None:
    with (tmp_path / "log.txt").open("wb") as log:
        environment = os.environ | {"TERM": "xterm"} | variables
        subprocess.run([sys.executable, "-c", WORK], stderr=log, check=True, env=environment)
    assert (tmp_path / "log.txt").read_bytes() == b""


@pytest.mark.parametrize("stream", ["stdout", "stderr"])
def test_no_line_is_wrapped_and_no_word_replaced_in_a_file(stream: str) -> None:
    program = f"""
from resnet_tpu.system.terminal import OutputConsole
OutputConsole(stderr={stream == "stderr"}).print("a :dog: " * 50)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert getattr(done, stream).rstrip() == ("a :dog: " * 50).rstrip()
