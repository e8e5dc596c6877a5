"""The Tab key in real shells: what is typed, with `\\t` for Tab, and the command that results."""

import os
import pty
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from resnet_tpu import cli
from resnet_tpu.cli import completion
from resnet_tpu.options.config import OPTIONS
from resnet_tpu.recipes import RECIPES

SHELLS = {
    "bash": ["bash", "--norc", "-i"],
    "zsh": ["zsh", "-f", "-i"],
    "fish": ["fish", "--no-config", "-i"],
}
ON_A_TERMINAL = "import os, sys; os.login_tty(0); os.execvp(sys.argv[1], sys.argv[1:])"
BEFORE = {
    "bash": "bind 'set bell-style none'",
    "zsh": "autoload -U compinit && compinit -u -D; unsetopt beep",
    "fish": "set fish_greeting",
}
TYPED = {
    "predi\t": ["predict"],
    "bench in\t": ["bench", "input"],
    "train --iterations\t5": ["train", "--iterations_per_loop", "5"],
    "train --recipe=flowers_c\t": ["train", "--recipe=flowers_cpu"],
    "train --precision fl\t": ["train", "--precision", "float32"],
    "train --random_flip=f\t": ["train", "--random_flip=false"],
    "train --epo\t 3": ["train", "--epochs", "3"],
    "recipes finet\t": ["recipes", "finetune"],
    "help predi\t": ["help", "predict"],
    "completion fi\t": ["completion", "fish"],
    "--vers\t": ["--version"],
    "train --random_flip --nest\t": ["train", "--random_flip", "--nesterov"],
    "train --data_dir=some\t": ["train", "--data_dir=some_photos"],
    "predict some\t": ["predict", "some_photos"],
    "profile input --format=j\t": ["profile", "input", "--format=json"],
    "submit gke --dry\t -- --recipe=flowers_c\t": ["submit", "gke", "--dry_run", "--", "--recipe=flowers_cpu"],
}

NOT_IN = {
    "zsh": {"train --data_dir=some\t"},  # zsh completes file names only as separate words
    "fish": {"train --random_flip=f\t", "submit gke --dry\t -- --recipe=flowers_c\t"},
}


@pytest.fixture(scope="module")
def scripts() -> dict[str, str]:
    return {"bash": completion.bash(), "zsh": completion.bash(), "fish": completion.fish()}


@pytest.mark.parametrize("shell", SHELLS)
def test_tab_completes_what_is_typed(shell: str, scripts: dict[str, str], tmp_path: Path) -> None:
    if not shutil.which(shell):
        pytest.skip(f"no {shell} here")
    (tmp_path / "some_photos").mkdir()
    (tmp_path / "script").write_text(scripts[shell])
    command = tmp_path / "bin" / "resnet-tpu"
    command.parent.mkdir()
    command.write_text('#!/bin/sh\nfor word; do echo "$word"; done > came.part\nmv came.part came\n')
    command.chmod(0o755)
    came = tmp_path / "came"
    terminal, other_end = pty.openpty()
    environment = os.environ | {
        "PATH": f"{command.parent}:{os.environ['PATH']}", "HOME": str(tmp_path), "TERM": "dumb",
    }  # fmt: skip
    process = subprocess.Popen(
        [sys.executable, "-c", ON_A_TERMINAL, *SHELLS[shell]], stdin=other_end, stdout=other_end, stderr=other_end,
        cwd=tmp_path, env=environment,
    )  # fmt: skip
    os.close(other_end)
    try:
        os.write(terminal, f"{BEFORE[shell]}\nsource ./script\nresnet-tpu ready\n".encode())
        assert wait_for(came, terminal) == ["ready"]
        for typed in TYPED.keys() - NOT_IN.get(shell, set()):
            os.write(terminal, f"resnet-tpu {typed}\n".encode())
            # zsh removes the trailing / of a folder at the end of a word
            assert [word.rstrip("/") for word in wait_for(came, terminal)] == TYPED[typed], typed
    finally:
        process.kill()
        process.wait()
        os.close(terminal)


def wait_for(path: Path, terminal: int) -> list[str]:
    """Waits for the file, returns its lines and deletes it; meanwhile, reads what the terminal shows."""
    os.set_blocking(terminal, False)
    shown = b""
    for _ in range(3000):
        try:
            shown += os.read(terminal, 65536)
        except BlockingIOError:
            time.sleep(0.01)
        if path.exists():
            lines = path.read_text().splitlines()
            path.unlink()
            return lines
    raise AssertionError(shown.decode(errors="replace")[-2000:])


def test_scripts_hold_every_verb_option_and_recipe(scripts: dict[str, str]) -> None:
    words = {shell: set(script.replace("'", " ").split()) for shell, script in scripts.items()}
    for found in words.values():
        assert {*cli.VERBS, *RECIPES} <= found
    options = {name for name, option in OPTIONS.items() if option.group != "lottery"}
    assert {f"--{name}" for name in options} <= words["bash"]
    assert options <= words["fish"]
    assert {"--epochs", "--batch_size", "--lr", "--help-all", "--dry_run", "-V"} <= words["bash"]
    assert {"epochs", "batch_size", "lr", "help", "help-all", "dry_run", "V"} <= words["fish"]


def test_bash_takes_the_script_where_unset_variables_are_errors(scripts: dict[str, str]) -> None:
    typed = 'COMP_WORDS=(resnet-tpu predi) COMP_CWORD=1; _resnet_tpu; echo "$COMPREPLY"'
    found = subprocess.run(["bash", "-u", "-c", f"{scripts['bash']}\n{typed}"], capture_output=True, text=True)
    assert (found.stdout, found.stderr) == ("predict\n", "")


def test_another_shell_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["completion", "zhs"]) == 2
    assert "SHELL: got zhs, expected one of bash, zsh, fish. " in capsys.readouterr().err
