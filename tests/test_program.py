"""Exit codes, and what is on stderr with them."""

import errno
import logging
import os
import signal
import subprocess
import sys
from collections.abc import Sequence

import pytest

from resnet_tpu.errors import UserError
from resnet_tpu.program import exit_code


def fail(error: BaseException) -> int:
    def work(_: Sequence[str]) -> None:
        raise error

    return exit_code(work, [])


def test_done_and_its_log(capsys: pytest.CaptureFixture[str]) -> None:
    def work(arguments: Sequence[str]) -> None:
        print(*arguments)
        logging.getLogger("resnet_tpu.some").info("done with %d", len(arguments))

    assert exit_code(work, ["a", "b"]) == 0
    assert capsys.readouterr() == ("a b\n", "done with 2\n")
    assert not logging.getLogger("resnet_tpu").handlers


def test_user_error_is_one_message(capsys: pytest.CaptureFixture[str]) -> None:
    assert fail(UserError("seed", "x", "a number", "Change it.")) == 2
    assert capsys.readouterr().err == "seed: got x, expected a number. Change it.\n"


def test_interrupted(capsys: pytest.CaptureFixture[str]) -> None:
    assert fail(KeyboardInterrupt()) == 130
    assert capsys.readouterr().err == "Interrupted.\n"


@pytest.mark.parametrize("number", [errno.EACCES, errno.ENOSPC, errno.EROFS])
def test_machine_errors_name_the_file(number: int, capsys: pytest.CaptureFixture[str]) -> None:
    assert fail(OSError(number, os.strerror(number), "some/file")) == 2
    assert capsys.readouterr().err.startswith(f"some/file: got {os.strerror(number)}, expected ")


@pytest.mark.parametrize("error", [ZeroDivisionError(), OSError(errno.EBADF, "bad descriptor"), SystemExit(5)])
def test_the_rest_passes_through(error: BaseException) -> None:
    with pytest.raises(type(error)):
        fail(error)


@pytest.mark.parametrize(
    ("number", "code", "said"), [(signal.SIGINT, 130, b"Interrupted.\n"), (signal.SIGTERM, 143, b"Terminated.\n")]
)
def test_a_signal_to_the_process(number: signal.Signals, code: int, said: bytes) -> None:
    program = (
        "import sys, time; from resnet_tpu.program import exit_code\n"
        "def work(_): print('ready', flush=True); time.sleep(60)\n"
        "sys.exit(exit_code(work, []))"
    )
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        process.send_signal(number)
        assert process.communicate(timeout=60)[1] == said
    assert process.returncode == code


def test_reader_gone() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    command = [sys.executable, "-m", "resnet_tpu", "--version"]
    done = subprocess.run(command, stdout=writing, stderr=subprocess.PIPE, check=False)
    os.close(writing)
    assert (done.returncode, done.stderr) == (141, b"")
