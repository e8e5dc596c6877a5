"""A newcomer's path from `git clone` to the first prediction on their own photos: commands typed, and minutes.

Types the README's commands into a shell with an empty home folder: the installation, then the block below "Your photos"
up to the prediction for one photo. Uses this machine's Python, git and network; the clone has only committed files.

    python -m benchmarks.stranger --photos=flower_photos --photo=flower_photos/roses/1.jpg
"""

import os
import re
import shlex
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks import script
from resnet_tpu.errors import UserError
from resnet_tpu.performance.bench.figures import markdown
from resnet_tpu.performance.bench.photos import draw_photos

INSTALL = ("git clone --quiet {checkout} resnet_tpu", "python3 -m venv env", ". env/bin/activate", "{pip}")
_BLOCK = re.compile(r"## Your photos.*?^```bash\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_DONE = "the command is done:"


def commands(pip: str) -> list[str]:
    """The commands to type: the installation, then the README's."""
    (block,) = _BLOCK.findall((script.CHECKOUT / "README.md").read_text())
    install = [line.format(checkout=shlex.quote(str(script.CHECKOUT)), pip=pip) for line in INSTALL]
    return install + [line for line in block.splitlines() if line]


def type_all(lines: list[str], folder: str) -> list[float]:
    """Runs the lines in a shell in `folder` and returns the seconds of each. Raises UserError if one fails."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "VIRTUAL_"))}
    shell = subprocess.Popen(
        ["bash"], cwd=folder, env=environment | {"HOME": folder, "XDG_CACHE_HOME": f"{folder}/.cache"}, text=True,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=sys.stderr,
    )  # fmt: skip
    assert shell.stdin and shell.stdout
    seconds = []
    for line in lines:
        print(f"$ {line}", flush=True)
        start = time.perf_counter()
        shell.stdin.write(f"{line}\necho {_DONE} $?\n")
        shell.stdin.flush()
        for shown in shell.stdout:
            if shown.startswith(_DONE):
                break
            print(shown, end="", flush=True)
        else:
            raise UserError(line, "the end of the shell", "it to go on", "Run the commands by hand.")
        if not shown.endswith(" 0\n"):
            raise UserError(line, f"exit code {shown.split()[-1]}", "0", "See what it said above.")
        seconds.append(time.perf_counter() - start)
    shell.stdin.close()
    shell.wait()
    return seconds


def render(lines: list[str], seconds: list[float]) -> str:
    """A Markdown table of the commands and their total time."""
    rows = ((f"`{line}`", f"{took:.0f}") for line, took in zip(lines, seconds, strict=True))
    return markdown(("command", "seconds"), rows, [f"{len(lines)} commands, {sum(seconds) / 60:.1f} minutes."])


def program() -> None:
    """Reads the command line, types the commands and reports."""
    parser = script.make_parser("stranger", __doc__, rounds=1)
    parser.add_argument("--photos", type=Path, help="Folder with one folder per class. Default: 40 drawn photos.")
    parser.add_argument("--photo", type=Path, help="The photo to predict. Default: the first of --photos.")
    parser.add_argument("--pip", default="pip install --quiet ./resnet_tpu", help="Default: %(default)s.")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        photos = Path(folder) / "photos"
        if options.photos:
            photos.symlink_to(options.photos.resolve())
        else:
            draw_photos(photos, 40)
        photo = options.photo or min(photos.glob("*/*"))
        (Path(folder) / "photo.jpg").write_bytes(photo.read_bytes())
        lines = commands(options.pip)
        if options.quick:
            lines = [line + " --train_steps=2" * line.startswith("resnet-tpu train") for line in lines]
        seconds = type_all(lines, folder)
    shown = [line.replace(str(script.CHECKOUT), "URL") for line in lines]
    steps = [{"command": line, "seconds": took} for line, took in zip(shown, seconds, strict=True)]
    script.report("stranger", render(shown, seconds), {"commands": steps}, options)


if __name__ == "__main__":
    script.main(program)
