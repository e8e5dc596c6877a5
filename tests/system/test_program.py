"""Exit codes, and what is written to stderr with them."""

import contextlib
import errno
import logging
import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import aiohttp
import jax
import pytest

from resnet_tpu.errors import UserError
from resnet_tpu.system.program import run_program


def fail(error: BaseException) -> int:
    def work(_: Sequence[str]) -> None:
        raise error

    return run_program(work, [])


def test_prints_to_stdout_and_logs_to_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    def work(arguments: Sequence[str]) -> None:
        print(*arguments)
        logging.getLogger("resnet_tpu.some").info("done with %d", len(arguments))

    assert run_program(work, ["a", "b"]) == 0
    assert capsys.readouterr() == ("a b\n", "done with 2\n")
    assert not logging.getLogger("resnet_tpu").handlers


def test_user_error_is_one_message(capsys: pytest.CaptureFixture[str]) -> None:
    assert fail(UserError("seed", "x", "a number", "Change it.")) == 2
    assert capsys.readouterr().err == "seed: got x, expected a number. Change it.\n"


def test_a_terminal_obeys_no_name(capsys: pytest.CaptureFixture[str]) -> None:
    def work(_: Sequence[str]) -> None:
        logging.getLogger("resnet_tpu.some").warning("left out: %s", "\x1b]0;title\x07.jpg")
        raise UserError("Image a\x1b[2J.jpg", "b\x9b31m", "a photo", "Go\ton.")

    assert run_program(work, []) == 2
    expected = "left out: \\x1b]0;title\\x07.jpg\nImage a\\x1b[2J.jpg: got b\\x9b31m, expected a photo. Go\ton.\n"
    assert capsys.readouterr().err == expected


def test_interrupted(capsys: pytest.CaptureFixture[str]) -> None:
    assert fail(KeyboardInterrupt()) == 130
    assert capsys.readouterr().err == "Interrupted.\n"


@pytest.mark.parametrize("number", [errno.EACCES, errno.ENOSPC, errno.EROFS, errno.EIO, errno.ENOTCONN])
def test_machine_errors_name_the_file(number: int, capsys: pytest.CaptureFixture[str]) -> None:
    assert fail(OSError(number, os.strerror(number), "some/file")) == 2
    assert capsys.readouterr().err.startswith(f"some/file: got {os.strerror(number)}, expected ")


def test_a_current_folder_that_was_deleted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    assert run_program(lambda _: Path("data").resolve(), ()) == 2
    assert capsys.readouterr().err.startswith("Current folder: got none: it was deleted, expected ")


WITHOUT_TEMPORARY_FOLDER = """
import sys, tempfile
from resnet_tpu.system.program import run_program

def draw(_):
    import matplotlib

def end(_):
    from resnet_tpu.reports.run_curves import draw_curves
    draw_curves("run")

tempfile._candidate_tempdir_list = list
work = {"make": lambda _: tempfile.mkdtemp(), "draw": draw, "end a training": end}
sys.exit(run_program(work[sys.argv[1]], []))
"""


@pytest.mark.parametrize(
    ("work", "code", "said"),
    [
        ("make", 2, "Temporary files: got no folder that can be written to, expected one"),
        ("draw", 2, "Set TMPDIR to a folder that can be written to."),
        ("end a training", 0, "run/report/curves.png is not drawn: Matplotlib requires access to a writable cache"),
    ],
)
def test_nowhere_for_temporary_files(work: str, code: int, said: str) -> None:
    """As in a container whose files are read-only and whose user has no home folder."""
    own = {name: value for name, value in os.environ.items() if name not in ("MPLCONFIGDIR", "XDG_CONFIG_HOME")}
    command = [sys.executable, "-c", WITHOUT_TEMPORARY_FOLDER, work]
    done = subprocess.run(
        command, env=own | {"HOME": "/dev/null/none"}, capture_output=True, text=True, check=False, timeout=300
    )
    assert done.returncode == code, done.stderr
    assert said in done.stderr
    assert "Traceback" not in done.stderr


def test_too_little_memory_says_what_to_lower(capsys: pytest.CaptureFixture[str]) -> None:
    assert fail(jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: Out of memory allocating 8 bytes.\nmore")) == 2
    said = "Memory of the device: got RESOURCE_EXHAUSTED: Out of memory allocating 8 bytes, expected room for a step. "
    assert capsys.readouterr().err.startswith(said)
    for error, got in (
        (MemoryError(), "none left"),
        (MemoryError("Unable to allocate 8 GiB"), "Unable to allocate 8 GiB"),
        (OSError(errno.ENOMEM, "Cannot allocate memory"), "[Errno 12] Cannot allocate memory"),
    ):
        assert fail(error) == 2
        assert capsys.readouterr().err.startswith(
            f"Memory: got {got}, expected room for the work. Lower train_batch_size"
        )


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("raise RuntimeError('The TPU is already in use.')", "The TPU is already in use"),
        ("raise AssertionError", "no device of the kind that JAX_PLATFORMS asks for"),
    ],
)
def test_a_backend_of_jax_that_does_not_start(code: str, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    raising = compile(code, f"{Path(jax.__file__).parent}/_src/xla_bridge.py", "exec")  # which tells JAX's from others
    assert run_program(lambda _: exec(raising), ()) == 2
    assert capsys.readouterr().err.startswith(f"Devices: got {said}, expected devices that JAX can use. ")


def test_a_backend_that_jax_does_not_know(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_program(lambda _: jax.devices("abacus"), ()) == 2
    assert capsys.readouterr().err.startswith("Devices: got Unknown backend abacus")


@pytest.mark.parametrize("error", [aiohttp.ClientOSError(111, "refused"), OSError("Forbidden: b/bucket\nno access")])
def test_errors_that_do_not_name_their_bucket(error: OSError, capsys: pytest.CaptureFixture[str]) -> None:
    assert fail(error) == 2
    assert capsys.readouterr().err.startswith("Reading files in a bucket: got ")


@pytest.mark.parametrize(
    "error",
    [
        jax.errors.JaxRuntimeError("INTERNAL: bug"),
        ZeroDivisionError(),
        RuntimeError("not of a backend"),
        AssertionError(),
        OSError(errno.EBADF, "bad descriptor"),
        SystemExit(5),
    ],
)
def test_the_rest_passes_through(error: BaseException) -> None:
    with pytest.raises(type(error)):
        fail(error)


@pytest.mark.parametrize(
    ("number", "code", "said"),
    [
        (signal.SIGINT, 130, b"Interrupted.\n"),
        (signal.SIGTERM, 143, b"Terminated.\n"),
        (signal.SIGHUP, 129, b"Hung up.\n"),
    ],
)
def test_a_signal_to_the_process(number: signal.Signals, code: int, said: bytes) -> None:
    program = (
        "import sys, time; from resnet_tpu.system.program import run_program\n"
        "def work(_):\n"
        "    print('ready', flush=True)\n"
        "    while True: time.sleep(0.1)\n"  # Python 3.14 may handle a signal within `print` only after the next call
        "sys.exit(run_program(work, []))"
    )
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        process.send_signal(number)
        assert process.communicate(timeout=60)[1] == said
    assert process.returncode == code


LATE = {
    "after the work": "say()\nwhile True: time.sleep(0.1)",
    "while Python frees its modules": "held = type('Held', (), {'__del__': lambda _: (say(), time.sleep(0.4))})()",
}


@pytest.mark.parametrize("moment", LATE)
@pytest.mark.parametrize(
    "number",
    [signal.SIGINT, *(pytest.param(other, marks=pytest.mark.long) for other in (signal.SIGTERM, signal.SIGHUP))],
)
def test_a_signal_after_the_work_changes_nothing(number: signal.Signals, moment: str) -> None:
    program = (
        "import os, sys, time; from resnet_tpu.system.program import run_program\n"
        "def say(write=os.write): write(1, b'ready\\n')\n"
        f"code = run_program(lambda arguments: None)\n{LATE[moment]}\nsys.exit(code)"
    )
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        process.send_signal(number)
        assert process.communicate(timeout=60)[1] == b""
    assert process.returncode == 0


@pytest.mark.parametrize("soon", [0.05, 0.0])  # 0: it is sent again before the hook returns
@pytest.mark.parametrize(
    ("number", "code", "said"),
    [
        (signal.SIGINT, 130, "Interrupted.\n"),
        pytest.param(signal.SIGTERM, 143, "Terminated.\n", marks=pytest.mark.long),
        pytest.param(signal.SIGHUP, 129, "Hung up.\n", marks=pytest.mark.long),
    ],
)
def test_a_signal_within_a_callback_of_the_garbage_collector_is_not_lost(
    number: signal.Signals, code: int, said: str, soon: float
) -> None:
    script = (
        "import gc, os, sys, time\nfrom resnet_tpu.system import program\n"
        f"program._SOON_SECS = {soon}\n"
        "def work(_):\n"
        "    gc.callbacks.append(lambda *_: gc.callbacks.clear() or os.kill(os.getpid(), int(sys.argv[1])) or [0])\n"
        "    gc.collect()\n"
        "    while True: time.sleep(0.1)\n"  # a signal just before the system call of a sleep is handled after it
        "sys.exit(program.run_program(work))"
    )
    done = subprocess.run([sys.executable, "-c", script, str(int(number))], capture_output=True, text=True, timeout=50)
    assert (done.returncode, done.stderr) == (code, said)


ON_A_TERMINAL = """
import logging, os, pty, signal, sys, time
from resnet_tpu.system.program import run_program

def work(_):
    if sys.argv[1] == "ignored":
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
    os.write(1, b"ready")  # at once: print would still be writing the end of the line
    try:
        for number in range(1000):
            logging.getLogger("resnet_tpu").info("line %d", number)
            if sys.argv[1] == "ignored" and os.path.samestat(os.fstat(2), os.stat(os.devnull)):
                raise SystemExit(7)
            time.sleep(0.01)
    finally:
        print("saving", flush=True)

pid, terminal = pty.fork()
if not pid:
    sys.exit(run_program(work))
while b"ready" not in os.read(terminal, 1000):
    pass
os.close(terminal)
sys.exit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
"""


@pytest.mark.parametrize(("hangup", "code"), [("handled", 129), ("ignored", 7)])  # ignored: as after shell `disown`
def test_the_terminal_is_closed(hangup: str, code: int) -> None:
    done = subprocess.run([sys.executable, "-c", ON_A_TERMINAL, hangup], stderr=subprocess.PIPE, check=False)
    assert (done.returncode, done.stderr) == (code, b"")


def test_what_nohup_starts_goes_on() -> None:
    program = (
        "import os, signal; from resnet_tpu.system.program import run_program\n"
        "signal.signal(signal.SIGHUP, signal.SIG_IGN)\n"
        "print(run_program(lambda _: os.kill(os.getpid(), signal.SIGHUP), []))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "0\n", "")


@pytest.mark.parametrize("verb", [pytest.param("--version", marks=pytest.mark.long), "models"])
def test_reader_gone(verb: str) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    command = [sys.executable, "-m", "resnet_tpu", verb]
    done = subprocess.run(command, stdout=writing, stderr=subprocess.PIPE, check=False)
    os.close(writing)
    assert (done.returncode, done.stderr) == (141, b"")


def test_the_work_goes_on_when_the_reader_of_the_log_is_gone() -> None:
    program = (
        "import logging, sys; from resnet_tpu.system.program import run_program\n"
        "log = logging.getLogger('resnet_tpu.some')\n"
        "sys.exit(run_program(lambda _: (log.info('a'), input(), log.info('b'), log.info('c'), print('done'))))"
    )
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, "-c", program], stdin=pipe, stdout=pipe, stderr=pipe) as process:
        assert process.stderr
        assert process.stderr.readline() == b"a\n"
        process.stderr.close()
        process.stderr = None
        assert process.communicate(b"\n")[0] == b"done\n"
    assert process.returncode == 0


def test_started_without_standard_streams(tmp_path: Path) -> None:
    program = (
        "import os, sys; from resnet_tpu.system.program import run_program\n"
        "def work(words):\n"
        "    print('a', file=sys.stderr); print('b')\n"
        "    os.write(os.open(words[0], os.O_CREAT | os.O_RDWR), b'c')\n"
        "sys.exit(run_program(work))"
    )
    command = shlex.join([sys.executable, "-c", program, str(tmp_path / "file")])
    done = subprocess.run(f"exec {command} <&- >&- 2>&-", shell=True, check=False)
    assert (done.returncode, (tmp_path / "file").read_text()) == (0, "c")


def test_a_full_disk_under_the_log_costs_lines_and_not_the_work(monkeypatch: pytest.MonkeyPatch) -> None:
    done = []

    def work(arguments: Sequence[str]) -> None:
        logging.getLogger("resnet_tpu.some").info("a line")
        done.extend(arguments)
        if arguments[0] == "fail":
            raise UserError("seed", "x", "a number", "Change it.")

    with open("/dev/full", "w") as full:  # noqa: PTH123
        monkeypatch.setattr(sys, "stderr", full)
        assert run_program(work, ["go"]) == 0
        assert run_program(work, ["fail"]) == 2
        monkeypatch.undo()
        with contextlib.suppress(OSError):
            full.close()
    assert done == ["go", "fail"]


def test_what_a_terminal_cannot_show_is_shown_by_its_number() -> None:
    program = "from resnet_tpu.system.program import run_program; run_program(lambda _: print('\\u65e5, \\udce9'))"
    environment = os.environ | {"PYTHONIOENCODING": "latin-1"}
    ran = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True)
    assert ran.stdout == "\\u65e5, \\udce9\n"
