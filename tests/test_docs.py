"""Every command in the README and the docs works: ```bash blocks run unchanged, those in other blocks are parsed."""

import ast
import contextlib
import functools
import importlib
import io
import os
import re
import runpy
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

import cv2
import numpy as np
import pytest
from jax._src import xla_bridge

from resnet_tpu import cli, resnet_main
from resnet_tpu.cli.menu import Menu
from resnet_tpu.data.folders import find_photos
from resnet_tpu.data.loader.batches import train_batches
from resnet_tpu.options.config import OPTIONS, Config, ModelConfig

ROOT = Path(__file__).resolve().parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")), *sorted((ROOT / "benchmarks").glob("*.md"))]
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
WRITER = runpy.run_path(str(ROOT / "docs" / "pages.py"))
LINK = re.compile(r"\]\(([^)#]*)#?([^)]*)\)")


def commands(page: Path, *kinds: str) -> list[list[str]]:
    """The commands of this package in the fenced blocks of these kinds, as words."""
    blocks = [text for kind, text in BLOCK.findall(page.read_text()) if kind in kinds]
    lines = "\n".join(blocks).replace("\\\n", " ").splitlines()
    words = [shlex.split(line, comments=True) for line in lines]
    return [
        line for line in words if line[:1] == ["resnet-tpu"] or line[:3] == ["python", "-m", "resnet_tpu.resnet_main"]
    ]


@functools.cache
def headings(page: Path) -> frozenset[str]:
    """The headings of a page as links name them, on GitHub and on the site."""
    titles = re.findall(r"^#+ (.+)$", BLOCK.sub("", page.read_text()), re.MULTILINE)
    return frozenset(re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles)


@functools.cache
def options_in_help(*verb: str) -> frozenset[str]:
    """The options that `resnet-tpu VERB --help-all` shows."""
    with contextlib.redirect_stdout(io.StringIO()) as shown, contextlib.suppress(SystemExit):
        cli.main([*verb, "--help-all"])
    return frozenset(re.findall(r"--(\w+)", shown.getvalue()))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_options_exist_and_links_lead_somewhere(page: Path) -> None:
    for command in commands(page, "", "bash"):
        if command[0] == "python":
            known, rest = {*resnet_main.SINGLE_FLAGS, *resnet_main.TEXT_FLAGS, *resnet_main.YAML_FLAGS}, command[3:]
        else:
            assert command[1] in cli.VERBS
            verb = cli.VERBS[command[1]]
            is_part = isinstance(verb, Menu) and command[2] in verb.verbs
            known, rest = options_in_help(*(command[1:3] if is_part else command[1:2])), command[2:]
        if command[1:2] == ["submit"]:  # the words that follow are for `resnet-tpu train`
            known, rest = {*known, *OPTIONS, "recipe", "params_override"}, [word for word in rest if word != "--"]
        if command[1:2] == ["prepare"] and "--" in rest:  # for Apache Beam: tests/data/prepare/test_beam.py
            rest = rest[: rest.index("--")]
        for word in rest:
            if word.startswith("--"):
                name = word[2:].partition("=")[0].replace("-", "_")
                assert {name, name.removeprefix("no_")} & {*known}, " ".join(command)
    for target, heading in LINK.findall(BLOCK.sub("", page.read_text())):
        if "://" not in target:
            found = page.parent / target if target else page
            assert found.exists(), target
            assert not heading or heading in headings(found), f"{target}#{heading}"


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.long if name == "models.md" else ()) for name in WRITER["PAGES"]]
)
def test_pages_that_tell_what_the_code_says_are_up_to_date(name: str) -> None:
    """To trace every network for the page of networks takes long."""
    assert (ROOT / "docs" / name).read_text() == WRITER["PAGES"][name](), "run `make pages`"


def test_the_page_of_networks_has_the_rows_that_the_code_makes() -> None:
    rows = (ROOT / "docs" / "models.md").read_text().splitlines()
    for depth, *size in ((50,), (20, 32, 10)):
        cells = WRITER["network_row"](f"ResNet-{depth}", ModelConfig(resnet_depth=depth), *size)
        assert any(row.startswith(f"| {' | '.join(cells[:4])} |") for row in rows), "run `make pages`"


def test_on_the_site_links_lead_to_the_copies_of_notebooks_and_benchmarks() -> None:
    point = runpy.run_path(str(ROOT / "docs" / "conf.py"))["point_to_copies"]
    pages = ["[a](../benchmarks/faults.md#x), [b](../notebooks/photos.ipynb), [c](gpu.md); back: [d](../docs/plan.md)"]
    point(None, "", pages)
    assert pages == ["[a](benchmarks/faults.md#x), [b](notebooks/photos.ipynb), [c](gpu.md); back: [d](../plan.md)"]


def test_the_page_for_trouble_has_messages_as_they_are() -> None:
    """Every message on the page consists of text from the package or from JAX, except for names, paths and numbers."""
    files = [*(ROOT / "src").rglob("*.py"), Path(xla_bridge.__file__)]
    trees = [ast.parse(file.read_text()) for file in files]
    nodes = [node for tree in trees for node in ast.walk(tree) if isinstance(node, ast.Expr | ast.Constant)]
    docstrings = {id(node.value) for node in nodes if isinstance(node, ast.Expr)}
    texts = {
        text
        for node in nodes
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docstrings
        for text in re.split(r"%[.\d]*[sdf]", node.value)
        if len(text) > 6 and " " in text.strip()
    }
    longest_first = sorted(texts, key=len, reverse=True)
    page = (ROOT / "docs" / "troubleshooting.md").read_text()
    for message in "".join(text for kind, text in BLOCK.findall(page) if kind == "text").splitlines():
        left = message
        for text in longest_first:
            left = left.replace(text, "")
        assert len(left) <= 0.6 * len(message), f"{message}\nUnknown: {left}"


def test_the_source_in_the_docs_gives_batches(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "source.md").read_text()
    (program,) = (text for kind, text in BLOCK.findall(page) if kind == "python")
    images = np.random.default_rng(0).integers(0, 256, (6, 8, 8, 3), np.uint8)
    np.savez(tmp_path / "train.npz", images=images, labels=np.arange(6) % 2)
    exec(program, names := {})
    data = Config().replace(data_dir=str(tmp_path), image_size=8).data
    with train_batches(names["ArraySource"](data, "train"), data, batch_size=6, seed=0) as batches:
        batch = next(batches)
    found = {image.tobytes(): label for image, label in zip(batch["image"], batch["label"], strict=True)}
    assert found == {image.tobytes(): i % 2 for i, image in enumerate(images)}


def draw_photos(folder: Path, count: int = 20) -> None:
    """Draws `folder/<class>/<n>.jpg`: two classes that differ in colour."""
    rng = np.random.default_rng(0)
    for name, colour in (("daisy", (200, 200, 200)), ("rose", (40, 40, 200))):
        (folder / name).mkdir(parents=True)
        for number in range(1, count + 1):
            photo = np.clip(np.array(colour) + rng.normal(0, 30, (100, 120, 3)), 0, 255)
            cv2.imwrite(str(folder / name / f"{number}.jpg"), photo.astype(np.uint8))


def run_python(folder: Path, program: str) -> str:
    """The output of a program that runs in `folder`, with one device."""
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=folder, env=os.environ | {"JAX_NUM_CPU_DEVICES": "1"},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    return done.stdout


def run(folder: Path, lines: Iterable[Sequence[str]]) -> None:
    """Runs `resnet-tpu` commands in `folder` one after the other in one process, because starting JAX takes seconds."""
    known = [list(line[1:]) for line in dict.fromkeys(map(tuple, lines))]
    assert known
    run_python(folder, f"from resnet_tpu import cli\nfor words in {known}: assert cli.main(words) == 0, words")


@pytest.mark.long
def test_commands_for_photos_run_as_they_are(tmp_path: Path) -> None:
    """The README's are among those of the page."""
    draw_photos(tmp_path / "photos")
    (tmp_path / "photo.jpg").write_bytes((tmp_path / "photos" / "rose" / "1.jpg").read_bytes())
    run(tmp_path, [*commands(ROOT / "README.md", "bash"), *commands(ROOT / "docs" / "photos.md", "bash")])


def draw_competition(folder: Path) -> tuple[str, str]:
    """Draws the photos and the table that `competition.md` begins with, and returns the page's two programs."""
    draw_photos(folder / "photos")
    (folder / "train_images").mkdir()
    (folder / "test_images").mkdir()
    lines = ["image_id,label"]
    for path in sorted((folder / "photos").rglob("*.jpg")):
        name = f"{path.parent.name}{path.stem}"
        path.rename(folder / "train_images" / f"{name}.jpg")
        lines.append(f"{name},{path.parent.name}")
    shutil.copy(folder / "train_images" / "rose1.jpg", folder / "test_images" / "0a1b.jpg")
    (folder / "train.csv").write_text("\n".join(lines))
    page = (ROOT / "docs" / "competition.md").read_text()
    first, second = (text for kind, text in BLOCK.findall(page) if kind == "python")
    return first, second


def test_the_table_of_a_competition_becomes_one_of_photos(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program, _ = draw_competition(tmp_path)
    monkeypatch.chdir(tmp_path)
    exec(program, {})
    found = find_photos("photos.csv").photos
    assert {photo.class_name for photo in found} == {"daisy", "rose"}
    assert {Path(photo.path).resolve() for photo in found} == {*(tmp_path / "train_images").iterdir()}


@pytest.mark.long
def test_the_page_for_competitions_ends_with_a_submission(tmp_path: Path) -> None:
    first, second = draw_competition(tmp_path)
    run_python(tmp_path, first)
    run(tmp_path, commands(ROOT / "docs" / "competition.md", "bash"))
    run_python(tmp_path, second)
    head, row = (tmp_path / "submission.csv").read_text().splitlines()
    assert head == "image_id,label"
    assert row in ("0a1b,daisy", "0a1b,rose")


@pytest.mark.slow
def test_commands_after_the_demo_run_as_they_are(tmp_path: Path) -> None:
    lines = [line for line in commands(ROOT / "README.md", "") if line[1] != "serve"]
    run(tmp_path, [["resnet-tpu", "demo", "--output_dir=demo"], *lines])


PREPARE = ["resnet-tpu", "prepare", "photos", "data"]
TRAIN = ["resnet-tpu", "train", "--recipe=flowers_cpu", "--data_dir=data", "--model_dir=model", "--train_steps=1"]


@pytest.mark.parametrize(
    "page", [pytest.param("convert.md", marks=pytest.mark.slow), pytest.param("export.md", marks=pytest.mark.long)]
)
def test_commands_for_weights_run_as_they_are(page: str, tmp_path: Path) -> None:
    draw_photos(tmp_path / "photos")
    run(tmp_path, [PREPARE, TRAIN, *commands(ROOT / "docs" / page, "bash")])


@pytest.mark.slow
def test_commands_for_trained_networks_run_as_they_are(tmp_path: Path) -> None:
    """Without internet access: a folder called `resnet50` takes precedence over the published weights of that name."""
    draw_photos(tmp_path / "photos")
    pages = commands(ROOT / "docs" / "finetune.md", "bash")
    start = ["resnet-tpu", "train", "--recipe=flowers_cpu", "--data_dir=data", "--model_dir=start", "--train_steps=1"]
    torch_s = ["--image_size=64", "--project_first_group=false", "--pool_padding=symmetric"]
    run(tmp_path, [PREPARE, [*start, *torch_s], ["resnet-tpu", "convert", "start", "resnet50", "--to=timm"], *pages])
    assert (tmp_path / "tuned_timm" / "README.md").read_text().count("cc-by-4.0") == 2


@pytest.mark.slow
@pytest.mark.parametrize("page", ["profile.md", "input.md", "pruning.md", "kernels.md"])
def test_commands_for_records_run_as_they_are(page: str, tmp_path: Path) -> None:
    draw_photos(tmp_path / "photos")
    run(tmp_path, [PREPARE, *commands(ROOT / "docs" / page, "bash")])


def test_programs_import_what_exists() -> None:
    programs = [text for page in PAGES for kind, text in BLOCK.findall(page.read_text()) if kind == "python"]
    imports = re.findall(r"^from (resnet_tpu[\w.]*) import (.+)$", "\n".join(programs), re.MULTILINE)
    assert len(imports) >= 8
    for module, names in imports:
        for name in names.split(", "):
            assert hasattr(importlib.import_module(module), name) or importlib.import_module(f"{module}.{name}")


@pytest.mark.long
def test_the_programs_in_python_run_as_they_are(tmp_path: Path) -> None:
    draw_photos(tmp_path / "photos")
    page = (ROOT / "docs" / "api.md").read_text()
    programs = [text for kind, text in BLOCK.findall(page) if kind == "python"]
    first, *own_step = [run_python(tmp_path, program).splitlines() for program in programs]
    assert first[-1] in ("daisy", "rose")
    assert "'params/stem/conv/kernel': (3, 3, 3, 16)" in own_step[-1][-1]
