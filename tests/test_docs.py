"""Every command in the README and the docs is one that works: ```bash blocks run as they are, others are parsed."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

import cv2
import numpy as np
import pytest

from resnet_tpu import cli, resnet_main
from resnet_tpu.config import OPTIONS

ROOT = Path(__file__).resolve().parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\(([^)#]+)\)")


def commands(page: Path, *kinds: str) -> list[list[str]]:
    """The commands of this package in the fenced blocks of these kinds, as words."""
    blocks = [text for kind, text in BLOCK.findall(page.read_text()) if kind in kinds]
    lines = "\n".join(blocks).replace("\\\n", " ").splitlines()
    words = [shlex.split(line, comments=True) for line in lines]
    return [
        line for line in words if line[:1] == ["resnet-tpu"] or line[:3] == ["python", "-m", "resnet_tpu.resnet_main"]
    ]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_options_exist_and_links_lead_somewhere(page: Path) -> None:
    for command in commands(page, "", "bash"):
        if command[0] == "python":
            known, rest = {*resnet_main.SINGLE_FLAGS, *resnet_main.TEXT_FLAGS, *resnet_main.YAML_FLAGS}, command[3:]
        else:
            assert command[1] in cli.VERBS
            parts = getattr(sys.modules[cli.VERBS[command[1]].__module__], "WHATS", {})
            verb = command[1:3] if parts.keys() & command[2:3] else command[1:2]
            help_text = subprocess.run(
                [sys.executable, "-m", "resnet_tpu", *verb, "--help"], capture_output=True, text=True, check=True
            ).stdout
            known, rest = set(re.findall(r"--(\w+)", help_text)), command[2:]
        if command[1:2] == ["submit"]:  # what follows is for `resnet-tpu train`
            known, rest = {*known, *OPTIONS, "recipe", "params_override"}, [word for word in rest if word != "--"]
        for word in rest:
            if word.startswith("--"):
                assert word[2:].partition("=")[0].replace("-", "_") in known, " ".join(command)
    for target in LINK.findall(page.read_text()):
        if "://" not in target:
            assert (page.parent / target).exists(), target


def draw_photos(folder: Path) -> None:
    """`photos/<class>/<n>.jpg`, two kinds that differ in colour."""
    rng = np.random.default_rng(0)
    for name, colour in (("daisy", (200, 200, 200)), ("rose", (40, 40, 200))):
        (folder / name).mkdir(parents=True)
        for number in range(1, 21):
            photo = np.clip(np.array(colour) + rng.normal(0, 30, (100, 120, 3)), 0, 255)
            cv2.imwrite(str(folder / name / f"{number}.jpg"), photo.astype(np.uint8))


def run(folder: Path, *arguments: str) -> None:
    """Runs the command `resnet-tpu` in `folder`."""
    done = subprocess.run(
        [sys.executable, "-m", "resnet_tpu", *arguments], cwd=folder, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, f"{arguments}\n{done.stderr}"


@pytest.mark.parametrize(
    "page", [page for page in PAGES if page.name in ("README.md", "photos.md")], ids=lambda page: page.name
)
def test_commands_for_photos_run_as_they_are(page: Path, tmp_path: Path) -> None:
    draw_photos(tmp_path / "photos")
    (tmp_path / "photo.jpg").write_bytes((tmp_path / "photos" / "rose" / "1.jpg").read_bytes())
    for command in commands(page, "bash"):
        run(tmp_path, *command[1:])


@pytest.mark.slow
@pytest.mark.parametrize("page", ["convert.md", "export.md"])
def test_commands_for_weights_run_as_they_are(page: str, tmp_path: Path) -> None:
    draw_photos(tmp_path / "photos")
    run(tmp_path, "prepare", "photos", "data")
    run(tmp_path, "train", "--recipe=flowers_cpu", "--data_dir=data", "--model_dir=model", "--train_steps=1")
    for command in commands(ROOT / "docs" / page, "bash"):
        run(tmp_path, *command[1:])


@pytest.mark.slow
@pytest.mark.parametrize("page", ["profile.md", "input.md", "pruning.md"])
def test_commands_for_records_run_as_they_are(page: str, tmp_path: Path) -> None:
    draw_photos(tmp_path / "photos")
    run(tmp_path, "prepare", "photos", "data")
    for command in commands(ROOT / "docs" / page, "bash"):
        run(tmp_path, *command[1:])


def test_the_program_in_python_runs_as_it_is(tmp_path: Path) -> None:
    draw_photos(tmp_path / "photos")
    page = (ROOT / "docs" / "api.md").read_text()
    (program,) = (text for kind, text in BLOCK.findall(page) if kind == "python")
    checks = "import numpy as np\nassert classify(np.zeros((2, 96, 96, 3), np.uint8)).shape == (2, 2)\n"
    done = subprocess.run(
        [sys.executable, "-c", program + checks], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] in ("daisy", "rose")
